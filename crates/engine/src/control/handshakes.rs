//! Handshakes, and what else the protocol has to send or to tell.

use std::sync::Arc;

use adit_aead::{SealJob, TAG_LEN};
use adit_io::{SendReport, Transmit, UdpSocket};
use adit_proto::limits::REKEY_ATTEMPT_TIME;
use adit_proto::wire::{DataHeader, INITIATION_LEN, RESPONSE_LEN, padded_len};
use adit_proto::{
    Endpoint, HandshakeKind, HandshakeOutcome, Output, Peer, PeerEvent, Refusal, Session, Time,
};
use rustix::io::Errno;

use crate::control::InterfaceControl;
use crate::control::probes::PROBES_WAITING;
use crate::host::platform::Platform;
use crate::shared::event::Event;
use crate::shared::handles::ShardCommand;
use crate::shared::rate_limited_log::{Incident, LogLine};
use crate::thread::clock;
use crate::thread::poll::overwrite_stack;

/// Handshake messages between two looks at timers and commands.
const HANDSHAKE_BATCH: usize = 32;
/// Peers among which the one is looked for that an ICMP error is about.
const PEERS_SEARCHED: usize = 10_000;

impl<H: Platform> InterfaceControl<H> {
    /// Handshake messages, a bounded number: timers and commands must not wait for a flood.
    pub(super) fn handshakes(&mut self) {
        for _ in 0..HANDSHAKE_BATCH {
            let Some(message) = self.common.control.next_handshake() else {
                break;
            };
            let (now, wall) = (clock::now(), clock::wall());
            let (from, datagram) = (message.from, &message.datagram);
            // A shard tells of load before it adds to a long queue.
            let outcome = match message.proven {
                true => self.device.handle_proven(now, wall, from, datagram),
                false => (self.device).handle_handshake(now, wall, from, datagram, false),
            };
            if outcome.refusal.is_some() {
                self.refused(outcome, datagram);
            }
            self.put_out();
        }
    }

    fn refused(&mut self, outcome: HandshakeOutcome, datagram: &[u8]) {
        let incident = Incident::Handshake(outcome);
        let is_stranger = outcome.refusal == Some(Refusal::UnknownPeer);
        if !is_stranger || self.common.log.is_logged() {
            self.note(|| incident);
        }
        if !is_stranger || !self.common.log.is_heard() {
            return;
        }
        let now = clock::now();
        let is_proven = (self.common.proto.admission()).is_proven(now, outcome.from, datagram);
        let news = self.strangers.count(now, incident.source(), is_proven);
        if news.untold > 0 {
            let count = news.untold;
            self.platform.tell(&Event::Others { count });
        }
        if news.is_told {
            self.platform.tell(&Event::Stranger { outcome, is_proven });
        }
    }

    /// Does what the protocol asks for.
    pub(super) fn put_out(&mut self) {
        while let Some(output) = self.device.poll_output() {
            match output {
                Output::Handshake {
                    to,
                    datagram,
                    peer,
                    in_vain,
                } => self.send_handshake(to, &datagram, peer.as_ref(), in_vain),
                Output::Keepalive { peer } => self.send_keepalive(&peer),
                Output::SessionReady { peer } => {
                    let key = peer.public_key();
                    self.platform
                        .log_verbose(format_args!("peer {key}: session established"));
                    self.common.queues.tell(ShardCommand::SessionReady(peer));
                }
                Output::DropStaged {
                    peer,
                    given_up_after,
                } => {
                    let key = peer.public_key();
                    if let Some(initiations) = given_up_after {
                        let event = Event::GivenUp {
                            peer: key,
                            initiations,
                        };
                        self.platform.tell(&event);
                    }
                    match given_up_after {
                        Some(count) => self.platform.log_verbose(format_args!(
                            "peer {key}: handshake given up after {} s and {count} initiations without an answer",
                            REKEY_ATTEMPT_TIME.as_secs()
                        )),
                        None if peer.is_barred() => {}
                        None => self.platform.log_verbose(format_args!("peer {key}: removed")),
                    }
                    self.common.queues.tell(ShardCommand::DropStaged(peer));
                }
                Output::Event(PeerEvent::Liveness { peer, state }) => {
                    self.platform.tell(&Event::Liveness {
                        peer: peer.public_key(),
                        state,
                        endpoint: peer.endpoint().map(|to| to.addr),
                    });
                }
                Output::Event(PeerEvent::Access { peer, access }) => {
                    let peer = peer.public_key();
                    self.platform.tell(&Event::Access { peer, access });
                }
                Output::Event(PeerEvent::Session { peer, last }) => {
                    let peer = peer.public_key();
                    self.platform.tell(&Event::Session { peer, last });
                }
                Output::Event(probes @ PeerEvent::ProbePath { .. }) => {
                    if self.probes.len() < PROBES_WAITING {
                        self.probes.push_back(probes);
                    }
                }
                Output::Event(PeerEvent::PathFound { peer, limit, loses }) => {
                    self.path_found(&peer, limit, loses)
                }
                Output::Event(PeerEvent::DoubtIcmp { peer }) => self.doubt_icmp(&peer),
                Output::Event(PeerEvent::Unanswered { peer }) => {
                    let peer = peer.public_key();
                    self.platform.tell(&Event::Unanswered { peer });
                }
                Output::Event(PeerEvent::Roamed { peer, from }) => {
                    if let Some(to) = peer.endpoint() {
                        self.platform.tell(&Event::Roamed {
                            peer: peer.public_key(),
                            from,
                            to: to.addr,
                        });
                    }
                }
            }
        }
        if self.probes_from <= clock::now() && !self.probes.is_empty() {
            self.send_probes();
        }
        if self.device.poll_keys_dropped() {
            overwrite_stack();
            self.common.overwrite_stacks();
        }
    }

