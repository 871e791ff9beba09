//! The values of the keys. Errors say what was expected and never repeat a key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adit_proto::config::{AllowedIpChange, Cidr, Secret};
use zeroize::Zeroizing;

use crate::config::model::{InterfaceAddress, Table};
use crate::keys;
use crate::names::HostPort;
use crate::text::number;

/// `text` as wg reads it: without any space, within words or between them.
pub(super) fn bare(text: &str) -> Zeroizing<String> {
    let mut bare = Zeroizing::new(String::with_capacity(text.len()));
    bare.extend(text.chars().filter(|c| !c.is_ascii_whitespace()));
    bare
}

pub(super) fn key(value: &str) -> Result<Secret, String> {
    let value = bare(value);
    keys::from_base64(&value).ok_or_else(|| {
        if is_placeholder(&value) {
            return "this is a placeholder: put the key in its place".to_owned();
        }
        let got = match value.chars().count() {
            keys::BASE64_LEN => "characters that no key has".to_owned(),
            1 => "1 character".to_owned(),
            length => format!("{length} characters"),
        };
        format!("this is no key: expected 44 characters of base64, the last a '=', got {got}")
    })
}

fn got<T>(value: &str, expected: &str) -> Result<T, String> {
    // In the wrong place, too, a key stays secret.
    Err(match is_maybe_secret(value) {
        true => format!(
            "expected {expected}, got {} characters",
            value.chars().count()
        ),
        false => format!("expected {expected}, got {value:?}"),
    })
}

/// Whether `text` could have a key in it, or a good part of one: characters of base64 that are no
/// words, or many of them.
pub(super) fn is_maybe_secret(text: &str) -> bool {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    text.split(|c| !is_base64(c)).any(|run| {
        let count = |is: fn(&char) -> bool| run.chars().filter(is).count();
        let (capitals, small) = (
            count(char::is_ascii_uppercase),
            count(char::is_ascii_lowercase),
        );
        // A word, or SeveralLikeThis.
        let words = capitals + small == run.len() && 8 * capitals <= run.len() + 8;
        run.len() >= 32 || run.len() >= 12 && capitals > 0 && small > 0 && !words
    })
}

/// Whether this is what an example has where something is to be filled in.
pub(super) fn is_placeholder(text: &str) -> bool {
    text.contains(['<', '>', '{', '}', '$'])
}

/// Whether a word without dots could be a whole key: such are no names of hosts.
fn is_maybe_key(text: &str) -> bool {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    text.split(|c| !is_base64(c)).any(|run| {
        let has = |is: fn(&char) -> bool| run.chars().any(|c| is(&c));
        let is_mixed = has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase);
        run.len() > 63 || run.len() >= 32 && is_mixed
    })
}

pub(super) fn port(value: &str) -> Result<u16, String> {
    let expected = "a port from 0 to 65535 or a UDP service of /etc/services";
    udp_port(&bare(value)).map_or_else(|| got(value, expected), Ok)
}

/// A port, or a service's, as getaddrinfo(3) takes either.
fn udp_port(value: &str) -> Option<u16> {
    number(value).or_else(|| {
        let list = std::fs::read("/etc/services").ok()?;
        service_in(&String::from_utf8_lossy(&list), value)
    })
}

/// The UDP port of a service in services(5): `name port/protocol alias…`.
pub(super) fn service_in(list: &str, name: &str) -> Option<u16> {
    list.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let (first, port) = (words.next()?, words.next()?);
        let named = first == name || words.any(|alias| alias == name);
        number(port.strip_suffix("/udp").filter(|_| named)?)
    })
}

/// Decimal, or hexadecimal after `0x`.
fn any_base(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or(value.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u32::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None => number(value),
    }
}

pub(super) fn fwmark(value: &str) -> Result<u32, String> {
    match any_base(&bare(value)) {
        Some(mark) => Ok(mark),
        None if value.eq_ignore_ascii_case("off") => Ok(0),
        None => got(value, "off or a number of 32 bits like 51820 or 0xca6c"),
    }
}

pub(super) fn keepalive(value: &str) -> Result<u16, String> {
    match number(&bare(value)) {
        Some(seconds) => Ok(seconds),
        None if value.eq_ignore_ascii_case("off") => Ok(0),
        None => got(value, "off or seconds from 1 to 65535"),
    }
}

