//! `adit upgrade` beside processes that lie about what they are: an intruder in a process without
//! rights, or a user who owns the directory. Nothing that they say gives them more than they have.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::harness::*;
use crate::quick::{adit, only_adit};

/// A false old process. It answers with the description, where `PID` is its number, and with the
/// offer; it keeps the one who takes that waiting for the interface until /run/go is there.
const FALSE: &str = r#"
    my ($as, $description, $offer) = @ARGV;
    $as = $$ if $as eq "PID";
    $description =~ s/"PID"/$$/g;
    umask 077;
    mkdir "/run/adit"; mkdir "/run/adit/upgrade";
    my $path = "/run/adit/upgrade/$as.sock";
    unlink $path;
    my $listener = IO::Socket::UNIX->new(Local => $path, Listen => 9) or die;
    system "touch /run/listens";
    sub put { syswrite($_[0], pack("CV", $_[1], length $_[2]) . $_[2]) }
    while (my $client = $listener->accept) {
        next if fork;
        sysread($client, my $header, 5);
        sysread($client, my $hello, unpack("x V", $header));
        if ($hello !~ /"takes":true/) { put($client, 1, $description); exit }
        put($client, 3, $offer);
        for (1 .. 400) { last if -e "/run/go"; select undef, undef, undef, 0.05 }
        exit;
    }
"#;

struct FalseProcess<'a> {
    host: &'a Container,
    child: Child,
}

impl<'a> FalseProcess<'a> {
    /// Listens as this process, run by this command.
    fn start(host: &'a Container, by: &[&str], name: &str, said: &Value, offer: &Value) -> Self {
        host.sh("rm -f /run/go /run/listens /run/loaded*");
        let mut command = host.command("env");
        command
            .args(by)
            .args(["perl", "-MIO::Socket::UNIX", "-e", FALSE, name])
            .args([said.to_string(), offer.to_string()])
            .stdin(Stdio::null());
        let child = command.spawn().expect("perl");
        wait_for("it listens", seconds(30), || {
            host.path("/run/listens").exists()
        });
        Self { host, child }
    }
}

impl Drop for FalseProcess<'_> {
    fn drop(&mut self) {
        let host = self.host;
        let _ = host.try_sh("touch /run/go; pkill -KILL -x perl; rm -rf /run/adit/upgrade");
        let _ = self.child.wait();
    }
}

/// A document with a field that is another one.
fn with(mut document: Value, field: &str, value: Value) -> Value {
    document[field] = value;
    document
}

fn description() -> Value {
    json!({"version": "9.9", "pid": "PID", "program": [1, 2], "supervisor": null, "interfaces": ["wg0"],
           "environment": [], "refuses": null})
}

fn offer() -> Value {
    json!({"level": "Verbose", "allowed": {}, "shards": 1, "policy": "auto", "cpus": null,
           "control_dir": null, "status_group": null, "no_sandbox": false,
           "interfaces": 1})
}

/// The new process that an upgrade has started, while it waits for an interface.
fn started(host: &Container) -> String {
    let find = || host.try_sh("pgrep -f 'adit run .*-over [0-9]'").stdout;
    // It has threads once it has begun its sandbox.
    wait_for("the new process waits", seconds(30), || {
        let threads = format!("test $(ls /proc/{}/task | wc -l) -gt 1", find().trim());
        !find().is_empty() && host.try_sh(&threads).ok()
    });
    find().trim().to_owned()
}

#[test]
fn a_description_is_refused_that_cannot_be_true() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh("sleep 1000 > /dev/null 2>&1 & echo $! > /run/bystander");
    let bystander: i64 = host.sh("cat /run/bystander").trim().parse().expect("a pid");
    let many: Vec<String> = (0..5000).map(|n| format!("wg{n}")).collect();
    let mut cases = vec![("pid", json!(1)), ("pid", json!(bystander))];
    for name in ["../../run/evil", "a b", "", ".", "\u{1b}[31m", "a/b"] {
        cases.push(("interfaces", json!(["wg0", name])));
    }
    cases.push(("interfaces", json!(["wg0", "wg0"])));
    cases.push(("interfaces", json!(many)));
    for supervisor in [
        bystander,
        1,
        0,
        -1,
        i64::from(i32::MIN),
        i64::from(i32::MAX),
    ] {
        cases.push(("supervisor", json!(supervisor)));
    }
    for (field, value) in cases {
        let said = with(description(), field, value.clone());
        let _false = FalseProcess::start(&host, &[], "PID", &said, &offer());
        let done = host.try_sh(&format!("{} upgrade wg0", adit()));
        assert!(!done.ok(), "{field}: {value}: {done:?}");
        assert!(!done.stderr.contains('\u{1b}'), "{done:?}");
        assert!(processes(&host).is_empty(), "{field}: {value}");
        host.sh(&format!("kill -0 {bystander}"));
    }
}

