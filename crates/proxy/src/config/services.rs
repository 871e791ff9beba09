//! The sections of what a proxy offers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::model::{
    Bind, CertificateFiles, Credentials, NamedFile, ProxyEndpoint, ProxyService, Resolve,
    ServiceKind,
};
use super::scan::{KeyLine, Scan, SectionPart};
use super::sections::ProxySection;
use super::values;

/// Longest user name and password of SOCKS5 (RFC 1929, section 2), in bytes.
const MAX_CREDENTIAL: usize = 255;

/// What the file offers, and how names are looked up. The scan has the mistakes.
pub(super) fn services(scan: &mut Scan<'_>) -> (Vec<ProxyService>, Resolve) {
    let mut reader = ServiceReader::default();
    let parts = std::mem::take(&mut scan.parts);
    let mut services = Vec::new();
    for part in parts.iter().filter(|part| !part.section.is_of_tunnel()) {
        if part.section == ProxySection::Resolve {
            reader.resolve(part);
        } else if let Some(kind) = reader.service(part) {
            reader.check_once(part.line, &kind);
            let line = part.line;
            services.push(ProxyService { line, kind });
        }
    }
    scan.parts = parts;
    for (line, text) in reader.wrong {
        scan.error(line, text);
    }
    (
        services,
        reader.strategy.map_or(Resolve::Auto, |(_, it)| it),
    )
}

/// What one service has alone.
#[derive(PartialEq, Eq, Hash)]
enum TakenPlace {
    Port { udp: bool, address: SocketAddr },
    Path(std::path::PathBuf),
    Inner { udp: bool, port: u16 },
    Stdio,
}

#[derive(Default)]
struct ServiceReader {
    wrong: Vec<(usize, String)>,
    taken: HashMap<TakenPlace, usize>,
    strategy: Option<(usize, Resolve)>,
}

impl ServiceReader {
    fn resolve(&mut self, part: &SectionPart) {
        let Some(strategy) = self.value(part, "ResolveStrategy", "auto", values::resolve) else {
            return;
        };
        if let Some((first, _)) = self.strategy.replace((part.line, strategy)) {
            let text = format!("a second [Resolve]: keep this one, or the one on line {first}");
            self.wrong.push((part.line, text));
        }
    }

    /// What a section offers; `None` with a mistake.
    fn service(&mut self, part: &SectionPart) -> Option<ServiceKind> {
        const BIND: &str = "127.0.0.1:1080";
        const TARGET: &str = "intranet.example:80";
        let before = self.wrong.len();
        let kind = match part.section {
            ProxySection::Socks5 | ProxySection::Http => {
                if ["Username", "Password"]
                    .iter()
                    .any(|key| part.wrong.contains(key))
                {
                    return None;
                }
                let credentials = self.credentials(part);
                let certificate = self.certificate(part);
                let bind = self.value(part, "BindAddress", BIND, Bind::from_str);
                let is_wrong = self.wrong.len() != before;
                let bind = bind.filter(|_| !is_wrong)?;
                self.check_open(part, &bind, credentials.is_some());
                match part.section {
                    ProxySection::Socks5 => ServiceKind::Socks5 { bind, credentials },
                    _ => ServiceKind::Http {
                        bind,
                        credentials,
                        certificate,
                    },
                }
            }
            ProxySection::Sni => {
                let bind = self.value(part, "BindAddress", BIND, Bind::from_str)?;
                self.check_open(part, &bind, false);
                ServiceKind::Sni { bind }
            }
            ProxySection::TcpClient => {
                let bind = self.value(part, "BindAddress", BIND, Bind::from_str);
                let target = self.value(part, "Target", TARGET, ProxyEndpoint::from_str);
                ServiceKind::TcpClient {
                    bind: bind?,
                    target: target?,
                }
            }
            ProxySection::TcpServer => {
                let port = self.value(part, "ListenPort", "8080", values::inner_port);
                let target = self.value(part, "Target", "localhost:80", ProxyEndpoint::from_str);
                ServiceKind::TcpServer {
                    port: port?,
                    target: target?,
                }
            }
            ProxySection::UdpClient => {
                let bind = self.value(part, "BindAddress", "127.0.0.1:53", values::port_of_host);
                let target = self.value(part, "Target", "10.0.0.1:53", ProxyEndpoint::from_str);
                let inactivity = self.inactivity(part);
                ServiceKind::UdpClient {
                    bind: bind?,
                    target: target?,
                    inactivity: inactivity?,
                }
            }
            ProxySection::UdpServer => {
                let port = self.value(part, "ListenPort", "53", values::inner_port);
                let target = self.value(part, "Target", "127.0.0.1:53", ProxyEndpoint::from_str);
                let inactivity = self.inactivity(part);
                ServiceKind::UdpServer {
                    port: port?,
                    target: target?,
                    inactivity: inactivity?,
                }
            }
            ProxySection::Stdio => ServiceKind::Stdio {
                target: self.value(part, "Target", TARGET, ProxyEndpoint::from_str)?,
            },
            ProxySection::Interface | ProxySection::Peer | ProxySection::Resolve => return None,
        };
        (self.wrong.len() == before).then_some(kind)
    }

