//! The questions that the page answers, and which figure answers which.

use super::figures::{Figure, Run, Section};

pub(super) struct Question {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// One or two sentences on what was measured.
    pub(super) says: &'static str,
    /// Figures that are drawn above the folded values.
    pub(super) leads: &'static [Lead],
}

/// A figure, by its id or title, in the sections of this title (in any where it is empty).
pub(super) struct Lead {
    section: &'static str,
    figure: &'static str,
    /// Its caption: readers do not see the rest of its table.
    pub(super) title: &'static str,
}

const fn any(figure: &'static str, title: &'static str) -> Lead {
    within("", figure, title)
}

const fn within(section: &'static str, figure: &'static str, title: &'static str) -> Lead {
    Lead {
        section,
        figure,
        title,
    }
}

pub(super) const QUESTIONS: [Question; 11] = [
    Question {
        id: "one-stream",
        title: "One stream",
        says: "One TCP stream through one tunnel, with iperf3. Also in both directions, in VXLAN and \
               over IPv6.",
        leads: &[any("tcp1", "One TCP stream")],
    },
    Question {
        id: "small-packets",
        title: "Small packets and many streams",
        says: "UDP of fixed sizes, and 8 and 128 TCP streams, through one tunnel.",
        leads: &[
            any("udp64-own", "UDP of 64 B"),
            any("tcp128-own", "128 TCP streams"),
        ],
    },
    Question {
        id: "latency",
        title: "Latency",
        says: "Ping on an idle tunnel and beside a TCP stream, and short answers beside 8 streams.",
        leads: &[
            any("ping-load.p50", "Ping beside a TCP stream, median"),
            any("ping.p50", "Ping on an idle tunnel, median"),
        ],
    },
    Question {
        id: "many-peers",
        title: "Many peers",
        says: "A gateway with up to 10,000 active peers, with more load than it can forward, and with \
               a peer behind a slow link.",
        leads: &[
            any("1368 B from peers", "UDP of 1368 B from all peers"),
            any("64 B from peers", "UDP of 64 B from all peers"),
            any(
                "goodput of UDP one way",
                "UDP delivered, by what is offered",
            ),
        ],
    },
    Question {
        id: "fleets",
        title: "Fleets of gateways",
        says: "Peers that come from etcd, and a gateway that dies while 1,000 clients ping it: another one \
               gets its address and calls them, or waits for them (passive). The model estimates other sizes: the peers \
               of one of so many gateways are called by another one.",
        leads: &[
            any(
                "time without an answer after a gateway died",
                "Time without an answer after a gateway died",
            ),
            any(
                "half of the peers are back",
                "Model: half of a dead gateway's peers are back",
            ),
            any("limits", "Model: what breaks first"),
        ],
    },
    Question {
        id: "tls-and-ipsec",
        title: "Beside TLS and IPsec",
        says: "The tables of published measurements, made again: TCP and HTTP through TLS proxies, and \
               UDP by packet size beside strongSwan.",
        leads: &[
            any("tcp-1", "One TCP stream"),
            any(
                "UDP by size of the IP packet, packets",
                "UDP by size of the packet",
            ),
        ],
    },
    Question {
        id: "more-cores",
        title: "More cores",
        says: "TCP through one tunnel by the number of flows, and UDP that routers forward. The policy \
               auto is Adit's default; inline is one thread.",
        leads: &[
            any("one tunnel: throughput", "TCP through one tunnel"),
            any("forwarded-4", "UDP forwarded both ways, 4 tunnels"),
        ],
    },
    Question {
        id: "ideas",
        title: "What each idea is worth",
        says: "One TCP stream through Adit with one idea more at a time, as in Tailscale's articles.",
        leads: &[within("tailscale-2023", "tcp-1420", "One TCP stream")],
    },
    Question {
        id: "memory",
        title: "Memory and idle cost",
        says: "Memory of one daemon, and what it does when there is nothing to do.",
        leads: &[
            any("rss.peak", "Peak memory of a daemon"),
            any("memory_1000", "Memory, idle with 1,000 peers"),
            any("wakeups_1000", "Wake-ups, idle with 1,000 peers"),
        ],
    },
    Question {
        id: "attacks",
        title: "Under attack",
        says: "Floods of handshake and data messages: the TCP stream of an honest peer meanwhile, and \
               whether others can still connect.",
        leads: &[
            within(
                "sources",
                "stream_attacked",
                "TCP beside a flood from many sources",
            ),
            within("sources", "connected", "Peers of 20 that connect meanwhile"),
        ],
    },
    Question {
        id: "upgrades",
        title: "Upgrades, long runs, repeats",
        says: "A running tunnel goes from one process to another and runs for hours. Two runs of the same \
               measurement agree, or do not.",
        leads: &[],
    },
];

/// The id of the question that a figure answers.
pub(super) fn question(run: &Run, section: &Section, figure: &Figure) -> &'static str {
    let begins = |ids: &[&str]| ids.iter().any(|id| figure.id.starts_with(id));
    match run.command.as_str() {
        "compare" if begins(&["ping", "answers"]) => "latency",
        "compare" if begins(&["udp", "tcp8", "tcp128"]) => "small-packets",
        "compare" if begins(&["rss"]) => "memory",
        "compare" => "one-stream",
        "fleet" => "fleets",
        "gateway" => "many-peers",
        "hostile" => "attacks",
        "idle" => "memory",
        "scale" => "more-cores",
        "reproduce" => match section.title.as_str() {
            "tailscale-2022" | "tailscale-2023" => "ideas",
            "inline" => "more-cores",
            _ => "tls-and-ipsec",
        },
        _ => "upgrades",
    }
}

impl Lead {
    pub(super) fn is(&self, section: &Section, figure: &Figure) -> bool {
        let is_named = self.figure == figure.id || self.figure == figure.title;
        is_named && (self.section.is_empty() || self.section == section.title)
    }
}
