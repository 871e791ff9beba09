//! Many sockets on one thread.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use adit_proto::config::{Cidr, DeviceStatus, PeerStatus, PublicKey};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::tests::{Dir, ask};
use super::{ServerEvent, Service, Serving};
use crate::status::{self, InterfaceJson};
use crate::uapi::{UapiRequest, UapiResponse, UapiServer};

const GET: &[u8] = b"get=1\n\n";
const DONE: &str = "errno=0\n\n";

/// How long to wait for what has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A socket that answers everything with success and tells what happens to it.
fn serve(service: &Service, dir: &Dir, name: &str) -> (Serving, mpsc::Receiver<String>) {
    let server = UapiServer::bind_in(&dir.0, name).unwrap();
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let notify = move |event: ServerEvent<'_>| {
        _ = tell.lock().unwrap().send(format!("{event:?}"));
    };
    let serving = server
        .serve(service, |_| UapiResponse::Done, notify)
        .unwrap();
    (serving, told)
}

/// Whether the service has ended this client's connection.
fn has_ended(client: &mut UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    let read = client.read(&mut [0; 16]);
    client.set_nonblocking(false).unwrap();
    read.is_ok_and(|n| n == 0)
}

#[test]
fn one_thread_serves_two_hundred_sockets() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (tell, told) = mpsc::channel::<ThreadId>();
    let mut serving: Vec<Serving> = (0..200)
        .map(|n| {
            let tell = Mutex::new(tell.clone());
            let handler = move |_| {
                let thread = std::thread::current().id();
                tell.lock().unwrap().send(thread).unwrap();
                UapiResponse::Status(DeviceStatus {
                    fwmark: n + 1,
                    ..DeviceStatus::default()
                })
            };
            let server = UapiServer::bind_in(&dir.0, &format!("wg{n}")).unwrap();
            server.serve(&service, handler, |_| ()).unwrap()
        })
        .collect();
    let mut clients: Vec<UnixStream> = (0..200)
        .map(|n| dir.connect_to(&format!("wg{n}")))
        .collect();
    for _ in 0..2 {
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(
                ask(client, GET),
                format!("fwmark={}\nerrno=0\n\n", n + 1),
                "each socket has its own handler"
            );
        }
    }
    let first = told.recv().unwrap();
    assert!(told.try_iter().all(|thread| thread == first));
    assert_ne!(first, std::thread::current().id());
    // Every other one goes.
    let mut n = 0;
    serving.retain(|_| {
        n += 1;
        n % 2 == 1
    });
    for (n, client) in clients.iter_mut().enumerate() {
        let gone = n % 2 == 1;
        assert_eq!(has_ended(client), gone, "wg{n}");
        assert_eq!(!dir.path_of(&format!("wg{n}")).exists(), gone, "wg{n}");
        if !gone {
            assert_eq!(ask(client, GET), format!("fwmark={}\nerrno=0\n\n", n + 1));
        }
    }
    drop(serving);
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn a_panic_hangs_up_its_client_and_no_other() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_other, _told) = serve(&service, &dir, "wg1");
    let mut others = ["wg1"; 2].map(|name| dir.connect_to(name));
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let handler = |request| match request {
        UapiRequest::Set(_) => panic!("a defect"),
        _ => UapiResponse::Done,
    };
    // What is told of it may panic, too.
    let notify = move |event: ServerEvent<'_>| {
        _ = tell.lock().unwrap().send(format!("{event:?}"));
        panic!("another one");
    };
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    let _serving = server.serve(&service, handler, notify).unwrap();
    let mut calm = dir.connect_to("wg0");
    for _ in 0..3 {
        let mut client = dir.connect_to("wg0");
        client.write_all(b"set=1\nfwmark=1\n\n").unwrap();
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0, "it is hung up");
        let event = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(event, "Panicked(\"a defect\")");
        assert_eq!(ask(&mut calm, GET), DONE);
        for other in &mut others {
            assert_eq!(ask(other, GET), DONE);
        }
    }
}

