use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

fn peer(n: u8) -> (String, PublicKey) {
    ("wg0".to_owned(), PublicKey([n; 32]))
}

/// Peers at `hostN:1`.
fn state(now: Instant, count: u8) -> ResolverState {
    let mut state = ResolverState::default();
    for n in 0..count {
        let host = format!("host{n}");
        state.hosts.insert(host.clone(), ResolvedName::new(now));
        let named = Named {
            interface: Weak::new(),
            endpoint: HostPort { host, port: 1 },
            claimed: None,
        };
        state.peers.insert(peer(n), named);
    }
    state
}

fn answer(request: &Request, addrs: &[&str], ttl: u64) -> Answer {
    let addrs = addrs
        .iter()
        .map(|ip| SocketAddr::new(ip.parse().unwrap(), 0));
    Answer {
        id: request.id,
        addrs: addrs.collect(),
        ttl: Duration::from_secs(ttl),
    }
}

#[test]
fn look_ups_are_few_at_a_time_and_paced() {
    let mut now = Instant::now();
    let mut state = state(now, 20);
    let mut asked = Vec::new();
    while asked.len() < IN_FLIGHT {
        match state.next(now) {
            Ok((request, _)) => asked.push(request),
            Err(until) => {
                assert_eq!(until, state.last.map(|last| last + PACE));
                now += PACE;
            }
        }
    }
    now += PACE;
    let first_is_lost = state.next(now).unwrap_err().unwrap();
    assert_eq!(first_is_lost, state.requests[&0].1 + LOST);
    // An answer makes room for the next.
    state.answered(now, &answer(&asked[0], &["192.0.2.1"], 60));
    assert_eq!(state.next(now).unwrap().0.host, "host12");
    // So does one that never comes, and the name is asked for again.
    assert!(state.next(now).is_err());
    assert!(state.next(now + LOST).is_ok());
}

#[test]
fn a_name_is_asked_for_when_its_addresses_expire() {
    let now = Instant::now();
    for (ttl, expected) in [(0, 30), (60, 60), (1_000_000, 3600)] {
        let mut state = state(now, 1);
        let (request, _) = state.next(now).unwrap();
        state.answered(now, &answer(&request, &["192.0.2.1"], ttl));
        let due = now + Duration::from_secs(expected);
        assert_eq!(state.next(now + PACE).unwrap_err(), Some(due));
        assert!(state.next(due).is_ok());
    }
}

#[test]
fn failing_handshakes_ask_early_but_ever_more_seldom_in_vain() {
    let mut now = Instant::now();
    let mut state = state(now, 1);
    let (request, _) = state.next(now).unwrap();
    state.answered(now, &answer(&request, &["192.0.2.1"], 3600));
    for pause in [5, 10, 20, 40, 40] {
        let asked = state.hosts["host0"].asked.unwrap();
        now += Duration::from_secs(1);
        state.hosts.get_mut("host0").unwrap().hurry(now);
        assert_eq!(
            state.next(now).unwrap_err(),
            Some(asked + Duration::from_secs(pause))
        );
        now = asked + Duration::from_secs(pause);
        let (request, _) = state.next(now).unwrap();
        state.answered(now, &answer(&request, &[], 0));
    }
    // The addresses that it had stay.
    assert_eq!(state.hosts["host0"].addrs.len(), 1);
    // Nobody needs it: seldom.
    let until = state.next(now + PACE).unwrap_err().unwrap();
    assert_eq!(until, now + Duration::from_secs(160));
}

#[test]
fn an_address_of_others_keeps_a_name_only_if_it_leads_there() {
    let now = Instant::now();
    for (addr, stays) in [
        ("192.0.2.1:1", true),
        ("192.0.2.1:2", false),
        ("192.0.2.9:1", false),
    ] {
        let mut state = state(now, 1);
        state.peers.get_mut(&peer(0)).unwrap().claimed = Some(addr.parse().unwrap());
        let (request, _) = state.next(now).unwrap();
        state.answered(now, &answer(&request, &["192.0.2.1"], 60));
        assert_eq!(state.peers.contains_key(&peer(0)), stays, "{addr}");
    }
}

#[test]
fn the_mark_of_the_interface_goes_with_a_request() {
    let now = Instant::now();
    let mut state = state(now, 1);
    state.marks.insert("wg0".into(), 0xca6c);
    assert_eq!(state.next(now).unwrap().1, 0xca6c);
}

/// A resolver with these things to do, and the other process's end of its socket.
fn resolver(state: ResolverState) -> (Arc<Resolver>, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = pair.unwrap();
    let resolver = Resolver {
        state: Mutex::new(state),
        socket: Some(ours),
        wake: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
        level: LogLevel::Silent,
        wanted: true,
    };
    (Arc::new(resolver), theirs)
}

fn wait_until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never is");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_thread_that_has_panicked_is_started_again() {
    let now = Instant::now();
    let mut wrong = state(now, 1);
    // As late as can be: the time at which these are lost is no time.
    let step =
        |at: Instant, bits: u32| at.checked_add(Duration::from_secs(1 << bits)).unwrap_or(at);
    let late = (0..63).rev().fold(now, step);
    for id in 0..IN_FLIGHT {
        let id = u32::try_from(id).unwrap();
        wrong.requests.insert(id, ("host0".into(), late));
    }
    let (resolver, theirs) = resolver(wrong);
    resolver.start_thread(&mut resolver.state());
    wait_until(|| !resolver.state().runs);
    *resolver.state() = state(now, 1);
    resolver.start_thread(&mut resolver.state());
    assert!(resolver.state().runs);
    // The other process ends, and so does the thread; there is no use in another one.
    drop(theirs);
    wait_until(|| !resolver.state().runs);
    *resolver.state() = ResolverState {
        is_lost: true,
        ..state(now, 1)
    };
    resolver.start_thread(&mut resolver.state());
    assert!(!resolver.state().runs);
}
