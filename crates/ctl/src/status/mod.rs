//! The status: the JSON of `adit show --json`, the text of `adit show`, and the socket that it
//! comes from.
//!
//! All names in the JSON are snake_case; keys are base64, counters are bytes or events, times are
//! seconds since the Unix epoch. Fields may be added under the same `schema`; their removal or a
//! change of their meaning makes it 2.

mod peer_changes;
mod peer_json;
mod peer_ref;
mod protocol;
mod render;
mod server;
mod shared;
mod told;
mod wg;

#[cfg(test)]
mod tests;

pub use events::{Change, EVENT_SCHEMA, EventJson, EventKind, Events};
pub use peer_changes::WatchedPeers;
use peer_json::NamedPeer;
pub use peer_ref::{FailureRef, PeerRef, PrintableText};
pub use protocol::{DIR, own_dir};
pub use render::{Colour, render, render_engine, render_interface};
pub use server::{Probe, StatusServer, document, fetch, fetch_in, listen, probe, probe_in};
pub use shared::Report;
pub use wg::{Field, print_field};

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use adit_proto::{Counter, PacketAccounting, packet_accounting};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Version of the JSON.
pub const SCHEMA: u32 = 1;

/// Defines the structures of the document. The manual page shows the documentation of their fields.
macro_rules! documented {
    ($(
        $(#[doc = $doc:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident {$(
            $(#[doc = $field_doc:literal])+
            $(#[serde($($serde:tt)+)])?
            pub $field:ident: $type:ty,
        )+}
    )+) => {$(
        $(#[doc = $doc])+
        $(#[derive($($derive),+)])?
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name {$(
            $(#[doc = $field_doc])+
            $(#[serde($($serde)+)])?
            pub $field: $type,
        )+}

        impl crate::text::Clean for $name {
            fn clean(&mut self) {
                $(self.$field.clean();)+
            }
        }

        impl $name {
            /// The name of every field, and its documentation.
            pub(super) const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($field_doc),+).trim_ascii()),)+];
        }
    )+};
}

mod events;

documented! {
    /// The document that `adit show --json` prints and that the status socket sends.
    pub struct StatusReport {
        /// Version of the document. Fields may be added under the same version.
        pub schema: u32,
        /// Every userspace WireGuard interface, or the one that was asked for.
        pub interfaces: Vec<InterfaceJson>,
        /// Interfaces that should be among these but could not be asked.
        #[serde(default)]
        pub errors: Vec<NoAnswer>,
    }

    /// An interface that could not be asked.
    pub struct NoAnswer {
        /// Its name.
        pub interface: String,
        /// Why, in words for people.
        pub error: String,
    }

    /// One WireGuard interface.
    #[derive(Default)]
    pub struct InterfaceJson {
        /// Its name.
        pub name: String,
        /// Its public key, in base64. Absent while it has no private key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub public_key: Option<String>,
        /// Its private key, in base64. Never on the status socket, and so never in `adit show`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub private_key: Option<String>,
        /// UDP port that it listens on; 0 while no socket is bound.
        pub listen_port: u16,
        /// Firewall mark of what it sends; 0 is none.
        pub fwmark: u32,
        /// What only Adit tells. Absent for other implementations.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub engine: Option<EngineJson>,
        /// Its peers, in the order in which they were added.
        pub peers: Vec<PeerJson>,
    }

    /// The data path of one interface.
    #[derive(Default)]
    pub struct EngineJson {
        /// Version of the program that runs the interface.
        pub version: String,
        /// Implementation of ChaCha20-Poly1305 that seals and opens packets: `avx512`, `avx2`,
        /// `portable` or `ring`.
        pub aead: String,
        /// Threads that process packets of the interface at this moment: the one that owns it, and
        /// those that help.
        pub shards: u32,
        /// Such threads of the process, at most; `adit tune` changes that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_shards: Option<u32>,
        /// The process that runs the interface.
        #[serde(default)]
        pub pid: u32,
        /// Where the device is. Absent where the kernel does not tell (before Linux 5.2).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub device: Option<DeviceJson>,
        /// What a proxy has in place of a device: `smoltcp` or `kernel`, whose TCP it is. Absent for an
        /// interface.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub stack: Option<String>,
        /// The number of this gateway among those that have the same key: `--gateway-id`. Absent without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub gateway_id: Option<u8>,
        /// When the process began to serve the interface: seconds since the Unix epoch. The
        /// counters count from then on.
        #[serde(default)]
        pub started: u64,
        /// CPU time of each thread of the process, by its name, in milliseconds. Threads serve
        /// all interfaces of the process.
        #[serde(default)]
        pub cpu_milliseconds: BTreeMap<String, u64>,
        /// Offloads, by the name of their switch: true for those in force.
        pub offloads: BTreeMap<String, bool>,
        /// Parts of the sandbox, by name: true for those that are on, as the kernel and the rights
        /// of the process allow. With `--no-sandbox` none is.
        #[serde(default)]
        pub sandbox: BTreeMap<String, bool>,
        /// Processes of the interface that have ended, and that it needs. Without `helper`, further
        /// interfaces, ports below 1024 and marks fail; `adit upgrade` has a new process go on, which
        /// starts them again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub ended: Vec<String>,
        /// Whether the devices that lead to the peers cut UDP trains in hardware; `null` when that
        /// is not known.
        pub tx_udp_segmentation: Option<bool>,
        /// What the kernel refused to the program, which makes it slower, or lose more, under load:
        /// `priority` is nice -10 for the threads that carry packets (it takes CAP_SYS_NICE or
        /// RLIMIT_NICE), `receive_buffer` and `send_buffer` are 7 MiB for each socket
        /// (CAP_NET_ADMIN, or the sysctls net.core.rmem_max and net.core.wmem_max).
        #[serde(default)]
        pub refused: Vec<String>,
        /// Packets dropped, by reason. Each dropped packet counts under one.
        pub drops: BTreeMap<String, u64>,
        /// Packets that are no drops though no peer got them, by what they are: what the kernel
        /// sends through any interface of its own accord. Each counts once, here or among the
        /// drops.
        #[serde(default)]
        pub ignored: BTreeMap<String, u64>,
        /// Packets that passed, by where. While nothing is under way, `from_tun` is `sent`, what is
        /// ignored or waits, and the outbound drops but `tun_full` and `tun_limit`; and `received` is
        /// `handshake_messages`, `keepalives`, `probe_answers`, `to_tun`, and the inbound drops but
        /// `receive_buffer_full`.
        #[serde(default)]
        pub passed: BTreeMap<String, u64>,
        /// ICMP errors that came back for what was sent, by what they say. They may be forged, and
        /// nothing follows from them.
        #[serde(default)]
        pub icmp_errors: BTreeMap<String, u64>,
        /// Handshake messages, by what came of them.
        pub handshakes: BTreeMap<String, u64>,
        /// Which threads process the interface: `auto`, `inline` or `pipeline`; `adit tune` changes
        /// that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub policy: Option<String>,
        /// Batches of frames that threads took from the TUN.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub outbound: Option<BatchesJson>,
        /// Batches of data messages that threads took from the sockets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub inbound: Option<BatchesJson>,
        /// Data messages by receive queue. An interface with several peers, whose shard has had help, has
        /// further sockets on its port: each is a receive queue, and a peer is in one. Empty while there is
        /// one receive queue.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub lanes: Vec<u64>,
        /// The work that each receive queue had lately, for a second: one for each byte of UDP payload, and
        /// 2,000 for each data message. Empty while there is one receive queue.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub lane_loads: Vec<u64>,
        /// Trains that were given to the kernel: datagrams for one peer, in one send.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sent_trains: Option<TrainsJson>,
        /// Trains that the kernel gave: datagrams from one peer, which it had merged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub received_trains: Option<TrainsJson>,
        /// What waits at this moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub waiting: Option<WaitingJson>,
    }

    /// Where a device is.
    #[derive(Default)]
    pub struct DeviceJson {
        /// Inode of its network namespace, as `readlink /proc/PID/ns/net` tells.
        pub namespace: u64,
        /// Its index there.
        pub index: u32,
    }

    /// Batches of one direction.
    #[derive(Default)]
    pub struct BatchesJson {
        /// Batches that were not empty.
        pub batches: u64,
        /// Frames or data messages in them.
        pub contents: u64,
        /// Batches that a thread took which does not own the interface.
        pub helped: u64,
    }

    /// What waits inside Adit.
    #[derive(Default)]
    pub struct WaitingJson {
        /// Handshake messages, for the control thread.
        pub handshake_messages: u64,
        /// Sealed trains, for a full socket.
        pub sealed_trains: u64,
        /// Frames, for a session.
        pub staged_frames: u64,
        /// Packets in these frames.
        #[serde(default)]
        pub staged_packets: u64,
    }

    /// Trains by how many datagrams they have.
    #[derive(Default)]
    pub struct TrainsJson {
        /// Trains of one datagram, of up to 2, 4, 8, 16, 32 and 64, and of more.
        pub counts: Vec<u64>,
        /// Datagrams in all of them.
        pub datagrams: u64,
    }

    /// One peer.
    #[derive(Default)]
    pub struct PeerJson {
        /// Its public key, in base64.
        pub public_key: String,
        /// What people call it: from a comment in the wg-quick file that `adit up` or `adit sync`
        /// read. Absent without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Whether a preshared key is set.
        pub has_preshared_key: bool,
        /// Its preshared key, in base64. Never on the status socket, and so never in `adit show`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub preshared_key: Option<String>,
        /// Address and port that it is reached at now; `null` while that is not known.
        pub endpoint: Option<String>,
        /// Blocks of addresses that are routed to it and that it may send from.
        pub allowed_ips: Vec<String>,
        /// Seconds since the Unix epoch; `null` before the first.
        pub latest_handshake: Option<u64>,
        /// Whether it is there: `unknown` before its first session, `up`, `silent` when it does not
        /// answer, `gone` when it has not for long. Absent for other implementations, as are the
        /// following fields up to the bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub state: Option<String>,
        /// When the last initiation to it was made: seconds since the Unix epoch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub last_attempt: Option<u64>,
        /// Initiations that it has not answered, since its last session or since the last handshake
        /// that was given up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unanswered: Option<u32>,
        /// The last handshake with it that failed. Absent if none has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub last_failure: Option<FailureJson>,
        /// Microseconds from our last initiation that it answered to the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub handshake_microseconds: Option<u64>,
        /// The longest packet that the path to it takes whole, as probes have found or this host
        /// knows, where that is less than the MTU of the interface. Longer ones are answered by
        /// ICMP, and leave in fragments; where these are lost, they are dropped and count as
        /// `path_mtu`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub path_mtu: Option<u16>,
        /// The receive queue in which its data arrives; absent while the interface has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lane: Option<u8>,
        /// What it may do. Absent for a peer that may do everything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub allowance: Option<AllowanceJson>,
        /// Bytes of UDP payload received and found authentic, handshakes included.
        pub transfer_rx: u64,
        /// Bytes of UDP payload sent, handshakes included.
        pub transfer_tx: u64,
        /// Packets to and from this peer that were dropped, by reason; only reasons that occurred.
        /// Each also counts among the drops of the interface.
        #[serde(default)]
        pub drops: BTreeMap<String, u64>,
        /// Seconds between two persistent keepalives; 0 is off.
        pub persistent_keepalive: u16,
    }

    /// What a peer may do, and what it has of that.
    #[derive(Default)]
    pub struct AllowanceJson {
        /// Bits a second that are sent to it at most, of what packets carry behind 40 bytes of headers,
        /// 60 of IPv6. Absent without a limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub to_peer_bits: Option<u64>,
        /// Bits a second that are taken from it at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub from_peer_bits: Option<u64>,
        /// Bytes of `transfer_rx` and `transfer_tx` together that it may have. Absent without a quota.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub quota_bytes: Option<u64>,
        /// How many of them it has had, in earlier processes, too.
        pub used_bytes: u64,
        /// Until when it has access: seconds since the Unix epoch. Absent without an end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub expires: Option<u64>,
        /// Whether it has access: `open`, `expired` or `over_quota`.
        pub access: String,
    }

    /// A handshake that failed.
    pub struct FailureJson {
        /// When: seconds since the Unix epoch.
        pub at: u64,
        /// Why: see FAILURES.
        pub reason: String,
    }
}

impl DeviceJson {
    /// Whether it is the device of this index in the network namespace of this process.
    pub fn is_here(&self, index: u32) -> bool {
        let own = std::fs::metadata("/proc/self/ns/net");
        self.index == index && own.map_or(true, |own| own.ino() == self.namespace)
    }
}

impl WaitingJson {
    /// Each number with its name.
    pub fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("handshake_messages", self.handshake_messages),
            ("sealed_trains", self.sealed_trains),
            ("staged_frames", self.staged_frames),
            ("staged_packets", self.staged_packets),
        ]
    }
}

