//! `adit proxy`: clients of the left side get to what is inside, as nobody, and where there is no device.
//!
//! ```text
//!   left                                      right
//!   clients, proxy (192.168.77.1)             wg0 (192.168.77.2), a web server, a DNS server
//!   10.0.0.1 ─────────────────────────────── 10.0.0.2
//! ```

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;

use crate::harness::*;
use crate::quick::{adit, only_adit};

/// Known to the DNS server inside alone.
const NAME: &str = "web.inside.example";
/// The same as it stands in a question.
const QUESTION: &[u8] = b"\x03web\x06inside\x07example";

/// Both sides; of the left one, only the keys are known to the right one.
struct Site {
    net: SitePair,
    right: Option<Daemon>,
    keys: [Keys; 2],
}

impl Site {
    fn new() -> Site {
        Site {
            net: SitePair::new(),
            right: None,
            keys: [Keys::new(), Keys::new()],
        }
    }

    /// The right side answers, with a web server and a DNS server inside.
    fn answers(&mut self, program: Program) {
        let (left, right) = (&self.keys[0], &self.keys[1]);
        let host = &self.net.right;
        self.right = Some(Daemon::start(host, program, "wg0", &Start::default()));
        setconf(
            host,
            "wg0",
            &format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 192.168.77.1/32\n",
                right.private, left.public
            ),
        );
        host.sh("ip addr add 192.168.77.2/24 dev wg0; ip link set wg0 mtu 1420 up");
        host.answers_at("192.168.77.2");
        let servers = host.within(|| {
            let web = TcpListener::bind("192.168.77.2:80").expect("a port");
            let dns = UdpSocket::bind("192.168.77.2:53").expect("a port");
            (web, dns)
        });
        let (web, dns) = servers;
        std::thread::spawn(move || serve_web(&web));
        std::thread::spawn(move || serve_names(&dns));
    }

    /// What every file of a tunnel begins with.
    fn tunnel(&self) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/32\nDNS = 192.168.77.2\n\n[Peer]\n# Name = right\n\
             PublicKey = {}\nEndpoint = 10.0.0.2:51820\nAllowedIPs = 192.168.77.0/24\n\n",
            self.keys[0].private, self.keys[1].public
        )
    }

    fn write(&self, path: &str, text: &str) {
        let script = format!("mkdir -p $(dirname {path}); umask 077; cat > {path}");
        self.net.left.sh_with_input(&script, text);
    }
}

/// Says the same to everybody.
fn serve_web(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(
            format!("HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n{}", page()).as_bytes(),
        );
    }
}

fn page() -> String {
    String::from_utf8_lossy(marker()).repeat(100)
}

/// Knows one address for every name.
fn serve_names(socket: &UdpSocket) {
    let mut question = [0; 512];
    while let Ok((len, from)) = socket.recv_from(&mut question) {
        let question = &question[..len];
        let is_v4 = question.get(len.saturating_sub(4)..) == Some(&[0, 1, 0, 1]);
        let mut answer = question.to_vec();
        answer[2..4].copy_from_slice(&[0x81, 0x80]);
        answer[7] = u8::from(is_v4);
        // No further records.
        answer[8..12].fill(0);
        if is_v4 {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 168, 77, 2]);
        }
        let _ = socket.send_to(&answer, from);
    }
}

/// Starts a proxy, and waits until it says that all is there. `before` are words before the command.
#[track_caller]
fn start(host: &Container, before: &str, arguments: &str) -> Daemon {
    let mut command = host.command("sh");
    let script = format!("exec {before} proxy {arguments} > /run/proxy.log 2>&1");
    command.args(["-c", &script]);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nsenter starts");
    let proxy = Daemon::adopt(host, Program::Adit, "wireproxy", child);
    wait_for("the proxy has begun", seconds(20), || {
        let log = log(host);
        assert!(!log.contains(" cannot listen"), "{log}");
        log.contains(": stack ")
    });
    proxy
}

fn log(host: &Container) -> String {
    std::fs::read_to_string(host.path("/run/proxy.log")).unwrap_or_default()
}

/// What curl gets.
#[track_caller]
fn curl(host: &Container, arguments: &str) -> String {
    host.sh(&format!(
        "curl --silent --show-error --max-time 20 {arguments}"
    ))
}

