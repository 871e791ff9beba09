//! Real wireproxy as a judge: both read the same files. What it takes and Adit refuses is a row of
//! `docs/wireproxy.md`, and nothing else is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use adit_proxy::config::ProxyConfig;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const ONE: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const TWO: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

/// What both say of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Both take it.
    Both,
    /// Both refuse it.
    Neither,
    /// Adit alone takes it.
    Adit,
    /// wireproxy alone takes it, for this reason of the page.
    Wireproxy(&'static str),
}

use Verdict::{Adit, Both, Neither, Wireproxy};

/// A change of the file below, and what both say of it then.
type Row = (&'static str, &'static str, Verdict);

fn file() -> String {
    format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.2/32\n\n[Peer]\nPublicKey = {ONE}\nEndpoint = \
         192.0.2.1:51820\n\n[Socks5]\nBindAddress = 127.0.0.1:1080\n"
    )
}

const TUNNEL: &[Row] = &[
    ("", "", Both),
    ("[Interface]", "[INTERFACE] # here", Both),
    ("[Interface]", "; here\n[interface]", Both),
    (
        "[Interface]",
        "[Interface]\nunknown = 1",
        Wireproxy("an unknown section or key"),
    ),
    (
        "[Interface]",
        "[Interface]\nJc = 3",
        Wireproxy("an unknown section or key"),
    ),
    (
        "[Interface]",
        "[Interface]\nTable = off\nPostUp = echo a; echo b # c",
        Both,
    ),
    ("[Interface]", "[Interface]\nDNS = 10.0.0.1, fd00::1", Both),
    (
        "[Interface]",
        "[Interface]\nDNS = 10.0.0.1, corp.example",
        Adit,
    ),
    (
        "[Interface]",
        "[Interface]\nDNS = fe80::1%eth0",
        Wireproxy("a scope"),
    ),
    ("[Interface]", "[Interface]\nDNS =", Both),
    ("[Interface]", "[Interface]\nMTU = 1280", Both),
    (
        "[Interface]",
        "[Interface]\nMTU = 100",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Interface]",
        "[Interface]\nMTU = -1",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Interface]",
        "[Interface]\nMTU = 0x578",
        Wireproxy("another notation of numbers"),
    ),
    ("[Interface]", "[Interface]\nMTU = large", Neither),
    ("[Interface]", "[Interface]\nListenPort = 51820", Both),
    (
        "[Interface]",
        "[Interface]\nListenPort = 66000",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Interface]",
        "[Interface]\nListenPort = 51_820",
        Wireproxy("another notation of numbers"),
    ),
    (
        "[Interface]",
        "[Interface]\nCheckAlive = 10.0.0.1, fd00::1\nCheckAliveInterval = 3",
        Both,
    ),
    ("[Interface]", "[Interface]\nCheckAlive = host", Neither),
    (
        "[Interface]",
        "[Interface]\nCheckAlive = fe80::1%1",
        Wireproxy("a scope"),
    ),
    (
        "[Interface]",
        "[Interface]\nCheckAliveInterval = 3",
        Neither,
    ),
    (
        "[Interface]",
        "[Interface]\nCheckAlive = 10.0.0.1\nCheckAliveInterval = 0",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Interface]",
        "[Interface]\nMTU = 1300\nMTU = 1400",
        Wireproxy("a key twice with two values"),
    ),
    ("[Interface]", "[Interface]\nMTU = 1300\nmtu = 1300", Both),
    (
        "[Interface]",
        "Unknown = 1\n[Interface]",
        Wireproxy("an unknown section or key"),
    ),
    ("[Interface]", "[Interface", Neither),
    (
        "[Interface]",
        "[Interface] here",
        Wireproxy("a value over several lines"),
    ),
    ("[Interface]", "[Interface]\nMTU", Neither),
    (
        "[Interface]",
        "[Interface]\nMTU = 14\\\n00",
        Wireproxy("a value over several lines"),
    ),
    ("[Interface]", "[Interface]\nMTU = `1400`", Both),
    ("[Interface]", "[Interface]\nMTU = '1400' # bytes", Both),
    ("[Interface]", "[Interface]\nMTU = \"\"\"1400\"\"\"", Both),
    (
        "[Interface]",
        "[Interface]\nMTU = \"\"\"14\n00\"\"\"",
        Neither,
    ),
    (
        "[Interface]",
        "[Interface]\nMTU = %(ListenPort)s\nListenPort = 1400",
        Wireproxy("a value over several lines"),
    ),
    (
        "[Interface]",
        "[Interface]\n\"MTU\" = 1400",
        Wireproxy("a value over several lines"),
    ),
    ("[Interface]", "\u{feff}[Interface]", Both),
    ("PrivateKey = ", "privatekey : ", Both),
    ("PrivateKey = ", "PrivateKey = \"", Neither),
    ("PrivateKey", "# PrivateKey", Neither),
    (KEY, "", Neither),
    (KEY, "x", Neither),
    (
        KEY,
        "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmn=",
        Wireproxy("a key with bits too many"),
    ),
    (
        KEY,
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        Wireproxy("a value that cannot be"),
    ),
    (
        ONE,
        "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=",
        Wireproxy("a peer twice, or with the tunnel's own key"),
    ),
    ("Address = 10.0.0.2/32", "", Wireproxy("no `Address`")),
    ("10.0.0.2/32", "10.0.0.2/24, fd00::2/128", Both),
    ("10.0.0.2/32", "10.0.0.2/32\nAddress = fd00::2/128", Both),
    ("10.0.0.2/32", "10.0.0.2", Adit),
    ("10.0.0.2/32", "10.0.0.2/33", Neither),
    ("10.0.0.2/32", "10.0.0.2/32; here", Both),
    ("[Peer]", "[Pear]", Neither),
    (ONE, "x", Neither),
    ("Endpoint", "# Endpoint", Both),
    ("192.0.2.1:51820", "[2001:db8::1]:51820", Both),
    ("192.0.2.1:51820", "192.0.2.1", Neither),
    (
        "192.0.2.1:51820",
        "192.0.2.1:0",
        Wireproxy("a value that cannot be"),
    ),
    ("192.0.2.1:51820", "2001:db8::1:51820", Adit),
    ("[Socks5]", "PersistentKeepalive = 25\n[Socks5]", Both),
    ("[Socks5]", "PersistentKeepalive = off\n[Socks5]", Adit),
    (
        "[Socks5]",
        "PersistentKeepalive = -1\n[Socks5]",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Socks5]",
        "AllowedIPs = 10.0.0.0/24, fd00::/64\nAllowedIPs = 10.1.0.0/16\n[Socks5]",
        Both,
    ),
    ("[Socks5]", "AllowedIPs = 10.0.0.7/24\n[Socks5]", Both),
    ("[Socks5]", "AllowedIPs = 10.0.0.1\n[Socks5]", Adit),
    ("[Socks5]", "AllowedIPs = 10.0.0.1/33\n[Socks5]", Neither),
    ("[Socks5]", "PresharedKey = x\n[Socks5]", Neither),
];

