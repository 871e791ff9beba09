//! The two articles: what each adds to wireguard-go step by step, and the figures that it published.

use adit_offload::lab::{Idea, VARIABLE};

use super::results::Published;

/// One of the articles.
pub(super) struct Article {
    pub(super) steps: &'static [Step],
    pub(super) published: &'static [Published],
    pub(super) also: Also,
}

/// What an article shows besides streams.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Also {
    /// Flame graphs, of the first step and of the last.
    FlameGraphs,
    /// What the Internet checksum costs, by size.
    Checksum,
}

/// Adit with some of its ideas.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) name: &'static str,
    /// What it has that the step before has not.
    pub(super) adds: &'static str,
    /// Offloads that it does without.
    pub(super) disabled: &'static [&'static str],
    pub(super) without: &'static [Idea],
    /// The AEAD of a library, packet by packet.
    pub(super) library: bool,
    /// The egress device segments UDP itself.
    pub(super) tx_udp_segmentation: bool,
}

/// UDP tunnels such as VXLAN are none of the articles' ideas, and keep GSO packets long.
pub(super) const TUNNELS: [&str; 2] = ["tun-tunnel", "tun-gro-tunnel"];
pub(super) const NO_TUN: &[&str] = &[
    TUNNELS[0],
    TUNNELS[1],
    "tun-tso",
    "tun-uso",
    "tun-gro-tcp",
    "tun-gro-udp",
    "udp-gso",
    "udp-gro",
];
pub(super) const NO_UDP: &[&str] = &[TUNNELS[0], TUNNELS[1], "udp-gso", "udp-gro"];
pub(super) const NO_TUNNELS: &[&str] = &TUNNELS;

pub(super) const PLAIN: Step = Step {
    name: "plain",
    adds: "one read, one seal, one sendmsg a packet; no offload",
    disabled: NO_TUN,
    without: &[Idea::Mmsg, Idea::VectorChecksum, Idea::SizedFrames],
    library: true,
    tx_udp_segmentation: true,
};
pub(super) const TUN_OFFLOADS: Step = Step {
    name: "tun-offloads",
    adds: "+ TSO and GRO on the TUN",
    disabled: NO_UDP,
    ..PLAIN
};
pub(super) const MMSG: Step = Step {
    name: "mmsg",
    adds: "+ sendmmsg, recvmmsg",
    without: &[Idea::VectorChecksum, Idea::SizedFrames],
    ..TUN_OFFLOADS
};
pub(super) const UDP_GSO: Step = Step {
    name: "udp-gso",
    adds: "+ UDP GSO and GRO",
    disabled: NO_TUNNELS,
    ..MMSG
};
pub(super) const CHECKSUM: Step = Step {
    name: "vector-checksum",
    adds: "+ the Internet checksum in vectors",
    without: &[Idea::SizedFrames],
    ..UDP_GSO
};
pub(super) const AEAD: Step = Step {
    name: "aead-across-packets",
    adds: "+ one call encrypts a train, packets in lanes",
    library: false,
    ..CHECKSUM
};
pub(super) const FRAMES: Step = Step {
    name: LAST,
    adds: "+ GSO packets that fit one send",
    without: &[],
    ..AEAD
};
pub(super) const NO_TX_SEGMENTATION: Step = Step {
    name: "sized-frames, sw-gso",
    adds: "the same, tx-udp-segmentation of the egress device off",
    tx_udp_segmentation: false,
    ..FRAMES
};
pub(super) const RELEASED: Step = Step {
    name: "adit",
    adds: "as released: longer GSO packets where the kernel offloads VXLAN (Linux 6.17)",
    disabled: &[],
    ..FRAMES
};
pub(super) const LAST: &str = "sized-frames";

/// What differs in every row.
pub(super) const HERE: &str =
    "two hosts share the cores of this machine, over a veth link instead of a cloud's network";

/// "Userspace isn't slow, some kernel interfaces are!"
#[rustfmt::skip]
pub(super) const FIRST: Article = Article {
    steps: &[PLAIN, TUN_OFFLOADS, MMSG, FRAMES],
    also: Also::FlameGraphs,
    published: &[
        Published::gbps("one stream, no tunnel", 9.53, "tcp-1420", "direct", "no line rate, no cloud cap; the hosts share the cores"),
        Published::gbps("kernel WireGuard", 2.66, "tcp-1420", "kernel", HERE),
        Published::gbps("wireguard-go before", 2.42, "tcp-1420", "plain", "Adit without its ideas stands for the program of then"),
        Published::gbps("wireguard-go before, MTU 8920", 7.88, "tcp-8920", "plain", "the same; MTU 9000 on the link"),
        Published::gbps("wireguard-go with TSO, GRO and mmsg", 5.36, "tcp-1420", "mmsg", "Adit with these ideas; trains are in all steps"),
        Published {
            what: "retransmits before",
            value: 4711.0,
            unit: "",
            measure: "tcp-1420.retransmits",
            subject: "plain",
            over: None,
            differs: "in 10 s there; Adit makes the local TCP wait instead",
        },
        Published::gbps("its successor today", 5.36, "tcp-1420", "tailscale", "newer: it has UDP GSO as well"),
    ],
};

/// "Surpassing 10Gb/s over Tailscale".
#[rustfmt::skip]
pub(super) const SECOND: Article = Article {
    steps: &[
        PLAIN,
        MMSG,
        UDP_GSO,
        CHECKSUM,
        AEAD,
        FRAMES,
        NO_TX_SEGMENTATION,
        RELEASED,
    ],
    also: Also::Checksum,
    published: &[
        Published::gbps("kernel WireGuard, c6i.8xlarge", 2.67, "tcp-1420", "kernel", HERE),
        Published::gbps("wireguard-go before, c6i.8xlarge", 5.34, "tcp-1420", "mmsg", "Adit with the ideas of 2022"),
        Published::gbps("wireguard-go after, c6i.8xlarge", 7.32, "tcp-1420", "vector-checksum", "the cloud's own cap there; none here"),
        Published::gbps("kernel WireGuard, i5-12400", 11.8, "tcp-1420", "kernel", "25 GbE between two machines there"),
        Published::gbps("wireguard-go after, i5-12400", 13.0, "tcp-1420", "tailscale", "today's fork; 25 GbE between two machines there"),
        Published::gbps(
            "after, tx-udp-segmentation off, E3-1230-V2",
            4.86,
            "tcp-1420",
            "sized-frames, sw-gso",
            "off, the kernel segments before the veth link; no network card here",
        ),
        Published::gbps(
            "after, tx-udp-segmentation on, E3-1230-V2",
            6.59,
            "tcp-1420",
            LAST,
            "on, the veth link hands long packets on; no network card here",
        ),
    ],
};

impl Step {
    /// The environment in which a daemon has no more ideas than this.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let without: Vec<&str> = self.without.iter().map(|idea| idea.name()).collect();
        let mut all = vec![
            ("ADIT_DISABLE_OFFLOADS", self.disabled.join(",")),
            (VARIABLE, without.join(",")),
        ];
        if self.library {
            all.push(("ADIT_AEAD", "ring".to_owned()));
        }
        all
    }
}
