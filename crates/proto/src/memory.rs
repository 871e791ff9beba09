//! Whether memory is there, for what allocates without asking: an allocation that fails ends the
//! process.

use std::hint::black_box;

/// Whether this process may have so many bytes more, in one piece.
///
/// They are taken and given back at once. Nothing is written to them, so that a large piece costs
/// two system calls. The limits that count are those of the process (RLIMIT_AS, RLIMIT_DATA).
pub fn can_allocate(bytes: usize) -> bool {
    let mut block = Vec::<u8>::new();
    let is_there = block.try_reserve_exact(bytes).is_ok();
    // A compiler may leave out an allocation that nobody uses, and take it for a success.
    black_box(&mut block);
    is_there
}

/// The same in pieces of `size` bytes, as the allocator of this thread hands out such pieces now.
///
/// Close to a limit it can be another answer than that of [`can_allocate`]: where malloc(3) cannot
/// enlarge the heap of a thread, it takes a whole page for each piece.
pub fn can_allocate_pieces(bytes: usize, size: usize) -> bool {
    let count = bytes / size.max(1);
    let mut pieces = Vec::<Vec<u8>>::new();
    pieces.try_reserve_exact(count).is_ok()
        && (0..count).all(|_| {
            let mut piece = Vec::new();
            let is_there = piece.try_reserve_exact(size).is_ok();
            pieces.push(black_box(piece));
            is_there
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_may_have_more_than_there_is() {
        assert!(can_allocate(1 << 20) && can_allocate_pieces(1 << 20, 100));
        assert!(!can_allocate(usize::MAX / 4) && !can_allocate_pieces(usize::MAX / 4, 100));
        assert!(can_allocate(0) && can_allocate_pieces(0, 0));
    }
}
