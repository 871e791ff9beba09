use std::net::IpAddr;
use std::ops::{BitXor, Shr};
use std::sync::Arc;

use crate::config::Cidr;

/// Address blocks and their owners, with longest-prefix match for IPv4 and IPv6 (whitepaper 2,
/// cryptokey routing).
///
/// A trie of which each node decides six bits of the address (a tree bitmap, after Eatherton,
/// Varghese and Dittia); nodes that would decide nothing are left out. Half a million hosts side by
/// side are four nodes deep. Nodes are shared between clones: a clone is two pointers, and a change
/// copies only the nodes on the way to the block. That makes snapshots for the shards cheap at any
/// size.
#[derive(Clone)]
pub struct AllowedIps<T> {
    v4: Trie<u32, T>,
    v6: Trie<u128, T>,
    len: usize,
}

impl<T> Default for AllowedIps<T> {
    fn default() -> Self {
        Self {
            v4: Trie(None),
            v6: Trie(None),
            len: 0,
        }
    }
}

impl<T: Clone> AllowedIps<T> {
    /// The owner of the longest block that contains the address.
    #[inline]
    pub fn lookup(&self, ip: IpAddr) -> Option<&T> {
        match ip {
            IpAddr::V4(ip) => self.v4.lookup(ip.into()),
            IpAddr::V6(ip) => self.v6.lookup(ip.into()),
        }
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
        let len = block.prefix_len();
        let before = match block.addr() {
            IpAddr::V4(ip) => self.v4.insert(TrieBlock::new(ip.into(), len), owner),
            IpAddr::V6(ip) => self.v6.insert(TrieBlock::new(ip.into(), len), owner),
        };
        self.len += usize::from(before.is_none());
        before
    }

    /// Takes exactly this block away and returns its owner.
    pub fn remove(&mut self, block: Cidr) -> Option<T> {
        let len = block.prefix_len();
        let before = match block.addr() {
            IpAddr::V4(ip) => self.v4.remove(TrieBlock::new(ip.into(), len)),
            IpAddr::V6(ip) => self.v6.remove(TrieBlock::new(ip.into(), len)),
        };
        self.len -= usize::from(before.is_some());
        before
    }
}

/// Remains of tables that nobody uses any more. Freeing half a million owners takes a tenth of
/// a second, so that it is done in pieces.
pub(crate) struct Garbage<T> {
    v4: Vec<NodeLink<u32, T>>,
    v6: Vec<NodeLink<u128, T>>,
}

impl<T> Default for Garbage<T> {
    fn default() -> Self {
        Self {
            v4: Vec::new(),
            v6: Vec::new(),
        }
    }
}

impl<T> Garbage<T> {
    pub(crate) fn add(&mut self, table: AllowedIps<T>) {
        self.v4.extend(table.v4.0);
        self.v6.extend(table.v6.0);
    }

    /// Frees about so many nodes and owners, and returns whether there are more. Nodes that another
    /// table shares stay.
    pub(crate) fn free(&mut self, count: usize) -> bool {
        let left = free(&mut self.v4, count);
        free(&mut self.v6, left);
        !self.v4.is_empty() || !self.v6.is_empty()
    }
}

/// Returns how many more may be freed.
fn free<A, T>(links: &mut Vec<NodeLink<A, T>>, count: usize) -> usize {
    let mut left = count;
    while left > 0 {
        let Some(link) = links.pop() else {
            break;
        };
        left -= 1;
        if let Some(node) = Arc::into_inner(link) {
            left = left.saturating_sub(node.owners.len());
            links.extend(node.children);
        }
    }
    left
}

/// An address as a number.
trait AddressBits: Copy + PartialEq + BitXor<Output = Self> + Shr<u32, Output = Self> {
    const BITS: u32;
    /// The lowest bits.
    fn low(self) -> u32;
    /// The highest bit that is set.
    fn highest(self) -> Option<u32>;
}

impl AddressBits for u32 {
    const BITS: u32 = u32::BITS;
    fn low(self) -> u32 {
        self
    }
    fn highest(self) -> Option<u32> {
        self.checked_ilog2()
    }
}

impl AddressBits for u128 {
    const BITS: u32 = u128::BITS;
    #[expect(clippy::cast_possible_truncation, reason = "only these are asked for")]
    fn low(self) -> u32 {
        self as u32
    }
    fn highest(self) -> Option<u32> {
        self.checked_ilog2()
    }
}

