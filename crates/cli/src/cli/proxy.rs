//! The arguments of `adit proxy`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use adit_proxy::config::{Bind, ProxyEndpoint, ServiceKind};
use clap::{Args, ValueEnum};

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;

/// How long a UDP client of `--forward` may be silent before it is forgotten: as long as a mapping of NAT
/// holds at least (RFC 4787).
const SILENCE: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct ProxyArgs {
    /// A file of wireproxy's or of wg-quick's, or the NAME of one in /etc/wireguard
    #[arg(value_name = "CONF|INTERFACE", conflicts_with = "config")]
    pub(crate) conf: Option<String>,
    /// A file of wireproxy's or of wg-quick's; without any, /etc/wireproxy/wireproxy.conf or
    /// ~/.config/wireproxy.conf
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Offer SOCKS5 at this port of this host, as 127.0.0.1:1080; repeatable, and so are the next two
    #[arg(long, value_name = "[ADDRESS:]PORT|unix:PATH", value_parser = own_port)]
    pub(crate) socks: Vec<Bind>,
    /// Offer an HTTP proxy there
    #[arg(long, value_name = "[ADDRESS:]PORT|unix:PATH", value_parser = own_port)]
    pub(crate) http: Vec<Bind>,
    /// Take what comes to a port of this host to a target inside the tunnel, as
    /// tcp:127.0.0.1:8080=10.0.0.5:80
    #[arg(long, value_name = "tcp|udp:LISTEN=TARGET", value_parser = forward)]
    pub(crate) forward: Vec<ForwardArg>,
    /// Whose TCP to use inside the tunnel
    #[arg(long, value_name = "STACK", value_enum, default_value_t)]
    pub(crate) stack: StackArg,
    /// Serve /metrics for Prometheus, and /readyz, at this address and port
    #[arg(short, long, value_name = "[ADDRESS]:PORT|unix:PATH", value_parser = port)]
    pub(crate) info: Option<Bind>,
    /// Say whether the file is right, and do nothing
    #[arg(short = 'n', long)]
    pub(crate) configtest: bool,
    /// Say nothing, unless it fails to begin
    #[arg(short, long)]
    pub(crate) silent: bool,
    /// Go on in the background once everything is there
    #[arg(short, long)]
    pub(crate) daemon: bool,
    /// Print the version
    #[arg(short = 'v', long = "version")]
    pub(crate) version: bool,
    /// Keep all rights, for a debugger or where the sandbox is in the way: see SECURITY.md
    #[arg(long, env = "ADIT_NO_SANDBOX", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_sandbox: bool,
    /// Report readiness on standard output, then leave the terminal: for the background process
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

/// Whose TCP is used inside the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackArg {
    /// What is best on this host
    #[default]
    Auto,
    /// That of this program, which works everywhere
    Smoltcp,
    /// That of the kernel, in a user namespace
    Kernel,
}

/// What `--forward` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForwardArg {
    is_udp: bool,
    bind: SocketAddr,
    target: ProxyEndpoint,
}

impl ForwardArg {
    pub(crate) fn service(&self) -> ServiceKind {
        match self.is_udp {
            false => ServiceKind::TcpClient {
                bind: Bind::Port(self.bind),
                target: self.target.clone(),
            },
            true => ServiceKind::UdpClient {
                bind: self.bind,
                target: self.target.clone(),
                inactivity: SILENCE,
            },
        }
    }
}

/// Where to listen, as files say it. A port alone is one of this host's own address.
fn port(text: &str) -> Result<Bind, String> {
    match text.parse() {
        Ok(port) => Ok(Bind::Port((Ipv4Addr::LOCALHOST, port).into())),
        Err(_) => text.parse(),
    }
}

/// The same for what has no password: only programs of this host are to come there.
fn own_port(text: &str) -> Result<Bind, String> {
    match port(text)? {
        Bind::Port(address) if !Bind::Port(address).is_local() => Err(format!(
            "{address} is open to other hosts, and there is no password: take 127.0.0.1:{}, or a file with [Socks5] or \
             [http], Username and Password",
            address.port()
        )),
        bind => Ok(bind),
    }
}

fn forward(text: &str) -> Result<ForwardArg, String> {
    let expected = || {
        "expected tcp:LISTEN=TARGET or udp:LISTEN=TARGET, as tcp:127.0.0.1:8080=10.0.0.5:80"
            .to_owned()
    };
    let (protocol, rest) = text.split_once(':').ok_or_else(expected)?;
    let is_udp = match protocol {
        "tcp" => false,
        "udp" => true,
        _ => return Err(expected()),
    };
    let (listen, target) = rest.split_once('=').ok_or_else(expected)?;
    let Bind::Port(bind) = port(listen)? else {
        return Err(expected());
    };
    Ok(ForwardArg {
        is_udp,
        bind,
        target: target.parse()?,
    })
}