/// As nobody, who has no right, no TUN device, and may make no user namespace, as in a chroot nobody may.
const NOBODY: &str = "chroot /run/root setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \
                      --bounding-set=-all --inh-caps=-all env XDG_RUNTIME_DIR=/run/nobody";

/// Makes the root for that.
fn make_root(host: &Container) {
    host.sh(&format!(
        "set -e; cp {} /run/bin-adit; mount -t tmpfs tmpfs /dev/net; install -d -o 65534 -g 65534 -m 700 /run/nobody
         mkdir /run/root; mount --rbind / /run/root",
        adit()
    ));
    for refused in [
        "test -e /dev/net/tun",
        "unshare --user true",
        "mkdir /run/adit",
    ] {
        assert!(
            !host.try_sh(&format!("{NOBODY} {refused}")).ok(),
            "{refused}"
        );
    }
    host.sh(&format!("{NOBODY} true"));
}

const SERVICES: &str = "[Socks5]\nBindAddress = 127.0.0.1:1080\n\n[http]\nBindAddress = 127.0.0.1:8080\n\n\
                        [TCPClientTunnel]\nBindAddress = 127.0.0.1:8081\nTarget = 192.168.77.2:80\n";

/// A proxy by TLS, with the certificate of another test.
const OVER_TLS: &str = "\n[http]\nBindAddress = 127.0.0.1:8443\nCertFile = /run/nobody/proxy.pem\n\
                        KeyFile = /run/nobody/proxy.key\n";
const CERTIFICATE: &str = include_str!("../../../proxy/tests/serve/certificates/proxy.pem");
const KEY: &str = include_str!("../../../proxy/tests/serve/certificates/proxy.key");

fn clients_get_in_as_nobody(program: Program) {
    let mut site = Site::new();
    site.answers(program);
    let host = &site.net.left;
    make_root(host);
    let file = "/run/nobody/wireproxy.conf";
    site.write(file, &(site.tunnel() + SERVICES + OVER_TLS));
    site.write("/run/nobody/proxy.pem", CERTIFICATE);
    site.write("/run/nobody/proxy.key", KEY);
    host.sh("chown 65534 /run/nobody/*");
    let capture = Capture::start(host, "eth0", "ip or ip6");
    let nobody = format!("{NOBODY} /run/bin-adit");
    let mut proxy = start(host, &nobody, &format!("-c {file}"));
    for arguments in [
        format!("-x socks5h://127.0.0.1:1080 http://{NAME}/"),
        "-x socks5://127.0.0.1:1080 http://192.168.77.2/".into(),
        format!("-x http://127.0.0.1:8080 http://{NAME}/"),
        format!("--proxytunnel -x http://127.0.0.1:8080 http://{NAME}/"),
        "http://127.0.0.1:8081/".into(),
        format!("-x https://127.0.0.1:8443 --proxy-cacert /run/nobody/proxy.pem http://{NAME}/"),
        format!(
            "--proxytunnel -x https://127.0.0.1:8443 --proxy-cacert /run/nobody/proxy.pem http://{NAME}/"
        ),
    ] {
        assert_eq!(curl(host, &arguments), page(), "{arguments}");
    }
    let old = host.try_sh("curl --max-time 20 -x socks4a://127.0.0.1:1080 http://192.168.77.2/");
    assert!(!old.ok() && old.stdout.is_empty(), "{}", old.stdout);

    let outside = capture.bytes();
    let has = |bytes: &[u8]| outside.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(&[10, 0, 0, 2]), "it captures");
    for secret in [marker(), NAME.as_bytes(), QUESTION] {
        assert!(!has(secret), "{}", String::from_utf8_lossy(secret));
    }
    let shown = host.sh(&format!("{NOBODY} /run/bin-adit show wireproxy"));
    for words in [
        &*site.keys[1].public,
        "name: right",
        "stack of the proxy: smoltcp",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let why = host.sh(&format!("{NOBODY} /run/bin-adit why wireproxy"));
    assert!(why.contains("it works"), "{why}");
    has_given_up_all_rights(host, proxy.pid_in_host());
    proxy.signal("TERM");
    assert_eq!(proxy.wait().code(), Some(0), "{}", log(host));
    assert_eq!(host.sh("ls /run/nobody/adit"), "");
}

