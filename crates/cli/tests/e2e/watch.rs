//! What people and programs see of a running interface: `adit show` and its kin.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::harness::{
    Container, Daemon, Keys, Program, Setup, Side, SitePair, Start, WgTunnel, ping, seconds,
    setconf, wait_for,
};

/// `adit ARGS`.
fn adit(args: &str) -> String {
    format!("{} {args}", Program::Adit.path().display())
}

/// Every word that `wg show IF` takes.
const FIELDS: [&str; 12] = [
    "public-key",
    "private-key",
    "listen-port",
    "fwmark",
    "peers",
    "preshared-keys",
    "endpoints",
    "allowed-ips",
    "latest-handshakes",
    "transfer",
    "persistent-keepalive",
    "dump",
];

#[test]
fn each_form_of_wg_show_prints_what_wg_prints() {
    let net = SitePair::new();
    let setup = Setup {
        psk: true,
        keepalive: Some(25),
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    tunnel.connect();
    let host = &tunnel.left.host;
    let more = |endpoint: &str, blocks: &str| {
        let key = Keys::new().public;
        format!("[Peer]\nPublicKey = {key}\nEndpoint = {endpoint}\nAllowedIPs = {blocks}\n")
    };
    let peers = [
        more("192.0.2.1:1000", "10.9.0.0/16, fd01::/64, ::1.2.3.4/128"),
        more("[2001:db8::1]:2000", "::/1, 0:0:0:1::/64"),
        more("[fe80::1%eth0]:3000", "fd02::/64"),
        format!("[Peer]\nPublicKey = {}\n", Keys::new().public),
    ];
    host.sh_with_input("wg addconf wg0 /dev/stdin", &peers.concat());
    host.sh("wg set wg0 fwmark 0x2a");
    // Nothing goes to and fro meanwhile.
    host.sh("ip link set wg0 down");
    // The order of several interfaces is that of wg, too. One has been killed.
    host.sh(&adit("wg1"));
    host.sh(&adit("wg2"));
    host.sh("pkill -KILL -f -- '-- wg2$'");
    // A process that ends closes its TUN before its socket.
    wait_for("it has ended", seconds(10), || {
        !host.has_interface("wg2") && !host.sh("ss -Hlx").contains("/wg2.sock")
    });
    // All of its threads may take a moment longer.
    wait_for("both show the same interfaces", seconds(10), || {
        host.sh(&adit("show interfaces")) == host.sh("wg show interfaces")
    });
    for words in ["wg0", "all"] {
        for field in FIELDS {
            let wg = host.sh(&format!("wg show {words} {field}"));
            let ours = host.sh(&adit(&format!("show {words} {field}")));
            assert_eq!(ours, wg, "{words} {field}");
        }
    }
    // What it prints for people is that of wg, and more.
    let shown = host.sh(&adit("show all"));
    let wg = host.sh("wg show all");
    // A second may pass.
    for line in wg.lines().filter(|line| !line.contains(" ago")) {
        assert!(shown.contains(line), "{line} in {shown}");
    }

    // An interface without keys and peers.
    let bare = Container::new("bare");
    let _daemon = Daemon::start(&bare, Program::Adit, "wg0", &Start::default());
    for field in FIELDS {
        let wg = bare.sh(&format!("wg show wg0 {field}"));
        assert_eq!(bare.sh(&adit(&format!("show wg0 {field}"))), wg, "{field}");
    }
    setconf(&bare, "wg0", "[Interface]\n");
    let wrong = bare.try_sh(&adit("show wg0 keys"));
    assert!(!wrong.ok() && wrong.stderr.contains("latest-handshakes"));
}

/// The first interface of `adit show --json`.
fn status(host: &Container, interface: &str) -> Value {
    let json = host.sh(&adit(&format!("show {interface} --json")));
    let mut report: Value = serde_json::from_str(&json).expect("JSON");
    report["interfaces"][0].take()
}

#[test]
fn names_of_the_file_are_names_of_peers_until_sync_changes_them() {
    let host = Container::new("named");
    let (own, alice, bob) = (Keys::new(), Keys::new(), Keys::new());
    let file = |first: &str, second: &str| {
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n\n# Client: {first}\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.9.0.2/32\nEndpoint = 192.0.2.1:1000\n\n\
             [Peer]\n# {second}\nPublicKey = {}\nAllowedIPs = 10.9.0.3/32\n",
            own.private, alice.public, bob.public
        )
    };
    let write = "install -Dm600 /dev/stdin /etc/wireguard/wg0.conf";
    host.sh_with_input(write, &file("alice", "Bob's phone"));
    host.sh(&format!("LOG_LEVEL=verbose {} 2> /run/log", adit("up wg0")));
    let names = |host: &Container| {
        let peers = status(host, "wg0")["peers"].clone();
        let names = peers.as_array().expect("peers").iter();
        let names: Vec<Value> = names.map(|peer| peer["name"].clone()).collect();
        names
    };
    assert_eq!(names(&host), ["alice", "Bob's phone"]);
    // `wg` sees nothing of it.
    assert!(!host.sh("wg show wg0").contains("alice"));
    let shown = host.sh(&adit("show wg0 --peer PHONE"));
    assert!(shown.contains("name: Bob's phone"), "{shown}");
    assert!(!shown.contains("alice"), "{shown}");
    assert_eq!(
        host.sh(&adit("show wg0 peers --peer 10.9.0.2")).trim(),
        alice.public
    );
    host.try_sh("ping -n -q -c 1 -W 1 10.9.0.2");
    wait_for("the log names the peer", seconds(30), || {
        host.sh("cat /run/log").contains("(alice): ")
    });

    host.sh_with_input(write, &file("carol", "dave"));
    host.sh(&adit("sync wg0"));
    assert_eq!(names(&host), ["carol", "dave"]);
    host.sh(&adit("down wg0"));
}

