//! Executes commands.

use adit_io::Offloads;
use adit_io::helper::raise_priority;
use adit_proto::config::{DeviceChange, DeviceStatus, PublicKey};
use adit_proto::{Allowance, Time};

use crate::control::sockets::RELEASE_POLL;
use crate::control::{Allowing, Executing, Getting, InterfaceControl, Setting, memory};
use crate::host::platform::Platform;
use crate::shared::error::CommandError;
use crate::shared::mailbox::{ControlCommand, GivenAllowance, LookAnswer, OfControl};
use crate::thread::clock;

/// Peers whose status is read in a turn.
const STATUS_BATCH: usize = 1024;
/// Peers that are allowed something in a turn.
const ALLOWED_AT_ONCE: usize = 1024;

impl<H: Platform> InterfaceControl<H> {
    /// Executes commands in their order, a bounded piece of one a turn: a change of half a million
    /// peers takes seconds, and handshakes, timers and other interfaces get their turns meanwhile.
    /// So `get` reports what was before a change, or what is after it.
    pub(super) fn execute(&mut self, now: Time) {
        if self.set_at.is_some_and(|at| at > now) {
            return;
        }
        self.set_at = None;
        if self.executing.is_none() {
            self.executing = self
                .commands
                .pop_front()
                .and_then(|command| self.begin(now, command));
        }
        self.executing = match self.executing.take() {
            Some(Executing::Set(set)) => self.go_on_setting(now, set),
            Some(Executing::Get(get)) => self.go_on_getting(get),
            Some(Executing::Allow(allow)) => self.go_on_allowing(now, allow),
            None => None,
        };
    }

    pub(super) fn begin(&mut self, now: Time, command: ControlCommand) -> Option<Executing> {
        match command {
            ControlCommand::Set(change, answer) => Some(Executing::Set(Box::new(Setting {
                transaction: self.device.begin(change),
                has_sockets: false,
                answer,
            }))),
            ControlCommand::Get(answer) => {
                self.device.set_clock(now, clock::wall());
                Some(Executing::Get(Box::new(Getting {
                    status: self.status_without_peers(),
                    next: 0,
                    answer,
                })))
            }
            ControlCommand::Look(keys, answer) => {
                self.device.set_clock(now, clock::wall());
                let _ = answer.send(self.look(&keys));
                None
            }
            ControlCommand::Probe(key, answer) => {
                let due = self.device.probe(now, &key);
                let _ = answer.send(due.map(|due| due.since(now)));
                None
            }
            ControlCommand::Candidates(named) => {
                for (peer, addrs) in named {
                    self.device.set_candidates(now, &peer, addrs.as_deref());
                }
                None
            }
            ControlCommand::Allow(given, replace, answer) => {
                let keys = || given.iter().map(|it| it.peer).collect();
                Some(Executing::Allow(Box::new(Allowing {
                    others: replace.then(|| (keys(), 0)),
                    given,
                    next: 0,
                    changed: Vec::new(),
                    answer,
                })))
            }
            ControlCommand::Call(peers, from, answer) => {
                let peers = peers.iter();
                let call = |(peer, last): &_| self.device.call(now, peer, *last, from);
                let _ = answer.send(peers.map(call).collect());
                None
            }
            ControlCommand::Report(answer) => {
                self.count_tun_drops();
                self.count_filtered();
                // A caller that went away needs no answer, here and below.
                let _ = answer.send(OfControl {
                    handshakes: self.device.handshake_stats(),
                    offloads: self.offloads(),
                    rx_queue_loads: self.device.rx_queue_loads(now),
                });
                None
            }
            ControlCommand::Export(answer) => {
                let _raised = raise_priority();
                self.export(&answer);
                None
            }
            // It does not pause.
            ControlCommand::Resume(_, answer) => {
                let _ = answer.send(());
                None
            }
        }
    }

