use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use adit_io::make_dir;
use adit_proto::config::{DeviceChange, DeviceStatus, PeerStatus, PublicKey};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::client::STALL;
use super::*;
use crate::uapi::{ClientError, UapiClient, UapiError, UapiRequest, UapiResponse, UapiServer};
use crate::zeroized::Zeroized;

/// A directory of its own for each test.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("adit-ctl-{}-{n}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path_of("wg0")
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    pub(super) fn connect(&self) -> UnixStream {
        self.connect_to("wg0")
    }

    pub(super) fn connect_to(&self, name: &str) -> UnixStream {
        let stream = UnixStream::connect(self.path_of(name)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    pub(super) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process in the hands of an intruder, which answers with this again and again. It is given up on
/// after 20 s.
pub(crate) fn answers_without_end(dir: &Dir, piece: &'static [u8]) {
    std::fs::create_dir_all(&dir.0).unwrap();
    let listener = UnixListener::bind(dir.path()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until && stream.write_all(piece).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn an_answer_has_a_longest_time_and_length() {
    let endless = || std::io::repeat(b'x');
    let mut late = AnswerReader::new(endless(), Duration::ZERO);
    std::thread::sleep(Duration::from_millis(1));
    let error = late.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    late.begin();
    assert_eq!(late.read(&mut [0]).unwrap(), 1);
    let read = io::copy(&mut late, &mut io::sink()).unwrap_err();
    assert_eq!(read.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_link_to_a_directory_that_is_missing_makes_it() {
    let dir = Dir::new();
    std::fs::create_dir(&dir.0).unwrap();
    std::os::unix::fs::symlink("real/run", dir.0.join("run")).unwrap();
    let server = UapiServer::bind_in(&dir.0.join("run/wireguard"), "wg0").unwrap();
    assert!(dir.0.join("real/run/wireguard/wg0.sock").exists());
    drop(server);
}

/// A device that only remembers its mark.
fn serve(service: &Service, dir: &Dir) -> (Serving, mpsc::Receiver<String>) {
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    let mark = Mutex::new(0);
    let handler = move |request| match request {
        UapiRequest::Get => UapiResponse::Status(DeviceStatus {
            fwmark: *mark.lock().unwrap(),
            ..DeviceStatus::default()
        }),
        UapiRequest::Set(change) if change.listen_port == Some(1) => {
            UapiResponse::Refused(UapiError::new(98, "the port is in use"))
        }
        UapiRequest::Set(change) => {
            let new = change.fwmark.unwrap_or(0);
            let old = std::mem::replace(&mut *mark.lock().unwrap(), new);
            let values = vec![("fwmark", old.to_string(), new.to_string())];
            UapiResponse::Changed(crate::uapi::Changed::of_settings(values))
        }
        UapiRequest::Alive
        | UapiRequest::Down
        | UapiRequest::Threads { .. }
        | UapiRequest::Names { .. }
        | UapiRequest::Endpoints { .. }
        | UapiRequest::Call { .. }
        | UapiRequest::Allow { .. } => UapiResponse::Done,
        UapiRequest::Add(name) if name == "wg1" => UapiResponse::Done,
        UapiRequest::Add(name) => {
            UapiResponse::Explained(UapiError::new(22, format!("no room for\n{name}")))
        }
    };
    let (tell, told) = mpsc::channel();
    let notify = move |event: ServerEvent<'_>| tell.send(format!("{event:?}")).unwrap();
    let tell = std::sync::Mutex::new(notify);
    let serving = server
        .serve(service, handler, move |event| tell.lock().unwrap()(event))
        .unwrap();
    (serving, told)
}

#[test]
fn a_request_to_add_an_interface_is_done_or_explained() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_serving, _told) = serve(&service, &dir);
    let mut client = crate::uapi::UapiClient::connect_in(&dir.0, "wg0").unwrap();
    client.add("wg1").unwrap();
    let refused = client.add("wg2").unwrap_err();
    assert_eq!(refused.to_string(), "no room for wg2");
    let answer = ask(&mut dir.connect(), b"add=1\ninterface=wg2\n\n");
    assert_eq!(answer, "message=no room for wg2\nerrno=22\n\n");
}

pub(super) fn ask(stream: &mut UnixStream, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = vec![0; 4096];
    let n = stream.read(&mut answer).unwrap();
    String::from_utf8(answer[..n].to_vec()).unwrap()
}

fn mark(n: u32) -> DeviceChange {
    DeviceChange {
        fwmark: Some(n),
        ..DeviceChange::default()
    }
}

#[test]
fn the_socket_is_only_for_its_owner_and_leaves_nothing_behind() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (serving, _told) = serve(&service, &dir);
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    assert_eq!(mode(&dir.0), 0o755);
    assert_eq!(mode(&dir.path()), 0o600);
    assert_eq!(dir.names(), ["wg0.name", "wg0.sock"]);
    serving.stop();
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn the_file_beside_the_socket_is_written_by_its_owner_alone() {
    let dir = Dir::new();
    let path = dir.0.join("wg0.name");
    for left_there in [None, Some(0o666), Some(0o777)] {
        if let Some(mode) = left_there {
            std::fs::create_dir_all(&dir.0).unwrap();
            std::fs::write(&path, "wg1\n").unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let service = Service::start().unwrap();
        let (serving, _told) = serve(&service, &dir);
        assert_eq!(path.metadata().unwrap().mode() & 0o7133, 0);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "wg0\n");
        serving.stop();
    }
}

/// Who comes late has few before it, however many others try.
#[test]
fn few_wait_to_be_accepted() {
    let dir = Dir::new();
    let _server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    let address = net::SocketAddrUnix::new(dir.path()).unwrap();
    let connect = || {
        let flags = net::SocketFlags::NONBLOCK | net::SocketFlags::CLOEXEC;
        let (family, kind) = (net::AddressFamily::UNIX, net::SocketType::STREAM);
        let socket = net::socket_with(family, kind, flags, None).unwrap();
        net::connect(&socket, &address).map(|()| socket)
    };
    let waiting: Vec<OwnedFd> = (0..200).map_while(|_| connect().ok()).collect();
    assert!((1..=20).contains(&waiting.len()), "{}", waiting.len());
}

/// What a client is told never ends.
struct Endless(Arc<AtomicUsize>);

impl Talk for Endless {
    fn refuse_for_memory(&mut self) {}

    fn hear(&mut self, input: &mut &[u8], out: &mut Zeroized) -> bool {
        *input = &[];
        self.go_on(out);
        true
    }

    fn go_on(&mut self, out: &mut Zeroized) {
        self.0.fetch_add(1, Ordering::Relaxed);
        out.extend(b"and so on");
    }

    fn end(&mut self, _: &mut Zeroized) {}

    fn is_within_request(&self) -> bool {
        false
    }

    fn held(&self) -> usize {
        0
    }
}

#[test]
fn a_long_answer_gives_others_their_turns() {
    let pieces = Arc::new(AtomicUsize::new(0));
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let now = std::time::Instant::now();
    let talk = Box::new(Endless(Arc::clone(&pieces)));
    let mut client =
        super::client::Client::new(theirs.into(), (0, 0), now, talk, Zeroized::default());
    ours.write_all(b"?").unwrap();
    for turns in 1..=3 {
        assert!(client.step(now));
        let told = pieces.load(Ordering::Relaxed);
        assert!((turns..=20 * turns).contains(&told), "{told} in {turns}");
    }
}

#[test]
fn the_file_beside_the_socket_has_its_mode_whatever_the_umask() {
    let name = "the_file_beside_the_socket_is_written_by_its_owner_alone";
    let test = format!("socket::tests::{name}");
    let output = std::process::Command::new("sh")
        .args(["-c", "umask 0; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &test])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
fn a_connection_serves_several_requests_one_write_each() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_serving, told) = serve(&service, &dir);
    let mut client = dir.connect();
    assert_eq!(ask(&mut client, b"set=1\nfwmark=7\n\n"), "errno=0\n\n");
    // Who changed what is told, and only of a change that was applied.
    let configured = told.recv().unwrap();
    let pid = format!("pid: {}", std::process::id());
    assert!(configured.contains(&pid) && configured.contains("fwmark"));
    assert_eq!(ask(&mut client, b"get=1\n\n"), "fwmark=7\nerrno=0\n\n");
    assert_eq!(
        ask(&mut client, b"set=1\nlisten_port=1\n\n"),
        "errno=98\n\n"
    );
    assert!(told.recv().unwrap().contains("in use"));
    assert_eq!(
        ask(&mut client, b"set=1\nfwmark=x\nfwmark=9\n\n"),
        "errno=22\n\n"
    );
    assert_eq!(ask(&mut client, b"get=1\n\n"), "fwmark=7\nerrno=0\n\n");
    // Several at once are answered in order.
    client
        .write_all(b"get=1\n\nset=1\nfwmark=0\n\nget=1\n\n")
        .unwrap();
    let expected = "fwmark=7\nerrno=0\n\nerrno=0\n\nerrno=0\n\n";
    let mut all = vec![0; expected.len()];
    client.read_exact(&mut all).unwrap();
    assert_eq!(String::from_utf8(all).unwrap(), expected);
}

#[test]
fn our_client_speaks_to_our_server() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_serving, _told) = serve(&service, &dir);
    let mut client = UapiClient::connect_in(&dir.0, "wg0").unwrap();
    client.set(&mark(5)).unwrap();
    assert_eq!(client.get().unwrap().fwmark, 5);
    let change = DeviceChange {
        listen_port: Some(1),
        ..mark(6)
    };
    assert!(matches!(client.set(&change), Err(ClientError::Refused(98))));
    assert_eq!(client.get().unwrap().fwmark, 5);
    assert_eq!(crate::uapi::interfaces(&dir.0), ["wg0"]);
}

#[test]
fn our_client_understands_wireguard_go_and_keys_of_the_future() {
    let dir = Dir::new();
    std::fs::create_dir(&dir.0).unwrap();
    let listener = UnixListener::bind(dir.path()).unwrap();
    let key = "ab".repeat(32);
    let answer = format!(
        "private_key={key}\nshiny=new\npublic_key={key}\nnewer=3\nlast_handshake_time_sec=3\n\
         last_handshake_time_nsec=9\nendpoint=[fe80::1%lo]:3\nallowed_ip=10.0.0.0/8\nerrno=0\n\n"
    );
    let thread = std::thread::spawn(move || {
        for text in [answer.as_str(), "errno=-22\n\n", "x\n\n", "errno=0"] {
            let (mut stream, _) = listener.accept().unwrap();
            _ = stream.read(&mut [0; 512]);
            stream.write_all(text.as_bytes()).unwrap();
        }
    });
    let status = UapiClient::connect_in(&dir.0, "wg0")
        .unwrap()
        .get()
        .unwrap();
    assert!(status.public_key.is_some());
    let peer = &status.peers[0];
    assert_eq!(peer.last_handshake, Some(Duration::new(3, 9)));
    assert_eq!(peer.endpoint.unwrap().to_string(), "[fe80::1%1]:3");
    let set = UapiClient::connect_in(&dir.0, "wg0").unwrap().set(&mark(1));
    assert!(matches!(set, Err(ClientError::Refused(22))), "{set:?}");
    let nonsense = UapiClient::connect_in(&dir.0, "wg0").unwrap().get();
    assert!(matches!(nonsense, Err(ClientError::Protocol(_))));
    let cut = UapiClient::connect_in(&dir.0, "wg0").unwrap().get();
    assert!(matches!(cut, Err(ClientError::Io(_))));
    // The kernel's word for a read that timed out tells nobody anything.
    let late = ClientError::Io(std::io::ErrorKind::WouldBlock.into());
    assert_eq!(
        late.to_string(),
        "no answer: its process is stopped or hangs (`pgrep -af adit` finds it, `kill -CONT PID` has it go on)"
    );
    thread.join().unwrap();
}

#[test]
fn nobody_waits_for_long_for_a_process_that_accepts_nothing() {
    let dir = Dir::new();
    std::fs::create_dir(&dir.0).unwrap();
    let listener = UnixListener::bind(dir.path()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let patience = Duration::from_millis(20);
    let mut first = super::connect(&dir.path(), patience).unwrap();
    let error = first.read(&mut [0]).unwrap_err();
    assert!(ClientError::from(error).is_silence());
    // There is no room for a second.
    let error = super::connect(&dir.path(), patience).unwrap_err();
    assert!(ClientError::from(error).is_silence());
}

#[test]
fn a_dead_socket_is_taken_over_and_a_living_one_is_not() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    std::fs::create_dir(&dir.0).unwrap();
    drop(UnixListener::bind(dir.path()).unwrap());
    assert!(dir.path().exists());
    let (serving, _told) = serve(&service, &dir);
    let second = UapiServer::bind_in(&dir.0, "wg0").unwrap_err();
    assert!(matches!(second, BindError::AlreadyRunning(_)), "{second}");
    assert_eq!(ask(&mut dir.connect(), b"get=1\n\n"), "errno=0\n\n");
    drop(serving);
    let (_serving, _told) = serve(&service, &dir);
}

#[test]
fn of_many_that_start_at_once_one_wins() {
    let dir = Dir::new();
    std::fs::create_dir(&dir.0).unwrap();
    for _ in 0..50 {
        drop(UnixListener::bind(dir.path()).unwrap());
        let barrier = std::sync::Barrier::new(8);
        let bound: Vec<_> = std::thread::scope(|scope| {
            let bind = || {
                barrier.wait();
                UapiServer::bind_in(&dir.0, "wg0")
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind)).collect();
            (threads.into_iter())
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1);
        assert!(UnixStream::connect(dir.path()).is_ok());
    }
}

/// Every user may open the directory.
#[test]
fn a_user_who_locks_the_directory_keeps_no_socket_out() {
    let dir = Dir::new();
    make_dir(&dir.0).unwrap();
    let handle = std::fs::File::open(&dir.0).unwrap();
    flock(&handle, FlockOperation::LockExclusive).unwrap();
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    drop(dir.connect());
    drop(server);
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn a_socket_that_replaced_ours_is_not_removed() {
    let dir = Dir::new();
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    std::fs::remove_file(dir.path()).unwrap();
    let other = UnixListener::bind(dir.path()).unwrap();
    drop(server);
    assert!(UnixStream::connect(dir.path()).is_ok());
    drop(other);
}

#[test]
fn what_cannot_be_bound_is_named() {
    let dir = Dir::new();
    std::fs::create_dir(&dir.0).unwrap();
    for name in ["", "..", "a/b", "sixteen-letters-", "wg 0", "wg\n"] {
        let error = UapiServer::bind_in(&dir.0, name).unwrap_err();
        assert!(matches!(error, BindError::Name(_)), "{name:?}: {error}");
    }
    std::fs::write(dir.path(), "precious").unwrap();
    let error = UapiServer::bind_in(&dir.0, "wg0").unwrap_err();
    assert!(matches!(error, BindError::Occupied(_)), "{error}");
    assert_eq!(std::fs::read(dir.path()).unwrap(), b"precious");
    let error = UapiServer::bind_in(Path::new("/proc/adit"), "wg0").unwrap_err();
    assert!(error.to_string().contains("/proc/adit"), "{error}");
}

#[test]
fn removal_of_the_file_is_noticed_and_a_successor_is_left_alone() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (serving, told) = serve(&service, &dir);
    std::fs::remove_file(dir.path()).unwrap();
    assert_eq!(
        told.recv_timeout(Duration::from_secs(5)).unwrap(),
        "Removed"
    );
    let (_successor, _told) = serve(&service, &dir);
    drop(serving);
    assert_eq!(ask(&mut dir.connect(), b"get=1\n\n"), "errno=0\n\n");
    assert!(told.try_recv().is_err(), "it is said once");
}

#[test]
fn replacement_of_the_file_is_noticed() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (serving, told) = serve(&service, &dir);
    std::fs::write(dir.0.join("other"), "").unwrap();
    std::fs::rename(dir.0.join("other"), dir.path()).unwrap();
    assert_eq!(
        told.recv_timeout(Duration::from_secs(5)).unwrap(),
        "Removed"
    );
    drop(serving);
    assert!(dir.path().exists());
}

#[test]
fn a_socket_passes_from_parent_to_child() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let fd = UapiServer::bind_in(&dir.0, "wg0").unwrap().into_fd();
    let mut early = dir.connect();
    early.write_all(b"get=1\n\n").unwrap();
    let server = UapiServer::adopt_in(&dir.0, "wg0", fd).unwrap();
    let serving = server
        .serve(&service, |_| UapiResponse::Done, |_| ())
        .unwrap();
    let mut answer = [0; 9];
    early.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"errno=0\n\n");
    drop(serving);
    assert_eq!(dir.names(), [""; 0]);
    let no_socket = std::fs::File::open("/dev/null").unwrap().into();
    let error = UapiServer::adopt_in(&dir.0, "wg0", no_socket).unwrap_err();
    assert!(matches!(error, BindError::NotListening));
}

