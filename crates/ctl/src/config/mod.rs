//! wg-quick's configuration files.
//!
//! The format is that of wg(8) and wg-quick(8): sections `[InterfaceSection]` and `[PeerSection]`, and lines `Key
//! = value`. `#` starts a comment, except in a hook, which the shell reads. Sections and keys are
//! read in any case, and spaces may stand wherever wg allows them. When a key stands twice, the
//! last one counts, and a warning says so. Where those tools fail or guess, this parser says
//! `file:line: what is wrong, what was expected`.

mod allowances;
#[cfg(test)]
mod corpus;
#[cfg(test)]
mod corpus_tests;
mod dialects;
mod disabled;
mod keywords;
mod layout;
mod model;
mod names;
mod notes;
mod parse;
mod peers;
#[cfg(test)]
mod tests;
mod unknown;
mod values;
mod write;

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

pub use crate::names::{HostPort, check_name};
pub use allowances::{Term, date_text, expires, limit, quota, rate_text, with_term};
pub use model::{
    Config, Errors, Forward, InterfaceAddress, InterfaceSection, PeerSection, Remark, Table,
};
pub use names::clean as clean_name;
pub use peers::{disable, enable, rename, with_keys, without_peer};
pub use unknown::{nearest, quote};
pub use write::{peers_of, save, strip, with_section};

/// Where interfaces that are given by name have their files.
pub const DIR: &str = "/etc/wireguard";
/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 512 << 20;

impl Errors {
    fn none_or(self, config: Config) -> Result<Config, Self> {
        match self.0.is_empty() {
            true => Ok(config),
            false => Err(self),
        }
    }
}

/// A file that was read, once: it may be a pipe.
pub struct FileText<'a> {
    path: &'a Path,
    text: Zeroizing<String>,
    found: Metadata,
}

impl<'a> FileText<'a> {
    /// Reads a file. Bytes that are not UTF-8 are taken for Latin-1.
    ///
    /// # Errors
    /// The file cannot be read, or has more than 512 MiB.
    pub fn read(path: &'a Path) -> Result<Self, Errors> {
        let (text, found) = read_with(path).map_err(|error| {
            Errors(vec![Remark {
                file: path.display().to_string(),
                line: 0,
                text: error.to_string(),
            }])
        })?;
        Ok(Self { path, text, found })
    }

    /// Its path, as it was given.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// What it says.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A warning if everybody may read or change it.
    pub fn exposure(&self) -> Option<String> {
        exposure(self.path, self.found.mode())
    }

    /// What it says as a configuration apart from its mistakes, and those: enough to take down what it brought
    /// up before it had them. Also warns if others may read it.
    pub fn salvage(&self) -> (Config, Errors) {
        let file = self.path.display().to_string();
        let (mut config, errors) = parse::parse(&self.text, &file);
        let risks = risks(self.path, &self.found).into_iter();
        let risks = risks.map(|text| Remark {
            file: file.clone(),
            line: 0,
            text,
        });
        config.warnings.splice(0..0, risks);
        (config, errors)
    }
}

impl Config {
    /// Reads and parses a file, as [`FileText`] does.
    ///
    /// # Errors
    /// The file cannot be read, or has more than 512 MiB.
    pub fn salvage(path: &Path) -> Result<(Self, Errors), Errors> {
        FileText::read(path).map(|file| file.salvage())
    }

    /// Parses the text of `file`, which is only named in errors and warnings.
    ///
    /// # Errors
    /// Every mistake in the text.
    pub fn parse(text: &str, file: &str) -> Result<Self, Errors> {
        let (config, errors) = parse::parse(text, file);
        errors.none_or(config)
    }
}

/// The text of a configuration file, and its mode. Bytes that are not UTF-8 are taken for Latin-1.
///
/// # Errors
/// The file cannot be read, or has more than 512 MiB.
pub fn read(path: &Path) -> io::Result<(Zeroizing<String>, u32)> {
    let (text, found) = read_with(path)?;
    Ok((text, found.mode()))
}

/// A warning if everybody may read or change a file of this mode, unless its directory is closed.
fn exposure(path: &Path, mode: u32) -> Option<String> {
    (reachable_mode(path, mode) & 0o007 != 0)
        .then(|| "everybody may use this file, which should be secret: chmod 600 it".to_owned())
}

/// The part of a file's mode that counts, as others may search its directory.
fn reachable_mode(path: &Path, mode: u32) -> u32 {
    let dir = (path.canonicalize().ok()).and_then(|path| path.parent()?.metadata().ok());
    let open = dir.as_ref().map_or(0o777, MetadataExt::mode);
    let reached = [(0o010, 0o070), (0o001, 0o007)].into_iter();
    let reached = reached.filter(|(search, _)| open & search != 0);
    mode & reached.fold(0, |all, (_, class)| all | class)
}

