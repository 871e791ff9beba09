//! The report of `adit why`.

use std::fmt::Write;

use adit_ctl::status::InterfaceJson;
use serde::Serialize;

use super::beyond::Beyond;
use super::causes::{Certainty, Finding};
use super::diagnose::diagnose;
use super::evidence::{Evidence, Inside};
use super::reach::PortReply;
use crate::show;
use crate::view;

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// Every field of the JSON, for the manual page.
pub(crate) const FIELDS: &[(&str, &str)] = &[
    (
        "schema",
        "Version of the document. Fields and causes may be added under the same version.",
    ),
    ("interface", "The interface."),
    (
        "works",
        "Whether nothing was found that keeps it from working.",
    ),
    (
        "note",
        "What could not be looked at, and why. Absent if everything could.",
    ),
    (
        "findings",
        "What is wrong with the interface as a whole, as for a peer.",
    ),
    ("peers[].public_key", "The peer's public key, in base64."),
    (
        "peers[].name",
        "What people call it. Absent without a name.",
    ),
    (
        "peers[].endpoint",
        "Where it was reached before anything was tried; null if not known.",
    ),
    (
        "peers[].handshake",
        "`succeeded`, `failed`, or `not_tried`: then the state is that of the last handshake.",
    ),
    (
        "peers[].works",
        "Whether nothing was found that keeps it from working.",
    ),
    (
        "peers[].seen",
        "What was looked at, for people: a line each.",
    ),
    (
        "peers[].findings[].cause",
        "What is wrong: see CAUSES. The most likely cause comes first.",
    ),
    (
        "peers[].findings[].certainty",
        "`certain`, `likely` or `possible`.",
    ),
    (
        "peers[].findings[].problem",
        "False for a remark: it does not keep the tunnel from working.",
    ),
    (
        "peers[].findings[].text",
        "What was seen and what it means, for people.",
    ),
    (
        "peers[].findings[].commands",
        "What to type next. Words in capitals are to be filled in; `at the peer:` begins what belongs there.",
    ),
];

#[derive(Serialize)]
pub(super) struct WhyReport {
    schema: u32,
    interface: String,
    pub(super) works: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    findings: Vec<Finding>,
    peers: Vec<PeerReport>,
}

#[derive(Serialize)]
struct PeerReport {
    public_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    endpoint: Option<String>,
    handshake: &'static str,
    works: bool,
    seen: Vec<String>,
    findings: Vec<Finding>,
}

impl WhyReport {
    /// No peer could be looked at.
    pub(super) fn of_interface(name: &str, finding: Finding) -> Self {
        Self {
            schema: SCHEMA,
            interface: name.to_owned(),
            works: false,
            note: None,
            findings: vec![finding],
            peers: Vec::new(),
        }
    }

