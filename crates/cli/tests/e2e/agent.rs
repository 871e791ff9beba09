//! `adit agent`: peers from a source, however it and the interface come and go.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::everyday::server;
use crate::harness::*;
use crate::quick::{World, adit, only_adit};

pub const PEERS: &str = "/etc/wireguard/wg0.peers";

/// A hub on the left whose peers an agent brings, and its folder.
pub struct Hub {
    pub world: World,
    pub phone: Keys,
    agent: Option<Child>,
    log: std::path::PathBuf,
    source: String,
}

impl Hub {
    /// Without an agent yet.
    pub fn new(source: &str) -> Hub {
        let world = World::new();
        let left = world.left();
        server(&world);
        left.sh(&format!("mkdir -m 700 {PEERS}"));
        let log = left.path("/run/agent.log");
        Hub {
            world,
            phone: Keys::new(),
            agent: None,
            log,
            source: source.to_owned(),
        }
    }

    pub fn left(&self) -> &Container {
        self.world.left()
    }

    pub fn start(&mut self, options: &[&str]) {
        let command = self.left().command(&adit());
        self.start_by(command, options);
    }

    /// With a command whose arguments these become.
    pub fn start_by(&mut self, mut command: Command, options: &[&str]) {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.expect("a log");
        command.args(["agent", "wg0", "--source"]).arg(&self.source);
        command.args(options).stdin(Stdio::null()).stderr(log);
        self.agent = Some(command.spawn().expect("nsenter starts"));
    }

    /// Both of its processes, at once.
    pub fn kill(&mut self) {
        self.left()
            .sh("pkill -9 -x adit-agent; pkill -9 -x adit-supervisor || true");
        if let Some(mut agent) = self.agent.take() {
            agent.wait().expect("it has ended");
        }
        wait_for("it is gone", seconds(10), || {
            self.status()["is_running"] == false
        });
    }

