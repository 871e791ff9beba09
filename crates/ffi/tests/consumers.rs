//! Programs in other languages, each a tunnel between two processes that carries TCP:
//!
//! | consumer | library | source |
//! |---|---|---|
//! | C, with AddressSanitizer | static | a TUN device with headers (VNET) |
//! | Python, ctypes | shared | a TUN device without (PLAIN) |
//! | Go, cgo | shared | a device without I/O, over batches |
//! | Java, JNI | shared | as Python; a thread that waits for events, a callback for sockets |
//!
//! ```text
//! host 0 (10.1.0.1, tunnel 10.9.0.1) ── veth ── host 1 (10.1.0.2, tunnel 10.9.0.2)
//! ```

#![cfg(feature = "engine")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use adit::PrivateKey;
use adit_testbed::{Host, link};

const BYTES: usize = 10 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The library as it is installed, made once of what cargo has built for this test.
fn library() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ffi");
        let deps = std::env::current_exe().expect("a test has a path");
        let files = std::fs::read_dir(deps.parent().expect("it is in a folder")).expect("a folder");
        let archive = files
            .filter_map(|file| Some(file.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("libadit_ffi-") && name.ends_with(".a")
            })
            .max_by_key(|path| {
                let changed = path.metadata().and_then(|about| about.modified());
                changed.unwrap_or(SystemTime::UNIX_EPOCH)
            })
            .expect("cargo builds the static library with its tests");
        run(Command::new(here("../../scripts/ffi")).args([&dir, &archive]));
        dir
    })
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Runs what builds a consumer.
fn run(command: &mut Command) -> String {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn pkg_config(what: &str) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", library().join("lib/pkgconfig"));
    let flags = run(command.args([what, "adit"]));
    flags.split_whitespace().map(str::to_owned).collect()
}

/// A consumer that runs: it ends when its standard input is closed.
struct Consumer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Consumer {
    fn start(host: &Host, program: &[String], arguments: [String; 5], key: &PrivateKey) -> Self {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).args(arguments);
        command.env("LD_LIBRARY_PATH", library().join("lib"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = host
            .run(move || command.spawn())
            .expect("the consumer starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut consumer = Self { child, lines };
        let stdin = consumer.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{}", *key.to_base64()).expect("it reads its key");
        let mut line = String::new();
        let lines = &mut consumer.lines;
        lines.read_line(&mut line).expect("it writes a line");
        assert_eq!(line, "ready\n");
        consumer
    }

    /// What it says of itself at its end, which is to be a good one.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                break status;
            }
            assert!(Instant::now() < until, "the consumer does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        self.lines.read_to_string(&mut said).expect("text");
        assert!(status.success(), "{status}: {said}");
        said
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn inner(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, n + 1)
}

/// Bytes of which no two pieces are the same.
fn data(seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(&mut next).take(BYTES).collect()
}

/// A connection that does not hang.
fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// TCP from host 0 to host 1, both ways one after the other.
fn carries_tcp(hosts: &[Host; 2]) {
    let listener = hosts[1]
        .run(|| TcpListener::bind((inner(1), 7000)))
        .expect("a listener");
    let server = hosts[1].thread(move || {
        let mut stream = bounded(listener.accept().expect("a client").0);
        let mut came = vec![0; BYTES];
        stream.read_exact(&mut came).expect("all of it");
        stream.write_all(&data(2)).expect("all of it");
        came
    });
    let address = SocketAddr::from((inner(1), 7000));
    let came = hosts[0].run(move || {
        let mut stream = bounded(TcpStream::connect_timeout(&address, PATIENCE).expect("a server"));
        stream.write_all(&data(1)).expect("all of it");
        let mut came = vec![0; BYTES];
        stream.read_exact(&mut came).expect("all of it");
        came
    });
    assert!(came == data(2), "what came back is not what was sent");
    let sent = server.expect("a thread").join().expect("the server");
    assert!(sent == data(1), "what came is not what was sent");
}

/// Two processes of a consumer carry TCP. What they said at their ends.
fn two_carry_tcp(program: &[String]) -> [String; 2] {
    library();
    let hosts = [0, 1].map(|_| Host::new().expect("a host: run the tests as root"));
    link((&hosts[0], "eth0"), (&hosts[1], "eth0")).expect("a link");
    let keys = [1, 2].map(|n| PrivateKey::from_bytes(&[n; 32]).expect("a key"));
    let mut consumers = Vec::new();
    for n in [1, 0] {
        let at = usize::from(n);
        let outer = IpAddr::from([10, 1, 0, n + 1]);
        hosts[at]
            .bring_up("eth0", &[(outer, 24)], None)
            .expect("an address");
        let arguments = [
            "tun0".to_owned(),
            "5182".to_owned(),
            keys[1 - at].public_key().to_string(),
            if n == 0 { "10.1.0.2:5182" } else { "-" }.to_owned(),
            format!("{}/32, fd00::/64", inner(1 - n)),
        ];
        consumers.push(Consumer::start(&hosts[at], program, arguments, &keys[at]));
        let addresses = [(inner(n).into(), 24)];
        hosts[at]
            .bring_up("tun0", &addresses, Some(1420))
            .expect("an address");
    }
    carries_tcp(&hosts);
    let said: Vec<String> = consumers.into_iter().map(Consumer::end).collect();
    for (said, peer) in said.iter().zip([&keys[0], &keys[1]]) {
        let number = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|number| number.trim().parse::<usize>().ok())
                .unwrap_or_default()
        };
        // As many as fit the MTU, each way.
        let least = BYTES / 1420;
        assert!(
            number("sent ") >= least && number("pushed ") >= least,
            "{said}"
        );
        let status = said.lines().find_map(|line| line.strip_prefix("status "));
        let status: serde_json::Value = status
            .and_then(|json| serde_json::from_str(json).ok())
            .expect("JSON");
        assert_eq!(status["schema"], 1, "{said}");
        assert_eq!(
            status["peers"][0]["public_key"],
            peer.public_key().to_string()
        );
        assert!(
            status["peers"][0]["rx_bytes"].as_u64() >= Some(BYTES as u64),
            "{said}"
        );
    }
    said.try_into().expect("two")
}

