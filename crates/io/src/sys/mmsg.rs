//! `sendmmsg` and `recvmmsg`, with the control messages they carry.
//!
//! Addresses and control messages are encoded and decoded as bytes, in safe code; only the headers
//! that point to them are the kernel's structures.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use adit_proto::Source;
use rustix::io::Errno;

use crate::Transmit;

/// Messages of one `sendmmsg`.
pub(crate) const SEND_BATCH: usize = 64;

/// One `sendmsg`: datagrams of `train`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingMessage<'a> {
    pub(crate) train: &'a Transmit<'a>,
    /// The part of the train to send. Longer than the stride asks the kernel to segment it.
    pub(crate) bytes: &'a [u8],
    /// Whether to send from the train's source address.
    pub(crate) from_source: bool,
}

impl OutgoingMessage<'_> {
    pub(crate) fn is_segmented(&self) -> bool {
        self.bytes.len() > self.train.stride
    }

    pub(crate) fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.train.stride.max(1)).max(1)
    }
}

/// AF_INET and AF_INET6 as `sa_family_t`.
const FAMILY_V4: u16 = 2;
const FAMILY_V6: u16 = 10;

/// A socket address as the kernel lays it out.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
pub(super) struct RawAddress(pub(super) [u8; 28]);

/// Control messages: enough space for those asked for (PKTINFO, TOS or TCLASS, UDP_SEGMENT or
/// UDP_GRO, SO_RXQ_OVFL) and more.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct ControlBuffer<const N: usize>(pub(super) [u8; N]);

/// `CMSG_SPACE` of PKTINFO for IPv6 (20 bytes), TCLASS (4) and UDP_SEGMENT (2).
const SEND_CONTROL: usize = cmsg_space(20) + cmsg_space(4) + cmsg_space(2);
const RECV_CONTROL: usize = 128;

/// `struct cmsghdr`: the length of header and payload in the kernel's `size_t`, level, type.
const CMSG_HEADER: usize = size_of::<usize>() + 8;

/// The value of `CMSG_SPACE`: the header and the payload with its padding.
pub(super) const fn cmsg_space(payload: usize) -> usize {
    (CMSG_HEADER + payload).next_multiple_of(size_of::<usize>())
}

/// Sends `messages`, at most [`SEND_BATCH`] of them, and returns how many went out, at least one.
pub(crate) fn send(fd: BorrowedFd<'_>, messages: &[OutgoingMessage<'_>]) -> Result<usize, Errno> {
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; SEND_BATCH];
    let mut iovecs = [const { MaybeUninit::<libc::iovec>::uninit() }; SEND_BATCH];
    let mut names = [const { MaybeUninit::<RawAddress>::uninit() }; SEND_BATCH];
    let mut controls = [const { MaybeUninit::<ControlBuffer<SEND_CONTROL>>::uninit() }; SEND_BATCH];
    let count = messages.len().min(SEND_BATCH);
    for (i, message) in messages.iter().take(SEND_BATCH).enumerate() {
        let (name, name_len) = encode_name(message.train.to.addr);
        let name = names[i].write(name);
        let control = controls[i].write(ControlBuffer([0; SEND_CONTROL]));
        let control_len = encode_control(message, &mut control.0);
        let iovec = iovecs[i].write(libc::iovec {
            iov_base: message.bytes.as_ptr().cast_mut().cast(),
            iov_len: message.bytes.len(),
        });
        // SAFETY: mmsghdr consists of integers and pointers, for all of which zero is a value.
        let header = headers[i].write(unsafe { MaybeUninit::zeroed().assume_init() });
        header.msg_hdr.msg_name = (&raw mut *name).cast();
        header.msg_hdr.msg_namelen = name_len;
        header.msg_hdr.msg_iov = iovec;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = (&raw mut *control).cast();
        header.msg_hdr.msg_controllen = control_len as _;
    }
    // SAFETY: the loop above initialised the first `count` headers; what they point to (names,
    // iovecs, controls and the callers' bytes) is borrowed or owned by this frame until the call
    // returns, and the kernel only reads it, except msg_len in the headers.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr().cast(),
            u32::try_from(count).unwrap_or(0),
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(sent).map_err(|_| last_errno())
}

