//! `adit show`: every userspace WireGuard interface, with further fields for Adit's own.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use adit_ctl::status::{self, Colour, Field, InterfaceJson, NoAnswer, StatusReport};
use adit_ctl::text::printable_json;
use adit_ctl::uapi::{self, ClientError, UapiClient};

use crate::cli::{self, PeerLayout, ShowArgs};
use crate::failure::{Context, Failure, Result, say};
use crate::view::{self, Filter, Row, Sample};

/// With more peers than this, each has one line.
const MANY: usize = 16;

/// What the interface of this name answered.
type InterfaceAnswer = (String, std::result::Result<InterfaceJson, ClientError>);

pub(crate) fn show(args: &ShowArgs) -> Result<()> {
    if args.interface.as_deref() == Some("interfaces") && args.field.is_none() && !args.json {
        return print_names();
    }
    let Some(pause) = args.watch else {
        let report = ask_for(args);
        say_errors(&report);
        print(args, &report, None)?;
        return match report.errors.is_empty() {
            true => Ok(()),
            false => Err(Failure::Reported),
        };
    };
    let pause = Duration::from_secs_f64(pause);
    let mut before = None;
    loop {
        let start = Instant::now();
        let report = ask_for(args);
        // The screen is cleared, and the cursor goes to its first line.
        cli::print(b"\x1b[2J\x1b[H")?;
        say_errors(&report);
        print(args, &report, before.as_ref())?;
        let rows = view::rows(&report.interfaces, None, start);
        before = Some(Sample::of(&rows, start));
        std::thread::sleep(pause.saturating_sub(start.elapsed()));
    }
}

fn ask_for(args: &ShowArgs) -> StatusReport {
    let is_secret = args.field.is_some_and(Field::is_secret);
    let answers = match one(args) {
        Some(name) => vec![ask(name.to_owned(), is_secret)],
        None => all(args.field.is_some(), is_secret),
    };
    let mut report = report(answers);
    if let Some(words) = &args.peer {
        let filter = Filter::new(words);
        for interface in &mut report.interfaces {
            interface.peers.retain(|peer| filter.passes(peer));
        }
    }
    report
}

/// The one interface that is asked for, if it is not all of them.
fn one(args: &ShowArgs) -> Option<&str> {
    args.interface.as_deref().filter(|name| *name != "all")
}

fn say_errors(report: &StatusReport) {
    for unanswered in &report.errors {
        say!("adit: {}", unanswered.error);
    }
}

fn print(args: &ShowArgs, report: &StatusReport, before: Option<&Sample>) -> Result<()> {
    if let Some(field) = args.field {
        let prefixed = one(args).is_none();
        let mut interfaces = report.interfaces.iter();
        return interfaces.try_for_each(|interface| {
            cli::print(status::print_field(interface, field, prefixed).as_bytes())
        });
    }
    if args.json {
        let json = serde_json::to_string_pretty(&report);
        let json = json.context(|| "cannot write JSON".into())? + "\n";
        return cli::print(printable_json(&json).as_bytes());
    }
    let colour = Colour::from_env();
    let texts = report.interfaces.iter().map(|interface| {
        let is_long = match args.layout {
            PeerLayout::Auto => interface.peers.len() > MANY,
            PeerLayout::Lines => true,
            PeerLayout::Blocks => false,
        };
        match is_long {
            true => lines(args, interface, before, colour),
            false => status::render(interface, now(), colour),
        }
    });
    let texts: Vec<String> = texts.collect();
    cli::print(texts.join("\n").as_bytes())
}

/// The time of day in seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The interface as always, and a line for each peer.
fn lines(
    args: &ShowArgs,
    interface: &InterfaceJson,
    before: Option<&Sample>,
    colour: Colour,
) -> String {
    let title = status::render_interface(interface, colour);
    let interfaces = std::slice::from_ref(interface);
    let rows = view::rows(interfaces, before, Instant::now());
    let widest = |of: fn(&Row) -> usize, least: usize, most: usize| {
        rows.iter().map(of).max().unwrap_or(0).clamp(least, most)
    };
    let name = widest(|row| row.name().chars().count(), 4, 24);
    let endpoint = widest(|row| row.endpoint.chars().count(), 8, 47);
    let (rx, tx) = match before {
        Some(_) => ("RX bit/s", "TX bit/s"),
        None => ("RX bytes", "TX bytes"),
    };
    let heading = format!(
        "{}  {}  {:<7}  {}  {:>9}  {rx:>8}  {tx:>8}  {:>6}  LAST FAILURE",
        view::cell("PEER", name, false),
        "KEY      ",
        "STATE",
        view::cell("ENDPOINT", endpoint, false),
        "HANDSHAKE",
        "DROPS",
    );
    let now = now();
    let mut text = title + "\n" + &heading + "\n";
    for at in view::order(&rows, &Filter::default(), args.sort) {
        let row = &rows[at as usize];
        let amount = |total, which: usize| match row.rates {
            Some(rates) => view::bit_rate(rates[which].into()),
            None if before.is_some() => "-".to_owned(),
            None => view::bytes(total),
        };
        let key: String = row.key.chars().take(8).chain(['…']).collect();
        let shown = row.given_name.as_deref().unwrap_or("-");
        let line = format!(
            "{}  {key}  {:<7}  {}  {:>9}  {:>8}  {:>8}  {:>6}  {}",
            view::cell(shown, name, false),
            row.state,
            view::cell(&row.endpoint, endpoint, false),
            view::age(row.handshake, now),
            amount(row.rx, 0),
            amount(row.tx, 1),
            view::count(view::precise(row.drops)),
            problem(row),
        );
        text += line.trim_end();
        text.push('\n');
    }
    text + &status::render_engine(interface, colour)
}

