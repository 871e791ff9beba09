//! Which record has which block of addresses, to find those that overlap.

use std::collections::BTreeMap;
use std::net::IpAddr;

use adit_proto::config::Cidr;

use crate::record::RecordId;

/// Blocks that do not overlap those of other records, by their first address.
#[derive(Default)]
pub(crate) struct OwnedBlocks {
    owners: BTreeMap<Cidr, RecordId>,
    /// How many blocks of each length there are: those that hold a block are looked for by length.
    lengths: BTreeMap<(bool, u8), usize>,
}

impl OwnedBlocks {
    pub(crate) fn insert(&mut self, block: Cidr, owner: &RecordId) {
        if self.owners.insert(block, RecordId::clone(owner)).is_none() {
            *self.lengths.entry(kind(block)).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, block: Cidr) {
        if self.owners.remove(&block).is_none() {
            return;
        }
        if let Some(count) = self.lengths.get_mut(&kind(block)) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&kind(block));
            }
        }
    }

    /// A block that has addresses of this one, and who has it.
    pub(crate) fn overlapping(&self, block: Cidr) -> Option<(Cidr, &RecordId)> {
        let (is_v6, len) = kind(block);
        let around = self.lengths.range((is_v6, 0)..=(is_v6, len));
        let mut around = around.filter_map(|(&(_, len), _)| Cidr::new(block.addr(), len));
        let found = around.find_map(|outer| self.owners.get_key_value(&outer));
        // Those within it begin at its first address or behind it: the next one tells.
        let within = || {
            let next = self.owners.range(block..).next();
            next.filter(|(inner, _)| block.contains(inner.addr()))
        };
        found.or_else(within).map(|(block, owner)| (*block, owner))
    }
}

fn kind(block: Cidr) -> (bool, u8) {
    (matches!(block.addr(), IpAddr::V6(_)), block.prefix_len())
}
