use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use adit_ctl::config::{Errors, Remark};
use zeroize::Zeroizing;

use super::*;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const ONE: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
const TWO: &str = "TrMvSoP4jYQlY6RIzBgbssQqY3vxI2Pi+y71lOWWXX0=";

fn nothing(_: &str) -> Option<String> {
    None
}

fn no_file(path: &Path) -> io::Result<Zeroizing<String>> {
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        path.display().to_string(),
    ))
}

fn parse(text: &str) -> Result<ProxyFile, Errors> {
    ProxyConfig::parse(text, "file", &nothing, &no_file)
}

/// A tunnel, with these sections behind it.
fn with(sections: &str) -> String {
    format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.2/32\n\n[Peer]\nPublicKey = {ONE}\n\
         Endpoint = 192.0.2.1:51820\n\n{sections}"
    )
}

/// The line on which the sections of [`with`] begin.
const FIRST: usize = 9;

fn good(text: &str) -> ProxyFile {
    parse(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn services(sections: &str) -> Vec<ProxyService> {
    good(&with(sections)).config.services
}

fn errors(text: &str) -> Vec<String> {
    let errors = parse(text).map(|_| ()).expect_err(text);
    errors.0.iter().map(Remark::to_string).collect()
}

/// The one mistake of a file.
#[track_caller]
fn error(text: &str) -> String {
    let mut errors = errors(text);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    errors.remove(0)
}

#[test]
fn the_whole_of_a_file_is_read() {
    let text = format!(
        "# of the office\n[interface]\nADDRESS = 10.0.0.2/32, fd00::2/128\nPrivateKey: {KEY}\n\
         DNS = 10.0.0.1 ; inside\nmtu = 1400\nListenPort = 5400\nCheckAlive = 10.0.0.1, fd00::1\n\
         CheckAliveInterval = 3\n\n# alice\n[Peer]\nPublicKey = {ONE}\nPresharedKey = \"{TWO}\"\n\
         Endpoint = vpn.example.com:51820\nPersistentKeepalive = 25\nAllowedIPs = 10.0.0.0/24\n\
         AllowedIPs = fd00::/64\n\n# bob\n[peer] # by name\npublickey = {TWO}\n\
         [Resolve]\nResolveStrategy = IPv4\n"
    );
    let config = good(&text).config;
    let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let tunnel = &config.tunnel;
    assert_eq!(*tunnel.private_key.to_base64(), KEY);
    assert_eq!(tunnel.addresses, [ip("10.0.0.2"), ip("fd00::2")]);
    assert_eq!(tunnel.dns, [ip("10.0.0.1")]);
    assert_eq!((tunnel.mtu, tunnel.listen_port), (Some(1400), 5400));
    assert_eq!(tunnel.check_alive, [ip("10.0.0.1"), ip("fd00::1")]);
    assert_eq!(tunnel.check_alive_interval, Duration::from_secs(3));
    assert_eq!(config.resolve, Resolve::Ipv4);
    let [alice, bob] = &tunnel.peers[..] else {
        panic!("{tunnel:?}");
    };
    assert_eq!(alice.name.as_deref(), Some("alice"));
    assert_eq!(alice.public_key.to_string(), ONE);
    assert!(alice.preshared_key.is_some());
    let endpoint = alice.endpoint.as_ref().map(ToString::to_string);
    assert_eq!(endpoint.as_deref(), Some("vpn.example.com:51820"));
    assert_eq!(alice.keepalive, Some(Duration::from_secs(25)));
    let blocks: Vec<String> = alice.allowed_ips.iter().map(ToString::to_string).collect();
    assert_eq!(blocks, ["10.0.0.0/24", "fd00::/64"]);
    assert_eq!(bob.name.as_deref(), Some("by name"));
    let blocks: Vec<String> = bob.allowed_ips.iter().map(ToString::to_string).collect();
    assert_eq!(blocks, ["0.0.0.0/0", "::/0"]);
    assert_eq!((bob.endpoint.clone(), bob.keepalive), (None, None));
}

#[test]
fn each_service_is_read() {
    let services = services(
        "[Socks5]\nBindAddress = localhost:1080\n\
         [HTTP]\nBindAddress = [::1]:8080\nUsername = peter\nPassword = `a#b;c`\nCertFile = /c.pem\nKeyFile = k.pem\n\
         [SNI]\nBindAddress = 127.0.0.1:443\n\
         [TCPClientTunnel]\nBindAddress = :25565\nTarget = play.example.net:25565\n\
         [TCPServerTunnel]\nListenPort = 3422\nTarget = localhost:25545\n\
         [UDPProxyTunnel]\nBindAddress = 0.0.0.0:53\nTarget = [fd00::1]:53\nInactivityTimeout = 180\n\
         [UDPProxyTunnel]\nBindAddress = :53\nTarget = [::ffff:10.0.0.1]:53\nInactivityTimeout = 1\n\
         [UDPServerTunnel]\nListenPort = 53\nTarget = 127.0.0.1:5353\n\
         [STDIOTunnel]\nTarget = ssh.example.com:22\n\
         [Socks5]\nBindAddress = unix:/run/proxy.sock\n",
    );
    let all: Vec<String> = services
        .iter()
        .map(|service| match &service.kind {
            ServiceKind::Socks5 { bind, credentials } => {
                format!("socks5 {bind} {}", credentials.is_some())
            }
            ServiceKind::Http {
                bind,
                credentials,
                certificate,
            } => {
                let given = credentials.as_ref().expect("a password");
                let files = certificate.as_ref().expect("a certificate");
                let (chain, key) = (files.chain.path.display(), files.key.path.display());
                format!(
                    "http {bind} {} {} {chain} {key}",
                    given.user, *given.password
                )
            }
            ServiceKind::Sni { bind } => format!("sni {bind}"),
            ServiceKind::TcpClient { bind, target } => format!("tcp {bind} to {target}"),
            ServiceKind::TcpServer { port, target } => format!("tcp inside {port} to {target}"),
            ServiceKind::UdpClient {
                bind,
                target,
                inactivity,
            } => format!("udp {bind} to {target} {}", inactivity.as_secs()),
            ServiceKind::UdpServer {
                port,
                target,
                inactivity,
            } => format!(
                "udp inside {port} to {target} {}",
                inactivity.as_secs() > 1 << 31
            ),
            ServiceKind::Stdio { target } => format!("stdio to {target}"),
        })
        .collect();
    assert_eq!(
        all,
        [
            "socks5 127.0.0.1:1080 false",
            "http [::1]:8080 peter a#b;c /c.pem k.pem",
            "sni 127.0.0.1:443",
            "tcp [::]:25565 to play.example.net:25565",
            "tcp inside 3422 to localhost:25545",
            "udp 0.0.0.0:53 to [fd00::1]:53 180",
            // An address of IPv4, however it is written.
            "udp [::]:53 to 10.0.0.1:53 1",
            "udp inside 53 to 127.0.0.1:5353 true",
            "stdio to ssh.example.com:22",
            "socks5 unix:/run/proxy.sock false",
        ]
    );
    assert_eq!((services[0].line, services[1].line), (FIRST, FIRST + 2));
}

#[test]
fn each_mistake_names_line_section_key_and_what_to_write() {
    let cases = [
        (
            "[Socks5]\n",
            0,
            "[Socks5] has no BindAddress: write BindAddress = 127.0.0.1:1080",
        ),
        (
            "[Socks5]\nBindAddress = 1080\n",
            1,
            "[Socks5] BindAddress: the address is missing: write 127.0.0.1:1080",
        ),
        (
            "[Socks5]\nBindAddress = 127.0.0.1\n",
            1,
            "expected address:port",
        ),
        (
            "[Socks5]\nBindAddress = 127.0.0.1:66000\n",
            1,
            "no number from 0 to 65535",
        ),
        (
            "[Socks5]\nBindAddress = proxy.local:1080\n",
            1,
            "a name is not looked up here",
        ),
        (
            "[Socks5]\nBindAddress = fd00::1:1080\n",
            1,
            "expected address:port",
        ),
        (
            "[Socks5]\nBindAddress = unix:run/x\n",
            1,
            "the absolute path of a socket",
        ),
        (
            "[Socks5]\nBindAddres = 127.0.0.1:1\nBindAddress = 127.0.0.1:1\n",
            1,
            "[Socks5] has no key \"BindAddres\": did you mean BindAddress?",
        ),
        (
            "[Socks5]\nBindAddress = 127.0.0.1:1\nFrobnicate = 1\n",
            2,
            "expected one of BindAddress, Username, Password",
        ),
        (
            "[Socks5]\nBindAddress = 127.0.0.1:1\nOpen = yes\n",
            2,
            "Open stands in a comment",
        ),
        (
            "[Socks5]\nBindAddress = 127.0.0.1:1\nUsername = a\n",
            2,
            "[Socks5] has a Username and no Password",
        ),
        (
            "[Socks5]\nBindAddress = 127.0.0.1:1\nPassword = a\n",
            2,
            "[Socks5] has a Password and no Username",
        ),
        (
            "[http]\nBindAddress = 127.0.0.1:1\nUsername = a:b\nPassword = c\n",
            2,
            "[http] Username: a name has no ':'",
        ),
        (
            "[http]\nBindAddress = 127.0.0.1:1\nCertFile = /x\n",
            2,
            "[http] CertFile needs a KeyFile",
        ),
        (
            "[http]\nBindAddress = 127.0.0.1:1\nCertFile =\nKeyFile = /x\n",
            3,
            "[http] KeyFile needs a CertFile",
        ),
        (
            "[http]\nBindAddress = 127.0.0.1:1\nBindAddress = 127.0.0.1:2\n",
            2,
            "[http] BindAddress stands on line 10 as well",
        ),
        (
            "[Sock5]\nBindAddress = 127.0.0.1:1\n",
            0,
            "there is no section [Sock5]: did you mean [Socks5]?",
        ),
        (
            "[Gopher]\nBindAddress = 127.0.0.1:1\n",
            0,
            "there is no section [Gopher]: expected one of Interface",
        ),
        (
            "[TCPClientTunnel]\nBindAddress = 127.0.0.1:1\nTarget = host\n",
            2,
            "[TCPClientTunnel] Target: expected host:port",
        ),
        (
            "[TCPClientTunnel]\nBindAddress = 127.0.0.1:1\nTarget = host:0\n",
            2,
            "no number from 1 to 65535",
        ),
        (
            "[TCPClientTunnel]\nBindAddress = 127.0.0.1:1\nTarget = 10.0.0.300:1\n",
            2,
            "expected host:port",
        ),
        (
            "[TCPClientTunnel]\nBindAddress = 127.0.0.1:1\nTarget = [fe80::1%eth0]:1\n",
            2,
            "has no scope",
        ),
        (
            "[TCPServerTunnel]\nListenPort = 0\nTarget = a:1\n",
            1,
            "[TCPServerTunnel] ListenPort: expected a port from 1 to 65535",
        ),
        (
            "[UDPProxyTunnel]\nBindAddress = unix:/x\nTarget = a:1\n",
            1,
            "[UDPProxyTunnel] BindAddress: expected address:port",
        ),
        (
            "[UDPProxyTunnel]\nBindAddress = :1\nTarget = a:1\nInactivityTimeout = 1m\n",
            3,
            "expected seconds, or 0 for never",
        ),
        (
            "[Resolve]\nResolveStrategy = both\n",
            1,
            "[Resolve] ResolveStrategy: expected auto, ipv4 or ipv6",
        ),
        (
            "[Resolve]\nResolveStrategy = auto\n[Resolve]\nResolveStrategy = ipv4\n",
            2,
            "a second [Resolve]",
        ),
        (
            "[STDIOTunnel]\nTarget = a:1\n[STDIOTunnel]\nTarget = a:2\n",
            2,
            "standard input and output: the section on line 9",
        ),
        (
            "[SNI]\nBindAddress = 127.0.0.1:1\n[http]\nBindAddress = localhost:1\n",
            2,
            "BindAddress: the section on line 9 has the same",
        ),
        (
            "[SNI]\nBindAddress\n",
            1,
            "expected Key = value, got \"BindAddress\"",
        ),
        (
            "[SNI]\nBindAddress = \"\"\"127.0.0.1:1\n",
            1,
            "[SNI] BindAddress: the quotes do not end in this line",
        ),
        (
            "[SNI]\nBindAddress = 127.0.0.1\\\n",
            1,
            "[SNI] BindAddress: the '\\' at the end",
        ),
        (
            "[SNI]\nBindAddress = %(there)s\n",
            1,
            "[SNI] BindAddress: %(name)s would be replaced",
        ),
        ("[SNI] x\n", 0, "expected [Section]"),
    ];
    for (sections, line, expected) in cases {
        let found = errors(&with(sections));
        let place = format!("file:{}: ", FIRST + line);
        let is_it = |error: &String| error.starts_with(&place) && error.contains(expected);
        assert!(
            found.iter().any(is_it),
            "{sections}: {expected}\n{found:#?}"
        );
    }
}

#[test]
fn mistakes_of_the_tunnel_have_section_and_line() {
    let base = with("");
    let cases = [
        (KEY, "", "file:2: [Interface] PrivateKey has no value"),
        (KEY, "x", "file:2: [Interface] PrivateKey: this is no key"),
        (
            KEY,
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "file:2: [Interface] PrivateKey: ",
        ),
        (
            "PrivateKey",
            "# PrivateKey",
            "file:1: [Interface] has no PrivateKey",
        ),
        (
            "Address = 10.0.0.2/32",
            "",
            "file:1: [Interface] has no Address",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/33",
            "file:3: [Interface] Address: expected",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/32\nMTU = 100",
            "file:4: [Interface] MTU: expected bytes from 576 to 65455, got 100",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/32\nDNS = fe80::1%eth0",
            "file:4: [Interface] DNS: fe80::1%eth0 has a scope",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/32\nCheckAlive = x",
            "file:4: [Interface] CheckAlive: expected addresses",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/32\nCheckAliveInterval = 5",
            "file:4: [Interface] CheckAliveInterval says",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/32\nCheckAlive = 10.0.0.1\nCheckAliveInterval = 0",
            "file:5: [Interface] CheckAliveInterval: expected seconds from 1",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/32\nCheckAliv = 10.0.0.1",
            "file:4: [Interface] has no key \"CheckAliv\": did you mean CheckAlive?",
        ),
        (
            "10.0.0.2/32",
            "10.0.0.2/32\nAdress = 10.0.0.1",
            "did you mean Address?",
        ),
        (
            "192.0.2.1:51820",
            "192.0.2.1",
            "file:7: [Peer] Endpoint: expected",
        ),
        (ONE, "x", "file:6: [Peer] PublicKey: this is no key"),
        (
            ONE,
            "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=",
            "file:5: [Peer] PublicKey is the one of this tunnel itself",
        ),
        (
            "[Interface]",
            "",
            "stands before the first section: expected WGConfig there",
        ),
    ];
    for (old, new, expected) in cases {
        let found = errors(&base.replacen(old, new, 1));
        assert!(
            found.iter().any(|error| error.contains(expected)),
            "{expected}\n{found:#?}"
        );
    }
    let (interface, _) = base.split_once("[Peer]").expect("a peer");
    assert!(error(interface).starts_with("file:1: there is no [Peer] section"));
    let twice = format!("{base}\n[Peer]\nPublicKey = {ONE}\n");
    let expected =
        "file:10: [Peer] PublicKey: the same peer stands on line 5: make one section of both";
    assert_eq!(error(&twice), expected);
    let secret = base.replace("Endpoint", &format!("PresharedKey = {ONE}\nEndpoint"));
    assert!(error(&secret).contains("PublicKey is the PresharedKey"));
    assert!(error("[Socks5]\nBindAddress = :1\n# Open = yes").contains("there is no [Interface]"));
    assert!(error("{}").contains("this is JSON"));
}

#[test]
fn all_mistakes_of_a_file_are_told_at_once_and_in_order() {
    let text = with("[Socks5]\nBind = x\n[http]\nBindAddress = 1\n").replace(ONE, "x");
    let lines: Vec<String> = errors(&text)
        .iter()
        .filter_map(|error| error.split(':').nth(1).map(str::to_owned))
        .collect();
    assert_eq!(lines, ["6", "9", "10", "12"]);
}

#[test]
fn a_proxy_to_anywhere_is_for_this_host_without_a_password() {
    for section in ["Socks5", "http", "SNI"] {
        for bind in [":1080", "0.0.0.0:1080", "[::]:1080", "192.0.2.1:1080"] {
            let open = with(&format!("[{section}]\nBindAddress = {bind}\n"));
            let error = error(&open);
            let begin = format!("file:10: [{section}] BindAddress: without a password");
            assert!(error.starts_with(&begin), "{error}");
            assert!(error.contains("# Open = yes"), "{error}");
            for comment in ["# Open = yes", "#open=YES # all of us"] {
                good(&format!("{open}{comment}\n"));
                good(&open.replace(bind, &format!("{bind} {comment}")));
            }
            for comment in [
                "# Open = no",
                "## Open = yes",
                "# Open = perhaps",
                "; Open = yes",
            ] {
                assert_eq!(errors(&format!("{open}{comment}\n")).len(), 1, "{comment}");
            }
        }
        for bind in [
            "127.0.0.1:1",
            "127.8.8.8:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
            "localhost:1",
            "unix:/a",
        ] {
            good(&with(&format!("[{section}]\nBindAddress = {bind}\n")));
        }
    }
    let password = "BindAddress = :1\nUsername = a\nPassword = b\n";
    good(&with(&format!(
        "[Socks5]\n{password}[http]\n{}",
        password.replace(":1", ":2")
    )));
    // It counts for its own section alone.
    let second = "[Socks5]\nBindAddress = :1\n# Open = yes\n[http]\nBindAddress = :2\n";
    assert!(error(&with(second)).contains("[http]"));
    // Those who connect do not choose where they get to.
    good(&with("[TCPClientTunnel]\nBindAddress = :1\nTarget = a:1\n"));
}

#[test]
fn values_come_from_the_environment() {
    let variables = HashMap::from([
        ("WG_KEY", KEY),
        ("PORT", "127.0.0.1:1080"),
        ("SECRET", "s3cret\n"),
    ]);
    let environment = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    let text = with("[Socks5]\nBindAddress = $PORT\nUsername = $$PORT\nPassword = $SECRET\n");
    let text = text.replace(KEY, "$WG_KEY");
    let read = ProxyConfig::parse(&text, "file", &environment, &no_file);
    let config = read.unwrap_or_else(|errors| panic!("{errors}")).config;
    assert_eq!(*config.tunnel.private_key.to_base64(), KEY);
    let ServiceKind::Socks5 { bind, credentials } = &config.services[0].kind else {
        panic!("{config:?}");
    };
    let given = credentials.as_ref().expect("a password");
    assert_eq!(bind.to_string(), "127.0.0.1:1080");
    assert_eq!(
        (given.user.as_str(), given.password.as_str()),
        ("$PORT", "s3cret")
    );
    let missing = errors(&text);
    let expected = "file:10: [Socks5] BindAddress: the environment has no variable \"PORT\": set it, or write $$ \
                    where a $ is meant";
    assert!(missing.contains(&expected.to_owned()), "{missing:#?}");
    assert!(
        !missing.join("\n").contains("SECRET"),
        "it may be a password"
    );
    // That there is no key at all is not said beside.
    assert_eq!(missing.len(), 3, "{missing:#?}");
    // A variable is one value: it does not add lines.
    let lines = |_: &str| Some(format!("{KEY}\nListenPort = 1"));
    let error = ProxyConfig::parse(&text, "file", &lines, &no_file).expect_err("two lines");
    assert!(error.to_string().contains("more than one line"), "{error}");
}

#[test]
fn the_tunnel_may_stand_in_a_file_of_wg_quick() {
    let services = "WGConfig = /etc/wireguard/wg0.conf\n[Socks5]\nBindAddress = 127.0.0.1:1080\n";
    let tunnel = with("").replace(
        "[Peer]",
        "DNS = 10.0.0.1, corp.example\nPostUp = iptables -A x; echo `date` \\\n\
         Table = off\n# bob\n[Peer]",
    );
    let load = |text: &str| {
        let text = text.to_owned();
        move |path: &Path| {
            assert_eq!(path, Path::new("/etc/wireguard/wg0.conf"));
            Ok(Zeroizing::new(text.clone()))
        }
    };
    let read = ProxyConfig::parse(services, "file", &nothing, &load(&tunnel));
    let read = read.unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(read.config.services.len(), 1);
    assert_eq!(read.config.tunnel.peers[0].name.as_deref(), Some("bob"));
    let passed: Vec<String> = read.passed_over.iter().map(Remark::to_string).collect();
    assert_eq!(passed.len(), 3, "{passed:#?}");
    assert!(passed[0].starts_with("/etc/wireguard/wg0.conf:5: DNS has search domains"));
    assert!(passed[1].starts_with("/etc/wireguard/wg0.conf:6: PostUp is passed over"));
    assert!(passed[2].starts_with("/etc/wireguard/wg0.conf:7: Table is passed over"));
    // Mistakes of both files are told.
    let wrong = format!("{services}[SNI]\n");
    let errors = ProxyConfig::parse(&wrong, "file", &nothing, &load(&tunnel.replace(ONE, "x")));
    let errors = errors.expect_err("mistakes").to_string();
    assert!(
        errors.starts_with("file:4: [SNI] has no BindAddress"),
        "{errors}"
    );
    assert!(
        errors.contains("\n/etc/wireguard/wg0.conf:10: [Peer] PublicKey: this is no key"),
        "{errors}"
    );
    let missing = error(services);
    assert!(
        missing.starts_with("file:1: WGConfig: /etc/wireguard/wg0.conf cannot be read"),
        "{missing}"
    );
    let both = format!("{services}{}", with(""));
    let read = ProxyConfig::parse(&both, "file", &nothing, &load(&tunnel));
    let read = read.unwrap_or_else(|errors| panic!("{errors}"));
    assert!(read.passed_over.iter().any(|it| {
        it.to_string()
            .starts_with("file:4: [Interface] is passed over")
    }));
}

#[test]
fn a_file_of_wg_quick_alone_is_a_tunnel_without_services() {
    let config = good(&with("")).config;
    assert!(config.services.is_empty());
    assert_eq!(config.tunnel.peers.len(), 1);
    assert!(!is_proxy_file(&with("")));
    for own in [
        "[socks5]",
        "[Sock5]",
        "[ Resolve ]",
        "[UDPServerTunnel] # x",
    ] {
        assert!(is_proxy_file(&with(own)), "{own}");
    }
    // Of wg-quick, misspelt.
    assert!(!is_proxy_file(&with("[Pear]")));
    assert!(is_proxy_file("wgconfig = a\n"));
    assert!(is_proxy_file(&with("").replace("Address", "CheckAlive")));
}

#[test]
fn a_block_goes_to_the_last_peer_that_has_it() {
    let second = format!("[Peer]\nPublicKey = {TWO}\n");
    let read = good(&with(&second));
    let peers = &read.config.tunnel.peers;
    assert_eq!(
        (peers[0].allowed_ips.len(), peers[1].allowed_ips.len()),
        (0, 2)
    );
    let warnings: Vec<String> = read.warnings.iter().map(Remark::to_string).collect();
    assert!(
        warnings[0].starts_with("file:9: [Peer] has no AllowedIPs, so that 0.0.0.0/0 moves"),
        "{warnings:#?}"
    );
}

#[test]
fn no_error_shows_a_secret() {
    let secrets = [KEY, TWO, "hunter2#x", "$Hunter2", "%(Hunter2)s", "Hunter2"];
    for secret in secrets {
        for wrong in [
            format!("[Socks5]\nBindAddress = 127.0.0.1:1\nPassword = {secret}\n"),
            format!(
                "[Socks5]\nBindAddress = 127.0.0.1:1\nUsername = a\nPassword = {secret}\nPassword = b\n"
            ),
            format!("[Socks5]\nPassword = {secret}\\\n"),
            format!("[Socks5]\nPassword = `{secret}\n"),
        ] {
            let text = errors(&with(&wrong)).join("\n");
            assert!(
                !text.to_lowercase().contains("hunter2")
                    && !text.contains(&secret[..20.min(secret.len())]),
                "{text}"
            );
        }
    }
    for key in [KEY, TWO] {
        for wrong in [
            format!("[Socks5]\nBindAddress = {key}\n"),
            format!("[{key}]\n"),
            format!("[Socks5]\n{key}\n"),
            format!("[Socks5]\n{key} = 1\n"),
            format!("[TCPClientTunnel]\nBindAddress = :1\nTarget = {key}:1\n"),
            format!("[Peer]\nPublicKey = {key}x\n"),
        ] {
            let text = errors(&with(&wrong)).join("\n");
            assert!(!text.contains(&key[..16]), "{text}");
        }
    }
    let shown = format!(
        "{:?}",
        services("[http]\nBindAddress = :1\nUsername = a\nPassword = hunter2\n")
    );
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn values_have_quotes_and_comments_as_in_wireproxy() {
    let cases = [
        ("a # b", "a", false),
        ("a;b", "a", true),
        ("a#b", "a", true),
        ("\"a\" # b", "a", false),
        ("'a'", "a", false),
        ("'a'b'", "'a'b'", false),
        // The quotes keep no sign of a comment.
        ("\"a # b\"", "\"a", true),
        ("'a ; b'", "'a", true),
        ("`a # 'b'` # c", "a # 'b'", false),
        ("\"\"\"a;b\"\"\"", "a;b", false),
        ("", "", false),
        ("# a", "", false),
    ];
    for (text, expected, is_cut) in cases {
        let value = ini::value(text).expect(text);
        assert_eq!((value.text, value.is_cut), (expected, is_cut), "{text}");
    }
    let cut = with("[http]\nBindAddress = :1\nUsername = a\nPassword = b#c\n");
    let warnings = good(&cut).warnings;
    assert!(
        warnings[0]
            .to_string()
            .starts_with("file:12: [http] Password: what stands behind '#'")
    );
}

#[test]
fn a_file_is_read_and_everybody_may_not() {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("adit-proxy-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let path = dir.join("proxy.conf");
    std::fs::write(&path, with("[SNI]\nBindAddress = 127.0.0.1:0\n")).expect("a file");
    let read = |mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("a mode");
        ProxyConfig::read(&path, &nothing).map(|read| read.warnings)
    };
    let (closed, open) = (read(0o600), read(0o644));
    let missing = ProxyConfig::read(&dir.join("none"), &nothing).map(|_| ());
    std::fs::remove_dir_all(&dir).expect("removal");
    assert_eq!(closed, Ok(Vec::new()));
    assert!(open.expect("a file")[0].text.contains("chmod 600"));
    assert!(
        missing
            .expect_err("no file")
            .to_string()
            .contains("none: No such file")
    );
}
