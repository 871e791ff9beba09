use std::net::IpAddr;
use std::sync::Arc;

use crate::config::Cidr;

/// Address blocks and their owners, with longest-prefix match for IPv4 and IPv6 (whitepaper 2,
/// cryptokey routing).
///
/// A path-compressed binary trie whose nodes are shared between clones: a clone is two pointers,
/// and a change copies only the nodes on the way to the block. That makes snapshots for the shards
/// cheap at any size.
#[derive(Clone)]
pub struct AllowedIps<T> {
    v4: Link<T>,
    v6: Link<T>,
    len: usize,
}

type Link<T> = Option<Arc<Node<T>>>;

/// A block. Bits stand at the top of `bits` for both families; the rest is zero.
#[derive(Clone)]
struct Node<T> {
    bits: u128,
    len: u8,
    /// `None` where two blocks diverge at a prefix that is no block itself.
    owner: Option<T>,
    children: [Link<T>; 2],
}

impl<T> Default for AllowedIps<T> {
    fn default() -> Self {
        Self {
            v4: None,
            v6: None,
            len: 0,
        }
    }
}

impl<T: Clone> AllowedIps<T> {
    /// The owner of the longest block that contains the address.
    #[inline]
    pub fn lookup(&self, ip: IpAddr) -> Option<&T> {
        let (mut link, bits) = match ip {
            IpAddr::V4(ip) => (&self.v4, u128::from(u32::from(ip)) << 96),
            IpAddr::V6(ip) => (&self.v6, u128::from(ip)),
        };
        let mut found = None;
        while let Some(node) = link {
            if common_len(node.bits, bits) < node.len {
                break;
            }
            if node.owner.is_some() {
                found = node.owner.as_ref();
            }
            if node.len == 128 {
                break;
            }
            link = &node.children[bit(bits, node.len)];
        }
        found
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no block at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the block to `owner` and returns the owner that it had.
    pub fn insert(&mut self, block: Cidr, owner: T) -> Option<T> {
        let (root, bits, len) = self.place(block);
        let before = insert(root, bits, len, owner);
        self.len += usize::from(before.is_none());
        before
    }

    /// Takes exactly this block away and returns its owner.
    pub fn remove(&mut self, block: Cidr) -> Option<T> {
        let (root, bits, len) = self.place(block);
        let before = remove(root, bits, len);
        self.len -= usize::from(before.is_some());
        before
    }

    fn place(&mut self, block: Cidr) -> (&mut Link<T>, u128, u8) {
        match block.addr() {
            IpAddr::V4(ip) => (
                &mut self.v4,
                u128::from(u32::from(ip)) << 96,
                block.prefix_len(),
            ),
            IpAddr::V6(ip) => (&mut self.v6, u128::from(ip), block.prefix_len()),
        }
    }
}

/// What is left of tables that nobody uses any more. Freeing a million nodes takes a tenth of a
/// second, so that it is done in pieces.
pub(crate) struct Garbage<T>(Vec<Arc<Node<T>>>);

impl<T> Default for Garbage<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Garbage<T> {
    pub(crate) fn add(&mut self, table: AllowedIps<T>) {
        self.0.extend(table.v4);
        self.0.extend(table.v6);
    }

    /// Frees so many nodes at most, and returns whether there are more. Nodes that another table
    /// shares stay.
    pub(crate) fn free(&mut self, nodes: usize) -> bool {
        for _ in 0..nodes {
            let Some(node) = self.0.pop() else {
                return false;
            };
            if let Some(node) = Arc::into_inner(node) {
                self.0.extend(node.children.into_iter().flatten());
            }
        }
        !self.0.is_empty()
    }
}

fn insert<T: Clone>(link: &mut Link<T>, bits: u128, len: u8, owner: T) -> Option<T> {
    let Some(shared) = link else {
        *link = Some(Node::leaf(bits, len, owner));
        return None;
    };
    let common = common_len(shared.bits, bits).min(len).min(shared.len);
    if common == shared.len {
        let node = Arc::make_mut(shared);
        if len == node.len {
            return node.owner.replace(owner);
        }
        return insert(&mut node.children[bit(bits, node.len)], bits, len, owner);
    }
    // The block and this node diverge after `common` bits: a new node takes this one's place above
    // both.
    let below = link.take();
    let below_bits = below.as_ref().map_or(0, |node| node.bits);
    let mut parting = Node {
        bits: bits & mask(common),
        len: common,
        owner: None,
        children: [None, None],
    };
    parting.children[bit(below_bits, common)] = below;
    if common == len {
        parting.owner = Some(owner);
    } else {
        parting.children[bit(bits, common)] = Some(Node::leaf(bits, len, owner));
    }
    *link = Some(Arc::new(parting));
    None
}

fn remove<T: Clone>(link: &mut Link<T>, bits: u128, len: u8) -> Option<T> {
    let shared = link.as_mut()?;
    if shared.len > len || common_len(shared.bits, bits) < shared.len {
        return None;
    }
    let node = Arc::make_mut(shared);
    let before = if node.len == len {
        node.owner.take()
    } else {
        remove(&mut node.children[bit(bits, node.len)], bits, len)
    };
    // A node without an owner and with fewer than two children is removed.
    if node.owner.is_none() {
        match &mut node.children {
            [None, only] | [only, None] => *link = only.take(),
            _ => {}
        }
    }
    before
}

impl<T> Node<T> {
    fn leaf(bits: u128, len: u8, owner: T) -> Arc<Self> {
        Arc::new(Self {
            bits,
            len,
            owner: Some(owner),
            children: [None, None],
        })
    }
}

/// How many leading bits two addresses share, at most 128.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most 128")]
fn common_len(a: u128, b: u128) -> u8 {
    (a ^ b).leading_zeros() as u8
}

/// The bit behind a prefix of `len` < 128 bits.
#[inline]
fn bit(bits: u128, len: u8) -> usize {
    usize::from(bits << len >> 127 != 0)
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}
