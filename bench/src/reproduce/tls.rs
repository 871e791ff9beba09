//! TLS 1.3 through a pair of proxies: one beside the client, one beside the server.
//!
//! ```text
//!        host a                                              host b
//!  client → 127.0.0.1:15201 proxy ──── TLS ──── proxy 10.76.0.2:25201 → 10.76.0.2:5201 server
//! ```

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use adit_testbed::process::{self, Process};
use adit_testbed::{Host, interrupt, proc};

use crate::daemon::READY;
use crate::sandbox::Failure;
use crate::{install, tools};

/// A proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Stunnel,
    Haproxy,
    /// A process of it has one port.
    Ghostunnel,
}

/// A cipher of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cipher {
    AesGcm,
    ChaCha20,
}

/// A pair of proxies with one cipher.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proxies {
    pub(super) name: &'static str,
    pub(super) program: Program,
    pub(super) cipher: Cipher,
}

pub(super) const ALL: [Proxies; 6] = [
    Proxies {
        name: "stunnel-aes",
        program: Program::Stunnel,
        cipher: Cipher::AesGcm,
    },
    Proxies {
        name: "stunnel-chacha",
        program: Program::Stunnel,
        cipher: Cipher::ChaCha20,
    },
    Proxies {
        name: "haproxy-aes",
        program: Program::Haproxy,
        cipher: Cipher::AesGcm,
    },
    Proxies {
        name: "haproxy-chacha",
        program: Program::Haproxy,
        cipher: Cipher::ChaCha20,
    },
    Proxies {
        name: "ghostunnel-aes",
        program: Program::Ghostunnel,
        cipher: Cipher::AesGcm,
    },
    Proxies {
        name: "ghostunnel-chacha",
        program: Program::Ghostunnel,
        cipher: Cipher::ChaCha20,
    },
];

/// What the near proxy listens at, and what the far one does, is so much above the server's port.
const NEAR: u16 = 10_000;
const FAR: u16 = 20_000;
/// Files of the proxies, in a /run that is the host's own.
const CERTIFICATE: &str = "/run/lab-cert.pem";
const BOTH: &str = "/run/lab-both.pem";
const CONFIGURATION: &str = "/run/lab-proxy.conf";

/// Where a client connects to reach `port` of the server.
pub(super) fn near(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port + NEAR)
}

/// Which end a proxy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Near,
    Far,
}

/// A key and a certificate that it signed for this address, both in one text, and the certificate.
pub(super) struct Identity {
    both: String,
    certificate: String,
}

impl Identity {
    /// A new one, for P-256.
    pub(super) fn new(server: IpAddr) -> Result<Self, Failure> {
        let name = format!("subjectAltName=IP:{server}");
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
                     -subj /CN=adit-lab -keyout - -out - -addext";
        let args: Vec<&str> = words.split_whitespace().chain([name.as_str()]).collect();
        let both = process::run("openssl", &args, READY)?;
        let at = both
            .find("-----BEGIN CERTIFICATE")
            .ok_or("openssl made no certificate")?;
        Ok(Self {
            certificate: both[at..].to_owned(),
            both,
        })
    }
}

impl Program {
    /// What to run.
    fn path(self) -> String {
        match self {
            Self::Stunnel => "stunnel".to_owned(),
            Self::Haproxy => "haproxy".to_owned(),
            // Where `scripts/lab-tools` put it.
            Self::Ghostunnel => {
                let path = install::peers_dir().join("bin/ghostunnel");
                path.to_string_lossy().into_owned()
            }
        }
    }

    /// Its version; an error if it is not there.
    pub(super) fn version(self) -> Result<String, Failure> {
        let path = self.path();
        let (flag, package) = match self {
            Self::Stunnel => ("-version", "stunnel4"),
            Self::Haproxy => ("-v", "haproxy"),
            Self::Ghostunnel if Path::new(&path).is_file() => {
                return Ok(format!(
                    "ghostunnel, {}",
                    tools::version(&path, "--version")
                ));
            }
            Self::Ghostunnel => {
                return Err(format!("{path} is missing: run scripts/lab-tools").into());
            }
        };
        tools::require(&[(&path, flag, package)])?;
        Ok(tools::version(&path, flag))
    }
}

impl Cipher {
    const fn suite(self) -> &'static str {
        match self {
            Self::AesGcm => "TLS_AES_128_GCM_SHA256",
            Self::ChaCha20 => "TLS_CHACHA20_POLY1305_SHA256",
        }
    }
}

impl Proxies {
    /// Starts the proxies of both ends for these ports of the server, and waits until they listen.
    pub(super) fn start(
        self,
        [client, server]: [&Host; 2],
        address: IpAddr,
        ports: &[u16],
        identity: &Identity,
    ) -> Result<Vec<Process>, Failure> {
        let program = self.program.path();
        let mut all = Vec::new();
        // A process of ghostunnel for each port, or one of the others for all.
        let each = match self.program {
            Program::Ghostunnel => 1,
            _ => ports.len(),
        };
        for (host, end, above) in [(server, End::Far, FAR), (client, End::Near, NEAR)] {
            let (both, certificate) = (identity.both.clone(), identity.certificate.clone());
            host.run(move || {
                std::fs::write(CERTIFICATE, certificate)?;
                private(BOTH, &both)
            })?;
            for ports in ports.chunks(each) {
                let (arguments, file) = self.arguments(end, address, ports);
                host.run(move || std::fs::write(CONFIGURATION, file))?;
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let mut command = process::command(&program, &arguments);
                if self.cipher == Cipher::ChaCha20 {
                    // Go lets nobody choose the cipher of TLS 1.3: without AES in the processor it is this.
                    command.env("GODEBUG", "cpu.aes=off");
                }
                let mut process = host.spawn(command)?;
                for port in ports {
                    listens(host, port + above, &mut process)?;
                }
                all.push(process);
            }
        }
        Ok(all)
    }

