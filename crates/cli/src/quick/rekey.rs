//! `adit peer rekey`: new keys for a peer, which keeps all else.

use adit_ctl::config::{self, InterfaceAddress};
use adit_proto::config::{Cidr, PeerChange};

use super::new_peer::DeviceFile;
use super::verbs::{Opened, change, of, removal};
use crate::cli::RekeyArgs;
use crate::failure::{Result, bail};

pub(crate) fn rekey(args: &RekeyArgs) -> Result<()> {
    let mut open = Opened::of(&args.of.conf)?;
    let (old, label) = open.in_file(&args.of.peer, "gets new keys")?;
    let sections = of(&open.quick.config.peers, old);
    if sections.is_empty() {
        bail!(
            Mistake,
            "{label} is disabled: `adit peer enable {} {}` brings it back, and then it can get new keys",
            open.quick.called(),
            open.word(old)
        );
    }
    let entry = open.entry(old)?;
    let name = entry.name.clone();
    let networks = &open.quick.config.interface.addresses;
    let addresses: Vec<InterfaceAddress> = (entry.blocks.iter())
        .filter(|block| is_host(block))
        .filter_map(|block| {
            let within = |own: &&InterfaceAddress| {
                let network = Cidr::new(own.ip, own.prefix_len);
                network.is_some_and(|network| network.contains(block.addr()))
            };
            let own = networks.iter().find(within)?;
            Some(InterfaceAddress {
                ip: block.addr(),
                ..*own
            })
        })
        .collect();
    if addresses.is_empty() {
        bail!(
            Mistake,
            "{label} has no address in a network of {}, so that no file for its device can be made: make the keys there \
             (`adit genkey`), remove the peer, and add it again with `adit add`",
            open.quick.name
        );
    }
    let device = DeviceFile::new(&open.quick, &args.device, addresses)?;
    let device = match sections.iter().any(|it| it.preshared_key.is_some()) {
        true => device,
        false => device.without_preshared_key(),
    };
    let keys = (device.public_key(), device.preshared_key());
    let Some(new) = config::with_keys(&open.text, old, keys) else {
        bail!(State, "{} has lost the peer", open.quick.path.display());
    };
    let again = sections.iter().map(|section| PeerChange {
        public_key: keys.0,
        preshared_key: (section.preshared_key.as_ref()).and(keys.1.cloned()),
        endpoint: None,
        ..change(section)
    });
    let changes: Vec<PeerChange> = std::iter::once(removal(old, &sections))
        .chain(again)
        .collect();
    device.keep(&args.device, || open.change(&new, &changes))?;
    let word = name
        .clone()
        .unwrap_or_else(|| device.public_key().to_string());
    let done = ("rekeyed", name.as_deref(), word.as_str());
    device.hand_out(&open.quick, &args.device, done)
}

fn is_host(block: &Cidr) -> bool {
    block.prefix_len() == if block.addr().is_ipv4() { 32 } else { 128 }
}