    /// Of the agent that was started last, once it has ended.
    pub fn exit_status(&mut self) -> Option<i32> {
        let ended = self.agent.as_mut()?.try_wait();
        ended.expect("a child")?.code()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn status(&self) -> serde_json::Value {
        let printed = self
            .left()
            .try_sh(&format!("{} agent status wg0 --json", adit()));
        serde_json::from_str(&printed.stdout).unwrap_or_default()
    }

    /// Waits until the status has these values.
    #[track_caller]
    pub fn becomes(&self, values: &[(&str, serde_json::Value)]) {
        let start = Instant::now();
        loop {
            let status = self.status();
            if values.iter().all(|(name, value)| status[*name] == *value) {
                return;
            }
            assert!(
                start.elapsed() < seconds(20),
                "{values:?}: {status}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn put(&self, name: &str, text: &str) {
        let script = format!("cat > {PEERS}/.next && mv {PEERS}/.next {PEERS}/{name}.conf");
        self.left().sh_with_input(&script, text);
    }

    pub fn phone(&self) -> String {
        record(
            &self.phone.public,
            "10.77.0.2/32",
            "# friendly_name = phone",
        )
    }

    /// The right side becomes the phone, with more lines about the hub.
    pub fn connect(&self, more: &str) {
        let hub = self.left().sh("wg show wg0 public-key");
        let right = &self.world.net.right;
        let config = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.77.0.2/24\n[Peer]\nPublicKey = {hub}AllowedIPs = 10.77.0.1/32\nEndpoint \
             = 10.1.0.100:51820\n{more}\n",
            self.phone.private
        );
        right.sh_with_input("umask 077; cat > /etc/wireguard/wg1.conf", &config);
        right.sh(&format!("{} up wg1", adit()));
    }

    pub fn peers(&self) -> Vec<String> {
        let peers = self.left().sh("wg show wg0 peers");
        let mut peers: Vec<String> = peers.lines().map(str::to_owned).collect();
        peers.sort_unstable();
        peers
    }

    #[track_caller]
    pub fn has(&self, keys: &[&str]) {
        let mut expected: Vec<&str> = keys.to_vec();
        expected.sort_unstable();
        let start = Instant::now();
        while self.peers() != expected {
            assert!(
                start.elapsed() < seconds(20),
                "{expected:?}: {:?}\n{}\n{}",
                self.peers(),
                self.status(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

pub fn record(key: &str, block: &str, more: &str) -> String {
    format!("[Peer]\n{more}\nPublicKey = {key}\nAllowedIPs = {block}\n")
}

#[test]
fn a_peer_has_access_as_long_as_its_file_is_there() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    // The interface comes later than its agent.
    hub.left().sh(&format!("{} down wg0", adit()));
    hub.start(&[]);
    hub.put("phone", &hub.phone());
    hub.becomes(&[("records", 1.into()), ("is_up", false.into())]);
    hub.left().sh(&format!("{} up wg0", adit()));
    hub.has(&[&hub.phone.public]);
    hub.connect("");
    let (left, right) = (hub.left(), &hub.world.net.right);
    ping(right, "10.77.0.1", 1);
    assert!(left.sh(&format!("{} show wg0", adit())).contains("phone"));
    // An editor's way to write a file: the session goes on.
    let before = left.sh("wg show wg0 latest-handshakes");
    let at = |name: &str| left.path(&format!("{PEERS}/{name}"));
    let text = std::fs::read_to_string(at("phone.conf")).expect("a file");
    std::fs::rename(at("phone.conf"), at("phone.conf~")).expect("a backup");
    let written = std::fs::write(at("phone.conf"), text + "PersistentKeepalive = 25\n");
    written.expect("a file");
    wait_for("the change is made", seconds(20), || {
        left.sh("wg show wg0 persistent-keepalive").contains("25")
    });
    assert_eq!(left.sh("wg show wg0 latest-handshakes"), before);
    ping(right, "10.77.0.1", 1);
    left.sh(&format!("rm {PEERS}/phone.conf"));
    hub.has(&[]);
    ping_fails(right, "10.77.0.1");
    hub.becomes(&[
        ("state", "listed".into()),
        ("applied", 0.into()),
        ("is_running", true.into()),
    ]);
    let log = hub.log();
    let key = &hub.phone.public;
    for line in [
        format!("adit: wg0: added the peer {key} (phone)\n"),
        format!("adit: wg0: changed the peer {key} (phone)\n"),
        format!("adit: wg0: removed the peer {key} (phone)\n"),
    ] {
        assert!(log.contains(&line), "{log}");
    }
    assert_eq!(log.lines().count(), 3, "{log}");
}

#[test]
fn whatever_ends_the_peers_of_a_source_are_there_afterwards() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let (laptop, late, other) = (Keys::new(), Keys::new(), Keys::new());
    let lines = "# friendly_name = phone\n# Limit = 5M";
    hub.put("phone", &record(&hub.phone.public, "10.77.0.2/32", lines));
    hub.put("laptop", &record(&laptop.public, "10.77.0.3/32", ""));
    hub.left().sh(&format!(
        "wg set wg0 peer {} allowed-ips 10.77.0.9/32",
        other.public
    ));
    hub.start(&[]);
    hub.has(&[&hub.phone.public, &laptop.public, &other.public]);
    hub.connect("");
    ping(&hub.world.net.right, "10.77.0.1", 1);
    // The agent is killed, and the next one knows what it brought: no session ends.
    let before = hub.left().sh("wg show wg0 latest-handshakes");
    hub.kill();
    assert_eq!(hub.status()["is_running"], false);
    hub.left().sh(&format!("rm {PEERS}/laptop.conf"));
    hub.put("late", &record(&late.public, "10.77.0.4/32", ""));
    hub.start(&[]);
    hub.has(&[&hub.phone.public, &late.public, &other.public]);
    let after = hub.left().sh("wg show wg0 latest-handshakes");
    let of_phone = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(&hub.phone.public));
        line.map(str::to_owned)
    };
    assert_eq!(of_phone(&before), of_phone(&after));
    // Only one serves an interface.
    let second = hub
        .left()
        .try_sh(&format!("{} agent wg0 --source dir:{PEERS}", adit()));
    assert!(
        second.stderr.contains("another agent serves wg0"),
        "{}",
        second.stderr
    );
    // The process of the interface is replaced, killed, and applies its file.
    hub.left().sh(&format!("{} upgrade wg0", adit()));
    hub.has(&[&hub.phone.public, &late.public, &other.public]);
    wait_for("the name and the limit are there", seconds(20), || {
        let shown = hub.left().sh(&format!("{} show wg0", adit()));
        shown.contains("phone") && shown.contains("5M")
    });
    kill_interface(&hub);
    hub.left().sh(&format!("{} up wg0", adit()));
    hub.has(&[&hub.phone.public, &late.public]);
    wait_for("the phone is back", seconds(30), || {
        let ping = "ping -n -q -c 1 -W 1 10.77.0.1";
        hub.world.net.right.try_sh(ping).ok()
    });
    // The file is applied: those that it does not name are the agent's, and no session ends.
    let before = hub.left().sh("wg show wg0 latest-handshakes");
    hub.left().sh(&format!("{} sync wg0", adit()));
    assert_eq!(hub.left().sh("wg show wg0 latest-handshakes"), before);
    wait_for("the name is told again", seconds(20), || {
        hub.left()
            .sh(&format!("{} show wg0", adit()))
            .contains("phone")
    });
    // Another program removes them.
    hub.left().sh("wg syncconf wg0 /dev/null");
    hub.has(&[&hub.phone.public, &late.public]);
    // It ends, and everything stays.
    hub.left().sh("pkill -x adit-supervisor");
    wait_for("it ends", seconds(10), || {
        hub.status()["is_running"] == false
    });
    hub.has(&[&hub.phone.public, &late.public]);
}

#[test]
fn an_agent_that_is_asked_to_end_ends_and_the_next_one_follows() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    hub.put("phone", &hub.phone());
    for signal in ["TERM", "INT"] {
        // The first process of a container has no default action for signals.
        let mut command = hub.left().command("unshare");
        command.args(["--pid", "--fork", "--kill-child", &adit()]);
        hub.start_by(command, &[]);
        hub.has(&[&hub.phone.public]);
        hub.becomes(&[("state", "listed".into()), ("is_running", true.into())]);
        hub.left()
            .sh(&format!("pkill -{signal} -x adit-supervisor"));
        let mut first = hub.agent.take().expect("an agent");
        // It follows at once, while the first one may still have the interface.
        hub.start(&[]);
        wait_for("the first one ends", seconds(20), || {
            matches!(first.try_wait(), Ok(Some(_)))
        });
        assert!(first.wait().is_ok_and(|status| status.success()));
        hub.becomes(&[("state", "listed".into()), ("is_running", true.into())]);
        assert!(!hub.log().contains("another agent"), "{}", hub.log());
        hub.kill();
    }
}

#[test]
fn an_agent_as_pid_1_reaps_orphans() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new("exec:/run/program");
    let left = hub.world.left().clone();
    left.sh_with_input(
        "cat > /run/program && chmod 755 /run/program",
        "#!/bin/sh\n(sh -c 'sleep 0.1; : > /run/over' &)\necho '{\"listed\":true}'\nexec sleep 1000\n",
    );
    let mut command = left.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", &adit()]);
    hub.start_by(command, &[]);
    wait_for("the orphan has ended", seconds(20), || {
        left.try_sh("test -e /run/over").ok()
    });
    let zombies = "pgrep --runstates Z --parent $(pgrep -x adit-supervisor)";
    wait_for("it is reaped", seconds(20), || {
        left.try_sh("pgrep -x adit-supervisor").ok() && !left.try_sh(zombies).ok()
    });
    hub.becomes(&[("state", "listed".into()), ("is_running", true.into())]);
}

#[test]
fn an_endpoint_that_nobody_looks_up_is_told() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let left = hub.world.left().clone();
    // A process without a resolver.
    left.sh(&format!("{0} down wg0; {0} run wg0", adit()));
    let endpoint = "Endpoint = phone.example:51820";
    let named = record(&hub.phone.public, "10.77.0.2/32", endpoint);
    hub.put("phone", &named);
    hub.start(&[]);
    hub.has(&[&hub.phone.public]);
    wait_for("it is told", seconds(20), || {
        let why = hub.status()["failure"].to_string();
        why.contains("looks no names up")
    });
    assert!(hub.log().contains("looks no names up"), "{}", hub.log());
    hub.becomes(&[("state", "listed".into()), ("applied", 1.into())]);
}

