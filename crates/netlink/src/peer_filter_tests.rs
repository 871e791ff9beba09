//! What the kernel has of peers' rules, as `nft` reads it back.

use std::net::IpAddr;
use std::process::Command;

use crate::netns::Netns;
use crate::peer_filter::{FilterElement, FilterMonitor, PeerFilter};

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Netns::new().unwrap().run(work).unwrap()
}

fn listed() -> String {
    let output = Command::new("nft")
        .args(["list", "table", "inet", "adit-rules-wg0"])
        .output();
    let output = output.expect("nft, which scripts/setup installs");
    assert!(output.status.success(), "{output:?}");
    // Line breaks of elements are nft's own.
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn net(text: &str) -> (IpAddr, u8) {
    let (ip, len) = text.split_once('/').unwrap();
    (ip.parse().unwrap(), len.parse().unwrap())
}

fn limited(from: &str) -> FilterElement {
    let (ip, len) = net(from);
    FilterElement::Limited(ip, len)
}

fn allowed(from: &str, to: &str, protocols: (u8, u8), ports: (u16, u16)) -> FilterElement {
    FilterElement::Allowed(net(from), net(to), protocols, ports)
}

#[test]
fn elements_are_what_nft_lists_and_change_one_by_one() {
    inside(|| {
        let filter = PeerFilter::new("wg0");
        assert!(!filter.is_there().unwrap());
        let monitor = FilterMonitor::open().unwrap();
        let web = allowed("10.66.0.2/32", "0.0.0.0/0", (6, 6), (443, 443));
        let all = [
            limited("10.66.0.2/32"),
            limited("10.66.0.3/32"),
            limited("255.0.0.0/8"),
            limited("fd00::/64"),
            web,
            allowed("10.66.0.2/32", "10.1.0.0/16", (17, 17), (8000, 8100)),
            allowed("10.66.0.3/32", "0.0.0.0/0", (0, 255), (0, u16::MAX)),
            allowed("fd00::/64", "fd01::/48", (58, 58), (0, u16::MAX)),
        ];
        filter.replace(&all).unwrap();
        assert!(filter.is_there().unwrap());
        let text = listed();
        println!("{text}");
        for words in [
            "elements = { 10.66.0.2, 10.66.0.3, 255.0.0.0/8 }",
            "elements = { fd00::/64 }",
            "10.66.0.2 . 0.0.0.0/0 . tcp . 443",
            "10.66.0.2 . 10.1.0.0/16 . udp . 8000-8100",
            "fd00::/64 . fd01::/48 . ipv6-icmp . 0-65535",
            "iifname != \"wg0\" accept ct direction reply accept ct state related accept ip saddr != @limited4 accept ip6 \
             saddr != @limited6 accept ip saddr . ip daddr . meta l4proto . th dport @allowed4 accept",
            "counter packets 0 bytes 0 drop",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let ssh = allowed("10.66.0.2/32", "0.0.0.0/0", (6, 6), (22, 22));
        let twice = allowed("10.66.0.2/32", "10.1.0.0/16", (17, 17), (8000, 8050));
        filter
            .change(&[web], &[ssh, twice])
            .expect_err("it overlaps another one");
        assert_eq!(listed(), text);
        let gone = [web, limited("10.66.0.2/32"), limited("10.66.0.3/32")];
        filter
            .change(&gone, &[limited("10.66.0.2/31"), ssh])
            .unwrap();
        let text = listed();
        assert!(text.contains("{ 10.66.0.2/31, 255.0.0.0/8 }"), "{text}");
        assert!(!text.contains("443") && text.contains("tcp . 22"), "{text}");
        monitor.drain();
        filter.remove().unwrap();
        filter.remove().unwrap();
        assert!(!filter.is_there().unwrap());
        assert!(filter.change(&[], &[ssh]).is_err());
    });
}

#[test]
fn ten_thousand_elements_are_one_transaction() {
    inside(|| {
        let filter = PeerFilter::new("wg0");
        let of = |at: u16| {
            let from = format!("10.66.{}.{}/32", at / 100, at % 100);
            allowed(&from, "0.0.0.0/0", (6, 6), (443, 443))
        };
        let elements: Vec<_> = (0..10_000).map(of).collect();
        filter.replace(&elements).unwrap();
        filter.replace(&elements).unwrap();
        filter.change(&elements[..9_000], &[]).unwrap();
        assert!(listed().contains("0.0.0.0/0 . tcp . 443"));
    });
}
