//! `adit init`: the file of a hub, from nothing.
//!
//! 1. find what is in the way: the file, the interface, the directory;
//! 2. look at this host: its networks, its ports, its tunnels' files, its way to the Internet;
//! 3. take each answer from a flag, or ask on a terminal, or choose;
//! 4. write the file, whole and new, and say what was done.

mod ask;
pub(super) mod choose;
mod host;

use std::fmt::Write as _;
use std::path::Path;

use adit_ctl::config::{self, Forward, HostPort, InterfaceAddress};
use adit_ctl::keys;
use adit_proto::config::{Cidr, PublicKey, Secret};
use clap::ValueEnum;
use serde::Serialize;
use zeroize::Zeroizing;

use super::file;
use super::list::{SCHEMA, print_json};
use super::{open_netlink, require_rights};
use crate::cli::{self, InitArgs, OutputArgs, Reach};
use crate::failure::{Failure, Result, bail, say};
use crate::keys as new_keys;
use ask::Asker;
use host::ThisHost;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

impl Reach {
    fn forward(self) -> Option<Forward> {
        match self {
            Self::Host => None,
            Self::Peers => Some(Forward::Peers),
            Self::Lan => Some(Forward::Lan),
            Self::Internet => Some(Forward::Internet),
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Host => "this host",
            Self::Peers => "this host and each other",
            Self::Lan => "this host, each other and the private networks behind it",
            Self::Internet => "this host, each other, the networks behind it and the Internet",
        }
    }
}

/// All that the file says.
struct Answers {
    addresses: Vec<InterfaceAddress>,
    port: u16,
    endpoint: HostPort,
    reach: Reach,
}

pub(crate) fn init(args: &InitArgs) -> Result<()> {
    let (path, name) = config::locate(&args.conf).map_err(Failure::Mistake)?;
    require_rights()?;
    let netlink = open_netlink()?;
    check_place(&path, &name)?;
    if netlink.link(&name).is_ok() {
        bail!(
            State,
            "an interface `{name}` is there already: give the new one another name, as `adit init wg1`"
        );
    }
    let host = ThisHost::look(&netlink, path.parent())?;
    let answers = answer(args, &host)?;
    let private = new_keys::private_key()?;
    let text = text(&file::called(&path), &answers, &private);
    if path.parent() == Some(Path::new(config::DIR)) {
        file::make_dir(Path::new(config::DIR))?;
    }
    file::create(&path, &text)?;
    let public = private.public_key();
    match args.said {
        OutputArgs { quiet: true, .. } => Ok(()),
        OutputArgs { json: true, .. } => print_json(&InitDone::of(&name, &path, &answers, public)),
        _ => cli::print(summary(&path, &answers, public).as_bytes()),
    }
}

/// What was done, as JSON.
#[derive(Serialize)]
struct InitDone<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    file: &'a Path,
    public_key: String,
    addresses: Vec<String>,
    listen_port: u16,
    endpoint: String,
    forward: Option<&'a str>,
}

impl<'a> InitDone<'a> {
    fn of(interface: &'a str, file: &'a Path, answers: &Answers, public: PublicKey) -> Self {
        Self {
            schema: SCHEMA,
            interface,
            done: "made",
            file,
            public_key: public.to_string(),
            addresses: answers.addresses.iter().map(ToString::to_string).collect(),
            listen_port: answers.port,
            endpoint: answers.endpoint.to_string(),
            forward: answers.reach.forward().map(Forward::name),
        }
    }
}

/// Finds what is in the way of the file, before anything is asked.
fn check_place(path: &Path, name: &str) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        bail!(
            State,
            "{} is there already and stays as it is: `adit edit {}` changes it, `adit init NAME` makes another",
            path.display(),
            file::called(path)
        );
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if dir == Path::new(config::DIR) && !dir.exists() {
        return Ok(());
    }
    file::check_dir(dir).map_err(|failure| {
        Failure::State(format!(
            "{failure}; `adit init DIRECTORY/{name}.conf` makes it elsewhere"
        ))
    })
}

