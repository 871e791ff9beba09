//! What a proxy says of itself when it begins: a line for each thing that clients come to.

use adit_ctl::text::printable;
use adit_proxy::config::{Bind, ProxyConfig, ServiceKind};

use crate::failure::say;

pub(super) fn say_all(
    name: &str,
    config: &ProxyConfig,
    info: Option<&Bind>,
    why: &str,
    is_known: bool,
) {
    for service in &config.services {
        say!("adit: {name}: {}", of_service(&service.kind));
    }
    if let Some(info) = info {
        say!("adit: {name}: /metrics and /readyz at {info}");
    }
    let next = match is_known {
        true => format!("`adit show {name}` and `adit why {name}` know it, Ctrl-C ends it"),
        false => "Ctrl-C ends it".to_owned(),
    };
    say!("adit: {name}: stack {why}; {next}");
}

fn of_service(kind: &ServiceKind) -> String {
    let text = match kind {
        ServiceKind::Socks5 { bind, credentials } => {
            let password = password(credentials.is_some());
            let curl = match bind {
                Bind::Port(address) => format!(": curl -x socks5h://{address} URL"),
                Bind::Unix(_) => String::new(),
            };
            format!("SOCKS5 at {bind}{password}{curl}")
        }
        ServiceKind::Http {
            bind,
            credentials,
            certificate,
        } => {
            let password = password(credentials.is_some());
            let (scheme, tls) = match certificate {
                Some(_) => ("https", ", over TLS"),
                None => ("http", ""),
            };
            let curl = match bind {
                Bind::Port(address) => format!(": curl -x {scheme}://{address} URL"),
                Bind::Unix(_) => String::new(),
            };
            format!("HTTP proxy at {bind}{tls}{password}{curl}")
        }
        ServiceKind::Sni { bind } => format!("TLS by its server name at {bind}"),
        ServiceKind::TcpClient { bind, target } => {
            format!("TCP from {bind} to {target} in the tunnel")
        }
        ServiceKind::TcpServer { port, target } => {
            format!("TCP from port {port} in the tunnel to {target}")
        }
        ServiceKind::UdpClient { bind, target, .. } => {
            format!("UDP from {bind} to {target} in the tunnel")
        }
        ServiceKind::UdpServer { port, target, .. } => {
            format!("UDP from port {port} in the tunnel to {target}")
        }
        ServiceKind::Stdio { target } => {
            format!("standard input and output to {target} in the tunnel")
        }
    };
    printable(&text).into_owned()
}

fn password(is_asked: bool) -> &'static str {
    match is_asked {
        true => ", with a password",
        false => "",
    }
}