/// Every thread, as the kernel tells.
fn has_given_up_all_rights(host: &Container, pid: u32) {
    let tasks = std::fs::read_dir(host.path(&format!("/proc/{pid}/task"))).expect("tasks");
    let mut names = Vec::new();
    for task in tasks {
        let status = std::fs::read_to_string(task.expect("a task").path().join("status"));
        let status = status.expect("a status");
        for line in ["CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(status.contains(line), "{line}: {status}");
        }
        names.extend(status.lines().next().map(str::to_owned));
    }
    for name in ["adit-net", "adit-clients", "adit-control", "adit-shard-0"] {
        assert!(names.contains(&format!("Name:\t{name}")), "{names:?}");
    }
}

#[test]
fn clients_get_in_as_nobody_where_the_peer_is_adit() {
    if only_adit() {
        clients_get_in_as_nobody(Program::Adit);
    }
}

#[test]
fn clients_get_in_as_nobody_where_the_peer_is_wireguard_go() {
    if let (true, Some(program)) = (only_adit(), peer(Program::WireguardGo)) {
        clients_get_in_as_nobody(program);
    }
}

#[test]
fn the_log_says_why_no_peer_answers_and_readyz_fails_meanwhile() {
    if !only_adit() {
        return;
    }
    let mut site = Site::new();
    let alive = "CheckAlive = 192.168.77.2\nCheckAliveInterval = 1\n\n[Peer]";
    let text = site.tunnel().replacen("\n[Peer]", alive, 1) + SERVICES;
    site.write("/run/wireproxy.conf", &text);
    let host = site.net.left.clone();
    let proxy = start(&host, &adit(), "-c /run/wireproxy.conf -i 127.0.0.1:9080");
    let ready =
        || host.sh("curl --silent --max-time 20 -w ' %{http_code}' http://127.0.0.1:9080/readyz");
    assert_eq!(ready(), r#"{"192.168.77.2":0} 503"#);
    let key = site.keys[1].public.clone();
    wait_for("the log says why", seconds(30), || {
        let log = log(&host);
        let line = log.lines().find(|line| line.contains("does not answer"));
        line.is_some_and(|line| {
            let words = [
                &*key,
                "(right)",
                "nothing listens at port 51820",
                "`adit why wireproxy`",
            ];
            words.iter().all(|word| line.contains(word))
        })
    });
    let why = host.try_sh(&format!("{} why wireproxy", adit()));
    assert_eq!(why.status.code(), Some(1), "{}", why.stdout);
    assert!(
        why.stdout.contains("nothing listens at port 51820"),
        "{}",
        why.stdout
    );

    site.answers(Program::Adit);
    wait_for("it is ready", seconds(60), || ready().ends_with(" 200"));
    let says = format!("peer {key} answers");
    wait_for("the log says so", seconds(20), || {
        log(&host).contains(&says)
    });
    let metrics = host.sh("curl --silent --max-time 20 http://127.0.0.1:9080/metrics");
    let up = metrics
        .lines()
        .find(|line| line.starts_with("adit_peer_up{interface=\"wireproxy\""));
    assert!(up.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
    let service = "adit_proxy_clients_total{interface=\"wireproxy\",service=\"info\"} ";
    assert!(metrics.contains(service), "{metrics}");
    // The control socket is there, too, for who may make it.
    assert!(
        host.sh("wg show wireproxy latest-handshakes")
            .contains(&key)
    );
    for private in &site.keys {
        assert!(!log(&host).contains(&private.private) && !metrics.contains(&private.private));
    }
    drop(proxy);
}

#[test]
fn wireproxys_files_and_flags_and_files_of_wg_quick_work() {
    if !only_adit() {
        return;
    }
    let mut site = Site::new();
    site.answers(Program::Adit);
    let host = &site.net.left;
    let page = page();
    site.write("/etc/wireproxy/wireproxy.conf", &(site.tunnel() + SERVICES));
    let alias = format!("wireproxy() {{ {} proxy \"$@\"; }}; wireproxy", adit());
    assert_eq!(host.sh(&format!("{alias} --configtest")), "Config OK\n");
    assert!(host.sh(&format!("{alias} -v")).contains("version "));
    let said = host.try_sh(&format!("{alias} --silent --daemon"));
    assert!(
        said.ok() && said.stdout.is_empty() && said.stderr.is_empty(),
        "{}",
        said.stderr
    );
    assert_eq!(
        curl(host, &format!("-x socks5h://127.0.0.1:1080 http://{NAME}/")),
        page
    );
    // It ends with its control socket, as the process of an interface does.
    host.sh("rm /run/wireguard/wireproxy.sock");
    wait_for("it has ended", seconds(20), || processes(host).is_empty());
    assert_eq!(host.sh("ls /run/adit"), "");

    site.write("/etc/wireguard/wg7.conf", &site.tunnel());
    let forward = "--forward tcp:8081=web.inside.example:80 --http unix:/run/http.sock --info unix:/run/info.sock";
    let mut proxy = start(host, &adit(), &format!("wg7 --socks 1080 {forward}"));
    for arguments in [
        format!("-x socks5h://127.0.0.1:1080 http://{NAME}/"),
        "http://127.0.0.1:8081/".to_owned(),
    ] {
        assert_eq!(curl(host, &arguments), page, "{arguments}");
    }
    let status = host.sh(&format!("{} show wg7", adit()));
    assert!(
        status.contains("sandbox: ") && !status.contains("sandbox: off"),
        "{status}"
    );
    let pages = "--unix-socket /run/info.sock http://localhost/readyz";
    assert_eq!(curl(host, pages), "{}");
    proxy.signal("INT");
    assert_eq!(proxy.wait().code(), Some(0), "{}", log(host));
    for socket in ["/run/http.sock", "/run/info.sock"] {
        assert!(!host.path(socket).exists(), "{socket} is gone");
    }
}

/// What is asked of the DNS server inside: an IPv4 address of NAME.
fn question() -> Vec<u8> {
    let head = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head[..], QUESTION, &[0, 0, 1, 0, 1]].concat()
}

/// What comes back when the question goes to a port of this host, with `head` before it: without as long a head.
fn asked(head: Vec<u8>, to: SocketAddr, head_back: usize) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let limit = Some(seconds(20));
    socket.set_read_timeout(limit).expect("a time");
    let asked = [head, question()].concat();
    socket.send_to(&asked, to).expect("it leaves");
    let mut answer = [0; 600];
    let (len, _) = socket.recv_from(&mut answer).expect("an answer");
    answer[head_back..len].to_vec()
}