#[test]
fn a_folder_that_only_root_can_read_says_what_it_lacks() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new("dir:/run/theirs");
    let left = hub.world.left().clone();
    left.sh("mkdir -m 700 /run/theirs; chown 1000 /run/theirs");
    hub.start(&[]);
    let hint = "must be readable without root's rights";
    wait_for("the folder is told", seconds(20), || {
        hub.status()["failure"].to_string().contains(hint)
    });
    let text = hub.phone();
    let script = "cat > /run/theirs/phone.conf; chown 1000 /run/theirs/*; chmod 600 /run/theirs/*; chmod 755 /run/theirs";
    left.sh_with_input(script, &text);
    wait_for("the record is told", seconds(20), || {
        hub.status()["refusals"].to_string().contains(hint)
    });
    left.sh("chmod 644 /run/theirs/phone.conf");
    hub.has(&[&hub.phone.public]);
    hub.becomes(&[("refused", 0.into()), ("state", "listed".into())]);
}

/// Kills what serves the interface.
pub fn kill_interface(hub: &Hub) {
    hub.left().sh(
        "for p in $(pgrep -x adit); do kill -9 $p; done; until ! ip link show wg0 2> /dev/null; do sleep 0.05; done",
    );
}

#[test]
fn a_folder_that_goes_away_takes_no_peer_along() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let laptop = Keys::new();
    hub.put("phone", &hub.phone());
    hub.put("laptop", &record(&laptop.public, "10.77.0.3/32", ""));
    hub.start(&[]);
    let both = [hub.phone.public.clone(), laptop.public.clone()];
    let both = both.each_ref().map(String::as_str);
    hub.has(&both);
    let left = hub.world.left().clone();
    let sh = |script: &str| left.sh(script);
    sh(&format!("mv {PEERS} /run/away"));
    hub.becomes(&[("state", "failing".into())]);
    // Its next change of the interface brings what another program removes, and removes nothing.
    sh(&format!("wg set wg0 peer {} remove", hub.phone.public));
    hub.has(&both);
    // An empty one in its place, as where a file system is not mounted.
    sh(&format!("mkdir {PEERS}"));
    wait_for("it is told", seconds(20), || {
        let why = hub.status()["failure"].to_string();
        why.contains("empty and is not the one that was read before")
    });
    hub.has(&both);
    // The next process waits for a folder, and counts the peers that are there.
    hub.kill();
    sh(&format!("rmdir {PEERS}"));
    hub.start(&[]);
    hub.becomes(&[
        ("is_running", true.into()),
        ("state", "failing".into()),
        ("is_up", true.into()),
        ("applied", 2.into()),
    ]);
    sh(&format!("mkdir {PEERS}"));
    // With a record, it is the source.
    hub.put("phone", &hub.phone());
    hub.has(&[&hub.phone.public]);
    // The old one again, and empty: it was read.
    sh(&format!("rm -r {PEERS}; mv /run/away {PEERS}"));
    hub.has(&both);
    sh(&format!("rm {PEERS}/*.conf"));
    hub.has(&[]);
    hub.becomes(&[("state", "listed".into()), ("records", 0.into())]);
}