    fn go_on_allowing(&mut self, now: Time, mut allow: Box<Allowing>) -> Option<Executing> {
        let wall = clock::wall();
        let given = allow.given.iter().skip(allow.next).take(ALLOWED_AT_ONCE);
        let mut some: Vec<GivenAllowance> = given.copied().collect();
        allow.next += some.len();
        let mut is_done = some.len() < ALLOWED_AT_ONCE;
        if is_done && let Some((keys, from)) = &mut allow.others {
            let others = self.device.limited_from(*from).take(ALLOWED_AT_ONCE);
            let others: Vec<(u32, PublicKey)> = others.collect();
            is_done = others.len() < ALLOWED_AT_ONCE;
            *from = others.last().map_or(*from, |(id, _)| id + 1);
            let others = others.into_iter().filter(|(_, key)| !keys.contains(key));
            some.extend(others.map(|(_, peer)| GivenAllowance {
                peer,
                allowance: Allowance::default(),
                anew: false,
            }));
        }
        for it in some {
            let allowance = (&it.peer, &it.allowance, it.anew);
            let before = self.device.set_allowance(now, wall, allowance);
            if let Some(before) = before.filter(|before| *before != it.allowance) {
                allow.changed.push((it.peer, before, it.allowance));
            }
        }
        self.put_out();
        if !is_done {
            return Some(Executing::Allow(allow));
        }
        if allow.others.is_some() {
            self.device.forget_used();
        }
        self.remember.quotas_changed();
        let _ = allow.answer.send(allow.changed);
        None
    }

    pub(super) fn go_on_getting(&mut self, mut get: Box<Getting>) -> Option<Executing> {
        let status = &mut get.status.peers;
        if !memory::reserve_status(&self.device, get.next, STATUS_BATCH, status) {
            let _ = get.answer.send(Err(CommandError::NoMemory));
            return None;
        }
        let peers = self.device.peer_status_from(get.next);
        let before = get.status.peers.len();
        for (id, peer) in peers.take(STATUS_BATCH) {
            get.status.peers.push(peer);
            get.next = id + 1;
        }
        if get.status.peers.len() < before + STATUS_BATCH {
            let _ = get.answer.send(Ok(get.status));
            return None;
        }
        Some(Executing::Get(get))
    }

    pub(super) fn go_on_setting(&mut self, now: Time, mut set: Box<Setting>) -> Option<Executing> {
        let mut result = Ok(());
        // Sockets before anything changes, since binding is what can fail.
        if !set.has_sockets && set.transaction.is_checked() {
            let change = set.transaction.change();
            let done = self.check_memory(change);
            match done.and_then(|()| self.set_sockets(change)) {
                Ok(true) => set.has_sockets = true,
                Ok(false) => {
                    self.set_at = Some(now + RELEASE_POLL);
                    return Some(Executing::Set(set));
                }
                Err(error) => result = Err(error),
            }
        }
        let done = result.and_then(|()| {
            let done = self.device.resume(now, &mut set.transaction);
            done.map_err(CommandError::Config)
        });
        self.put_out();
        let result = match done {
            Ok(false) => return Some(Executing::Set(set)),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let _ = set.answer.send((result, set.transaction.into_change()));
        None
    }

    /// Refuses a change that does not fit into the memory that the process may have.
    pub(super) fn check_memory(&self, change: &DeviceChange) -> Result<(), CommandError> {
        match memory::needed(&self.device, change) {
            0 => Ok(()),
            needed => match self.platform.memory_left() {
                Some(left) if !memory::suffices(needed, left) => {
                    Err(CommandError::Memory { needed, left })
                }
                _ => Ok(()),
            },
        }
    }

    /// The offloads that are in force on every socket.
    pub(super) fn offloads(&self) -> Offloads {
        let sockets = self.common.queues.sockets.load();
        let of_socket = sockets.all().map(|it| self.platform.offloads(it.socket));
        of_socket.fold(Offloads::ALL, Offloads::and)
    }

    pub(super) fn status_without_peers(&self) -> DeviceStatus {
        self.with_sockets(self.device.status_without_peers())
    }

    fn with_sockets(&self, status: DeviceStatus) -> DeviceStatus {
        DeviceStatus {
            listen_port: match self.listen_port {
                0 => self.bound_port,
                port => port,
            },
            fwmark: self.fwmark,
            ..status
        }
    }

    /// The settings, the peers that have these keys, and how many peers there are.
    fn look(&self, keys: &[PublicKey]) -> LookAnswer {
        let mut status = self.with_sockets(self.device.settings());
        if !memory::reserve_some(&self.device, keys, &mut status.peers) {
            return Err(CommandError::NoMemory);
        }
        status.peers.extend(self.device.peer_status_of(keys));
        Ok((status, self.device.peer_count()))
    }
}
