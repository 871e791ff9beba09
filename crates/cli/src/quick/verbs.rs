//! `adit peer rename`, `disable`, `enable` and `remove`: one peer, in the file and in the running
//! interface at once.
//!
//! 1. lock the file, read it, and ask the interface: what fails so far has changed nothing;
//! 2. find the peer, and work out what the file is to be;
//! 3. replace the file, change the interface; if that refuses, the file is as before;
//! 4. say what was done, and the next step.

use adit_ctl::config::{self, Config, PeerSection};
use adit_ctl::status::InterfaceJson;
use adit_proto::config::{AllowedIpChange, PeerChange, PublicKey};
use serde::Serialize;
use zeroize::Zeroizing;

use super::file::{Lock, read};
use super::list::{SCHEMA, Shown, print_json};
use super::roster::{Entry, Roster, quoted};
use super::{Quick, require_rights};
use crate::agent::{self, RecordEdit};
use crate::cli::{self, ConfArgs, FileArgs, OutputArgs, PeerArgs, RenameArgs};
use crate::failure::{Failure, Result, bail};
use crate::show::now;

/// A file that is to be changed, and what runs.
pub(super) struct Opened {
    _lock: Option<Lock>,
    pub(super) quick: Quick,
    pub(super) text: Zeroizing<String>,
    pub(super) roster: Roster,
}

/// What a command did, as JSON.
#[derive(Serialize)]
struct Done<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    peer: Shown,
}

pub(crate) fn rename(args: &RenameArgs) -> Result<()> {
    let what = format!("is {} now", args.name);
    if agent::edit_record(
        &args.peer,
        &RecordEdit::Name(&args.name),
        ("renamed", &what),
    )? {
        return Ok(());
    }
    let mut open = Opened::of(&args.peer.of.conf)?;
    let (key, old) = open.in_file(&args.peer.of.peer, "is renamed")?;
    let name = &args.name;
    if config::clean_name(name).as_ref() != Some(name) {
        bail!(
            Mistake,
            "{name:?} cannot be a name: it is too long, or looks like a key; give another"
        );
    }
    let same = |it: &&Entry| it.key != key && it.name.as_ref() == Some(name);
    if let Some(other) = open.roster.peers.iter().find(same) {
        bail!(
            Mistake,
            "{} has a peer with the name {name}, {}: give this one another",
            open.quick.name,
            other.short_key()
        );
    }
    let Some(new) = config::rename(&open.text, key, name) else {
        bail!(
            Mistake,
            "no comment of {} can give this peer the name {name}: give another",
            open.quick.path.display()
        );
    };
    open.change(&new, &[])?;
    let next = format!(
        "`adit peer show {} {}` shows it",
        open.quick.called(),
        quoted(name)
    );
    open.say(
        args.peer.output,
        "renamed",
        key,
        &format!("{old} is {name} now: {next}"),
    )
}

/// A record is there or not: it cannot be disabled.
fn is_of_file(args: &PeerArgs) -> Result<()> {
    if args.source.source.is_some() {
        bail!(
            Mistake,
            "a record is not disabled: `adit peer expire {} {} now --source …` ends the access, and `never` gives it back",
            args.of.conf.conf,
            quoted(&args.of.peer)
        );
    }
    Ok(())
}

pub(crate) fn disable(args: &PeerArgs) -> Result<()> {
    is_of_file(args)?;
    let mut open = Opened::of(&args.of.conf)?;
    let (key, label) = open.in_file(&args.of.peer, "is disabled")?;
    let entry = open.entry(key)?;
    let (was_disabled, runs) = (!entry.is_enabled, entry.running.is_some());
    let new = match was_disabled {
        true => Some(open.text.clone()),
        false => config::disable(&open.text, key),
    };
    let Some(new) = new else {
        bail!(
            Mistake,
            "a comment of {} beside {label} begins with `# disabled:`, and would become a part of it: word it in \
             another way",
            open.quick.path.display()
        );
    };
    if !was_disabled || runs {
        let change = removal(key, &of(&open.quick.config.peers, key));
        open.change(&new, &[change])?;
    }
    let how = match (was_disabled, runs) {
        (true, false) => "is disabled already",
        (_, true) => "is disabled, in the file and in the running interface",
        (_, false) if open.roster.runs => "is disabled in the file, and does not run",
        (_, false) => "is disabled in the file (no process serves the interface)",
    };
    let next = format!(
        "`adit peer enable {} {}`",
        open.quick.called(),
        open.word(key)
    );
    open.say(
        args.output,
        "disabled",
        key,
        &format!("{label} {how}: {next} brings it back"),
    )
}

pub(crate) fn enable(args: &PeerArgs) -> Result<()> {
    is_of_file(args)?;
    let mut open = Opened::of(&args.of.conf)?;
    let (key, label) = open.in_file(&args.of.peer, "is enabled")?;
    let (name, word) = (open.quick.name.clone(), open.word(key));
    let mut how = "is enabled already";
    if let Some(new) = config::enable(&open.text, key) {
        let sections = of(&open.quick.config.disabled, key);
        let changes: Vec<PeerChange> = sections.iter().map(change).collect();
        let blocks = changes
            .iter()
            .flat_map(|it| it.allowed_ips.iter().filter_map(AllowedIpChange::added));
        open.quick.check_blocks(key, blocks)?;
        open.change(&new, &changes)?;
        for endpoint in sections.iter().filter_map(|it| it.endpoint.as_ref()) {
            open.quick.have_looked_up(key, endpoint);
        }
        how = "is enabled";
    }
    let next = match open.roster.runs {
        true => format!("`adit why {name} {word}` says whether it connects"),
        false => format!("`adit up {}` starts {name}", open.quick.called()),
    };
    open.say(
        args.output,
        "enabled",
        key,
        &format!("{label} {how}: {next}"),
    )
}

