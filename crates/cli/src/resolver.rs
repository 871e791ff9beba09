//! The process that looks names up, for one that serves interfaces: `adit --resolver`.
//!
//! It is a process of its own because the system's resolver opens files and sockets, loads modules
//! and may block for minutes: what serves interfaces is to do nothing of that. It is started before
//! the first interface exists, in the same namespaces. Requests and answers are datagrams of a
//! socket pair, its standard input; it ends when the other end is closed.
//!
//! It is two processes. The first ([`serve`]) becomes nobody, reads nothing, and starts the second
//! (`adit --resolver --look-up`), again when that has ended. The second begins a sandbox, and reads the single
//! files that a look-up takes. A file that was replaced, as resolv.conf(5) often is, is another file
//! for the sandbox: then the second process lets the next request wait, and ends.
//!
//! The addresses are those of getaddrinfo(3), with all that the system is set to: hosts(5), DNS and
//! whatever else nsswitch.conf(5) says. It does not tell how long they hold. So the first server of
//! resolv.conf(5) is asked for that, too; without an answer, they hold for [`DEFAULT_TTL`].
//!
//! A tunnel with a default route takes the system's look-ups into the tunnel, and if its peer has
//! moved, they get no answer there. Then the servers of resolv.conf(5) are asked with the tunnel's
//! own mark, which leads around it. Marks take a right, so that sockets with it come with the
//! request.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adit_sandbox::{Role, begin_names, begin_starting, confine, files_for_names};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, connect_unspec, recvmsg,
};
use rustix::process::Signal;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, TYPE};

use crate::failure::{Context, Result};

/// The argument that starts it.
pub(crate) const ARGUMENT: &str = "--resolver";
/// The one that follows for the second process.
pub(crate) const LOOK_UP: &str = "--look-up";
/// The one that may follow.
pub(crate) const WITHOUT_SANDBOX: &str = "--no-sandbox";
/// The datagram that tells that requests without an answer are lost.
pub(crate) const BEGUN_ANEW: &[u8] = &[0];
/// Between the end of a process that failed and the start of the next one.
const PAUSE: Timespec = Timespec {
    tv_sec: 3,
    tv_nsec: 0,
};
/// Requests that are worked on at the same time: each may wait for servers that do not answer.
pub(crate) const IN_FLIGHT: usize = 4;
/// How long addresses hold of which nobody says how long.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(300);
/// Addresses in an answer.
pub(crate) const MAX_ADDRESSES: usize = 16;
/// Names that a name leads to, one after the other, as resolvers allow.
const MAX_ALIASES: usize = 16;
/// Sockets that come with a request: one for IPv4, one for IPv6.
pub(crate) const MARKED: usize = 2;
/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Servers that are asked; resolv.conf(5) allows as many.
const MAX_SERVERS: usize = 3;
const MAX_MESSAGE: usize = 512;

/// A name to be looked up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Comes back with the answer.
    pub(crate) id: u32,
    pub(crate) host: String,
}

/// The addresses that it leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) id: u32,
    /// Without a port; empty if the look-up failed.
    pub(crate) addrs: Vec<SocketAddr>,
    /// How long they hold.
    pub(crate) ttl: Duration,
}

impl Request {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + self.host.len());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.host.as_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (id, host) = bytes.split_first_chunk()?;
        Some(Self {
            id: u32::from_le_bytes(*id),
            host: std::str::from_utf8(host).ok()?.to_owned(),
        })
    }
}

