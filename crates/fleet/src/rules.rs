//! The elements that the packet filter lacks, in an order that never opens what is to be closed.
//!
//! 1. [`RuleBook::prepare`], before the interface is changed: sources of peers are limited, what they may no longer
//!    open is closed, and what they may open is opened, unless another peer may still have the address.
//! 2. [`RuleBook::finish`], after it: sources that no peer with rules has are no longer limited, and what had to
//!    wait is opened.
//!
//! The sets of the kernel take no elements that overlap. Blocks of records do not overlap, but those that
//! a peer gives up and another one gets may: of the limited blocks, only the widest are elements.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use adit_proto::config::{Cidr, PublicKey};

use crate::ports::{FlowRange, RuleElement, holds, widest};
use crate::reconcile::Reconciler;

/// Elements to be deleted, and then others to be added, at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChange {
    /// Those that go.
    pub delete: BTreeSet<RuleElement>,
    /// Those that come.
    pub add: BTreeSet<RuleElement>,
}

/// Limited blocks, each with what may be opened from there.
type OpenBlocks = BTreeMap<Cidr, BTreeSet<FlowRange>>;

/// All elements, by the peer that they are of.
#[derive(Default)]
pub struct RuleBook {
    peers: HashMap<PublicKey, OpenBlocks>,
    /// What an earlier process left, until it is known whose it is.
    inherited: OpenBlocks,
    claims: ClaimedBlocks,
    /// Peers that are to be looked at after the next change of the interface.
    unfinished: BTreeSet<PublicKey>,
}

/// What is to be of a peer.
enum Wish<'a> {
    /// Not known: it stays what it is.
    Unknown,
    /// Anything may be opened, from these blocks.
    Unlimited(&'a [Cidr]),
    /// These blocks may open these flows; none for a peer that is to go.
    Blocks(OpenBlocks),
}

impl RuleBook {
    /// Begins with the elements that an earlier process left.
    pub fn new(elements: impl IntoIterator<Item = RuleElement>) -> Self {
        let mut book = Self::default();
        let elements: BTreeSet<RuleElement> = elements.into_iter().collect();
        for element in elements {
            let (RuleElement::Limited(from) | RuleElement::Allowed(from, _)) = element;
            if !book.inherited.contains_key(&from) {
                book.claims.claim(from, &mut RuleChange::default());
            }
            let open = book.inherited.entry(from).or_default();
            if let RuleElement::Allowed(_, flows) = element {
                open.insert(flows);
            }
        }
        book
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.claims.counts.is_empty()
    }

    /// All elements, which do not overlap.
    pub fn elements(&self) -> impl Iterator<Item = RuleElement> {
        let limited = widest(self.claims.counts.keys().copied()).map(RuleElement::Limited);
        let all = self.peers.values().chain([&self.inherited]);
        let blocks = all.flat_map(BTreeMap::iter);
        limited.chain(blocks.flat_map(|(from, open)| {
            (open.iter()).map(|flows| RuleElement::Allowed(*from, *flows))
        }))
    }

    /// What has to be so before the changes that are due are made.
    pub fn prepare(&mut self, reconciler: &Reconciler) -> RuleChange {
        let mut change = RuleChange::default();
        let mut wanted = Vec::new();
        for &key in reconciler.due() {
            match wish(reconciler, &key) {
                Wish::Blocks(blocks) if !blocks.is_empty() || self.peers.contains_key(&key) => {
                    self.narrow(key, &blocks, &mut change);
                    wanted.push((key, blocks));
                }
                Wish::Unlimited(blocks) => {
                    let Some(held) = self.peers.get_mut(&key) else {
                        continue;
                    };
                    // What it gives up may be another's next.
                    for (from, open) in held.iter_mut().filter(|(it, _)| !blocks.contains(it)) {
                        close(*from, std::mem::take(open), &mut change);
                    }
                    self.unfinished.insert(key);
                }
                _ => {}
            }
        }
        for (key, blocks) in wanted {
            if !self.open(key, &blocks, &mut change) {
                self.unfinished.insert(key);
            }
        }
        change
    }

    /// What has to be so afterwards, of the peers that are what they are to be.
    pub fn finish(&mut self, reconciler: &Reconciler) -> RuleChange {
        let mut change = RuleChange::default();
        let keys = self.unfinished.iter();
        let settled = keys.filter(|key| reconciler.is_settled(key)).copied();
        let settled: Vec<PublicKey> = settled.collect();
        let mut wanted = Vec::new();
        for key in settled {
            let blocks = match wish(reconciler, &key) {
                Wish::Unknown => continue,
                Wish::Unlimited(_) => OpenBlocks::new(),
                Wish::Blocks(blocks) => blocks,
            };
            let held = self.peers.entry(key).or_default();
            for (from, open) in take(held, |from| !blocks.contains_key(&from)) {
                self.claims.release(from, open, &mut change);
            }
            wanted.push((key, blocks));
        }
        if !self.inherited.is_empty()
            && let Some(held) = reconciler.held_blocks()
        {
            let is_held = |from: Cidr| held.iter().any(|it| overlap(*it, from));
            for (from, open) in take(&mut self.inherited, |from| !is_held(from)) {
                self.claims.release(from, open, &mut change);
            }
        }
        for (key, blocks) in wanted {
            if self.open(key, &blocks, &mut change) {
                self.unfinished.remove(&key);
            }
            if blocks.is_empty() {
                self.peers.remove(&key);
            }
        }
        change
    }

