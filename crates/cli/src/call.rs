//! `adit call`: this host takes the place of another gateway, and has that one's peers come.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::SystemTime;

use adit_ctl::keys;
use adit_ctl::uapi::{CalledPeers, ClientError, MAX_CALLED, UapiClient};
use adit_proto::config::{DeviceStatus, PublicKey};
use adit_proto::{LastSeen, Tai64N};
use serde::Serialize;

use crate::call::present::Whom;
use crate::cli::{self, CallArgs, OutputArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::quick;

mod present;

/// Peers, and what is known of each, in the order in which they are called.
type Calls = Vec<(PublicKey, LastSeen)>;

/// A line of a list: a peer, what is known of it, and the gateway that has it, if that is said.
type ListedPeer = ((PublicKey, LastSeen), Option<String>);

pub(crate) fn call(args: &CallArgs) -> Result<()> {
    let name = &args.interface;
    if args.list {
        return cli::print(list(&status(name)?).as_bytes());
    }
    if args.when_present
        && let Some(address) = args.from
    {
        return call_each_time(args, address);
    }
    let peers = peers(args)?;
    if let Some(from) = args.from {
        check_address(from)?;
    }
    call_all(args, &peers)
}

fn call_each_time(args: &CallArgs, address: IpAddr) -> Result<()> {
    if args.endpoints.as_deref().is_some_and(is_stdin) {
        bail!(
            Mistake,
            "--when-present reads the list each time the address comes: give --endpoints a file"
        );
    }
    let name = &args.interface;
    let ready = match args.said.quiet {
        true => String::new(),
        false => format!("the peers of {name} are called each time {address} comes to this host"),
    };
    present::each_time(address, &ready, |whom| {
        let mut peers = peers(args)?;
        if whom == Whom::Strangers {
            let status = status(name)?;
            let came = (status.peers.iter()).filter(|peer| peer.last_handshake.is_some());
            let came: HashSet<_> = came.map(|peer| peer.public_key).collect();
            peers.retain(|(key, _)| !came.contains(key));
        }
        call_all(args, &peers)
    })
}

fn peers(args: &CallArgs) -> Result<Calls> {
    match &args.endpoints {
        Some(path) => {
            let of = args.of.as_deref();
            let mut listed = read(path)?;
            listed.retain(|(_, gateway)| of.is_none_or(|of| gateway.as_deref() == Some(of)));
            if let (Some(of), true) = (of, listed.is_empty()) {
                bail!(
                    Mistake,
                    "{} has no peer of a gateway {of}: the last word of each line is a gateway",
                    path.display()
                );
            }
            Ok(listed.into_iter().map(|(peer, _)| peer).collect())
        }
        None => Ok(known(&status(&args.interface)?)),
    }
}

fn call_all(args: &CallArgs, peers: &Calls) -> Result<()> {
    let name = &args.interface;
    let mut all = CalledPeers::default();
    let mut client = connect(name)?;
    for some in peers.chunks(MAX_CALLED) {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let believed = |(key, last): &(PublicKey, LastSeen)| (*key, last.believed(now));
        let some: Vec<_> = some.iter().map(believed).collect();
        let told = client.call_peers(&some, args.from);
        let told = told.map_err(|error| not_called(name, &error))?;
        all.called += told.called;
        all.here += told.here;
        all.nowhere += told.nowhere;
        all.unknown += told.unknown;
    }
    match args.said {
        OutputArgs { quiet: true, .. } => Ok(()),
        OutputArgs { json: true, .. } => quick::print_json(&CallDone::of(name, &all)),
        _ => {
            say!("adit: {}", told(name, &all));
            Ok(())
        }
    }
}

/// What was done, as JSON: how many peers.
#[derive(Serialize)]
struct CallDone<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    #[serde(flatten)]
    peers: CalledPeers,
}

impl<'a> CallDone<'a> {
    fn of(interface: &'a str, all: &CalledPeers) -> Self {
        Self {
            schema: 1,
            interface,
            done: "called",
            peers: *all,
        }
    }
}

fn told(name: &str, all: &CalledPeers) -> String {
    let mut text = match all.called {
        0 => format!("{name} calls no peer"),
        1 => format!("{name} calls one peer"),
        called => format!("{name} calls {called} peers"),
    };
    for (count, what) in [
        (all.here, "here already"),
        (all.nowhere, "without an endpoint"),
        (all.unknown, "no peers of it"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} are {what}");
        }
    }
    text + &format!(": `adit peers {name} --sort handshake` shows who has come")
}

fn connect(name: &str) -> Result<UapiClient> {
    UapiClient::connect(name).map_err(|error| not_called(name, &ClientError::Io(error)))
}

fn status(name: &str) -> Result<DeviceStatus> {
    let status = connect(name)?.get();
    status.map_err(|error| not_called(name, &error))
}

fn not_called(name: &str, error: &ClientError) -> Failure {
    let is_closed =
        matches!(error, ClientError::Io(error) if error.kind() == ErrorKind::UnexpectedEof);
    Failure::State(match error {
        error if error.is_unserved() => {
            format!("no process serves {name}: `adit up {name}` starts one")
        }
        ClientError::Refused(_) => no_calls(name),
        _ if is_closed => no_calls(name),
        error => format!("cannot ask the process of {name}: {error}"),
    })
}

fn no_calls(name: &str) -> String {
    format!("the process of {name} cannot call peers: it is no Adit, or an older one")
}

