use super::*;

#[test]
fn gso_is_the_same_after_virtio_has_had_it() {
    for kind in [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp] {
        let gso = Some(Gso { kind, segment: 9 });
        assert_eq!(Gso::of_header(&Gso::header(gso)), gso);
    }
    assert_eq!(Gso::of_header(&Gso::header(None)), None);
}

#[test]
fn frames_of_spans_and_of_slices_have_the_same_bytes() {
    let span = |start, len| Span {
        buffer: 0,
        start,
        len,
    };
    let spans = [span(6, 2), span(0, 1)];
    let of_spans = Frame::of_spans(None, b"head", b"abcdefgh", &spans);
    let first = [&[0; VNET_HDR_LEN][..], b"headgh"].concat();
    let slices = [IoSlice::new(&first), IoSlice::new(b"a")];
    let of_slices = Frame::of_pieces(&slices);
    for frame in [Some(of_spans), of_slices].into_iter().flatten() {
        let mut all = vec![b'!'];
        frame.gather(&mut all);
        assert_eq!(all, b"!headgha");
        assert_eq!((frame.len(), frame.gso()), (7, None));
        let mut some = [b'.'; 9];
        assert_eq!(frame.copy_to(&mut some), 7);
        assert_eq!(&some, b"headgha..");
        assert_eq!(frame.copy_to(&mut some[..5]), 7);
    }
    assert!(of_slices.is_some() && Frame::of_pieces(&slices[1..]).is_none());
}
