//! The thread that tells whether the interface is there, and when others change it.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use adit_ctl::status::{self, EventJson};

use super::news::{InterfaceNews, NewsSender};

/// How often to look for an interface that is not there.
const LOOK: Duration = Duration::from_millis(100);
/// Longest line: as `adit events` has it.
const MAX_LINE: u64 = 64 << 10;

/// Follows the events of an interface, for good.
pub(super) fn follow(interface: &str, news: &NewsSender) {
    loop {
        if let Ok(stream) = status::listen(interface) {
            news.send_interface(InterfaceNews::There);
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            loop {
                line.clear();
                let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
                if !matches!(read, Ok(1..)) || !line.ends_with(b"\n") {
                    break;
                }
                if is_of_others(&line) {
                    news.send_interface(InterfaceNews::Changed);
                }
            }
            news.send_interface(InterfaceNews::Gone);
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether another process changed the configuration.
fn is_of_others(line: &[u8]) -> bool {
    let event: Option<EventJson> = serde_json::from_slice(line).ok();
    let own = rustix::process::getpid().as_raw_nonzero().get();
    event.is_some_and(|event| event.event == "configured" && event.pid != Some(own))
}