pub(crate) fn remove(args: &PeerArgs) -> Result<()> {
    if agent::edit_record(args, &RecordEdit::Remove, ("removed", "is removed"))? {
        return Ok(());
    }
    let mut open = Opened::of(&args.of.conf)?;
    let entry = open.roster.find(&args.of.peer)?;
    let (key, label) = (entry.key, entry.label());
    let shown = Shown::of(entry, &open.roster, now());
    let new = config::without_peer(&open.text, key).unwrap_or_else(|| open.text.clone());
    let mut change = removal(key, &of(&open.quick.config.peers, key));
    if !entry.is_in_file() {
        let blocks = entry.blocks.iter().copied();
        change.allowed_ips = blocks.map(AllowedIpChange::Add).collect();
    }
    open.change(&new, &[change])?;
    let name = &open.quick.name;
    let called = open.quick.called();
    let next = match agent::brought_to(name)?.contains_key(&key) {
        true => "its agent brings it again if its record is still there".into(),
        false => format!("`adit peers {called}` lists the others"),
    };
    let line = format!("{name}: {label} is removed: {next}\n");
    report(args.output, name, "removed", shown, &line)
}

fn report(output: OutputArgs, name: &str, done: &str, peer: Shown, line: &str) -> Result<()> {
    match output {
        OutputArgs { quiet: true, .. } => Ok(()),
        OutputArgs { json: true, .. } => print_json(&Done {
            schema: SCHEMA,
            interface: name,
            done,
            peer,
        }),
        _ => cli::print(adit_ctl::text::printable_lines(line).as_bytes()),
    }
}

/// A peer's sections.
pub(super) fn of(peers: &[PeerSection], key: PublicKey) -> Vec<PeerSection> {
    let own = peers.iter().filter(|peer| peer.public_key == key);
    own.cloned().collect()
}

/// Takes it out of the interface. Its allowed IPs are for the routes.
pub(super) fn removal(key: PublicKey, sections: &[PeerSection]) -> PeerChange {
    let blocks = sections.iter().flat_map(|peer| &peer.allowed_ips);
    PeerChange {
        remove: true,
        allowed_ips: blocks.copied().collect(),
        ..PeerChange::new(key)
    }
}

pub(super) fn change(peer: &PeerSection) -> PeerChange {
    PeerChange {
        preshared_key: peer.preshared_key.clone(),
        endpoint: (peer.endpoint.as_ref()).and_then(config::HostPort::numeric),
        persistent_keepalive: peer.persistent_keepalive,
        replace_allowed_ips: !peer.incremental,
        allowed_ips: peer.allowed_ips.clone(),
        ..PeerChange::new(peer.public_key)
    }
}

impl Opened {
    pub(super) fn of(conf: &ConfArgs) -> Result<Self> {
        require_rights()?;
        let lock = Quick::lock(conf)?;
        let (quick, mistakes) = Quick::parse(&FileArgs {
            conf: conf.clone(),
            keys: None,
        })?;
        if let Some(first) = mistakes.0.first() {
            bail!(
                Mistake,
                "{first}: `adit check {}` says all that is wrong",
                quoted(&conf.conf)
            );
        }
        let text = read(&quick.path)?;
        let running = quick.running()?;
        let running = running.map(|status| InterfaceJson::new(&quick.name, &status, false));
        let roster = Roster::new(
            (&quick.name, quick.called()),
            Some(&quick.config),
            running.as_ref(),
        );
        Ok(Self {
            _lock: lock,
            quick,
            text,
            roster,
        })
    }

    /// A peer of the file: its key, and what it is called.
    pub(super) fn in_file(&self, words: &str, what: &str) -> Result<(PublicKey, String)> {
        let entry = self.roster.find(words)?;
        let (name, label) = (&self.roster.name, entry.label());
        if !entry.is_in_file() {
            if agent::brought_to(name)?.contains_key(&entry.key) {
                bail!(
                    Mistake,
                    "an agent brought {label}, which is not in the file: what {what} is its record"
                );
            }
            bail!(
                Mistake,
                "{label} is only in the running {name}, and what {what} is in the file: `adit save {}` puts it there",
                self.roster.called
            );
        }
        Ok((entry.key, label))
    }

    pub(super) fn entry(&self, key: PublicKey) -> Result<&Entry> {
        let found = self.roster.peers.iter().find(|it| it.key == key);
        found.ok_or_else(|| Failure::State(format!("{} has lost the peer", self.roster.name)))
    }

    pub(super) fn word(&self, key: PublicKey) -> String {
        self.entry(key).map(Entry::word).unwrap_or_default()
    }

    pub(super) fn change(&mut self, new: &str, changes: &[PeerChange]) -> Result<()> {
        self.quick.change(&self.text, new, changes)
    }

    /// Says what was done to a peer that is still there.
    pub(super) fn say(
        mut self,
        output: OutputArgs,
        done: &str,
        key: PublicKey,
        line: &str,
    ) -> Result<()> {
        let name = self.quick.name.clone();
        if output.json {
            let text = read(&self.quick.path)?;
            let config = Config::parse(&text, &name).ok();
            let running = self.quick.running()?;
            let running = running.map(|status| InterfaceJson::new(&name, &status, false));
            self.roster = Roster::new(
                (&name, self.quick.called()),
                config.as_ref(),
                running.as_ref(),
            );
        }
        let shown = Shown::of(self.entry(key)?, &self.roster, now());
        report(output, &name, done, shown, &format!("{name}: {line}\n"))
    }
}