#[test]
fn many_peers_have_a_line_each_and_an_order() {
    let host = Container::new("many");
    let _daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    let mut config = format!("[Interface]\nPrivateKey = {}\n", Keys::new().private);
    let keys: Vec<Keys> = (0..20).map(|_| Keys::new()).collect();
    for (number, keys) in keys.iter().enumerate() {
        let endpoint = format!("192.0.2.{}:1000", 100 - number);
        config += &format!(
            "[Peer]\nPublicKey = {}\nEndpoint = {endpoint}\n",
            keys.public
        );
    }
    setconf(&host, "wg0", &config);
    let shown = host.sh(&adit("show wg0 --sort endpoint"));
    let (_, lines) = shown.split_once("PEER").expect("a heading");
    // Behind the peers comes what they need least.
    let (lines, engine) = lines.split_once("\n\n").expect("an empty line");
    assert!(engine.starts_with("engine of: wg0\n"), "{engine}");
    let endpoints: Vec<&str> = (lines.lines().skip(1))
        .filter_map(|line| line.split_whitespace().nth(3))
        .collect();
    let expected: Vec<String> = (81..=100).map(|n| format!("192.0.2.{n}:1000")).collect();
    assert_eq!(endpoints, expected, "{shown}");
    let blocks = host.sh(&adit("show wg0 --layout blocks"));
    assert_eq!(blocks.matches("\npeer: ").count(), 20, "{blocks}");
    // Again and again, with rates.
    let watched = host.sh(&format!(
        "timeout 1 {} || true",
        adit("show wg0 --watch=0.2")
    ));
    assert!(watched.matches("\x1b[2J").count() >= 2, "{watched}");
    assert!(watched.contains("RX bit/s"), "{watched}");
}