#[test]
fn a_bad_record_is_refused_with_its_reason_and_the_others_hold() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    let left = hub.world.left().clone();
    let own = Keys::new();
    left.sh(&format!("{} add wg0 {} --name own", adit(), own.public));
    let own_block = left.sh("wg show wg0 allowed-ips | cut -f 2 | cut -d ' ' -f 1");
    hub.put(
        "phone",
        &record(&hub.phone.public, "10.77.0.22/32", "# Limit = 5M"),
    );
    hub.start(&[]);
    hub.has(&[&hub.phone.public, &own.public]);
    let listed = left.sh(&format!("{} peers wg0", adit()));
    assert!(
        listed.contains("of the agent's record phone.conf"),
        "{listed}"
    );
    let key = || Keys::new().public;
    let secret = Keys::psk();
    for (name, text, reason) in [
        ("junk", "junk\n".to_owned(), "line 1: expected Key = value"),
        (
            "overlaps",
            record(&key(), "10.77.0.16/28", ""),
            "overlaps 10.77.0.22/32 of another record, phone.conf",
        ),
        (
            "own",
            record(&own.public, "10.77.0.40/32", ""),
            "not from this source",
        ),
        (
            "takes",
            record(&key(), own_block.trim(), ""),
            "which is not from this source",
        ),
        (
            "twice",
            record(&hub.phone.public, "10.77.0.41/32", ""),
            "the same public key",
        ),
        ("key", record("AAAA", "10.77.0.42/32", ""), "this is no key"),
        (
            "secret",
            record(&key(), "10.77.0.43/32", &format!("PresharedKey = {secret}")),
            "a record has no secret",
        ),
        (
            "psk",
            record(&key(), "10.77.0.44/32", "PresharedKeyFile = x"),
            "without --psk-dir",
        ),
    ] {
        hub.put(name, &text);
        wait_for(name, seconds(20), || {
            let status = hub.status();
            let refusals = status["refusals"].as_array().cloned().unwrap_or_default();
            refusals.iter().any(|it| {
                it["record"] == format!("{name}.conf") && it["reason"].to_string().contains(reason)
            })
        });
    }
    left.sh(&format!(
        "head -c 1000000 /dev/zero > {PEERS}/large.conf; mkfifo {PEERS}/pipe.conf; ln -s nowhere {PEERS}/link.conf; \
         head -c 300 /dev/urandom > {PEERS}/noise.conf"
    ));
    hub.becomes(&[("refused", 12.into()), ("applied", 1.into())]);
    // A good one that becomes bad is what it was.
    left.sh(&format!("echo '[Peer]' > {PEERS}/phone.conf"));
    hub.becomes(&[("refused", 13.into()), ("applied", 1.into())]);
    hub.has(&[&hub.phone.public, &own.public]);
    // Also for the next process.
    hub.kill();
    hub.start(&[]);
    hub.becomes(&[("refused", 13.into()), ("is_running", true.into())]);
    hub.has(&[&hub.phone.public, &own.public]);
    let text = hub.left().sh(&format!("{} agent status wg0", adit()));
    assert!(text.contains("13 of 13 records refused:\n"), "{text}");
    assert!(
        text.contains("large.conf: it has more than 65536 bytes"),
        "{text}"
    );
    for said in [text, hub.log()] {
        assert!(!said.contains(&secret), "{said}");
    }
    // `adit why` reports the same reason.
    let why = |words: &str| {
        let told = left.try_sh(&format!("{} why wg0 {words}", adit()));
        assert!(!told.ok());
        told.stdout
    };
    let told = why("overlaps");
    let refused = format!("refuses the record overlaps.conf of dir:{PEERS}: ");
    assert!(told.contains(&refused), "{told}");
    assert!(why("nobody").contains("has no record of a peer nobody"));
    hub.kill();
    assert!(why("nobody").contains("no agent brings them now"));
    hub.start(&[]);
    // What stood in the way goes.
    hub.left().sh(&format!("rm {PEERS}/phone.conf"));
    hub.becomes(&[("applied", 2.into())]);
}

