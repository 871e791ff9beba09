//! TCP between two hosts whose tunnel is a program with a TUN device. iperf3 has 128 streams at most; 1,000 are those of
//! `embed-socks`, without a proxy.

use adit_testbed::framing::Family;

use super::socks;
use super::ways::Program;
use crate::measure::{self, account};
use crate::metric::Step;
use crate::pair::LinkedHosts;
use crate::rounds::{self, Measure, Values};
use crate::sandbox::Failure;
use crate::tools::Iperf;

pub(super) const RATE: &str = "tcp1";
pub(super) const CPU: &str = "tcp1.cpu";

pub(super) const MEASURES: [Measure; 11] = [
    rounds::measure(RATE, "one stream", "Gb/s", 2),
    rounds::measure(CPU, "  CPU of both", "s/GB", 2),
    rounds::measure("back1", "one stream back", "Gb/s", 2),
    rounds::measure("back1.cpu", "  CPU of both", "s/GB", 2),
    rounds::measure("tcp64", "64 streams", "Gb/s", 2),
    rounds::measure("tcp64.cpu", "  CPU of both", "s/GB", 2),
    rounds::measure("tcp1000", "1,000 streams", "Gb/s", 2),
    rounds::measure("tcp1000.cpu", "  CPU of both", "s/GB", 2),
    rounds::measure("ping-load.p50", "ping beside", "µs", 0),
    rounds::measure("ping-load.p99", "  p99", "µs", 0),
    rounds::measure("rss.peak", "memory, peak", "MiB", 1),
];

/// Seconds of each load that do not count.
pub(super) const WARM_UP: u32 = 1;

/// One stream, one back, 64 and 1,000, with the CPU time of both programs; pings beside a stream; the most
/// memory that one of them ever had.
pub(super) fn measure(program: &Program, seconds: u32) -> Result<Values, Failure> {
    let mut pair = LinkedHosts::embedding(program.way.implementation(), &program.words)?;
    let b = pair.address(Family::V4, 1);
    let mut values = Values::new();
    for (streams, reverse, rate, cpu) in [
        (1, false, RATE, CPU),
        (1, true, "back1", "back1.cpu"),
        (64, false, "tcp64", "tcp64.cpu"),
        (1000, false, "tcp1000", "tcp1000.cpu"),
    ] {
        let iperf = Iperf {
            reverse,
            warm_up: WARM_UP,
            ..Iperf::tcp(streams, seconds)
        };
        let accounted = account(&pair, || match streams {
            1000 => socks::flow(&pair, streams, seconds),
            _ => iperf.run(&pair, b),
        });
        // That a program has ended tells more than what the tools make of it.
        pair.check()?;
        let accounted = accounted?;
        let [a, b] = accounted.daemons.ok_or("there is no program")?;
        values.extend([(rate, accounted.flow.gbps()), (cpu, a + b)]);
    }
    let pings = measure::step(Step::PingLoad, &pair);
    pair.check()?;
    values.extend(pings?);
    values.extend(measure::peak_memory(&pair)?);
    Ok(values)
}
