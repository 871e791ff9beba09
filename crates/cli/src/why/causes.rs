//! What can be wrong.

use serde::Serialize;

/// What the packets of a tunnel are longer by outside: headers of WireGuard and UDP, and that of
/// the IP version.
pub(crate) fn overhead(v6: bool) -> u32 {
    if v6 { 80 } else { 60 }
}

/// What the manual page says of a cause, for wg0.
pub(crate) struct Explained {
    /// Its name in the JSON.
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    /// What a user sees of it.
    pub(crate) looks: &'static str,
    /// What to type.
    pub(crate) remedy: &'static str,
}

macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal: $looks:literal, $remedy:literal;)+) => {
        /// What is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub(crate) enum Cause {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+
        }

        impl Cause {
            /// Every cause.
            pub(crate) const EXPLAINED: &'static [Explained] = &[$(Explained {
                name: $name,
                meaning: concat!($($doc),+).trim_ascii(),
                looks: $looks,
                remedy: $remedy,
            },)+];
        }
    };
}

causes! {
    /// There is no interface of that name in this network namespace.
    NoInterface => "no_interface":
        "`ip link show wg0` says that the device does not exist.",
        "`adit up wg0`";
    /// The interface is there, and no process answers for it.
    NoProcess => "no_process":
        "`wg show wg0` fails, and `ip link show wg0` does not.",
        "`systemctl status adit@wg0`, then `adit up wg0`";
    /// The interface is down: it has no socket.
    InterfaceDown => "interface_down":
        "`ip link show wg0` does not say `UP`.",
        "`ip link set wg0 up`";
    /// The interface has no private key.
    NoPrivateKey => "no_private_key":
        "`wg show wg0` has no line `public key`.",
        "`wg set wg0 private-key FILE`";
    /// The interface has no such peer, or none at all.
    NoPeer => "no_peer":
        "`wg show wg0 peers` does not list it.",
        "`adit add wg0 PUBLIC-KEY --endpoint ADDRESS:PORT`";
    /// The agent of the interface refuses the record of the peer.
    RecordRefused => "record_refused":
        "`adit agent status wg0` has a line for the record.",
        "what the line says, in the record";
    /// An agent brings the peers of the interface, and has not brought this one: it does not run, cannot read its
    /// source, or found no such record there.
    NotBrought => "not_brought":
        "`wg show wg0 peers` does not list it; `adit agent status wg0` says how the agent is.",
        "`systemctl restart adit-agent@wg0`, or add the record to the source";
    /// Another gateway has the peer, as its agent says (`--write-back`). To begin a handshake here would move it.
    OtherGateway => "other_gateway":
        "`grep KEY /run/adit-agent/wg0.endpoints` ends with the name of another gateway.",
        "`adit why wg0` at that gateway; `adit call wg0 --endpoints /run/adit-agent/wg0.endpoints` where it has died";
    /// The peer has the public key of this interface, which ignores it.
    OwnKey => "own_key":
        "The file has the peer, and `wg show wg0 peers` does not.",
        "at the peer: `wg show wg0 public-key`, and that key below [Peer] in the file here";
    /// The peer has no endpoint, and did not call.
    NoEndpoint => "no_endpoint":
        "Nothing is sent: `transfer` stays at 0 B sent.",
        "`wg set wg0 peer KEY endpoint ADDRESS:PORT`, at one of the two sides";
    /// The endpoint is an address of this host itself.
    EndpointIsHere => "endpoint_is_here":
        "`ip route get ADDRESS` begins with `local`.",
        "`wg set wg0 peer KEY endpoint ADDRESS:PORT`, with the address of the peer";
    /// The endpoint is an address inside the tunnel: that of the peer's interface in place of
    /// that of its host.
    EndpointInside => "endpoint_inside":
        "The endpoint lies in the network of the interface's own address.",
        "`wg set wg0 peer KEY endpoint ADDRESS:PORT`, with the address that the peer's host \
         has without the tunnel";
    /// The endpoint, or this host's own address, is one of a provider's NAT (100.64.0.0/10),
    /// which forwards no port.
    Cgnat => "cgnat":
        "The address that a peer is to call begins with 100.64 to 100.127.",
        "call from the other side: there `wg set wg0 peer KEY endpoint ADDRESS:PORT \
         persistent-keepalive 25`; or ask the provider for a public address, or use IPv6";
    /// Two routers with private addresses lie between this host and the Internet: a port that one
    /// forwards ends at the other. Whether they translate cannot be seen from here.
    DoubleNat => "double_nat":
        "`traceroute -n 1.1.1.1` has two private addresses first.",
        "forward the port at both routers, or let the second one bridge; or call from this \
         side";
    /// This host has no route to the endpoint, or one that rejects.
    NoRoute => "no_route":
        "`ip route get ADDRESS` fails.",
        "`ip route add ADDRESS via ROUTER`";
    /// The endpoint or the allowed IPs are IPv6, and a sysctl disables that on this host.
    Ipv6Disabled => "ipv6_disabled":
        "`ip -6 address` is empty, and IPv4 passes.",
        "`sysctl -w net.ipv6.conf.all.disable_ipv6=0`, then `adit down wg0` and `adit up wg0`";
    /// The route to the endpoint leads into the tunnel itself.
    RoutingLoop => "routing_loop":
        "`ip route get ADDRESS` says `dev wg0`; `transfer` grows only on the sent side.",
        "`ip route add ADDRESS via ROUTER dev DEVICE`";
    /// The kernel drops the answers, because it would send to their source by another way.
    RpFilter => "rp_filter":
        "`tcpdump` shows answers, `nstat -az TcpExtIPReversePathFilter` grows, and there is \
         no handshake.",
        "`sysctl -w net.ipv4.conf.DEVICE.rp_filter=2`";
    /// A firewall on this host does not let our datagrams leave, or those of the peer in, or
    /// drops what comes out of the tunnel.
    LocalFirewall => "local_firewall":
        "`nft list ruleset` has a chain of the hook input or output that drops the port or \
         the interface.",
        "`nft insert rule FAMILY TABLE CHAIN udp dport PORT accept`, or with `iifname wg0`";
    /// Our datagrams could not be sent for another reason.
    NotSent => "not_sent":
        "`adit events wg0` says not_sent, with the error of the kernel.",
        "what the error says";
    /// The host at the endpoint says that nothing listens at the port: WireGuard does not run
    /// there, or at another port.
    PortClosed => "port_closed":
        "ICMP port unreachable comes back.",
        "at the peer: `wg show all listen-port`, then `wg set wg0 peer KEY endpoint \
         ADDRESS:PORT`";
    /// A router, or this host, says that the endpoint cannot be reached.
    HostUnreachable => "host_unreachable":
        "`ping ADDRESS` says Destination Host Unreachable.",
        "`ip neigh show ADDRESS`, `traceroute ADDRESS`";
    /// A firewall on the way, or at the peer, rejects our datagrams, and says so.
    Rejected => "rejected":
        "ICMP administratively prohibited comes back.",
        "at the peer: `nft list ruleset | grep reject`";
    /// The peer does not have this interface's public key, or has another one in its place.
    PeerLacksOurKey => "peer_lacks_our_key":
        "Handshakes are not answered, and the host answers to ping.",
        "at the peer: `wg set wg0 peer OUR-KEY allowed-ips OUR-ADDRESSES`";
    /// What answers at the endpoint has another public key than the peer that is configured.
    WrongPeerKey => "wrong_peer_key":
        "`adit events wg0` says unknown_peer.",
        "`wg set wg0 peer KEY remove`, then add the key that `wg show` prints at the peer";
    /// The preshared keys differ.
    PresharedKey => "preshared_key":
        "The peer answers, and there is no session.",
        "`wg set wg0 peer KEY preshared-key FILE`, at both sides";
    /// The clock of this host is behind what it was: the peer refuses our initiations as replays.
    Clock => "clock":
        "`date` says a day that has passed.",
        "`timedatectl set-ntp true`";
    /// The clock of the peer is behind what it was, or two hosts have its private key.
    PeerClock => "peer_clock":
        "The peer's initiations are refused with replayed_timestamp.",
        "at the peer: `timedatectl set-ntp true`";
    /// The peer is under load, and answers some initiations only.
    UnderLoad => "under_load":
        "A cookie reply comes back.",
        "wait, and `adit why wg0` again";
    /// The peer answers from another address or port than we send to.
    AnswersFromElsewhere => "answers_from_elsewhere":
        "The endpoint that `wg show` prints changes after the handshake.",
        "at the peer: `nft list ruleset | grep -e nat -e masquerade`";
    /// Nothing came back: the host is down, or a firewall drops our datagrams, or the answers.
    NoAnswer => "no_answer":
        "`transfer` grows on the sent side, and nothing is received.",
        "at the peer: `tcpdump -ni any udp port PORT`";
    /// The peer has no allowed IPs: nothing is sent to it or taken from it.
    NoAllowedIps => "no_allowed_ips":
        "`wg show wg0 allowed-ips` says (none).",
        "`wg set wg0 peer KEY allowed-ips ADDRESS/32`";
    /// What the peer sends has a source that is not among its allowed IPs here.
    WrongSource => "wrong_source":
        "The peer's drops have wrong_source; the peer gets no answers.",
        "`wg set wg0 peer KEY allowed-ips BLOCKS,ADDRESS`";
    /// What this host sends to the peer has the address of another interface as its source, which
    /// the peer refuses.
    OurSource => "our_source":
        "`ip route get ADDRESS` has a `src` that is no address of wg0.",
        "`ip route replace BLOCK dev wg0 src OUR-INNER-ADDRESS`";
    /// This host sends to the peer's allowed IPs by another way than the tunnel.
    NotRouted => "not_routed":
        "`ip route get ADDRESS` names another device.",
        "`ip route add BLOCK dev wg0`";
    /// A network of the tunnel, or of the peer's side, has the same addresses as one that this
    /// host has without it.
    SubnetCollision => "subnet_collision":
        "A host answers in the LAN, and the one with the same address behind the tunnel does \
         not, or the other way round.",
        "`ip route replace ADDRESS/32 dev wg0` for one host; else renumber one of the two \
         networks";
    /// The interface has no address of the family of the peer's allowed IPs.
    NoAddress => "no_address":
        "`ip address show wg0` has none.",
        "`ip address add ADDRESS dev wg0`";
    /// Two hosts use the peer's key, as with one file on two devices: it moves to and fro.
    SharedKey => "shared_key":
        "The endpoint changes every few seconds; each device works for moments.",
        "`adit new-peer wg0 --name SECOND-DEVICE`, and that file on the second device";
    /// The handshake works, and nothing inside is answered: the peer's allowed IPs lack our
    /// address, or its own firewall or routes drop it.
    NothingInside => "nothing_inside":
        "`wg show` has a handshake, and `ping` gets no answer.",
        "at the peer: `wg set wg0 peer OUR-KEY allowed-ips OUR-ADDRESSES`";
    /// The peer, or this host, does not forward: no packet gets to what is behind it, or from one
    /// of its peers to another.
    NoForwarding => "no_forwarding":
        "The peer itself answers, and nothing behind it does.",
        "at the host that is to forward: `sysctl -w net.ipv4.ip_forward=1`";
    /// A firewall on this host drops what it is to forward for its peers, as Docker's and ufw's
    /// do.
    ForwardFirewall => "forward_firewall":
        "Peers reach this host, and nothing behind it; `nft list ruleset` has a chain of the \
         hook forward that drops.",
        "`nft insert rule FAMILY TABLE CHAIN iifname wg0 accept`, and the same with `oifname`";
    /// The record of the peer has AllowedPorts, and `adit agent --rules` has this host's packet filter keep to them: all
    /// else that the peer opens is dropped.
    LimitedByRules => "limited_by_rules":
        "The peer reaches some ports; the counters of `nft list table inet adit-rules-wg0` grow.",
        "add the port to the AllowedPorts of the record";
    /// The peer, or this host, forwards, and no answer finds the way back: NAT, or a route, is
    /// missing.
    NoMasquerade => "no_masquerade":
        "`tcpdump` behind the host shows what leaves with an inner source.",
        "at the host that forwards: `nft add rule ip nat postrouting oifname DEVICE \
         masquerade`";
    /// Short packets pass, long ones do not: the path takes less than the tunnel's MTU needs.
    Mtu => "mtu":
        "`ping` works, and pages or copies hang.",
        "`ip link set wg0 mtu 1280`, and MTU = 1280 in the file";
    /// Allowed IPs lie inside those of another peer, which gets those packets.
    Overlap => "overlap":
        "`wg show wg0 allowed-ips` has a narrower block at another peer.",
        "`wg set wg0 peer KEY allowed-ips BLOCKS`";
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
