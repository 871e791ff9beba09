//! `adit why`: why a peer does not connect, or why nothing goes through.
//!
//! 1. Looks at interface, routes, clock and allowed IPs (`evidence.rs`).
//! 2. Has the process begin a handshake, and listens to what comes of it (`attempt.rs`).
//! 3. Asks the other end something: inside the tunnel and behind the peer (`beyond.rs`) if there is a
//!    session, outside if not.
//! 4. Concludes (`diagnose.rs`), and prints (`report.rs`).

mod agent;
mod attempt;
mod beyond;
pub(crate) mod blocks;
pub(crate) mod causes;
mod chains;
mod clock;
mod diagnose;
pub(crate) mod evidence;
mod firewall;
mod forwarding;
mod other_end;
mod reach;
mod report;
mod reverse_path;
mod rules;

use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use adit_ctl::config::{self, Config};
use adit_ctl::keys;
use adit_ctl::status::{EventJson, InterfaceJson, PeerJson};
use adit_ctl::text::{printable_json, printable_lines};
use adit_ctl::uapi::ClientError;
use adit_netlink::Netlink;

use crate::cli::{self, WhyArgs};
use crate::failure::{Context, Result};
use crate::show;
use crate::view::Filter;

use crate::why::attempt::is_fresh;
use attempt::Attempt;
use causes::{Cause, Certainty, Finding};
use evidence::{Evidence, HostState};
pub(crate) use report::FIELDS;
use report::WhyReport;

/// Peers that are looked at when none is named.
const MAX_PEERS: usize = 8;
/// How long to listen on after all was asked: a key on two hosts moves more often.
const LISTEN: Duration = Duration::from_secs(1);

/// The exit status of wrong usage, and of a look that was not possible.
pub(crate) const NOT_LOOKED: u8 = 2;