    /// The value of a key that has to be there; `example` shows one.
    fn value<T>(
        &mut self,
        part: &SectionPart,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let section = part.section.name();
        let (line, found) = match part.get(key).filter(|found| !found.value.is_empty()) {
            Some(found) => (found.line, read(&found.value)),
            None if part.wrong.contains(&key) => return None,
            None => {
                let missing = format!("[{section}] has no {key}: write {key} = {example}");
                self.wrong.push((part.line, missing));
                return None;
            }
        };
        found
            .map_err(|error| {
                let text = format!("[{section}] {key}: {error}");
                self.wrong.push((line, text));
            })
            .ok()
    }

    fn inactivity(&mut self, part: &SectionPart) -> Option<std::time::Duration> {
        match part.get("InactivityTimeout") {
            None => values::inactivity("0").ok(),
            Some(_) => self.value(part, "InactivityTimeout", "180", values::inactivity),
        }
    }

    /// Both files, or none.
    fn certificate(&mut self, part: &SectionPart) -> Option<CertificateFiles> {
        let given = |key| part.get(key).filter(|found| !found.value.is_empty());
        let file = |found: &KeyLine| NamedFile {
            line: found.line,
            path: found.value.as_str().into(),
        };
        let (there, missing) = match (given("CertFile"), given("KeyFile")) {
            (Some(chain), Some(key)) => {
                let (chain, key) = (file(chain), file(key));
                return Some(CertificateFiles { chain, key });
            }
            (None, None) => return None,
            (Some(chain), None) => (chain, "KeyFile, the private key of the certificate"),
            (None, Some(key)) => (key, "CertFile, the certificate of the key"),
        };
        let text = format!("[http] {} needs a {missing}: write both", there.key);
        self.wrong.push((there.line, text));
        None
    }

    fn credentials(&mut self, part: &SectionPart) -> Option<Credentials> {
        let section = part.section.name();
        let given = |key| part.get(key).filter(|found| !found.value.is_empty());
        let (user, password) = match (given("Username"), given("Password")) {
            (Some(user), Some(password)) => (user, password),
            (None, None) => return None,
            (Some(user), None) => {
                let text = format!("[{section}] has a Username and no Password: write both");
                self.wrong.push((user.line, text));
                return None;
            }
            (None, Some(password)) => {
                let text = format!(
                    "[{section}] has a Password and no Username, with which wireproxy's SOCKS5 asks for neither: write \
                     both"
                );
                self.wrong.push((password.line, text));
                return None;
            }
        };
        for given in [user, password] {
            if given.value.len() > MAX_CREDENTIAL {
                let text = format!(
                    "[{section}] {}: it has more than {MAX_CREDENTIAL} bytes, which no client can send: write a \
                     shorter one",
                    given.key
                );
                self.wrong.push((given.line, text));
            }
        }
        if part.section == ProxySection::Http && user.value.contains(':') {
            let text = "[http] Username: a name has no ':' in HTTP (RFC 7617): write one without";
            self.wrong.push((user.line, text.to_owned()));
        }
        Some(Credentials {
            user: String::clone(&user.value),
            password: Zeroizing::clone(&password.value),
        })
    }

    /// A proxy to anywhere is for this host's programs, unless there is a password or the file says otherwise.
    fn check_open(&mut self, part: &SectionPart, bind: &Bind, has_password: bool) {
        if bind.is_local() || has_password || part.is_open {
            return;
        }
        let port = match bind {
            Bind::Port(address) => address.port(),
            Bind::Unix(_) => 0,
        };
        let line = part.get("BindAddress").map_or(part.line, |it| it.line);
        let password = match part.section {
            ProxySection::Sni => "",
            _ => "write Username and Password, or ",
        };
        let text = format!(
            "[{}] BindAddress: without a password, all who reach {bind} get into the tunnel: {password}BindAddress = \
             127.0.0.1:{port} for this host alone, or the comment # Open = yes in this section if that is meant",
            part.section.name()
        );
        self.wrong.push((line, text));
    }

    /// Tells where two services want the same.
    fn check_once(&mut self, line: usize, kind: &ServiceKind) {
        let of_bind = |bind: &Bind| match bind {
            Bind::Port(address) => TakenPlace::Port {
                udp: false,
                address: *address,
            },
            Bind::Unix(path) => TakenPlace::Path(path.clone()),
        };
        let (what, taken) = match kind {
            ServiceKind::Socks5 { bind, .. }
            | ServiceKind::Http { bind, .. }
            | ServiceKind::Sni { bind }
            | ServiceKind::TcpClient { bind, .. } => ("BindAddress", of_bind(bind)),
            ServiceKind::UdpClient { bind, .. } => (
                "BindAddress",
                TakenPlace::Port {
                    udp: true,
                    address: *bind,
                },
            ),
            ServiceKind::TcpServer { port, .. } => (
                "ListenPort",
                TakenPlace::Inner {
                    udp: false,
                    port: *port,
                },
            ),
            ServiceKind::UdpServer { port, .. } => (
                "ListenPort",
                TakenPlace::Inner {
                    udp: true,
                    port: *port,
                },
            ),
            ServiceKind::Stdio { .. } => ("standard input and output", TakenPlace::Stdio),
        };
        if matches!(taken, TakenPlace::Port { address, .. } if address.port() == 0) {
            return;
        }
        if let Some(first) = self.taken.insert(taken, line) {
            let text = format!(
                "{what}: the section on line {first} has the same already, and only one can: change or remove one"
            );
            self.wrong.push((line, text));
        }
    }
}