#[test]
fn control_and_status_sockets_share_a_service() {
    let (control, report) = (Dir::new(), Dir::new());
    let service = Service::start().unwrap();
    let (_serving, _told) = serve(&service, &control, "wg0");
    let server = status::StatusServer::bind_in(&report.0, "wg0", None).unwrap();
    let interface = || InterfaceJson::new("wg0", &DeviceStatus::default(), false);
    let events = status::Events::new("wg0");
    let answer = move || Some(status::Report::new(interface(), Vec::new(), |_| None));
    let serving = server
        .serve(&service, &events, answer, |_| None, |_| ())
        .unwrap();
    assert_eq!(status::fetch_in(&report.0, "wg0").unwrap(), interface());
    serving.stop();
    assert_eq!(report.names(), [""; 0]);
    assert_eq!(ask(&mut control.connect(), GET), DONE);
}

#[test]
fn a_flooded_socket_leaves_another_alone() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_flooded, _told) = serve(&service, &dir, "wg0");
    let (_other, _told) = serve(&service, &dir, "wg1");
    let mut client = dir.connect_to("wg1");
    assert_eq!(ask(&mut client, GET), DONE);
    let mut stalled = Vec::new();
    for n in 0..100 {
        let mut flood = dir.connect();
        if n % 2 == 0 {
            flood.write_all(b"set=1\nlisten_po").unwrap();
        } else {
            // More answers than fit the client, which reads none.
            flood.set_nonblocking(true).unwrap();
            while flood.write_all(&GET.repeat(1000)).is_ok() {}
        }
        stalled.push(flood);
        if n % 10 == 0 {
            assert_eq!(ask(&mut client, GET), DONE);
            assert_eq!(ask(&mut dir.connect_to("wg1"), GET), DONE);
        }
    }
    assert_eq!(ask(&mut client, GET), DONE);
    // Nor does it need a client's end to be served itself.
    assert_eq!(ask(&mut dir.connect(), GET), DONE);
}

#[test]
fn of_too_many_clients_the_busiest_socket_loses_one() {
    // Both ends of all clients.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let names: Vec<String> = (0..35).map(|n| format!("wg{n}")).collect();
    let _serving: Vec<_> = (names.iter())
        .map(|name| serve(&service, &dir, name))
        .collect();
    let connect = |name: &str| {
        let mut client = dir.connect_to(name);
        assert_eq!(ask(&mut client, GET), DONE);
        client
    };
    let mut first = connect("wg33");
    // 1,024 with the first: 31 sockets with 32 clients, and one with 31.
    let mut others = Vec::new();
    for name in &names[..31] {
        others.extend((0..32).map(|_| connect(name)));
    }
    others.extend((0..31).map(|_| connect("wg31")));
    assert!(!others.iter_mut().any(has_ended));
    // A socket that has no client yet gets one, and so does the one that has 31.
    let mut last = connect("wg34");
    others.push(connect("wg31"));
    let ended: Vec<usize> = (0..others.len())
        .filter(|&n| has_ended(&mut others[n]))
        .collect();
    // First the one that was silent for longest among 31 sockets with as many; then that of the 30
    // others and wg31, which would have as many.
    assert_eq!(ended, [0, 32]);
    for client in [&mut first, &mut last] {
        assert_eq!(ask(client, GET), DONE, "it was silent for longer, alone");
    }
}

/// The beginning of a `set` of so many peers.
fn peers(count: u32) -> Vec<u8> {
    let peer = |n: u32| format!("public_key={n:064x}\nallowed_ip=10.0.0.0/8\n");
    let peers: String = (0..count).map(peer).collect();
    format!("set=1\n{peers}").into_bytes()
}

/// Peers that take more than all clients together may hold.
const MANY: u32 = 100_000;

