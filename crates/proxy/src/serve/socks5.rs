//! SOCKS5 messages (RFC 1928, 1929) as functions on bytes: nothing here reads or writes.
//!
//! A function gets what a client has sent so far. It says how many bytes its message has, so that no more
//! is taken: what a client sends early belongs to the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{EndpointHost, ProxyEndpoint};

/// The version, which is the first byte of a greeting, a request and a reply.
const VERSION: u8 = 5;
/// The version of the sub-negotiation of name and password (RFC 1929 §2).
const LOGIN_VERSION: u8 = 1;
/// Methods of authentication (RFC 1928 §3).
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;

/// Answers to a greeting (RFC 1928 §3).
pub const WITHOUT_LOGIN: [u8; 2] = [VERSION, NO_AUTHENTICATION];
pub const WITH_LOGIN: [u8; 2] = [VERSION, USER_AND_PASSWORD];
pub const NO_METHOD: [u8; 2] = [VERSION, 0xff];
/// Answers to a name and a password (RFC 1929 §2).
pub const LOGIN_RIGHT: [u8; 2] = [LOGIN_VERSION, 0];
pub const LOGIN_WRONG: [u8; 2] = [LOGIN_VERSION, 1];
/// The answer to SOCKS4 and 4a: "request rejected or failed".
pub const SOCKS4_REFUSED: [u8; 8] = [0, 0x5b, 0, 0, 0, 0, 0, 0];

/// The longest message: a name and a password of 255 bytes each.
pub const LONGEST: usize = 513;
/// The longest head of a datagram: a name of 255 bytes.
pub const LONGEST_HEAD: usize = 262;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocksMistake {
    /// It is SOCKS4, or 4a.
    Version4,
    /// It begins with another version.
    Version(u8),
    /// It is about an address of an unknown type.
    AddressType(u8),
    /// A name is empty, or no text.
    Name,
}

/// What came of reading a message: it and its length, or `None` while bytes are missing.
pub type SocksRead<T> = Result<Option<(T, usize)>, SocksMistake>;

/// The methods of authentication that a client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocksGreeting {
    /// None is needed.
    pub without_login: bool,
    /// A name and a password.
    pub with_login: bool,
}

/// A name and a password.
#[derive(PartialEq, Eq)]
pub struct SocksLogin<'a> {
    /// The name.
    pub user: &'a [u8],
    /// The password.
    pub password: &'a [u8],
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocksCommand {
    /// A connection.
    Connect,
    /// A port for datagrams.
    UdpAssociate,
    /// What is not spoken here: BIND, or an unknown one.
    Other(u8),
}

/// Codes of a reply (RFC 1928 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocksCode {
    /// It succeeded.
    Succeeded = 0,
    /// "General SOCKS server failure".
    Failed = 1,
    /// "Connection not allowed by ruleset".
    NotAllowed = 2,
    /// "Network unreachable".
    NetworkUnreachable = 3,
    /// "Host unreachable".
    HostUnreachable = 4,
    /// "Connection refused".
    Refused = 5,
    /// "TTL expired", which other proxies answer after a time without an answer as well.
    TtlExpired = 6,
    /// "Command not supported".
    CommandNotSupported = 7,
    /// "Address type not supported".
    AddressTypeNotSupported = 8,
}

