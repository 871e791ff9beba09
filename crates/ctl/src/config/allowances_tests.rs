use super::*;
use crate::config::{Config, disable, enable};

const MEGA: u64 = 125_000;

#[test]
fn rates_have_units_and_are_written_as_they_are_read() {
    for (text, to, from, back) in [
        ("20M", 20 * MEGA, 20 * MEGA, "20M"),
        ("50M/10M", 50 * MEGA, 10 * MEGA, "50M/10M"),
        ("2.5 Gbit/s", 2_500 * MEGA, 2_500 * MEGA, "2.5G"),
        ("1G/512 kbit/s", 1_000 * MEGA, 64_000, "1G/512k"),
        ("100mbps", 100 * MEGA, 100 * MEGA, "100M"),
    ] {
        assert_eq!(limit(text), Ok((Some(to), Some(from))), "{text}");
        let (to_peer, from_peer) = limit(text).unwrap();
        let allowance = Allowance {
            to_peer,
            from_peer,
            ..Allowance::default()
        };
        assert_eq!(Term::Limit.value(&allowance).as_deref(), Some(back));
        assert_eq!(limit(back), Ok((to_peer, from_peer)));
    }
    assert_eq!(limit("none"), Ok((None, None)));
    assert_eq!(limit("none/5M"), Ok((None, Some(5 * MEGA))));
    for wrong in [
        "",
        "20",
        "7k",
        "fast",
        "-5M",
        "5M/",
        "1e9",
        "NaNM",
        "infM",
        "999999999T",
        "5M/5M/5M",
        "M",
        "٣M",
    ] {
        assert!(limit(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn quotas_are_bytes() {
    for (text, bytes) in [
        ("100G", 100_000_000_000),
        ("1.5T", 1_500_000_000_000),
        ("1.5 TB", 1_500_000_000_000),
        ("500MiB", 524_288_000),
        ("2 GiB", 2_147_483_648),
        ("3k", 3_000),
    ] {
        assert_eq!(quota(text), Ok(Some(bytes)), "{text}");
    }
    assert_eq!(quota("None"), Ok(None));
    for wrong in [
        "",
        "100",
        "0G",
        "G",
        "-1G",
        "100 apples",
        "1e3G",
        "9999999T",
    ] {
        assert!(quota(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_day_lasts_until_its_end() {
    let day = |text| expires(text).unwrap().unwrap().as_secs();
    assert_eq!(day("2027-01-31"), 1_801_440_000);
    assert_eq!(day("2027-02-01T00:00:00Z"), 1_801_440_000);
    assert_eq!(day("2027-02-01 00:00"), 1_801_440_000);
    assert_eq!(
        date_text(Duration::from_secs(1_801_440_000)),
        "2027-02-01T00:00:00Z"
    );
    assert_eq!(expires("never"), Ok(None));
    for wrong in [
        "",
        "tomorrow",
        "2027-13-01",
        "2027-02-30",
        "31.1.2027",
        "2027-01-31T25:00:00Z",
        "1969-01-01",
    ] {
        assert!(expires(wrong).is_err(), "{wrong}");
    }
}

const FILE: &str = "[Interface]
PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=
# Limit = 1M

[Peer]
# friendly_name = phone
# Limit = 20M/5M
PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=
AllowedIPs = 10.0.0.2/32
# Quota = 100G

# laptop
# Expires = 2027-01-31
[Peer]
PublicKey = TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=
AllowedIPs = 10.0.0.3/32
## Limit = 3M
";

fn key(text: &str) -> PublicKey {
    crate::keys::public_from_base64(text).unwrap()
}

fn phone() -> PublicKey {
    key("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=")
}

fn parsed(text: &str) -> Config {
    Config::parse(text, "wg0.conf").unwrap()
}

#[test]
fn comments_of_a_peer_say_what_it_may_do() {
    let config = parsed(FILE);
    let [phone, laptop] = &config.peers[..] else {
        panic!("two peers")
    };
    let expected = Allowance {
        to_peer: Some(20 * MEGA),
        from_peer: Some(5 * MEGA),
        quota: Some(100_000_000_000),
        expires: None,
    };
    assert_eq!(
        (phone.name.as_deref(), phone.allowance),
        (Some("phone"), expected)
    );
    let expires = Some(Duration::from_secs(1_801_440_000));
    let expected = Allowance {
        expires,
        ..Allowance::default()
    };
    assert_eq!(
        (laptop.name.as_deref(), laptop.allowance),
        (Some("laptop"), expected)
    );
}

#[test]
fn what_is_not_understood_is_warned_of() {
    let config = parsed(&FILE.replace("20M/5M", "twenty"));
    let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    let warning = "wg0.conf:7: # Limit: expected bits a second";
    assert!(
        warnings.iter().any(|it| it.starts_with(warning)),
        "{warnings:?}"
    );
    assert_eq!(config.peers[0].allowance.to_peer, None);
    assert!(config.peers[0].allowance.quota.is_some());
}

#[test]
fn a_term_is_set_in_place_and_taken_out_and_nothing_else_changes() {
    let set = |text: &str, term, value| with_term(text, phone(), term, value).unwrap();
    let slower = set(FILE, Term::Limit, Some("8M"));
    assert_eq!(parsed(&slower).peers[0].allowance.to_peer, Some(8 * MEGA));
    assert_eq!(slower.lines().count(), FILE.lines().count());
    let without = set(&slower, Term::Limit, None);
    let rest: Vec<&str> = FILE
        .lines()
        .filter(|line| *line != "# Limit = 20M/5M")
        .collect();
    assert_eq!(without.lines().collect::<Vec<_>>(), rest);
    let back = set(&without, Term::Expires, Some("2027-01-31T12:00:00Z"));
    assert!(parsed(&back).peers[0].allowance.expires.is_some());
    assert_eq!(parsed(&back).peers[1], parsed(FILE).peers[1]);
    assert!(with_term(FILE, PublicKey([9; 32]), Term::Limit, None).is_none());
}

#[test]
fn a_disabled_peer_keeps_its_terms() {
    let off = disable(FILE, phone()).unwrap();
    let config = parsed(&off);
    assert_eq!(config.peers.len(), 1);
    assert_eq!(
        config.disabled[0].allowance,
        parsed(FILE).peers[0].allowance
    );
    let off = with_term(&off, phone(), Term::Limit, Some("1M")).unwrap();
    assert_eq!(parsed(&off).disabled[0].allowance.to_peer, Some(MEGA));
    let on = enable(&off, phone()).unwrap();
    assert_eq!(parsed(&on).peers[0].allowance.to_peer, Some(MEGA));
}
