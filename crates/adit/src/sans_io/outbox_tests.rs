use super::*;

#[test]
fn what_was_not_taken_stays_and_moves_to_the_front() {
    let to = Endpoint::from(SocketAddr::from(([192, 0, 2, 1], 9)));
    let mut outbox = Outbox::new();
    let mut put = 0;
    while outbox.put(to, &[u8::try_from(put % 251).unwrap_or_default(); 1000]) {
        put += 1;
    }
    assert_eq!(put, (1 << 20) / 1000);
    assert_eq!(outbox.drain().take(700).count(), 700);
    assert_eq!(outbox.len(), put - 700);
    outbox.reclaim();
    assert!(outbox.room() > 700 * 1000);
    assert!(outbox.put(to, b"last"));
    let first = outbox.front().map(|train| train.bytes[999]);
    assert_eq!(first.map(usize::from), Some(700 % 251));
    assert_eq!(
        outbox.drain().last().map(|train| train.bytes),
        Some(&b"last"[..])
    );
    outbox.reclaim();
    assert_eq!((outbox.room(), outbox.pop()), (1 << 20, None));
}
