//! What a program and its child say to each other: one message each, whole or not at all.

use std::net::IpAddr;

use super::socket_kind::SocketKind;

/// The longest message.
pub(super) const MAX_MESSAGE: usize = 1 << 16;

/// The inner network, as this end has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerNetwork {
    /// The inner addresses of this end.
    pub addresses: Vec<IpAddr>,
    /// The MTU.
    pub mtu: usize,
}

/// How packets get from the kernel into the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelDevice {
    /// A TUN device, or else a packet socket.
    #[default]
    Any,
    /// A TUN device.
    Tun,
    /// A packet socket on one of two joined interfaces (veth).
    PacketSocket,
}

impl KernelDevice {
    const ALL: [(Self, &str); 3] = [
        (Self::Any, "any"),
        (Self::Tun, "tun"),
        (Self::PacketSocket, "packet-socket"),
    ];

    fn word(self) -> &'static str {
        let known = Self::ALL.iter().find(|(device, _)| *device == self);
        known.map_or("any", |(_, word)| word)
    }

    fn of_word(word: &str) -> Option<Self> {
        let known = Self::ALL.iter().find(|(_, known)| *known == word);
        known.map(|(device, _)| *device)
    }
}

/// What the child is to make.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamespaceRequest {
    pub(super) device: KernelDevice,
    pub(super) network: InnerNetwork,
}

impl NamespaceRequest {
    pub(super) fn write(&self) -> String {
        let InnerNetwork { addresses, mtu } = &self.network;
        let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        format!("{} {mtu} {}", self.device.word(), addresses.join(" "))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        Some(Self {
            device: KernelDevice::of_word(words.next()?)?,
            network: InnerNetwork {
                mtu: words.next()?.parse().ok()?,
                addresses: words.map(str::parse).collect::<Result<_, _>>().ok()?,
            },
        })
    }
}

/// What came of it: with a device there is a descriptor beside.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamespaceReply {
    /// What it made; nothing if it could not.
    pub(super) device: Option<KernelDevice>,
    /// Why it did not make what was asked for first.
    pub(super) why: String,
}

impl NamespaceReply {
    pub(super) fn write(&self) -> String {
        let word = self.device.map_or("none", KernelDevice::word);
        let mut text = format!("{word} {}", self.why);
        // An error is not as long.
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        text
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (word, why) = text.split_once(' ')?;
        let device = match word {
            "none" => None,
            word => Some(KernelDevice::of_word(word)?),
        };
        Some(Self {
            device,
            why: why.to_owned(),
        })
    }
}

/// The message that asks for a socket.
pub(super) fn request(kind: SocketKind) -> [u8; 1] {
    [SocketKind::ALL
        .iter()
        .position(|known| *known == kind)
        .map_or(u8::MAX, |at| u8::try_from(at).unwrap_or(u8::MAX))]
}

/// What such a message asks for.
pub(super) fn requested(message: &[u8]) -> Option<SocketKind> {
    let [number] = message else {
        return None;
    };
    SocketKind::ALL.get(usize::from(*number)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        for device in [
            KernelDevice::Any,
            KernelDevice::Tun,
            KernelDevice::PacketSocket,
        ] {
            let network = InnerNetwork {
                addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                mtu: 1280,
            };
            let request = NamespaceRequest { device, network };
            assert_eq!(NamespaceRequest::parse(&request.write()), Some(request));
            let reply = NamespaceReply {
                device: Some(device),
                why: "no device".into(),
            };
            assert_eq!(NamespaceReply::parse(&reply.write()), Some(reply));
        }
        let none = NamespaceReply {
            device: None,
            why: String::new(),
        };
        assert_eq!(NamespaceReply::parse(&none.write()), Some(none));
        for kind in SocketKind::ALL {
            assert_eq!(requested(&request(kind)), Some(kind));
        }
    }

    #[test]
    fn other_messages_are_refused() {
        for text in [
            "",
            "tun",
            "tap 1420 10.0.0.1",
            "tun x 10.0.0.1",
            "tun 1420 a",
        ] {
            assert_eq!(NamespaceRequest::parse(text), None, "{text}");
        }
        for message in [&[6_u8][..], &[255], &[], &[0, 0]] {
            assert_eq!(requested(message), None, "{message:?}");
        }
    }
}
