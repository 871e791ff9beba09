//! `adit-lab embed-socks`: a program that knows no tunnel. It takes streams, or sends them through a SOCKS5 proxy.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use adit_testbed::framing::Family;
use clap::{Args, Subcommand};

use super::load::{self, Direction};
use super::stacks::{self, ECHO_PORT, PORTS};
use crate::daemon::{self, READY};
use crate::pair::LinkedHosts;
use crate::sandbox::Failure;
use crate::tools::Flow;

/// Takes streams, or sends them.
#[derive(Args, Clone, Debug)]
pub(crate) struct SocksArgs {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand, Clone, Debug)]
enum Role {
    /// Takes streams, sends some, and sends bytes back.
    Serve {
        /// The address to listen at.
        at: IpAddr,
    },
    /// Sends streams, or has them sent.
    Load {
        /// The proxy; none: without one.
        #[arg(long)]
        proxy: Option<SocketAddr>,
        /// Streams come from the other end.
        #[arg(long)]
        back: bool,
        /// Connections that are timed afterwards, one after the other.
        #[arg(long, default_value_t = 200)]
        set_ups: usize,
        /// The address of the other end.
        to: IpAddr,
        /// How many.
        streams: usize,
        /// For how long.
        seconds: u64,
    },
}

pub(crate) fn run(args: &SocksArgs) -> Result<(), Failure> {
    match args.role {
        Role::Serve { at } => serve(at),
        Role::Load {
            proxy,
            back,
            set_ups,
            to,
            streams,
            seconds,
        } => {
            let duration = Duration::from_secs(seconds);
            let connect = |port| connect(proxy, to, port, duration);
            let direction = match back {
                true => Direction::Back,
                false => Direction::There,
            };
            let mut said = load::run(connect, direction, streams, duration)?;
            for _ in 0..set_ups {
                said.set_ups.push(set_up(connect)?);
            }
            load::say(&said)
        }
    }
}

/// Streams from host a to host b through a tunnel, or the link, without a proxy.
pub(super) fn flow(pair: &LinkedHosts, streams: u32, seconds: u32) -> Result<Flow, Failure> {
    let to = pair.address(Family::V4, 1).to_string();
    let words = |more: &[&str]| -> Result<Vec<String>, Failure> {
        let words = ["embed-socks"].iter().chain(more);
        Ok([lab()?]
            .into_iter()
            .chain(words.map(|it| (*it).to_owned()))
            .collect())
    };
    let is_ready = |log: &str| log.lines().any(|line| line == "ready");
    let serve = words(&["serve", &to])?;
    let _server = daemon::start_and_hear(&pair.b, "serve", &serve, "", READY, is_ready)?;
    let [streams, time] = [streams, seconds].map(|number| number.to_string());
    let load = words(&["load", "--set-ups=0", &to, &streams, &time])?;
    let limit = READY * 3 + Duration::from_secs(seconds.into());
    let has_said = |log: &str| stacks::parse(log).is_some();
    drop(daemon::start_and_hear(
        &pair.a, "load", &load, "", limit, has_said,
    )?);
    let said = stacks::read(&pair.a, "load")?;
    Ok(Flow {
        bytes: said.bytes,
        seconds: said.seconds,
        warm_up_bytes: 0.0,
        retransmits: None,
        datagrams: None,
    })
}

/// This program.
pub(super) fn lab() -> Result<String, Failure> {
    Ok(std::env::current_exe()?.to_string_lossy().into_owned())
}

fn serve(at: IpAddr) -> Result<(), Failure> {
    let mut listeners = Vec::new();
    for port in PORTS {
        listeners.push((port, TcpListener::bind((at, port))?));
    }
    println!("ready");
    load::serve(|port| {
        let listener = listeners.iter().find(|(of, _)| *of == port);
        let (_, listener) = listener.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok::<_, io::Error>(listener.accept()?.0)
    });
    Err("nothing can be accepted any more".into())
}

/// Microseconds until a byte came back through a new connection.
fn set_up(connect: impl Fn(u16) -> Result<TcpStream, Failure>) -> Result<f64, Failure> {
    let (begun, mut byte) = (Instant::now(), [0]);
    let mut stream = connect(ECHO_PORT)?;
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

fn connect(
    proxy: Option<SocketAddr>,
    to: IpAddr,
    port: u16,
    duration: Duration,
) -> Result<TcpStream, Failure> {
    let at = proxy.unwrap_or(SocketAddr::new(to, port));
    let mut stream = TcpStream::connect_timeout(&at, load::PATIENCE)?;
    let limit = Some(duration + 2 * load::PATIENCE);
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)?;
    stream.set_nodelay(true)?;
    if proxy.is_some() {
        request(&mut stream, to, port)?;
    }
    Ok(stream)
}

/// Asks a SOCKS5 proxy for a connection (RFC 1928).
fn request(stream: &mut TcpStream, to: IpAddr, port: u16) -> Result<(), Failure> {
    // Version 5, one method: no authentication.
    stream.write_all(&[5, 1, 0])?;
    let mut method = [0; 2];
    stream.read_exact(&mut method)?;
    if method != [5, 0] {
        return Err(format!("the proxy wants another method: {method:?}").into());
    }
    let IpAddr::V4(to) = to else {
        return Err("only IPv4 is measured".into());
    };
    let mut connect = vec![5, 1, 0, 1];
    connect.extend(to.octets());
    connect.extend(port.to_be_bytes());
    stream.write_all(&connect)?;
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let rest = match head {
        [5, 0, _, 1] => 4 + 2,
        [5, 0, _, 4] => 16 + 2,
        [_, code, ..] => return Err(format!("the proxy answered {code}").into()),
    };
    stream.read_exact(&mut [0; 18][..rest])?;
    Ok(())
}
