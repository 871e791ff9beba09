//! `adit-lab embed-net`: a program that embeds `adit::net`. [`stacks`](super::stacks) has its words.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adit::net::{Net, TcpStream};
use adit::{Config, Peer};
use adit_testbed::framing::TUNNEL_MTU;
use clap::{Args, Subcommand};

use super::stacks::{ECHO_PORT, SINK_PORT, Said};
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
    /// Sends streams.
    Load {
        #[command(flatten)]
        tunnel: TunnelArgs,
        /// How many.
        streams: usize,
        /// For how long.
        seconds: u64,
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

/// What iperf3 writes at once.
const BLOCK: usize = 128 << 10;
/// Between two bytes that are timed.
const INTERVAL: Duration = Duration::from_millis(5);
/// For connections, and for what is on its way at the end.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &NetArgs) -> Result<(), Failure> {
    match &args.role {
        Role::Serve(tunnel) => serve(&up(tunnel)?),
        Role::Load {
            tunnel,
            streams,
            seconds,
        } => load(
            &up(tunnel)?,
            tunnel.theirs,
            *streams,
            Duration::from_secs(*seconds),
        ),
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
    let (sink, echo) = (net.listen_tcp(SINK_PORT)?, net.listen_tcp(ECHO_PORT)?);
    println!("ready");
    thread::scope(|scope| {
        let echoes = scope.spawn(|| {
            while let Ok(stream) = echo.accept() {
                scope.spawn(move || send_back(stream));
            }
        });
        while let Ok(stream) = sink.accept() {
            scope.spawn(move || take(stream));
        }
        let _ = echoes.join();
    });
    Err("the tunnel has ended".into())
}

/// Reads a stream to its end, and answers its length.
fn take(mut stream: TcpStream) -> io::Result<()> {
    let (mut buffer, mut count) = (vec![0; BLOCK], 0_u64);
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            len => count += len as u64,
        }
    }
    stream.write_all(&count.to_be_bytes())
}

fn send_back(mut stream: TcpStream) -> io::Result<()> {
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}

fn load(net: &Net, theirs: IpAddr, streams: usize, duration: Duration) -> Result<(), Failure> {
    let connect = |port: u16| -> Result<TcpStream, Failure> {
        let stream = net.connect_tcp((theirs, port), PATIENCE)?;
        let limit = Some(duration + 2 * PATIENCE);
        stream.set_read_timeout(limit)?;
        stream.set_write_timeout(limit)?;
        Ok(stream)
    };
    let echo = connect(ECHO_PORT)?;
    let all: Result<Vec<_>, _> = (0..streams).map(|_| connect(SINK_PORT)).collect();
    let all = all?;
    let begun = Instant::now();
    let end = begun + duration;
    let times = thread::spawn(move || round_trips(echo, end));
    let senders: Vec<_> = all
        .into_iter()
        .map(|stream| thread::spawn(move || send(stream, end)))
        .collect();
    let mut bytes = 0;
    for sender in senders {
        bytes += joined(sender)?;
    }
    let said = Said {
        #[expect(clippy::cast_precision_loss, reason = "bytes of seconds")]
        bytes: bytes as f64,
        seconds: begun.elapsed().as_secs_f64(),
        round_trips: joined(times)?,
    };
    println!("{}", serde_json::to_string(&said)?);
    loop {
        thread::park();
    }
}

fn joined<T>(thread: JoinHandle<io::Result<T>>) -> Result<T, Failure> {
    Ok(thread.join().map_err(|_| "a thread panicked")??)
}

/// Sends until the end. How many bytes arrived.
fn send(mut stream: TcpStream, end: Instant) -> io::Result<u64> {
    let buffer = vec![0; BLOCK];
    while Instant::now() < end {
        stream.write_all(&buffer)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    Ok(u64::from_be_bytes(count))
}

/// Times single bytes until the end, in microseconds.
fn round_trips(mut stream: TcpStream, end: Instant) -> io::Result<Vec<f64>> {
    let (mut times, mut byte) = (Vec::new(), [0]);
    while Instant::now() < end {
        let sent = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
        thread::sleep(INTERVAL);
    }
    Ok(times)
}
