//! What the kernel has of a table, as `nft` reads it back.

use std::process::Command;

use crate::Family;
use crate::netns::Netns;
use crate::nft::{Hook, Listed, Match, NftChain, NftRule, NftTable, Verdict, chains, replace};

fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Netns::new().unwrap().run(work).unwrap()
}

fn nft(args: &[&str]) -> String {
    let output = Command::new("nft").args(args).output();
    let output = output.expect("nft, which scripts/setup installs");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn rule(matches: Vec<Match>, verdict: Verdict) -> NftRule {
    NftRule { matches, verdict }
}

/// A table with every kind of chain, match and verdict.
fn table(family: Family) -> NftTable {
    let nets: &[(&str, u8)] = match family {
        Family::V4 => &[("10.0.0.0", 8), ("172.16.0.0", 12), ("192.168.7.9", 32)],
        Family::V6 => &[("fc00::", 7), ("fd00:1:2:3::", 64), ("fd00::1", 128)],
    };
    let name = || "wg0".to_owned();
    let mut forward = vec![
        rule(
            vec![Match::Input(name()), Match::Output(name())],
            Verdict::Accept,
        ),
        rule(vec![Match::Translated], Verdict::Accept),
        rule(
            vec![Match::Output(name()), Match::Established],
            Verdict::Accept,
        ),
    ];
    for (net, len) in nets {
        let ip = net.parse().unwrap();
        forward.push(rule(
            vec![Match::Input(name()), Match::To(ip, *len)],
            Verdict::Accept,
        ));
        forward.push(rule(vec![Match::From(ip, *len)], Verdict::Drop));
    }
    let (ip, len) = (nets[1].0.parse().unwrap(), nets[1].1);
    let nat = rule(
        vec![Match::From(ip, len), Match::OtherOutput(name())],
        Verdict::Masquerade,
    );
    let chain = |name: &str, hook, rules| NftChain {
        name: name.to_owned(),
        hook,
        rules,
    };
    NftTable {
        name: "adit-forward-wg0".to_owned(),
        chains: vec![
            chain("forward", Some(Hook::Forward), forward),
            chain("postrouting", Some(Hook::SourceNat), vec![nat]),
            chain("was-0/net/ipv4/conf/eth0.7/forwarding", None, Vec::new()),
        ],
    }
}

#[test]
fn the_kernel_gets_what_nft_makes_of_the_script() {
    let theirs = inside(|| {
        // Twice: it takes the place of what is there.
        for family in Family::BOTH {
            nft(&[&table(family).script(family)]);
            nft(&[&table(family).script(family)]);
        }
        nft(&["list", "ruleset"])
    });
    let ours = inside(|| {
        for family in Family::BOTH {
            replace(family, &[table(family)], &[]).unwrap();
            replace(family, &[table(family)], &[]).unwrap();
        }
        nft(&["list", "ruleset"])
    });
    assert!(ours.contains("ip saddr 172.16.0.0/12 oifname != \"wg0\" masquerade"));
    assert!(ours.contains("oifname \"wg0\" ct state established,related accept"));
    assert!(ours.contains("ct status dnat accept"));
    assert_eq!(ours, theirs);
}

#[test]
fn chains_are_listed_with_their_tables_and_tables_go() {
    inside(|| {
        assert_eq!(chains(Family::V4).unwrap(), []);
        let other = NftTable {
            name: "other".to_owned(),
            ..table(Family::V4)
        };
        replace(Family::V4, &[table(Family::V4), other], &[]).unwrap();
        let found = chains(Family::V4).unwrap();
        assert_eq!(found.len(), 6, "{found:?}");
        let is_kept = |chain: &Listed| {
            chain.table == "adit-forward-wg0"
                && chain.name == "was-0/net/ipv4/conf/eth0.7/forwarding"
        };
        assert!(found.iter().any(is_kept), "{found:?}");
        assert!(found.iter().all(|chain| !chain.drops_forwarded));
        assert_eq!(chains(Family::V6).unwrap(), []);

        // One that is not there is no error.
        replace(Family::V4, &[], &["adit-forward-wg0", "none"]).unwrap();
        let found = chains(Family::V4).unwrap();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|chain| chain.table == "other"));

        // As other programs make them.
        nft(&[
            "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }",
        ]);
        nft(&[
            "table ip filter { chain INPUT { type filter hook input priority 0; policy drop; }; }",
        ]);
        let found = chains(Family::V4).unwrap();
        let mut drops = found.iter().filter(|chain| chain.drops_forwarded);
        assert_eq!(
            drops.next().map(|chain| chain.name.as_str()),
            Some("FORWARD")
        );
        assert_eq!(drops.next(), None);
    });
}

#[test]
fn a_table_that_is_refused_changes_nothing() {
    inside(|| {
        replace(Family::V4, &[table(Family::V4)], &[]).unwrap();
        let before = nft(&["list", "ruleset"]);
        let mut bad = table(Family::V4);
        bad.chains.push(bad.chains[0].clone());
        bad.chains[3].name = "x".repeat(300);
        let error = replace(Family::V4, &[bad], &["adit-forward-wg0"]).unwrap_err();
        assert!(error.to_string().starts_with("making chain xxx"), "{error}");
        assert_eq!(nft(&["list", "ruleset"]), before);
    });
}