/// A parent, or the process before this one, may have let any number of clients wait.
#[test]
fn a_socket_that_is_passed_on_has_as_few_clients_wait_as_any() {
    let waiting = |dir: &Dir, server: UapiServer| {
        let path = net::SocketAddrUnix::new(dir.path()).unwrap();
        let clients: Vec<OwnedFd> = (0..200)
            .map_while(|_| {
                let client = stream(net::SocketFlags::NONBLOCK).unwrap();
                net::connect(&client, &path).ok().map(|()| client)
            })
            .collect();
        drop(server);
        clients.len()
    };
    let dir = Dir::new();
    let bound = waiting(&dir, UapiServer::bind_in(&dir.0, "wg0").unwrap());
    let fd = UapiServer::bind_in(&dir.0, "wg0").unwrap().into_fd();
    net::listen(&fd, 128).unwrap();
    let passed = waiting(&dir, UapiServer::adopt_in(&dir.0, "wg0", fd).unwrap());
    assert_eq!(passed, bound);
}

#[test]
fn who_has_a_run_that_is_read_only_learns_what_to_mount() {
    let error = |errno: Errno| BindError::Io("make", "/run/adit".into(), errno.into()).to_string();
    assert!(
        error(Errno::ROFS).contains("mount a tmpfs"),
        "{}",
        error(Errno::ROFS)
    );
    assert!(!error(Errno::ACCESS).contains("tmpfs"));
}