#[test]
fn large_requests_at_once_wait_for_each_other() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let _served = ["wg0", "wg1"].map(|name| serve(&service, &dir, name));
    let large = [peers(MANY), b"\n".to_vec()].concat();
    std::thread::scope(|scope| {
        for n in 0..6 {
            let mut client = dir.connect_to(["wg0", "wg1"][n % 2]);
            let large = &large;
            scope.spawn(move || assert_eq!(ask(&mut client, large), DONE));
        }
    });
}

#[test]
fn who_keeps_others_waiting_for_memory_is_given_up() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let _served = ["wg0", "wg1"].map(|name| serve(&service, &dir, name));
    // Together these hold what there is.
    let mut holders: Vec<UnixStream> = (0..2)
        .map(|_| {
            let mut holder = dir.connect_to("wg1");
            holder.write_all(&peers(MANY)).unwrap();
            holder
        })
        .collect();
    let begun = std::time::Instant::now();
    for request in [GET, &[peers(MANY), b"\n".to_vec()].concat()] {
        assert_eq!(ask(&mut dir.connect(), request), DONE);
    }
    assert!(begun.elapsed() < super::STALL, "not only when they stall");
    for holder in &mut holders {
        let mut answer = String::new();
        holder.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "errno=71\n\n");
    }
    assert!(begun.elapsed() < super::STALL, "nor did the holders");
}

#[test]
fn the_largest_request_alone_keeps_nobody_waiting() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let _served = ["wg0", "wg1"].map(|name| serve(&service, &dir, name));
    let mut holder = dir.connect_to("wg1");
    holder.write_all(&peers(MANY)).unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&mut dir.connect(), GET), DONE);
    }
    assert_eq!(ask(&mut holder, b"\n"), DONE);
}

/// It never stalls: something comes all the time, though little.
#[test]
fn who_trickles_while_others_wait_for_memory_is_given_up() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let _served = ["wg0", "wg1"].map(|name| serve(&service, &dir, name));
    let (tell, has_begun) = mpsc::channel();
    let mut slow = dir.connect_to("wg1");
    let trickle = std::thread::spawn(move || {
        slow.write_all(&peers(MANY)).unwrap();
        tell.send(()).unwrap();
        let begun = std::time::Instant::now();
        while slow.write_all(b"allowed_ip=10.0.0.0/8\n").is_ok() {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    });
    has_begun.recv().unwrap();
    let large = [peers(MANY), b"\n".to_vec()].concat();
    let answer = ask(&mut dir.connect_to("wg0"), &large);
    assert!(trickle.join().unwrap(), "it keeps others waiting");
    assert_eq!(answer, DONE);
}