/// A UDP association of SOCKS5: its connection, and where datagrams go.
fn associate() -> (TcpStream, SocketAddr) {
    let mut stream = TcpStream::connect("127.0.0.1:1080").expect("a proxy");
    stream.write_all(&[5, 1, 0]).expect("room");
    let mut method = [0; 2];
    stream.read_exact(&mut method).expect("a method");
    assert_eq!(method, [5, 0]);
    stream
        .write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0])
        .expect("room");
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[..4], [5, 0, 0, 1]);
    let ip = Ipv4Addr::new(reply[4], reply[5], reply[6], reply[7]);
    (
        stream,
        (ip, u16::from_be_bytes([reply[8], reply[9]])).into(),
    )
}

fn datagrams_and_iperf3_get_in(stack: &str) {
    if !only_adit() {
        return;
    }
    let mut site = Site::new();
    site.answers(Program::Adit);
    let host = &site.net.left;
    let more = "\n[UDPProxyTunnel]\nBindAddress = 127.0.0.1:5353\nTarget = 192.168.77.2:53\n\n\
                [TCPClientTunnel]\nBindAddress = 127.0.0.1:5201\nTarget = 192.168.77.2:5201\n";
    site.write("/run/wireproxy.conf", &(site.tunnel() + SERVICES + more));
    let proxy = start(
        host,
        &adit(),
        &format!("-c /run/wireproxy.conf --stack {stack}"),
    );
    assert!(
        log(host).contains(&format!("stack {stack}")),
        "{}",
        log(host)
    );
    let is_right = |answer: &[u8]| answer.ends_with(&[192, 168, 77, 2]);
    let forwarded = host.within(|| asked(Vec::new(), ([127, 0, 0, 1], 5353).into(), 0));
    assert!(is_right(&forwarded), "{forwarded:?}");
    let associated = host.within(|| {
        let (_connection, relay) = associate();
        // The server by address; what comes back is from an address, too.
        let head = vec![0, 0, 0, 1, 192, 168, 77, 2, 0, 53];
        asked(head, relay, 10)
    });
    assert!(is_right(&associated), "{associated:?}");
    site.net
        .right
        .sh("iperf3 -s -D -B 192.168.77.2 > /dev/null; sleep 0.3");
    for direction in ["", "-R"] {
        let said = host.sh(&format!("iperf3 -c 127.0.0.1 -t 1 -J {direction}"));
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let bytes = said["end"]["sum_received"]["bytes"].as_f64();
        assert!(bytes > Some(1e6), "{direction}: {said}");
    }
    drop(proxy);
}