/// Datagrams of an address that is not there would leave from another one.
fn check_address(from: IpAddr) -> Result<()> {
    let bound = UdpSocket::bind(SocketAddr::new(from, 0));
    bound.map(drop).map_err(|error| {
        Failure::State(format!(
            "{from} is no address of this host ({error}): call when it has moved here, as keepalived's notify_master does"
        ))
    })
}

/// The peers of an interface whose place is known, the ones that were active last first.
fn known(status: &DeviceStatus) -> Calls {
    let mut peers: Vec<_> = status.peers.iter().collect();
    peers.sort_by_key(|peer| std::cmp::Reverse(peer.last_handshake));
    let at = peers.iter();
    at.filter_map(|peer| Some((peer.public_key, LastSeen::at(peer.endpoint?))))
        .collect()
}

/// Lines for another host.
fn list(status: &DeviceStatus) -> String {
    let mut text = String::new();
    for (key, last) in known(status) {
        let at = last.at.map_or_else(String::new, |at| at.to_string());
        let _ = writeln!(text, "{key}\t{at}");
    }
    text
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn read(path: &Path) -> Result<Vec<ListedPeer>> {
    let is_stdin = is_stdin(path);
    let shown = match is_stdin {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    let mut text = String::new();
    let read = match is_stdin {
        true => std::io::stdin().read_to_string(&mut text),
        false => std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text)),
    };
    read.context(|| format!("cannot read {shown}"))?;
    parse(&text).map_err(|(line, why)| Failure::Mistake(format!("{shown}:{line}: {why}")))
}

/// Lines of a public key and an endpoint. One without, as wg(8) writes `(none)`, may be known here. Behind it may
/// stand what an agent knows: timestamps, the time of the session, and a gateway.
fn parse(text: &str) -> std::result::Result<Vec<ListedPeer>, (usize, &'static str)> {
    let mut peers = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut words = line.split_whitespace();
        let Some(key) = words.next().filter(|word| !word.starts_with('#')) else {
            continue;
        };
        let key = keys::public_from_base64(key);
        let key = key.ok_or((number, "expected a public key, and where its peer is"))?;
        let at = match words.next() {
            None | Some("(none)") => None,
            Some(at) => {
                let at = at.parse().ok();
                Some(at.ok_or((number, "expected ADDRESS:PORT behind the key"))?)
            }
        };
        let timestamp = |word: Option<&str>| {
            match word {
            None | Some("-") => Ok(Tai64N::default()),
            Some(word) => word.parse().map_err(|_| {
                let why = "expected nothing behind the endpoint, or @ and 24 digits, as `adit agent` writes them";
                (number, why)
            }),
        }
        };
        let [sent, received] = [timestamp(words.next())?, timestamp(words.next())?];
        // When the session began, and where.
        let gateway = words.nth(1).map(str::to_owned);
        peers.push(((key, LastSeen { at, sent, received }), gateway));
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA=";

    #[test]
    fn a_list_is_what_wg_shows_and_what_this_command_prints() {
        let text = format!(
            "# gateway 1\n\n{KEY}\t192.0.2.1:7\n{KEY}\t(none)\n{KEY}  [2001:db8::1]:9\r\n{KEY}\n"
        );
        let peers = parse(&text).expect("a list");
        let at: Vec<_> = peers
            .iter()
            .map(|((_, last), _)| last.at.map(|at| at.to_string()))
            .collect();
        let at: Vec<_> = at.iter().map(Option::as_deref).collect();
        assert_eq!(
            at,
            [Some("192.0.2.1:7"), None, Some("[2001:db8::1]:9"), None]
        );
        for wrong in [
            "x",
            "192.0.2.1:7",
            "KEY example.com:7",
            "KEY 192.0.2.1",
            "KEY 192.0.2.1:7 1",
        ] {
            let text = format!("\n{}", wrong.replace("KEY", KEY));
            assert_eq!(parse(&text).expect_err("no list").0, 2, "{wrong}");
        }
    }

    #[test]
    fn a_list_of_an_agent_has_timestamps_and_the_gateway() {
        let [sent, received] = [Tai64N([7; 12]), Tai64N([9; 12])];
        let text = format!(
            "{KEY}\t192.0.2.1:7\t{sent}\t{received}\t7\ta\n{KEY}\t192.0.2.1:7\t-\t{received}\n"
        );
        let peers = parse(&text).expect("a list");
        let gateways: Vec<_> = peers.iter().map(|(_, it)| it.as_deref()).collect();
        assert_eq!(gateways, [Some("a"), None]);
        let timestamps = peers.iter().map(|((_, it), _)| (it.sent, it.received));
        let timestamps: Vec<_> = timestamps.collect();
        assert_eq!(
            timestamps,
            [(sent, received), (Tai64N::default(), received)]
        );
    }

    #[test]
    fn it_says_how_many_peers_are_called_and_why_others_are_not() {
        let all = CalledPeers {
            called: 1,
            here: 2,
            nowhere: 0,
            unknown: 3,
        };
        assert_eq!(
            told("wg0", &all),
            "wg0 calls one peer, 2 are here already, 3 are no peers of it: `adit peers wg0 --sort handshake` shows who \
             has come"
        );
        let json = serde_json::to_string(&CallDone::of("wg0", &all)).expect("JSON");
        let expected = r#"{"schema":1,"interface":"wg0","done":"called","called":1,"here":2,"nowhere":0,"unknown":3}"#;
        assert_eq!(json, expected);
    }
}
