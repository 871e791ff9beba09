//! Probes of the paths to peers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use adit_io::udp::IcmpKind;
use adit_io::{Cut, SendReport, Transmit, UdpSocket};
use adit_proto::{Endpoint, Peer, PeerEvent, Session, Time};

use crate::control::InterfaceControl;
use crate::host::platform::Platform;
use crate::outbound::train::OVERHEAD;
use crate::shared::handles::ShardCommand;
use crate::shared::sockets::RxQueueSocket;
use crate::thread::clock;

/// How often probes of paths leave, at most: for those that leave together a socket is opened, and
/// that takes longer than all else about them.
const PROBES_EVERY: Duration = Duration::from_millis(10);
/// Peers whose probes leave together, at most.
const PROBES_BATCH: usize = 256;
/// Peers whose probes wait, at most: those that leave within a second. After that the protocol asks
/// for new ones.
pub(super) const PROBES_WAITING: usize = 100 * PROBES_BATCH;
/// For how long ICMP is ignored at a time, at most: as long as Linux believes it by default.
const ICMP_IGNORED: Duration = Duration::from_secs(600);

impl<H: Platform> InterfaceControl<H> {
    pub(super) fn path_found(&self, peer: &Peer, limit: Option<u16>, loses: bool) {
        let (key, log) = (peer.public_key(), |line: fmt::Arguments<'_>| {
            self.platform.log_verbose(line)
        });
        let told = "their senders are told to send shorter ones";
        match limit {
            Some(limit) if loses => log(format_args!(
                "peer {key}: packets of more than {limit} bytes do not arrive: {told}"
            )),
            Some(limit) => log(format_args!(
                "peer {key}: packets of more than {limit} bytes leave in fragments: {told}"
            )),
            None => {
                log(format_args!("peer {key}: packets of any length arrive"));
                // Trains of any length may be segmented again.
                for RxQueueSocket { socket, .. } in self.common.queues.sockets.load().all() {
                    self.platform.forget_paths(socket);
                }
            }
        }
    }

    /// Has the sockets of the peer's family ignore what ICMP says, as long as the host believes it: it
    /// would cut datagrams, at most of the throughput.
    pub(super) fn doubt_icmp(&mut self, peer: &Peer) {
        let Some(to) = peer.endpoint() else { return };
        let path = self.platform.path_mtu(to, self.fwmark);
        let Some((mtu, left)) = path.and_then(|path| path.learned) else {
            return;
        };
        let (is_ipv6, left) = (to.addr.is_ipv6(), left.min(ICMP_IGNORED));
        let until = &mut self.ignores_icmp[usize::from(is_ipv6)];
        if until.replace(clock::now() + left).is_some() {
            return;
        }
        // The kernel tells a socket of IPv4 nothing, and none of what quotes no datagram of its.
        self.common.count_icmp_error(IcmpKind::TooBig, 1);
        let (key, family) = (peer.public_key(), if is_ipv6 { 6 } else { 4 });
        self.platform.log_error(&format!(
            "peer {key}: ICMP says that the path takes {mtu} bytes, which is wrong or forged: \
             what ICMP says of paths is ignored over IPv{family} for {} s",
            left.as_secs()
        ));
        self.set_icmp();
    }

    /// What the host learned is forgotten by now, or it learned it anew.
    pub(super) fn obey_icmp(&mut self, now: Time) {
        let ends = |until: &mut Option<Time>| until.take_if(|at| *at <= now);
        if self.ignores_icmp.iter_mut().filter_map(ends).count() > 0 {
            self.set_icmp();
        }
    }

    /// Tells all sockets whether they ignore ICMP. Those that are opened beside them do as they do.
    pub(super) fn set_icmp(&self) {
        for RxQueueSocket { socket, v6, .. } in self.common.queues.sockets.load().all() {
            let ignores = self.ignores_icmp[usize::from(v6)].is_some();
            if let Err(error) = self.platform.ignore_icmp(socket, ignores) {
                let log = &self.platform;
                log.log_verbose(format_args!("whether ICMP is ignored stays: {error}"));
            }
        }
        self.common.queues.tell(ShardCommand::ClearPaths);
    }

    /// Sends the probes that have waited for longest.
    pub(super) fn send_probes(&mut self) {
        let now = clock::now();
        self.probes_from = now + PROBES_EVERY;
        let count = self.probes.len().min(PROBES_BATCH);
        let some: Vec<PeerEvent> = self.probes.drain(..count).collect();
        // Those that may be fragmented, and those that nobody may fragment, each by family.
        let mut sealed: [[Vec<SealedProbe>; 2]; 2] = Default::default();
        for probes in some {
            let PeerEvent::ProbePath {
                peer,
                from,
                to,
                id,
                whole,
                fragmented,
            } = probes
            else {
                continue;
            };
            for (sealed, lengths) in sealed
                .iter_mut()
                .zip([fragmented.as_slice(), whole.as_slice()])
            {
                for (index, &(sequence, len)) in lengths.iter().enumerate() {
                    let packet = adit_offload::echo(from, to, len.into(), id, sequence);
                    let probe = packet.and_then(|packet| self.seal(now, &peer, &packet));
                    let Some((session, to, datagram)) = probe else {
                        continue;
                    };
                    sealed[usize::from(to.addr.is_ipv6())].push(SealedProbe {
                        peer: Arc::clone(&peer),
                        session,
                        to,
                        datagram,
                        // They come in this order.
                        is_longest: index == 0,
                    });
                }
            }
        }
        for (of_kind, cut) in sealed.iter().zip([Cut::Allowed, Cut::Refused]) {
            for probes in of_kind {
                let probes: Vec<&SealedProbe> = probes.iter().collect();
                self.send_sealed_probes(now, &probes, cut);
            }
        }
    }

    /// Sends probes to addresses of one family past what waits for the socket. If ICMP alone is why
    /// this host does not send a peer's, they leave all the same.
    fn send_sealed_probes(&mut self, now: Time, mut probes: &[&SealedProbe], cut: Cut) {
        let sockets = self.common.queues.sockets.load();
        let (mut told, mut again) = (None, Vec::new());
        while let [first, ..] = probes
            && let Some(socket) = sockets.family(first.to.addr.is_ipv6())
        {
            let trains: Vec<_> = probes.iter().map(|probe| probe.train()).collect();
            let mut report = SendReport::default();
            let taken = socket.send_beside(&trains, cut, &mut report);
            if let Some(stale) = report.stale_source {
                probes[stale].peer.clear_source();
            }
            if report.icmp {
                self.common.take_errors(socket, now);
            }
            let (sent, rest) = probes.split_at(taken);
            for (index, &probe) in sent.iter().enumerate() {
                let (peer, len) = (&probe.peer, probe.datagram.len() as u64);
                if report.lost_of(index) == 0 {
                    if peer.keepalive_sent(now, &probe.session, len) {
                        self.common.control.event(peer);
                    }
                } else if cut == Cut::Refused {
                    if probe.is_longest && self.probe_refused(now, probe) {
                        told = Some(peer.id());
                    }
                    again.extend((told == Some(peer.id())).then_some(probe));
                }
            }
            // Into a buffer of their own.
            probes = if taken > 0 { rest } else { &[] };
        }
        if !again.is_empty() {
            self.send_sealed_probes(now, &again, Cut::RefusedPastIcmp);
        }
    }

    /// This host did not send a probe whole: what it knows of the path may say why. True if ICMP alone
    /// does.
    fn probe_refused(&mut self, now: Time, probe: &SealedProbe) -> bool {
        let Some(path) = self.platform.path_mtu(probe.to, self.fwmark) else {
            return false;
        };
        let headers = if probe.to.addr.is_ipv6() { 48 } else { 28 };
        let longest = |bytes: u32| {
            let longest = (bytes as usize).saturating_sub(headers + OVERHEAD);
            u16::try_from(longest).unwrap_or(u16::MAX)
        };
        let fits = headers + probe.datagram.len() <= path.takes as usize;
        if let Some((told, _)) = path.learned.filter(|_| fits) {
            self.device.path_told(&probe.peer, longest(told));
            return true;
        }
        let (longest, device) = (longest(path.takes), longest(path.device));
        self.device.path_refused(now, &probe.peer, longest, device);
        false
    }
}

/// A probe as it leaves.
struct SealedProbe {
    peer: Arc<Peer>,
    session: Arc<Session>,
    to: Endpoint,
    datagram: Vec<u8>,
    /// Whether it is the longest of its peer.
    is_longest: bool,
}

impl SealedProbe {
    fn train(&self) -> Transmit<'_> {
        Transmit {
            to: self.to,
            ecn: 0,
            stride: self.datagram.len(),
            bytes: &self.datagram,
        }
    }
}
