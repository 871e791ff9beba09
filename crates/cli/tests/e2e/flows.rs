//! The flow log of docs/fleet.md: conntrack, ulogd's IPFIX and a collector, with the names of peers.

use crate::harness::*;
use crate::quick::{adit, only_adit};
use crate::rules::RuledHub;
use crate::steer::block;

/// Connections: ulogd sends several flows at a time.
const FLOWS: usize = 40;

#[test]
fn a_flow_log_has_the_names_of_peers() {
    if !only_adit() {
        return;
    }
    let ruled = RuledHub::new("# friendly_name = phone");
    let left = ruled.hub.left();
    left.sh("ip link set lo up; mkdir /run/flows");
    left.sh(&block("nf_conntrack_acct"));
    left.sh_with_input("cat > /run/ulogd.conf", &block("ulogd_output_IPFIX"));
    // nfcapd leaves shared memory when it is killed, by which the next one of such a folder thinks that it runs.
    left.sh(
        "unshare --ipc nfcapd -p 4739 -b 127.0.0.1 -t 2 -w /run/flows > /run/nfcapd.log 2>&1 < /dev/null &
         ulogd -c /run/ulogd.conf > /run/ulogd.out 2>&1 < /dev/null &
         for n in $(seq 400); do ss -lun | grep -q :4739 && grep -q 'working in event mode' /run/ulogd.log && exit; sleep 0.05; done
         ss -lun >&2; cat /run/nfcapd.log /run/ulogd.out /run/ulogd.log >&2; exit 1",
    );
    let right = ruled.right();
    for _ in 0..FLOWS {
        right.sh("python3 -c 'import socket; socket.create_connection((\"10.3.0.2\", 443), 10)'");
    }
    // A flow is exported when it ends.
    left.sh("conntrack -D -s 10.77.0.2 > /run/conntrack.out 2>&1");
    let print = block("nfdump -q").replace("/var/log/flows", "/run/flows");
    let print = print.replace("adit peers", &format!("{} peers", adit()));
    // The collector begins a file each two seconds, and the last one is not complete.
    let mut text = String::new();
    let mut count = 0;
    for _ in 0..60 {
        text = left.sh(&print);
        count = text.lines().filter(|line| is_named(line)).count();
        if count > FLOWS / 2 {
            return;
        }
        std::thread::sleep(seconds(1) / 2);
    }
    let logs = left.sh("cat /run/nfcapd.log /run/ulogd.log /run/conntrack.out");
    panic!("{count} of {FLOWS}: {text}\n{logs}");
}

fn is_named(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words[..], [_, _, "TCP", "phone", _, "10.3.0.2", "443", packets, _] if packets != "0")
}