/// Who may read a file, or change it and so have commands run by root, and should not.
fn risks(path: &Path, found: &Metadata) -> Vec<String> {
    let mut risks = Vec::from_iter(exposure(path, found.mode()));
    let dir = (path.canonicalize().ok()).and_then(|path| path.parent()?.metadata().ok());
    let mode = reachable_mode(path, found.mode());
    if !found.is_file() {
        return risks;
    }
    let own = rustix::process::geteuid().as_raw();
    // Who typed sudo may do anything already.
    let sudo = std::env::var("SUDO_UID")
        .ok()
        .and_then(|uid| uid.parse().ok());
    let is_trusted = |uid: u32| uid == 0 || uid == own || Some(uid) == sudo;
    if mode & 0o020 != 0 && mode & 0o002 == 0 && found.gid() != 0 {
        risks.push(format!(
            "the group {} may change this file, and so what root runs: chmod g-w it",
            found.gid()
        ));
    }
    if !is_trusted(found.uid()) {
        risks.push(format!(
            "the user {} owns this file, and so can change what root runs: chown root it",
            found.uid()
        ));
    }
    // Others cannot replace a file of root's where the sticky bit is set.
    let may_replace = |dir: &Metadata| {
        let by_group = dir.mode() & 0o020 != 0 && dir.gid() != 0;
        let by_mode = (by_group || dir.mode() & 0o002 != 0) && dir.mode() & 0o1000 == 0;
        by_mode || !is_trusted(dir.uid())
    };
    // A link has one directory, and the file that it leads to another.
    let of_link = (path.symlink_metadata().ok())
        .filter(Metadata::is_symlink)
        .and_then(|_| Path::new(".").join(path.parent()?).metadata().ok());
    if dir.iter().chain(&of_link).any(may_replace) {
        risks.push(
            "others may replace this file, as they may write to its directory: move it, or chmod go-w the directory"
                .into(),
        );
    }
    risks
}

fn read_with(path: &Path) -> io::Result<(Zeroizing<String>, Metadata)> {
    let file = std::fs::File::open(path)?;
    let found = file.metadata()?;
    // All at once: a buffer that grows would leave copies of keys behind.
    let size = usize::try_from(found.len().min(MAX_FILE)).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(size.max(64 << 10) + 1));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    if bytes.len() as u64 > MAX_FILE {
        return Err(wrong("this is too long for a configuration file"));
    }
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    match std::str::from_utf8(&bytes) {
        Ok(utf8) => text.push_str(utf8),
        // Comments from before UTF-8, which no tool minds: Latin-1.
        Err(_) => text.extend(bytes.iter().copied().map(char::from)),
    }
    Ok((text, found))
}

/// What a text is that is no configuration file at all, such as UTF-16 or JSON.
pub fn other_file(text: &str) -> Option<&'static str> {
    dialects::other_file(text)
}

/// `hook` with the interface's name in place of every `%i`.
pub fn hook(hook: &str, interface: &str) -> String {
    hook.replace("%i", interface)
}

/// Resolves the argument of `adit up`: a file `…/NAME.conf`, or an interface name that stands for
/// `/etc/wireguard/NAME.conf`. Returns the path and NAME. It does not look whether the file is
/// there.
///
/// # Errors
///
/// A sentence for people: the file has another name, or NAME cannot be the name of an interface.
pub fn locate(argument: &str) -> Result<(PathBuf, String), String> {
    let path = match argument.contains('/') || argument.ends_with(".conf") {
        true => PathBuf::from(argument),
        false => Path::new(DIR).join(format!("{argument}.conf")),
    };
    let name = (path.file_name().and_then(|name| name.to_str()))
        .and_then(|name| name.strip_suffix(".conf"))
        .ok_or_else(|| format!("{argument}: expected a file named INTERFACE.conf"))?
        .to_owned();
    check_name(&name)?;
    Ok((path, name))
}

/// As [`locate`], for what only reads: a file may have any name, and be a pipe.
///
/// # Errors
/// As of [`locate`].
pub fn locate_any(argument: &str) -> Result<PathBuf, String> {
    let path = Path::new(argument);
    match argument.contains('/') && path.metadata().is_ok_and(|found| !found.is_dir())
        || path.is_file()
    {
        true => Ok(path.to_owned()),
        false => locate(argument).map(|(path, _)| path),
    }
}
