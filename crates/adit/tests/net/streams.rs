//! What streams carry.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use crate::{PATIENCE, echo, pair, pattern, send_and_receive, v4, v6};

#[test]
fn bytes_pass_both_ways_over_ipv4_and_ipv6() {
    let [first, second] = pair();
    let port = {
        let listener = second.listen_tcp(7).expect("a port");
        let port = listener.port();
        echo(listener);
        port
    };
    for address in [v4(2), v6(2)] {
        let target = SocketAddr::new(address, port);
        let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
        assert_eq!(stream.peer_addr(), target);
        let sent = pattern(8 << 20, 1);
        let back = send_and_receive(&stream, &sent);
        assert!(back == sent, "{} bytes came back", back.len());
    }
    let stats = second.stats();
    assert_eq!((stats.malformed, stats.failed), (0, 0), "{stats:?}");
}

#[test]
fn one_direction_goes_on_after_the_other_has_ended() {
    let [first, second] = pair();
    let listener = second.listen_tcp(0).expect("a port");
    let target = SocketAddr::new(v4(2), listener.port());
    let mut stream = first.connect_tcp(target, PATIENCE).expect("a stream");
    let mut other = listener.accept().expect("a connection");
    stream.write_all(b"a question").expect("room");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let mut question = String::new();
    other.read_to_string(&mut question).expect("an end");
    assert_eq!(question, "a question");
    // The other direction, long after.
    let answer = pattern(3 << 20, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&other).write_all(&answer).expect("room");
            other.shutdown(Shutdown::Write).expect("it is open");
        });
        let mut came = Vec::new();
        stream.read_to_end(&mut came).expect("an end");
        assert!(came == answer);
    });
    assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
}

#[test]
fn a_dropped_stream_still_delivers_what_was_written() {
    let [first, second] = pair();
    let listener = second.listen_tcp(0).expect("a port");
    let target = SocketAddr::new(v4(2), listener.port());
    let sent = pattern(1 << 20, 3);
    let mut stream = first.connect_tcp(target, PATIENCE).expect("a stream");
    let mut other = listener.accept().expect("a connection");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stream.write_all(&sent).expect("room");
            drop(stream);
        });
        let mut came = Vec::new();
        other.read_to_end(&mut came).expect("an end");
        assert!(came == sent);
    });
}

#[test]
fn reads_and_writes_wait_for_as_long_as_they_are_told() {
    let [first, second] = pair();
    let listener = second.listen_tcp(0).expect("a port");
    let target = SocketAddr::new(v4(2), listener.port());
    let mut stream = first.connect_tcp(target, PATIENCE).expect("a stream");
    let _other = listener.accept().expect("a connection");
    let short = Some(Duration::from_millis(10));
    stream.set_read_timeout(short).expect("a time");
    let error = stream.read(&mut [0]).expect_err("nothing comes");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    // Nobody reads: in the end there is no more room.
    stream.set_write_timeout(short).expect("a time");
    let bytes = vec![0; 1 << 20];
    let full = (0..100).find_map(|_| stream.write(&bytes).err());
    assert_eq!(
        full.map(|error| error.kind()),
        Some(std::io::ErrorKind::WouldBlock)
    );
    let none = listener.accept_timeout(Duration::from_millis(10));
    assert!(none.expect("it listens").is_none());
}

#[test]
fn a_reader_that_does_not_read_delays_no_other_stream() {
    let [first, second] = pair();
    let lazy = second.listen_tcp(1).expect("a port");
    let eager = second.listen_tcp(2).expect("a port");
    echo(eager);
    let stuck = first
        .connect_tcp(SocketAddr::new(v4(2), 1), PATIENCE)
        .expect("a stream");
    let unread = lazy.accept().expect("a connection");
    stuck.set_nonblocking(true).expect("it can");
    let filler = vec![0xaa; 1 << 16];
    let mut filled = 0_usize;
    let mut rests = 0;
    // Until nothing was taken for a while.
    while rests < 50 {
        match (&stuck).write(&filler) {
            Ok(len) => (filled, rests) = (filled + len, 0),
            Err(_) => {
                rests += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    let stream = first
        .connect_tcp(SocketAddr::new(v4(2), 2), PATIENCE)
        .expect("a stream");
    let sent = pattern(4 << 20, 4);
    assert!(send_and_receive(&stream, &sent) == sent);
    // What waited is all there.
    drop(stuck);
    let mut left = Vec::new();
    (&unread).read_to_end(&mut left).expect("an end");
    assert_eq!(left.len(), filled);
    assert!(left.iter().all(|byte| *byte == 0xaa));
}

#[test]
fn streams_survive_a_suspended_and_rebound_tunnel() {
    let [first, second] = pair();
    echo(second.listen_tcp(7).expect("a port"));
    let target = SocketAddr::new(v4(2), 7);
    let stream = first.connect_tcp(target, PATIENCE).expect("a stream");
    let sent = pattern(1 << 20, 5);
    let exchange = || {
        std::thread::scope(|scope| {
            scope.spawn(|| (&stream).write_all(&sent).expect("room"));
            let mut back = vec![0; sent.len()];
            (&stream).read_exact(&mut back).expect("all of it");
            assert!(back == sent);
        });
    };
    exchange();
    first.tunnel().suspend();
    first.tunnel().resume();
    exchange();
    first.tunnel().rebind();
    exchange();
}