const SERVICES: &[Row] = &[
    ("[Socks5]", "[socks5]", Both),
    (
        "[Socks5]",
        "[Socks4]",
        Wireproxy("an unknown section or key"),
    ),
    ("[Socks5]", "[Socks5]\nUsername = a\nPassword = b", Both),
    (
        "[Socks5]",
        "[Socks5]\nUsername = a",
        Wireproxy("one of `Username` and `Password`"),
    ),
    (
        "[Socks5]",
        "[Socks5]\nPassword = a",
        Wireproxy("one of `Username` and `Password`"),
    ),
    (
        "[Socks5]",
        "[Socks5]\nPasword = a",
        Wireproxy("an unknown section or key"),
    ),
    ("127.0.0.1:1080", "localhost:1080", Both),
    ("127.0.0.1:1080", "[::1]:1080", Both),
    (
        "127.0.0.1:1080",
        ":1080",
        Wireproxy("a proxy for everybody"),
    ),
    ("127.0.0.1:1080", ":1080\n# Open = yes", Both),
    ("127.0.0.1:1080", ":1080\nUsername = a\nPassword = b", Both),
    ("127.0.0.1:1080", "unix:/run/proxy.sock", Both),
    (
        "127.0.0.1:1080",
        "127.0.0.1",
        Wireproxy("a value that cannot be"),
    ),
    (
        "127.0.0.1:1080",
        "127.0.0.1:socks",
        Wireproxy("a name or a service as `BindAddress`"),
    ),
    (
        "127.0.0.1:1080",
        "ip6-localhost:1080",
        Wireproxy("a name or a service as `BindAddress`"),
    ),
    ("127.0.0.1:1080", "", Wireproxy("a value that cannot be")),
    ("[Socks5]", "[http]", Both),
    ("[Socks5]", "[HTTP]\nUsername = a\nPassword = `b#c`", Both),
    (
        "[Socks5]",
        "[http]\nUsername = a:b\nPassword = c",
        Wireproxy("one of `Username` and `Password`"),
    ),
    ("[Socks5]", "[http]\nCertFile = a\nKeyFile = b", Both),
    (
        "[Socks5]",
        "[http]\nBindAddress = 127.0.0.1:1080\n[Socks5]",
        Wireproxy("a port twice"),
    ),
    ("[Socks5]", "[SNI]", Both),
    (
        "[Socks5]",
        "[TCPClientTunnel]\nTarget = intranet.example:80",
        Both,
    ),
    ("[Socks5]", "[TCPClientTunnel]\nTarget = [fd00::1]:80", Both),
    (
        "[Socks5]",
        "[TCPClientTunnel]",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Socks5]",
        "[TCPClientTunnel]\nTarget = intranet",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Socks5]",
        "[TCPClientTunnel]\nTarget = intranet:http",
        Wireproxy("a value that cannot be"),
    ),
    (
        "BindAddress = 127.0.0.1:1080",
        "[TCPClientTunnel]\nBindAddress = here\nTarget = a:1",
        Neither,
    ),
    (
        "[Socks5]\nBindAddress = 127.0.0.1:1080",
        "[TCPServerTunnel]\nListenPort = 80\nTarget = localhost:80",
        Both,
    ),
    (
        "[Socks5]\nBindAddress = 127.0.0.1:1080",
        "[TCPServerTunnel]\nListenPort = 0\nTarget = a:1",
        Wireproxy("a value that cannot be"),
    ),
    (
        "[Socks5]\nBindAddress = 127.0.0.1:1080",
        "[TCPServerTunnel]\nListenPort = 66000\nTarget = a:1",
        Neither,
    ),
    (
        "[Socks5]\nBindAddress = 127.0.0.1:1080",
        "[TCPServerTunnel]\nTarget = localhost:80",
        Neither,
    ),
    (
        "[Socks5]\nBindAddress = 127.0.0.1:1080",
        "[STDIOTunnel]\nTarget = ssh.example.com:22",
        Both,
    ),
    (
        "[Socks5]\nBindAddress = 127.0.0.1:1080",
        "[STDIOTunnel]\nTarget = a:22\n[STDIOTunnel]\nTarget = b:22",
        Wireproxy("a port twice"),
    ),
    (
        "[Socks5]",
        "[UDPProxyTunnel]\nTarget = a:53\nInactivityTimeout = 0",
        Both,
    ),
    (
        "[Socks5]",
        "[Resolve]\nResolveStrategy = ipv4\n[Socks5]",
        Both,
    ),
    ("[Socks5]\nBindAddress = 127.0.0.1:1080", "", Both),
];

