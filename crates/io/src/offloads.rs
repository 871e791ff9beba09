//! Which offloads are allowed, or in force.

use std::fmt;

/// Defines the switches. Their documentation is what users read of them, too.
macro_rules! offloads {
    ($($(#[doc = $doc:literal])+ $field:ident => $name:literal,)+) => {
        /// One switch per offload: as a setting what is allowed, as a status what is in force. All
        /// on by default.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Offloads {
            $($(#[doc = $doc])+ pub $field: bool,)+
        }

        impl Offloads {
            /// Every offload on.
            pub const ALL: Self = Self { $($field: true,)+ };
            /// Every offload off.
            pub const NONE: Self = Self { $($field: false,)+ };

            /// The names by which users switch offloads, in the order of the fields.
            pub const NAMES: [&'static str; COUNT] = [$($name,)+];
            /// Explanations of each of these.
            pub const EXPLANATIONS: [&'static str; COUNT] =
                [$(concat!($($doc),+).trim_ascii(),)+];

            fn switches(&mut self) -> [&mut bool; COUNT] {
                [$(&mut self.$field,)+]
            }
        }

        const COUNT: usize = [$($name,)+].len();
    };
}

offloads! {
    /// The kernel hands over TCP GSO packets of up to 64 KiB.
    tun_tso => "tun-tso",
    /// The kernel hands over UDP GSO packets (Linux 6.2).
    tun_uso => "tun-uso",
    /// The kernel hands over GSO packets inside UDP tunnels like VXLAN (Linux 6.17).
    tun_tunnel => "tun-tunnel",
    /// TCP packets are merged before they are written to the TUN.
    tun_gro_tcp => "tun-gro-tcp",
    /// UDP packets are merged before they are written to the TUN.
    tun_gro_udp => "tun-gro-udp",
    /// TCP packets in VXLAN are merged where `tun-tunnel` is in force, too.
    tun_gro_tunnel => "tun-gro-tunnel",
    /// A train leaves with one `sendmsg` (UDP_SEGMENT).
    udp_gso => "udp-gso",
    /// Trains arrive merged (UDP_GRO).
    udp_gro => "udp-gro",
}

impl Default for Offloads {
    fn default() -> Self {
        Self::ALL
    }
}

impl Offloads {
    /// Turns off the offload called `name`, one of [`Self::NAMES`].
    ///
    /// # Errors
    ///
    /// No offload has this name.
    pub fn disable(&mut self, name: &str) -> Result<(), UnknownOffload> {
        let index = Self::NAMES
            .iter()
            .position(|known| *known == name)
            .ok_or_else(|| UnknownOffload(name.to_owned()))?;
        *self.switches()[index] = false;
        Ok(())
    }

    /// Every offload's name and state.
    pub fn iter(mut self) -> impl Iterator<Item = (&'static str, bool)> {
        let states = self.switches().map(|on| *on);
        Self::NAMES.into_iter().zip(states)
    }

    /// The offloads that both allow.
    pub fn and(mut self, mut other: Self) -> Self {
        for (mine, theirs) in self.switches().into_iter().zip(other.switches()) {
            *mine &= *theirs;
        }
        self
    }
}

/// A name that is none of [`Offloads::NAMES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOffload(pub String);

impl fmt::Display for UnknownOffload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown offload {:?}, expected one of {}",
            self.0,
            Offloads::NAMES.join(", ")
        )
    }
}

impl std::error::Error for UnknownOffload {}