impl Answer {
    fn to_bytes(&self) -> Vec<u8> {
        let ttl = u32::try_from(self.ttl.as_secs()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(8 + 21 * MAX_ADDRESSES);
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(ttl.to_le_bytes());
        for addr in self.addrs.iter().take(MAX_ADDRESSES) {
            let (v6, ip, scope) = match addr {
                SocketAddr::V4(v4) => (0, v4.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(v6) => (1, *v6.ip(), v6.scope_id()),
            };
            bytes.push(v6);
            bytes.extend(ip.octets());
            bytes.extend(scope.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (ttl, rest) = rest.split_first_chunk()?;
        let addrs = rest.chunks(21).take(MAX_ADDRESSES).map(|chunk| {
            let (v6, rest) = chunk.split_first()?;
            let (ip, scope) = rest.split_first_chunk::<16>()?;
            let ip = Ipv6Addr::from(*ip);
            match v6 {
                0 => Some(SocketAddr::new(ip.to_ipv4_mapped()?.into(), 0)),
                _ => {
                    let scope = u32::from_le_bytes(scope.try_into().ok()?);
                    Some(SocketAddrV6::new(ip, 0, 0, scope).into())
                }
            }
        });
        Some(Self {
            id: u32::from_le_bytes(*id),
            addrs: addrs.collect::<Option<_>>()?,
            ttl: Duration::from_secs(u32::from_le_bytes(*ttl).into()),
        })
    }
}

/// Has requests answered until the other end is closed, with a sandbox or without.
pub(crate) fn serve(sandbox: bool) -> Result<()> {
    let failed = || "cannot look names up".to_owned();
    let _ = rustix::thread::set_name(c"adit-restarts");
    adit_io::close_inherited(&[]).context(failed)?;
    let socket = adit_io::duplicate(0).context(failed)?;
    if sandbox {
        begin_starting().context(failed)?;
    }
    // Another user would have undone this.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context(failed)?;
    let arguments = [ARGUMENT, LOOK_UP, WITHOUT_SANDBOX];
    let arguments = &arguments[..if sandbox { 2 } else { 3 }];
    loop {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("adit").args(arguments).stderr(Stdio::null());
        let theirs = socket.try_clone().context(failed)?;
        let started = command.stdin(theirs).stdout(Stdio::null()).spawn();
        let Ok(mut child) = started else {
            // Nobody may not execute the program, perhaps.
            return look_up_for(&socket, sandbox, false);
        };
        let ended = child.wait().is_ok_and(|status| status.success());
        if hangs_up(&socket, &Timespec::default()) {
            return Ok(());
        }
        if !ended {
            let _ = rustix::net::send(&socket, BEGUN_ANEW, SendFlags::NOSIGNAL);
            if hangs_up(&socket, &PAUSE) {
                return Ok(());
            }
        }
    }
}

/// Whether the other end of a socket is closed, or is within this time.
fn hangs_up(socket: &OwnedFd, within: &Timespec) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    matches!(poll(&mut fds, Some(within)), Ok(1..))
}

/// Answers requests in the second process.
pub(crate) fn look_up_again(sandbox: bool) -> Result<()> {
    let failed = || "cannot look names up".to_owned();
    adit_io::close_inherited(&[]).context(failed)?;
    let socket = adit_io::duplicate(0).context(failed)?;
    // Its look-ups may last: it is not to outlive the other process meanwhile.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context(failed)?;
    look_up_for(&socket, sandbox, true)
}

/// Answers requests until the other end is closed; where another process is started then, also until
/// a file was replaced.
fn look_up_for(socket: &OwnedFd, sandbox: bool, is_started_again: bool) -> Result<()> {
    let failed = || "cannot look names up".to_owned();
    let _ = rustix::thread::set_name(c"adit-resolver");
    // Before the sandbox begins, so that none is replaced in between.
    let files = files_for_names();
    if sandbox {
        begin_names().context(failed)?;
    }
    let is_limited = adit_sandbox::parts().files && is_started_again;
    let is_current = || !is_limited || files_for_names() == files;
    let work = || {
        if confine(Role::Resolver).is_ok() {
            answer_all(socket, &is_current);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..IN_FLIGHT {
            scope.spawn(work);
        }
        work();
    });
    Ok(())
}

/// Returns when a file was replaced: what else is under way is still answered.
fn answer_all(socket: &OwnedFd, is_current: &impl Fn() -> bool) {
    let mut bytes = [0; MAX_MESSAGE];
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        // Errors are of signals.
        let _ = poll(&mut fds, None);
        if !is_current() {
            return;
        }
        let (length, marked) = match receive(socket, &mut bytes) {
            Ok((length @ 1.., marked)) => (length, marked),
            // Another thread has it.
            Err(Errno::AGAIN) => continue,
            // It has ended. Other threads may be in a look-up.
            _ => std::process::exit(0),
        };
        let Some(request) = Request::parse(&bytes[..length]) else {
            continue;
        };
        let (addrs, ttl) = look_up(&request.host, &marked);
        let id = request.id;
        let answer = Answer { id, addrs, ttl }.to_bytes();
        if rustix::net::send(socket, &answer, SendFlags::NOSIGNAL).is_err() {
            std::process::exit(0);
        }
    }
}

/// A request, and the sockets that come with it.
fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Vec<UdpSocket>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MARKED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(socket, &mut parts, &mut control, flags)
    })?;
    let mut marked = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            marked.extend(fds.map(UdpSocket::from));
        }
    }
    Ok((received.bytes, marked))
}

