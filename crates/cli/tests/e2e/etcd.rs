//! `adit agent` with etcd: a real one, and servers that only seem to be one.

use std::time::Instant;

use serde_json::{Value, json};

use crate::agent::{Hub, json as record};
use crate::harness::*;
use crate::quick::{adit, only_adit};

/// The members' common port.
pub const PORT: u16 = 2379;

/// etcd on the left, and how it is asked.
pub struct Store {
    left: Container,
    /// `http://127.0.0.1`, or the same with TLS.
    base: &'static str,
    /// Options of curl.
    curl: String,
    /// Options of etcd.
    options: String,
}

impl Store {
    pub fn new(left: &Container) -> Self {
        left.sh("ip link set lo up");
        Self {
            left: left.clone(),
            base: "http://127.0.0.1",
            curl: String::new(),
            options: String::new(),
        }
    }

    /// For other hosts, too.
    pub fn for_all(left: &Container) -> Self {
        Self {
            options: "--listen-client-urls http://0.0.0.0:2379".into(),
            ..Self::new(left)
        }
    }

    /// Starts it with what it had before.
    pub fn start(&self, port: u16) {
        let Self {
            base,
            curl,
            options,
            ..
        } = self;
        // One that was killed may have its ports for a moment: then this one ends, and another one is started.
        self.left.sh(&format!(
            "cd /run; run() {{ etcd --data-dir /run/etcd --listen-client-urls {base}:{port} --advertise-client-urls {base}:{port} \
             --listen-peer-urls http://127.0.0.1:2380 {options} > /run/etcd.log 2>&1 < /dev/null & echo $! > /run/etcd.pid; }}
             run; for n in $(seq 300); do curl -sf {curl} {base}:{port}/health && exit
             case $(cat /proc/$(cat /run/etcd.pid)/stat) in *') Z '* | '') run ;; esac; sleep 0.1; done
             cat /run/etcd.log >&2; exit 1"
        ));
    }

    pub fn kill(&self) {
        self.left.sh(
            "p=$(cat /run/etcd.pid); kill -9 $p; while [ -n \"$(cat /proc/$p/cmdline | tr -d '\\0')\" ]; do sleep 0.05; done",
        );
    }

    fn ask_at(&self, port: u16, path: &str, asked: &Value) -> Value {
        let Self { base, curl, .. } = self;
        let script = format!("curl -s {curl} {base}:{port}/v3/{path} -d @-");
        let answer = self.left.sh_with_input(&script, &asked.to_string());
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert!(answer["error"].is_null(), "{path}: {answer}");
        answer
    }

    fn ask(&self, path: &str, asked: Value) -> Value {
        self.ask_at(PORT, path, &asked)
    }

    fn encoded(&self, text: &str) -> String {
        self.left.sh_with_input("base64 -w 0", text)
    }

    pub fn put(&self, key: &str, value: &str) -> Value {
        let (key, value) = (self.encoded(key), self.encoded(value));
        self.ask("kv/put", json!({ "key": key, "value": value }))
    }

    /// The value of a key; nothing where there is none.
    pub fn get(&self, key: &str) -> String {
        let answer = self.ask("kv/range", json!({ "key": self.encoded(key) }));
        let value = answer["kvs"][0]["value"].as_str().unwrap_or_default();
        self.left.sh_with_input("base64 -d", value)
    }

    pub fn delete(&self, key: &str) -> Value {
        self.ask("kv/deleterange", json!({ "key": self.encoded(key) }))
    }
}

