//! Names for readers: of subjects, machines and published sources of measurements.

/// Subjects, in the order of readers: as results name them, and as their authors do.
const REAL: [(&str, &str); 16] = [
    ("adit", "Adit"),
    ("boringtun", "BoringTun"),
    ("ghostunnel-aes", "ghostunnel, AES-GCM"),
    ("ghostunnel-chacha", "ghostunnel, ChaCha20"),
    ("gotatun", "GotaTun"),
    ("haproxy-aes", "HAProxy, AES-GCM"),
    ("haproxy-chacha", "HAProxy, ChaCha20"),
    ("kernel", "Linux kernel"),
    ("emulated", "Linux kernel, emulated"),
    ("ipsec", "strongSwan, ESP"),
    ("stunnel-aes", "stunnel, AES-GCM"),
    ("stunnel-chacha", "stunnel, ChaCha20"),
    ("tailscale", "Tailscale's fork"),
    ("wireguard-go", "wireguard-go"),
    ("ceiling", "Adit without its AEAD"),
    (LINK, "no tunnel"),
];

/// Steps of Adit, each with all that are before it.
const STEPS: [(&str, &str); 8] = [
    ("plain", "Adit, packet by packet"),
    ("tun-offloads", "+ TUN offloads"),
    ("mmsg", "+ sendmmsg, recvmmsg"),
    ("udp-gso", "+ UDP GSO and GRO"),
    ("vector-checksum", "+ vector checksum"),
    ("aead-across-packets", "+ AEAD across packets"),
    ("sized-frames", "+ GSO packets that fit"),
    ("sized-frames, sw-gso", "the same, software GSO"),
];

/// The link without a tunnel.
pub(super) const LINK: &str = "direct";

/// Its real name. A policy has no other.
pub(super) fn real(name: &str) -> &str {
    let known = REAL.iter().chain(&STEPS).find(|(of, _)| *of == name);
    known.map_or(name, |(_, real)| real)
}

/// Where it stands among others: Adit, then by real name, then steps, policies in the order of their
/// file, and the link last.
pub(super) fn place(name: &str, in_file: usize) -> usize {
    if name == LINK {
        return usize::MAX;
    }
    let known = REAL.iter().chain(&STEPS).position(|(of, _)| *of == name);
    known.unwrap_or(REAL.len() + STEPS.len() + in_file)
}

pub(super) fn is_step(name: &str) -> bool {
    STEPS.iter().any(|(of, _)| *of == name)
}

/// Whether Adit can be compared with it: another program, measured on the same machine.
pub(super) fn is_other(name: &str) -> bool {
    let not = ["adit", "ceiling", "emulated", LINK];
    !not.contains(&name) && REAL.iter().any(|(of, _)| *of == name)
}

/// A published measurement, with its authors.
pub(super) fn source(name: &str) -> &str {
    match name {
        "tailscale-2022" => "“Userspace isn't slow, some kernel interfaces are!”, Tailscale, 2022",
        "tailscale-2023" => "“Surpassing 10Gb/s over Tailscale”, Tailscale, 2023",
        "userspace-vs-kernel" => "“User space vs kernel”: WireGuard beside TLS",
        "inline" => "“WireGuard Inline”: cores and policies",
        "pfsense" => "“WireGuard in pfSense 2.5 Performance”, Netgate, 2021",
        other => other,
    }
}

/// A processor without what says nothing.
pub(super) fn processor(cpu: &str) -> String {
    let noise = ["(R)", "(TM)", " Processor", " CPU"];
    noise
        .iter()
        .fold(cpu.to_owned(), |cpu, noise| cpu.replace(noise, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_names_is_sorted() {
        let between = &REAL[1..REAL.len() - 2];
        assert!(between.is_sorted_by_key(|(_, real)| real.to_lowercase()));
    }

    #[test]
    fn adit_comes_first_and_the_link_last() {
        let mut names = [
            "direct", "pipeline", "auto", "mmsg", "plain", "gotatun", "adit",
        ];
        let in_file = names;
        let place_of = |name: &str| in_file.iter().position(|of| *of == name).unwrap();
        names.sort_by_key(|name| place(name, place_of(name)));
        let sorted = [
            "adit", "gotatun", "plain", "mmsg", "pipeline", "auto", "direct",
        ];
        assert_eq!(names, sorted);
    }
}