/// Exits with 0 if all works, and with 1 if something is wrong.
pub(crate) fn why(args: &WhyArgs) -> Result<ExitCode> {
    let report = match examine(args) {
        Ok(report) => report,
        Err(failure) => {
            failure.report();
            return Ok(ExitCode::from(NOT_LOOKED));
        }
    };
    let text = match args.json {
        true => {
            let json = serde_json::to_string_pretty(&report);
            let json = json.context(|| "cannot write JSON".into())? + "\n";
            printable_json(&json).into_owned()
        }
        false => printable_lines(&report.render()).into_owned(),
    };
    cli::print(text.as_bytes())?;
    Ok(match report.works {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn examine(args: &WhyArgs) -> Result<WhyReport> {
    let name = &args.interface;
    let netlink = Netlink::open().context(|| "cannot open a netlink socket".into())?;
    let link = netlink.link(name).ok();
    let status = match (show::interface_status(name), &link) {
        (Ok(status), None) if is_proxy(&status) => return of_proxy(args, &netlink, &status),
        (Ok(status), Some(_)) => status,
        (Err(ClientError::Io(error)), _) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(show::explain(name, error.into()));
        }
        (status, link) => {
            return Ok(WhyReport::of_interface(
                name,
                absent(name, status, link.is_some(), has_file(name)),
            ));
        }
    };
    let Some(link) = link else {
        return Ok(WhyReport::of_interface(
            name,
            absent(name, Ok(status), false, has_file(name)),
        ));
    };
    let peers = match choose(&status, args) {
        Ok(peers) => peers,
        Err(finding) => return Ok(WhyReport::of_interface(name, finding)),
    };
    let host = HostState::look(netlink, link, &status);
    let seen: Vec<Evidence> = peers
        .into_iter()
        .map(|peer| host.evidence(&status, peer, args.inside))
        .collect();
    let seen = attempt(args, &status, seen)?;
    Ok(WhyReport::new(&status, &seen))
}

fn is_proxy(status: &InterfaceJson) -> bool {
    let engine = status.engine.as_ref();
    engine.is_some_and(|engine| engine.stack.is_some())
}

/// A proxy has no device, and no route of this host leads into its tunnel.
fn of_proxy(args: &WhyArgs, netlink: &Netlink, status: &InterfaceJson) -> Result<WhyReport> {
    let peers = match choose(status, args) {
        Ok(peers) => peers,
        Err(finding) => return Ok(WhyReport::of_interface(&status.name, finding)),
    };
    let seen = peers.into_iter().map(|peer| {
        let mut seen = Evidence::of_proxy(status, peer);
        let path = (seen.endpoint).map(|to| netlink.route_get(to.ip(), None, status.fwmark, None));
        let links = netlink.links().unwrap_or_default();
        if let Some(Ok(path)) = &path {
            let device = links.into_iter().find(|link| link.index == path.oif);
            seen.device = device.map(|link| link.name);
        }
        seen.path = path.map(|path| path.map_err(|error| error.to_string()));
        seen
    });
    let seen = attempt(args, status, seen.collect())?;
    Ok(WhyReport::new(status, &seen))
}

/// What is wrong with a peer of a proxy that does not answer, the most likely first: by the events of the last
/// time, and without a look at the host.
pub(crate) fn of_silent_peer(
    status: &InterfaceJson,
    peer: &PeerJson,
    events: &[EventJson],
    waited: Duration,
) -> Vec<Finding> {
    let mut seen = Evidence::of_proxy(status, peer);
    let endpoint = seen.endpoint.map(|to| to.ip());
    let concerned = |event: &&EventJson| diagnose::concerns(event, &peer.public_key, endpoint);
    seen.events = events.iter().filter(concerned).cloned().collect();
    (seen.waited, seen.since) = (waited, show::now().saturating_sub(waited.as_secs()));
    diagnose::diagnose(&seen)
}

/// Whether an interface has a file. One in a folder that cannot be looked into may be there.
fn has_file(name: &str) -> bool {
    config::locate(name).is_ok_and(|(path, _)| path.try_exists().unwrap_or(true))
}

/// The interface is not there, or nobody answers for it.
fn absent(
    name: &str,
    status: std::result::Result<InterfaceJson, ClientError>,
    is_there: bool,
    has_file: bool,
) -> Finding {
    let up = format!("adit up {name}");
    match (status, is_there) {
        (Ok(_), _) => {
            let text = format!("a process serves {name}, in another network namespace");
            Finding::new(Cause::NoInterface, Certainty::Certain, text)
                .run(format!("ip netns exec NAMESPACE adit why {name}"))
        }
        (Err(_), false) if has_file => {
            let text = format!("there is no interface {name}");
            Finding::new(Cause::NoInterface, Certainty::Certain, text).run(up)
        }
        (Err(_), false) => {
            let text = format!(
                "there is no interface {name}, and no file {}/{name}.conf that would make one",
                config::DIR
            );
            Finding::new(Cause::NoInterface, Certainty::Certain, text)
                .run("adit show interfaces".to_owned())
                .run(format!("adit init {name}"))
        }
        (Err(error), true) => {
            let text = format!("{name} is there, and {}", show::explain(name, error));
            Finding::new(Cause::NoProcess, Certainty::Certain, text)
                .run(format!("systemctl status adit@{name}"))
                .run(up)
        }
    }
}

/// The peers to look at: those that are named; or those that do not work; or some of all.
fn choose<'a>(
    status: &'a InterfaceJson,
    args: &WhyArgs,
) -> std::result::Result<Vec<&'a PeerJson>, Finding> {
    let name = &status.name;
    let mut peers: Vec<&PeerJson> = status.peers.iter().collect();
    if let Some(words) = &args.peer {
        if status.public_key.as_ref() == Some(words) {
            let text = format!(
                "{words} is the public key of {name} itself: a peer needs a key of its own"
            );
            return Err(Finding::new(Cause::OwnKey, Certainty::Certain, text)
                .run(format!("at the peer: wg show {name} public-key")));
        }
        let filter = Filter::new(words);
        peers.retain(|peer| filter.passes(peer));
    }
    if args.peer.is_none() && peers.is_empty() && names_itself(status) {
        let text = format!(
            "the file of {name} has its own public key as that of a peer, which is ignored, and {name} has no other peer: a \
             peer needs a key of its own"
        );
        return Err(Finding::new(Cause::OwnKey, Certainty::Certain, text)
            .run("at the peer: wg show INTERFACE public-key".to_owned())
            .run(format!("adit edit {name}")));
    }
    if peers.is_empty() {
        if let Some(finding) = agent::missing(name, args.peer.as_deref()) {
            return Err(finding);
        }
        let text = match &args.peer {
            Some(words) => format!("{name} has no peer {words}"),
            None => format!("{name} has no peers"),
        };
        return Err(Finding::new(Cause::NoPeer, Certainty::Certain, text)
            .run(format!("wg show {name} peers"))
            .run(format!(
                "adit add {name} PUBLIC-KEY --endpoint ADDRESS:PORT"
            )));
    }
    if let [peer] = peers[..]
        && let Some(finding) = agent::elsewhere(name, peer)
    {
        return Err(finding);
    }
    if peers.len() > MAX_PEERS {
        let (troubled, others): (Vec<&PeerJson>, Vec<&PeerJson>) =
            peers.into_iter().partition(|peer| !is_fresh(peer));
        peers = troubled.into_iter().chain(others).take(MAX_PEERS).collect();
    }
    Ok(peers)
}

