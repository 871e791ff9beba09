use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use adit::net::Net;
use adit::{Config, PrivateKey, Tunnel};

use super::*;
use crate::serve::acceptor::InnerAcceptor;
use crate::serve::report::ServiceName;
use crate::stack::{Datagrams, Listening, OpenedTcp, Then};

/// A stack whose names wait until the test lets them go.
struct SlowNames {
    net: Net,
    asked: Sender<String>,
    answers: Mutex<Receiver<Vec<IpAddr>>>,
}

impl Stack for SlowNames {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn tunnel(&self) -> &Tunnel {
        self.net.tunnel()
    }

    fn open_tcp(
        &self,
        _: SocketAddr,
        _: Duration,
        _: Then<Box<dyn OpenedTcp>>,
    ) -> Result<(), NetError> {
        Err(NetError::Ended)
    }

    fn look_up(&self, name: &str, _: Duration) -> Result<Vec<IpAddr>, NetError> {
        let asked = self.asked.send(name.to_owned());
        asked.map_err(|_| NetError::Ended)?;
        let answers = self.answers.lock().expect("one thread");
        answers.recv().map_err(|_| NetError::Ended)
    }

    fn listen_tcp(&self, _: u16) -> Result<Box<dyn Listening>, NetError> {
        Err(NetError::Ended)
    }

    fn bind_udp(&self, _: u16) -> Result<Box<dyn Datagrams>, NetError> {
        Err(NetError::Ended)
    }
}

fn core(resolve: Resolve) -> (ServeCore, Receiver<String>, Sender<Vec<IpAddr>>) {
    let config = Config::new(PrivateKey::from_bytes(&[1; 32]).expect("a key"));
    let net = Net::builder(config).address([10, 0, 0, 1].into()).start();
    let (asked, questions) = channel();
    let (sender, answers) = channel();
    let stack = SlowNames {
        net: net.expect("a network"),
        asked,
        answers: Mutex::new(answers),
    };
    let report = Arc::new(ServeReport::new(None));
    let pools = WaitingPools {
        inside: WaitingPool::new("test", 1, None).expect("a thread"),
        outside: None,
        pages: None,
    };
    let (stack, limits) = (Arc::new(stack), ServeLimits::default());
    let core = ServeCore::new(stack, resolve, limits, report, pools);
    (core.expect("descriptors"), questions, sender)
}

