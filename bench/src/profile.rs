//! `adit-lab profile`: where the time goes, at both ends of a loaded tunnel.
//!
//! Stages: build the pair → load it → `perf record` on both daemons at once → `perf script` →
//! collapse → flame graphs and a table of the hottest functions.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_testbed::framing::Family;
use adit_testbed::process::{self, Process};
use clap::{Args, ValueEnum};
use inferno::collapse::Collapse;
use inferno::collapse::perf::Folder;
use inferno::flamegraph;

use crate::generator::Flood;
use crate::implementation::{Entry, Implementation};
use crate::install::{self, AditArg, Flavour};
use crate::measure::wait;
use crate::output;
use crate::pair::{LinkedHosts, Placement, require_congestion};
use crate::sandbox::Failure;
use crate::tools::{self, Iperf};

/// Records both ends of a loaded tunnel and writes a flame graph of each.
///
/// Needs perf besides what `compare` needs. Adit is built with frame pointers for this, so that the
/// graph shows callers. The clock of the processor is sampled, which works in virtual machines
/// without performance counters.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProfileArgs {
    /// The implementation to profile.
    #[arg(long, default_value = "adit")]
    implementation: Implementation,
    /// What to load the tunnel with.
    #[arg(long, default_value = "tcp")]
    load: Load,
    /// How long to record.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Samples per second of CPU time.
    #[arg(long, default_value_t = 997, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    frequency: u32,
    /// All of one host on one core, all of the other on the other.
    #[arg(long)]
    pinned: bool,
    #[command(flatten)]
    adit: AditArg,
    /// How many functions to list.
    #[arg(long, default_value_t = 15)]
    top: usize,
    /// TCP's congestion control.
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// Where to write sender.svg and receiver.svg.
    #[arg(long, default_value = "profile", value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Load {
    /// One TCP stream.
    Tcp,
    /// 64-byte datagrams, as many as go.
    Udp64,
    /// 1368-byte datagrams, as many as go.
    Udp1368,
    /// Trains of 1368-byte datagrams.
    UdpGso,
}

/// Records, draws and lists.
pub(crate) fn run(args: &ProfileArgs) -> Result<(), Failure> {
    let perf = ("perf", "--version", "linux-perf");
    tools::require(&[&tools::LOAD[..], &[perf]].concat())?;
    require_congestion(&args.congestion)?;
    let entry = match args.implementation {
        Implementation::Adit => install::adit(args.adit.path(), Flavour::FramePointers)?,
        Implementation::Ceiling => install::adit(None, Flavour::WithoutAead)?,
        Implementation::Direct | Implementation::Kernel => {
            return Err("there is no daemon to profile".into());
        }
        peer => install::peer(peer)?,
    };
    std::fs::create_dir_all(&args.out)?;
    let recordings = ENDS.map(|end| Recording(args.out.join(format!("{end}.perf"))));
    record(args, &entry, &recordings)?;
    for (end, recording) in ENDS.into_iter().zip(recordings) {
        let folded = collapse(&recording.0)?;
        drop(recording);
        let svg = args.out.join(format!("{end}.svg"));
        draw(&format!("{} {end}", entry.who.name()), &folded, &svg)?;
        let hottest = hottest(&folded, args.top);
        output::print(&format!("{end}: {}\n{hottest}", svg.display()))?;
    }
    Ok(())
}

const ENDS: [&str; 2] = ["sender", "receiver"];

/// The file that perf writes, perhaps hundreds of megabytes. It is removed once it was read, or
/// when it will not be.
struct Recording(PathBuf);

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Loads the tunnel and records both daemons meanwhile.
fn record(args: &ProfileArgs, entry: &Entry, files: &[Recording; 2]) -> Result<(), Failure> {
    let placement = if args.pinned {
        Placement::OnePerCore
    } else {
        Placement::Free
    };
    let pair = LinkedHosts::new(entry, placement, Family::V4, &args.congestion)?;
    let daemons = pair.daemons().ok_or("there is no daemon to profile")?;
    let loaded = args.seconds + 2;
    eprintln!(
        "{} {}: recording {} s",
        entry.who.name(),
        entry.version,
        args.seconds
    );
    let recording = || sample(daemons, args.seconds, args.frequency, files);
    let time = Duration::from_secs(loaded.into());
    let flood = |len, trains| Flood { len, trains, time };
    let reached = match args.load {
        Load::Tcp => {
            let load = Iperf::tcp(1, loaded).start(&pair, pair.address(Family::V4, 1))?;
            recording()?;
            load.finish()?
        }
        Load::Udp64 => beside(&pair, flood(64, false), recording)?,
        Load::Udp1368 => beside(&pair, flood(1368, false), recording)?,
        Load::UdpGso => beside(&pair, flood(1368, true), recording)?,
    };
    let packets = reached.datagrams.map_or_else(String::new, |(_, received)| {
        format!(", {:.0} kpps", received / reached.seconds / 1000.0)
    });
    let rate = reached.gbps();
    Ok(output::print(&format!(
        "the load reached {rate:.2} Gb/s{packets}\n"
    ))?)
}