#[test]
fn peers_of_etcd_outlive_it_and_a_compaction() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new("etcd:http://127.0.0.1:2379/wg0/");
    let (laptop, late) = (Keys::new(), Keys::new());
    let store = Store::new(hub.left());
    store.start(PORT);
    store.put("wg0/phone", &record(&hub.phone.public, "10.77.0.2/32"));
    store.put("wg0/bad", "{\"public_key\":1}");
    // One of another interface, and more than a page.
    store.put("wg1/phone", &record(&late.public, "10.77.0.2/32"));
    let names: Vec<u32> = (0..600).collect();
    for names in names.chunks(100) {
        let put = |name| json!({ "requestPut": { "key": store.encoded(&format!("wg0/x{name:03}")), "value": "" } });
        let puts: Vec<Value> = names.iter().map(put).collect();
        store.ask("kv/txn", json!({ "success": puts }));
    }
    // More of them than are read at once.
    let long = "x".repeat(1_000_000);
    for name in 0..6 {
        store.put(&format!("wg0/long{name}"), &long);
    }
    store.put("wg0/zebra", &record(&laptop.public, "10.77.0.3/32"));
    hub.start(&[]);
    hub.becomes(&[
        ("records", 609.into()),
        ("refused", 607.into()),
        ("applied", 2.into()),
        ("state", "listed".into()),
    ]);
    hub.has(&[&hub.phone.public, &laptop.public]);
    hub.connect("");
    ping(&hub.world.net.right, "10.77.0.1", 1);
    store.delete("wg0/zebra");
    hub.has(&[&hub.phone.public]);
    store.put("wg0/laptop", &record(&laptop.public, "10.77.0.3/32"));
    hub.has(&[&hub.phone.public, &laptop.public]);
    // It is away, and everything stays.
    store.kill();
    hub.becomes(&[("state", "failing".into())]);
    hub.has(&[&hub.phone.public, &laptop.public]);
    ping(&hub.world.net.right, "10.77.0.1", 1);
    store.start(PORT);
    hub.becomes(&[("state", "listed".into())]);
    store.put("wg0/late", &record(&late.public, "10.77.0.4/32"));
    hub.has(&[&hub.phone.public, &laptop.public, &late.public]);
    // Changes that the agent does not see, and that a compaction removes.
    store.kill();
    store.start(2399);
    let delete = json!({ "key": store.encoded("wg0/laptop") });
    store.ask_at(2399, "kv/deleterange", &delete);
    let other = store.encoded(&record(&late.public, "10.77.0.5/32"));
    let put = json!({ "key": store.encoded("wg0/late"), "value": other });
    let answer = store.ask_at(2399, "kv/put", &put);
    let compacted = json!({ "revision": answer["header"]["revision"] });
    store.ask_at(2399, "kv/compaction", &compacted);
    store.kill();
    hub.has(&[&hub.phone.public, &laptop.public, &late.public]);
    store.start(PORT);
    hub.has(&[&hub.phone.public, &late.public]);
    let blocks = hub.left().sh("wg show wg0 allowed-ips");
    assert!(blocks.contains("10.77.0.5/32"), "{blocks}");
    hub.becomes(&[("state", "listed".into())]);
    ping(&hub.world.net.right, "10.77.0.1", 1);
    // A store that was made anew and has nothing is not believed, by the next agent neither.
    store.kill();
    hub.left().sh("rm -r /run/etcd");
    store.start(PORT);
    for _ in 0..2 {
        tells(&hub, "nothing changes until it has a record");
        hub.has(&[&hub.phone.public, &late.public]);
        hub.kill();
        hub.left().sh("rm /run/adit-agent/wg0.json");
        hub.start(&[]);
    }
    // One that has a record is.
    store.put("wg0/phone", &record(&hub.phone.public, "10.77.0.2/32"));
    hub.has(&[&hub.phone.public]);
    hub.becomes(&[("records", 1.into()), ("applied", 1.into())]);
    ping(&hub.world.net.right, "10.77.0.1", 1);
    // So is one that becomes empty.
    store.delete("wg0/phone");
    hub.has(&[]);
}

/// Waits until the agent says so of its source.
#[track_caller]
pub fn tells(hub: &Hub, why: &str) {
    let start = Instant::now();
    loop {
        let told = hub.status()["failure"].to_string();
        if told.contains(why) {
            return;
        }
        assert!(start.elapsed() < seconds(60), "{why}: {told}");
        std::thread::sleep(seconds(1) / 20);
    }
}

/// Authorities, and certificates that they sign, in `/run/tls`.
fn make_certificates(left: &Container) {
    left.sh(
        "mkdir /run/tls; cd /run/tls
         for ca in ca other; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout $ca.key \
           -out $ca.pem -subj /CN=$ca; done
         for name in etcd agent; do
           openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout $name.key -out $name.csr -subj /O=$name
           printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\nextendedKeyUsage=serverAuth,clientAuth\\n' > $name.ext
           openssl x509 -req -days 2 -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile $name.ext -out $name.pem
         done",
    );
}

