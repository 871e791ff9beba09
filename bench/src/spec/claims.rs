//! The rows of SPEC.md's table of goals: what each claims, and the goals that it is made of.

/// The first cell of a row, and the names of its goals, in which `*` stands for any text.
pub(super) const CLAIMS: &[(&str, &[&str])] = &[
    (
        "one TCP stream, over wireguard-go",
        &["TCP, 1 stream, of wireguard-go"],
    ),
    (
        "one TCP stream, over Tailscale's fork",
        &["TCP, 1 stream, of tailscale"],
    ),
    (
        "one TCP stream, an end per core, over the better of both",
        &["TCP, 1 stream, one end per core, of *"],
    ),
    (
        "CPU time of one TCP stream, over Tailscale's fork",
        &["TCP, 1 stream: CPU of both daemons, of tailscale"],
    ),
    (
        "one TCP stream, over Adit without encryption",
        &["TCP, 1 stream, of ceiling"],
    ),
    ("8 TCP streams, over one", &["TCP, 8 streams, of *"]),
    (
        "128 TCP streams by iperf3, over one",
        &["TCP, 128 streams, of *"],
    ),
    (
        "128 TCP streams by the lab's generator, over one",
        &["TCP, 128 streams, lab's generator, of *"],
    ),
    (
        "TCP in both directions, sum, over one",
        &["TCP, both directions, sum, of *"],
    ),
    (
        "UDP 64 B by the lab's generator, over the best other",
        &["UDP 64 B, lab's generator, of *"],
    ),
    (
        "UDP 64 B by iperf3, over the best other",
        &["UDP 64 B delivered, of *"],
    ),
    (
        "UDP 1368 B by the lab's generator, over the best other",
        &["UDP 1368 B, lab's generator, of *"],
    ),
    (
        "UDP 1368 B by iperf3, over the best other",
        &["UDP 1368 B delivered, of *"],
    ),
    ("TCP in VXLAN, over the best other", &["TCP in VXLAN, of *"]),
    ("idle ping, over the best other", &["ping idle p50, of *"]),
    (
        "ping beside a TCP stream, over Tailscale's fork",
        &["ping beside a TCP stream p50, of *"],
    ),
    (
        "a TCP stream beside pings, over one alone",
        &["ping beside a TCP stream p50: the stream meanwhile, of *"],
    ),
    (
        "retransmitted segments of one TCP stream",
        &["retransmits, TCP, 1 stream"],
    ),
    ("peak memory, MiB", &["peak memory"]),
    (
        "Tailscale's ideas of 2022, all over none",
        &["tailscale-2022: tcp-1420, *"],
    ),
    (
        "Tailscale's ideas of 2023, all over none",
        &["tailscale-2023: tcp-1420, *"],
    ),
    (
        "one TCP stream under BBR, over Tailscale's fork",
        &["tailscale-*: tcp-1420-bbr, sized-frames / tailscale"],
    ),
    (
        "checksum in vectors, over the best other way",
        &["SIMD of the best other way, at the worst size"],
    ),
    (
        "one connection, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1, *"],
    ),
    (
        "its CPU time, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1.cpu-machine, *"],
    ),
    (
        "8 connections, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-8, *"],
    ),
    (
        "HTTP of 1 KB, p50 and p99, over the best TLS proxy",
        &["userspace-vs-kernel: http-1k-1000.p*"],
    ),
    (
        "HTTP of 64 KB, p50 and p99, over the best TLS proxy",
        &["userspace-vs-kernel: http-64k-1000.p*"],
    ),
    (
        "under BBR: one connection, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1-bbr, *"],
    ),
    (
        "under BBR: its CPU time, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-1-bbr.cpu-machine, *"],
    ),
    (
        "under BBR: 8 connections, over the best TLS proxy",
        &["userspace-vs-kernel: tcp-8-bbr, *"],
    ),
    (
        "under BBR: HTTP of 1 KB, over the best TLS proxy",
        &["userspace-vs-kernel: http-1k-1000-bbr.p*"],
    ),
    (
        "under BBR: HTTP of 64 KB, over the best TLS proxy",
        &["userspace-vs-kernel: http-64k-1000-bbr.p*"],
    ),
    (
        "UDP of 64 to 1518 octets, over the best other",
        &["pfsense: udp-*"],
    ),
    (
        "UDP forwarded by 4 tunnels, over wireguard-go",
        &[
            "forwarded, four tunnels: adit against wireguard-go",
            "pfsense: forwarded-4, adit / wireguard-go",
        ],
    ),
    (
        "UDP forwarded by 4 tunnels, over Tailscale's fork",
        &[
            "forwarded, four tunnels: adit against tailscale",
            "pfsense: forwarded-4, adit / tailscale",
        ],
    ),
    (
        "medians of a run within the range of another, %",
        &["medians within the range of the other's rounds"],
    ),
    (
        "a stream beside a flood to a slow peer, over one alone",
        &["slow: stream_ratio"],
    ),
    (
        "longest time without an answer to pings, ms",
        &["slow: ping_beside_gap"],
    ),
    (
        "4 interfaces over one: throughput",
        &["four-tunnels: four_tunnels_ratio"],
    ),
    (
        "4 interfaces over one: CPU time",
        &["four-tunnels: four_cpu_ratio"],
    ),
    (
        "4 interfaces over one: memory",
        &["four-tunnels: four_memory_ratio"],
    ),
    (
        "Jain's index of TCP to and from 2, 8 and 64 peers",
        &["peers-*: jain", "peers-*: jain_back"],
    ),
    (
        "64 connections of one peer, over 1 of another",
        &["peers-2: share_ratio", "peers-2: share_ratio_back"],
    ),
    (
        "UDP received at twice the most, over the most: one way",
        &["overload: goodput_at_twice_ratio"],
    ),
    (
        "UDP received at twice the most, over the most: both ways",
        &["overload-both: goodput_at_twice_ratio"],
    ),
    (
        "UDP received at twice the most, over the best other",
        &[
            "overload: goodput_at_twice",
            "overload-both: goodput_at_twice",
        ],
    ),
    (
        "UDP 1368 B from 1,000 active peers, over the best other",
        &["peers-active-1000: from_peers_1368"],
    ),
    (
        "UDP 1368 B to 1,000 active peers, over the best other",
        &["peers-active-1000: to_peers_1368"],
    ),
    (
        "UDP 1368 B from 10,000 active peers, over one peer",
        &["peers-active-10000: from_peers_1368"],
    ),
    (
        "UDP 1368 B to 10,000 active peers, over one peer",
        &["peers-active-10000: to_peers_1368"],
    ),
    (
        "longest gap of hand-overs with 1,000 peers, ms",
        &["longest gap"],
    ),
    ("hand-overs in that run", &["hand-overs"]),
    (
        "handshakes, datagrams lost or delivered twice in it",
        &[
            "handshake messages",
            "datagrams lost",
            "datagrams delivered twice",
        ],
    ),
    (
        "wake-ups a second, 1 and 1,000 silent peers",
        &["wake-ups, *"],
    ),
    (
        "memory on a quarter of a CPU, MiB",
        &["memory on a small router"],
    ),
    (
        "engine in memory, threads over one: to one peer",
        &["memory, to one peer: auto against one thread"],
    ),
    (
        "engine in memory, threads over one: to 64 peers",
        &["memory, to 64 peers: auto against one thread"],
    ),
    (
        "engine in memory, threads over one: from one peer",
        &["memory, from one peer: auto against one thread"],
    ),
    (
        "engine in memory, threads over one: from 64 peers",
        &["memory, from 64 peers: auto against one thread"],
    ),
    (
        "`auto` over the better policy: least throughput",
        &["tunnels: auto against the better policy, least throughput of all loads"],
    ),
    (
        "`auto` over the better policy: most CPU time",
        &["tunnels: auto against the better policy, most CPU time of all loads"],
    ),
    (
        "model: 1 tunnel on 8 cores, over one thread",
        &["model: one tunnel on 8 cores over one thread"],
    ),
    (
        "model: 16 tunnels on 32 cores, over one thread",
        &["model: 16 tunnels on 32 cores over one thread"],
    ),
    (
        "greatest error of the model, in memory, %",
        &["model, memory: greatest error"],
    ),
    (
        "greatest error of the model, real tunnels, %",
        &["model, tunnels: greatest error"],
    ),
    (
        "a stream under forged messages, over one alone",
        &[
            "one-source: stream_kept",
            "sources: stream_kept",
            "wrong-mac1: stream_kept",
            "cookies: stream_kept",
            "unknown-indices: stream_kept",
            "replays: stream_kept",
        ],
    ),
    (
        "a stream under a flood of bad tags, over one alone",
        &["bad-tags: stream_kept"],
    ),
    ("pings' p99 under any flood, ms", &["*: ping_p99"]),
    (
        "new peers, of 20, that connect under any flood",
        &["*: connected"],
    ),
    (
        "growth of memory under any flood, MiB",
        &["*: memory_growth"],
    ),
];

