//! `adit peer limit`, `quota` and `expire`: what one peer may do, in the file and in the running interface
//! at once.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use adit_ctl::config::{self, Term};
use adit_ctl::uapi::{MAX_ALLOWANCES, UapiClient};
use adit_proto::Allowance;
use adit_proto::config::PublicKey;

use super::Quick;
use super::file::peers_file;
use super::others::Others;
use super::verbs::Opened;
use crate::agent::{self, RecordEdit};
use crate::cli::{ExpireArgs, LimitArgs, PeerArgs, QuotaArgs, When};
use crate::failure::{Context, Result, bail};

pub(crate) fn limit(args: &LimitArgs) -> Result<()> {
    let (to_peer, from_peer) = args.limit;
    let allowance = Allowance {
        to_peer,
        from_peer,
        ..Allowance::default()
    };
    let rates = match Term::Limit.value(&allowance) {
        None => "has no limit any more".to_owned(),
        Some(_) if to_peer == from_peer => {
            format!(
                "is limited to {}bit/s in each direction",
                config::rate_text(to_peer)
            )
        }
        Some(_) => {
            let rate = |rate: Option<u64>| match rate {
                Some(_) => format!("{}bit/s", config::rate_text(rate)),
                None => "no limit".to_owned(),
            };
            format!(
                "is limited to {} to it and {} from it",
                rate(to_peer),
                rate(from_peer)
            )
        }
    };
    set(&args.peer, (Term::Limit, &allowance, "limited"), &rates)
}

pub(crate) fn quota(args: &QuotaArgs) -> Result<()> {
    let allowance = Allowance {
        quota: args.quota.0,
        ..Allowance::default()
    };
    let what = match Term::Quota.value(&allowance) {
        None => "has no quota any more".to_owned(),
        Some(quota) => format!("may send and get {quota}B from now on"),
    };
    set(&args.peer, (Term::Quota, &allowance, "quota"), &what)
}

pub(crate) fn expire(args: &ExpireArgs) -> Result<()> {
    let expires = ends(&args.when);
    let allowance = Allowance {
        expires,
        ..Allowance::default()
    };
    let what = match expires {
        None => "has access for as long as it is a peer".to_owned(),
        Some(at) if at <= now() => format!("has no access since {}", config::date_text(at)),
        Some(at) => format!("has access until {}", config::date_text(at)),
    };
    set(&args.peer, (Term::Expires, &allowance, "expires"), &what)
}

/// When access ends, since the Unix epoch; `None` for never.
pub(super) fn ends(when: &When) -> Option<Duration> {
    match when {
        When::Never => None,
        When::At(at) => Some(*at),
        When::In(time) => Some(now() + *time),
    }
}

/// Whole seconds since the Unix epoch, as files have them.
fn now() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Duration::from_secs(now.unwrap_or_default().as_secs())
}

fn set(
    peer: &PeerArgs,
    (term, allowance, done): (Term, &Allowance, &str),
    what: &str,
) -> Result<()> {
    let edit = RecordEdit::Term(term, term.value(allowance));
    if agent::edit_record(peer, &edit, (done, what))? {
        return Ok(());
    }
    let mut open = Opened::of(&peer.of.conf)?;
    let (key, label) = open.in_file(&peer.of.peer, &format!("is {done}"))?;
    let value = term.value(allowance);
    let Some(new) = config::with_term(&open.text, key, term, value.as_deref()) else {
        bail!(State, "{} has lost the peer", open.quick.path.display());
    };
    open.change(&new, &[])?;
    if term == Term::Quota {
        open.quick.count_anew(key, open.roster.runs)?;
    }
    let next = match open.roster.runs {
        true => format!(
            "`adit peer show {} {}` shows it",
            open.quick.called(),
            open.word(key)
        ),
        false => format!(
            "`adit up {}` starts {}",
            open.quick.called(),
            open.quick.name
        ),
    };
    open.say(peer.output, done, key, &format!("{label} {what}: {next}"))
}

impl Quick {
    /// Tells the process what the file lets peers do. Other implementations let them do everything.
    pub(super) fn allow_peers(&self, others: &Others) -> Result<()> {
        let mut given = self.allowances(None);
        if others.has_agent {
            let has_one: HashSet<PublicKey> = given.iter().map(|(key, ..)| *key).collect();
            let rest = self.keys().chain(others.of_nobody.iter().copied());
            let rest = rest.filter(|key| !has_one.contains(key));
            given.extend(rest.map(|key| (key, Allowance::default(), false)));
        }
        self.tell_allowances(&given, !others.has_agent)
    }

    /// The quota of a peer counts from now: in the process that runs, or in the next one.
    fn count_anew(&self, peer: PublicKey, runs: bool) -> Result<()> {
        if !runs {
            let path = peers_file(&self.name);
            return adit_engine::count_anew(&path, &peer).context(|| {
                let path = path.display();
                format!("cannot change {path}, which has what the peer has used of its quota")
            });
        }
        let given = self.allowances(Some(peer));
        self.tell_allowances(&given, false)
    }

    /// What the file lets peers do; with `anew`, of this peer alone, whose quota counts anew.
    fn allowances(&self, anew: Option<PublicKey>) -> Vec<(PublicKey, Allowance, bool)> {
        let peers = self.config.peers.iter();
        let is_meant = |key: PublicKey| anew.is_none_or(|anew| anew == key);
        peers
            .filter(|peer| is_meant(peer.public_key))
            .filter(|peer| anew.is_some() || peer.allowance != Allowance::default())
            .map(|peer| (peer.public_key, peer.allowance, anew.is_some()))
            .collect()
    }

    fn tell_allowances(&self, given: &[(PublicKey, Allowance, bool)], replace: bool) -> Result<()> {
        let tell = || {
            let mut client = UapiClient::connect(&self.name)?;
            if replace {
                return client.allow_peers(given, true);
            }
            let mut pieces = given.chunks(MAX_ALLOWANCES);
            pieces.try_for_each(|piece| client.allow_peers(piece, false))
        };
        match tell() {
            // There is nothing to heed.
            Err(_) if given.iter().all(|(_, it, _)| *it == Allowance::default()) => Ok(()),
            Err(error) => bail!(
                State,
                "{} does not heed limits, quotas and ends of access: {error}",
                self.name
            ),
            Ok(()) => Ok(()),
        }
    }
}