    /// Limits the blocks of a peer, and closes what it may not open any more.
    fn narrow(&mut self, key: PublicKey, blocks: &OpenBlocks, change: &mut RuleChange) {
        let held = self.peers.entry(key).or_default();
        for &from in blocks.keys() {
            if held.contains_key(&from) {
                continue;
            }
            let mut open = BTreeSet::new();
            match self.inherited.remove(&from) {
                Some(inherited) => open = inherited,
                None => self.claims.claim(from, change),
            }
            held.insert(from, open);
            // The record has this address now, whatever an earlier one said of it.
            if !self.inherited.is_empty() && !self.claims.is_alone(from) {
                for (other, open) in &mut self.inherited {
                    if overlap(*other, from) {
                        close(*other, std::mem::take(open), change);
                    }
                }
            }
        }
        for (from, open) in held {
            let wanted = blocks.get(from);
            open.retain(|flows| {
                let stays = wanted.is_some_and(|it| it.contains(flows));
                if !stays {
                    change.delete(RuleElement::Allowed(*from, *flows));
                }
                stays
            });
        }
    }

    /// Opens what may be opened now; whether that is all, and nothing else is limited for this peer.
    fn open(&mut self, key: PublicKey, blocks: &OpenBlocks, change: &mut RuleChange) -> bool {
        let held = self.peers.entry(key).or_default();
        let mut is_all = held.len() == blocks.len();
        for (from, flows) in blocks {
            match held.get_mut(from).filter(|_| self.claims.is_alone(*from)) {
                Some(open) => {
                    for flows in flows.iter().filter(|flows| open.insert(**flows)) {
                        change.add(RuleElement::Allowed(*from, *flows));
                    }
                }
                None => is_all = false,
            }
        }
        is_all
    }
}

fn wish<'a>(reconciler: &'a Reconciler, key: &PublicKey) -> Wish<'a> {
    let list = reconciler.list();
    let Some(record) = list.of(key) else {
        let is_known = reconciler.is_listed() && list.id_of(key).is_none();
        return match is_known {
            true => Wish::Blocks(OpenBlocks::new()),
            false => Wish::Unknown,
        };
    };
    let Some(ports) = &record.allowed_ports else {
        return Wish::Unlimited(&record.allowed_ips);
    };
    let flows = [false, true].map(|is_v6| BTreeSet::from_iter(ports.flows(is_v6)));
    let blocks = widest(record.allowed_ips.iter().copied());
    let blocks = blocks.map(|from| (from, flows[usize::from(from.addr().is_ipv6())].clone()));
    Wish::Blocks(blocks.collect())
}

fn overlap(one: Cidr, other: Cidr) -> bool {
    holds(one, other) || holds(other, one)
}

/// Takes these blocks out.
fn take(blocks: &mut OpenBlocks, mut is_one: impl FnMut(Cidr) -> bool) -> OpenBlocks {
    let (taken, rest) = (std::mem::take(blocks).into_iter()).partition(|(from, _)| is_one(*from));
    *blocks = rest;
    taken
}

fn close(from: Cidr, open: impl IntoIterator<Item = FlowRange>, change: &mut RuleChange) {
    for flows in open {
        change.delete(RuleElement::Allowed(from, flows));
    }
}

impl RuleChange {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.add.is_empty()
    }

    fn add(&mut self, element: RuleElement) {
        if !self.delete.remove(&element) {
            self.add.insert(element);
        }
    }

    fn delete(&mut self, element: RuleElement) {
        if !self.add.remove(&element) {
            self.delete.insert(element);
        }
    }
}

/// Blocks that are limited, and for how many peers. Of those that hold others, the widest are elements.
#[derive(Default)]
struct ClaimedBlocks {
    counts: BTreeMap<Cidr, usize>,
}

impl ClaimedBlocks {
    fn claim(&mut self, block: Cidr, change: &mut RuleChange) {
        let count = self.counts.entry(block).or_default();
        *count += 1;
        if *count == 1 && !self.is_covered(block) {
            self.within(block)
                .for_each(|inner| change.delete(RuleElement::Limited(inner)));
            change.add(RuleElement::Limited(block));
        }
    }

    /// One peer less, which might have opened this from there.
    fn release(&mut self, block: Cidr, open: BTreeSet<FlowRange>, change: &mut RuleChange) {
        close(block, open, change);
        let Some(count) = self.counts.get_mut(&block) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&block);
            if !self.is_covered(block) {
                change.delete(RuleElement::Limited(block));
                self.within(block)
                    .for_each(|inner| change.add(RuleElement::Limited(inner)));
            }
        }
    }

    /// Whether a wider one has all of it.
    fn is_covered(&self, block: Cidr) -> bool {
        let wider = (0..block.prefix_len()).filter_map(|len| Cidr::new(block.addr(), len));
        wider.into_iter().any(|it| self.counts.contains_key(&it))
    }

    /// The widest of those in it, but for itself.
    fn within(&self, block: Cidr) -> impl Iterator<Item = Cidr> {
        let from = self.counts.range(block..).map(|(inner, _)| *inner);
        let inside = from.take_while(move |inner| holds(block, *inner));
        widest(inside.filter(move |inner| *inner != block))
    }

    /// Whether no other peer has claimed an address of it.
    fn is_alone(&self, block: Cidr) -> bool {
        let is_one = self.counts.get(&block) == Some(&1);
        is_one && !self.is_covered(block) && self.within(block).next().is_none()
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
