//! `adit down`: everything that `up` made goes, whatever fails on the way.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use adit_ctl::config::Table;
use adit_ctl::status;
use adit_ctl::uapi::UapiClient;
use adit_netlink::Netlink;
use adit_proto::config::DeviceStatus;

use super::{
    PATIENCE, Quick, done, file, forward, has_default, open_netlink, programs, require_rights,
    routing,
};
use crate::cli::{FileArgs, OutputArgs};
use crate::failure::{Context, Failure, Result, bail, say};

/// How long to wait for the end of a process that did not answer: long enough was waited before.
const PATIENCE_WITH_SILENCE: Duration = Duration::from_secs(1);

pub(crate) fn down(args: &FileArgs, said: OutputArgs) -> Result<()> {
    require_rights()?;
    let mut quick = Quick::load_for_down(args)?;
    quick.prints_json = said.json;
    let interface = &quick.config.interface;
    let netlink = open_netlink()?;
    let status = match quick.ask() {
        Ok(status) => Some(status),
        Err(error) if error.is_silence() => {
            say!("adit: {}; going on without", quick.explain(error));
            None
        }
        Err(error) => {
            let unserved = error.is_unserved();
            let failure = quick.explain(error);
            if !unserved {
                return Err(failure);
            }
            if netlink.link(&quick.name).is_ok() {
                // The interface may be the kernel's, set up by wg-quick.
                bail!(
                    State,
                    "{failure}, so the interface is not one that this takes down"
                );
            }
            // Its process may have died: its routing, firewall and DNS settings are removed now.
            quick.undo_surroundings(&netlink, None);
            quick.remove_dead_files();
            bail!(
                State,
                "{failure}; if a process was killed, what it left (routing rules, what they blocked, firewall, DNS) is removed now, but no hook was run"
            );
        }
    };
    let mut failures = quick.down_hooks(&interface.pre_down);
    quick.check_interrupted()?;
    if interface.save_config {
        match status {
            // The hooks may have changed it.
            Some(_) => failures.extend(quick.save(&netlink).err()),
            None => say!("adit: the configuration is not saved"),
        }
    }
    failures.extend(quick.take_down(&netlink, status.as_ref()).err());
    failures.extend(quick.down_hooks(&interface.post_down));
    failures.iter().for_each(Failure::report);
    match failures.is_empty() {
        true => {
            let conf = &args.conf.conf;
            let line = format!("{conf} is down: `adit up {conf}` brings it up again");
            done::say(said, &quick.name, "down", &line)
        }
        false if netlink.link(&quick.name).is_ok() => Err(Failure::Reported),
        false => bail!(State, "{} is down all the same", quick.name),
    }
}

/// Removes what keeps traffic from leaving in clear after a process was killed, unless one serves the
/// interface again. Nothing happens where nothing is blocked.
pub(crate) fn unblock(args: &FileArgs) -> Result<()> {
    require_rights()?;
    let quick = Quick::load_with_mistakes(args)?;
    let netlink = open_netlink()?;
    let is_away =
        quick.ask().is_err_and(|error| error.is_unserved()) && netlink.link(&quick.name).is_err();
    if is_away {
        forward::unset(&quick.name);
    }
    // Each default route has its firewall rules.
    if is_away && routing::unset_firewall(&quick.name) {
        quick.undo_surroundings(&netlink, None);
        quick.remove_dead_files();
    }
    Ok(())
}

impl Quick {
    /// Runs every one of the hooks, and returns the failures.
    pub(super) fn down_hooks(&self, hooks: &[String]) -> Vec<Failure> {
        let run = |hook: &String| {
            let hooks = std::slice::from_ref(hook);
            programs::run_hooks(hooks, &self.name, &self.path, self.prints_json).err()
        };
        hooks.iter().filter_map(run).collect()
    }

    /// Removes the interface and all that `up` put around it, and waits until its process has
    /// ended. Without a `status`, it is one that does not answer.
    pub(super) fn take_down(&self, netlink: &Netlink, status: Option<&DeviceStatus>) -> Result<()> {
        if status.is_some() {
            // For the log alone.
            let client = UapiClient::connect(&self.name);
            let _ = client.map(|mut client| client.say_down());
        }
        let deleted = self.delete(netlink, status.is_some());
        // An interface that was renamed or moved goes with its process only, and its routes with
        // it.
        self.undo_surroundings(netlink, status);
        deleted
    }

