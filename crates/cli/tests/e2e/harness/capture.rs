//! What passes over a link, seen with tcpdump.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, Stdio};

use super::{Container, seconds, wait_for};

/// A running capture of one interface.
pub struct Capture {
    host: Container,
    child: Child,
    file: String,
}

/// One captured UDP datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The IP header's second byte, or IPv6's traffic class.
    pub traffic_class: u8,
    pub source: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    pub payload: Vec<u8>,
}

impl Capture {
    /// Captures all that matches `filter` on `interface`, whole frames.
    #[track_caller]
    pub fn start(host: &Container, interface: &str, filter: &str) -> Capture {
        let file = format!("/run/{interface}-{}.pcap", rand_suffix());
        let mut command = host.command("tcpdump");
        command
            .args([
                "-i",
                interface,
                "-s",
                "0",
                "-U",
                "--immediate-mode",
                "-Z",
                "root",
                "-w",
                &file,
            ])
            .args(["-B", "16384"])
            .arg(filter)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect("tcpdump starts");
        let capture = Capture {
            host: host.clone(),
            child,
            file,
        };
        // The file's header is written when the socket is open.
        wait_for("tcpdump captures", seconds(30), || {
            std::fs::metadata(capture.host.path(&capture.file)).is_ok_and(|m| m.len() >= 24)
        });
        capture
    }

    /// All bytes captured so far.
    pub fn bytes(&self) -> Vec<u8> {
        // The last datagrams may not have reached the file yet.
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::read(self.host.path(&self.file)).expect("the capture's file")
    }

    /// The UDP datagrams captured so far (Ethernet or raw IP, IPv4 without options or IPv6 without
    /// extensions).
    pub fn datagrams(&self) -> Vec<Datagram> {
        let bytes = self.bytes();
        let u32_at =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let link = match u32_at(20) {
            1 => 14,
            101 | 12 => 0,
            other => panic!("link type {other}"),
        };
        let mut at = 24;
        let mut datagrams = Vec::new();
        while at + 16 <= bytes.len() {
            let length = u32_at(at + 8) as usize;
            let Some(frame) = bytes.get(at + 16..at + 16 + length) else {
                break;
            };
            at += 16 + length;
            datagrams.extend(frame.get(link..).and_then(udp));
        }
        datagrams
    }
}

fn udp(packet: &[u8]) -> Option<Datagram> {
    let (header, class, protocol, source) = match packet.first()? >> 4 {
        4 => {
            let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let source = Ipv4Addr::from(source).into();
            (20, *packet.get(1)?, *packet.get(9)?, source)
        }
        6 => {
            let source: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            let class = packet[0] << 4 | packet.get(1)? >> 4;
            (40, class, *packet.get(6)?, Ipv6Addr::from(source).into())
        }
        _ => return None,
    };
    if protocol != 17 {
        return None;
    }
    let udp = packet.get(header..)?;
    let u16_at = |at: usize| Some(u16::from_be_bytes([*udp.get(at)?, *udp.get(at + 1)?]));
    let length = usize::from(u16_at(4)?);
    Some(Datagram {
        traffic_class: class,
        source,
        source_port: u16_at(0)?,
        destination_port: u16_at(2)?,
        payload: udp.get(8..length)?.to_vec(),
    })
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rand_suffix() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