/// A client that keeps the pace may keep others waiting for longer than a client may stall.
#[test]
fn who_waits_for_memory_does_not_stall() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let _served = ["wg0", "wg1"].map(|name| serve(&service, &dir, name));
    let [mut holder, mut waits] = ["wg1", "wg0"].map(|name| {
        let client = dir.connect_to(name);
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        client.set_read_timeout(Some(2 * PATIENCE)).unwrap();
        client
    });
    holder.write_all(&peers(MANY)).unwrap();
    let waits = std::thread::spawn(move || {
        let large = [peers(MANY), b"\n".to_vec()].concat();
        ask(&mut waits, &large)
    });
    let more = "allowed_ip=10.0.0.0/8\n".repeat(2000);
    let begun = std::time::Instant::now();
    while begun.elapsed() < super::STALL + Duration::from_secs(2) {
        holder.write_all(more.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(ask(&mut holder, b"\n"), DONE);
    assert_eq!(waits.join().unwrap(), DONE);
}

/// Of many peers, and of one with many networks.
#[test]
fn answers_that_nobody_takes_count_as_requests_do() {
    let key = |n: u32| {
        let mut key = [7; 32];
        key[..4].copy_from_slice(&n.to_ne_bytes());
        PublicKey(key)
    };
    let many = (0..MANY).map(|n| PeerStatus::new(key(n))).collect();
    let block = Cidr::new([10, 0, 0, 0].into(), 8).unwrap();
    let large = PeerStatus {
        allowed_ips: vec![block; 1_200_000],
        ..PeerStatus::new(key(0))
    };
    for peers in [many, vec![large]] {
        let dir = Dir::new();
        let service = Service::start().unwrap();
        let (_serving, _told) = serve(&service, &dir, "wg0");
        let handler = move |_| {
            UapiResponse::Status(DeviceStatus {
                peers: peers.clone(),
                ..DeviceStatus::default()
            })
        };
        let server = UapiServer::bind_in(&dir.0, "wg1").unwrap();
        let _large = server.serve(&service, handler, |_| ()).unwrap();
        let mut holders: Vec<UnixStream> = (0..2)
            .map(|_| {
                let mut holder = dir.connect_to("wg1");
                holder.write_all(GET).unwrap();
                // The connection ends with the answer.
                holder.shutdown(std::net::Shutdown::Write).unwrap();
                // It has begun, and fills the socket.
                holder.read_exact(&mut [0; 1]).unwrap();
                holder
            })
            .collect();
        assert_eq!(ask(&mut dir.connect(), GET), DONE);
        for holder in &mut holders {
            let mut answer = Vec::new();
            _ = holder.read_to_end(&mut answer);
            assert!(!answer.ends_with(DONE.as_bytes()), "it was not given up");
        }
    }
}

#[test]
fn a_request_beyond_all_bounds_is_refused() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_serving, _told) = serve(&service, &dir, "wg0");
    let mut client = dir.connect();
    // One peer, whose list doubles its memory each time that it is full.
    client.write_all(b"set=1\npublic_key=").unwrap();
    client.write_all(&[b'1'; 64]).unwrap();
    let piece = b"\nallowed_ip=::/0".repeat(1 << 16);
    for _ in 0..220 {
        client.write_all(&piece).unwrap();
    }
    assert_eq!(ask(&mut client, b"\n\n"), "errno=12\n\n");
    assert_eq!(ask(&mut client, GET), DONE);
}

#[test]
fn only_the_owner_of_a_removed_file_learns_of_it() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let served: Vec<_> = (0..10)
        .map(|n| serve(&service, &dir, &format!("wg{n}")))
        .collect();
    std::fs::remove_file(dir.path_of("wg3")).unwrap();
    std::fs::rename(dir.path_of("wg5"), dir.0.join("elsewhere")).unwrap();
    for n in [3, 5] {
        assert_eq!(served[n].1.recv_timeout(PATIENCE).unwrap(), "Removed");
    }
    // The service has read all events when it answers what comes after them.
    for n in [0, 1, 2, 4, 6, 7, 8, 9] {
        assert_eq!(ask(&mut dir.connect_to(&format!("wg{n}")), GET), DONE);
    }
    for (_, told) in &served {
        assert!(told.try_recv().is_err());
    }
}

#[test]
fn removal_of_the_file_before_it_is_served_is_noticed() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (tell, told) = mpsc::channel();
    let removed = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    std::fs::remove_file(dir.path()).unwrap();
    let replaced = UapiServer::bind_in(&dir.0, "wg1").unwrap();
    std::fs::write(dir.0.join("other"), "").unwrap();
    std::fs::rename(dir.0.join("other"), dir.path_of("wg1")).unwrap();
    let _serving = [removed, replaced].map(|server| {
        let tell = Mutex::new(tell.clone());
        let notify = move |event: ServerEvent<'_>| {
            assert!(matches!(event, ServerEvent::Removed));
            tell.lock().unwrap().send(()).unwrap();
        };
        server
            .serve(&service, |_| UapiResponse::Done, notify)
            .unwrap()
    });
    for _ in 0..2 {
        told.recv_timeout(PATIENCE).unwrap();
    }
}

