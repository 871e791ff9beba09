use super::*;

/// A gateway that answers the clients by function calls.
fn answer(gateway: &mut Device, clients: &mut Clients, under_load: bool) {
    let from = |number| SocketAddr::new(many::outer(number), PORT).into();
    for (number, mut datagram) in std::mem::take(&mut clients.outgoing) {
        if datagram[0] == 4 {
            let opened = gateway.open(START, wall(), from(number), &mut datagram);
            assert_eq!(opened, Ok(&[][..]));
        } else {
            gateway.handle_handshake(START, wall(), from(number), &datagram, under_load);
        }
        while let Some(output) = gateway.poll_output() {
            if let Output::Handshake { datagram, .. } = output {
                clients.consume(endpoint(number), &datagram);
            }
        }
    }
}

fn pair(count: u32) -> (Device, Clients) {
    let (own, keys) = (Keys::new().unwrap(), Keys::several(count).unwrap());
    let fill = |bytes: &mut [u8]| hosts::random(bytes).unwrap();
    let mut gateway = Device::new(Box::new(fill));
    let change = DeviceChange {
        private_key: Some(own.secret.clone()),
        peers: keys
            .iter()
            .map(|keys| PeerChange::new(keys.public))
            .collect(),
        ..DeviceChange::default()
    };
    gateway.apply(START, &change).unwrap();
    let mut clients = Clients::new(&keys, own.public).unwrap();
    for number in 0..count {
        clients.begin(number as usize);
    }
    (gateway, clients)
}

#[test]
fn every_client_gets_a_session_and_confirms_it() {
    let (mut gateway, mut clients) = pair(4);
    answer(&mut gateway, &mut clients, false);
    assert_eq!(clients.connected.len(), 4);
    assert_eq!(gateway.handshake_stats().confirmed, 0);
    answer(&mut gateway, &mut clients, false);
    assert_eq!(gateway.handshake_stats().confirmed, 4);
}

#[test]
fn clients_with_the_same_index_are_told_apart_by_address() {
    let (_, mut clients) = pair(2);
    let before = clients.indices.len();
    for number in 0..2 {
        clients.post(number, vec![1, 0, 0, 0, 7, 0, 0, 0]);
    }
    assert_eq!(clients.indices.len(), before + 2);
    for number in 0..2 {
        assert_eq!(clients.indices[&(many::outer(number), 7)], number);
    }
}

#[test]
fn a_client_of_a_loaded_gateway_returns_with_its_cookie() {
    let (mut gateway, mut clients) = pair(4);
    answer(&mut gateway, &mut clients, true);
    assert_eq!(clients.connected.len(), 0);
    clients.due.clear();
    for number in 0..4 {
        let client = clients.clients[number as usize].as_mut().unwrap();
        client.begun = client.begun.map(|begun| begun - Duration::from_secs(6));
        clients.schedule(number);
    }
    clients.resend();
    assert_eq!(clients.outgoing.len(), 4);
    answer(&mut gateway, &mut clients, true);
    assert_eq!(clients.connected.len(), 4);
}

#[test]
fn the_last_tenth_does_not_slow_the_rate_down() {
    let times: Vec<Duration> = (1..=9).chain([60]).map(Duration::from_secs).collect();
    let handshakes = |times| Handshakes {
        connected: Vec::new(),
        times,
    };
    let limit = Duration::from_secs(20);
    assert_eq!(handshakes(times.clone()).rate(10, limit), 1.0);
    assert_eq!(handshakes(times).rate(100, limit), 0.5);
}

#[test]
fn clients_begin_at_the_pace_that_was_asked_for() {
    let ms = Duration::from_millis;
    assert_eq!(Pace::AtATime(64).begun(100, 10, ms(0)), 74);
    assert_eq!(Pace::AtATime(64).begun(100, 90, ms(0)), 100);
    let begun = [0, 500, 2000].map(|at| Pace::Within(ms(1000)).begun(100, 0, ms(at)));
    assert_eq!(begun, [1, 51, 100]);
}