#[test]
fn etcd_behind_tls_is_asked_as_a_user() {
    if !only_adit() {
        return;
    }
    // A name, which the process looks up in its sandbox.
    let mut hub = Hub::new("etcd:https://localhost:2379/wg0/");
    let (laptop, late) = (Keys::new(), Keys::new());
    let left = hub.world.left().clone();
    make_certificates(&left);
    let mut store = Store::new(&left);
    store.base = "https://127.0.0.1";
    store.curl =
        "--cacert /run/tls/ca.pem --cert /run/tls/agent.pem --key /run/tls/agent.key".into();
    store.options = "--cert-file /run/tls/etcd.pem --key-file /run/tls/etcd.key --client-cert-auth --trusted-ca-file /run/tls/ca.pem".into();
    store.start(PORT);
    store.put("wg0/phone", &record(&hub.phone.public, "10.77.0.2/32"));
    // Without authorities, and with a key of another certificate.
    let agent = format!(
        "{} agent wg0 --source etcd:https://localhost:2379/wg0/",
        adit()
    );
    let key = "--etcd-cert /run/tls/agent.pem --etcd-key /run/tls";
    for (options, why) in [
        (String::new(), "https needs --etcd-ca FILE"),
        ("--etcd-ca /run/none".into(), "cannot read /run/none: "),
        (
            "--etcd-ca /run/tls/ca.key".into(),
            "/run/tls/ca.key: there is no certificate in it",
        ),
        (
            format!("--etcd-ca /run/tls/ca.pem {key}/ca.key"),
            "is no key of the certificate",
        ),
    ] {
        let refused = left.try_sh(&format!("{agent} {options}"));
        assert!(
            !refused.ok() && refused.stderr.contains(why),
            "{}",
            refused.stderr
        );
    }
    let own = [
        "--etcd-cert",
        "/run/tls/agent.pem",
        "--etcd-key",
        "/run/tls/agent.key",
    ];
    let with = |authority: &'static str| [&["--etcd-ca", authority], &own[..]].concat();
    hub.start(&with("/run/tls/other.pem"));
    tells(&hub, "invalid peer certificate: UnknownIssuer");
    assert_eq!(hub.peers().len(), 0);
    hub.kill();
    // Without a certificate of its own.
    hub.start(&["--etcd-ca", "/run/tls/ca.pem"]);
    tells(&hub, "received fatal alert");
    hub.kill();
    hub.start(&with("/run/tls/ca.pem"));
    hub.has(&[&hub.phone.public]);
    hub.kill();
    // From now on it wants a user.
    let name = |name: &str| json!({ "name": name, "password": "p" });
    store.ask("auth/user/add", name("root"));
    store.ask("auth/role/add", json!({ "name": "root" }));
    store.ask("auth/user/grant", json!({ "user": "root", "role": "root" }));
    store.ask("auth/user/add", name("agent"));
    store.ask("auth/role/add", json!({ "name": "reads" }));
    let range = json!({ "key": store.encoded("wg0/"), "range_end": store.encoded("wg00"), "permType": "READ" });
    store.ask("auth/role/grant", json!({ "name": "reads", "perm": range }));
    store.ask(
        "auth/user/grant",
        json!({ "user": "agent", "role": "reads" }),
    );
    store.ask("auth/enable", json!({}));
    let root = |store: &mut Store| {
        let token = store.ask("auth/authenticate", name("root"));
        let token = token["token"].as_str().expect("a token").to_owned();
        store.curl = format!("{} -H 'Authorization: {token}'", store.curl);
    };
    let start = |hub: &mut Hub, password: Option<&str>| {
        let mut command = hub.left().command(&adit());
        if let Some(password) = password {
            command.envs([
                ("ADIT_ETCD_USER", "agent"),
                ("ADIT_ETCD_PASSWORD", password),
            ]);
        }
        hub.start_by(command, &with("/run/tls/ca.pem"));
    };
    start(&mut hub, None);
    tells(&hub, "user name is empty");
    hub.kill();
    start(&mut hub, Some("q"));
    tells(&hub, "authentication failed, invalid user ID or password");
    hub.kill();
    start(&mut hub, Some("p"));
    hub.becomes(&[("state", "listed".into()), ("is_running", true.into())]);
    root(&mut store);
    store.put("wg0/laptop", &record(&laptop.public, "10.77.0.3/32"));
    hub.has(&[&hub.phone.public, &laptop.public]);
    // A process that is started anew knows no token.
    store.kill();
    store
        .curl
        .truncate(store.curl.find(" -H").expect("a token"));
    store.start(PORT);
    root(&mut store);
    store.put("wg0/late", &record(&late.public, "10.77.0.4/32"));
    hub.has(&[&hub.phone.public, &laptop.public, &late.public]);
    hub.becomes(&[("state", "listed".into())]);
    // What it may no longer do is told, and changes nothing.
    store.ask(
        "auth/user/revoke",
        json!({ "name": "agent", "role": "reads" }),
    );
    store.kill();
    store
        .curl
        .truncate(store.curl.find(" -H").expect("a token"));
    store.start(PORT);
    tells(&hub, "permission denied");
    hub.has(&[&hub.phone.public, &laptop.public, &late.public]);
    assert!(!hub.log().contains("PASSWORD"), "{}", hub.log());
}