/// A socket that is added and dropped by others' callbacks.
type Slot = Arc<Mutex<Option<Serving>>>;

#[test]
fn a_handler_may_stop_its_own_socket() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_other, _told) = serve(&service, &dir, "wg1");
    let mut other = dir.connect_to("wg1");
    assert_eq!(ask(&mut other, GET), DONE);
    let slot = Slot::default();
    let own = Arc::clone(&slot);
    let handler = move |request| {
        if request != UapiRequest::Get {
            drop(own.lock().unwrap().take());
        }
        UapiResponse::Done
    };
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    *slot.lock().unwrap() = Some(server.serve(&service, handler, |_| ()).unwrap());
    let mut idle = dir.connect();
    assert_eq!(ask(&mut idle, GET), DONE);
    let mut client = dir.connect();
    assert_eq!(ask(&mut client, b"set=1\n\nset=1\n\n"), DONE);
    // Nothing is answered after that.
    for mut client in [client, idle] {
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
    }
    assert_eq!(ask(&mut other, GET), DONE);
    assert_eq!(dir.names(), ["wg1.name", "wg1.sock"]);
}

#[test]
fn a_notification_may_stop_its_own_socket() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let (_other, _told) = serve(&service, &dir, "wg1");
    let slot = Slot::default();
    let (own, (tell, told)) = (Arc::clone(&slot), mpsc::channel());
    let tell = Mutex::new(tell);
    let notify = move |event: ServerEvent<'_>| {
        assert!(matches!(event, ServerEvent::Removed));
        drop(own.lock().unwrap().take());
        tell.lock().unwrap().send(()).unwrap();
    };
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    let serving = server
        .serve(&service, |_| UapiResponse::Done, notify)
        .unwrap();
    *slot.lock().unwrap() = Some(serving);
    let mut client = dir.connect();
    assert_eq!(ask(&mut client, GET), DONE);
    std::fs::remove_file(dir.path()).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(ask(&mut dir.connect_to("wg1"), GET), DONE);
    assert_eq!(dir.names(), ["wg1.name", "wg1.sock"]);
}

#[test]
fn a_handler_may_add_and_stop_other_sockets() {
    let dir = Dir::new();
    let service = Arc::new(Service::start().unwrap());
    let (weak, slot) = (Arc::downgrade(&service), Slot::default());
    let other = UapiServer::bind_in(&dir.0, "wg1").unwrap();
    let other = Mutex::new(Some(other));
    let handler = move |_| {
        let mut slot = slot.lock().unwrap();
        let other = other.lock().unwrap().take();
        *slot = other.map(|other| {
            let service = weak.upgrade().unwrap();
            other
                .serve(&service, |_| UapiResponse::Done, |_| ())
                .unwrap()
        });
        UapiResponse::Done
    };
    let server = UapiServer::bind_in(&dir.0, "wg0").unwrap();
    let _serving = server.serve(&service, handler, |_| ()).unwrap();
    let mut client = dir.connect();
    assert_eq!(ask(&mut client, GET), DONE);
    let mut second = dir.connect_to("wg1");
    assert_eq!(ask(&mut second, GET), DONE);
    assert_eq!(ask(&mut client, GET), DONE);
    assert_eq!(second.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(ask(&mut client, GET), DONE);
    assert_eq!(dir.names(), ["wg0.name", "wg0.sock"]);
}

#[test]
fn with_the_service_go_its_sockets() {
    let dir = Dir::new();
    let service = Service::start().unwrap();
    let served = ["wg0", "wg1"].map(|name| serve(&service, &dir, name));
    let mut client = dir.connect();
    assert_eq!(ask(&mut client, GET), DONE);
    drop(service);
    assert_eq!(dir.names(), [""; 0]);
    assert!(has_ended(&mut client));
    // Which returns.
    drop(served);
}
