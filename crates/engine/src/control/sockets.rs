//! The sockets of an interface: on which port, with which mark, and when there are any.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use adit_io::UdpSocket;
use adit_proto::Time;
use adit_proto::config::DeviceChange;

use crate::control::InterfaceControl;
use crate::host::platform::{Platform, PlatformEvent};
use crate::shared::error::CommandError;
use crate::shared::handles::ShardCommand;
use crate::shared::sockets::{RxQueueSocket, Sockets};
use crate::thread::clock;

/// How long shards may take to close a socket, and how often to try to bind its port meanwhile. Other
/// interfaces have their turns in between.
const RELEASE: Duration = Duration::from_secs(1);
pub(super) const RELEASE_POLL: Duration = Duration::from_millis(1);
/// How often to try to bind a port that is in use.
pub(super) const REBIND: Duration = Duration::from_secs(1);

impl<H: Platform> InterfaceControl<H> {
    pub(super) fn count_filtered(&self) {
        for RxQueueSocket { socket, .. } in self.common.queues.sockets.load().all() {
            self.common.count_filtered(socket);
        }
    }

    /// Port and mark of a transaction; if that fails, nothing was changed. False, and nothing changed
    /// yet, while our own shards still close a socket on the port.
    pub(super) fn set_sockets(&mut self, change: &DeviceChange) -> Result<bool, CommandError> {
        let port = change.listen_port.unwrap_or(self.listen_port);
        let fwmark = change.fwmark.unwrap_or(self.fwmark);
        let bound = self.common.queues.sockets.load().port;
        // The port that the kernel chose is no other port; one that could not be had at first may
        // be free now.
        let is_bound = bound != 0 && port == bound;
        let failed = self.up && bound == 0 && change.listen_port.is_some();
        let rebound = if is_bound || port == self.listen_port && !failed {
            None
        } else {
            match self.platform.bind(port, fwmark) {
                Ok(sockets) => Some(sockets),
                Err(error) if self.is_closing(port, &error) => return Ok(false),
                Err(error) => return Err(CommandError::Bind { port, error }),
            }
        };
        if fwmark != self.fwmark
            && let Err(error) = self.set_mark(fwmark)
        {
            // A mark that could be set before can be set again.
            let _ = self.set_mark(self.fwmark);
            return Err(error);
        }
        if fwmark != self.fwmark || rebound.is_some() {
            // They may leave by another uplink now.
            (self.paths_from, self.forget_paths) = (Some(0), true);
            self.look_at_paths(clock::now());
            // What still arrives at the old address brings it back.
            self.look_at_paths_soon();
        }
        (self.listen_port, self.fwmark) = (port, fwmark);
        // While the interface is down the port was only tried: sockets are bound when it comes up.
        match rebound {
            Some(sockets) if self.up => self.publish(sockets),
            Some(_) => self.bound_port = 0,
            None => {}
        }
        Ok(true)
    }

    pub(super) fn set_mark(&self, fwmark: u32) -> Result<(), CommandError> {
        for RxQueueSocket { socket, .. } in self.common.queues.sockets.load().all() {
            self.platform
                .set_mark(socket, fwmark)
                .map_err(|error| CommandError::Mark { fwmark, error })?;
        }
        self.common.queues.tell(ShardCommand::ClearPaths);
        Ok(())
    }

    /// Binds the configured port; without one, that of the last time if it is still free, as peers
    /// know it. Nothing while our own shards still close a socket there.
    pub(super) fn bind(&self) -> io::Result<Option<Sockets<H::Socket>>> {
        let bind = |port| match self.platform.bind(port, self.fwmark) {
            Err(error) if self.is_closing(port, &error) => Ok(None),
            bound => bound.map(Some),
        };
        if self.listen_port == 0 && self.bound_port != 0 {
            bind(self.bound_port).or_else(|_| bind(0))
        } else {
            bind(self.listen_port)
        }
    }

    /// Whether a port cannot be bound because our own shards have not closed their sockets on it yet.
    pub(super) fn is_closing(&self, port: u16, error: &io::Error) -> bool {
        let is_left = |(left, at): (u16, Time)| left == port && clock::now().since(at) < RELEASE;
        error.kind() == io::ErrorKind::AddrInUse && self.left.is_some_and(is_left)
    }

    pub(super) fn publish(&mut self, sockets: Sockets<H::Socket>) {
        let before = self.common.queues.sockets.load().port;
        if before != 0 {
            self.left = Some((before, clock::now()));
        }
        let port = sockets.port;
        self.tell_indices(&sockets);
        self.count_filtered();
        self.common.queues.sockets.store(Arc::new(sockets));
        if self.ignores_icmp != [None; 2] {
            self.set_icmp();
        }
        self.common.queues.wake();
        (self.rebind_at, self.told_of_port) = (None, false);
        if port == 0 {
            self.device.went_down();
        } else {
            self.bound_port = port;
            if before == 0 {
                self.device.came_up(clock::now());
            }
        }
    }

    /// What these sockets drop before they queue it depends on the indices that are in use.
    pub(super) fn tell_indices(&mut self, sockets: &Sockets<H::Socket>) {
        let in_use = sockets.all().find_map(|it| it.socket.in_use());
        self.device.tell_indices(in_use);
    }

    /// Binds the sockets, or tries again soon: the port may become free.
    pub(super) fn come_up(&mut self) {
        match self.bind() {
            Ok(Some(sockets)) => self.publish(sockets),
            Ok(None) => self.rebind_at = Some(clock::now() + RELEASE_POLL),
            Err(error) => {
                if !std::mem::replace(&mut self.told_of_port, true) {
                    let port = self.listen_port;
                    let error = CommandError::Bind { port, error };
                    self.platform.log_error(&error.to_string());
                }
                self.rebind_at = Some(clock::now() + REBIND);
            }
        }
    }

    /// The interface, a route or an address changed, or may have. An error is the interface's and
    /// final.
    pub(super) fn host_changed(&mut self) -> io::Result<()> {
        let PlatformEvent {
            up,
            mtu,
            routes_changed,
            rebinds,
        } = self.platform.handle_events()?;
        self.watch()?;
        self.common.set_mtu(mtu);
        let probed = u16::try_from(mtu).ok();
        let probes = self.platform.probes_paths();
        self.device.probe_paths(probed.filter(|_| probes));
        if up != self.up {
            self.up = up;
            if up {
                self.come_up();
            } else {
                self.publish(Sockets::unbound());
            }
        } else if up && rebinds {
            // Where packets left from may be no address of this host any more.
            (self.paths_from, self.forget_paths) = (Some(0), true);
            self.publish(Sockets::unbound());
            self.come_up();
        }
        if routes_changed {
            self.look_at_paths_soon();
        }
        Ok(())
    }
}