/// How many bits a node decides. The lowest nodes decide the lowest bits, so that hosts side by
/// side share one.
const STRIDE: u32 = 6;
const CHILDREN: u32 = 1 << STRIDE;

/// The bits that a node decides which stands `shift` bits above the lowest.
#[inline]
fn index<A: AddressBits>(addr: A, shift: u32) -> u32 {
    (addr >> shift).low() % CHILDREN
}

/// A block, and where it stands.
#[derive(Clone, Copy)]
struct TrieBlock<A> {
    addr: A,
    /// The shift of its node.
    shift: u32,
    /// Among the blocks of its node: those of one bit are 2 and 3, those of two bits 4 to 7, and
    /// those of all six bits 64 to 127.
    number: u32,
}

impl<A: AddressBits> TrieBlock<A> {
    fn new(addr: A, len: u8) -> Self {
        let host_bits = A::BITS - u32::from(len);
        let shift = host_bits / STRIDE * STRIDE;
        Self {
            addr,
            shift,
            number: (CHILDREN + index(addr, shift)) >> (host_bits - shift),
        }
    }
}

#[derive(Clone)]
struct Trie<A, T>(Option<NodeLink<A, T>>);

type NodeLink<A, T> = Arc<Node<A, T>>;

/// The blocks that end within six bits of an address, and the nodes below.
#[derive(Clone)]
struct Node<A, T> {
    /// The bits above its own are those of all addresses below.
    addr: A,
    /// How many bits stand below its own: a multiple of [`STRIDE`].
    shift: u32,
    /// Which blocks there are with all six bits, by index, and with fewer, by number.
    long: u64,
    short: u64,
    /// Which children there are, by index.
    below: u64,
    /// Of the long blocks, then of the short ones.
    owners: Box<[T]>,
    children: Box<[NodeLink<A, T>]>,
}

impl<A: AddressBits, T: Clone> Trie<A, T> {
    #[inline]
    fn lookup(&self, addr: A) -> Option<&T> {
        let mut found = None;
        let mut link = self.0.as_ref();
        while let Some(node) = link {
            if node.addr_above() != addr >> node.shift >> STRIDE {
                break;
            }
            let index = index(addr, node.shift);
            if let Some(number) = node.longest(index) {
                found = Some((node, number));
            }
            link = node.child(index);
        }
        let (node, number) = found?;
        node.owners.get(node.place(number))
    }

    fn insert(&mut self, block: TrieBlock<A>, owner: T) -> Option<T> {
        match &mut self.0 {
            Some(root) => insert(root, block, owner),
            empty => {
                *empty = Some(Node::of(block, owner));
                None
            }
        }
    }

    fn remove(&mut self, block: TrieBlock<A>) -> Option<T> {
        let root = self.0.as_mut()?;
        let before = remove(root, block);
        if !is_needed(root) {
            self.0 = None;
        }
        before
    }
}

/// How far up the node stands that has both the node and the block below it, or is the node.
fn common_shift<A: AddressBits, T>(node: &Node<A, T>, block: TrieBlock<A>) -> u32 {
    let parting = (node.addr ^ block.addr).highest().unwrap_or(0);
    node.shift.max(block.shift).max(parting / STRIDE * STRIDE)
}

fn insert<A: AddressBits, T: Clone>(
    link: &mut NodeLink<A, T>,
    block: TrieBlock<A>,
    owner: T,
) -> Option<T> {
    let shift = common_shift(link, block);
    if shift != link.shift {
        let mut above = Node::new(block.addr, shift);
        above.add_child(index(link.addr, shift), Arc::clone(link));
        *link = Arc::new(above);
    }
    let node = Arc::make_mut(link);
    if block.shift == shift {
        return node.set(block.number, owner);
    }
    let index = index(block.addr, shift);
    if let Some(child) = node.child_mut(index) {
        return insert(child, block, owner);
    }
    node.add_child(index, Node::of(block, owner));
    None
}

fn remove<A: AddressBits, T: Clone>(link: &mut NodeLink<A, T>, block: TrieBlock<A>) -> Option<T> {
    let shift = link.shift;
    if common_shift(link, block) != shift {
        return None;
    }
    let node = Arc::make_mut(link);
    if block.shift == shift {
        return node.take(block.number);
    }
    let index = index(block.addr, shift);
    let child = node.child_mut(index)?;
    let before = remove(child, block);
    if !is_needed(child) {
        node.remove_child(index);
    }
    before
}

