//! Every target over its corpus and over mutations of it, the same ones each time.

use std::time::{Duration, Instant};

use adit_fuzz::mutate::{SplitMix64, mutate};
use adit_fuzz::{TARGETS, corpus};

/// Longest input that is made.
const LONGEST: usize = 4096;
/// Mutations of each target, in this time at most: some are slow, and so are some machines. With
/// ADIT_FUZZ_SECONDS they go on for so long.
const RUNS: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(12);

fn run(name: &str) {
    let target = adit_fuzz::target(name).expect("a target");
    let text = std::fs::read_to_string(corpus::path(name)).expect("a corpus");
    let inputs = corpus::parse(&text).unwrap();
    assert!(inputs.len() > 1, "an empty corpus");
    for input in &inputs {
        (target.run)(input);
    }
    let (runs, time) = match std::env::var("ADIT_FUZZ_SECONDS") {
        Ok(seconds) => (usize::MAX, Duration::from_secs(seconds.parse().unwrap())),
        Err(_) => (RUNS, PATIENCE),
    };
    let (started, mut done) = (Instant::now(), 0);
    let mut random = SplitMix64(1);
    while done < runs && started.elapsed() < time {
        let mut input = inputs[random.below(inputs.len())].clone();
        let other = &inputs[random.below(inputs.len())];
        mutate(&mut input, other, LONGEST, &mut random);
        // What the test prints when it fails is enough to run it again.
        let shown = std::panic::catch_unwind(|| (target.run)(&input));
        if shown.is_err() {
            panic!("{name} fails on {}", corpus::format(vec![input]));
        }
        done += 1;
    }
    println!("{name}: {} inputs, {done} mutations", inputs.len());
}

macro_rules! tests {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })+

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),+]);
        }
    };
}

tests! {
    datagrams devices rekeys configure allowed_ips replay requests uapi answers config proxy_files status segment
    merge plaintext cmsg netlink hand_over frames socks5 http_proxy sni aead
}
