//! A service without free file descriptors. The limit is the whole process's, so this test has a
//! process of its own.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use adit_ctl::uapi::{UapiResponse, UapiServer};
use adit_ctl::{ServerEvent, Service};
use rustix::process::{Resource, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(20);

fn ask(client: &mut UnixStream) {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"get=1\n\n").unwrap();
    let mut answer = [0; 9];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"errno=0\n\n");
}

/// The other end may still be busy with closing what makes room for this one.
fn connect(path: &Path) -> UnixStream {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many descriptors this process has, the one for counting among them.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The service closes its ends some time after the clients have closed theirs. Without this wait
/// it could do so after the free descriptors were taken, and have one again.
fn wait_until_left(without_clients: usize) {
    let begun = Instant::now();
    while descriptors() > without_clients {
        assert!(begun.elapsed() < PATIENCE, "{} descriptors", descriptors());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn without_descriptors_the_silent_make_room_for_others() {
    let dir = std::env::temp_dir().join(format!("adit-descriptors-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&dir);
    let path = dir.join("wg0.sock");
    let service = Service::start().unwrap();
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let notify = move |event: ServerEvent<'_>| {
        assert!(matches!(event, ServerEvent::Failed(_)), "{event:?}");
        tell.lock().unwrap().send(()).unwrap();
    };
    let server = UapiServer::bind_in(&dir, "wg0").unwrap();
    let serving = server
        .serve(&service, |_| UapiResponse::Done, notify)
        .unwrap();
    let without_clients = descriptors();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    let open = || -> Vec<File> { std::iter::from_fn(|| File::open("/dev/null").ok()).collect() };

    // 1. Few are left: each client that says nothing goes with the next one.
    let mut files = open();
    files.truncate(files.len() - 8);
    let mut silent = VecDeque::new();
    for _ in 0..20 {
        silent.push_back(connect(&path));
        silent.truncate(2);
        silent.rotate_right(1);
    }
    ask(&mut connect(&path));
    drop((silent, files));
    wait_until_left(without_clients);

    // 2. None is left: one end of a client has the last, and the other end has none.
    let mut first = connect(&path);
    ask(&mut first);
    let mut files = open();
    files.pop();
    let mut second = connect(&path);
    ask(&mut second);
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(first.read(&mut [0; 1]).unwrap(), 0, "it has made room");
    assert!(told.try_recv().is_err(), "nobody had to wait");

    // 3. There is no client that could make room.
    drop((first, second));
    drop(files);
    ask(&mut connect(&path));
    wait_until_left(without_clients);
    let mut files = open();
    files.pop();
    let mut third = connect(&path);
    told.recv_timeout(PATIENCE).unwrap();
    drop(files);
    ask(&mut third);
    serving.stop();
    std::fs::remove_dir(&dir).unwrap();
}