/// User and system time of a thread, in clock ticks.
fn cpu_ticks(task: &Path) -> u64 {
    let stat = std::fs::read_to_string(Path::new("/proc").join(task).join("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = [fields[11], fields[12]].map(|field| field.parse::<u64>().unwrap());
    ticks[0] + ticks[1]
}

#[test]
fn clients_that_stall_vanish_or_never_read_stop_nobody() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let big = DeviceStatus {
        peers: (0..3_000u16).map(|n| peer(n.to_ne_bytes()[0])).collect(),
        ..DeviceStatus::default()
    };
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let (task, serves) = mpsc::channel();
    let handler = move |request| match request {
        UapiRequest::Get => {
            count.fetch_add(1, Ordering::Relaxed);
            UapiResponse::Status(big.clone())
        }
        UapiRequest::Set(_)
        | UapiRequest::Add(_)
        | UapiRequest::Alive
        | UapiRequest::Down
        | UapiRequest::Threads { .. }
        | UapiRequest::Names { .. }
        | UapiRequest::Endpoints { .. }
        | UapiRequest::Call { .. }
        | UapiRequest::Allow { .. } => {
            let _ = task.send(std::fs::read_link("/proc/thread-self").unwrap());
            UapiResponse::Done
        }
    };
    let _serving = server.serve(&service, handler, |_| ()).unwrap();
    let mut half = dir.connect();
    half.write_all(b"set=1\nlisten_po").unwrap();
    let mut deaf = dir.connect();
    deaf.set_nonblocking(true).unwrap();
    // Far more requests than answers fit anywhere.
    for _ in 0..10_000 {
        if deaf.write_all(b"get=1\n\n").is_err() {
            break;
        }
    }
    let mut long = dir.connect();
    for _ in 0..160 {
        long.write_all(&[b'a'; 65_536]).unwrap();
    }
    for _ in 0..50 {
        let mut gone = dir.connect();
        gone.write_all(b"get=1\n\n").unwrap();
    }
    let start = Instant::now();
    for _ in 0..20 {
        assert_eq!(ask(&mut dir.connect(), b"set=1\n\n"), "errno=0\n\n");
    }
    assert!(start.elapsed() < STALL / 2, "{:?}", start.elapsed());
    let asked = calls.load(Ordering::Relaxed);
    assert!(
        asked <= 60,
        "a client that reads no answer gets one, but {asked} were made"
    );
    // The thread sleeps while clients stall.
    let task = serves.recv().unwrap();
    let before = cpu_ticks(&task);
    std::thread::sleep(Duration::from_millis(500));
    let spent = cpu_ticks(&task) - before;
    assert!(spent < 30, "{spent} ticks of 10 ms in half a second");
    // A client that stalls within a request gets an errno before it is dropped.
    let mut answer = String::new();
    half.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "errno=71\n\n");
    assert!(start.elapsed() > STALL - Duration::from_secs(3));
    let mut answer = String::new();
    long.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "errno=71\n\n");
}