/// The program if it is built. Where it is not, the test says so and ends; under CI it fails.
fn wireproxy() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = std::env::var_os("ADIT_PEERS").map_or(root.join("target/peers"), PathBuf::from);
    let path = dir.join("bin/wireproxy");
    if path.exists() {
        return Some(path);
    }
    let message = format!("{} is not built: run scripts/peers", path.display());
    let is_ci = std::env::var_os("CI").is_some_and(|it| !it.is_empty() && it != "false");
    assert!(!is_ci, "{message}");
    eprintln!("not run: {message}");
    None
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("adit-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn judge(program: &Path, file: &Path) -> bool {
    let mut command = Command::new(program);
    command.arg("-n").arg("-c").arg(file).stdin(Stdio::null());
    let output = command.output().expect("wireproxy");
    output.status.success() && output.stdout == b"Config OK\n"
}

#[test]
fn what_wireproxy_takes_is_taken_but_for_the_reasons_of_the_page() {
    let page = include_str!("../../../docs/wireproxy.md");
    let (_, page) = page.split_once("## What is refused").expect("its part");
    let program = wireproxy();
    let scratch = Scratch::new("judge");
    let path = scratch.0.join("proxy.conf");
    let mut wrong = Vec::new();
    for (old, new, expected) in TUNNEL.iter().chain(SERVICES) {
        let text = file().replacen(old, new, 1);
        assert!(old == new || text != file(), "{old:?} is not in the file");
        if let Wireproxy(reason) = expected {
            let row = format!("\n| {reason} | ");
            assert!(page.contains(&row), "the page has no row {reason:?}");
        }
        let no_file = |path: &Path| {
            Err(io::Error::new(
                io::ErrorKind::NotFound,
                path.display().to_string(),
            ))
        };
        let ours = ProxyConfig::parse(&text, "file", &|_| None, &no_file);
        let ours = ours.map(|_| ()).map_err(|errors| errors.to_string());
        if ours.is_ok() != matches!(expected, Both | Adit) {
            wrong.push(format!("{expected:?}, and Adit says {ours:?}: {new:?}"));
        }
        let Some(program) = &program else {
            continue;
        };
        fs::write(&path, &text).expect("a file");
        let theirs = judge(program, &path);
        if theirs != matches!(expected, Both | Wireproxy(_)) {
            wrong.push(format!(
                "{expected:?}, and wireproxy says {theirs}: {new:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn both_follow_wgconfig_to_the_same_file() {
    let Some(program) = wireproxy() else {
        return;
    };
    let scratch = Scratch::new("wgconfig");
    let (path, tunnel) = (scratch.0.join("proxy.conf"), scratch.0.join("wg0.conf"));
    let hooks = "[Peer]\nPublicKey = TWO\nAllowedIPs = 10.0.0.0/8\n".replace("TWO", TWO);
    let both = |tunnel_text: &str, services: &str| {
        fs::write(&tunnel, tunnel_text).expect("a file");
        fs::write(&path, services.replace("WG", &tunnel.display().to_string())).expect("a file");
        let ours = ProxyConfig::read(&path, &|_| None);
        (judge(&program, &path), ours.is_ok())
    };
    let services = "wgconfig = WG\n[http]\nBindAddress = 127.0.0.1:1\n";
    assert_eq!(both(&file(), services), (true, true));
    assert_eq!(both(&(file() + &hooks), services), (true, true));
    assert_eq!(
        both(&file(), &format!("{services}{}", file())),
        (true, true)
    );
    assert_eq!(both(&file().replace(ONE, "x"), services), (false, false));
    assert_eq!(
        both(&file(), &services.replace("WG", "WG.none")),
        (false, false)
    );
}