pub(super) fn mtu(value: &str) -> Result<u16, String> {
    number(value)
        // No UDP datagram carries a longer packet.
        .filter(|mtu| (68..=65_475).contains(mtu))
        .map_or_else(|| got(value, "bytes from 68 to 65475"), Ok)
}

pub(super) fn boolean(value: &str) -> Result<bool, String> {
    // In any case, as wg-quick has it.
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => got(value, "true or false"),
    }
}

pub(super) fn table(value: &str) -> Result<Table, String> {
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    // No table has one of these names.
    match value.to_ascii_lowercase().as_str() {
        "" | "auto" => Ok(Table::Auto),
        "off" => Ok(Table::Off),
        _ => match any_base(value) {
            // The kernel's word for the main table.
            Some(0) => Ok(Table::Number(254)),
            Some(number) => Ok(Table::Number(number)),
            None if value.starts_with(|c: char| c.is_ascii_alphabetic())
                && value.bytes().all(named)
                && !is_maybe_secret(value) =>
            {
                Ok(Table::Name(value.to_owned()))
            }
            None => got(value, "auto, off, a number or the name of a routing table"),
        },
    }
}

/// The parts of a list as wg takes it, without the spaces around them. An empty value is an empty
/// list.
pub(super) fn list(value: &str) -> Result<Vec<&str>, String> {
    if value.is_empty() {
        return Ok(Vec::new());
    }
    let parts: Vec<&str> = value.split(',').map(str::trim).collect();
    match parts.iter().any(|part| part.is_empty()) {
        true => Err("there is nothing between two commas, or after the last".to_owned()),
        false => Ok(parts),
    }
}

/// The parts of a list as wg-quick takes it: commas and spaces, any number of them, stand between.
pub(super) fn words(value: &str) -> impl Iterator<Item = &str> {
    let between = |c: char| c == ',' || c.is_whitespace();
    value.split(between).filter(|word| !word.is_empty())
}

fn block(value: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = match value.split_once('/') {
        Some((ip, len)) => (ip, Some(number::<u8>(len)?)),
        None => (value, None),
    };
    let ip: IpAddr = ip.parse().ok()?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    Some((ip, len.unwrap_or(most))).filter(|&(_, len)| len <= most)
}

/// The length that a mask like 255.255.255.0 stands for.
fn mask(value: &str) -> Option<u8> {
    let mask = value.parse::<Ipv4Addr>().ok()?.to_bits();
    let len = mask.leading_ones();
    u8::try_from(len).ok().filter(|_| mask.count_ones() == len)
}

pub(super) fn address(value: &str) -> Result<InterfaceAddress, String> {
    // ip(8) takes a mask, too.
    let masked = || {
        let (ip, text) = value.split_once('/')?;
        Some((ip.parse::<Ipv4Addr>().ok()?.into(), mask(text)?))
    };
    match block(value).or_else(masked) {
        Some((ip, prefix_len)) => Ok(InterfaceAddress { ip, prefix_len }),
        None => got(value, "an address like 10.0.0.1/24 or fd00::1/64"),
    }
}

pub(super) fn allowed_ip(value: &str) -> Result<AllowedIpChange, String> {
    let (change, text): (fn(Cidr) -> _, _) = match value.strip_prefix('-') {
        Some(rest) => (AllowedIpChange::Remove, rest),
        None => (
            AllowedIpChange::Add,
            value.strip_prefix('+').unwrap_or(value),
        ),
    };
    match block(&bare(text)).and_then(|(ip, len)| Cidr::new(ip, len)) {
        Some(cidr) => Ok(change(cidr)),
        None => got(value, "a block of addresses like 10.0.0.0/24 or fd00::/64"),
    }
}

/// Whether an allowed IP says more than its block.
pub(super) fn has_host_bits(value: &str) -> bool {
    let parsed = block(&bare(value.trim_start_matches(['+', '-'])));
    parsed.is_some_and(|(ip, len)| Cidr::new(ip, len).is_some_and(|block| block.addr() != ip))
}

/// A name server (an address, perhaps with `%scope`) or a search domain.
pub(super) fn dns(value: &str) -> Result<Result<String, String>, String> {
    let domain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.~".contains(&byte);
    let number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    if value.parse::<IpAddr>().is_ok() || is_ipv6(value) {
        Ok(Ok(value.to_owned()))
    } else if value.bytes().all(domain) && !value.bytes().all(number) && !is_maybe_key(value) {
        Ok(Err(value.to_owned()))
    } else {
        got(value, "an address or a search domain")
    }
}