fn peer(n: u8) -> PeerStatus {
    PeerStatus::new(PublicKey([n; 32]))
}

#[test]
fn when_there_are_too_many_clients_the_most_silent_makes_room() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_serving, _told) = serve(&service, &dir);
    let mut clients: Vec<UnixStream> = Vec::new();
    // As many as SPEC.md says.
    for _ in 0..32 {
        let mut client = dir.connect();
        assert_eq!(ask(&mut client, b"get=1\n\n"), "errno=0\n\n");
        clients.push(client);
    }
    assert_eq!(ask(&mut clients[0], b"get=1\n\n"), "errno=0\n\n");
    assert_eq!(ask(&mut dir.connect(), b"get=1\n\n"), "errno=0\n\n");
    assert_eq!(ask(&mut clients[0], b"get=1\n\n"), "errno=0\n\n");
    assert_eq!(
        clients[1].read(&mut [0; 1]).unwrap(),
        0,
        "this one was silent for longest"
    );
}

#[test]
fn garbage_gets_an_answer_and_the_end() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_serving, _told) = serve(&service, &dir);
    for (garbage, expected) in [
        (&b"hello\n\n"[..], "errno=71\n\n"),
        (b"put=1\n\n", "errno=22\n\n"),
        (b"\0\xff\n\n", "errno=22\n\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\n", "errno=71\n\n"),
        (b"get=1", "errno=71\n\n"),
    ] {
        let mut client = dir.connect();
        client.write_all(garbage).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, expected, "{garbage:?}");
    }
    assert_eq!(ask(&mut dir.connect(), b"get=2\n\n"), "errno=71\n\n");
}

#[test]
fn a_long_answer_comes_in_pieces_and_whole() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let peers = |count: u8| {
        let keys = (0..5u8).flat_map(move |a| (0..count).map(move |b| [a, b]));
        keys.map(|[a, b]| PeerStatus::new(PublicKey([[a, b]; 16].concat().try_into().unwrap())))
            .collect()
    };
    let status = move || DeviceStatus {
        listen_port: 7,
        peers: peers(200),
        ..DeviceStatus::default()
    };
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    let handler = move |_| UapiResponse::Status(status());
    let _serving = server.serve(&service, handler, |_| ()).unwrap();
    let mut client = UapiClient::connect_in(&dir.0, "wg0").unwrap();
    let text = crate::uapi::format_status(&client.get().unwrap());
    assert_eq!(client.get().unwrap().peers.len(), 1000);
    // A client that asks again before it reads, and stops writing, gets both.
    let mut both = dir.connect();
    both.write_all(b"get=1\n\nget=1\n\n").unwrap();
    both.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    both.read_to_end(&mut answers).unwrap();
    assert!(answers == [&text[..], &text].concat());
}
