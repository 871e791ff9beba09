//! systemd's watchdog: it is told that the tunnel works as long as all of its threads answer.

use std::thread;
use std::time::Duration;

use adit_ctl::uapi::{ClientError, UapiClient};

use crate::failure::say;
use crate::systemd::tell;

/// Tells the service manager from now on, if it wants to know. When the tunnel does not answer, it
/// hears nothing, ends the service and starts it again.
pub(super) fn start(interface: &str) {
    let of_ours = std::env::var("WATCHDOG_PID")
        .ok()
        .is_none_or(|pid| pid == std::process::id().to_string());
    let limit = std::env::var("WATCHDOG_USEC")
        .ok()
        .and_then(|limit| limit.parse().ok())
        .filter(|&limit: &u64| limit > 0 && of_ours);
    let Some(limit) = limit else {
        return;
    };
    // An answer counts for the question before it.
    let pause = Duration::from_micros(limit / 4);
    let name = interface.to_owned();
    let watch = move || {
        let mut was_alive = true;
        loop {
            match ask(&name) {
                Ok(()) => {
                    tell("WATCHDOG=1");
                    was_alive = true;
                }
                Err(error) => {
                    if was_alive {
                        say!("adit: {name} does not work: {error}");
                    }
                    was_alive = false;
                }
            }
            thread::sleep(pause);
        }
    };
    if let Err(error) = thread::Builder::new().name("watchdog".into()).spawn(watch) {
        // It would end a tunnel that works.
        tell("WATCHDOG_USEC=0");
        say!("adit: no watchdog: {error}");
    }
}

fn ask(interface: &str) -> Result<(), ClientError> {
    UapiClient::connect(interface)?.alive()
}
