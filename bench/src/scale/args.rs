//! The arguments of `adit-lab scale`.

use clap::{Args, ValueEnum};

use crate::install::AditArg;
use crate::output::JsonArg;

/// Measures what further threads bring, by policy: the engine over devices in memory, which copy
/// packets and do nothing else, and real tunnels between two hosts on this machine.
///
/// In memory: one thread, and several by each policy; and what each stage costs. The policies take
/// turns in each round. `auto` is measured with idle CPUs for its workers: on a machine that does
/// other things at the same time it shows less.
///
/// Tunnels: TCP through TUN devices and UDP sockets, from 1 to 32 flows in one tunnel, 12 flows over
/// 1 to 4 tunnels, and 4 flows that offer less than a tunnel carries, with the CPU time of each thread
/// and core. Both ends, and the programs that send and receive, share the machine's cores. This part
/// needs root.
///
/// Forwarded: two gateways with one tunnel and with four between them, each of which carries a part of
/// both sites' networks, as in "WireGuard in pfSense 2.5 Performance". Hosts behind them send UDP in
/// IP packets of 1420 octets in both directions, more and more until no more arrives behind the other
/// gateway. Other implementations, and the same links without a tunnel, stand beside it. This part
/// needs root.
///
/// Model: a simulation of the engine's ordered queues and threads, with what the stages cost here. It says what
/// every measured point should have been, and how far off it is; then what up to 32 cores bring, and
/// beside that the pipelines of the kernel and of wireguard-go, with costs from published figures.
///
/// JSON is one object with `schema` (1), `command`, `started`, `machine`, `congestion_control`, `cpus`,
/// `rounds` and `memory`: one for each `load` and `policy`, with its `threads`, and the median, least
/// and greatest of `gbps`, of `gbps_alone` (without the time in which other programs had the CPUs) and
/// of `cpu_s_per_gb`. `stages` has CPU nanoseconds a packet for each `load` and its `devices`, in memory
/// or the kernel's: `take_ns`, `work_ns`, `put_ns` and `poll_ns`. `tunnels` has for each number of
/// `tunnels` and `flows` and each `policy` what came through (`gbps`), CPU seconds a GB of both ends'
/// daemons and of the whole machine, and the shares of a core that each thread had (`thread_load`) and
/// that each core was busy (`core_load`). `loads` has the same of flows that offer no more than
/// `offered_gbps`. `forwarded` has for each `implementation` and number of `tunnels` what arrived (`gbps`,
/// of IP packets in both directions) when `offered_gbps` were sent, CPU microseconds of the daemons for
/// each packet, and `of_theory`, the share of what the links forward without a tunnel, less framing;
/// `left_out`, which implementations are not there, and why. `model` has `cores`, what two cores cost
/// each other; `validation`, every measured point with `measured_gbps`, `alone_gbps`, `model_gbps` and
/// both errors; `curves`, with `lines` of `points`; and `published` figures of other systems beside
/// their model. Each of the `goals` has `name`, `value`, `goal` and `met`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    pub(super) json: JsonArg,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) rounds: u16,
    /// Threads of the policies that use several, and of every policy with real tunnels; by default as
    /// many as CPUs, two at least.
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub(super) shards: Option<u16>,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) only: Vec<Part>,
    #[command(flatten)]
    pub(super) adit: AditArg,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// The engine over devices in memory.
    Memory,
    /// Tunnels between two hosts.
    Tunnels,
    /// Packets that two gateways forward, by implementation.
    Forwarded,
}

impl ScaleArgs {
    pub(super) fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Whether it needs hosts.
    pub(crate) fn needs_root(&self) -> bool {
        self.has(Part::Tunnels) || self.has(Part::Forwarded)
    }
}
