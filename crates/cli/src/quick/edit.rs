//! `adit edit`: as visudo(8) does it. The editor has a copy, and only one without mistakes becomes
//! the file.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use adit_ctl::config::{self, Config};
use adit_ctl::keys;
use zeroize::Zeroizing;

use super::file::{self, Lock, read};
use super::{require_rights, sync};
use crate::cli::EditArgs;
use crate::failure::{Context, Failure, Result, bail, say};
use crate::keys as new_keys;

/// A copy of a file, which goes at the end.
struct Copy(PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub(crate) fn edit(args: &EditArgs) -> Result<()> {
    require_rights()?;
    let (args, said) = (&args.file, args.said);
    let (path, name) = config::locate(&args.conf.conf).map_err(Failure::Mistake)?;
    let is_new = !path.exists();
    let (old, shown) = match is_new {
        true => (Zeroizing::default(), template()?),
        false => {
            let old = read(&path)?;
            (old.clone(), old)
        }
    };
    let copy = copy(&path, &shown)?;
    let new = loop {
        run_editor(&copy.0)?;
        let new = read(&copy.0)?;
        if *new == *shown {
            match is_new {
                true => said.say(format_args!("there is still no file {}", path.display())),
                false => said.say(format_args!("{} stays as it is", path.display())),
            }
            return Ok(());
        }
        let mistakes = match Config::parse(&new, &path.display().to_string()) {
            Ok(config) => {
                for warning in &config.warnings {
                    say!("Warning: {warning}");
                }
                break new;
            }
            Err(mistakes) => mistakes,
        };
        say!("{mistakes}");
        if !wants_again()? {
            bail!(State, "{} stays as it is", path.display());
        }
    };
    replace(&path, &old, &new, copy)?;
    match adit_ctl::uapi::UapiClient::connect(&name).map_err(adit_ctl::uapi::ClientError::Io) {
        Err(error) if error.is_unserved() => said.say(format_args!(
            "{} is changed: `adit up {}` brings {name} up with it",
            path.display(),
            file::called(&path)
        )),
        _ => {
            sync(args)?;
            said.say(format_args!(
                "{} is changed, and {name} runs with it: `adit show {name}` shows it",
                path.display()
            ));
        }
    }
    Ok(())
}

/// What the editor has where there is no file: a new key, and what else there can be, as comments.
fn template() -> Result<Zeroizing<String>> {
    let key = new_keys::private_key()?;
    let mut out = Zeroizing::new(String::with_capacity(2048));
    let (private, public) = (keys::to_base64(key.bytes()), key.public_key());
    // All at once: the key is copied nowhere else.
    let text: [&str; 4] = [
        "# A tunnel for `adit up` and wg-quick. What stands behind # does nothing. `adit init` makes the file of a\n\
         # hub instead, and asks for what it needs; a file from your provider or operator can stand here as it is.\n\
         [Interface]\n\
         # A new key of this host, which nobody else may know. Its public key, for the other side:\n# ",
        "\nPrivateKey = ",
        &private,
        "\n\
         # Addresses of this host in the tunnel, with the length of their network.\n\
         #Address = 10.0.0.2/24\n\
         # The UDP port where others find this host. Without it the system chooses one.\n\
         #ListenPort = 51820\n\
         # Name servers while the tunnel is up.\n\
         #DNS = 10.0.0.1\n\
         \n\
         # One section for each peer.\n\
         #[Peer]\n\
         # The public key of the other side.\n\
         #PublicKey =\n\
         # Where it is. Leave it out for a peer that calls.\n\
         #Endpoint = vpn.example.org:51820\n\
         # What is sent to it and taken from it; 0.0.0.0/0, ::/0 is everything.\n\
         #AllowedIPs = 10.0.0.0/24\n\
         # Keeps a NAT on the way open, in seconds.\n\
         #PersistentKeepalive = 25\n",
    ];
    let [head, middle, private, rest] = text;
    out.push_str(head);
    out.push_str(&public.to_string());
    [middle, private, rest]
        .iter()
        .for_each(|part| out.push_str(part));
    Ok(out)
}

/// Replaces the file, if it is still the `old` one. Otherwise the copy stays.
fn replace(path: &Path, old: &str, new: &str, copy: Copy) -> Result<()> {
    if !path.exists() {
        return file::create(path, new);
    }
    let _lock = Lock::take(path)?;
    if *read(path)? != *old {
        let kept = std::mem::ManuallyDrop::new(copy);
        bail!(
            State,
            "{} was changed while it was edited, and stays as it is; your text is in {}: `diff` shows what differs",
            path.display(),
            kept.0.display()
        );
    }
    file::write(path, new)
}

/// Beside the file, where its directory keeps others out.
fn copy(path: &Path, text: &str) -> Result<Copy> {
    let copy = path.with_extension(format!("conf.edit-{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&copy);
    let failed = || format!("cannot write {}", copy.display());
    let mut file = file.context(failed)?;
    let copy = Copy(copy.clone());
    file.write_all(text.as_bytes())
        .context(|| format!("cannot write {}", copy.0.display()))?;
    Ok(copy)
}

fn run_editor(file: &Path) -> Result<()> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let chosen = set("VISUAL").or_else(|| set("EDITOR"));
    let fallback = || {
        OsString::from(if Path::new("/usr/bin/editor").exists() {
            "editor"
        } else {
            "vi"
        })
    };
    let editor = chosen.unwrap_or_else(fallback);
    // It may have arguments.
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec $0 \"$1\""])
        .arg(&editor)
        .arg(file);
    let status = command.status();
    let status = status.context(|| format!("cannot run {}", editor.display()))?;
    if !status.success() {
        bail!(
            State,
            "the editor {} failed ({status}): nothing is changed",
            editor.display()
        );
    }
    Ok(())
}

/// Asks whether to edit again.
fn wants_again() -> Result<bool> {
    loop {
        let asked = write!(
            std::io::stderr(),
            "Edit it again (e), or throw it away (x)? "
        );
        asked.context(|| "cannot ask".into())?;
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        match (
            read.context(|| "cannot read the answer".into())?,
            answer.trim(),
        ) {
            (0, _) | (_, "x") => return Ok(false),
            (_, "e") => return Ok(true),
            _ => {}
        }
    }
}