#[test]
fn a_group_reads_how_an_agent_is_and_nothing_else() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new(&format!("dir:{PEERS}"));
    hub.put("phone", &hub.phone());
    hub.put("bad", "junk\n");
    hub.start(&["--status-group", "4242"]);
    hub.becomes(&[("applied", 1.into())]);
    let left = hub.world.left().clone();
    let metrics = |group: u32| {
        let user = format!("setpriv --reuid 65534 --regid 65534 --groups {group}");
        let secret = left.try_sh(&format!("{user} cat /run/adit-agent/wg0.peers"));
        assert!(!secret.ok(), "{}", secret.stdout);
        left.sh(&format!("{user} {} metrics 2> /dev/null", adit()))
    };
    let told = metrics(4242);
    for line in [
        "adit_agent_up{interface=\"wg0\"} 1",
        "adit_agent_works{interface=\"wg0\"} 1",
        "adit_agent_records{interface=\"wg0\"} 2",
        "adit_agent_refused_records{interface=\"wg0\"} 1",
        "adit_agent_peers{interface=\"wg0\"} 1",
    ] {
        assert!(told.lines().any(|other| other == line), "{line} in {told}");
    }
    assert!(!metrics(4243).contains("adit_agent"));
    // Also of a status that is new since the sandbox began, and where there is no agent.
    left.sh(&format!("rm -r {PEERS}"));
    hub.becomes(&[("state", "failing".into())]);
    assert!(metrics(4242).contains("\nadit_agent_works{interface=\"wg0\"} 0\n"));
    hub.kill();
    assert!(metrics(4242).contains("\nadit_agent_up{interface=\"wg0\"} 0\n"));
}

