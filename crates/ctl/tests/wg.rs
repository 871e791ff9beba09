//! The real wg(8) against the UAPI server, with a device that is nothing but its configuration.
//!
//! wg looks for sockets at one fixed place, so each test runs again in a mount namespace of its
//! own, in which /run is empty. Needs root and wireguard-tools.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adit_ctl::uapi::{UapiClient, UapiError, UapiRequest, UapiResponse, UapiServer};
use adit_ctl::{Service, Serving, keys};
use adit_proto::config::{AllowedIpChange, Cidr, DeviceChange, DeviceStatus, PeerStatus};

/// Whether this is the run within the namespace; otherwise makes it and waits for its success.
fn within_namespace(test: &str) -> bool {
    if std::env::var_os("ADIT_TEST_NAMESPACE").is_some() {
        return true;
    }
    let script = "mount -t tmpfs tmpfs /run && mkdir -p /var/run && exec \"$@\"";
    let status = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("ADIT_TEST_NAMESPACE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test} within the namespace: {status}");
    false
}

/// Applies a transaction the naive way.
fn apply(device: &mut DeviceStatus, change: &DeviceChange) -> Result<(), UapiError> {
    if change.listen_port == Some(666) {
        return Err(UapiError::new(98, "the port is in use"));
    }
    if let Some(key) = &change.private_key {
        device.private_key = Some(key.clone());
    }
    device.listen_port = change.listen_port.unwrap_or(device.listen_port);
    device.fwmark = change.fwmark.unwrap_or(device.fwmark);
    let mut peers: BTreeMap<_, PeerStatus> = match change.replace_peers {
        true => BTreeMap::new(),
        false => device
            .peers
            .drain(..)
            .map(|peer| (peer.public_key, peer))
            .collect(),
    };
    let mut owners: HashMap<Cidr, _> = HashMap::new();
    for peer in peers.values() {
        owners.extend(
            peer.allowed_ips
                .iter()
                .map(|block| (*block, peer.public_key)),
        );
    }
    for change in &change.peers {
        let key = change.public_key;
        if change.remove || change.update_only && !peers.contains_key(&key) {
            peers.remove(&key);
            continue;
        }
        let mut peer = peers.remove(&key).unwrap_or(PeerStatus::new(key));
        peer.preshared_key = change.preshared_key.clone().or(peer.preshared_key);
        peer.endpoint = change.endpoint.or(peer.endpoint);
        peer.persistent_keepalive = change
            .persistent_keepalive
            .unwrap_or(peer.persistent_keepalive);
        if change.replace_allowed_ips {
            for block in peer.allowed_ips.drain(..) {
                owners.remove(&block);
            }
        }
        for change in &change.allowed_ips {
            match change {
                AllowedIpChange::Add(block) => {
                    let owner = owners.insert(*block, key);
                    if let Some(other) = owner.and_then(|owner| peers.get_mut(&owner)) {
                        other.allowed_ips.retain(|other| other != block);
                    }
                    peer.allowed_ips
                        .retain(|own| owner.is_none() || own != block);
                    peer.allowed_ips.push(*block);
                }
                AllowedIpChange::Remove(block) => peer.allowed_ips.retain(|own| own != block),
            }
        }
        peers.insert(key, peer);
    }
    device.peers = peers.into_values().collect();
    Ok(())
}

type Device = Arc<Mutex<DeviceStatus>>;

fn start(service: &Service, name: &str) -> (Device, Serving) {
    let device = Device::default();
    let shared = Arc::clone(&device);
    let handler = move |request| {
        let mut device = shared.lock().unwrap();
        match request {
            UapiRequest::Get => UapiResponse::Status(device.clone()),
            UapiRequest::Set(change) => match apply(&mut device, &change) {
                Ok(()) => UapiResponse::Done,
                Err(error) => UapiResponse::Refused(error),
            },
            UapiRequest::Add(_)
            | UapiRequest::Alive
            | UapiRequest::Down
            | UapiRequest::Threads { .. }
            | UapiRequest::Names { .. }
            | UapiRequest::Endpoints { .. }
            | UapiRequest::Call { .. }
            | UapiRequest::Allow { .. } => {
                unreachable!("wg asks for no such thing")
            }
        }
    };
    let server = UapiServer::bind(name).unwrap();
    let serving = server.serve(service, handler, |_| ()).unwrap();
    (device, serving)
}

