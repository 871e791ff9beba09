use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn only_the_document_can_be_got() {
    let wanted = |has_body, in_chunks| {
        Ok(AnswerForm {
            has_body,
            in_chunks,
        })
    };
    let hosts = Hosts::new("127.0.0.1:9586", &[]);
    for (line, expected) in [
        ("GET /metrics HTTP/1.1", wanted(true, true)),
        ("GET /metrics?name[]=x HTTP/1.0", wanted(true, false)),
        ("HEAD /metrics HTTP/1.1", wanted(false, true)),
        ("GET / HTTP/1.1", Err("404 Not Found")),
        ("GET /metrics/.. HTTP/1.1", Err("404 Not Found")),
        ("POST /metrics HTTP/1.1", Err("405 Method Not Allowed")),
        ("GET /metrics", Err("400 Bad Request")),
        ("GET /metrics HTTP/1.1 x", Err("400 Bad Request")),
        ("\u{0}", Err("400 Bad Request")),
    ] {
        let head = format!("{line}\r\nAccept: */*\r\nHOST : localhost:9586\r\n\r\n");
        assert_eq!(request(head.as_bytes(), &hosts), expected, "{line}");
        let rebound = head.replace("localhost", "evil.example");
        assert!(request(rebound.as_bytes(), &hosts).is_err(), "{line}");
    }
    assert!(request(b"\xff / HTTP/1.1", &hosts).is_err());
    assert_eq!(
        request(b"", &hosts),
        Err("431 Request Header Fields Too Large")
    );
    let get = |lines: &str| {
        request(
            format!("GET /metrics HTTP/1.1\n{lines}\n").as_bytes(),
            &hosts,
        )
    };
    assert_eq!(get("Host: evil.example\n"), Err(MISDIRECTED));
    assert_eq!(get("Host: a\nHost: localhost\n"), Err("400 Bad Request"));
    assert_eq!(get("X-Host: a\nHost:127.0.0.1\n"), wanted(true, true));
}