#[test]
fn a_peer_tells_of_attempts_and_of_the_last_failure() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    let peer = |side: &Side| side.status()["peers"][0].clone();
    assert_eq!(peer(left)["state"], "unknown");
    tunnel.connect();
    wait_for("both know that the other is there", seconds(30), || {
        peer(left)["state"] == "up" && peer(right)["state"] == "up"
    });
    assert!(peer(left)["handshake_microseconds"].as_u64() > Some(0));

    // Another preshared key on one side.
    left.wg(&format!("set {{}} peer {} remove", right.keys.public));
    setconf(
        &left.host,
        "wg0",
        &format!("{}PresharedKey = {}\n", left.config, Keys::psk()),
    );
    left.host
        .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4));
    wait_for("the reason is known", seconds(30), || {
        peer(left)["last_failure"]["reason"] == "not_authentic"
    });
    let shown = left.host.sh(&adit("show wg0"));
    assert!(shown.contains("latest failure: not authentic, "), "{shown}");
    assert!(shown.contains("latest attempt: "), "{shown}");
    assert!(peer(left)["unanswered"].as_u64() >= Some(1));
    assert!(peer(left)["last_attempt"].as_u64() > Some(1_700_000_000));
}

/// `adit events --json` on a host, from now on.
pub struct Listening {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    seen: Vec<Value>,
}

impl Listening {
    pub fn start(host: &Container) -> Listening {
        let mut command = host.command(&Program::Adit.path().display().to_string());
        let mut child = command
            .args(["events", "--json", "wg0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut listening = Listening {
            child,
            lines,
            seen: Vec::new(),
        };
        listening.wait("listening", |_| true);
        listening
    }

    /// The next event of a kind for which `is_it` holds. The watchdog ends a test that waits in vain.
    pub fn wait(&mut self, kind: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.next();
            let line = line.unwrap_or_else(|| panic!("no {kind} among {:#?}", self.seen));
            let event: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            assert_eq!(event["schema"], 1, "{event}");
            self.seen.push(event.clone());
            if event["event"] == kind && is_it(&event) {
                return event;
            }
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn events_tell_who_comes_goes_roams_knocks_and_configures() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    let (left, right) = (&tunnel.left, &tunnel.right);
    let mut events = Listening::start(&left.host);
    tunnel.connect();
    let key = right.keys.public.as_str();
    let up = events.wait("peer_up", |_| true);
    assert_eq!(
        (&up["peer"], &up["endpoint"]),
        (&key.into(), &"10.0.0.2:51820".into())
    );

    right.wg("set {} listen-port 51999");
    ping(&right.host, &left.v4, 1);
    let roamed = events.wait("peer_roamed", |_| true);
    assert_eq!(roamed["from"], "10.0.0.2:51820");
    assert_eq!(roamed["endpoint"], "10.0.0.2:51999");

    left.host.sh("wg set wg0 fwmark 7");
    let configured = events.wait("configured", |_| true);
    assert_eq!(
        (&configured["command"], &configured["uid"]),
        (&"wg".into(), &0.into())
    );
    assert!(
        configured["text"]
            .as_str()
            .expect("text")
            .contains("changed fwmark from 0 to 7")
    );
    left.host.sh("wg set wg0 fwmark 0");

    // Nobody has a route there.
    left.host
        .sh("ip route add 10.77.0.0/16 dev wg0; ping -n -q -c 3 -i 0.1 -W 1 10.77.0.1 || true");
    let started = events.wait("drops_started", |event| event["reason"] == "no_route");
    assert!(started["count"].as_u64() >= Some(1));
    let ended = events.wait("drops_ended", |event| event["reason"] == "no_route");
    assert_eq!(ended["count"], 3);

    // The right side has another key all at once: the left one does not know it.
    let stranger = Keys::new();
    right
        .host
        .sh_with_input("wg set wg0 private-key /dev/stdin", &stranger.private);
    right
        .host
        .try_sh(&format!("ping -n -q -c 1 -W 1 {}", left.v4));
    let unknown = events.wait("unknown_peer", |_| true);
    assert_eq!(
        (&unknown["peer"], &unknown["reason"]),
        (&stranger.public.into(), &"unknown_peer".into())
    );

    // The key that the left side sends to is not there any more.
    right.host.sh("ip link set eth0 down");
    left.host
        .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4));
    events.wait("peer_silent", |event| event["peer"] == key);
}