    pub(super) fn new(status: &InterfaceJson, seen: &[Evidence]) -> Self {
        let peers: Vec<PeerReport> = seen.iter().map(PeerReport::new).collect();
        let others = status.peers.len() - seen.len();
        let foreign = "the interface is not served by Adit: refused messages, ICMP errors and failed sends cannot be seen";
        let notes = [
            status.engine.is_none().then(|| foreign.to_owned()),
            seen.iter().find_map(|one| one.not_tried.clone()),
            (others > 0 && seen.len() > 1)
                .then(|| format!("{others} more peers: name one to look at it")),
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        Self {
            schema: SCHEMA,
            interface: status.name.clone(),
            works: peers.iter().all(|peer| peer.works),
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            findings: Vec::new(),
            peers,
        }
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for peer in &self.peers {
            let name = peer
                .name
                .as_deref()
                .map(|name| format!("{name}, "))
                .unwrap_or_default();
            let at = peer.endpoint.as_deref().unwrap_or("an unknown endpoint");
            _ = writeln!(
                text,
                "{}, peer {name}{} at {at}",
                self.interface, peer.public_key
            );
            for line in &peer.seen {
                _ = writeln!(text, "  {line}");
            }
            render(&mut text, &peer.findings, peer.works);
        }
        if self.peers.is_empty() {
            render(&mut text, &self.findings, self.works);
        }
        if let Some(note) = &self.note {
            _ = writeln!(text, "note: {note}");
        }
        text
    }
}

fn render(text: &mut String, findings: &[Finding], works: bool) {
    let (problems, remarks): (Vec<_>, Vec<_>) =
        findings.iter().partition(|finding| finding.problem);
    for (number, finding) in problems.iter().enumerate() {
        let heading = match (number, finding.certainty) {
            (0, Certainty::Certain) => "the cause",
            (0, _) => "most likely",
            (_, Certainty::Certain) => "also",
            _ => "or",
        };
        _ = writeln!(text, "\n{heading}: {}", finding.text);
        commands(text, finding);
    }
    if works {
        _ = writeln!(text, "\nit works");
    } else if problems.is_empty() {
        _ = writeln!(
            text,
            "\nno handshake is known of, and nothing was found that explains it"
        );
    }
    for finding in remarks {
        _ = writeln!(text, "\nremark: {}", finding.text);
        commands(text, finding);
    }
}

fn commands(text: &mut String, finding: &Finding) {
    for command in &finding.commands {
        _ = writeln!(text, "    {command}");
    }
}

impl PeerReport {
    fn new(seen: &Evidence) -> Self {
        let findings = diagnose(seen);
        Self {
            public_key: seen.peer.public_key.clone(),
            name: seen.peer.name.clone(),
            endpoint: seen.endpoint.map(|to| to.to_string()),
            handshake: match (&seen.not_tried, seen.session) {
                (Some(_), _) => "not_tried",
                (None, true) => "succeeded",
                (None, false) => "failed",
            },
            works: seen.session && !findings.iter().any(|finding| finding.problem),
            seen: lines(seen),
            findings,
        }
    }
}

/// What was looked at.
fn lines(seen: &Evidence) -> Vec<String> {
    let mut lines = vec![match seen.index {
        Some(_) => format!(
            "interface: {}, MTU {}, port {}",
            if seen.up { "up" } else { "down" },
            seen.mtu,
            seen.listen_port
        ),
        None => format!("proxy: port {}", seen.listen_port),
    }];
    match (&seen.path, &seen.device) {
        (Some(Ok(path)), device) => lines.push(format!(
            "way to the endpoint: by {}{}{}{}",
            device.as_deref().unwrap_or("an unknown device"),
            path.gateway
                .map_or_else(String::new, |router| format!(" via {router}")),
            path.src
                .map_or_else(String::new, |source| format!(" from {source}")),
            seen.path_mtu
                .map_or_else(String::new, |mtu| format!(", MTU {mtu}")),
        )),
        (Some(Err(_)), _) => lines.push("way to the endpoint: none".into()),
        (None, _) => {}
    }
    if let Some(other) = &seen.other_end {
        let port = other.listen_port;
        lines.push(format!(
            "the other end: {}, served on this host at port {port}",
            other.interface
        ));
    }
    let age = view::age(seen.peer.latest_handshake, show::now());
    lines.push(match &seen.not_tried {
        Some(_) => format!("handshake: not tried; the latest is {age} old"),
        None if seen.session => match seen.peer.handshake_microseconds {
            Some(time) => format!("handshake: succeeded, in {:.1} ms", time as f64 / 1000.0),
            None => "handshake: succeeded".into(),
        },
        None => "handshake: failed".into(),
    });
    let said = |reach: &PortReply| match reach {
        PortReply::Answers => "answers".to_owned(),
        PortReply::Silent => "silence".to_owned(),
        PortReply::Failed(error) => error.clone(),
    };
    if let Some(outside) = &seen.outside {
        lines.push(format!(
            "the host at the endpoint, asked by UDP: {}",
            said(outside)
        ));
    }
    if let Some(Inside {
        to, short, long, ..
    }) = &seen.inside
    {
        let long = match short {
            PortReply::Answers => format!("; to {} bytes: {}", seen.mtu, said(long)),
            _ => String::new(),
        };
        lines.push(format!("{to} inside, asked by UDP: {}{long}", said(short)));
    }
    if let Some(Beyond { to, peer, behind }) = seen.beyond {
        lines.push(match (peer, behind) {
            (None, _) => format!("on the way to {to}: the peer does not say that it forwards"),
            (Some(_), false) => {
                format!("on the way to {to}: the peer forwards, nobody behind it answers")
            }
            (Some(_), true) => {
                format!("on the way to {to}: the peer forwards, a router behind it answers")
            }
        });
    }
    lines
}
