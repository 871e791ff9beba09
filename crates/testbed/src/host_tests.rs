use super::*;
use std::net::{Ipv4Addr, UdpSocket};

const ONE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

fn pair() -> (Host, Host) {
    (
        Host::new().expect("run the tests as root"),
        Host::new().unwrap(),
    )
}

#[test]
fn linked_hosts_reach_each_other() {
    let (one, other) = pair();
    link((&one, "cable"), (&other, "cable")).unwrap();
    one.bring_up("cable", &[(ONE.into(), 24)], None).unwrap();
    other
        .bring_up("cable", &[(OTHER.into(), 24)], Some(1400))
        .unwrap();
    let receiver = other.run(|| UdpSocket::bind((OTHER, 0))).unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let to = receiver.local_addr().unwrap();
    let sending = one.thread(move || UdpSocket::bind((ONE, 0)).unwrap().send_to(b"hello", to));
    sending.unwrap().join().unwrap().unwrap();
    let mut buffer = [0; 16];
    assert_eq!(receiver.recv(&mut buffer).unwrap(), 5);
    assert!(link((&one, "cable"), (&other, "end")).is_err());
}

#[test]
fn what_a_host_changes_stays_in_it() {
    let (one, other) = pair();
    one.own_run().unwrap();
    other.own_run().unwrap();
    let file = "/var/run/adit-testbed-own-run";
    one.run(move || std::fs::write(file, "")).unwrap();
    let seen = one.output("ls", &[file], Duration::from_secs(60));
    assert_eq!(seen.unwrap().trim(), file);
    assert!(!other.run(move || std::path::Path::new(file).exists()));
    assert!(!std::path::Path::new(file).exists());
}

#[test]
fn a_panic_inside_is_a_panic_outside_and_the_host_goes_on() {
    let (one, _) = pair();
    assert!(catch_unwind(AssertUnwindSafe(|| one.run(|| panic!("as expected")))).is_err());
    assert_eq!(one.run(|| 7), 7);
}

#[test]
fn a_pinned_host_starts_processes_on_its_core() {
    let (one, _) = pair();
    one.pin(0).unwrap();
    let cores = one.output("nproc", &[], Duration::from_secs(60)).unwrap();
    assert_eq!(cores.trim(), "1");
}
