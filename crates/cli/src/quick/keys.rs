//! A file of its own for the secret keys, such as a credential of systemd. It has the form of a
//! configuration file, with nothing but keys:
//!
//! ```text
//! [InterfaceSection]
//! PrivateKey = …
//! [PeerSection]
//! PublicKey = …
//! PresharedKey = …
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use adit_ctl::config::{Config, Errors, InterfaceSection, PeerSection, Remark};
use adit_proto::Allowance;
use adit_proto::config::{DeviceStatus, PublicKey};

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;

/// The secrets that came from such a file: they are not to be written to another one.
#[derive(Debug, Default)]
pub(super) struct Kept {
    private_key: bool,
    preshared: HashSet<PublicKey>,
    /// A hook sets the private key, as `PostUp = wg set %i private-key FILE` of wg-quick(8).
    by_hook: bool,
}

impl Kept {
    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.private_key || !self.preshared.is_empty()
    }

    /// The status without these secrets.
    pub(super) fn strip(&self, mut status: DeviceStatus) -> DeviceStatus {
        if self.private_key || self.by_hook {
            status.private_key = None;
        }
        for peer in &mut status.peers {
            if self.preshared.contains(&peer.public_key) {
                peer.preshared_key = None;
            }
        }
        status
    }
}

/// The file of an interface's keys: the one that is given, or else the credential `NAME.keys` of
/// this service or, for a command that is typed, of the unit `adit@NAME`. A credential may be
/// missing or empty.
fn locate(given: Option<&Path>, name: &str) -> Option<PathBuf> {
    if let Some(path) = given {
        return Some(path.to_owned());
    }
    let file = format!("{name}.keys");
    let own = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let of_unit = PathBuf::from(format!("/run/credentials/adit@{name}.service"));
    let dirs = [own, Some(of_unit)].into_iter().flatten();
    let mut files = dirs.map(|dir| dir.join(&file));
    files.find(|path| {
        path.metadata()
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
    })
}

/// Adds the keys to a configuration, and returns what was added and every mistake.
pub(super) fn add(config: &mut Config, given: Option<&Path>, name: &str) -> (Kept, Vec<Remark>) {
    let (mut kept, mistakes) = from_file(config, given, name);
    kept.by_hook = config.interface.private_key.is_none() && hook_sets_key(&config.interface);
    (kept, mistakes)
}

/// Whether a hook gives the interface its private key.
pub(crate) fn hook_sets_key(interface: &InterfaceSection) -> bool {
    let mut hooks = interface.pre_up.iter().chain(&interface.post_up);
    hooks.any(|hook| hook.split_whitespace().any(|word| word == "private-key"))
}

fn from_file(config: &mut Config, given: Option<&Path>, name: &str) -> (Kept, Vec<Remark>) {
    let Some(path) = locate(given, name) else {
        return (Kept::default(), Vec::new());
    };
    let (keys, Errors(mut mistakes)) = match Config::salvage(&path) {
        Ok(found) => found,
        Err(Errors(mistakes)) => return (Kept::default(), mistakes),
    };
    config.warnings.extend(keys.warnings.iter().cloned());
    let file = path.display().to_string();
    let (kept, wrong) = merge(config, keys);
    mistakes.extend(wrong.into_iter().map(|text| Remark {
        file: file.clone(),
        line: 0,
        text,
    }));
    (kept, mistakes)
}

fn merge(config: &mut Config, keys: Config) -> (Kept, Vec<String>) {
    let mut kept = Kept::default();
    let mut mistakes = Vec::new();
    let InterfaceSection { private_key, .. } = &keys.interface;
    let others = InterfaceSection {
        private_key: private_key.clone(),
        ..InterfaceSection::default()
    };
    if others != keys.interface {
        mistakes.push("[Interface] may have nothing but PrivateKey in a file of keys".to_owned());
    }
    if private_key.is_some() {
        if config.interface.private_key.is_some() {
            let twice =
                "PrivateKey stands in the configuration file, too: remove it from one of them";
            mistakes.push(twice.to_owned());
        }
        config.interface.private_key = private_key.clone();
        kept.private_key = true;
    }
    for (n, peer) in (1..).zip(keys.peers) {
        // Not its key: in a file of keys, a secret one is easily in the wrong place.
        let Some(preshared_key) = &peer.preshared_key else {
            mistakes.push(format!("[Peer] number {n} has no PresharedKey"));
            continue;
        };
        let only_keys = PeerSection {
            public_key: peer.public_key,
            name: peer.name.clone(),
            preshared_key: Some(preshared_key.clone()),
            allowance: Allowance::default(),
            endpoint: None,
            allowed_ips: Vec::new(),
            incremental: false,
            persistent_keepalive: None,
        };
        if only_keys != peer {
            mistakes.push(format!(
                "[Peer] number {n} may have nothing but PublicKey and PresharedKey in a file of keys"
            ));
        }
        let mut found = config.disabled.iter_mut().chain(&mut config.peers);
        let Some(known) = found.rfind(|known| known.public_key == peer.public_key) else {
            mistakes.push(format!(
                "the configuration file has no peer with the PublicKey of [Peer] number {n}"
            ));
            continue;
        };
        if known.preshared_key.is_some() {
            mistakes.push(format!(
                "PresharedKey of [Peer] number {n} stands in the configuration file, too: remove it from one of them"
            ));
        }
        known.preshared_key = Some(preshared_key.clone());
        kept.preshared.insert(peer.public_key);
    }
    (kept, mistakes)
}
