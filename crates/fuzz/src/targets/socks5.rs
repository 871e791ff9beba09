//! What clients of SOCKS5 send: a message ends where its own lengths say, whatever follows it and however it
//! comes.

use std::net::SocketAddr;

use adit_proxy::config::EndpointHost;
use adit_proxy::serve::socks5::{self, SocksCode, SocksRead};

pub(crate) fn run(input: &[u8]) {
    // No message is longer.
    let bytes = &input[..input.len().min(600)];
    let greeting = |bytes: &[u8]| {
        of(socks5::greeting(bytes), |it| {
            vec![it.without_login.into(), it.with_login.into()]
        })
    };
    let login = |bytes: &[u8]| {
        of(socks5::login(bytes), |it| {
            [it.user, &[0], it.password].concat()
        })
    };
    let request = |bytes: &[u8]| of(socks5::request(bytes), |it| format!("{it:?}").into_bytes());
    let datagram = |bytes: &[u8]| of(socks5::datagram(bytes), |it| format!("{it:?}").into_bytes());
    check(bytes, greeting);
    check(bytes, login);
    check(bytes, request);
    check(bytes, datagram);
    if let Ok(Some(((_, target), len))) = socks5::request(bytes) {
        assert_eq!(len, naive_len(bytes));
        // What is an address as bytes is said again with the same ones.
        if let EndpointHost::Address(ip) = target.host
            && bytes[3] != 3
        {
            let again = socks5::reply(SocksCode::Failed, SocketAddr::new(ip, target.port));
            assert_eq!(again[3..], bytes[3..len]);
        }
    }
}

type SocksSaid = Result<Option<(Vec<u8>, usize)>, String>;

fn of<T>(read: SocksRead<T>, say: impl Fn(T) -> Vec<u8>) -> SocksSaid {
    match read {
        Ok(read) => Ok(read.map(|(it, len)| (say(it), len))),
        Err(mistake) => Err(format!("{mistake:?}")),
    }
}

/// The length that a request says it has.
fn naive_len(bytes: &[u8]) -> usize {
    4 + 2
        + match bytes[3] {
            1 => 4,
            4 => 16,
            _ => 1 + usize::from(bytes[4]),
        }
}

fn check(bytes: &[u8], read: impl Fn(&[u8]) -> SocksSaid) {
    let whole = read(bytes);
    if let Ok(Some((_, len))) = &whole {
        assert!(*len <= bytes.len());
        assert_eq!(read(&bytes[..*len]), whole);
    }
    let mut known = false;
    for len in 0..=bytes.len() {
        let part = read(&bytes[..len]);
        known |= part != Ok(None);
        // Once it is known it stays so.
        assert!(!known || part == whole, "{len}");
    }
}
