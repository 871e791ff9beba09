//! Answers of a daemon, which may be any implementation, to `adit show`.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use adit_ctl::uapi::format_status;
use adit_ctl::{status, uapi};
use adit_proto::config::DeviceChange;

pub(crate) fn run(input: &[u8]) {
    let Some((&what, bytes)) = input.split_first() else {
        return;
    };
    // What is said again is longer, and has to fit the socket.
    let bytes = &bytes[..bytes.len().min(8 << 10)];
    let Some((mut client, _daemon)) = answered(bytes) else {
        return;
    };
    match what % 4 {
        0 => drop(client.set(&DeviceChange::default())),
        1 => drop(client.add("wg0")),
        _ => {
            let Ok(got) = client.get() else { return };
            // What it says can be said again.
            let answer = format_status(&got);
            let (mut client, _daemon) = answered(&answer).expect("a pair of sockets");
            let mut again = client.get().expect("an answer of our own");
            for (peer, before) in again.peers.iter_mut().zip(&got.peers) {
                // Zero nanoseconds become one, so that wgctrl-go sees a handshake.
                let exact = before.last_handshake;
                if peer.last_handshake.map(|at| at.as_secs()) == exact.map(|at| at.as_secs()) {
                    peer.last_handshake = exact;
                }
            }
            let key = got.private_key.clone().filter(|key| !key.is_zero());
            assert_eq!(again.private_key, key);
            assert_eq!(again.peers, got.peers);
            let shown = status::InterfaceJson::new("wg0", &got, false);
            let text = status::render(&shown, u64::from(what), status::Colour::Never);
            assert!(!text.contains('\x1b'));
        }
    }
}

/// A client whose daemon has said `bytes` and says nothing more, though it is there.
fn answered(bytes: &[u8]) -> Option<(uapi::UapiClient, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair().ok()?;
    theirs.set_nonblocking(true).ok()?;
    theirs.write_all(bytes).ok()?;
    theirs.shutdown(Shutdown::Write).ok()?;
    Some((uapi::UapiClient::over(ours), theirs))
}