#[test]
fn metrics_are_scraped_by_an_unprivileged_prometheus() {
    let net = SitePair::new();
    let setup = Setup {
        start_left: Start::default().env("ADIT_STATUS_GROUP", "prometheus"),
        ..Setup::default()
    };
    let tunnel = WgTunnel::new(&net, setup);
    tunnel.connect();
    let host = &tunnel.left.host;
    assert!(
        host.sh("stat -c '%a %G' /run/adit/wg0.sock")
            .contains("660 prometheus")
    );
    let text = host.sh(&adit("metrics"));
    let key = &tunnel.right.keys.public;
    let labels = format!("{{interface=\"wg0\",public_key=\"{key}\",allowed_ips=\"");
    for metric in [
        "sent_bytes_total",
        "received_bytes_total",
        "latest_handshake_seconds",
    ] {
        let line = format!("wireguard_{metric}{labels}");
        assert!(text.contains(&line), "{line} in {text}");
    }
    let checked = host.try_sh_with_input("promtool check metrics", &text);
    assert!(checked.ok(), "{}{}", checked.stdout, checked.stderr);
    assert_eq!(checked.stderr, "");

    // The exporter and Prometheus run as its user, who may use neither key nor control socket.
    let user = "setpriv --reuid prometheus --regid prometheus --clear-groups";
    let refused = host.try_sh(&format!("{user} wg show wg0 private-key"));
    assert!(!refused.ok());
    let config = "global: { scrape_interval: 1s }\nscrape_configs: [{ job_name: adit, static_configs: [{ targets: ['127.0.0.1:9586'] }] }]\n";
    host.sh_with_input("cat > /run/prometheus.yml", config);
    host.sh("install -d -o prometheus /run/tsdb");
    let serve = adit("metrics --listen 127.0.0.1:9586");
    let prometheus = "prometheus --config.file=/run/prometheus.yml --storage.tsdb.path=/run/tsdb \
                      --web.listen-address=127.0.0.1:9090";
    let background = "> /run/scrape.log 2>&1 &";
    host.sh(&format!("{user} {serve} {background}"));
    host.sh(&format!("{user} {prometheus} {background}"));
    let query = "promtool query instant http://127.0.0.1:9090 'wireguard_received_bytes_total > 0'";
    wait_for("Prometheus knows the peer", seconds(60), || {
        let found = host.try_sh(query);
        found.ok() && found.stdout.contains(key.as_str())
    });
}

#[test]
fn top_fits_its_terminal_and_obeys_keys() {
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let host = &tunnel.left.host;
    let short = format!("{}…", &tunnel.right.keys.public[..8]);
    let tmux = |args: &str| host.sh(&format!("LC_ALL=C.UTF-8 tmux -u -S /run/tmux {args}"));
    let screen = |is_coloured: bool| {
        let escapes = if is_coloured { "-e" } else { "" };
        tmux(&format!("capture-pane -p {escapes}"))
    };
    let shows = |what: &str| {
        wait_for(what, seconds(20), || screen(false).contains(what));
    };
    tmux(&format!(
        "new-session -d -x 150 -y 20 '{}'",
        adit("top --interval 0.2")
    ));
    shows(&short);
    shows("LATENCY");
    shows("1 of 1 peers up");
    assert!(screen(true).contains("\x1b["), "colours");
    // A filter that nothing matches, and none.
    tmux("send-keys /");
    shows("filter: _");
    tmux("send-keys -l zzz");
    shows("0 match \"zzz\"");
    tmux("send-keys Escape");
    shows(&short);
    tmux("send-keys s");
    shows("sorted by tx");
    tmux("resize-window -x 50 -y 12");
    wait_for("a narrow page", seconds(20), || {
        let screen = screen(false);
        screen.contains(&short) && !screen.contains("LATENCY") && !screen.contains("ENDPOINT")
    });
    tmux("send-keys '?'");
    shows("these keys");
    tmux("send-keys '?'");
    shows("TX bit/s↓");
    tmux("send-keys q");
    wait_for("the end", seconds(20), || {
        !host.try_sh("tmux -S /run/tmux has-session").ok()
    });

    // Where the output is no terminal there are no colours, and an end.
    let page = host.sh(&adit("top --interval 0.2"));
    assert!(page.contains(&short) && !page.contains('\x1b'), "{page}");
}

