//! `adit-lab embed-net`: a program that embeds `adit::net`. [`stacks`](super::stacks) has its words.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit::net::{Net, NetError, TcpStream};
use adit::{Config, Peer};
use adit_testbed::framing::TUNNEL_MTU;
use clap::{Args, Subcommand};

use super::load;
use super::stacks::PORTS;
use crate::sandbox::Failure;

/// A tunnel to one peer that ends in this process. Its private key is read from standard input.
#[derive(Args, Clone, Debug)]
pub(crate) struct NetArgs {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand, Clone, Debug)]
enum Role {
    /// Takes streams, and sends bytes back.
    Serve(TunnelArgs),
    /// Sends streams, or has them sent.
    Load {
        #[command(flatten)]
        tunnel: TunnelArgs,
        /// How many.
        streams: usize,
        /// For how long.
        seconds: u64,
        /// Which way.
        direction: load::Direction,
    },
}

#[derive(Args, Clone, Debug)]
struct TunnelArgs {
    /// The address of this end inside the tunnel.
    ours: IpAddr,
    /// That of the other end.
    theirs: IpAddr,
    /// The UDP port.
    port: u16,
    /// The peer's public key.
    peer: String,
    /// The peer's address and port.
    endpoint: SocketAddr,
}

pub(crate) fn run(args: &NetArgs) -> Result<(), Failure> {
    match &args.role {
        Role::Serve(tunnel) => serve(&up(tunnel)?),
        Role::Load {
            tunnel,
            streams,
            seconds,
            direction,
        } => {
            let duration = Duration::from_secs(*seconds);
            send(&up(tunnel)?, tunnel.theirs, *direction, *streams, duration)
        }
    }
}

fn up(args: &TunnelArgs) -> Result<Net, Failure> {
    let mut key = String::new();
    io::stdin().read_line(&mut key)?;
    let peer = Peer::new(args.peer.parse()?)
        .endpoint(args.endpoint)
        .allowed_ip("0.0.0.0/0".parse()?);
    let config = Config::new(key.trim().parse()?)
        .listen_port(args.port)
        .peer(peer);
    Ok(Net::builder(config)
        .address(args.ours)
        .mtu(TUNNEL_MTU)
        .start()?)
}

fn serve(net: &Net) -> Result<(), Failure> {
    let mut listeners = Vec::new();
    for port in PORTS {
        listeners.push((port, net.listen_tcp(port)?));
    }
    println!("ready");
    load::serve(|port| {
        let listener = listeners.iter().find(|(of, _)| *of == port);
        listener.map_or(Err(NetError::PortTaken(port)), |(_, it)| it.accept())
    });
    Err("the tunnel has ended".into())
}

fn send(
    net: &Net,
    theirs: IpAddr,
    direction: load::Direction,
    streams: usize,
    duration: Duration,
) -> Result<(), Failure> {
    let connect = |port: u16| -> Result<TcpStream, Failure> {
        let stream = net.connect_tcp((theirs, port), load::PATIENCE)?;
        let limit = Some(duration + 2 * load::PATIENCE);
        stream.set_read_timeout(limit)?;
        stream.set_write_timeout(limit)?;
        Ok(stream)
    };
    load::say(&load::run(connect, direction, streams, duration)?)
}
