//! `adit new-peer`: keys and addresses for a device, and the file that it takes.
//!
//! 1. find what can be found wrong before anything is changed;
//! 2. write the device's file, if one is wanted: it must be new;
//! 3. add the peer to the file and to the running interface; if that fails, the device's file goes;
//! 4. print the device's file or its QR code, and say what was done.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::Path;

use adit_ctl::config::{HostPort, InterfaceAddress};
use adit_ctl::keys;
use adit_proto::Allowance;
use adit_proto::config::{AllowedIpChange, Cidr, PeerChange, PublicKey, Secret};
use qrcode::{Color, EcLevel, QrCode};
use serde::Serialize;
use zeroize::Zeroizing;

use super::init::choose;
use super::list::{SCHEMA, print_json};
use super::peers::{host, join, new_addresses, open};
use super::roster::quoted;
use super::terms::ends;
use super::{Quick, defaults, file, open_netlink, require_rights};
use crate::cli::{self, DeviceArgs, NewPeerArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::keys as new_keys;

#[cfg(test)]
#[path = "new_peer_tests.rs"]
mod tests;

/// The default of WireGuard's documentation: shorter than what NATs forget.
const KEEPALIVE: u16 = 25;
/// Light modules around a QR code. The standard has four; what scans screens needs two.
const MARGIN: usize = 2;

/// What the device's file says.
pub(super) struct DeviceFile {
    private: Secret,
    preshared: Option<Secret>,
    addresses: Vec<InterfaceAddress>,
    dns: Vec<IpAddr>,
    own: PublicKey,
    allowed: Vec<Cidr>,
    endpoint: HostPort,
}

/// What was done, as JSON.
#[derive(Serialize)]
struct NewPeerDone<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    peer: Made<'a>,
    /// Where the device's file is, or what it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a str>,
}

#[derive(Serialize)]
struct Made<'a> {
    public_key: String,
    name: Option<&'a str>,
    allowed_ips: Vec<String>,
}

pub(crate) fn new_peer(args: &NewPeerArgs) -> Result<()> {
    require_rights()?;
    let (lock, mut quick) = open(&args.conf)?;
    let device = DeviceFile::new(&quick, &args.device, new_addresses(&quick)?)?;
    let change = PeerChange {
        preshared_key: device.preshared.clone(),
        replace_allowed_ips: true,
        allowed_ips: (device.hosts().into_iter())
            .map(AllowedIpChange::Add)
            .collect(),
        ..PeerChange::new(device.public_key())
    };
    let name = args.name.as_deref();
    device.keep(&args.device, || {
        quick.add_peer(&change, None, (name, &allowance(args)))
    })?;
    // Whatever reads the output may take its time.
    drop(lock);
    let word = name.map_or_else(|| device.public_key().to_string(), str::to_owned);
    device.hand_out(&quick, &args.device, ("added", name, &word))
}

/// What the peer may do.
fn allowance(args: &NewPeerArgs) -> Allowance {
    let (to_peer, from_peer) = args.limit.unwrap_or_default();
    Allowance {
        to_peer,
        from_peer,
        quota: args.quota.and_then(|quota| quota.0),
        expires: args.expires.as_ref().and_then(ends),
    }
}

/// Finds what is in the way of a new file.
fn check_output(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        bail!(
            State,
            "{} is there already and stays as it is: give --output another name",
            path.display()
        );
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    file::check_dir(dir.unwrap_or(Path::new(".")))
}