/// Records both daemons, a second after their load began.
fn sample(
    daemons: [u32; 2],
    seconds: u32,
    frequency: u32,
    files: &[Recording; 2],
) -> Result<(), Failure> {
    wait(Duration::from_secs(1))?;
    let start = |pid: u32, file: &Recording| -> std::io::Result<Process> {
        let (pid, frequency) = (pid.to_string(), frequency.to_string());
        let (seconds, file) = (seconds.to_string(), file.0.to_string_lossy());
        let words = [
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            &frequency,
            "-g",
            "-p",
            &pid,
            "-o",
            &file,
            "--",
            "sleep",
            &seconds,
        ];
        Process::spawn(process::command("perf", &words))
    };
    let both = [start(daemons[0], &files[0])?, start(daemons[1], &files[1])?];
    for perf in both {
        let limit = Duration::from_secs(u64::from(seconds) + 30);
        perf.output(limit)?;
    }
    Ok(())
}

/// Why perf cannot be used here.
pub(crate) fn require_perf() -> Result<(), Failure> {
    tools::require(&[("perf", "--version", "linux-perf")])
}

/// What perf finds at both ends of a tunnel that has one TCP stream: the name of each end, and its
/// folded stacks.
pub(crate) fn one_stream(
    entry: &Entry,
    congestion: &str,
    seconds: u32,
) -> Result<[(&'static str, String); 2], Failure> {
    /// Some thousand samples make a graph.
    const FREQUENCY: u32 = 499;
    let pair = LinkedHosts::new(entry, Placement::Free, Family::V4, congestion)?;
    let daemons = pair.daemons().ok_or("there is no daemon to profile")?;
    let own = std::process::id();
    let files =
        ENDS.map(|end| Recording(std::env::temp_dir().join(format!("adit-lab-{own}-{end}.perf"))));
    let load = Iperf::tcp(1, seconds + 2).start(&pair, pair.address(Family::V4, 1))?;
    sample(daemons, seconds, FREQUENCY, &files)?;
    load.finish()?;
    let [sender, receiver] = &files;
    Ok([
        (ENDS[0], collapse(&sender.0)?),
        (ENDS[1], collapse(&receiver.0)?),
    ])
}

/// Floods from another thread while `work` is done.
fn beside(
    pair: &LinkedHosts,
    flood: Flood,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<tools::Flow, Failure> {
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood.run(pair));
        work()?;
        flooding.join().map_err(|_| "the flood failed")?
    })
}

/// Stacks with their CPU time, one line each: `thread;outer;…;inner nanoseconds`.
fn collapse(data: &Path) -> Result<String, Failure> {
    let data = data.to_string_lossy();
    let limit = Duration::from_secs(120);
    let script = process::run("perf", &["script", "-i", &data], limit)?;
    let mut folded = Vec::new();
    Folder::default()
        .collapse(script.as_bytes(), &mut folded)
        .map_err(|e| format!("cannot collapse what perf recorded: {e}"))?;
    if folded.is_empty() {
        return Err("perf recorded no sample".into());
    }
    Ok(String::from_utf8_lossy(&folded).into_owned())
}

fn draw(title: &str, folded: &str, svg: &Path) -> Result<(), Failure> {
    let mut options = flamegraph::Options::default();
    options.title = title.to_owned();
    options.count_name = "ns".to_owned();
    let mut file = BufWriter::new(File::create(svg)?);
    flamegraph::from_lines(&mut options, folded.lines(), &mut file)
        .map_err(|e| format!("cannot draw the flame graph: {e}"))?;
    Ok(file.flush()?)
}

/// The functions in which most samples were taken, with their share of all samples.
fn hottest(folded: &str, top: usize) -> String {
    let mut leaves = std::collections::HashMap::<&str, f64>::new();
    let mut all = 0.0;
    for (stack, count) in folded.lines().filter_map(|line| line.rsplit_once(' ')) {
        let Ok(count) = count.parse::<f64>() else {
            continue;
        };
        let leaf = stack.rsplit_once(';').map_or(stack, |(_, leaf)| leaf);
        *leaves.entry(leaf).or_default() += count;
        all += count;
    }
    let mut leaves: Vec<_> = leaves.into_iter().collect();
    leaves.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    leaves
        .into_iter()
        .take(top)
        .map(|(leaf, count)| format!("  {:5.1} %  {leaf}\n", count * 100.0 / all))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::hottest;

    #[test]
    fn the_hottest_functions_are_listed_by_their_own_share() {
        let folded = "t;main;send;copy 30\nt;main;recv;copy 20\nt;main;seal 40\nt;main 10\n";
        assert_eq!(hottest(folded, 2), "   50.0 %  copy\n   40.0 %  seal\n");
        assert_eq!(hottest("", 3), "");
    }
}
