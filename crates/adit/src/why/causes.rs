//! What can be wrong.

use serde::Serialize;

/// What the packets of a tunnel are longer by outside: headers of WireGuard and UDP, and that of
/// the IP version.
pub(crate) fn overhead(v6: bool) -> u32 {
    if v6 { 80 } else { 60 }
}

macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// What is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub(crate) enum Cause {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+
        }

        impl Cause {
            /// Every cause: its name in the JSON, and what it means.
            pub(crate) const EXPLAINED: &'static [(&'static str, &'static str)] =
                &[$(($name, concat!($($doc),+).trim_ascii()),)+];
        }
    };
}

causes! {
    /// There is no interface of that name in this network namespace.
    NoInterface => "no_interface",
    /// The interface is there, and no process answers for it.
    NoProcess => "no_process",
    /// The interface is down: it has no socket.
    InterfaceDown => "interface_down",
    /// The interface has no private key.
    NoPrivateKey => "no_private_key",
    /// The interface has no such peer, or none at all.
    NoPeer => "no_peer",
    /// The peer has the public key of this interface, which ignores it.
    OwnKey => "own_key",
    /// The peer has no endpoint, and did not call.
    NoEndpoint => "no_endpoint",
    /// The endpoint is an address of this host itself.
    EndpointIsHere => "endpoint_is_here",
    /// This host has no route to the endpoint, or one that rejects.
    NoRoute => "no_route",
    /// The route to the endpoint leads into the tunnel itself.
    RoutingLoop => "routing_loop",
    /// The kernel drops the answers, because it would send to their source by another way.
    RpFilter => "rp_filter",
    /// A firewall on this host does not let our datagrams leave, or those of the peer in.
    LocalFirewall => "local_firewall",
    /// Our datagrams could not be sent for another reason.
    NotSent => "not_sent",
    /// The host at the endpoint says that nothing listens at the port: WireGuard does not run there,
    /// or at another port.
    PortClosed => "port_closed",
    /// A router, or this host, says that the endpoint cannot be reached.
    HostUnreachable => "host_unreachable",
    /// A firewall on the way, or at the peer, rejects our datagrams, and says so.
    Rejected => "rejected",
    /// The peer does not have this interface's public key, or has another one in its place.
    PeerLacksOurKey => "peer_lacks_our_key",
    /// What answers at the endpoint has another public key than the peer that is configured.
    WrongPeerKey => "wrong_peer_key",
    /// The preshared keys differ.
    PresharedKey => "preshared_key",
    /// The clock of this host is behind what it was: the peer refuses our initiations as replays.
    Clock => "clock",
    /// The clock of the peer is behind what it was, or two hosts have its private key.
    PeerClock => "peer_clock",
    /// The peer is under load, and answers some initiations only.
    UnderLoad => "under_load",
    /// The peer answers from another address or port than we send to.
    AnswersFromElsewhere => "answers_from_elsewhere",
    /// Nothing came back: the host is down, or a firewall drops our datagrams, or the answers.
    NoAnswer => "no_answer",
    /// The peer has no allowed IPs: nothing is sent to it or taken from it.
    NoAllowedIps => "no_allowed_ips",
    /// What the peer sends has a source that is not among its allowed IPs here.
    WrongSource => "wrong_source",
    /// This host sends to the peer's allowed IPs by another way than the tunnel.
    NotRouted => "not_routed",
    /// The interface has no address of the family of the peer's allowed IPs.
    NoAddress => "no_address",
    /// Two hosts use the peer's key, as with one file on two devices: it moves to and fro.
    SharedKey => "shared_key",
    /// The handshake works, and nothing inside is answered: the peer's allowed IPs lack our address,
    /// or its own firewall or routes drop it.
    NothingInside => "nothing_inside",
    /// The peer, or this host, does not forward: no packet gets to what is behind it, or from one of
    /// its peers to another.
    NoForwarding => "no_forwarding",
    /// The peer, or this host, forwards, and no answer finds the way back: NAT, or a route, is
    /// missing.
    NoMasquerade => "no_masquerade",
    /// Short packets pass, long ones do not: the path takes less than the tunnel's MTU needs.
    Mtu => "mtu",
    /// Allowed IPs lie inside those of another peer, which gets those packets.
    Overlap => "overlap",
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Certainty {
    /// Nothing else explains what was seen.
    Certain,
    /// It explains best what was seen.
    Likely,
    /// It may be.
    Possible,
}

/// One cause, as it showed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) cause: Cause,
    pub(crate) certainty: Certainty,
    /// Whether it keeps the tunnel from working. If not, it is a remark.
    pub(crate) problem: bool,
    /// What was seen, and what that means.
    pub(crate) text: String,
    /// What to type next.
    pub(crate) commands: Vec<String>,
}

impl Finding {
    pub(crate) fn new(cause: Cause, certainty: Certainty, text: impl Into<String>) -> Self {
        Self {
            cause,
            certainty,
            problem: true,
            text: text.into(),
            commands: Vec::new(),
        }
    }

    pub(crate) fn run(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    /// It does not keep the tunnel from working.
    pub(crate) fn remark(mut self) -> Self {
        self.problem = false;
        self
    }
}