impl DeviceFile {
    /// A device of an interface, with new keys and these addresses. Finds what is in the way of its file.
    pub(super) fn new(
        quick: &Quick,
        args: &DeviceArgs,
        addresses: Vec<InterfaceAddress>,
    ) -> Result<Self> {
        if let Some(path) = &args.output {
            check_output(path)?;
        }
        let private_key = || quick.ask().ok()?.private_key;
        // A hook may set it.
        let Some(own) = (quick.config.interface.private_key.clone()).or_else(private_key) else {
            bail!(
                Mistake,
                "{} has no PrivateKey, and {name} is not up: the new peer needs the public key of this interface. If a hook \
                 sets it, run `adit up {}` before",
                quick.path.display(),
                quick.called(),
                name = quick.name
            );
        };
        let endpoint = match &args.endpoint {
            Some(text) => stated_endpoint(quick, text)?,
            None => defaults::endpoint(quick, args.said.quiet)?,
        };
        let allowed = match (args.full_tunnel, args.allowed_ips.is_empty()) {
            (true, _) => defaults::everything(&quick.config.interface.addresses),
            (false, false) => args.allowed_ips.clone(),
            (false, true) => defaults::allowed_ips(quick, &open_netlink()?)?,
        };
        if args.full_tunnel && !defaults::forwards_everything(quick) && !args.said.quiet {
            say!(
                "Warning: {} has no `# Forward = internet`: what the peer sends to the Internet ends here unless a hook or \
                 another program forwards it",
                quick.path.display()
            );
        }
        Ok(Self {
            private: new_keys::private_key()?,
            preshared: Some(new_keys::preshared_key()?),
            addresses,
            dns: defaults::name_servers(quick, args),
            own: own.public_key(),
            allowed,
            endpoint,
        })
    }

    pub(super) fn public_key(&self) -> PublicKey {
        self.private.public_key()
    }

    pub(super) fn preshared_key(&self) -> Option<&Secret> {
        self.preshared.as_ref()
    }

    /// The same, as a peer that has no preshared key.
    pub(super) fn without_preshared_key(self) -> Self {
        Self {
            preshared: None,
            ..self
        }
    }

    fn hosts(&self) -> Vec<Cidr> {
        let addresses = self.addresses.iter();
        addresses.filter_map(|address| host(address.ip)).collect()
    }

    /// Writes the file, if one is wanted, and then does what makes the device a peer. If that fails, the
    /// file goes.
    pub(super) fn keep(&self, args: &DeviceArgs, join: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(path) = &args.output else {
            return join();
        };
        file::create(path, &self.text(" = ", ", ", "\n"))?;
        join().inspect_err(|_| _ = std::fs::remove_file(path))
    }

    /// Prints the file or its code, and says what was done and the next step.
    pub(super) fn hand_out(
        &self,
        quick: &Quick,
        args: &DeviceArgs,
        (done, name, word): (&str, Option<&str>, &str),
    ) -> Result<()> {
        let text = self.text(" = ", ", ", "\n");
        if args.said.json {
            let config = args.output.is_none().then_some(text.as_str());
            return print_json(&NewPeerDone {
                schema: SCHEMA,
                interface: &quick.name,
                done,
                peer: Made {
                    public_key: self.public_key().to_string(),
                    name,
                    allowed_ips: self.hosts().iter().map(ToString::to_string).collect(),
                },
                file: args.output.as_deref(),
                config,
            });
        }
        match (args.qr, &args.output) {
            (true, _) => cli::print(self.qr(std::io::stdout().is_terminal())?.as_bytes())?,
            (false, None) => {
                new_keys::warn_of_readers();
                cli::print(text.as_bytes())?;
            }
            (false, Some(_)) => {}
        }
        if !args.said.quiet {
            say!("adit: {}", self.summary(quick, args, (done, word)));
        }
        Ok(())
    }

