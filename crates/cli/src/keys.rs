//! `adit genkey`, `genpsk` and `pubkey`: byte for byte what wg(8)'s commands of these names read
//! and print.

use std::io::{Read, Write};

use adit_ctl::keys;
use adit_proto::config::Secret;
use rustix::fs::{FileType, fstat};
use zeroize::Zeroizing;

use crate::failure::{Context, Result, bail, say};

/// Fills `bytes` from the kernel's generator.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
                .context(|| "cannot get random bytes from the kernel".into())?;
    }
    Ok(())
}

/// A new private key.
pub(crate) fn private_key() -> Result<Secret> {
    let mut filled = Ok(());
    let key = keys::generate_private(|bytes| filled = fill_random(bytes));
    filled.map(|()| key)
}

/// A new preshared key.
pub(crate) fn preshared_key() -> Result<Secret> {
    let mut filled = Ok(());
    let key = keys::generate_preshared(|bytes| filled = fill_random(bytes));
    filled.map(|()| key)
}

pub(crate) fn genkey() -> Result<()> {
    print_secret(&private_key()?)
}

pub(crate) fn genpsk() -> Result<()> {
    print_secret(&preshared_key()?)
}

pub(crate) fn pubkey() -> Result<()> {
    let mut input = Zeroizing::new([0; 128]);
    let mut len = 0;
    while len < input.len() {
        match std::io::stdin()
            .read(&mut input[len..])
            .context(|| "cannot read standard input".into())?
        {
            0 => break,
            n => len += n,
        }
    }
    let text = std::str::from_utf8(&input[..len]).unwrap_or_default();
    let Some(private) = keys::from_base64(text.trim()) else {
        bail!(
            Mistake,
            "standard input is no private key: expected 44 characters of base64, as `adit genkey` prints them"
        );
    };
    print_line(&keys::to_base64(&private.public_key().0))
}

fn print_secret(key: &Secret) -> Result<()> {
    warn_of_readers();
    print_line(&keys::to_base64(key.bytes()))
}

/// Warns if standard output, which is about to get a secret, is a file that everybody may read.
pub(crate) fn warn_of_readers() {
    if let Ok(stat) = fstat(std::io::stdout())
        && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_mode & 0o007 != 0
    {
        say!(
            "Warning: writing to world accessible file.\nConsider setting the umask to 077 and trying again."
        );
    }
}

fn print_line(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context(|| "cannot write to standard output".into())
}