#[test]
fn datagrams_and_iperf3_get_in_by_the_stack_of_the_program() {
    datagrams_and_iperf3_get_in("smoltcp");
}

#[test]
fn datagrams_and_iperf3_get_in_by_the_stack_of_the_kernel() {
    datagrams_and_iperf3_get_in("kernel");
}

#[test]
fn a_proxy_ends_and_says_why_when_the_process_of_the_kernels_stack_is_killed() {
    if !only_adit() {
        return;
    }
    let mut site = Site::new();
    site.answers(Program::Adit);
    let host = &site.net.left;
    site.write("/run/wireproxy.conf", &(site.tunnel() + SERVICES));
    let kernel = "-c /run/wireproxy.conf --stack kernel";
    let mut proxy = start(host, &adit(), kernel);
    assert!(
        log(host).contains("stack kernel, by a TUN device"),
        "{}",
        log(host)
    );
    let get = format!("-x socks5h://127.0.0.1:1080 http://{NAME}/");
    assert_eq!(curl(host, &get), page());
    host.sh(&format!(
        "pkill -KILL --parent {} adit-kernel-net",
        proxy.pid_in_host()
    ));
    assert_eq!(proxy.wait().code(), Some(1), "{}", log(host));
    assert!(log(host).contains("kernel's stack ended"), "{}", log(host));
}

#[test]
fn the_kernel_and_its_tcp_are_reached_from_both_stacks_and_reach_them() {
    let Some(guest) = Guest::boot(&[]) else {
        return;
    };
    let [ours, theirs] = [Keys::new(), Keys::new()];
    guest.sh(&format!(
        "set -e; ip link add wg0 type wireguard; ip addr add 192.168.77.2/24 dev wg0; ip link set wg0 mtu 1420 up
         umask 077; cat > /tmp/conf <<'END'\n[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\n\
         AllowedIPs = 192.168.77.1/32\nEND\nwg setconf wg0 /tmp/conf; (nc -ll -p 7000 -e cat > /dev/null 2>&1 &)",
        theirs.private, ours.public
    ));
    let host = &guest.host;
    // What a stack's clients reach, and what the guest reaches by way of it.
    let file = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 192.168.77.1/32\n\n[Peer]\nPublicKey = {}\nEndpoint = 10.9.0.2:51820\n\
         AllowedIPs = 192.168.77.0/24\n\n[TCPClientTunnel]\nBindAddress = 127.0.0.1:7000\nTarget = 192.168.77.2:7000\n\n\
         [TCPServerTunnel]\nListenPort = 7001\nTarget = 127.0.0.1:7001\n",
        ours.private, theirs.public
    );
    host.sh_with_input("umask 077; cat > /run/proxy.conf", &file);
    let listener = host.within(|| TcpListener::bind("127.0.0.1:7001").expect("a port"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = std::io::copy(&mut &stream, &mut &stream);
        }
    });
    for stack in ["smoltcp", "kernel"] {
        let arguments = format!("-c /run/proxy.conf --stack {stack}");
        let mut proxy = start(host, &adit(), &arguments);
        Stream::echo(host, ([127, 0, 0, 1], 7000).into(), 4 << 20);
        let sums = guest.sh(
            "set -e; dd if=/dev/urandom of=/tmp/sent bs=65536 count=32 2> /dev/null
             nc 192.168.77.1 7001 < /tmp/sent > /tmp/back; cat /tmp/sent | sha256sum; cat /tmp/back | sha256sum",
        );
        let sums: Vec<_> = sums.lines().collect();
        assert!(sums.len() == 2 && sums[0] == sums[1], "{stack}: {sums:?}");
        // The next one has the same ports.
        proxy.signal("INT");
        assert_eq!(proxy.wait().code(), Some(0), "{}", log(host));
        host.sh("rm /run/proxy.log");
    }
}
