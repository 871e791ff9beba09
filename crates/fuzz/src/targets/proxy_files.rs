//! Files of proxies: wireproxy's sections, and the file that `WGConfig` names, behind a zero.

use std::io;
use std::path::Path;

use adit_proxy::config::{
    Bind, Credentials, ProxyConfig, ProxyService, Resolve, ServiceKind, is_proxy_file,
};
use zeroize::Zeroizing;

/// What the environment has under each name: no remark shows it, but as the path of a file.
const SECRET: &str = "S3cretOfTheEnvironment";

pub(crate) fn run(input: &[u8]) {
    // As files that are not UTF-8 are read.
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().copied().map(char::from).collect(),
    };
    let zero = input.iter().position(|byte| *byte == 0);
    let (main, beside) = input.split_at(zero.unwrap_or(input.len()));
    let (main, beside) = (text(main), text(beside.get(1..).unwrap_or_default()));
    let load = |_: &Path| match zero {
        Some(_) => Ok(Zeroizing::new(beside.clone())),
        None => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    let environment = |_: &str| Some(SECRET.to_owned());
    let is_path = main.to_ascii_lowercase().contains("wgconfig") && main.contains('$');
    let read = match ProxyConfig::parse(&main, "file", &environment, &load) {
        Ok(read) => read,
        Err(errors) => {
            assert!(!errors.0.is_empty());
            let lines = main.lines().count().max(beside.lines().count());
            assert!(errors.0.iter().all(|error| error.line <= lines));
            assert!(is_path || !errors.to_string().contains(SECRET));
            return;
        }
    };
    let shown = format!(
        "{:?} {:?} {:?}",
        read.warnings, read.passed_over, read.config.tunnel
    );
    assert!(is_path || !shown.contains(SECRET));
    let config = read.config;
    // 1. Nobody gets anywhere from elsewhere without a password, unless the file says so.
    let says_open = main.to_ascii_lowercase().contains("open");
    let is_open = |service: &ProxyService| match &service.kind {
        ServiceKind::Socks5 { bind, credentials }
        | ServiceKind::Http {
            bind, credentials, ..
        } => credentials.is_none() && !bind.is_local(),
        ServiceKind::Sni { bind } => !bind.is_local(),
        _ => false,
    };
    assert!(says_open || !config.services.iter().any(is_open));
    assert!(config.services.is_empty() || is_proxy_file(&main));
    // 2. A tunnel can be so.
    assert!(!config.tunnel.addresses.is_empty() && !config.tunnel.peers.is_empty());
    let mut tunnel = adit::Config::new(config.tunnel.private_key.clone());
    for peer in &config.tunnel.peers {
        let blocks = peer.allowed_ips.iter().copied();
        let peer = blocks.fold(adit::Peer::new(peer.public_key), adit::Peer::allowed_ip);
        tunnel = tunnel.peer(peer);
    }
    assert_eq!(tunnel.check(), Ok(()));
    // 3. What it says, written out, says the same.
    let written = write(&config);
    let again = ProxyConfig::parse(&written, "again", &|_| None, &load);
    let again = again
        .unwrap_or_else(|errors| panic!("{errors}\n{written}"))
        .config;
    assert_eq!(write(&again), written);
}

/// A file that says so, without quotes, names of peers and the environment.
fn write(config: &ProxyConfig) -> String {
    let tunnel = &config.tunnel;
    let mut text = String::from("[Interface]\n");
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        text += &format!("{key} = {value}\n");
    };
    line("PrivateKey", &*tunnel.private_key.to_base64());
    line("ListenPort", &tunnel.listen_port);
    for address in &tunnel.addresses {
        line("Address", address);
    }
    for server in &tunnel.dns {
        line("DNS", server);
    }
    if let Some(mtu) = tunnel.mtu {
        line("MTU", &mtu);
    }
    for address in &tunnel.check_alive {
        line("CheckAlive", address);
    }
    if !tunnel.check_alive.is_empty() {
        line("CheckAliveInterval", &tunnel.check_alive_interval.as_secs());
    }
    // A block is behind one peer, and one without any would have all: none of these is written.
    for peer in tunnel
        .peers
        .iter()
        .filter(|peer| !peer.allowed_ips.is_empty())
    {
        line("[Peer]\nPublicKey", &peer.public_key);
        if let Some(endpoint) = &peer.endpoint {
            line("Endpoint", endpoint);
        }
        if let Some(keepalive) = peer.keepalive {
            line("PersistentKeepalive", &keepalive.as_secs());
        }
        for block in &peer.allowed_ips {
            line("AllowedIPs", block);
        }
    }
    let strategy = match config.resolve {
        Resolve::Auto => "auto",
        Resolve::Ipv4 => "ipv4",
        Resolve::Ipv6 => "ipv6",
    };
    line("[Resolve]\nResolveStrategy", &strategy);
    for service in &config.services {
        text += &write_service(&service.kind);
    }
    text
}

fn write_service(kind: &ServiceKind) -> String {
    let given = |bind: &Bind, credentials: &Option<Credentials>| {
        let mut text = format!("BindAddress = `{bind}`\n");
        match credentials {
            Some(Credentials { user, password }) => {
                let value = |value: &str| match value.strip_prefix('$') {
                    Some(_) => format!("$${}", &value[1..]),
                    None => value.to_owned(),
                };
                let (user, password) = (value(user), value(password));
                text += &format!("Username = \"\"\"{user}\"\"\"\nPassword = `{password}`\n");
            }
            None => text += "# Open = yes\n",
        }
        text
    };
    match kind {
        ServiceKind::Socks5 { bind, credentials } => {
            format!("[Socks5]\n{}", given(bind, credentials))
        }
        ServiceKind::Http {
            bind,
            credentials,
            certificate,
        } => {
            let files = certificate.iter().map(|it| {
                let (chain, key) = (it.chain.path.display(), it.key.path.display());
                format!("CertFile = \"\"\"{chain}\"\"\"\nKeyFile = \"\"\"{key}\"\"\"\n")
            });
            let files: String = files.collect();
            format!("[http]\n{}{files}", given(bind, credentials))
        }
        ServiceKind::Sni { bind } => format!("[SNI]\n{}", given(bind, &None)),
        ServiceKind::TcpClient { bind, target } => {
            format!("[TCPClientTunnel]\nBindAddress = `{bind}`\nTarget = {target}\n")
        }
        ServiceKind::TcpServer { port, target } => {
            format!("[TCPServerTunnel]\nListenPort = {port}\nTarget = {target}\n")
        }
        ServiceKind::UdpClient {
            bind,
            target,
            inactivity,
        } => format!(
            "[UDPProxyTunnel]\nBindAddress = {bind}\nTarget = {target}\nInactivityTimeout = {}\n",
            inactivity.as_secs()
        ),
        ServiceKind::UdpServer {
            port,
            target,
            inactivity,
        } => format!(
            "[UDPServerTunnel]\nListenPort = {port}\nTarget = {target}\nInactivityTimeout = {}\n",
            inactivity.as_secs()
        ),
        ServiceKind::Stdio { target } => format!("[STDIOTunnel]\nTarget = {target}\n"),
    }
}