/// Claims that no file has now: the first cell of a row, and its goal.
pub(super) const BY_HAND: &[(&str, &str)] = &[
    ("one TCP stream, over Adit without encryption", "≥ 0.75 ×"),
    ("1,000 interfaces: start, s", "≤ 10"),
    ("1,000 interfaces: memory, MiB", "≤ 250"),
    ("1,000 interfaces: threads, on 2 CPUs", "≤ 6"),
    ("500,000 peers: load, s", "≤ 15"),
    ("500,000 peers: memory of each, KiB", "≤ 2"),
    ("500,000 peers: `wg show dump`, s", "≤ 3"),
    ("500,000 peers: handshakes per CPU second", "≥ 4,000"),
    (
        "500,000 peers: time without a ping, load and rekeys, ms",
        "≤ 50",
    ),
    (
        "look-up of a peer, 500,000 over 10: in turn, at random",
        "≤ 1.5 ×",
    ),
    ("handshakes answered a second, protocol alone", "≥ 4,000"),
    ("handshakes answered a second, one core", "≥ 3,000"),
    ("10,000 silent peers watched: CPU, ms/s", "≤ 20"),
    ("10,000 silent peers watched: memory, MiB", "≤ 20"),
    ("longest delay of an event, ms", "≤ 100"),
    ("with the sandbox, over before it: TCP", "as before"),
    ("with the sandbox, over before it: CPU time", "as before"),
    ("with the sandbox, over before it: UDP", "as before"),
    ("with the sandbox, over before it: idle ping", "as before"),
    (
        "AEAD over ring (seal, open): AVX-512, 45 × 1420 B",
        "≥ 3.5 ×",
    ),
    ("AEAD over ring: AVX-512, 64 × 64 B", "≥ 5 ×"),
    ("AEAD over ring: AVX-512, 1 × 1420 B", "≥ 1.2 ×"),
    ("AEAD over ring: AVX-512, 1 × 16384 B", "≥ 1.5 ×"),
    ("AEAD over ring: AVX2, 45 × 1420 B", "≥ 1.3 ×"),
    ("AEAD over ring: 1 × 64 B", "≥ 1 ×"),
];