/// Whether the interface's file has a peer with the interface's own key.
fn names_itself(status: &InterfaceJson) -> bool {
    let file = config::locate(&status.name).ok();
    let config = file.and_then(|(path, _)| Config::salvage(&path).ok());
    config.is_some_and(|(config, _)| {
        let mut keys = config.peers.iter().map(|peer| peer.public_key);
        keys.any(|key| status.public_key.as_deref() == Some(&keys::to_base64(&key.0)))
    })
}

/// Tries a handshake with each peer, and asks the other ends.
fn attempt(
    args: &WhyArgs,
    status: &InterfaceJson,
    mut seen: Vec<Evidence>,
) -> Result<Vec<Evidence>> {
    let wait = Duration::from_secs(args.wait);
    let say = |text: String| {
        if !args.json {
            crate::failure::say!("adit: {text}");
        }
    };
    let mut attempt = match status.engine.is_some() {
        true => Attempt::of_adit(&status.name, &seen, wait, say)?,
        false => Attempt::of_another(&status.name, &seen, wait, say),
    };
    let read = || show::interface_status(&status.name).unwrap_or_else(|_| status.clone());
    let after = read();
    for one in &mut seen {
        attempt.tell(one, status, &after);
    }
    std::thread::scope(|scope| {
        for one in &mut seen {
            scope.spawn(|| match one.session {
                // Only clients of a proxy get there.
                true if one.index.is_none() => {}
                true => one.look_inside(),
                false => one.look_outside(),
            });
        }
    });
    // What the answers from inside led to, and whether the peer stays where it is.
    let end = Instant::now() + LISTEN;
    while attempt.listens() && Instant::now() < end {
        attempt.go_on(end.saturating_duration_since(Instant::now()));
    }
    let last = read();
    for one in &mut seen {
        attempt.tell(one, status, &last);
        one.here.look_again(&status.name);
        one.reverse_path.look_again();
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_brought_up_only_by_a_file() {
        let runs = |is_there, has_file| {
            let refused = ClientError::Io(ErrorKind::NotFound.into());
            let finding = absent("wg7", Err(refused), is_there, has_file);
            let json = serde_json::to_string(&finding).expect("JSON");
            ["adit up wg7", "adit init wg7"].map(|run| json.contains(run))
        };
        assert_eq!(runs(false, true), [true, false]);
        assert_eq!(runs(false, false), [false, true]);
        // Its process is gone, so that it was up.
        assert_eq!(runs(true, false), [true, false]);
    }

    #[test]
    fn a_file_that_cannot_be_looked_for_may_be_there() {
        assert!(!has_file("adit-none"));
        // The name of a file may not be so long, and looking for it fails.
        let long = format!("{}/wg7.conf", "x".repeat(300));
        assert!(has_file(&long));
    }
}