    /// Deletes the interface, and waits until its process has ended.
    pub(super) fn delete(&self, netlink: &Netlink, answers: bool) -> Result<()> {
        let patience = match answers {
            true => PATIENCE,
            false => PATIENCE_WITH_SILENCE,
        };
        let socket = self.socket();
        let bound = adit_io::identity(&socket).ok();
        let connection = adit_ctl::connect(&socket, patience);
        // Another program's interface may have the name, where the process's own was moved from.
        let told = status::fetch(&self.name).ok();
        let device = told.and_then(|mut it| it.engine.take()?.device);
        let is_own = |index| device.as_ref().is_none_or(|device| device.is_here(index));
        let deleted = match netlink.link(&self.name) {
            Ok(link) if is_own(link.index) => netlink.delete_link(link.index),
            // It was moved to another namespace, perhaps. Its process also ends when it loses its
            // socket.
            _ => {
                let _ = fs::remove_file(&socket);
                Ok(())
            }
        };
        if deleted.is_ok() {
            self.wait_for_end(bound, connection, Instant::now() + patience);
        }
        deleted.context(|| format!("cannot delete {}", self.name))
    }

    /// Waits until the process that bound the socket has ended.
    fn wait_for_end(
        &self,
        bound: Option<(u64, u64)>,
        connection: std::io::Result<UnixStream>,
        deadline: Instant,
    ) {
        let socket = self.socket();
        // 1. the process closes its connections when it has let go of the interface, 2. then it
        //    removes its socket
        match connection {
            Ok(mut connection) => drop(connection.read(&mut [0])),
            // It was killed.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => self.remove_files(),
            Err(_) => {}
        }
        while bound.is_some() && adit_io::identity(&socket).ok() == bound {
            if Instant::now() > deadline {
                // The next one may come; this one ends when it notices.
                self.remove_files();
                say!(
                    "adit: {} is down, but its process does not end: it is stopped or hangs, and stays with its keys \
                     and its UDP port until it goes on or is killed (`pgrep -af adit` finds it)",
                    self.name
                );
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes the files that a killed process left, unless the next one listens already.
    pub(super) fn remove_dead_files(&self) {
        let dead = UnixStream::connect(self.socket());
        if dead.is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            self.remove_files();
        }
    }

    fn remove_files(&self) {
        let socket = self.socket();
        let status = Path::new(status::DIR).join(format!("{}.sock", self.name));
        for file in [socket.with_extension("name"), socket, status] {
            let _ = fs::remove_file(file);
        }
        let hand_over = Path::new(status::DIR).join(adit_io::UPGRADE_DIR);
        adit_io::remove_dead(&hand_over);
        // The last one takes the directory along.
        let _ = fs::remove_dir(hand_over);
    }

    /// DNS, forwarding, policy routing, firewall.
    pub(super) fn undo_surroundings(&self, netlink: &Netlink, status: Option<&DeviceStatus>) {
        if self.config.interface.has_dns() {
            programs::unset_dns(&self.name);
        }
        self.undo_routing(netlink, status);
    }

    /// Forwarding, policy routing, firewall, and the files that are for the next run after a kill.
    pub(super) fn undo_routing(&self, netlink: &Netlink, status: Option<&DeviceStatus>) {
        forward::unset(&self.name);
        if self.blocked.get() {
            say!(
                "adit: what would go through {} stays blocked, as the killed process left it; `adit down {}` ends that",
                self.name,
                self.called()
            );
            return;
        }
        let _ = fs::remove_file(self.memory());
        // Where its peers were, as a killed process leaves it to the next one. Often there is no file.
        let _ = adit_engine::forget_endpoints(&file::peers_file(&self.name));
        let firewall = routing::unset_firewall(&self.name);
        if self.config.interface.table == Table::Auto {
            match status {
                // Otherwise the rules that lead to its mark's table are another program's.
                Some(status) if has_default(status) => {
                    routing::remove_default(netlink, status.fwmark);
                }
                // The process took the mark that it chose with it.
                None if self.may_be_full() || firewall => self.remove_orphans(netlink, None),
                _ => {}
            }
        }
    }
}