/// Runs wg with `input` on its standard input.
fn wg(args: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new("wg")
        .args(args)
        .env("WG_COLOR_MODE", "never")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (output.stdout, output.stderr);
    match output.status.success() {
        true => Ok(String::from_utf8(out).unwrap()),
        false => Err(String::from_utf8(err).unwrap()),
    }
}

const PRIVATE: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const ONE: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const TWO: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

fn configuration() -> String {
    format!(
        "[Interface]\nListenPort = 51820\nFwMark = 0xca6c\nPrivateKey = {PRIVATE}\n\n\
         [Peer]\nPublicKey = {TWO}\nPresharedKey = {ONE}\nAllowedIPs = 10.0.0.0/8, fd00::/8\n\
         Endpoint = [2001:db8::1]:7\nPersistentKeepalive = 25\n\n\
         [Peer]\nPublicKey = {ONE}\nAllowedIPs = 192.0.2.0/24\nEndpoint = 192.0.2.1:8\n"
    )
}

#[test]
fn wg_sets_and_shows_a_configuration() {
    if !within_namespace("wg_sets_and_shows_a_configuration") {
        return;
    }
    let service = Service::start().unwrap();
    let (device, _serving) = start(&service, "wgtest0");
    wg(&["setconf", "wgtest0", "/dev/stdin"], &configuration()).unwrap();
    assert_eq!(wg(&["show", "interfaces"], "").unwrap(), "wgtest0\n");
    // `wg setconf` takes the output of `wg showconf`, and changes nothing by it.
    let shown = wg(&["showconf", "wgtest0"], "").unwrap();
    let before = device.lock().unwrap().clone();
    for command in ["setconf", "syncconf", "addconf"] {
        wg(&[command, "wgtest0", "/dev/stdin"], &shown).unwrap();
        assert_eq!(wg(&["showconf", "wgtest0"], "").unwrap(), shown);
        assert_eq!(*device.lock().unwrap(), before);
    }
    let config = adit_ctl::config::Config::parse(&shown, "shown").unwrap();
    let ours = adit_ctl::config::Config::parse(&configuration(), "ours").unwrap();
    assert_eq!(config.peers, ours.peers);
    assert_eq!(
        (config.interface.listen_port, config.interface.fwmark),
        (Some(51820), Some(51820))
    );

    device.lock().unwrap().peers[0].last_handshake = Some(Duration::new(1_700_000_000, 0));
    device.lock().unwrap().peers[0].rx_bytes = 5;
    device.lock().unwrap().peers[0].tx_bytes = 6;
    let dump = wg(&["show", "wgtest0", "dump"], "").unwrap();
    let lines: Vec<Vec<&str>> = dump
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    let public = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";
    assert_eq!(lines[0][1..], [public, "51820", "0xca6c"]);
    assert_eq!(
        lines[1],
        [
            TWO,
            ONE,
            "[2001:db8::1]:7",
            "10.0.0.0/8,fd00::/8",
            "1700000000",
            "5",
            "6",
            "25"
        ]
    );
    assert_eq!(
        lines[2],
        [
            ONE,
            "(none)",
            "192.0.2.1:8",
            "192.0.2.0/24",
            "0",
            "0",
            "0",
            "off"
        ]
    );

    // Our own text is wg's, with more after the interface's keys.
    let status = UapiClient::connect("wgtest0").unwrap().get().unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    let interface = adit_ctl::status::InterfaceJson::new("wgtest0", &status, false);
    let ours = adit_ctl::status::render(&interface, now, adit_ctl::status::Colour::Never);
    let lasting = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter(|line| !line.contains("latest handshake"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(
        lasting(&ours),
        lasting(&wg(&["show", "wgtest0"], "").unwrap())
    );
}

#[test]
fn wg_changes_single_things_and_hears_of_failures() {
    if !within_namespace("wg_changes_single_things_and_hears_of_failures") {
        return;
    }
    let service = Service::start().unwrap();
    let (device, serving) = start(&service, "wgtest0");
    wg(&["setconf", "wgtest0", "/dev/stdin"], &configuration()).unwrap();
    wg(
        &[
            "set",
            "wgtest0",
            "peer",
            ONE,
            "allowed-ips",
            "10.0.0.0/8",
            "persistent-keepalive",
            "7",
        ],
        "",
    )
    .unwrap();
    wg(
        &["set", "wgtest0", "peer", ONE, "endpoint", "[fe80::1%lo]:9"],
        "",
    )
    .unwrap();
    wg(&["set", "wgtest0", "fwmark", "off", "listen-port", "4"], "").unwrap();
    wg(
        &["set", "wgtest0", "peer", TWO, "preshared-key", "/dev/null"],
        "",
    )
    .unwrap();
    {
        let device = device.lock().unwrap();
        let one = keys::public_from_base64(ONE).unwrap();
        let two = keys::public_from_base64(TWO).unwrap();
        let find = |key| {
            device
                .peers
                .iter()
                .find(|peer| peer.public_key == key)
                .unwrap()
        };
        assert_eq!(find(one).persistent_keepalive, 7);
        assert_eq!(find(one).endpoint, Some("[fe80::1%1]:9".parse().unwrap()));
        assert_eq!(
            find(one).allowed_ips,
            [Cidr::new([10, 0, 0, 0].into(), 8).unwrap()]
        );
        assert_eq!(find(two).allowed_ips.len(), 1);
        assert!(find(two).preshared_key.as_ref().unwrap().is_zero());
        assert_eq!((device.fwmark, device.listen_port), (0, 4));
    }
    wg(&["set", "wgtest0", "peer", TWO, "remove"], "").unwrap();
    wg(&["set", "wgtest0", "private-key", "/dev/null"], "").unwrap();
    assert!(
        device
            .lock()
            .unwrap()
            .private_key
            .as_ref()
            .unwrap()
            .is_zero()
    );
    assert_eq!(
        wg(&["show", "wgtest0", "peers"], "").unwrap(),
        format!("{ONE}\n")
    );
    let error = wg(&["set", "wgtest0", "listen-port", "666"], "").unwrap_err();
    assert!(error.contains("98"), "{error}");
    drop(serving);
    wg(&["show", "wgtest0"], "").unwrap_err();
    assert_eq!(wg(&["show", "interfaces"], "").unwrap().trim(), "");
}

#[test]
fn wg_carries_a_hundred_thousand_allowed_ips() {
    if !within_namespace("wg_carries_a_hundred_thousand_allowed_ips") {
        return;
    }
    let service = Service::start().unwrap();
    let (device, _serving) = start(&service, "wgtest0");
    let mut config = format!("[Interface]\nPrivateKey = {PRIVATE}\n");
    for peer in 0..=254u8 {
        config += &format!(
            "[Peer]\nPublicKey = {}\nAllowedIPs = ",
            *keys::to_base64(&[peer; 32])
        );
        let blocks: Vec<String> = (0..512)
            .map(|i| format!("fd{peer:02x}:{i:x}::/32"))
            .collect();
        config += &(blocks.join(",") + "\n");
    }
    let file = "/run/big.conf";
    std::fs::write(file, config).unwrap();
    wg(&["setconf", "wgtest0", file], "").unwrap();
    let count = |device: &DeviceStatus| -> usize {
        device.peers.iter().map(|peer| peer.allowed_ips.len()).sum()
    };
    assert_eq!(count(&device.lock().unwrap()), 255 * 512);
    wg(&["syncconf", "wgtest0", file], "").unwrap();
    let shown = wg(&["show", "wgtest0", "allowed-ips"], "").unwrap();
    let words: usize = shown
        .lines()
        .map(|line| line.split([' ', '\t']).count() - 1)
        .sum();
    assert_eq!(words, count(&device.lock().unwrap()));
}
