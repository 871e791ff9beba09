//! What it is worth that peers move to other receive queues by load: packets that a hub opens, with moves and
//! without.
//!
//! Only a build with `--cfg adit_lab_steps` can do without moves:
//!
//! ```text
//! RUSTFLAGS='--cfg adit_lab_steps' cargo bench -p adit-engine --bench rx_queues -- --rounds 3
//! ```
//!
//! Each measurement is a process of its own; those with and without moves alternate. In each, peers begin
//! in receive queues by turns, and the hub gets all its receive queues. Then the load begins. After
//! 5 s the hub begins a handshake with each peer: so peers may move once. The same load is then
//! measured again. A measurement takes 8 s.

mod field;
mod hosts;
mod traffic;

use std::io;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use adit_io::testing::mem::MemNetwork;
use adit_offload::lab::{self, Idea};

use field::{Load, Measured, NAMES, Settings};
use hosts::Loopback;

const USAGE: &str = "\
usage: rx_queues [--over udp|memory] [--shards 2,4,8] [--loads one] [--rounds 3]
                 [--senders N] [--window 256] [--tun-us 20] [--handshakes 1] [--seconds 1.5]
                 [--assume-idle]

  --over        sockets of this host, or a network in memory
  --shards      threads of the hub, and its receive queues: 2, 4 or 8
  --loads       several with commas between them:
                one: a few peers send, all of which begin in one receive queue
                zipf: 8 peers of each sender, the n-th with a window of 1 / n
                even: the same with equal windows
  --senders     threads that send in bulk; by default as many as leave a CPU for each shard and one more, 8 at most
  --window      KB of a peer that are on their way at most, with `one`
  --tun-us      microseconds that the hub's TUN takes for a frame of 64 KB, beside one copy
  --handshakes  with each peer, 5 seconds apart
  --seconds     measured after the handshakes
  --assume-idle threads help though no CPU seems idle, or the kernel does not tell
";

struct Arguments {
    over: String,
    shards: Vec<usize>,
    loads: Vec<String>,
    rounds: usize,
    senders: Option<u8>,
    window: u64,
    tun: u64,
    handshakes: u32,
    seconds: f64,
    assumes_idle: bool,
    /// This process measures, and prints numbers.
    one: bool,
}

fn list<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(|item| item.parse().ok()).collect()
}

