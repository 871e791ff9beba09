//! The thread that tells whether the interface is there, and when others change it.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use adit_ctl::keys::public_from_base64;
use adit_ctl::status::{self, EventJson, EventKind};

use super::held::HeldNews;
use super::news::{InterfaceNews, NewsSender};
use super::wanted::Stranger;

/// How often to look for an interface that is not there.
const LOOK: Duration = Duration::from_millis(100);
/// Longest line: as `adit events` has it.
const MAX_LINE: u64 = 64 << 10;

/// Follows the events of an interface, for good. Unknown peers are for the thread that looks them up, and sessions for
/// the one that writes them to a store, if there are such threads.
pub(super) fn follow(
    interface: &str,
    news: &NewsSender,
    strangers: Option<&SyncSender<Stranger>>,
    held: Option<&SyncSender<HeldNews>>,
) {
    loop {
        if let Ok(stream) = status::listen(interface) {
            news.send_interface(InterfaceNews::There);
            // Events before this connection were missed.
            let mut is_behind = true;
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            loop {
                line.clear();
                let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
                if !matches!(read, Ok(1..)) || !line.ends_with(b"\n") {
                    break;
                }
                let Ok(event) = serde_json::from_slice::<EventJson>(&line) else {
                    continue;
                };
                if is_of_others(&event) {
                    news.send_interface(InterfaceNews::Changed);
                }
                if let Some(held) = held {
                    let one = HeldNews::of(&event);
                    is_behind |= one.is_some_and(|one| held.try_send(one).is_err());
                    is_behind = is_behind && held.try_send(HeldNews::Look).is_err();
                }
                if let (Some(strangers), Some(stranger)) = (strangers, stranger(&event)) {
                    // Where it is full, the peer tries again.
                    let _ = strangers.try_send(stranger);
                }
            }
            news.send_interface(InterfaceNews::Gone);
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether another process changed the configuration.
fn is_of_others(event: &EventJson) -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    event.event == EventKind::Configured.name() && event.pid != Some(own)
}

fn stranger(event: &EventJson) -> Option<Stranger> {
    if event.event != EventKind::UnknownPeer.name() {
        return None;
    }
    Some(Stranger {
        key: public_from_base64(event.peer.as_deref()?)?,
        from: event.endpoint.as_deref()?.parse().ok()?,
        is_proven: event.proven == Some(true),
        is_elsewhere: false,
    })
}
