//! What adit-steer(8) says besides its arguments.

use clap_mangen::roff::Roff;

use super::parts::{STATUS_SOCKET, list, paragraph, see_also};

pub(super) fn page(roff: &mut Roff) {
    roff.control("SH", ["GATEWAYS"]);
    paragraph(
        roff,
        "All gateways have the same file, and so the same key, port and peers. All have the shared address, as on `lo`, and \
         a router chooses among them. The process of each was started with a number of its own: `adit up --gateway-id N`, or \
         the variable ADIT_GATEWAY_ID of its unit. The number stands in the receiver index of each session that the gateway \
         makes, in the five upper bits of its last byte, and so in each datagram of this session. No session key leaves a \
         host.",
    );
    paragraph(
        roff,
        "A datagram that reaches a gateway which has not made its index is forwarded to the one that has: data, responses and \
         cookie replies. An initiation has no such index. It stays where it arrives, and the peer's next session is there. So \
         a change of routes loses nothing: until its next handshake, at most two minutes later, a peer's datagrams are \
         forwarded. Answers leave from the gateway that has the session, with the shared address as their source.",
    );
    roff.control("SH", ["RULES"]);
    paragraph(
        roff,
        "The rules are in the table `adit-steer-INTERFACE` of the family netdev, and are set in one transaction in the place \
         of earlier ones. The port is that of the interface, the devices are those with these names. Run it again when the \
         port changes, when a device that gateways are reached by was made anew, and when another program flushed nftables' rules. \
         They stay when the process ends: datagrams of other gateways' peers still reach those.",
    );
    paragraph(
        roff,
        "A rule forwards to a neighbour, and takes one off the hop limit. Gateways without a link in common need a tunnel, which \
         this command does not make, such as VXLAN or IPIP. Name it behind the address: `2=10.9.0.2@vxlan0`. The tunnel takes \
         some bytes off the MTU of the path: lower the MTU of peers by as much. Where it delivers, rp_filter must not be 1.",
    );
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "`--json` prints an object with `schema`, `interface`, `done` (`steered` or `removed`), `gateway_id` of this gateway \
         (null with `--off`) and `gateways`, the numbers of the others. Fields may be added under the same `schema`.",
    );
    list(roff, "FILES", [STATUS_SOCKET]);
    list(
        roff,
        "EXAMPLES",
        super::examples::of("adit-steer").iter().copied(),
    );
    see_also(roff, "adit(8), adit-call(8), nft(8), ip-route(8)");
}