/// Control messages of a send: source address, ECN, segment length.
fn encode_control(message: &OutgoingMessage<'_>, out: &mut [u8]) -> usize {
    let mut at = 0;
    let to = &message.train.to;
    match to.src.filter(|_| message.from_source).map(|src| src.ip) {
        // struct in_pktinfo: interface 0, so that routing stays free to choose it, source, unused
        // destination
        Some(IpAddr::V4(ip)) => {
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&ip.octets());
            push(out, &mut at, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        // struct in6_pktinfo: source, interface, which only a link-local address needs
        Some(IpAddr::V6(ip)) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&ip.octets());
            if let Some(src) = to.src.filter(|_| ip.is_unicast_link_local()) {
                info[16..].copy_from_slice(&src.ifindex.to_ne_bytes());
            }
            push(out, &mut at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        None => {}
    }
    let ecn = i32::from(message.train.ecn & 3).to_ne_bytes();
    if message.train.ecn & 3 != 0 {
        match to.addr {
            SocketAddr::V4(_) => push(out, &mut at, libc::IPPROTO_IP, libc::IP_TOS, &ecn),
            SocketAddr::V6(_) => push(out, &mut at, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &ecn),
        }
    }
    if message.is_segmented() {
        let stride = u16::try_from(message.train.stride).unwrap_or(u16::MAX);
        push(
            out,
            &mut at,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            &stride.to_ne_bytes(),
        );
    }
    at
}

/// Appends one control message to zeroed memory: its length field excludes the padding
/// (`CMSG_LEN`), its place includes it (`CMSG_SPACE`).
pub(super) fn push(out: &mut [u8], at: &mut usize, level: i32, kind: i32, payload: &[u8]) {
    let word = size_of::<usize>();
    let place = &mut out[*at..*at + cmsg_space(payload.len())];
    place[..word].copy_from_slice(&(CMSG_HEADER + payload.len()).to_ne_bytes());
    place[word..word + 4].copy_from_slice(&level.to_ne_bytes());
    place[word + 4..word + 8].copy_from_slice(&kind.to_ne_bytes());
    place[CMSG_HEADER..CMSG_HEADER + payload.len()].copy_from_slice(payload);
    *at += place.len();
}

pub(super) fn encode_name(addr: SocketAddr) -> (RawAddress, libc::socklen_t) {
    let mut name = [0; 28];
    name[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(addr) => {
            name[..2].copy_from_slice(&FAMILY_V4.to_ne_bytes());
            name[4..8].copy_from_slice(&addr.ip().octets());
            (RawAddress(name), 16)
        }
        SocketAddr::V6(addr) => {
            name[..2].copy_from_slice(&FAMILY_V6.to_ne_bytes());
            name[8..24].copy_from_slice(&addr.ip().octets());
            name[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
            (RawAddress(name), 28)
        }
    }
}

/// The address in the first `len` bytes of `name`.
pub(crate) fn decode_name(name: &[u8; 28], len: usize) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([name[0], name[1]]);
    let port = u16::from_be_bytes([name[2], name[3]]);
    if family == FAMILY_V4 && len >= 16 {
        let ip = Ipv4Addr::new(name[4], name[5], name[6], name[7]);
        Some(SocketAddrV4::new(ip, port).into())
    } else if family == FAMILY_V6 && len >= 28 {
        let (_, [ip @ .., s0, s1, s2, s3]) = name.split_first_chunk::<8>()? else {
            return None;
        };
        let scope = u32::from_ne_bytes([*s0, *s1, *s2, *s3]);
        let ip = Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?);
        Some(SocketAddrV6::new(ip, port, 0, scope).into())
    } else {
        None
    }
}

/// The kernel's structures for receiving into a batch, kept with it so that they need not be
/// written each time.
pub(crate) struct RecvHeaders {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<RawAddress>,
    controls: Vec<ControlBuffer<RECV_CONTROL>>,
}

// SAFETY: the pointers in `headers` and `iovecs` are written anew by every `receive` and followed
// by nothing else, so it does not matter which thread owns them in between.
unsafe impl Send for RecvHeaders {}

// SAFETY: nothing can be done with a shared reference.
unsafe impl Sync for RecvHeaders {}

/// The data that came with a message besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageInfo {
    /// `None` if the kernel gave no address that we understand.
    pub(crate) addr: Option<SocketAddr>,
    pub(crate) src: Option<Source>,
    pub(crate) ecn: u8,
    /// From UDP_GRO.
    pub(crate) stride: Option<usize>,
    pub(crate) len: usize,
    pub(crate) truncated: bool,
    /// From SO_RXQ_OVFL: messages that found the receive buffer full, since the socket was made and
    /// before this one.
    pub(crate) dropped: Option<u32>,
}