impl EngineJson {
    /// Its packet accounting, outbound and inbound. A counter that its program does not have is 0.
    pub fn packet_accounting(&self) -> [PacketAccounting; 2] {
        let waits = self.waiting.as_ref().map_or(0, |it| it.staged_packets);
        packet_accounting(waits, |counter| {
            let counters = match counter {
                Counter::Dropped(_) => &self.drops,
                Counter::Ignored(_) => &self.ignored,
                Counter::Passed(_) => &self.passed,
            };
            counters.get(counter.name()).copied().unwrap_or_default()
        })
    }
}

impl StatusReport {
    /// A document of this version without errors.
    pub fn new(interfaces: Vec<InterfaceJson>) -> Self {
        Self {
            schema: SCHEMA,
            interfaces,
            errors: Vec::new(),
        }
    }
}

/// Every field of an event, as a path with `[]` for the elements of an array, and its documentation.
pub fn event_fields() -> impl Iterator<Item = (String, &'static str)> {
    paths(&[("", EventJson::FIELDS), ("changes[].", Change::FIELDS)])
}

/// Every field of the document, as a path with `[]` for the elements of an array, and its
/// documentation.
pub fn fields() -> impl Iterator<Item = (String, &'static str)> {
    paths(&[
        ("", StatusReport::FIELDS),
        ("interfaces[].", InterfaceJson::FIELDS),
        ("interfaces[].engine.", EngineJson::FIELDS),
        ("interfaces[].engine.device.", DeviceJson::FIELDS),
        ("interfaces[].engine.outbound.", BatchesJson::FIELDS),
        ("interfaces[].engine.inbound.", BatchesJson::FIELDS),
        ("interfaces[].engine.waiting.", WaitingJson::FIELDS),
        ("interfaces[].engine.sent_trains.", TrainsJson::FIELDS),
        ("interfaces[].engine.received_trains.", TrainsJson::FIELDS),
        ("interfaces[].peers[].", PeerJson::FIELDS),
        ("interfaces[].peers[].allowance.", AllowanceJson::FIELDS),
        ("interfaces[].peers[].last_failure.", FailureJson::FIELDS),
        ("errors[].", NoAnswer::FIELDS),
    ])
}

type Fields = &'static [(&'static str, &'static str)];

fn paths(
    structs: &'static [(&'static str, Fields)],
) -> impl Iterator<Item = (String, &'static str)> {
    structs.iter().flat_map(|(prefix, fields)| {
        let path = move |(name, text): &(&str, &'static str)| (format!("{prefix}{name}"), *text);
        fields.iter().map(path)
    })
}

impl Drop for InterfaceJson {
    fn drop(&mut self) {
        self.private_key.zeroize();
    }
}

impl Drop for PeerJson {
    fn drop(&mut self) {
        self.preshared_key.zeroize();
    }
}