/// Whether this is an IPv6 address, perhaps with `%scope`.
fn is_ipv6(host: &str) -> bool {
    let (ip, scope) = host.split_once('%').unwrap_or((host, "0"));
    ip.parse::<Ipv6Addr>().is_ok() && !scope.is_empty()
}

/// Reads an endpoint as wg does: what stands after the last colon, or after the brackets, is the port.
pub(super) fn endpoint(value: &str) -> Result<HostPort, String> {
    const EXPECTED: &str = "host:port, address:port or [IPv6 address]:port";
    let text = bare(value);
    if let Some(wrong) = odd_endpoint(value, &text) {
        return Err(wrong);
    }
    let bracketed = text.strip_prefix('[');
    let (host, port) = match bracketed {
        Some(rest) => match rest.split_once("]:") {
            Some(pair) => pair,
            None => return got(value, EXPECTED),
        },
        None => match text.rsplit_once(':') {
            Some(pair) => pair,
            None => return got(value, &format!("{EXPECTED} (the port is missing)")),
        },
    };
    if host.contains(':') && !is_ipv6(host) {
        return match bracketed {
            Some(_) => got(value, "an IPv6 address between the brackets"),
            None => got(value, "[IPv6 address]:port, with the brackets"),
        };
    }
    let named = |c: char| !c.is_control() && !"/\\,;'\"[]+=".contains(c);
    let is_name = host.len() <= 253 && host.chars().all(named) && !is_maybe_key(host);
    if host.is_empty() || !is_name {
        return got(value, EXPECTED);
    }
    if let Some(wrong) = odd_ipv4(host) {
        return Err(wrong);
    }
    match udp_port(port) {
        Some(port) if port != 0 => Ok(HostPort {
            host: host.to_owned(),
            port,
        }),
        _ => got(
            value,
            &format!("{EXPECTED}, the port from 1 to 65535 or a UDP service of /etc/services"),
        ),
    }
}

/// What is wrong with an endpoint that has more than a host and a port. `text` is the value without
/// spaces.
fn odd_endpoint(value: &str, text: &str) -> Option<String> {
    let example = "expected host:port like vpn.example.com:51820";
    if is_placeholder(text) {
        return Some(format!(
            "this is a placeholder: put the host and the port of the peer in its place; {example}"
        ));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        let scheme = match scheme.len() <= 8 && scheme.bytes().all(|c| c.is_ascii_alphanumeric()) {
            true => format!("{scheme}://"),
            false => "://".into(),
        };
        return Some(format!(
            "this is an address for a browser: {example}, without {scheme} and without a path"
        ));
    }
    if text.contains([',', ';']) {
        return Some(format!(
            "this is a list, but a peer has one endpoint: {example}"
        ));
    }
    if text.contains(['/', '@', '?', '#', '\\']) && !is_maybe_secret(text) {
        return Some(format!(
            "{example}, got {value:?}, which has more than that"
        ));
    }
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let (rest, last) = text.rsplit_once(':')?;
    let (host, first) = rest.rsplit_once(':')?;
    let is_whole = !host.contains(':') || host.starts_with('[') && host.ends_with(']');
    if is_whole && host.chars().any(|c| !c.is_ascii_hexdigit()) && is_port(first) && is_port(last) {
        return Some(format!(
            "there are two ports, {first} and {last}: {example}, with the one on which the peer listens"
        ));
    }
    None
}

/// The mistake in numbers and dots that are no IPv4 address.
fn odd_ipv4(host: &str) -> Option<String> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    if host.parse::<Ipv4Addr>().is_ok() || !host.chars().all(is_number) {
        return None;
    }
    let parts: Vec<&str> = host.split('.').collect();
    let large = parts
        .iter()
        .find(|part| part.parse().is_ok_and(|n: u64| n > 255));
    Some(match (large, parts.len()) {
        (Some(large), _) => format!("{host} is no IPv4 address: {large} is more than 255"),
        (None, 4) => format!(
            "{host} is no IPv4 address: expected numbers from 0 to 255, without zeros before them"
        ),
        (None, count) => format!("{host} is no IPv4 address: it has {count} numbers instead of 4"),
    })
}

impl std::str::FromStr for HostPort {
    type Err = String;

    /// As a file has it: `host:port`, `[address]:port`.
    fn from_str(text: &str) -> Result<Self, String> {
        endpoint(text)
    }
}