#[test]
fn a_process_is_who_the_kernel_says() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    let nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    let as_nobody = "mkdir -p /run/adit/upgrade; chown -R 65534 /run/adit; chmod 777 /run";
    for (by, name, prepare) in [
        (&nobody[..], "PID", as_nobody),
        (&[][..], "1", "chown -R 0 /run/adit"),
    ] {
        host.sh(prepare);
        let said = match name {
            "1" => with(description(), "pid", json!(1)),
            _ => description(),
        };
        let said = with(said, "environment", json!([["LD_DEBUG", "files"]]));
        let _false = FalseProcess::start(&host, by, name, &said, &offer());
        let done = host.try_sh(&format!("{} upgrade wg0", adit()));
        assert!(!done.ok(), "{by:?} {name}: {done:?}");
        assert!(processes(&host).is_empty(), "{by:?} {name}");
    }
}

#[test]
fn a_process_prints_nothing_but_text_on_a_terminal() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    let evil = "\u{1b}]0;x\u{7}\u{202e}\r\n\u{9b}2J";
    for field in ["version", "refuses"] {
        let said = with(description(), field, json!(format!("{evil} because")));
        let said = match field {
            "refuses" => said,
            _ => with(said, "refuses", json!("because")),
        };
        let _false = FalseProcess::start(&host, &[], "PID", &said, &offer());
        let done = host.try_sh(&format!("{} upgrade wg0", adit()));
        assert!(!done.ok() && done.stderr.contains("because"), "{done:?}");
        let is_plain = |char: char| char == '\n' || char.is_ascii_graphic() || char == ' ';
        assert!(done.stderr.chars().all(is_plain), "{done:?}");
    }
}

#[test]
fn a_new_process_takes_no_right_from_an_old_one() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    let variables = json!([
        ["LD_DEBUG", "files"],
        ["LD_DEBUG_OUTPUT", "/run/loaded"],
        ["LD_PRELOAD", "/run/evil.so"],
        ["PATH", "/run/evil"],
        ["ADIT_NO_SANDBOX", "1"],
        ["ADIT_STATUS_GROUP", "evil"],
        ["WG_TUN_FD", "0"],
        ["ADIT_AEAD", "portable\nevil"],
        ["NOTIFY_SOCKET", "evil"],
        ["EVIL", "1"],
        ["", "evil"],
        ["A=B", "evil"],
        ["evil\u{0}", "evil\u{0}"]
    ]);
    let said = with(description(), "environment", variables);
    let huge = u64::from(u32::MAX);
    let cases = [
        ("no_sandbox", json!(true)),
        ("control_dir", json!("/run/evil")),
        ("status_group", json!(6)),
        ("shards", json!(huge)),
        ("cpus", json!([huge, huge])),
        ("policy", json!("evil")),
    ];
    for (field, value) in cases {
        let offer = with(offer(), field, value.clone());
        let _false = FalseProcess::start(&host, &[], "PID", &said, &offer);
        host.sh(&format!("{} upgrade wg0 > /run/told 2>&1 & true", adit()));
        let pid = started(&host);
        let read = |file: &str| host.sh(&format!("tr '\\0' '\\n' < /proc/{pid}/{file}"));
        let status = read("status");
        let value_of = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name));
            found
                .unwrap_or_else(|| panic!("{name}: {status}"))
                .trim()
                .to_owned()
        };
        assert_eq!(value_of("Seccomp:"), "2", "{field}: {value}");
        assert_eq!(value_of("CapPrm:"), "0000000000000000", "{field}: {value}");
        let groups = value_of("Groups:");
        assert!(!groups.split(' ').any(|group| group == "6"), "{groups}");
        let threads: u32 = value_of("Threads:").parse().expect("a number");
        assert!(threads < 20, "{field}: {threads}");
        let environment = read("environ");
        assert!(!environment.contains("evil"), "{environment}");
        host.sh("touch /run/go");
        wait_for("it has ended", seconds(30), || processes(&host).is_empty());
        assert!(!host.path("/run/evil").exists(), "{field}: {value}");
        let loaded = host.sh("ls /run");
        assert!(!loaded.contains("loaded"), "{field}: {loaded}");
    }
}

#[test]
fn more_than_a_process_can_have_ends_an_upgrade() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    for interfaces in [0_u64, 1_000_000, u64::MAX] {
        let offer = with(offer(), "interfaces", json!(interfaces));
        let _false = FalseProcess::start(&host, &[], "PID", &description(), &offer);
        let done = host.try_sh(&format!("timeout 60 {} upgrade wg0", adit()));
        assert!(!done.ok() && done.stderr.contains("goes on"), "{done:?}");
        assert!(processes(&host).is_empty(), "{interfaces}");
    }
}

/// Its sockets stay in the old one.
#[test]
fn a_process_is_not_upgraded_from_another_network_namespace() {
    if !only_adit() {
        return;
    }
    let host = Container::new("left");
    host.sh(&format!("{} wg0", adit()));
    let before = processes(&host);
    let done = host.try_sh(&format!("unshare -n {} upgrade wg0", adit()));
    assert!(!done.ok() && done.stderr.contains("nsenter"), "{done:?}");
    assert_eq!(processes(&host), before);
    // The advice works.
    host.sh(&format!(
        "unshare -n nsenter -t {} -n {} upgrade wg0",
        before[0],
        adit()
    ));
    wait_for("the old process ends", seconds(30), || {
        processes(&host).len() == 1 && processes(&host) != before
    });
}