/// The consumer in C, built with AddressSanitizer and linked with the static library.
fn c_consumer() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(|| {
        let program = library().join("c_consumer");
        let mut command = Command::new("gcc");
        command.args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-g",
        ]);
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        command.args(pkg_config("--cflags")).arg("-o").arg(&program);
        command
            .arg(here("consumers/c/tunnel.c"))
            .arg(library().join("lib/libadit.a"));
        run(command.args(["-lgcc_s", "-lm", "-ldl", "-lpthread"]));
        text(&program)
    })
}

#[test]
fn c_carries_tcp_between_two_processes() {
    two_carry_tcp(&[c_consumer().to_owned()]);
}

/// What a consumer says of a private key that is none.
fn said_of_no_key(program: &[String]) -> String {
    let peer = PrivateKey::from_bytes(&[1; 32])
        .expect("a key")
        .public_key();
    let mut child = Command::new(&program[0])
        .args(&program[1..])
        .args(["tun0", "0", &peer.to_string(), "-", "10.0.0.0/8"])
        .env("LD_LIBRARY_PATH", library().join("lib"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"no key\n").expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(done.status.code(), Some(1));
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn c_and_java_are_told_what_is_wrong_with_a_key() {
    let wrong = "a key in base64 has 44 characters, the last of which is = (-1)\n";
    assert_eq!(
        said_of_no_key(&[c_consumer().to_owned()]),
        format!("the private key: {wrong}")
    );
    assert_eq!(said_of_no_key(java_consumer()), wrong);
}

#[test]
fn the_readmes_example_compiles() {
    let readme = std::fs::read_to_string(here("README.md")).expect("the README");
    let example = readme
        .split("```c\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let source = library().join("example.c");
    std::fs::write(&source, example.expect("an example")).expect("it is written");
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
    run(command.args(pkg_config("--cflags")).arg(source));
}

#[test]
fn python_carries_tcp_between_two_processes() {
    let program = text(&here("consumers/python/tunnel.py"));
    two_carry_tcp(&["python3".to_owned(), program]);
}

/// The consumer in Go. Its cache of builds knows a package by its folder and by the content of what is in it,
/// but not what pkg-config says: source and header are copied beside the library, so that another library has
/// another folder, and a new header is seen. (`-trimpath` would take the folder out of that.)
fn go_consumer() -> PathBuf {
    let source = library().join("go");
    std::fs::create_dir_all(&source).expect("a folder");
    for from in [
        here("consumers/go/main.go"),
        here("consumers/go/go.mod"),
        library().join("include/adit.h"),
    ] {
        let name = from.file_name().expect("a file");
        std::fs::copy(&from, source.join(name)).expect("it is copied");
    }
    let program = library().join("go_consumer");
    let mut command = Command::new("go");
    command.current_dir(source);
    command
        .env("PKG_CONFIG_PATH", library().join("lib/pkgconfig"))
        .env("CGO_ENABLED", "1");
    run(command
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg("."));
    program
}

#[test]
fn go_carries_tcp_in_batches_between_two_processes() {
    let program = go_consumer();
    for said in two_carry_tcp(&[text(&program)]) {
        let line = said.lines().find(|line| line.starts_with("batches "));
        let numbers = line
            .unwrap_or_default()
            .split(' ')
            .filter_map(|word| word.parse().ok());
        let [calls, moved]: [u64; 2] = numbers.collect::<Vec<_>>().try_into().expect("two numbers");
        assert!(
            calls > 0 && calls < moved,
            "it crosses by the packet: {said}"
        );
    }
}

/// The consumer in Java, as a command: its classes, and the library in C that they call.
fn java_consumer() -> &'static [String] {
    static MADE: OnceLock<Vec<String>> = OnceLock::new();
    MADE.get_or_init(|| {
        let (source, classes) = (here("consumers/java"), library().join("java"));
        let mut command = Command::new("javac");
        command.args(["-Xlint:all", "-Werror", "-d"]).arg(&classes);
        run(command
            .arg(source.join("Tunnel.java"))
            .arg(source.join("AditTunnel.java")));
        // <jni.h> is where the JDK is that `javac` is of.
        let javac = run(Command::new("sh").args(["-c", "readlink -f \"$(command -v javac)\""]));
        let jdk = Path::new(javac.trim()).ancestors().nth(2).expect("a JDK");
        let mut command = Command::new("gcc");
        command.args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC"]);
        command.args(["-Wall", "-Wextra", "-Werror", "-g", "-I"]);
        command.arg(jdk.join("include")).arg("-I");
        command.arg(jdk.join("include/linux")).arg("-o");
        command.arg(classes.join("libadit_jni.so"));
        command.arg(source.join("adit_jni.c"));
        run(command
            .args(pkg_config("--cflags"))
            .args(pkg_config("--libs")));
        let classes = text(&classes);
        // The machine writes a line for each mistake at the border to C.
        let [path, check] = [
            format!("-Djava.library.path={classes}"),
            "-Xcheck:jni".into(),
        ];
        let quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m"];
        let mut program = vec!["java".to_owned(), path, check];
        program.extend(quick.map(str::to_owned));
        program.extend(["-cp".to_owned(), classes, "Tunnel".to_owned()]);
        program
    })
}

#[test]
fn java_carries_tcp_between_two_processes() {
    for said in two_carry_tcp(java_consumer()) {
        // It is told of each socket.
        let sockets = said.lines().find_map(|line| line.strip_prefix("sockets "));
        let sockets = sockets.and_then(|count| count.parse::<u32>().ok());
        assert!(sockets > Some(1), "{said}");
        assert!(!said.contains("WARNING"), "{said}");
    }
}

#[test]
fn the_shared_library_exports_what_the_header_declares() {
    let shared = library().join("lib/libadit.so");
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&shared));
    let exported: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_once(" T ").map(|(_, name)| name))
        .collect();
    let header = std::fs::read_to_string(here("include/adit.h")).expect("the header");
    let declared = header
        .split(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_' || sign == '('))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("adit_"));
    let mut declared: Vec<String> = declared.map(|name| format!("{name}@@ADIT_0.1")).collect();
    declared.sort_unstable();
    declared.dedup();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(exported, declared);
    let about = run(Command::new("readelf").arg("-d").arg(&shared));
    assert!(about.contains("soname: [libadit.so.0]"), "{about}");
}