#[test]
fn a_config_map_and_a_secret_change_as_a_whole() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new("dir:/run/map");
    let laptop = Keys::new();
    let psk = Keys::psk();
    let secret = "# Limit = 5M\nPresharedKeyFile = phone";
    let phone = record(&hub.phone.public, "10.77.0.2/32", secret);
    let left = hub.world.left().clone();
    // As the kubelet does it.
    let version = |folder: &str, number: u32, files: &[(&str, &str)]| {
        left.sh(&format!("mkdir -p {folder}/..{number}"));
        for (name, text) in files {
            left.sh_with_input(&format!("cat > {folder}/..{number}/{name}"), text);
        }
        left.sh(&format!(
            "cd {folder}; ln -s ..{number} ..data_tmp; mv -T ..data_tmp ..data; for f in ..data/*; do ln -sf $f .; done; \
             find . -xtype l -delete; find . -maxdepth 1 -name '..[0-9]*' ! -name ..{number} -exec rm -r {{}} +"
        ));
    };
    version("/run/keys", 1, &[("phone", &psk)]);
    version("/run/map", 1, &[("phone.conf", &phone)]);
    hub.start(&["--psk-dir", "/run/keys"]);
    hub.has(&[&hub.phone.public]);
    hub.connect(&format!("PresharedKey = {psk}"));
    let right = &hub.world.net.right;
    ping(right, "10.77.0.1", 1);
    let shown = hub.left().sh(&format!("{} show wg0", adit()));
    assert!(shown.contains("5M"), "{shown}");
    let text = record(&laptop.public, "10.77.0.3/32", "");
    version(
        "/run/map",
        2,
        &[("phone.conf", &phone), ("laptop.conf", &text)],
    );
    hub.has(&[&hub.phone.public, &laptop.public]);
    version("/run/map", 3, &[("phone.conf", &phone)]);
    hub.has(&[&hub.phone.public]);
    ping(right, "10.77.0.1", 1);
    // Another key, without which it has no access.
    let before = hub.left().sh("wg show wg0 preshared-keys");
    version("/run/keys", 2, &[("phone", &Keys::psk())]);
    wait_for("the key is another one", seconds(20), || {
        hub.left().sh("wg show wg0 preshared-keys") != before
    });
    right.sh(&format!("{0} down wg1; {0} up wg1", adit()));
    ping_fails(right, "10.77.0.1");
    hub.left().sh("rm /run/keys/phone");
    hub.becomes(&[("refused", 1.into()), ("applied", 1.into())]);
    let log = hub.log();
    assert!(!log.contains(psk.trim()), "{log}");
}