    /// A message that could not be sent is tried again by its timer, as if the network had lost it.
    pub(super) fn send_handshake(
        &mut self,
        to: Endpoint,
        datagram: &[u8],
        peer: Option<&Arc<Peer>>,
        in_vain: u32,
    ) {
        let kind = match datagram.len() {
            INITIATION_LEN => HandshakeKind::Initiation,
            RESPONSE_LEN => HandshakeKind::Response,
            _ => HandshakeKind::CookieReply,
        };
        let sent = self.send(to, datagram, peer, Some(kind));
        self.device.handle_sent(datagram, peer, sent);
        // A cookie reply has no known peer; the log has it with the message that it answers.
        let Some(peer) = peer.filter(|_| sent) else {
            return;
        };
        let (peer, to) = (peer.public_key(), to.addr);
        if in_vain == 0 {
            self.platform
                .log_verbose(format_args!("peer {peer}: {kind} sent to {to}"));
        } else {
            self.note(|| Incident::InVain {
                peer,
                kind,
                to,
                before: in_vain,
            });
        }
    }

    /// Notes an incident, and writes its line now if it is due.
    pub(super) fn note(&self, incident: impl FnOnce() -> Incident) {
        if self.common.log.note(clock::now(), 1, incident) {
            self.tell();
        }
    }

    /// Writes what is due of the rate-limited log, and tells the listener.
    pub(super) fn tell(&self) {
        let log = &self.common.log;
        for mut line in log.take_due(clock::now()) {
            if let LogLine::Of(Incident::Icmp { peer, error }, _) = &mut line {
                let named =
                    |peer: &&Arc<Peer>| peer.endpoint().is_some_and(|to| to.addr == error.to);
                let found = self.device.peers().take(PEERS_SEARCHED).find(named);
                *peer = found.map(|peer| peer.public_key());
            }
            if log.is_logged() {
                self.platform.log_verbose(format_args!("{line}"));
            }
            if log.is_heard() && !line.is_stranger() {
                self.platform.tell(&match line {
                    LogLine::Of(incident, times) => Event::Incident { incident, times },
                    LogLine::Others(count) => Event::Others { count },
                });
            }
        }
    }

    /// True if it left. `kind` is that of a message of a handshake.
    pub(super) fn send(
        &self,
        to: Endpoint,
        datagram: &[u8],
        peer: Option<&Arc<Peer>>,
        kind: Option<HandshakeKind>,
    ) -> bool {
        let not_sent = |error| {
            self.note(|| Incident::NotSent {
                peer: peer.map(|peer| peer.public_key()),
                kind,
                to: to.addr,
                error,
            });
            false
        };
        let sockets = self.common.queues.sockets.load();
        let Some(socket) = sockets.family(to.addr.is_ipv6()) else {
            return not_sent(None);
        };
        let mut report = SendReport::default();
        let taken = socket.send(
            &[Transmit {
                to,
                ecn: 0,
                stride: datagram.len(),
                bytes: datagram,
            }],
            &mut report,
        );
        if let (Some(peer), Some(_)) = (peer, report.stale_source) {
            peer.clear_source();
        }
        if report.icmp {
            self.common.take_errors(socket, clock::now());
        }
        if taken == 1 && report.lost.is_empty() {
            return true;
        }
        not_sent(Some(report.error.unwrap_or(Errno::AGAIN)))
    }

    pub(super) fn send_keepalive(&self, peer: &Arc<Peer>) {
        self.seal_and_send(peer, &[]);
    }

    /// Sends one packet that no shard has, as a keepalive is: no timer waits for its answer.
    pub(super) fn seal_and_send(&self, peer: &Arc<Peer>, packet: &[u8]) {
        let now = clock::now();
        if let Some((session, to, datagram)) = self.seal(now, peer, packet)
            && self.send(to, &datagram, Some(peer), None)
            && peer.keepalive_sent(now, &session, datagram.len() as u64)
        {
            self.common.control.event(peer);
        }
    }

    pub(super) fn seal(
        &self,
        now: Time,
        peer: &Peer,
        packet: &[u8],
    ) -> Option<(Arc<Session>, Endpoint, Vec<u8>)> {
        let (session, to) = (peer.session(now)?, peer.endpoint()?);
        let counter = session.reserve(now, 1).ok()?;
        let padded = padded_len(packet.len(), self.common.mtu().max(packet.len()));
        let mut datagram = vec![0; DataHeader::LEN + padded + TAG_LEN];
        datagram[DataHeader::LEN..][..packet.len()].copy_from_slice(packet);
        let (header, text) = datagram
            .split_first_chunk_mut()
            .expect("longer than a header");
        DataHeader {
            receiver: session.remote_index(),
            counter,
        }
        .write(header);
        adit_aead::seal(&mut [SealJob::in_place(session.send_key(), counter, text)]);
        Some((session, to, datagram))
    }
}