/// What is wrong with a peer, in a few words.
pub(crate) fn problem(row: &Row) -> String {
    let unanswered = match row.unanswered {
        0 => None,
        count => Some(format!("{count} unanswered")),
    };
    let parts: Vec<String> = row
        .failure
        .as_deref()
        .map(str::to_owned)
        .into_iter()
        .chain(unanswered)
        .collect();
    parts.join(", ")
}

fn report(answers: Vec<InterfaceAnswer>) -> StatusReport {
    let mut report = StatusReport::new(Vec::new());
    for (interface, answer) in answers {
        match answer {
            Ok(status) => report.interfaces.push(status),
            Err(error) => report.errors.push(no_answer(interface, error)),
        }
    }
    report
}

pub(crate) fn no_answer(interface: String, error: ClientError) -> NoAnswer {
    NoAnswer {
        error: explain(&interface, error).to_string(),
        interface,
    }
}

/// As `wg show interfaces`: one line.
fn print_names() -> Result<()> {
    let mut names = uapi::interfaces(Path::new(uapi::DIR));
    names.retain(|name| {
        !UapiClient::connect(name).is_err_and(|error| ClientError::from(error).is_unserved())
    });
    match names.is_empty() {
        true => Ok(()),
        false => cli::print((names.join(" ") + "\n").as_bytes()),
    }
}

/// Interfaces that end meanwhile, and sockets without a process, are no failure.
/// With `as_wg` they have the order of `wg`, which may list none to this user; else that of names.
fn all(as_wg: bool, is_secret: bool) -> Vec<InterfaceAnswer> {
    let mut listed = uapi::interfaces(Path::new(uapi::DIR));
    if !as_wg || listed.is_empty() {
        listed = names().into_iter().collect();
    }
    let answers = listed.into_iter().map(|name| ask(name, is_secret));
    answers
        .filter(|(_, answer)| !answer.as_ref().is_err_and(ClientError::is_unserved))
        .collect()
}

/// The interfaces of all implementations, of Adit where only its own socket can be seen, and proxies.
pub(crate) fn names() -> BTreeSet<String> {
    let dirs = [uapi::DIR, status::DIR].map(PathBuf::from);
    let dirs = dirs.into_iter().chain(status::own_dir());
    dirs.flat_map(|dir| uapi::interfaces(&dir)).collect()
}

/// The interface of this name.
pub(crate) fn interface(name: &str) -> Result<InterfaceJson> {
    let (name, answer) = ask(name.to_owned(), false);
    answer.map_err(|error| explain(&name, error))
}

fn ask(name: String, is_secret: bool) -> InterfaceAnswer {
    let answer = match is_secret {
        false => interface_status(&name),
        true => UapiClient::connect(&name)
            .map_err(ClientError::from)
            .and_then(|mut client| Ok(InterfaceJson::new(&name, &client.get()?, true))),
    };
    (name, answer)
}

/// From the status socket if it is Adit's, else what the socket that every implementation has says.
pub(crate) fn interface_status(name: &str) -> std::result::Result<InterfaceJson, ClientError> {
    match status::fetch(name).map_err(ClientError::from) {
        // It would not answer there, either.
        Err(error) if !error.is_silence() => {
            let status = UapiClient::connect(name)?.get()?;
            Ok(InterfaceJson::new(name, &status, false))
        }
        answer => answer,
    }
}

pub(crate) fn explain(name: &str, error: ClientError) -> Failure {
    Failure::State(match error {
        ClientError::Io(e) if e.kind() == ErrorKind::PermissionDenied => {
            format!(
                "cannot ask {name}: {e}; run as root, or in the group that its process was given with --status-group"
            )
        }
        ClientError::Io(e) if e.kind() == ErrorKind::NotFound => format!(
            "no userspace WireGuard runs an interface {name}: {}/{name}.sock does not exist (for the kernel's own \
             interfaces there is `wg show`)",
            uapi::DIR
        ),
        ClientError::Io(e) if e.kind() == ErrorKind::ConnectionRefused => {
            format!(
                "no process answers at {}/{name}.sock: it has ended",
                uapi::DIR
            )
        }
        error => format!("cannot ask {name}: {error}"),
    })
}