/// Listens at a port and never answers.
const SILENT: &str = "python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 2377), backlog=64); time.sleep(3600)' \
                      > /dev/null 2>&1 < /dev/null & until ss -ltn | grep -q :2377; do sleep 0.05; done";

#[test]
fn a_member_that_is_dead_or_hangs_is_left_for_the_next() {
    if !only_adit() {
        return;
    }
    let members = "http://127.0.0.1:2378,http://127.0.0.1:2377,http://127.0.0.1:2379";
    let mut hub = Hub::new(&format!("etcd:{members}/wg0/"));
    let (laptop, late) = (Keys::new(), Keys::new());
    let store = Store::new(hub.left());
    hub.left().sh(SILENT);
    store.start(PORT);
    store.put("wg0/phone", &record(&hub.phone.public, "10.77.0.2/32"));
    hub.start(&[]);
    hub.has(&[&hub.phone.public]);
    hub.becomes(&[("state", "listed".into())]);
    // That one of them works is no failure.
    assert!(!hub.log().contains("2377"), "{}", hub.log());
    store.put("wg0/laptop", &record(&laptop.public, "10.77.0.3/32"));
    hub.has(&[&hub.phone.public, &laptop.public]);
    // The one that works hangs, too, until it goes on.
    let left = hub.world.left().clone();
    left.sh("kill -STOP $(cat /run/etcd.pid)");
    wait_for("it is noticed", seconds(90), || {
        hub.status()["state"] == "failing"
    });
    hub.has(&[&hub.phone.public, &laptop.public]);
    left.sh("kill -CONT $(cat /run/etcd.pid)");
    store.put("wg0/late", &record(&late.public, "10.77.0.4/32"));
    wait_for("it goes on", seconds(60), || {
        hub.status()["state"] == "listed"
    });
    hub.has(&[&hub.phone.public, &laptop.public, &late.public]);
}

/// What answers at the port of etcd: as the file `/run/mode` has it, without end.
const LIAR: &str = r#"
import http.server
class Liar(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def piece(self, data): self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        mode = open("/run/mode").read().strip()
        open("/run/asked", "a").write(mode + self.path + "\n")
        header = b'"header":{"revision":"%d"}' % 5
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            if mode == "list":
                self.piece(b"{" + header + b',"kvs":[{"key":"')
            elif self.path == "/v3/watch":
                self.piece(b'{"result":{' + header + b',"created":true}}\n{"result":{"events":[{"kv":{"key":"')
            else:
                self.piece(b"{" + header + b"}")
                self.wfile.write(b"0\r\n\r\n")
                return
            while True: self.piece(b"A" * 65536)
        except OSError:
            self.close_connection = True
http.server.ThreadingHTTPServer(("127.0.0.1", 2379), Liar).serve_forever()
"#;

#[test]
fn an_answer_without_end_costs_no_memory() {
    if !only_adit() {
        return;
    }
    let mut hub = Hub::new("etcd:http://127.0.0.1:2379/wg0/");
    let left = hub.world.left().clone();
    left.sh("ip link set lo up; echo list > /run/mode");
    left.sh_with_input("cat > /run/liar.py", LIAR);
    left.sh("python3 /run/liar.py > /dev/null 2>&1 < /dev/null & until ss -ltn | grep -q :2379; do sleep 0.05; done");
    hub.start(&[]);
    tells(&hub, "its answer is too long");
    left.sh("echo watch > /run/mode");
    // A line without end has it list again.
    wait_for("it lists again", seconds(30), || {
        left.sh("cat /run/asked")
            .matches("watch/v3/kv/range")
            .count()
            > 3
    });
    let most = left.sh("grep VmHWM /proc/$(pgrep -x adit-agent)/status | tr -dc 0-9");
    let most: u64 = most.trim().parse().expect("kilobytes");
    assert!(most < 64 << 10, "{most} kB");
}