/// A directory of its own, and the path of a socket in it.
fn directory(name: &str) -> (PathBuf, PathBuf) {
    let dir = std::env::temp_dir().join(format!("adit-http-{name}-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).expect("a directory");
    let path = dir.join("s");
    (dir, path)
}

/// Runs a server; its directory has to be removed.
fn server(name: &str) -> (PathBuf, PathBuf) {
    let (dir, path) = directory(name);
    let address = format!("unix:{}", path.display());
    std::thread::spawn(move || {
        serve(&address, &[], || {
            Box::new(|put: &mut Put<'_>| {
                put(b"adit_test")?;
                put(b" 1\n")
            })
        })
    });
    while UnixStream::connect(&path).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    (dir, path)
}

fn ask(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).expect("connected");
    stream.write_all(request).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_request_in_pieces_is_answered_with_the_document() {
    let (dir, path) = server("pieces");
    let mut stream = UnixStream::connect(&path).expect("connected");
    for byte in b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" {
        stream.write_all(&[*byte]).expect("written");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let chunks = "\r\n\r\n9\r\nadit_test\r\n3\r\n 1\n\r\n0\r\n\r\n";
    assert!(answer.ends_with(chunks), "{answer}");
    let older = ask(&path, b"GET /metrics HTTP/1.0\r\n\r\n");
    assert!(older.ends_with("\r\n\r\nadit_test 1\n"), "{older}");
    assert!(!older.contains("chunked"), "{older}");
    let head = ask(&path, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.ends_with("Connection: close\r\n\r\n"), "{head}");
    _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn a_crowd_that_says_nothing_keeps_no_client_out() {
    let (dir, path) = server("crowd");
    let long = ask(&path, &vec![b'x'; HEAD + 1024]);
    assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
    let mut crowd: Vec<UnixStream> = Vec::new();
    for round in 1..=10 {
        crowd.extend((0..24).map(|at| {
            let mut stream = UnixStream::connect(&path).expect("connected");
            // Some begin, and none ends.
            _ = stream.write_all(&b"GET /metrics HTTP/1.1\r\n"[..at]);
            stream
        }));
        let answer = ask(&path, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{round}: {answer}");
    }
    _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn the_oldest_without_a_request_makes_room() {
    let host = |n: u8| ClientOrigin::Host([192, 0, 2, n].into());
    let connections = |sources: &[(ClientOrigin, bool)]| Connections {
        all: (0..)
            .zip(sources)
            .map(|(number, (source, is_heard))| Connection {
                number,
                source: *source,
                is_heard: *is_heard,
                drop: Box::new(|| ()),
            })
            .collect(),
        ..Connections::default()
    };
    let dropped = |sources: &[(ClientOrigin, bool)], newcomer| {
        let mut connections = connections(sources);
        let is_taken = connections.make_room(newcomer);
        let there = |number| connections.all.iter().any(|one| one.number == number);
        let gone = (0..sources.len() as u64).filter(|number| !there(*number));
        (is_taken, gone.collect::<Vec<u64>>())
    };
    let all = CONNECTIONS;
    assert_eq!(
        dropped(&vec![(host(1), true); all - 1], host(1)),
        (true, vec![])
    );
    // Of all that are silent, the oldest of the busiest host.
    let mut mixed = vec![(host(1), false); all];
    assert_eq!(dropped(&mixed, host(1)), (true, vec![0]));
    (mixed[0], mixed[1]) = ((host(2), false), (host(1), true));
    assert_eq!(dropped(&mixed, host(1)), (true, vec![2]));
    // One that is being answered stays, unless its host has more than the newcomer's.
    let mut heard = vec![(host(1), true); all];
    assert_eq!(dropped(&heard, host(1)), (false, vec![]));
    assert_eq!(dropped(&heard, host(2)), (true, vec![0]));
    heard[9] = (host(3), false);
    assert_eq!(dropped(&heard, host(1)), (true, vec![9]));
    let mut busy = connections(&[]);
    busy.threads = THREADS;
    assert!(!busy.make_room(host(1)));
}

#[test]
fn nothing_but_the_socket_itself_gets_a_mode() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (dir, path) = directory("swapped");
    let precious = dir.join("precious");
    std::fs::write(&precious, "").expect("written");
    std::fs::set_permissions(&precious, PermissionsExt::from_mode(0o600)).expect("a mode");
    let mode = |path: &Path| {
        let found = path.symlink_metadata().expect("it is there");
        found.permissions().mode() & 0o7777
    };
    // The owner of the directory has a link take the place of the socket as soon as it is there.
    let (is_over, link) = (AtomicBool::new(false), dir.join("link"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if path
                    .symlink_metadata()
                    .is_ok_and(|found| !found.is_symlink())
                {
                    _ = symlink(&precious, &link);
                    _ = std::fs::rename(&link, &path);
                }
            }
        });
        for _ in 0..3000 {
            drop(bind(&path));
            _ = std::fs::remove_file(&path);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(mode(&precious), 0o600);
    _ = std::fs::remove_file(&path);
    // Every user may use it, whatever the umask.
    let first = bind(&path).expect("bound");
    assert_eq!(mode(&path), 0o666);
    assert!(bind(&path).is_err(), "a process listens there");
    drop(first);
    drop(bind(&path).expect("no process listens there any more"));
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, "").expect("written");
    assert!(bind(&path).is_err() && path.is_file(), "it is no socket");
    _ = std::fs::remove_dir_all(&dir);
}

/// One whose request has come is no silent one, however long its answer takes.
#[test]
fn who_is_being_answered_stays_beside_a_crowd() {
    let (dir, path) = directory("answered");
    let address = format!("unix:{}", path.display());
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = std::sync::mpsc::channel::<()>();
    let ends = Mutex::new((begins, Some(wait)));
    let ends = Arc::new(ends);
    std::thread::spawn(move || {
        serve(&address, &[], move || {
            let ends = Arc::clone(&ends);
            Box::new(move |put: &mut Put<'_>| {
                let wait = ends.lock().expect("no panic").1.take();
                if let Some(wait) = wait {
                    _ = ends.lock().expect("no panic").0.send(());
                    _ = wait.recv();
                }
                put(b"adit_test 1\n")
            })
        })
    });
    let mut first = loop {
        match UnixStream::connect(&path) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    first
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .expect("written");
    begun.recv().expect("it is being answered");
    let crowd: Vec<UnixStream> = (0..2 * CONNECTIONS)
        .map(|_| UnixStream::connect(&path).expect("connected"))
        .collect();
    let other = ask(&path, b"GET /metrics HTTP/1.0\r\n\r\n");
    assert!(other.ends_with("\r\n\r\nadit_test 1\n"), "{other}");
    go.send(()).expect("it waits");
    let mut answer = String::new();
    first.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("\r\n\r\nadit_test 1\n"), "{answer}");
    drop(crowd);
    _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn over_tcp_known_names_alone_are_answered() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("its address");
    drop(free);
    std::thread::spawn(move || {
        let names = ["prom.example".to_owned()];
        serve(&address.to_string(), &names, || {
            Box::new(|put: &mut Put<'_>| put(b"adit_test 1\n"))
        })
    });
    let ask = |host: &str| {
        let mut stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    for (host, status) in [
        ("127.0.0.1", "200 OK"),
        ("localhost:1", "200 OK"),
        ("prom.example", "200 OK"),
        ("evil.example", MISDIRECTED),
    ] {
        let answer = ask(host);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
    }
}