/// Reads a greeting.
///
/// # Errors
///
/// [`SocksMistake::Version4`] and [`SocksMistake::Version`].
pub fn greeting(bytes: &[u8]) -> SocksRead<SocksGreeting> {
    let Some((&version, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    check(version, VERSION)?;
    let Some((methods, len)) = counted(rest) else {
        return Ok(None);
    };
    let greeting = SocksGreeting {
        without_login: methods.contains(&NO_AUTHENTICATION),
        with_login: methods.contains(&USER_AND_PASSWORD),
    };
    Ok(Some((greeting, 1 + len)))
}

/// Reads a name and a password.
///
/// # Errors
///
/// [`SocksMistake::Version`].
pub fn login(bytes: &[u8]) -> SocksRead<SocksLogin<'_>> {
    let Some((&version, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    if version != LOGIN_VERSION {
        return Err(SocksMistake::Version(version));
    }
    let Some((user, len_of_user)) = counted(rest) else {
        return Ok(None);
    };
    let Some((password, len)) = counted(&rest[len_of_user..]) else {
        return Ok(None);
    };
    Ok(Some((SocksLogin { user, password }, 1 + len_of_user + len)))
}

/// Reads a request: a command, and where it is to lead.
///
/// # Errors
///
/// All of [`SocksMistake`].
pub fn request(bytes: &[u8]) -> SocksRead<(SocksCommand, ProxyEndpoint)> {
    let Some(&version) = bytes.first() else {
        return Ok(None);
    };
    check(version, VERSION)?;
    let [_, command, _reserved, rest @ ..] = bytes else {
        return Ok(None);
    };
    let command = match command {
        1 => SocksCommand::Connect,
        3 => SocksCommand::UdpAssociate,
        other => SocksCommand::Other(*other),
    };
    Ok(endpoint(rest)?.map(|(target, len)| ((command, target), 3 + len)))
}

/// Reads the head of a client's datagram (RFC 1928 §7): the number of its fragment, where it is to go, and
/// the length of the head.
///
/// # Errors
///
/// [`SocksMistake::AddressType`] and [`SocksMistake::Name`].
pub fn datagram(bytes: &[u8]) -> SocksRead<(u8, ProxyEndpoint)> {
    let [_, _, fragment, rest @ ..] = bytes else {
        return Ok(None);
    };
    Ok(endpoint(rest)?.map(|(target, len)| ((*fragment, target), 3 + len)))
}

/// The reply to a request.
pub fn reply(code: SocksCode, bound: SocketAddr) -> Vec<u8> {
    with_address([VERSION, code as u8, 0], bound)
}

/// The head of a datagram for a client, which is from this address.
pub fn datagram_head(from: SocketAddr) -> Vec<u8> {
    with_address([0; 3], from)
}

fn with_address(begin: [u8; 3], address: SocketAddr) -> Vec<u8> {
    let mut bytes = begin.to_vec();
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes.push(1);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(4);
            bytes.extend(ip.octets());
        }
    }
    bytes.extend(address.port().to_be_bytes());
    bytes
}

fn check(version: u8, expected: u8) -> Result<(), SocksMistake> {
    match version {
        version if version == expected => Ok(()),
        4 => Err(SocksMistake::Version4),
        other => Err(SocksMistake::Version(other)),
    }
}

/// Bytes after a byte that says how many they are, and the length of both.
fn counted(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (&len, rest) = bytes.split_first()?;
    let len = usize::from(len);
    Some((rest.get(..len)?, 1 + len))
}

/// A type of an address, the address, and a port.
fn endpoint(bytes: &[u8]) -> SocksRead<ProxyEndpoint> {
    let Some((&kind, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let read = match kind {
        1 => rest
            .first_chunk()
            .map(|ip: &[u8; 4]| (EndpointHost::Address(Ipv4Addr::from(*ip).into()), 4)),
        4 => rest
            .first_chunk()
            .map(|ip: &[u8; 16]| (EndpointHost::Address(Ipv6Addr::from(*ip).into()), 16)),
        3 => match counted(rest) {
            Some((name, len)) => Some((host(name)?, len)),
            None => None,
        },
        other => return Err(SocksMistake::AddressType(other)),
    };
    let Some((host, len)) = read else {
        return Ok(None);
    };
    let Some(port) = rest[len..].first_chunk() else {
        return Ok(None);
    };
    let port = u16::from_be_bytes(*port);
    Ok(Some((ProxyEndpoint { host, port }, 1 + len + 2)))
}

/// Clients give addresses as names, too.
fn host(name: &[u8]) -> Result<EndpointHost, SocksMistake> {
    let is_text = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
    let text = std::str::from_utf8(name).ok().filter(|_| is_text);
    let text = text.ok_or(SocksMistake::Name)?;
    Ok(match text.parse() {
        Ok(ip) => EndpointHost::Address(ip),
        Err(_) => EndpointHost::Name(text.to_owned()),
    })
}

#[cfg(test)]
#[path = "socks5_tests.rs"]
mod tests;
