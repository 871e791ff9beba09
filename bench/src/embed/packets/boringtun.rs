//! Two ends of boringtun's `Tunn`.

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};

use super::adit::Buffer;
use crate::sandbox::Failure;

/// The sender and the receiver, which have a session.
pub(super) struct Ends {
    tunns: [Tunn; 2],
    sealed: Box<Buffer>,
    opened: Box<Buffer>,
}

impl Ends {
    pub(super) fn connected() -> Result<Self, Failure> {
        let keys = [1, 2].map(|n| StaticSecret::from([n; 32]));
        let [first, second] = keys.each_ref().map(PublicKey::from);
        let [a, b] = keys;
        let mut tunns = [
            Tunn::new(a, second, None, None, 1, None),
            Tunn::new(b, first, None, None, 2, None),
        ];
        let (mut sealed, mut opened) = (Buffer::new(), Buffer::new());
        let [a, b] = &mut tunns;
        let initiation = a.format_handshake_initiation(&mut sealed.0, false);
        let TunnResult::WriteToNetwork(initiation) = initiation else {
            return Err("boringtun makes no initiation".into());
        };
        let response = b.decapsulate(None, initiation, &mut opened.0);
        let TunnResult::WriteToNetwork(response) = response else {
            return Err("boringtun makes no response".into());
        };
        let keepalive = a.decapsulate(None, response, &mut sealed.0);
        let TunnResult::WriteToNetwork(keepalive) = keepalive else {
            return Err("boringtun takes no response".into());
        };
        match b.decapsulate(None, keepalive, &mut opened.0) {
            TunnResult::Done => {}
            _ => return Err("boringtun takes no keepalive".into()),
        }
        Ok(Self {
            tunns,
            sealed,
            opened,
        })
    }

    pub(super) fn pass(&mut self, packet: &[u8]) -> Result<(), Failure> {
        let [a, b] = &mut self.tunns;
        let sealed = a.encapsulate(packet, &mut self.sealed.0);
        let TunnResult::WriteToNetwork(datagram) = sealed else {
            return Err("boringtun does not seal".into());
        };
        match b.decapsulate(None, datagram, &mut self.opened.0) {
            TunnResult::WriteToTunnelV4(opened, _) if opened.len() == packet.len() => Ok(()),
            _ => Err("boringtun does not open what it sealed".into()),
        }
    }
}
