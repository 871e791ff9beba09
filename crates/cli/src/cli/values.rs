//! Values of arguments.

use std::time::Duration;

use adit_ctl::config;
use adit_ctl::status::Field;
use adit_proto::config::{Cidr, PublicKey};

pub(super) fn field(name: &str) -> std::result::Result<Field, String> {
    let field = Field::ALL.into_iter().find(|field| field.name() == name);
    field.ok_or_else(|| format!("expected {}", Field::ALL.map(Field::name).join(", ")))
}

pub(super) fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, at least 0.1".into())
}

pub(super) fn interface_name(name: &str) -> std::result::Result<String, String> {
    adit_ctl::config::check_name(name).map(|()| name.to_owned())
}

pub(super) fn one_line(text: &str) -> std::result::Result<String, String> {
    match text.chars().any(char::is_control) || text.trim().is_empty() {
        true => Err("expected one line of text".into()),
        false => Ok(text.trim().to_owned()),
    }
}

pub(super) fn public_key(text: &str) -> std::result::Result<PublicKey, String> {
    let key = adit_ctl::keys::public_from_base64(text);
    key.ok_or_else(|| "expected 44 characters of base64, as `adit pubkey` prints them".into())
}

/// An address stands for itself.
pub(crate) fn block(text: &str) -> std::result::Result<Cidr, String> {
    let (ip, len) = match text.split_once('/') {
        Some((ip, len)) => (ip, len.parse().ok()),
        None => (text, Some(if text.contains(':') { 128 } else { 32 })),
    };
    let block = ip
        .parse()
        .ok()
        .zip(len)
        .and_then(|(ip, len)| Cidr::new(ip, len));
    block.ok_or_else(|| "expected an address and a prefix length, such as 10.0.0.0/8".into())
}

/// When access ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Never,
    /// Since the Unix epoch.
    At(Duration),
    /// From now.
    In(Duration),
}

/// `7d`, `12h 30m`, `now`, or as in a file.
pub(super) fn when(text: &str) -> std::result::Result<When, String> {
    if text.eq_ignore_ascii_case("now") {
        return Ok(When::In(Duration::ZERO));
    }
    match (config::expires(text), humantime::parse_duration(text)) {
        (Ok(at), _) => Ok(at.map_or(When::Never, When::At)),
        // Less than a thousand years.
        (_, Ok(time)) if time < Duration::from_secs(1_000 * 366 * 86_400) => Ok(When::In(time)),
        (Err(_), _) => Err(
            "expected a time such as 7d or 12h, a day such as 2027-01-31, a time of UTC such as 2027-01-31T12:00:00Z, \
             now or never"
                .to_owned(),
        ),
    }
}

/// Bytes; `None` for no quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota(pub(crate) Option<u64>);

pub(super) fn quota(text: &str) -> std::result::Result<Quota, String> {
    config::quota(text).map(Quota)
}
