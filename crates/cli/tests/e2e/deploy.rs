//! What `packaging/` has for those who run and watch Adit: alerts, dashboards, units, containers.

use std::path::Path;

use serde_json::Value;

use crate::harness::*;
use crate::installed::{Dir, Package, debian, has, here};
use crate::quick::{World, adit, only_adit};

const PACKAGING: &str = "packaging";

/// A file of the repository.
fn packaged(name: &str) -> String {
    let path = repository().join(PACKAGING).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn lintian_and_mandoc_have_nothing_to_warn_of() {
    if !only_adit() || !has("lintian") || !has("mandoc") {
        return;
    }
    let dir = Dir::new("package");
    let path = dir.0.display();
    here(&format!(
        "{adit} man --dir {path}; mandoc -T lint -W warning {path}/*.8
         ADIT_DEB={path} scripts/deb {adit}; lintian --allow-root --fail-on error,warning {path}/*.deb",
        adit = adit()
    ));
}

#[test]
fn alerts_fire_as_their_tests_say() {
    if !only_adit() || !has("promtool") {
        return;
    }
    here(&format!(
        "cd {PACKAGING}/prometheus; promtool check rules adit.rules.yml; promtool test rules adit.rules.test.yml"
    ));
}

/// Prometheus, with the packaged alerts, and `adit metrics` on the left side of a tunnel.
struct Watched {
    tunnel: WgTunnel,
    _net: SitePair,
}

impl Watched {
    fn new() -> Watched {
        let net = SitePair::new();
        let tunnel = WgTunnel::new(&net, Setup::default());
        tunnel.connect();
        let host = &tunnel.left.host;
        let rules = repository()
            .join(PACKAGING)
            .join("prometheus/adit.rules.yml");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\n\
             scrape_configs: [{{ job_name: adit, static_configs: [{{ targets: ['127.0.0.1:9586'] }}] }}]\n",
            rules.display()
        );
        host.sh_with_input("cat > /run/prometheus.yml", &config);
        host.sh(&format!(
            "{} metrics --listen 127.0.0.1:9586 > /run/metrics.log 2>&1 &
             prometheus --config.file=/run/prometheus.yml --storage.tsdb.path=/run/tsdb \
             --web.listen-address=127.0.0.1:9090 > /run/prometheus.log 2>&1 &",
            adit()
        ));
        let watched = Watched { tunnel, _net: net };
        wait_for("Prometheus scrapes", seconds(60), || {
            !watched.query("up == 1").is_empty()
        });
        watched
    }

    fn host(&self) -> &Container {
        &self.tunnel.left.host
    }

    /// The series that a query finds; none where Prometheus does not answer yet.
    #[track_caller]
    fn query(&self, query: &str) -> Vec<Value> {
        let mut found = self.api(&format!("query --data-urlencode 'query={query}'"));
        match found["result"].take() {
            Value::Array(series) => series,
            _ => Vec::new(),
        }
    }

    /// What Prometheus answers. A query that it does not understand is a failure.
    #[track_caller]
    fn api(&self, request: &str) -> Value {
        let url = "http://127.0.0.1:9090/api/v1";
        let answer = self
            .host()
            .try_sh(&format!("curl -sS -m 20 -G {url}/{request}"));
        let Ok(mut answer) = serde_json::from_str::<Value>(&answer.stdout) else {
            return Value::Null;
        };
        assert_eq!(answer["status"], "success", "{request}: {answer}");
        answer["data"].take()
    }

    /// Traffic, handshakes and drops.
    fn disturb(&self) {
        let (left, right) = (&self.tunnel.left, &self.tunnel.right);
        let key = &right.keys.public;
        left.host.try_sh(&format!(
            "ip route replace 10.77.0.0/16 dev wg0; ping -n -q -c 20 -i 0.01 -W 1 10.77.0.1
             ping -n -q -c 3 -i 0.1 -W 1 {}",
            right.v4
        ));
        // Without its session the peer needs a handshake.
        left.wg(&format!("set {{}} peer {key} remove"));
        setconf(&left.host, "wg0", &left.config);
        left.host
            .try_sh(&format!("ping -n -q -c 1 -W 2 {}", right.v4));
    }
}

/// Every query of the Grafana file, with its panel.
fn grafana_queries() -> Vec<(String, String)> {
    let file: Value = serde_json::from_str(&packaged("grafana/adit.json")).expect("JSON");
    let panels = file["panels"].as_array().expect("panels");
    let queries = panels.iter().flat_map(|panel| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| {
            let query = target["expr"].as_str().expect("a query");
            let query = query.replace("$__rate_interval", "10s");
            (title.clone(), query.replace("$interface", "wg0|wg1"))
        })
    });
    queries.collect()
}

#[test]
fn every_query_of_the_grafana_file_finds_data() {
    if !only_adit() || !has("prometheus") {
        return;
    }
    let watched = Watched::new();
    let queries = grafana_queries();
    assert!(queries.len() >= 12, "{queries:?}");
    for (panel, query) in queries {
        assert!(!query.contains('$'), "{panel}: {query}");
        wait_for(&format!("{panel}: {query}"), seconds(60), || {
            let found = watched.query(&query);
            if found.is_empty() {
                watched.disturb();
            }
            !found.is_empty()
        });
    }
    // The choice of interfaces.
    let names = watched.api("label/interface/values");
    assert_eq!(names, serde_json::json!(["wg0"]));
}

#[test]
fn alerts_find_a_real_peer_that_is_gone_and_real_drops() {
    if !only_adit() || !has("prometheus") {
        return;
    }
    let watched = Watched::new();
    let (left, right) = (&watched.tunnel.left, &watched.tunnel.right);
    let rules = watched.api("rules");
    let rules = rules["groups"][0]["rules"].as_array().expect("rules");
    // Without the time for which it has to hold.
    let alert = |name: &str| {
        let rule = rules.iter().find(|rule| rule["name"] == name);
        let query = rule.expect("the alert")["query"].as_str().expect("a query");
        watched.query(query)
    };
    let names = ["AditPeerGone", "AditDrops", "AditHandshakeFailing"];
    for name in names {
        assert!(alert(name).is_empty(), "{name}");
    }

    right.host.sh("ip link set eth0 down");
    wait_for("a peer is gone", seconds(120), || {
        left.host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4));
        !alert("AditPeerGone").is_empty()
    });
    let gone = &alert("AditPeerGone")[0]["metric"];
    assert_eq!(gone["public_key"], *right.keys.public);

    left.host.sh("ip route add 10.77.0.0/16 dev wg0");
    wait_for("drops", seconds(120), || {
        left.host
            .try_sh("ping -n -q -c 500 -i 0.002 -W 1 10.77.0.1");
        !alert("AditDrops").is_empty()
    });
    assert_eq!(alert("AditDrops")[0]["metric"]["reason"], "no_route");

    // The right side is there again, and expects another preshared key.
    right.host.sh("ip link set eth0 up");
    right.host.sh_with_input(
        &format!(
            "wg set wg0 peer {} preshared-key /dev/stdin",
            left.keys.public
        ),
        &Keys::psk(),
    );
    wait_for("handshakes fail", seconds(120), || {
        left.host
            .try_sh(&format!("ping -n -q -c 1 -W 1 {}", right.v4));
        !alert("AditHandshakeFailing").is_empty()
    });
    let failing = &alert("AditHandshakeFailing")[0]["metric"];
    assert_eq!(failing["reason"], "not_authentic");
}

#[test]
fn the_packages_metrics_are_those_of_its_tunnels_and_need_no_root() {
    if !only_adit() {
        return;
    }
    let Some(debian) = debian() else {
        return;
    };
    let package = Package::build(&debian, "0.1.0");
    let world = World::new();
    let left = world.left();
    let systemd = Systemd::boot_debian(left, &debian);
    package.install(&systemd);
    let unit = "adit-metrics.service";
    assert_eq!(systemd.property(unit, "UnitFileState"), "disabled");
    let file = "/etc/wireguard/wg0.conf";
    let config = world.config("", "0.0.0.0/0, ::/0");
    std::fs::write(systemd.path(file), config).expect("written");
    systemd.sh(&format!(
        "chmod 600 {file}; systemctl start adit@wg0 {unit}"
    ));
    ping(left, "172.31.0.1", 1);
    let scrape = || {
        let scraped = left.try_sh("curl -sS -m 10 http://127.0.0.1:9586/metrics");
        scraped.stdout
    };
    wait_for("the tunnel's process answers it", seconds(30), || {
        scrape().contains("adit_interface_answers{interface=\"wg0\"} 1\n")
    });
    assert!(scrape().contains("adit_peer_up{interface=\"wg0\",public_key=\""));
    let process = systemd.property(unit, "MainPID");
    let status = systemd.sh(&format!("cat /proc/{process}/status"));
    let uid = |line: &str| line.split_whitespace().nth(1) == Some("0");
    assert!(
        !status
            .lines()
            .any(|line| line.starts_with("Uid:") && uid(line)),
        "{status}"
    );
    // It may use no control socket.
    let group = systemd.sh("stat -c '%a %G' /run/adit/wg0.sock /run/wireguard/wg0.sock");
    assert_eq!(group, "660 adit\n600 root\n");

    systemd.sh("dpkg -P adit 2>&1");
    assert_eq!(systemd.property(unit, "ActiveState"), "inactive");
    assert_eq!(systemd.property(unit, "LoadState"), "not-found");
}

/// How a file of `packaging/` runs Adit.
#[derive(Debug)]
struct Manifest {
    name: &'static str,
    command: Vec<String>,
    health: Vec<String>,
    capabilities: Vec<String>,
    sysctls: Vec<(String, String)>,
    is_read_only: bool,
}

/// The list behind `key`, as `[a, "b"]` on one line.
#[track_caller]
fn words(text: &str, key: &str) -> Vec<String> {
    let (_, list) = text.split_once(key).unwrap_or_else(|| panic!("no {key}"));
    let (list, _) = list.split_once(']').expect("a list in one line");
    let words = list.split(',').map(|word| word.trim().trim_matches('"'));
    words.map(str::to_owned).collect()
}

impl Manifest {
    fn of_image() -> Manifest {
        let (image, compose) = (
            packaged("container/Containerfile"),
            packaged("container/compose.yaml"),
        );
        assert!(compose.contains("cap_drop: [ALL]"));
        let (_, health) = image.split_once("HEALTHCHECK ").expect("a HEALTHCHECK");
        let sysctls = compose
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("net."));
        let sysctls = sysctls.filter_map(|line| line.split_once(": "));
        Manifest {
            name: "compose.yaml",
            command: words(&image, "\nCMD ["),
            health: words(health, "CMD ["),
            capabilities: words(&compose, "cap_add: ["),
            sysctls: sysctls
                .map(|(name, value)| (name.replace('.', "/"), value.into()))
                .collect(),
            is_read_only: false,
        }
    }

    fn of_pod(name: &'static str) -> Manifest {
        let pod = packaged(&format!("kubernetes/{name}"));
        assert!(
            pod.contains("drop: [ALL]") && !pod.contains("privileged: true"),
            "{name}"
        );
        Manifest {
            name,
            command: words(&pod, " command: ["),
            health: words(&pod, "exec: { command: ["),
            capabilities: words(&pod, "add: ["),
            sysctls: Vec::new(),
            is_read_only: pod.contains("readOnlyRootFilesystem: true"),
        }
    }

    /// Starts its container as far as namespaces do: a root, /run, PID 1, and these capabilities.
    fn start(&self, host: &Container) -> std::process::Child {
        for (name, value) in &self.sysctls {
            host.sh(&format!("echo {value} > /proc/sys/{name}"));
        }
        let capabilities = self.capabilities.join(",+").to_lowercase();
        let read_only = if self.is_read_only { "ro" } else { "rw" };
        let script = format!(
            "set -e; mount -t proc proc {ROOT}/proc; mount --bind /proc/sys {ROOT}/proc/sys
             mount -o remount,bind,ro {ROOT}/proc/sys; mount -o remount,{read_only} {ROOT}
             exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot {ROOT} setpriv --no-new-privs \
             --inh-caps -all --bounding-set -all,+{capabilities} {} 2> /run/log",
            self.command.join(" ")
        );
        let mut command = host.command("unshare");
        command
            .args([
                "--pid",
                "--fork",
                "--kill-child",
                "--mount",
                "--propagation",
                "private",
            ])
            .args(["sh", "-c", &script])
            .stdin(std::process::Stdio::null());
        command.spawn().expect("nsenter starts")
    }

    /// Whether its probe finds the container well.
    fn is_healthy(&self, host: &Container) -> bool {
        let words: Vec<String> = (self.health.iter())
            .map(|word| format!("'{word}'"))
            .collect();
        host.try_sh(&format!(
            "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot {ROOT} {}",
            words.join(" ")
        ))
        .ok()
    }
}

/// Where the image is in a host.
const ROOT: &str = "/run/image";

/// The image, as far as it is not Debian's: /run is its own, and /etc/wireguard is the host's.
fn mount_image(host: &Container, debian: &Path) {
    host.sh(&format!(
        "set -e; mkdir -p /run/upper /run/work {ROOT}
         mount -t overlay overlay -o lowerdir={root},upperdir=/run/upper,workdir=/run/work {ROOT}
         install -m 755 {adit} {ROOT}/usr/bin/adit
         mount -t tmpfs -o mode=755 tmpfs {ROOT}/run
         mount --rbind /sys {ROOT}/sys; mount --rbind /dev {ROOT}/dev
         mount --bind /etc/wireguard {ROOT}/etc/wireguard",
        root = debian.join("root").display(),
        adit = adit(),
    ));
}

/// Compose, a sidecar and a DaemonSet: each says when it is up, has the rights that it needs and no
/// others, is healthy while it works, and takes the tunnel down when it ends.
#[test]
fn containers_are_up_and_healthy_with_the_rights_of_their_manifests() {
    if !only_adit() {
        return;
    }
    let Some(debian) = debian() else {
        return;
    };
    let manifests = [
        Manifest::of_image(),
        Manifest::of_pod("sidecar.yaml"),
        Manifest::of_pod("daemonset.yaml"),
    ];
    let world = World::new();
    let left = world.left();
    mount_image(left, &debian);
    for manifest in manifests {
        // A default route needs a sysctl that a pod does not set.
        let allowed = match manifest.sysctls.is_empty() {
            true => "192.168.77.0/24, 172.31.0.0/16",
            false => "0.0.0.0/0, ::/0",
        };
        // As the files of a secret are.
        left.sh("mkdir -p /etc/wireguard/..data; ln -sf ..data/wg0.conf /etc/wireguard/wg0.conf");
        left.sh_with_input(
            "umask 077; cat > /etc/wireguard/..data/wg0.conf",
            &world.config("", allowed),
        );
        assert!(!manifest.is_healthy(left), "{manifest:?}: before");
        let mut child = manifest.start(left);
        let said = || left.try_sh("cat /run/log").stdout;
        wait_for(manifest.name, seconds(30), || {
            if let Some(status) = child.try_wait().expect("waiting") {
                panic!("{manifest:?} ended: {status}: {}", said());
            }
            said().contains("adit: wg0 is up") && manifest.is_healthy(left)
        });
        // Once; what else is said is what changed.
        let said_of_it = said();
        let others: Vec<&str> = (said_of_it.lines())
            .filter(|line| *line != "adit: wg0 is up")
            .collect();
        assert_eq!(said_of_it.lines().count(), others.len() + 1, "{said_of_it}");
        let is_change = |line: &&str| line.contains("configuration changed");
        assert!(others.iter().all(is_change), "{said_of_it}");
        ping(left, "172.31.0.1", 1);

        // A process that hangs is found.
        left.sh("pkill -STOP -f 'adit run .*wg0$'");
        assert!(!manifest.is_healthy(left), "{manifest:?}: it hangs");
        left.sh("pkill -CONT -f 'adit run .*wg0$'");
        wait_for("it goes on", seconds(20), || manifest.is_healthy(left));

        left.sh("pkill -TERM -o -f '^adit up .*wg0$'");
        wait_for("it ends", seconds(20), || {
            let status = child.try_wait().expect("waiting");
            status
                .inspect(|status| assert!(status.success(), "{}", said()))
                .is_some()
        });
        assert!(!left.has_interface("wg0"), "{}", manifest.name);
        assert!(!manifest.is_healthy(left), "{manifest:?}: after");
        left.sh("rm -r /run/log /etc/wireguard/wg0.conf /etc/wireguard/..data");
    }
}

/// Kilo creates no interface and configures the one of the sidecar by its control socket.
#[test]
fn kilos_sidecar_serves_an_interface_that_another_program_configures() {
    if !only_adit() {
        return;
    }
    let Some(debian) = debian() else {
        return;
    };
    let manifest = Manifest::of_pod("kilo/adit.patch.yaml");
    let host = Container::new("node");
    mount_image(&host, &debian);
    let mut child = manifest.start(&host);
    wait_for("it serves kilo0", seconds(30), || {
        manifest.is_healthy(&host)
    });
    host.sh(&format!(
        "mkdir -p /run/wireguard; mount --bind {ROOT}/run/wireguard /run/wireguard"
    ));
    let keys = Keys::new();
    host.sh_with_input(
        "wg set kilo0 listen-port 51821 private-key /dev/stdin",
        &keys.private,
    );
    assert_eq!(host.sh("wg show kilo0 public-key").trim(), keys.public);
    host.sh("pkill -TERM -o -f '^adit run .*kilo0$'");
    wait_for("it ends", seconds(20), || {
        child.try_wait().expect("waiting").is_some()
    });
}