impl RecvHeaders {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            // SAFETY: mmsghdr and iovec consist of integers and pointers, for all of which zero is
            // a value.
            headers: vec![unsafe { MaybeUninit::zeroed().assume_init() }; slots],
            iovecs: vec![
                libc::iovec {
                    iov_base: std::ptr::null_mut(),
                    iov_len: 0,
                };
                slots
            ],
            names: vec![RawAddress([0; 28]); slots],
            controls: vec![ControlBuffer([0; RECV_CONTROL]); slots],
        }
    }

    /// Receives one message into each of `slots` until none waits; returns how many, at least one.
    pub(crate) fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        slots: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        let places = self.names.iter_mut().zip(&mut self.controls);
        let headers = self.headers.iter_mut().zip(&mut self.iovecs);
        for (((header, iovec), (name, control)), slot) in headers.zip(places).zip(slots) {
            iovec.iov_base = slot.as_mut_ptr().cast();
            iovec.iov_len = slot.len();
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = 28;
            header.msg_hdr.msg_iov = iovec;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = (&raw mut *control).cast();
            header.msg_hdr.msg_controllen = RECV_CONTROL as _;
            header.msg_hdr.msg_flags = 0;
            count += 1;
        }
        // SAFETY: the loop above pointed the first `count` headers to distinct, exclusively
        // borrowed memory of the stated lengths: `slots` yields disjoint slices that outlive this
        // call, the rest belongs to `self`.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| last_errno())
    }

    /// The arrival of message `index` of the last [`Self::receive`].
    pub(crate) fn arrived(&self, index: usize) -> MessageInfo {
        let header = &self.headers[index];
        // Other C libraries say u32.
        #[allow(clippy::unnecessary_cast)]
        let control_len = (header.msg_hdr.msg_controllen as usize).min(RECV_CONTROL);
        let mut arrived = decode_control(&self.controls[index].0[..control_len]);
        arrived.len = header.msg_len as usize;
        arrived.truncated = header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        let name_len = header.msg_hdr.msg_namelen as usize;
        arrived.addr = decode_name(&self.names[index].0, name_len);
        arrived
    }
}

/// Walks over control messages (level, type, payload); stops at the first that does not fit.
pub(super) fn control_messages(mut control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    let word = size_of::<usize>();
    std::iter::from_fn(move || {
        let (header, _) = control.split_at_checked(CMSG_HEADER)?;
        let int = |at: usize| {
            i32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let mut len = [0; size_of::<usize>()];
        len.copy_from_slice(&header[..word]);
        let len = usize::from_ne_bytes(len);
        let payload = control.get(CMSG_HEADER..len)?;
        control = control
            .get(len.next_multiple_of(word)..)
            .unwrap_or_default();
        Some((int(word), int(word + 4), payload))
    })
}

/// The content of a datagram's control messages.
pub(crate) fn decode_control(control: &[u8]) -> MessageInfo {
    let mut arrived = MessageInfo {
        addr: None,
        src: None,
        ecn: 0,
        stride: None,
        len: 0,
        truncated: false,
        dropped: None,
    };
    for message in control_messages(control) {
        let mut source = |ip: IpAddr, ifindex: u32| {
            arrived.src = Some(Source { ip, ifindex });
        };
        match message {
            // struct in_pktinfo: interface, the local address to answer from, destination in the
            // header
            (libc::IPPROTO_IP, libc::IP_PKTINFO, [i0, i1, i2, i3, a, b, c, d, ..]) => {
                source(
                    Ipv4Addr::new(*a, *b, *c, *d).into(),
                    u32::from_ne_bytes([*i0, *i1, *i2, *i3]),
                );
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, [ip @ .., i0, i1, i2, i3]) => {
                if let Ok(ip) = <[u8; 16]>::try_from(ip) {
                    source(
                        Ipv6Addr::from(ip).into(),
                        u32::from_ne_bytes([*i0, *i1, *i2, *i3]),
                    );
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS, [tos, ..]) => arrived.ecn = tos & 3,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, [a, b, c, d, ..]) => {
                arrived.ecn = i32::from_ne_bytes([*a, *b, *c, *d]).to_le_bytes()[0] & 3;
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, [a, b, c, d, ..]) => {
                arrived.dropped = Some(u32::from_ne_bytes([*a, *b, *c, *d]));
            }
            (libc::SOL_UDP, libc::UDP_GRO, [a, b, c, d, ..]) => {
                arrived.stride = usize::try_from(i32::from_ne_bytes([*a, *b, *c, *d])).ok();
            }
            _ => {}
        }
    }
    arrived
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
#[path = "mmsg_tests.rs"]
mod tests;