fn answer(args: &InitArgs, host: &ThisHost) -> Result<Answers> {
    let asker = Asker::new(args.yes);
    let networks = match args.subnet.is_empty() {
        false => host.check_networks(&args.subnet).map_err(Failure::State)?,
        true => {
            let free = host.free_networks()?;
            let question = "A private network for the tunnel";
            asker.ask(question, Some(&join(&free)), |text| {
                host.check_networks(&blocks(text)?)
            })?
        }
    };
    let port = match args.port {
        Some(port) => host.check_port(port).map_err(Failure::State)?,
        None => {
            let Some(free) = choose::free_port(|port| host.check_port(port).is_ok()) else {
                bail!(
                    State,
                    "no UDP port from {} on is free: give --port",
                    choose::PORT
                );
            };
            asker.ask("The UDP port", Some(&free.to_string()), |text| {
                let port = text.parse().ok().filter(|port| *port != 0);
                host.check_port(port.ok_or("expected a number from 1 to 65535")?)
            })?
        }
    };
    let endpoint = endpoint(args, host, &asker, port)?;
    let reach = match args.reach {
        Some(reach) => reach,
        None => asker.ask(
            "What peers may reach: host (this one alone), peers (each other), lan or internet",
            Some("internet"),
            |text| {
                let known = Reach::from_str(text, true);
                known.map_err(|_| "expected host, peers, lan or internet".to_owned())
            },
        )?,
    };
    let addresses = networks.into_iter().filter_map(choose::own_address);
    Ok(Answers {
        addresses: addresses.collect(),
        port,
        endpoint,
        reach,
    })
}

fn endpoint(args: &InitArgs, host: &ThisHost, asker: &Asker, port: u16) -> Result<HostPort> {
    if let Some(text) = &args.endpoint {
        return choose::endpoint(text, port)
            .map_err(|expected| Failure::Mistake(format!("--endpoint {text:?}: {expected}")));
    }
    // With a public address there is nothing to think about.
    let hidden = host.address.and_then(|ip| choose::is_hidden(ip, port));
    if host.address.is_none() && !asker.is_asking() {
        bail!(
            State,
            "this host has no route to the Internet, which would tell its address: give --endpoint HOST, where peers find it"
        );
    }
    if let Some(hidden) = hidden {
        say!("adit: {hidden}");
    }
    let default = host.address.map(|ip| ip.to_string());
    asker.ask(
        "Where peers find this host, a name or an address",
        default.as_deref(),
        |text| choose::endpoint(text, port),
    )
}

/// Networks as a person types them.
fn blocks(text: &str) -> std::result::Result<Vec<Cidr>, String> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    words.map(cli::block).collect()
}

fn join<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(", ")
}

/// The file. Its comments are for people who see such a file for the first time.
fn text(called: &str, answers: &Answers, private: &Secret) -> Zeroizing<String> {
    // All at once: a buffer that grows would leave copies of the key behind.
    let mut out = Zeroizing::new(String::with_capacity(4096));
    let public = private.public_key();
    _ = write!(
        out,
        "# A WireGuard tunnel. `adit up {called}` brings it up, `adit down {called}` takes it down,\n\
         # and `adit new-peer {called} --name phone --qr` gives a device access.\n\
         [Interface]\n\
         # The secret key of this host. Peers know the public key of it:\n\
         # {}\n\
         PrivateKey = {}\n",
        *keys::to_base64(&public.0),
        *keys::to_base64(private.bytes()),
    );
    _ = write!(
        out,
        "# The addresses of this host inside the tunnel. Peers get others of the same networks.\n\
         Address = {}\n\
         # The UDP port that peers send to. A firewall in front of this host must let it in.\n\
         ListenPort = {}\n\
         # Where peers find this host: `adit new-peer` writes it into their files.\n\
         # PublicEndpoint = {}\n",
        join(&answers.addresses),
        answers.port,
        answers.endpoint,
    );
    let forward = match answers.reach.forward() {
        Some(forward) => format!("# Forward = {forward}\n"),
        // Switched off, and there to be switched on.
        None => "## Forward = peers\n".to_owned(),
    };
    _ = write!(
        out,
        "# What peers may reach besides this host: peers (each other), lan (its private networks, too)\n\
         # or internet (everything). `adit up` has this host forward that, and translate addresses where\n\
         # it is needed; `adit down` undoes it. wg-quick passes over this line: under wg-quick, peers\n\
         # reach this host only, unless PostUp lines forward and translate.\n\
         {forward}"
    );
    out
}

/// What was done, a line each, and what to type next.
fn summary(path: &Path, answers: &Answers, public: PublicKey) -> String {
    let called = file::called(path);
    let networks = answers.addresses.iter().filter_map(|address| {
        let network = Cidr::new(address.ip, address.prefix_len)?;
        Some(format!("{network}, this host is {}", address.ip))
    });
    let mut out = format!(
        "made {}, for its owner only, with a new private key\n\
         public key: {public}\n",
        path.display()
    );
    for network in networks {
        _ = writeln!(out, "network: {network}");
    }
    let Answers {
        port,
        endpoint,
        reach,
        ..
    } = answers;
    _ = write!(
        out,
        "UDP port: {port}; peers find this host at {endpoint}\n\
         peers may reach: {}\n\
         next: adit up {called}\n\
         then: adit new-peer {called} --name phone --qr\n",
        reach.describe()
    );
    out
}
