//! An interface that goes to another process, or comes from one.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::SyncSender;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::control::{Executing, InterfaceControl, WAKER, take_some};
use crate::hand_over::RECORDS;
use crate::host::platform::Platform;
use crate::shared::mailbox::{ControlCommand, Exported, Resume};
use crate::thread::clock;

impl<H: Platform> InterfaceControl<H> {
    /// While another process has the interface, or still has it: nothing is sealed, and no timer
    /// runs. Questions are answered; a change is not made, because it would be lost.
    pub(super) fn pauses(&mut self) -> io::Result<bool> {
        self.common.control.waker.clear();
        // What happens to the device is looked at afterwards.
        self.wakeups = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = self.common.control.waker.as_fd();
        epoll::add(
            &self.wakeups,
            waker,
            EventData::new_u64(WAKER),
            EventFlags::IN,
        )?;
        self.is_unwatched = true;
        self.commands.extend(self.common.control.take_commands());
        while let Some(command) = self.commands.pop_front() {
            match command {
                ControlCommand::Resume(how, answer) => {
                    self.resume(how)?;
                    let _ = answer.send(());
                    return Ok(true);
                }
                // Without an answer the caller learns that nothing was done. Addresses of names
                // come again.
                ControlCommand::Set(..)
                | ControlCommand::Export(_)
                | ControlCommand::Probe(..)
                | ControlCommand::Candidates(_)
                | ControlCommand::Allow(..) => {}
                command => self.executing = self.begin(clock::now(), command),
            }
            while let Some(Executing::Get(get)) = self.executing.take() {
                self.executing = self.go_on_getting(get);
            }
        }
        Ok(false)
    }

    pub(super) fn resume(&mut self, how: Resume) -> io::Result<()> {
        if how == Resume::WithoutSessions {
            self.device.gave_up_sessions(clock::now());
        }
        self.is_paused = false;
        self.remember.quotas_changed();
        let sockets = self.common.queues.sockets.load();
        self.platform.resumed(&sockets);
        self.tell_indices(&sockets);
        // They may be another process's, which ignored ICMP.
        self.set_icmp();
        // Routes and the device may have changed unseen.
        (self.paths_from, self.forget_paths) = (Some(0), false);
        self.host_changed()
    }

    /// Puts out what another process needs. All that the shards told is handled before.
    pub(super) fn export(&mut self, answer: &SyncSender<Exported>) {
        loop {
            let now = clock::now();
            let (events, commands, _) = self.common.control.take_all();
            self.events.extend(events);
            self.commands.extend(commands);
            for peer in take_some(&mut self.events, usize::MAX) {
                self.device.handle_event(now, clock::wall(), &peer);
            }
            self.handshakes();
            self.put_out();
            if !self.common.control.has_messages() {
                break;
            }
        }
        self.count_tun_drops();
        // From now on the sockets drop nothing: the new process has programs of its own.
        self.device.tell_indices(None);
        self.count_filtered();
        self.is_paused = true;
        let mut records = Vec::with_capacity(RECORDS);
        let exported = self.device.export(clock::now(), |record| {
            records.push(record);
            if records.len() < RECORDS {
                return Ok(());
            }
            let full = std::mem::replace(&mut records, Vec::with_capacity(RECORDS));
            answer.send(Exported::Records(full))
        });
        let exported = exported.and_then(|()| answer.send(Exported::Records(records)));
        let mut state = self.common.counters();
        state.listen_port = self.listen_port;
        state.bound_port = self.bound_port;
        state.fwmark = self.fwmark;
        state.up = self.up;
        if exported.is_ok() {
            let _ = answer.send(Exported::State(Box::new(state)));
        }
    }
}