fn look_up(host: &str, marked: &[UdpSocket]) -> (Vec<SocketAddr>, Duration) {
    let servers = servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    let found = (host, 0).to_socket_addrs().map(Iterator::collect);
    let found: Vec<SocketAddr> = found.unwrap_or_default();
    if let Some(first) = found.first() {
        let of = if first.is_ipv4() { TYPE::A } else { TYPE::AAAA };
        let told = servers.first().and_then(|server| {
            let any: IpAddr = match server {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            ask(&UdpSocket::bind((any, 0)).ok()?, *server, host, of)
        });
        let ttl = told.map_or(DEFAULT_TTL, |(_, ttl)| ttl);
        return (found, ttl);
    }
    // Around the tunnel.
    for server in servers {
        let of_family = |socket: &&UdpSocket| {
            let own = socket.local_addr();
            own.is_ok_and(|own| own.is_ipv4() == server.is_ipv4())
        };
        let Some(socket) = marked.iter().find(of_family) else {
            continue;
        };
        let told = [TYPE::AAAA, TYPE::A].map(|of| ask(socket, server, host, of));
        let ttl = told.iter().flatten().map(|(_, ttl)| *ttl).min();
        let addrs: Vec<SocketAddr> = (told.into_iter().flatten())
            .flat_map(|(addrs, _)| addrs)
            .map(|ip| SocketAddr::new(ip, 0))
            .collect();
        if !addrs.is_empty() {
            return (addrs, ttl.unwrap_or(DEFAULT_TTL));
        }
    }
    (Vec::new(), DEFAULT_TTL)
}

/// The servers of resolv.conf(5).
fn servers(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        let ip: IpAddr = words.next().filter(|_| is_server)?.parse().ok()?;
        Some(SocketAddr::new(ip, 53))
    });
    servers.take(MAX_SERVERS).collect()
}

/// Asks one server for addresses of one family: these, and how long they hold.
fn ask(
    socket: &UdpSocket,
    server: SocketAddr,
    host: &str,
    of: TYPE,
) -> Option<(Vec<IpAddr>, Duration)> {
    let mut id = [0; 2];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).ok()?;
    let id = u16::from_le_bytes(id);
    let query = query(id, host, of)?;
    // A port that was not asked for is another one each time.
    connect_unspec(socket).ok()?;
    socket.connect(server).ok()?;
    socket.send(&query).ok()?;
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = [0; 2048];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        socket.set_read_timeout(Some(left)).ok()?;
        let length = socket.recv(&mut bytes).ok()?;
        if let Some(answer) = read(&bytes[..length], id, host) {
            return answer;
        }
    }
}

fn query(id: u16, host: &str, of: TYPE) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(host).ok()?;
    let class = CLASS::IN.into();
    let question = Question::new(name, QTYPE::TYPE(of), class, false);
    packet.questions.push(question);
    packet.build_bytes_vec().ok()
}

/// `None` for what is no answer to the question, `Some(None)` for one without an address.
#[expect(clippy::option_option, reason = "another datagram may be the answer")]
fn read(bytes: &[u8], id: u16, host: &str) -> Option<Option<(Vec<IpAddr>, Duration)>> {
    let packet = Packet::parse(bytes).ok()?;
    let question = packet.questions.first()?;
    let asked = question.qname.to_string();
    let is_answer = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && asked.eq_ignore_ascii_case(host.trim_end_matches('.'));
    if !is_answer {
        return None;
    }
    let owners = owners(&packet, &asked);
    let records = || {
        let answers = packet.answers.iter();
        answers.filter(|record| owners.contains(&name_of(&record.name)))
    };
    let addrs = records().filter_map(|record| match &record.rdata {
        RData::A(a) => Some(IpAddr::from(Ipv4Addr::from(a.address))),
        RData::AAAA(aaaa) => Some(Ipv6Addr::from(aaaa.address).into()),
        _ => None,
    });
    let addrs: Vec<IpAddr> = addrs.take(MAX_ADDRESSES).collect();
    // Those of the aliases count, too.
    let ttl = records().map(|record| record.ttl).min();
    let ttl = ttl.filter(|_| !addrs.is_empty());
    Some(ttl.map(|ttl| (addrs, Duration::from_secs(ttl.into()))))
}

/// The name that was asked for, and those that it is an alias of. A record of another name answers
/// another question.
fn owners(packet: &Packet<'_>, asked: &str) -> Vec<String> {
    let mut owners = vec![asked.to_ascii_lowercase()];
    // An alias may stand behind the one that it leads to.
    for _ in 0..MAX_ALIASES {
        let next = packet
            .answers
            .iter()
            .find_map(|record| match &record.rdata {
                RData::CNAME(alias) if owners.contains(&name_of(&record.name)) => {
                    Some(name_of(&alias.0)).filter(|name| !owners.contains(name))
                }
                _ => None,
            });
        match next {
            Some(name) => owners.push(name),
            None => break,
        }
    }
    owners
}

fn name_of(name: &Name<'_>) -> String {
    name.to_string().to_ascii_lowercase()
}

#[cfg(test)]
#[path = "resolver_tests.rs"]
mod tests;