    /// Those of the program, and its configuration if it has a file for that.
    fn arguments(self, end: End, server: IpAddr, ports: &[u16]) -> (Vec<String>, String) {
        let (words, file) = match self.program {
            Program::Stunnel => (CONFIGURATION.to_owned(), self.stunnel(end, server, ports)),
            // -db: in the foreground.
            Program::Haproxy => (
                format!("-db -f {CONFIGURATION}"),
                self.haproxy(end, server, ports),
            ),
            Program::Ghostunnel => (ghostunnel(end, server, ports[0]), String::new()),
        };
        (words.split_whitespace().map(str::to_owned).collect(), file)
    }

    fn stunnel(self, end: End, server: IpAddr, ports: &[u16]) -> String {
        let suite = self.cipher.suite();
        let mut text = format!(
            "foreground = yes\npid =\ndebug = err\nsslVersion = TLSv1.3\nciphersuites = {suite}\n"
        );
        text += &match end {
            End::Near => format!("client = yes\nCAfile = {CERTIFICATE}\nverifyPeer = yes\n"),
            End::Far => format!("cert = {BOTH}\n"),
        };
        for &port in ports {
            let (accept, connect) = listen_and_connect(end, server, port);
            let _ = write!(text, "[p{port}]\naccept = {accept}\nconnect = {connect}\n");
        }
        text
    }

    fn haproxy(self, end: End, server: IpAddr, ports: &[u16]) -> String {
        let suite = self.cipher.suite();
        let tls = format!("ssl-min-ver TLSv1.3 ciphersuites {suite}");
        let [from, to] = match end {
            End::Near => [
                String::new(),
                format!(" ssl verify required ca-file {CERTIFICATE} {tls}"),
            ],
            End::Far => [format!(" ssl crt {BOTH} {tls}"), String::new()],
        };
        let mut text = "global\n  maxconn 4096\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
                        timeout client 60s\n  timeout server 60s\n"
            .to_owned();
        for &port in ports {
            let (accept, connect) = listen_and_connect(end, server, port);
            let _ = write!(
                text,
                "listen p{port}\n  bind {accept}{from}\n  server next {connect}{to}\n"
            );
        }
        text
    }
}

fn ghostunnel(end: End, server: IpAddr, port: u16) -> String {
    let (listen, target) = listen_and_connect(end, server, port);
    let of_end = match end {
        End::Near => format!("client --cacert {CERTIFICATE}"),
        End::Far => format!("server --unsafe-target --keystore {BOTH}"),
    };
    format!("{of_end} --listen {listen} --target {target} --disable-authentication --quiet all")
}

fn listen_and_connect(end: End, server: IpAddr, port: u16) -> (SocketAddr, SocketAddr) {
    let far = SocketAddr::new(server, port + FAR);
    match end {
        End::Near => (near(port), far),
        End::Far => (far, SocketAddr::new(server, port)),
    }
}

/// Writes a file that only its owner reads.
fn private(path: &str, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = Path::new(path);
    let mut options = std::fs::File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

/// Waits until a host has a listener at a port, as long as the process lives that is to be it. No
/// connection is made: a proxy would hand it on to a server that serves one client.
pub(super) fn listens(host: &Host, port: u16, who: &mut Process) -> Result<(), Failure> {
    let deadline = Instant::now() + READY;
    loop {
        interrupt::check()?;
        if host.run(move || proc::has_tcp_listener(port))? {
            return Ok(());
        }
        if !who.is_alive() {
            return Err(format!("what is to listen at port {port} has ended").into());
        }
        if Instant::now() > deadline {
            return Err(format!("nothing listens at port {port} after {READY:?}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_near_proxy_leads_to_the_far_one_and_that_to_the_server() {
        let server = Ipv4Addr::new(10, 76, 0, 2).into();
        for proxies in ALL {
            let text = |end| {
                let (arguments, file) = proxies.arguments(end, server, &[5201]);
                arguments.join(" ") + &file
            };
            let (near, far) = (text(End::Near), text(End::Far));
            for (text, from, to) in [
                (&near, "127.0.0.1:15201", "10.76.0.2:25201"),
                (&far, "10.76.0.2:25201", "10.76.0.2:5201"),
            ] {
                assert!(text.find(from).unwrap() < text.find(to).unwrap(), "{text}");
                let chosen = text.contains(proxies.cipher.suite()) && text.contains("TLSv1.3");
                assert!(chosen || proxies.program == Program::Ghostunnel, "{text}");
            }
            assert!(!near.contains(BOTH), "the client needs no key");
        }
    }
}