/// A container's process does not see who asks from outside: the kernel tells it the user alone.
#[test]
fn root_outside_of_a_container_may_begin_a_handshake() {
    if !crate::quick::only_adit() {
        return;
    }
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let dir = tunnel.left.host.path("/run/adit");
    let shown = adit_ctl::status::fetch_in(&dir, "wg0").expect("its status");
    let peer = &shown.peers[0].public_key;
    let probe = adit_ctl::status::probe_in(&dir, "wg0", peer).expect("an answer");
    assert_eq!(probe.error, None);
}

/// What a terminal obeys, and what changes the order of what is read.
const HOSTILE: &str = "\u{1b}[31m\r\n\u{9b}2J\u{202e}\u{2066}\u{200f}\u{7}";

/// The same document with that in each of its texts.
fn poisoned(value: &Value) -> Value {
    match value {
        Value::String(text) => format!("{text}{HOSTILE}").into(),
        Value::Array(all) => all.iter().map(poisoned).collect(),
        Value::Object(fields) => {
            let poison = |(name, value): (&String, &Value)| {
                // The names of reasons are texts, too.
                let name = match value {
                    Value::Number(_) | Value::Bool(_) if !is_field(name) => {
                        format!("{name}{HOSTILE}")
                    }
                    _ => name.clone(),
                };
                (name, poisoned(value))
            };
            Value::Object(fields.iter().map(poison).collect())
        }
        other => other.clone(),
    }
}

/// Whether a name is that of a field, and no reason, thread or offload.
fn is_field(name: &str) -> bool {
    let others = ["no_route", "replayed", "adit-ctl", "udp-gso", "no-dumps"];
    !others.contains(&name)
}

#[test]
fn what_a_process_says_does_nothing_to_the_terminal() {
    if !crate::quick::only_adit() {
        return;
    }
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let host = &tunnel.left.host;
    let mut report: Value = serde_json::from_str(&host.sh(&adit("show wg0 --json"))).expect("JSON");
    let interface = &mut report["interfaces"][0];
    interface["peers"][0]["name"] = "alice".into();
    interface["peers"][0]["drops"]["replayed"] = 3.into();
    interface["peers"][0]["last_failure"] =
        serde_json::json!({ "at": 4_000_000_000_u64, "reason": "no_answer" });
    interface["engine"]["drops"]["no_route"] = 7.into();
    let report = poisoned(&report).to_string() + "\n";
    let event = serde_json::json!({
        "schema": 1, "time": 1.0, "interface": "wg9", "event": "peer_up", "name": "alice",
        "text": "alice is up",
    });
    // As another program may write it: raw, as far as JSON permits that.
    let event = (poisoned(&event).to_string() + "\n").repeat(3);
    let probe = poisoned(&serde_json::json!({ "schema": 1, "peer": "x", "error": "it is busy" }));
    let probe = probe.to_string() + "\n";
    let listener = UnixListener::bind(host.path("/run/adit/wg9.sock")).expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut question = String::new();
            let mut reader = BufReader::new(stream);
            _ = reader.read_line(&mut question);
            let answer = match question.trim_end() {
                "status" => &report,
                "events" => &event,
                "watch" => "{\"error\":\"no\"}\n",
                _ => &probe,
            };
            _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    for command in [
        "show wg9",
        "show wg9 --layout lines",
        "show wg9 --json",
        "show wg9 peers",
        "show wg9 endpoints",
        "show wg9 allowed-ips",
        "top wg9 --interval 0.1",
        "why wg9 --wait 1",
        "why wg9 --wait 1 --json",
        "metrics",
        "events wg9",
        "events wg9 --json",
        "completions --peers wg9",
    ] {
        let ran = host.try_sh(&adit(command));
        assert!(!ran.stdout.is_empty(), "{command}: {}", ran.stderr);
        for text in [&ran.stdout, &ran.stderr] {
            let bad = text.chars().find(|&c| {
                c != '\n' && c != '\t' && (c.is_control() || "\u{202e}\u{2066}\u{200f}".contains(c))
            });
            assert_eq!(bad, None, "{command}: {text:?}");
        }
    }
}

