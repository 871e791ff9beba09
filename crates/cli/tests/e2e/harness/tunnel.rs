//! Two implementations configured against each other with wg(8).

use super::{Container, Daemon, Family, Program, SitePair, Start, ping, seconds, wait_for};

/// A key pair, in base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub private: String,
    pub public: String,
}

impl Keys {
    pub fn new() -> Keys {
        let private = wg(&["genkey"], "");
        let public = wg(&["pubkey"], &private);
        Keys { private, public }
    }

    pub fn psk() -> String {
        wg(&["genpsk"], "")
    }
}

fn wg(args: &[&str], input: &str) -> String {
    let mut command = std::process::Command::new("wg");
    command.args(args);
    let output = super::container::output(command, input.as_bytes(), "wg");
    assert!(output.ok(), "wg {args:?}: {}", output.stderr);
    output.stdout.trim().to_owned()
}

/// The implementations at the two ends, and how they are joined.
#[derive(Clone)]
pub struct Setup {
    pub left: Program,
    pub right: Program,
    pub start_left: Start,
    pub start_right: Start,
    pub outer: Family,
    pub mtu: u32,
    pub psk: bool,
    pub keepalive: Option<u16>,
    /// Whether the right side knows where the left one is. If not, only the left side can begin.
    pub right_knows_left: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            left: Program::Adit,
            right: Program::Adit,
            start_left: Start::default(),
            start_right: Start::default(),
            outer: Family::V4,
            mtu: 1420,
            psk: false,
            keepalive: None,
            right_knows_left: true,
        }
    }
}

impl Setup {
    /// Both ends start like this.
    pub fn starting(start: Start) -> Setup {
        Setup {
            start_left: start.clone(),
            start_right: start,
            ..Setup::default()
        }
    }
}

/// One end of a tunnel.
pub struct Side {
    pub host: Container,
    pub daemon: Daemon,
    pub interface: String,
    pub keys: Keys,
    pub port: u16,
    /// The configuration that `wg setconf` was given.
    pub config: String,
    /// Inner addresses.
    pub v4: String,
    pub v6: String,
}

impl Side {
    /// `wg ARGS` on this side, with `{}` standing for the interface.
    #[track_caller]
    pub fn wg(&self, args: &str) -> String {
        self.host
            .sh(&format!("wg {}", args.replace("{}", &self.interface)))
    }

    /// What `adit show --json` says of the interface.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        let adit = Program::Adit.path();
        let show = format!("{} show {} --json", adit.display(), self.interface);
        let mut report: serde_json::Value =
            serde_json::from_str(&self.host.sh(&show)).expect("JSON");
        report["interfaces"][0].take()
    }

    /// The interface's one peer, a field of `wg show IF dump`: 0 public key, 1 PSK, 2 endpoint, 3
    /// allowed IPs, 4 latest handshake, 5 received, 6 sent, 7 keepalive.
    #[track_caller]
    pub fn peer_field(&self, index: usize) -> String {
        let dump = self.wg("show {} dump");
        let line = dump
            .lines()
            .nth(1)
            .unwrap_or_else(|| panic!("a peer in {dump}"));
        line.split('\t').nth(index).expect("a field").to_owned()
    }

    #[track_caller]
    pub fn endpoint(&self) -> String {
        self.peer_field(2)
    }

    #[track_caller]
    pub fn received(&self) -> u64 {
        self.peer_field(5).parse().expect("a number")
    }

    #[track_caller]
    pub fn sent(&self) -> u64 {
        self.peer_field(6).parse().expect("a number")
    }

    #[track_caller]
    pub fn latest_handshake(&self) -> u64 {
        self.peer_field(4).parse().expect("a number")
    }
}

/// Two sides, each the only peer of the other, up and configured; nothing was sent yet.
/// Inside: 192.168.77.1 and .2, fd77::1 and ::2.
pub struct WgTunnel {
    pub left: Side,
    pub right: Side,
    pub psk: Option<String>,
    pub setup: Setup,
}

impl WgTunnel {
    #[track_caller]
    pub fn new(net: &SitePair, setup: Setup) -> WgTunnel {
        WgTunnel::between(
            (&net.left, &net.address_of_left(setup.outer)),
            (&net.right, &net.address_of_right(setup.outer)),
            setup,
        )
    }

    /// The addresses are those at which each side reaches the other.
    #[track_caller]
    pub fn between(left: (&Container, &str), right: (&Container, &str), setup: Setup) -> WgTunnel {
        let (left, left_address) = left;
        let (right, right_address) = right;
        let psk = setup.psk.then(Keys::psk);
        let side = |host: &Container, program, start, number| Side {
            host: host.clone(),
            daemon: Daemon::start(host, program, "wg0", start),
            interface: "wg0".to_owned(),
            keys: Keys::new(),
            port: 51820,
            config: String::new(),
            v4: format!("192.168.77.{number}"),
            v6: format!("fd77::{number}"),
        };
        let mut left = side(left, setup.left, &setup.start_left, 1);
        let mut right = side(right, setup.right, &setup.start_right, 2);
        let to_left = setup.right_knows_left.then_some(left_address);
        let config = |side: &Side, other: &Side, endpoint: Option<&str>| {
            let mut config = format!(
                "[Interface]\nPrivateKey = {}\nListenPort = {}\n[Peer]\nPublicKey = {}\nAllowedIPs = {}/32, {}/128\n",
                side.keys.private, side.port, other.keys.public, other.v4, other.v6,
            );
            if let Some(address) = endpoint {
                let endpoint = setup.outer.with_port(address, other.port);
                config += &format!("Endpoint = {endpoint}\n");
            }
            if let Some(psk) = &psk {
                config += &format!("PresharedKey = {psk}\n");
            }
            if let Some(keepalive) = setup.keepalive {
                config += &format!("PersistentKeepalive = {keepalive}\n");
            }
            setconf(&side.host, "wg0", &config);
            config
        };
        left.config = config(&left, &right, Some(right_address));
        right.config = config(&right, &left, to_left);
        for side in [&left, &right] {
            side.host.sh(&format!(
                "set -e; ip addr add {}/24 dev wg0; ip addr add {}/64 dev wg0 nodad; ip link set wg0 mtu {} up",
                side.v4, side.v6, setup.mtu
            ));
            side.host.answers_at(&side.v6);
        }
        WgTunnel {
            left,
            right,
            psk,
            setup,
        }
    }

    /// The left side begins; returns when both can send.
    #[track_caller]
    pub fn connect(&self) {
        ping(&self.left.host, &self.right.v4, 1);
        wait_for("the left side has a handshake", seconds(30), || {
            self.left.latest_handshake() > 0
        });
    }
}

/// `wg setconf` with a configuration's text.
#[track_caller]
pub fn setconf(host: &Container, interface: &str, config: &str) {
    host.sh_with_input(&format!("wg setconf {interface} /dev/stdin"), config);
}