impl Arguments {
    fn parse(arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut parsed = Self {
            over: "udp".into(),
            shards: vec![2, 4, 8],
            loads: vec!["one".into()],
            rounds: 3,
            senders: None,
            window: 256,
            tun: 20,
            handshakes: 1,
            seconds: 1.5,
            assumes_idle: false,
            one: false,
        };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            match name.as_str() {
                // Cargo's.
                "--bench" => continue,
                "--one" => {
                    parsed.one = true;
                    continue;
                }
                "--assume-idle" => {
                    parsed.assumes_idle = true;
                    continue;
                }
                _ => {}
            }
            let value = arguments.next()?;
            match name.as_str() {
                "--over" => parsed.over = value,
                "--shards" => parsed.shards = list(&value)?,
                "--loads" => parsed.loads = list(&value)?,
                "--rounds" => parsed.rounds = value.parse().ok()?,
                "--senders" => parsed.senders = Some(value.parse().ok()?),
                "--window" => parsed.window = value.parse().ok()?,
                "--tun-us" => parsed.tun = value.parse().ok()?,
                "--handshakes" => parsed.handshakes = value.parse().ok()?,
                "--seconds" => parsed.seconds = value.parse().ok()?,
                _ => return None,
            }
        }
        parsed.is_right().then_some(parsed)
    }

    fn is_right(&self) -> bool {
        let is_load = |name: &String| Load::ALL.iter().any(|(known, _)| known == name);
        ["udp", "memory"].contains(&self.over.as_str())
            && !self.shards.is_empty()
            && self.shards.iter().all(|it| [2, 4, 8].contains(it))
            && !self.loads.is_empty()
            && self.loads.iter().all(is_load)
            && self.rounds > 0
            && self.senders.is_none_or(|it| (1..=16).contains(&it))
            && (32..=65_536).contains(&self.window)
            && self.tun <= 1000
            && (1..=10).contains(&self.handshakes)
            && (0.2..=60.0).contains(&self.seconds)
    }

    /// One CPU is left for peers that send little, and for all else.
    fn senders(&self, shards: usize) -> u8 {
        self.senders.unwrap_or_else(|| {
            let left = cpus().saturating_sub(shards + 1).clamp(1, 8);
            u8::try_from(left).unwrap_or(1)
        })
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn main() -> ExitCode {
    let Some(arguments) = Arguments::parse(std::env::args().skip(1)) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    if !cfg!(adit_lab_steps) {
        eprintln!(
            "rx_queues: this build always moves peers: build it with RUSTFLAGS='--cfg adit_lab_steps'"
        );
        return ExitCode::FAILURE;
    }
    let result = match arguments.one {
        true => measure(&arguments),
        false => compare(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rx_queues: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures here, and prints the numbers.
fn measure(arguments: &Arguments) -> io::Result<()> {
    let named = |(name, _): &&(&str, Load)| *name == arguments.loads[0];
    let load = Load::ALL.iter().find(named).map_or(Load::One, |it| it.1);
    let shards = arguments.shards[0];
    let settings = Settings {
        load,
        shards,
        senders: arguments.senders(shards),
        window: arguments.window * 1024,
        tun: Duration::from_micros(arguments.tun),
        handshakes: arguments.handshakes,
        measures: Duration::from_secs_f64(arguments.seconds),
    };
    let measured = match arguments.over.as_str() {
        "memory" => field::measure(&MemNetwork::new(), &settings),
        _ => field::measure(&Loopback, &settings),
    }?;
    let numbers = measured.map(|number| number.to_string());
    println!("{}", numbers.join(" "));
    Ok(())
}

/// Has another process measure.
fn measured(
    arguments: &Arguments,
    (load, shards): (&str, usize),
    moves: bool,
) -> io::Result<Measured> {
    let ideas = [
        (!moves, Idea::Moves),
        (arguments.assumes_idle, Idea::IdleCpus),
    ];
    let without = ideas.iter().filter(|(is_off, _)| *is_off);
    let without: Vec<&str> = without.map(|(_, idea)| idea.name()).collect();
    let mut command = Command::new(std::env::current_exe()?);
    command.env(lab::VARIABLE, without.join(",")).arg("--one");
    let senders = arguments.senders(shards).to_string();
    let numbers = [
        ("--over", arguments.over.clone()),
        ("--loads", load.to_string()),
        ("--shards", shards.to_string()),
        ("--senders", senders),
        ("--window", arguments.window.to_string()),
        ("--tun-us", arguments.tun.to_string()),
        ("--handshakes", arguments.handshakes.to_string()),
        ("--seconds", arguments.seconds.to_string()),
    ];
    for (name, value) in numbers {
        command.args([name.to_string(), value]);
    }
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text.split_whitespace().map(|word| word.parse().ok());
    let numbers: Option<Vec<f64>> = numbers.collect();
    let numbers = numbers.and_then(|numbers| Measured::try_from(numbers).ok());
    let numbers = numbers.ok_or_else(|| {
        io::Error::other(format!("{load} with {shards} shards: {}", output.status))
    })?;
    if !moves && numbers[MOVED] > 0.0 {
        let moved = numbers[MOVED];
        return Err(io::Error::other(format!(
            "{moved} peers moved without moves"
        )));
    }
    Ok(numbers)
}

const MOVED: usize = 5;
const PACKETS: usize = 1;

/// Measures with and without moves in turn, and prints what came out.
fn compare(arguments: &Arguments) -> io::Result<()> {
    let begun = Instant::now();
    println!(
        "over {}, {} CPUs, {}, {} rounds, packets (p) of 1420 bytes, TUN {} us",
        arguments.over,
        cpus(),
        adit_aead::implementation(),
        arguments.rounds,
        arguments.tun,
    );
    println!("each round: load, shards, moves, {}", NAMES.join(", "));
    let mut table = format!(
        "| load | shards | senders | moves | {} | with / without |",
        NAMES.join(" | ")
    );
    table += &format!("\n|{}", "---|".repeat(NAMES.len() + 5));
    for load in &arguments.loads {
        for shards in &arguments.shards {
            let rounds = rounds(arguments, (load, *shards));
            let ratios = rounds[1].iter().zip(&rounds[0]);
            let ratios =
                ratios.filter_map(|(with, without)| Some((*with)?[PACKETS] / (*without)?[PACKETS]));
            let ratios = range(ratios.collect(), 2);
            for (name, rounds) in ["off", "on"].into_iter().zip(&rounds) {
                let numbers = |index: usize| rounds.iter().flatten().map(|it| it[index]).collect();
                let digits = |index| if index <= PACKETS { 3 } else { 0 };
                let columns = (0..NAMES.len()).map(|index| range(numbers(index), digits(index)));
                let columns: Vec<String> = columns.collect();
                let (senders, columns) = (arguments.senders(*shards), columns.join(" | "));
                let ratios = if name == "on" { &ratios } else { "" };
                table +=
                    &format!("\n| {load} | {shards} | {senders} | {name} | {columns} | {ratios} |");
            }
        }
    }
    println!("\nmedian [lowest, highest] of the rounds\n\n{table}\n");
    println!("{:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Measures each round without moves and with them. A process that fails says so.
fn rounds(arguments: &Arguments, (load, shards): (&str, usize)) -> [Vec<Option<Measured>>; 2] {
    let mut rounds: [Vec<Option<Measured>>; 2] = Default::default();
    for round in 0..arguments.rounds {
        // Each comes first in every second round.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for moves in order {
            let measured = measured(arguments, (load, shards), moves == 1);
            match &measured {
                Ok(numbers) => {
                    let numbers = numbers.map(|number| format!("{number:.3}"));
                    let name = ["off", "on"][moves];
                    println!("{load} {shards} {name} {}", numbers.join(" "));
                }
                Err(error) => eprintln!("rx_queues: {error}"),
            }
            rounds[moves].push(measured.ok());
        }
    }
    rounds
}

/// The median, the lowest and the highest.
fn range(mut numbers: Vec<f64>, digits: usize) -> String {
    numbers.sort_by(f64::total_cmp);
    let (Some(lowest), Some(highest)) = (numbers.first(), numbers.last()) else {
        return "-".into();
    };
    let middle = numbers.len() / 2;
    let median = match numbers.len() % 2 {
        0 => (numbers[middle - 1] + numbers[middle]) / 2.0,
        _ => numbers[middle],
    };
    format!("{median:.digits$} [{lowest:.digits$}, {highest:.digits$}]")
}
