//! The tunnel of a proxy, and the stack inside it.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adit::net::{Net, NetError};
use adit::{Config, Peer, Threads};
use adit_ctl::config::HostPort;
use adit_engine::EventListener;
use adit_proto::config::PublicKey;
use adit_proxy::config::{EndpointHost, PeerPart, ProxyEndpoint, TunnelPart};
use adit_proxy::kernel::{
    self, ChosenStack, InnerNetwork, KernelOptions, KernelStack, StackChoice,
};
use adit_proxy::stack::Stack;

use crate::cli::StackArg;
use crate::failure::{Context, Result, say};

/// The argument with which this program makes sockets in a namespace of its own, and nothing else.
pub(crate) const ARGUMENT: &str = "--kernel-net";

/// The MTU inside where the file has none: that of wg-quick on an Internet of 1,500 bytes.
const MTU: usize = 1420;

/// Asks a host inside the tunnel whether it is there.
pub(super) type Ping =
    dyn Fn(IpAddr, Duration) -> std::result::Result<Duration, NetError> + Send + Sync;

/// What a tunnel calls, and on how many threads it runs.
pub(super) struct TunnelHooks {
    pub(super) threads: Threads,
    /// Called first on each other thread of the stack.
    pub(super) on_start: Arc<dyn Fn() + Send + Sync>,
    /// Called when the process of the kernel's stack has ended by itself.
    pub(super) on_end: Box<dyn FnOnce() + Send>,
    pub(super) listener: EventListener,
}

/// A stack that runs.
pub(super) struct RunningStack {
    pub(super) stack: Arc<dyn Stack>,
    pub(super) ping: Arc<Ping>,
    /// TCP connections inside the tunnel, where they are counted.
    pub(super) connections: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
}

/// Chooses the stack, before the sandbox begins: that of the kernel starts a process. Returns what was chosen, and
/// why, for people.
pub(super) fn choose_stack(choice: StackArg, part: &TunnelPart) -> Result<(ChosenStack, String)> {
    let choice = match choice {
        StackArg::Auto => StackChoice::Auto,
        StackArg::Smoltcp => StackChoice::Smoltcp,
        StackArg::Kernel => StackChoice::Kernel,
    };
    let network = InnerNetwork {
        addresses: part.addresses.clone(),
        mtu: part.mtu.unwrap_or(MTU),
    };
    // Not the path of the binary, which may have been replaced since.
    let program = Path::new("/proc/self/exe");
    let chosen = kernel::choose(choice, program, ARGUMENT, &network);
    chosen.context(|| "cannot have the kernel's stack (--stack smoltcp does without)".into())
}

/// Begins the tunnel with the stack that was chosen.
pub(super) fn begin_stack(
    chosen: ChosenStack,
    part: &TunnelPart,
    endpoints: &[Option<SocketAddr>],
    hooks: TunnelHooks,
) -> Result<RunningStack> {
    let failed = || "cannot begin the tunnel".to_owned();
    let config = tunnel_config(part, endpoints);
    let TunnelHooks {
        threads,
        on_start,
        on_end,
        listener,
    } = hooks;
    let build = move |builder: adit::Builder| builder.listener(listener);
    match chosen {
        ChosenStack::Kernel(namespace) => {
            let options = KernelOptions {
                dns: part.dns.clone(),
                threads,
                on_start: Some(on_start),
                on_end: Some(on_end),
                tunnel: Some(Box::new(build)),
            };
            let stack = KernelStack::start(namespace, config, options).context(failed)?;
            let stack = Arc::new(stack);
            let pings = Arc::clone(&stack);
            Ok(RunningStack {
                stack,
                ping: Arc::new(move |to, timeout| pings.ping(to, timeout)),
                connections: None,
            })
        }
        ChosenStack::Smoltcp => {
            let mut builder = Net::builder(config).threads(threads).tunnel(build);
            for address in &part.addresses {
                builder = builder.address(*address);
            }
            for server in &part.dns {
                builder = builder.dns(*server);
            }
            let net = builder.mtu(part.mtu.unwrap_or(MTU)).start();
            let net = Arc::new(net.context(failed)?);
            let (pings, counted) = (Arc::clone(&net), Arc::clone(&net));
            Ok(RunningStack {
                stack: net,
                ping: Arc::new(move |to, timeout| pings.ping(to, timeout)),
                connections: Some(Arc::new(move || counted.stats().connections)),
            })
        }
    }
}

fn tunnel_config(part: &TunnelPart, endpoints: &[Option<SocketAddr>]) -> Config {
    let config = Config::new(part.private_key.clone()).listen_port(part.listen_port);
    let peers = part.peers.iter().zip(endpoints);
    peers.fold(config, |config, (part, endpoint)| {
        config.peer(peer(part, *endpoint))
    })
}

fn peer(part: &PeerPart, endpoint: Option<SocketAddr>) -> Peer {
    let mut peer = Peer::new(part.public_key);
    peer.endpoint = endpoint;
    peer.preshared_key.clone_from(&part.preshared_key);
    peer.allowed_ips.clone_from(&part.allowed_ips);
    let keepalive = part.keepalive.unwrap_or_default();
    peer.keepalive(u16::try_from(keepalive.as_secs()).unwrap_or(u16::MAX))
}

/// The key of a peer as the engine has it.
pub(super) fn key_of(peer: &PeerPart) -> PublicKey {
    PublicKey(*peer.public_key.as_bytes())
}

/// Where the peers are, as the system's resolver says: outside the tunnel. A name that leads nowhere is
/// looked up again later.
pub(super) fn endpoints(name: &str, peers: &[PeerPart]) -> Vec<Option<SocketAddr>> {
    let of_peer = |peer: &PeerPart| {
        let ProxyEndpoint { host, port } = peer.endpoint.as_ref()?;
        let host = match host {
            EndpointHost::Address(ip) => return Some(SocketAddr::new(*ip, *port)),
            EndpointHost::Name(host) => host,
        };
        let found = (host.as_str(), *port).to_socket_addrs();
        let why = match found.map(|mut found| found.next()) {
            Ok(Some(found)) => return Some(found),
            Ok(None) => "no address belongs to it".to_owned(),
            Err(error) => error.to_string(),
        };
        say!(
            "Warning: cannot look up endpoint `{host}`: {why}; {name} goes on without, and looks it up again"
        );
        None
    };
    peers.iter().map(of_peer).collect()
}

/// The endpoints that are names.
pub(super) fn names(peers: &[PeerPart]) -> Vec<(PublicKey, HostPort)> {
    let of_peer = |peer: &PeerPart| match peer.endpoint.as_ref()? {
        ProxyEndpoint {
            host: EndpointHost::Name(host),
            port,
        } => Some((
            key_of(peer),
            HostPort {
                host: host.clone(),
                port: *port,
            },
        )),
        _ => None,
    };
    peers.iter().filter_map(of_peer).collect()
}