    /// What was done, and the next step.
    fn summary(&self, quick: &Quick, args: &DeviceArgs, (done, word): (&str, &str)) -> String {
        let file = args.output.as_ref().map(|path| path.display().to_string());
        let what = match (args.qr, file) {
            (true, None) => {
                "WireGuard's app scans this code, which has the private key; it is kept nowhere else"
                    .into()
            }
            (true, Some(file)) => {
                format!("WireGuard's app scans this code; {file}, for its owner only, says the same")
            }
            (false, None) => {
                "its file is printed, with its private key, and kept nowhere else".into()
            }
            (false, Some(file)) => format!("its file is {file}, for its owner only"),
        };
        let name = &quick.name;
        let next = match quick.ask().is_ok() {
            true => format!(
                "`adit why {name} {}` says whether it connects",
                quoted(word)
            ),
            false => format!("`adit up {}` starts {name}", quick.called()),
        };
        let addresses = self.addresses.iter().map(|address| address.ip.to_string());
        let addresses: Vec<String> = addresses.collect();
        format!(
            "{name}: {done} {word}, {}: {what}; {next}",
            addresses.join(", ")
        )
    }

    /// The file, with these around `=`, between values and between sections.
    fn text(&self, equals: &str, comma: &str, gap: &str) -> Zeroizing<String> {
        // All at once: a buffer that grows would leave copies of the keys behind.
        let mut out = Zeroizing::new(String::with_capacity(4096));
        let mut line = |key: &str, value: &str| _ = writeln!(out, "{key}{equals}{value}");
        line(
            "[Interface]\nPrivateKey",
            &keys::to_base64(self.private.bytes()),
        );
        line("Address", &join(&self.addresses, comma));
        if !self.dns.is_empty() {
            line("DNS", &join(&self.dns, comma));
        }
        let section = format!("{gap}[Peer]\nPublicKey");
        line(&section, &keys::to_base64(&self.own.0));
        if let Some(preshared) = &self.preshared {
            line("PresharedKey", &keys::to_base64(preshared.bytes()));
        }
        line("AllowedIPs", &join(&self.allowed, comma));
        line("Endpoint", &self.endpoint.to_string());
        line("PersistentKeepalive", &KEEPALIVE.to_string());
        out
    }

    fn qr(&self, on_terminal: bool) -> Result<Zeroizing<String>> {
        // Every character counts: without blanks the code is smaller.
        draw(self.text("=", ",", "").trim_end(), on_terminal)
    }
}

/// The endpoint of the command line, with the port of the interface if it says none.
fn stated_endpoint(quick: &Quick, text: &str) -> Result<HostPort> {
    let has_port = text.parse::<HostPort>().is_ok();
    let port = match (has_port, defaults::port(quick)) {
        (true, port) => port.unwrap_or(0),
        (false, Some(port)) => port,
        (false, None) => bail!(
            Mistake,
            "{} has no ListenPort, and --endpoint {text:?} no port: add one of them",
            quick.path.display()
        ),
    };
    choose::endpoint(text, port)
        .map_err(|expected| Failure::Mistake(format!("--endpoint {text:?}: {expected}")))
}

/// Two modules above each other are one character.
fn draw(text: &str, on_terminal: bool) -> Result<Zeroizing<String>> {
    // A screen is never dirty, and a code without much correction is smaller.
    let code = QrCode::with_error_correction_level(text, EcLevel::L)
        .context(|| "cannot make a QR code".into())?;
    let (width, modules) = (code.width(), code.to_colors());
    let side = width + 2 * MARGIN;
    let is_dark = |x: usize, y: usize| {
        let inside = |at: usize| at.checked_sub(MARGIN).filter(|at| *at < width);
        let found = inside(x)
            .zip(inside(y))
            .map(|(x, y)| modules[y * width + x]);
        found == Some(Color::Dark)
    };
    // Dark on light, whatever the terminal's colours are.
    let (begin, end) = match on_terminal {
        true => ("\x1b[30;107m", "\x1b[0m"),
        false => ("", ""),
    };
    let mut out = Zeroizing::new(String::with_capacity(side * side * 2));
    for y in (0..side).step_by(2) {
        out.push_str(begin);
        for x in 0..side {
            out.push(match (is_dark(x, y), is_dark(x, y + 1)) {
                (false, false) => ' ',
                (true, false) => '▀',
                (false, true) => '▄',
                (true, true) => '█',
            });
        }
        out.push_str(end);
        out.push('\n');
    }
    Ok(out)
}