/// Whether there is something in a node or below it. A node that decides nothing gives way to the
/// only one below it.
fn is_needed<A, T>(link: &mut NodeLink<A, T>) -> bool {
    if !link.owners.is_empty() {
        return true;
    }
    if let [only] = &*link.children {
        *link = Arc::clone(only);
    }
    !(link.owners.is_empty() && link.children.is_empty())
}

impl<A: AddressBits, T> Node<A, T> {
    fn new(addr: A, shift: u32) -> Self {
        Self {
            addr,
            shift,
            long: 0,
            short: 0,
            below: 0,
            owners: Box::default(),
            children: Box::default(),
        }
    }

    /// One with only this block.
    fn of(block: TrieBlock<A>, owner: T) -> NodeLink<A, T> {
        let mut node = Self::new(block.addr, block.shift);
        node.set(block.number, owner);
        Arc::new(node)
    }

    #[inline]
    fn addr_above(&self) -> A {
        self.addr >> self.shift >> STRIDE
    }

    /// The number of the longest block that contains the addresses with this index.
    #[inline]
    fn longest(&self, index: u32) -> Option<u32> {
        if self.long & 1 << index != 0 {
            return Some(CHILDREN + index);
        }
        let containing = self.short & CONTAINING[index as usize % CONTAINING.len()];
        containing.checked_ilog2()
    }

    #[inline]
    fn child(&self, index: u32) -> Option<&NodeLink<A, T>> {
        if self.below & 1 << index == 0 {
            return None;
        }
        self.children.get(ones_below(self.below, index))
    }

    fn child_mut(&mut self, index: u32) -> Option<&mut NodeLink<A, T>> {
        if self.below & 1 << index == 0 {
            return None;
        }
        self.children.get_mut(ones_below(self.below, index))
    }

    fn add_child(&mut self, index: u32, child: NodeLink<A, T>) {
        self.below |= 1 << index;
        let place = ones_below(self.below, index);
        insert_at(&mut self.children, place, child);
    }

    fn remove_child(&mut self, index: u32) {
        self.below &= !(1 << index);
        remove_at(&mut self.children, ones_below(self.below, index));
    }

    /// Where the owner of a block stands.
    #[inline]
    fn place(&self, number: u32) -> usize {
        if number >= CHILDREN {
            ones_below(self.long, number - CHILDREN)
        } else {
            self.long.count_ones() as usize + ones_below(self.short, number)
        }
    }

    fn has(&self, number: u32) -> bool {
        (u128::from(self.long) << CHILDREN | u128::from(self.short)) & 1 << number != 0
    }

    fn flip(&mut self, number: u32) {
        if number >= CHILDREN {
            self.long ^= 1 << (number - CHILDREN);
        } else {
            self.short ^= 1 << number;
        }
    }

    fn set(&mut self, number: u32, owner: T) -> Option<T> {
        let place = self.place(number);
        if self.has(number) {
            return Some(std::mem::replace(&mut self.owners[place], owner));
        }
        self.flip(number);
        insert_at(&mut self.owners, place, owner);
        None
    }

    fn take(&mut self, number: u32) -> Option<T> {
        if !self.has(number) {
            return None;
        }
        self.flip(number);
        let place = self.place(number);
        Some(remove_at(&mut self.owners, place))
    }
}

/// By index, the numbers of the shorter blocks that contain it.
const CONTAINING: [u64; CHILDREN as usize] = {
    let mut containing = [0; CHILDREN as usize];
    let mut index = 0;
    while index < CHILDREN {
        let mut number = (CHILDREN + index) >> 1;
        while number > 1 {
            containing[index as usize] |= 1 << number;
            number >>= 1;
        }
        index += 1;
    }
    containing
};

/// How many of the bits below `bit` are set. Often all are: counting takes a dozen instructions.
#[inline]
fn ones_below(bits: u64, bit: u32) -> usize {
    if bits == u64::MAX {
        return bit as usize;
    }
    (bits & ((1 << bit) - 1)).count_ones() as usize
}

/// These lists are as long as they need to be: there are a million of them.
fn insert_at<T>(list: &mut Box<[T]>, place: usize, item: T) {
    let mut items = std::mem::take(list).into_vec();
    items.reserve_exact(1);
    items.insert(place, item);
    *list = items.into_boxed_slice();
}

fn remove_at<T>(list: &mut Box<[T]>, place: usize) -> T {
    let mut items = std::mem::take(list).into_vec();
    let item = items.remove(place);
    *list = items.into_boxed_slice();
    item
}