/// What was told of a name, once it was.
fn told(core: &ServeCore) -> (NameKey, FoundNames) {
    loop {
        match core.news.take().expect("it has not ended").pop() {
            Some(Told::Names(key, names)) => return (key, names),
            Some(Told::Client(..)) => panic!("no client asked for something else"),
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn equal_names_are_looked_up_once_for_all_that_wait() {
    let (mut core, questions, answers) = core(Resolve::Ipv4);
    let tokens: Vec<_> = (1..=5).map(|at| ClientToken::new(1, at)).collect();
    for token in &tokens {
        core.look_up((*token, None), Side::Inside, "a.example")
            .expect("room");
    }
    assert_eq!(questions.recv().as_deref(), Ok("a.example"));
    // Of both families, of which one is wanted.
    let v4 = IpAddr::from([10, 0, 0, 2]);
    answers
        .send(vec!["fd00::2".parse().expect("an address"), v4])
        .expect("it waits");
    let (key, names) = told(&core);
    assert_eq!(names.as_deref(), Ok(&[v4][..]));
    assert_eq!(core.waiting_for(&key), tokens);
    assert!(questions.try_recv().is_err());
    // The next one asks anew: the stack keeps what holds.
    core.look_up((tokens[0], None), Side::Inside, "a.example")
        .expect("room");
    assert!(questions.recv().is_ok());
    answers
        .send(vec!["fd00::2".parse().expect("an address")])
        .expect("it waits");
    let (_, names) = told(&core);
    assert_eq!(names, Err(RefusalReason::UnknownName));
}

#[test]
fn more_names_than_may_wait_are_refused() {
    let (mut core, questions, _answers) = core(Resolve::Auto);
    let token = ClientToken::new(1, 1);
    let mut look_up = |n: usize, host: u8| {
        let asker = (token, Some(IpAddr::from([10, 0, 0, host])));
        core.look_up(asker, Side::Inside, &format!("{n}.example"))
    };
    look_up(0, 1).expect("room");
    questions.recv().expect("it is asked for");
    // Half of the room is for others.
    for host in [1, 2] {
        let taken = (1..5000).map(|n| usize::from(host) * 10_000 + n);
        let taken = taken.take_while(|n| look_up(*n, host).is_ok());
        assert_eq!(taken.count(), 512);
    }
    assert_eq!(look_up(5001, 3), Err(RefusalReason::Busy));
    // There is no thread for names outside, where no service has one.
    assert_eq!(
        core.look_up((token, None), Side::Outside, "a.example"),
        Err(RefusalReason::Busy)
    );
}

#[test]
fn a_name_whose_time_passes_before_its_turn_is_not_looked_up() {
    let (mut core, questions, answers) = core(Resolve::Auto);
    let asker = (ClientToken::new(1, 1), None);
    core.look_up(asker, Side::Inside, "first.example")
        .expect("room");
    questions.recv().expect("it is asked for");
    core.limits.connect = Duration::ZERO;
    core.look_up(asker, Side::Inside, "second.example")
        .expect("room");
    answers.send(vec![[10, 0, 0, 2].into()]).expect("it waits");
    let second: NameKey = (Side::Inside, "second.example".into());
    let names = loop {
        let told = core.news.take().expect("it has not ended");
        let of_second = told.into_iter().find_map(|told| match told {
            Told::Names(key, names) => (key == second).then_some(names),
            Told::Client(..) => None,
        });
        match of_second {
            Some(names) => break names,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(names, Err(RefusalReason::TimedOut));
    assert!(questions.try_recv().is_err());
}

#[test]
fn an_asker_has_not_all_threads() {
    let pool = WaitingPool::new("test", 4, None).expect("threads");
    let (begun, begins) = channel();
    let (_goes_on, waits) = channel::<()>();
    let waits = Arc::new(Mutex::new(waits));
    let job = |host: u8| {
        let (begun, waits) = (begun.clone(), Arc::clone(&waits));
        let job = move || {
            begun.send(host).expect("heard");
            let _ = waits.lock().map(|waits| waits.recv());
        };
        assert!(pool.run(Some([10, 0, 0, host].into()), job));
    };
    for host in [1, 1, 1, 1, 1, 2] {
        job(host);
    }
    let mut seen: Vec<_> = (0..4).map(|_| begins.recv().expect("it begins")).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 1, 1, 2]);
}

/// A port whose connections cannot be had, for the errors of `results`.
struct Failing {
    fd: std::os::fd::OwnedFd,
    results: Mutex<Vec<NetError>>,
}

impl std::os::fd::AsFd for Failing {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Listening for Failing {
    fn try_accept(&self) -> Result<Option<Box<dyn OpenedTcp>>, NetError> {
        let next = self.results.lock().expect("one thread").pop();
        next.map_or(Ok(None), Err)
    }
}

#[test]
fn a_port_inside_outlives_a_lack_of_descriptors_and_memory_and_ends_with_the_tunnel() {
    let (mut core, ..) = core(Resolve::Auto);
    let full = || NetError::Host(rustix::io::Errno::MFILE.into());
    let results = vec![NetError::Ended, NetError::NoMemory, full()];
    let (fd, _other) = std::os::unix::net::UnixStream::pair().expect("descriptors");
    let results = Mutex::new(results);
    let port = Failing {
        fd: fd.into(),
        results,
    };
    let nobody = |_, _: &mut ServeCore| -> Box<dyn ProxyClient> { panic!("nobody comes") };
    let mut acceptor = InnerAcceptor::new(Box::new(port), ServiceName::TcpServer, nobody);
    let token = ClientToken::new(1, 1);
    assert!(matches!(acceptor.begin(&mut core, token), Step::Wait));
    for _ in 0..2 {
        let step = acceptor.event(&mut core, token, EventFlags::IN);
        assert!(matches!(step, Step::Wait));
        let until = acceptor.deadline().expect("a pause");
        assert!(until > core.now);
        assert!(matches!(acceptor.expired(&mut core, token), Step::Wait));
        assert_eq!(acceptor.deadline(), None);
    }
    let step = acceptor.event(&mut core, token, EventFlags::IN);
    assert!(matches!(step, Step::Done));
}