/// A file may have any name.
#[test]
fn the_name_of_a_file_does_nothing_to_the_terminal() {
    if !crate::quick::only_adit() {
        return;
    }
    let host = Container::new("named");
    let dir = "/run/\u{1b}[31m\r\u{9b}2J\u{202e}";
    let file = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.0.0.1/24\nListenPort = 7\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 10.0.0.2\n",
        Keys::new().private,
        Keys::new().public
    );
    let write = format!("mkdir '{dir}'; umask 077; cat > '{dir}/wg0.conf'");
    host.sh_with_input(&write, &file);
    for (command, said) in [
        (format!("check '{dir}/wg0.conf'"), "nothing to remark"),
        (format!("check '{dir}/none.conf'"), "none.conf"),
        (format!("up '{dir}/none.conf'"), "there is no file"),
    ] {
        let ran = host.try_sh(&adit(&command));
        let told = ran.stdout + &ran.stderr;
        assert!(told.contains(said), "{told}");
        let bad = told
            .chars()
            .find(|&c| c != '\n' && (c.is_control() || c == '\u{202e}'));
        assert_eq!(bad, None, "{told:?}");
    }
}

/// Root of a container may give a device any name.
#[test]
fn the_name_of_a_device_does_nothing_to_the_terminal() {
    if !crate::quick::only_adit() {
        return;
    }
    let net = SitePair::new();
    let tunnel = WgTunnel::new(&net, Setup::default());
    tunnel.connect();
    let host = &tunnel.left.host;
    let device = "\u{1b}[1m\u{202e}up";
    host.sh(&format!(
        "ip link add '{device}' type veth peer name other; ip link set '{device}' up; ip link set other up
         ip route add 10.0.0.2 dev '{device}'"
    ));
    for (command, said) in [
        ("why wg0 --wait 1", "\u{fffd}[1m\u{fffd}up"),
        ("why wg0 --wait 1 --json", r"\u001b[1m\u202eup"),
    ] {
        let ran = host.try_sh(&adit(command));
        assert!(ran.stdout.contains(said), "{:?}", ran.stdout);
        let bad = ran.stdout.chars().find(|&c| "\u{1b}\u{202e}".contains(c));
        assert_eq!(bad, None, "{:?}", ran.stdout);
    }
}

