use super::*;

#[test]
fn an_echo_request_carries_a_checksum_that_sums_to_ffff() {
    for sequence in [0, 1, 0xff, 0xfffe, 0xffff] {
        let message = echo_request(sequence);
        let sum: u32 = message
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}

#[test]
fn only_the_reply_to_this_request_answers_it() {
    let request = echo_request(7);
    let mut packet = vec![0x45; 1];
    packet.resize(20, 0);
    packet.extend(request);
    assert!(
        !answers(&packet, &request),
        "the request itself is no reply"
    );
    packet[20] = 0;
    assert!(answers(&packet, &request));
    assert!(!answers(&packet, &echo_request(8)));
    assert!(!answers(&packet[..70], &request));
    assert!(!answers(&[], &request));
    assert!(!answers(&[0x4f], &request));
}
