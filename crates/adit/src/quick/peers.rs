//! `adit new-peer`, `add` and `remove`: peers of a configuration file, and of the interface if it
//! runs.
//!
//! 1. read the file and find what can be found wrong;
//! 2. change its text, and check the result as `adit up` would;
//! 3. replace the file;
//! 4. change the running interface in the same way: keys and peers over its control socket.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use adit_ctl::config::{self, Address, Config, Endpoint};
use adit_ctl::keys;
use adit_ctl::uapi::{Client, ClientError};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, PeerChange};
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use zeroize::Zeroizing;

use super::routing::{self, Planned};
use super::{Quick, addresses, is_unserved, open_netlink, read, require_rights};
use crate::cli::{self, AddArgs, ConfArgs, FileArgs, NewPeerArgs, RemoveArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::keys as new_keys;

/// The default of WireGuard's documentation: shorter than what NATs forget.
const KEEPALIVE: u16 = 25;

pub(crate) fn new_peer(args: &NewPeerArgs) -> Result<()> {
    require_rights()?;
    let quick = open(&args.conf)?;
    let interface = &quick.config.interface;
    // A hook may set it.
    let running = || quick.ask().ok()?.private_key;
    let Some(own) = interface.private_key.clone().or_else(running) else {
        bail!(
            Mistake,
            "{} has no PrivateKey, and {name} is not up: the new peer needs the public key of this interface. If a hook sets \
             it, run `adit up {name}` before",
            quick.path.display(),
            name = quick.name
        );
    };
    let addresses = new_addresses(&quick)?;
    let endpoint = match &args.endpoint {
        Some(endpoint) => endpoint.clone(),
        None => guess_endpoint(&quick)?,
    };
    let private = new_keys::private_key()?;
    let preshared = new_keys::preshared_key()?;
    let allowed = match args.allowed_ips.is_empty() {
        false => args.allowed_ips.clone(),
        true => networks(&interface.addresses),
    };

    let mut client = Zeroizing::new(String::with_capacity(1024));
    _ = write!(
        client,
        "[Interface]\nPrivateKey = {}\n",
        *keys::to_base64(private.bytes())
    );
    _ = writeln!(client, "Address = {}", join(&addresses));
    if !args.dns.is_empty() {
        _ = writeln!(client, "DNS = {}", join(&args.dns));
    }
    _ = write!(
        client,
        "\n[Peer]\nPublicKey = {}\nPresharedKey = {}\nAllowedIPs = {}\nEndpoint = {endpoint}\n\
         PersistentKeepalive = {KEEPALIVE}\n",
        *keys::to_base64(&own.public_key().0),
        *keys::to_base64(preshared.bytes()),
        join(&allowed),
    );
    let hosts: Vec<Cidr> = (addresses.iter())
        .filter_map(|address| host(address.ip))
        .collect();
    let change = PeerChange {
        preshared_key: Some(preshared),
        replace_allowed_ips: true,
        allowed_ips: hosts.into_iter().map(AllowedIpChange::Add).collect(),
        ..PeerChange::new(private.public_key())
    };
    quick.add_peer(&change, None, args.name.as_deref())?;
    new_keys::warn_of_readers();
    cli::print(client.as_bytes())?;
    if args.qr {
        cli::print(qr(&client)?.as_bytes())?;
    }
    Ok(())
}

pub(crate) fn add(args: &AddArgs) -> Result<()> {
    require_rights()?;
    let quick = open(&args.conf)?;
    let allowed = match args.allowed_ips.is_empty() {
        false => args.allowed_ips.clone(),
        true => {
            let addresses = new_addresses(&quick)?;
            addresses
                .iter()
                .filter_map(|address| host(address.ip))
                .collect()
        }
    };
    let change = PeerChange {
        persistent_keepalive: args.persistent_keepalive,
        replace_allowed_ips: true,
        allowed_ips: allowed.iter().copied().map(AllowedIpChange::Add).collect(),
        ..PeerChange::new(args.peer)
    };
    quick.add_peer(&change, args.endpoint.as_ref(), args.name.as_deref())?;
    say!("adit: the allowed IPs of the new peer: {}", join(&allowed));
    Ok(())
}

pub(crate) fn remove(args: &RemoveArgs) -> Result<()> {
    require_rights()?;
    let quick = open(&args.conf)?;
    let text = read(&quick.path)?;
    let named = keys::public_from_base64(&args.peer);
    let Some(peer) = named.or_else(|| config::peer_named(&text, &args.peer)) else {
        bail!(
            Mistake,
            "{} has no peer with the name {}: expected a name that stands in a comment above its [Peer], or a public \
             key",
            quick.path.display(),
            args.peer
        );
    };
    let Some(rest) = config::without_peer(&text, peer) else {
        bail!(Mistake, "{} has no such peer", quick.path.display());
    };
    quick.replace_file(&rest)?;
    let mut sections = quick.config.peers.iter();
    quick.apply(PeerChange {
        remove: true,
        // For their routes.
        allowed_ips: (sections.find(|section| section.public_key == peer))
            .map_or_else(Vec::new, |section| section.allowed_ips.clone()),
        ..PeerChange::new(peer)
    })
}

/// The file, without mistakes.
fn open(conf: &ConfArgs) -> Result<Quick> {
    Quick::load(&FileArgs {
        conf: conf.clone(),
        keys: None,
    })
}

fn join<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(", ")
}

