//! A service without free file descriptors. The limit is the whole process's, so this test has a
//! process of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use adit_ctl::uapi::{Response, Server};
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

#[test]
fn without_descriptors_only_new_clients_wait() {
    let dir = std::env::temp_dir().join(format!("adit-descriptors-{}", std::process::id()));
    let path = dir.join("wg0.sock");
    let service = Service::start().unwrap();
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let notify = move |event: ServerEvent<'_>| {
        assert!(matches!(event, ServerEvent::Failed(_)), "{event:?}");
        tell.lock().unwrap().send(()).unwrap();
    };
    let server = Server::bind_in(&dir, "wg0").unwrap();
    let serving = server.serve(&service, |_| Response::Done, notify).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    ask(&mut client);
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // One descriptor is free: this end of a second client has it, and the other end has none.
    files.pop();
    let mut second = UnixStream::connect(&path).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    ask(&mut client);
    drop(files);
    ask(&mut second);
    serving.stop();
    std::fs::remove_dir(&dir).unwrap();
}