pub fn json(key: &str, block: &str) -> String {
    format!("{{\"public_key\":\"{key}\",\"allowed_ips\":[\"{block}\"]}}")
}

#[test]
fn a_program_tells_of_peers_and_is_started_again() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new("exec:/run/program");
    let (laptop, late) = (Keys::new(), Keys::new());
    let left = hub.world.left().clone();
    let put = |key: &str, block: &str| format!("{{\"put\":{}}}\n", json(key, block));
    let phone = put(&hub.phone.public, "10.77.0.2/32");
    // What is added from the first record on is told, too.
    left.sh_with_input(
        "cat > /run/program && chmod 755 /run/program",
        "#!/bin/sh\necho \"told $1\" >&2\n: > /run/more\ncat /run/records\necho '{\"listed\":true}'\ntail -n +1 -f /run/more\n",
    );
    let ends = || {
        wait_for("it follows the file", seconds(20), || {
            left.try_sh("pkill -x tail").ok()
        });
    };
    let records = phone.clone() + &put(&laptop.public, "10.77.0.3/32");
    left.sh_with_input("cat > /run/records", &records);
    hub.start(&["--", "something"]);
    hub.has(&[&hub.phone.public, &laptop.public]);
    hub.connect("");
    ping(&hub.world.net.right, "10.77.0.1", 1);
    assert!(
        hub.log()
            .contains("adit: wg0: /run/program: told something\n"),
        "{}",
        hub.log()
    );
    left.sh(&format!(
        "echo '{{\"delete\":\"{}\"}}' >> /run/more",
        laptop.public
    ));
    hub.has(&[&hub.phone.public]);
    // Lines that are none, and a long one.
    left.sh("echo junk >> /run/more; (head -c 200000 /dev/zero; echo) >> /run/more");
    hub.becomes(&[("refused", 2.into()), ("applied", 1.into())]);
    // It ends, and its next list is whole.
    let before = left.sh("wg show wg0 latest-handshakes");
    left.sh_with_input(
        "cat > /run/records",
        &(phone + &put(&late.public, "10.77.0.4/32")),
    );
    left.sh(&format!(
        "echo '{}' >> /run/more",
        put(&laptop.public, "10.77.0.3/32").trim()
    ));
    hub.has(&[&hub.phone.public, &laptop.public]);
    ends();
    hub.has(&[&hub.phone.public, &late.public]);
    hub.becomes(&[("state", "listed".into()), ("refused", 0.into())]);
    assert!(
        left.sh("wg show wg0 latest-handshakes")
            .contains(before.trim())
    );
    // One that fails takes no peer along.
    left.sh("echo '#!/bin/sh' > /run/program; echo 'printf bye >&2; exit 3' >> /run/program");
    ends();
    hub.becomes(&[("state", "failing".into()), ("applied", 2.into())]);
    wait_for("it is told", seconds(20), || {
        hub.status()["failure"]
            .to_string()
            .contains("exit status 3; it is started again in")
    });
    let log = hub.log();
    assert!(log.contains("adit: wg0: /run/program: bye\n"), "{log}");
    hub.has(&[&hub.phone.public, &late.public]);
    // It ends with the agent.
    left.sh("printf '#!/bin/sh\\nsleep 1000\\n' > /run/program");
    // One that has ended may stay in the table: nobody waits for it here.
    let runs = || left.try_sh("ps -C sleep -o stat= | grep -qv Z").ok();
    wait_for("it runs", seconds(40), runs);
    left.sh("pkill -9 -x adit-agent");
    wait_for("it is gone", seconds(10), || !runs());
}