fn host(ip: IpAddr) -> Option<Cidr> {
    Cidr::new(ip, if ip.is_ipv4() { 32 } else { 128 })
}

fn networks(addresses: &[Address]) -> Vec<Cidr> {
    let networks = addresses.iter();
    networks
        .filter_map(|address| Cidr::new(address.ip, address.prefix_len))
        .collect()
}

/// A free address of each of the interface's networks.
fn new_addresses(quick: &Quick) -> Result<Vec<Address>> {
    let taken: Vec<Cidr> = quick.blocks().collect();
    let own = &quick.config.interface.addresses;
    let found: Vec<Address> = (own.iter())
        .filter_map(|own| {
            let ip = addresses::free(*own, &taken)?;
            Some(Address { ip, ..*own })
        })
        .collect();
    if found.is_empty() {
        bail!(
            State,
            "no network of {} has a free address: its Address is {}",
            quick.name,
            if own.is_empty() {
                "missing".into()
            } else {
                join(own)
            }
        );
    }
    Ok(found)
}

/// This host's address towards the Internet, and the port of the interface.
fn guess_endpoint(quick: &Quick) -> Result<Endpoint> {
    let port = quick.config.interface.listen_port.filter(|port| *port != 0);
    let running = || quick.ask().ok().map(|status| status.listen_port);
    let Some(port) = port.or_else(running).filter(|port| *port != 0) else {
        bail!(
            Mistake,
            "{} has no ListenPort, so that no peer can find it: add one, or give --endpoint",
            quick.path.display()
        );
    };
    // Connecting a UDP socket sends nothing. The addresses are of the documentation.
    let towards = |any: &str, there: &str| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((there, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    let ip = towards("0.0.0.0", "192.0.2.1").or_else(|| towards("::", "2001:db8::1"));
    let Some(ip) = ip else {
        bail!(
            State,
            "this host has no route to the Internet: give --endpoint HOST:PORT, where the peer finds it"
        );
    };
    say!(
        "adit: the peer is told to find this host at {}; if it has another address outside, give --endpoint HOST:PORT",
        SocketAddr::new(ip, port)
    );
    Ok(Endpoint {
        host: ip.to_string(),
        port,
    })
}

fn qr(text: &str) -> Result<Zeroizing<String>> {
    let code = QrCode::new(text).context(|| "cannot make a QR code".into())?;
    // Dark on light, whatever the terminal's colours are.
    let mut image = Zeroizing::new(code.render::<Dense1x2>().build());
    if std::io::stdout().is_terminal() {
        *image = image
            .lines()
            .map(|line| format!("\x1b[30;47m{line}\x1b[0m\n"))
            .collect();
    } else {
        image.push('\n');
    }
    Ok(image)
}

impl Quick {
    /// Adds a peer to the file and to the running interface.
    fn add_peer(
        &self,
        change: &PeerChange,
        endpoint: Option<&Endpoint>,
        name: Option<&str>,
    ) -> Result<()> {
        let file = self.path.display();
        if (self.config.peers.iter()).any(|peer| peer.public_key == change.public_key) {
            bail!(
                Mistake,
                "{file} has this peer already: `adit remove` removes it"
            );
        }
        let old = read(&self.path)?;
        let section = section(change, endpoint, name);
        // Room for all, so that no growing leaves copies of keys behind.
        let mut new = Zeroizing::new(String::with_capacity(old.len() + section.len() + 2));
        new.push_str(&old);
        if !new.is_empty() && !new.ends_with('\n') {
            new.push('\n');
        }
        new.push_str(&section);
        self.replace_file(&new)?;
        self.apply(PeerChange {
            endpoint: endpoint.and_then(Endpoint::numeric),
            ..change.clone()
        })?;
        if let Some(endpoint) = endpoint.filter(|it| it.numeric().is_none()) {
            // The interface's process looks it up, if there is one and it is Adit's.
            let named = std::iter::once((change.public_key, endpoint));
            let client = Client::connect(&self.name).map_err(ClientError::Io);
            match client.and_then(|mut client| client.name_endpoints(named, false)) {
                Err(error) if !is_unserved(&error) => say!(
                    "adit: `adit sync {}` looks up the name of the endpoint",
                    self.name
                ),
                _ => {}
            }
        }
        Ok(())
    }

    /// Replaces the file, if `adit up` understands what it is to say.
    fn replace_file(&self, text: &str) -> Result<()> {
        let parsed = Config::parse(text, &self.path.display().to_string());
        let parsed = parsed.map_err(|errors| Failure::Mistake(errors.to_string()))?;
        let known = &self.config.warnings;
        for warning in parsed.warnings.iter().filter(|it| !known.contains(it)) {
            say!("Warning: {warning}");
        }
        super::write(&self.path, text)
    }

    /// Changes a peer of the interface, if it is up, and its routes.
    fn apply(&self, peer: PeerChange) -> Result<()> {
        match self.ask() {
            Err(error) if is_unserved(&error) => return Ok(()),
            Err(error) => return Err(self.explain(error)),
            Ok(_) => {}
        }
        let blocks: Vec<Cidr> = (peer.allowed_ips.iter())
            .filter_map(|change| match change {
                AllowedIpChange::Add(block) => Some(*block),
                AllowedIpChange::Remove(_) => None,
            })
            .collect();
        let gone = peer.remove;
        self.set(&DeviceChange {
            peers: vec![peer],
            ..DeviceChange::default()
        })?;
        let netlink = open_netlink()?;
        let Ok(link) = netlink.link(&self.name) else {
            return Ok(());
        };
        let interface = &self.config.interface;
        for planned in routing::plan(&interface.addresses, &blocks, &interface.table)? {
            match planned {
                Planned::Plain(block, table) if gone => {
                    routing::delete_route(&netlink, link.index, block, table)?;
                }
                Planned::Plain(block, table) => {
                    routing::add_route(&netlink, link.index, block, table)?;
                }
                Planned::Default(_) => {
                    say!(
                        "adit: `adit sync {}` brings its default route up to date",
                        self.name
                    );
                }
            }
        }
        Ok(())
    }
}

/// A `[Peer]` section, with a name that other programs read, too.
fn section(
    change: &PeerChange,
    endpoint: Option<&Endpoint>,
    name: Option<&str>,
) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::with_capacity(1024 + 64 * change.allowed_ips.len()));
    out.push('\n');
    if let Some(name) = name {
        _ = writeln!(out, "# friendly_name = {name}");
    }
    _ = write!(
        out,
        "[Peer]\nPublicKey = {}\n",
        *keys::to_base64(&change.public_key.0)
    );
    if let Some(key) = &change.preshared_key {
        _ = writeln!(out, "PresharedKey = {}", *keys::to_base64(key.bytes()));
    }
    let blocks: Vec<String> = (change.allowed_ips.iter())
        .filter_map(|change| match change {
            AllowedIpChange::Add(block) => Some(block.to_string()),
            AllowedIpChange::Remove(_) => None,
        })
        .collect();
    _ = writeln!(out, "AllowedIPs = {}", blocks.join(", "));
    if let Some(endpoint) = endpoint {
        _ = writeln!(out, "Endpoint = {endpoint}");
    }
    if let Some(seconds) = change.persistent_keepalive {
        _ = writeln!(out, "PersistentKeepalive = {seconds}");
    }
    out
}
