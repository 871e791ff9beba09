//! The pages of `adit peers` and `adit peer`.

use clap_mangen::roff::Roff;

use super::parts::{CONFIGURATION, CONTROL_SOCKET, STATUS_SOCKET, item, list, paragraph, see_also};
use crate::quick;

pub(super) fn list_of_peers(roff: &mut Roff) {
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "`adit peers --json` prints one object, and `adit peer show --json` the same of one peer. Fields may be added under \
         the same `schema`; that one is removed or means something else makes it 2.",
    );
    for (path, text) in quick::FIELDS {
        item(roff, path, text);
    }
    list(roff, "FILES", [CONFIGURATION, STATUS_SOCKET]);
    list(
        roff,
        "EXAMPLES",
        [
            (
                "adit peers wg0 --sort traffic",
                "A line for each peer, those that sent and received most first.",
            ),
            (
                "adit peers wg0 phone",
                "The peers whose name contains `phone`.",
            ),
            (
                "adit peers wg0 --json | jq -r '.peers[] | select(.state == \"never\").name'",
                "Those that never connected.",
            ),
        ],
    );
    see_also(roff, "adit(8), adit-peer(8), adit-show(8), adit-why(8)");
}

/// The pages of `adit peer` and of its commands.
pub(super) fn peer(roff: &mut Roff, page: &str) {
    roff.control("SH", ["WHICH PEER"]);
    paragraph(
        roff,
        "A peer is meant by its name as adit-peers(8) prints it, else by its public key or at least four characters that \
         only its key begins with, else by an address: the peer whose allowed IPs have it, of the longest that do; a \
         default route means no peer. Where several are meant, nothing is done.",
    );
    if !page.ends_with("-show") {
        roff.control("SH", ["WHAT IS CHANGED"]);
        paragraph(
            roff,
            "The file, under its lock and as a whole, and the running interface. If one of them cannot be changed, the other \
             is not, either. No other line of the file changes. With `--json`, the object has `schema`, `interface`, `done` \
             (`renamed`, `disabled`, `enabled`, `limited`, `quota`, `expires`, `rekeyed`, `removed`) and `peer`, as in adit-peers(8).",
        );
    }
    if page.ends_with("peer") || page.ends_with("able") {
        roff.control("SH", ["DISABLED PEERS"]);
        paragraph(
            roff,
            "Each line of a disabled peer stays where it is, behind `# disabled:`. wg(8) and wg-quick(8) pass over it, and \
             without these marks the peer is what it was, also by hand. Its name and addresses are given to no other peer.",
        );
    }
    if ["peer", "limit", "quota", "expire"]
        .iter()
        .any(|it| page.ends_with(it))
    {
        roff.control("SH", ["LIMITS, QUOTAS AND ENDS OF ACCESS"]);
        paragraph(
            roff,
            "They stand in comments of the peer's section, which wg(8) and wg-quick(8) pass over: `# Limit = 50M/10M`, to the \
             peer and from it, `# Quota = 100G` and `# Expires = 2027-01-31T12:00:00Z`. `adit up` and `adit sync` heed them. \
             A day without a time of day lasts until its end, in UTC. \
             At most 65,536 peers of an interface may have such comments.",
        );
        paragraph(
            roff,
            "A limit is of bits a second that packets carry behind 40 bytes of headers, 60 of IPv6: about what a TCP \
             connection measures. Where all that waits in a queue of the interface is for the peer, it waits for the \
             limit, and local TCP slows down without a loss. Otherwise, and in the direction from the peer, packets are \
             dropped and count as `limit_to_peer` and `limit_from_peer`.",
        );
        paragraph(
            roff,
            "A quota counts what adit-show(8) prints as transfer, in both directions, since the interface has the peer or \
             since `adit peer quota`, also for the same number of bytes. It goes on where it was after `adit down`, \
             `adit upgrade` and a kill, which loses the last second, or one second for each thousand peers with a session or a \
             quota; it begins anew for a peer that was removed or disabled meanwhile, or got new keys, and when the host \
             starts: the count is in `/run/adit`. When it is used up or the time is over, the \
             peer's sessions end within a second and none begins: what is sent to it counts as `no_access`, and its \
             initiations as `no_access` of the handshakes. When it has access again, it notices within 15 seconds if it \
             sends.",
        );
    }
    list(roff, "FILES", [CONFIGURATION, CONTROL_SOCKET]);
    let examples = [
        (
            "show",
            "adit peer show wg0 10.0.0.7",
            "The peer that has this address.",
        ),
        (
            "rename",
            "adit peer rename wg0 phone 'phone of Ann'",
            "Another name.",
        ),
        (
            "disable",
            "adit peer disable wg0 laptop",
            "The laptop is lost: it has no access from now on.",
        ),
        (
            "enable",
            "adit peer enable wg0 laptop",
            "It was found again, and connects as before.",
        ),
        (
            "limit",
            "adit peer limit wg0 phone 50M/10M",
            "At most 50 Mbit/s to the phone and 10 from it.",
        ),
        (
            "quota",
            "adit peer quota wg0 guest 100G",
            "100 GB in both directions together, from now on.",
        ),
        (
            "expire",
            "adit peer expire wg0 guest 7d",
            "A guest has access for a week.",
        ),
        (
            "rekey",
            "adit peer rekey wg0 phone --qr",
            "A lost phone's keys are worth nothing now, and the new phone scans this code.",
        ),
        (
            "remove",
            "adit peer remove wg0 laptop",
            "It never comes back, and its address is free.",
        ),
    ];
    let of_page = |(verb, ..): &(&str, &str, &str)| page == "adit-peer" || page.ends_with(verb);
    let examples = examples.into_iter().filter(of_page);
    list(
        roff,
        "EXAMPLES",
        examples.map(|(_, command, text)| (command, text)),
    );
    see_also(
        roff,
        "adit(8), adit-peers(8), adit-new-peer(8), adit-show(8), wg(8), wg-quick(8)",
    );
}
