//! Which offloads are allowed, or in force.

use std::fmt;

/// One switch per offload: as a setting what is allowed, as a status what is in force. All on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// The kernel hands over TCP super-frames of up to 64 KiB.
    pub tun_tso: bool,
    /// The kernel hands over UDP super-frames (Linux 6.2).
    pub tun_uso: bool,
    /// The kernel hands over super-frames inside UDP tunnels like VXLAN (Linux 6.17).
    pub tun_tunnel: bool,
    /// TCP packets are merged before they are written to the TUN.
    pub tun_gro_tcp: bool,
    /// UDP packets are merged before they are written to the TUN.
    pub tun_gro_udp: bool,
    /// TCP packets in VXLAN are merged where `tun_tunnel` is in force, too.
    pub tun_gro_tunnel: bool,
    /// A train leaves with one `sendmsg` (UDP_SEGMENT).
    pub udp_gso: bool,
    /// Trains arrive merged (UDP_GRO).
    pub udp_gro: bool,
}

impl Default for Offloads {
    fn default() -> Self {
        Self::ALL
    }
}

impl Offloads {
    /// Every offload on.
    pub const ALL: Self = Self::every(true);
    /// Every offload off.
    pub const NONE: Self = Self::every(false);

    /// The names by which users switch offloads, in the order of the fields.
    pub const NAMES: [&'static str; 8] = [
        "tun-tso",
        "tun-uso",
        "tun-tunnel",
        "tun-gro-tcp",
        "tun-gro-udp",
        "tun-gro-tunnel",
        "udp-gso",
        "udp-gro",
    ];

    const fn every(on: bool) -> Self {
        Self {
            tun_tso: on,
            tun_uso: on,
            tun_tunnel: on,
            tun_gro_tcp: on,
            tun_gro_udp: on,
            tun_gro_tunnel: on,
            udp_gso: on,
            udp_gro: on,
        }
    }

    /// Turns off the offload called `name`, one of [`Self::NAMES`].
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

    /// What both allow.
    pub fn and(mut self, mut other: Self) -> Self {
        for (mine, theirs) in self.switches().into_iter().zip(other.switches()) {
            *mine &= *theirs;
        }
        self
    }

    fn switches(&mut self) -> [&mut bool; 8] {
        [
            &mut self.tun_tso,
            &mut self.tun_uso,
            &mut self.tun_tunnel,
            &mut self.tun_gro_tcp,
            &mut self.tun_gro_udp,
            &mut self.tun_gro_tunnel,
            &mut self.udp_gso,
            &mut self.udp_gro,
        ]
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