#[test]
fn completions_offer_the_names_of_peers_and_no_internal_options() {
    if !crate::quick::only_adit() {
        return;
    }
    let host = Container::new("completed");
    let (one, two) = (Keys::new(), Keys::new());
    let file = format!(
        "[Interface]\nPrivateKey = {}\n\n[Peer]\n# Bob's phone\nPublicKey = {}\n\n[Peer]\nPublicKey = {}\n",
        Keys::new().private,
        one.public,
        two.public
    );
    host.sh_with_input("install -Dm600 /dev/stdin /etc/wireguard/wg0.conf", &file);
    host.sh(&adit("completions bash > /run/adit.bash"));
    let program = Program::Adit.path().display().to_string();
    let complete = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let (words, last) = (words.join(" "), words.len() - 1);
        let script = format!(
            "mkdir -p /run/bin; ln -sf {program} /run/bin/adit; export PATH=/run/bin:$PATH; . /run/adit.bash; \
             COMP_WORDS=({words}); COMP_CWORD={last}; \
             _adit_with_names adit \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        host.sh_with_input("bash -s", &script)
    };
    // By the file, and by the interface.
    for _ in 0..2 {
        for words in [
            &["adit", "why", "wg0", "Bo"][..],
            &["adit", "show", "wg0", "--peer", "Bo"],
        ] {
            assert_eq!(complete(words), "Bob\\'s\\ phone\n", "{words:?}");
        }
        let keys = complete(&["adit", "remove", "wg0", ""]);
        assert!(
            keys.contains(&two.public[..40]) && keys.lines().count() == 2,
            "{keys}"
        );
        host.try_sh(&adit("up wg0"));
    }
    for words in [&["adit", "--"][..], &["adit", "run", "--"]] {
        let options = complete(words);
        assert!(options.contains("--status-group"), "{options}");
        for hidden in ["background", "die-with", "take-over", "control-dir"] {
            assert!(!options.contains(hidden), "{hidden} in {options}");
        }
    }
}

#[test]
fn who_looks_at_metrics_cannot_be_kept_out() {
    if !crate::quick::only_adit() {
        return;
    }
    let host = Container::new("scraped");
    let _daemon = Daemon::start(&host, Program::Adit, "wg0", &Start::default());
    let serve = adit("metrics --listen 127.0.0.1:9586 --host prom.example > /run/log 2>&1 &");
    host.sh(&serve);
    let scrape = |host_header: &str| {
        let url = "http://127.0.0.1:9586/metrics";
        let scraped = format!(
            "curl -sS -m 10 -o /run/page -w '%{{http_code}}' -H 'Host: {host_header}' {url}"
        );
        host.try_sh(&scraped).stdout
    };
    wait_for("it listens", seconds(20), || scrape("127.0.0.1") == "200");
    for (name, status) in [
        ("localhost:9586", "200"),
        ("prom.example:9586", "200"),
        ("[::1]", "200"),
        ("evil.example", "421"),
        ("127.0.0.1.evil.example:9586", "421"),
    ] {
        assert_eq!(scrape(name), status, "{name}");
    }
    assert!(host.sh("cat /run/page").contains("--host NAME"));
    // Idle ones, more than there are places.
    let _idle: Vec<_> = (0..40)
        .map(|_| host.within(|| std::net::TcpStream::connect("127.0.0.1:9586")))
        .collect();
    for _ in 0..5 {
        assert_eq!(scrape("localhost"), "200");
    }
}

#[test]
fn top_obeys_keys_on_a_terminal_and_leaves_it_as_it_was() {
    let host = Container::new("host");
    let top = format!(
        "stty rows 24 cols 80; stty -g > /run/before; {}; echo ended $?; stty -g > /run/after",
        adit("top")
    );
    // Each key is pressed when the one before has been obeyed.
    let keys = "shows() { until [ \"$(grep -aoe \"$1\" /run/typescript | wc -l)\" -ge $2 ]; do sleep 0.1; done; }
        shows 'q quit' 1; printf /moon
        shows 'filter: moon_' 1; printf '\\033'
        shows 'q quit' 2; printf q
        shows 'ended' 1";
    host.sh(&format!(
        "touch /run/typescript; {{ {keys}; }} | timeout 60 script -qfec '{top}' /run/typescript"
    ));
    let shown = host.sh("cat /run/typescript");
    for said in ["0 of 0 peers up", "0 match \"moon\"", "ended 0"] {
        assert!(shown.contains(said), "{said}: {shown:?}");
    }
    let end = shown.rfind("\x1b[?1049l").expect("the shell's screen");
    assert!(!shown[end..].contains("\x1b[?25l"), "{shown:?}");
    host.sh("cmp /run/before /run/after");
}
