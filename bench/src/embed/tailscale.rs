//! tailscaled as a proxy: in its userspace mode, with the other end for a peer that knows WireGuard alone, as its exit
//! nodes of other providers are.

use std::os::unix::fs::chown;
use std::time::{Duration, Instant};

use adit_proto::config::PublicKey;
use adit_testbed::framing::Family;
use adit_testbed::interrupt;
use adit_testbed::process::Process;
use serde_json::Value;

use super::proxies;
use crate::daemon::{self, READY};
use crate::install;
use crate::pair::LinkedHosts;
use crate::sandbox::Failure;

/// What it may write to.
const FOLDER: &str = "/run/tailscale";
const NOBODY: u32 = 65534;

/// Starts the coordination server at host b and tailscaled at host a. Gives both, and its public key.
pub(super) fn begin(
    pair: &LinkedHosts,
    far: &PublicKey,
    words: &[String],
) -> Result<([Process; 2], PublicKey), Failure> {
    let endpoint = pair.endpoint(1);
    let inside = |host| pair.inside(Family::V4, host).to_string();
    let address = endpoint.ip().to_string();
    let digits: String = far.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let control = [
        binary("embed-tailscale-control"),
        address.clone(),
        digits,
        endpoint.to_string(),
        inside(1),
        inside(0),
    ];
    let is_ready = |log: &str| log.contains("ready");
    let control = daemon::start_and_hear(&pair.b, "control", &control, "", READY, is_ready)?;
    pair.a.run(|| {
        std::fs::create_dir(FOLDER)?;
        chown(FOLDER, Some(NOBODY), Some(NOBODY))
    })?;
    // It would send its log home.
    let quiet = ["env", "HOME=/run/tailscale", "TS_NO_LOGS_NO_SUPPORT=true"];
    let proxy = format!("--socks5-server={}", proxies::PROXY);
    let options = [
        "--tun=userspace-networking",
        "--statedir=/run/tailscale",
        "--socket=/run/tailscale/socket",
        "--port=51820",
        &proxy,
    ];
    let owned = |words: &[&str]| {
        words
            .iter()
            .map(|&word| word.to_owned())
            .collect::<Vec<_>>()
    };
    let words = [owned(&quiet), words.to_vec(), owned(&options)].concat();
    let tailscaled = proxies::start(pair, &words)?;
    let client = binary("embed-tailscale");
    let server = format!("--login-server=http://{address}:8080");
    let up = [
        client.as_str(),
        "--socket=/run/tailscale/socket",
        "up",
        &server,
        "--accept-dns=false",
    ];
    pair.a.output(up[0], &up[1..], READY)?;
    let key = own_key(pair, &client)?;
    Ok(([control, tailscaled], key))
}

fn binary(name: &str) -> String {
    let path = install::peers_dir().join("bin").join(name);
    path.to_string_lossy().into_owned()
}

/// Its public key, once it knows its peer.
fn own_key(pair: &LinkedHosts, client: &str) -> Result<PublicKey, Failure> {
    let asked = ["--socket=/run/tailscale/socket", "status", "--json"];
    let until = Instant::now() + READY;
    loop {
        let status: Value = serde_json::from_str(&pair.a.output(client, &asked, READY)?)?;
        let peers = status["Peer"].as_object().map_or(0, serde_json::Map::len);
        let key = status["Self"]["PublicKey"].as_str().and_then(parse);
        if let Some(key) = key.filter(|_| peers > 0) {
            return Ok(key);
        }
        interrupt::check()?;
        if Instant::now() > until {
            return Err("tailscaled knows no peer".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A key as `nodekey:` and hexadecimal digits.
fn parse(text: &str) -> Option<PublicKey> {
    let digits = text.strip_prefix("nodekey:")?;
    let mut key = [0; 32];
    if !digits.is_ascii() || digits.len() != 2 * key.len() {
        return None;
    }
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(PublicKey(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_in_its_notation() {
        let text = format!("nodekey:{}", "0f".repeat(32));
        assert_eq!(parse(&text), Some(PublicKey([15; 32])));
        for wrong in [
            "",
            "nodekey:",
            "nodekey:0f",
            &text[1..],
            &format!("{text}0f"),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
