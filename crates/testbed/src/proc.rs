//! What the kernel counts: CPU time, memory, retransmissions.
//!
//! # Errors
//! Every function fails where /proc cannot be read, as for a process that has gone, or says what
//! the kernel of its time did not.

use std::io;
use std::path::Path;
use std::time::Duration;

use procfs::net::TcpState;
use procfs::process::{FDTarget, Process};
use procfs::{
    CpuInfo, Current as _, CurrentSI as _, KernelStats, LoadAverage, ProcError, ticks_per_second,
};
use rustix::time::{ClockId, clock_gettime};

/// CPU time, user and system, that the process has used since it started, all its threads together.
///
/// # Errors
///
/// The process has ended, or `/proc` is not mounted.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let stat = process(pid)?.stat().map_err(error)?;
    Ok(time(stat.utime + stat.stime))
}

/// CPU time that all cores together spent on anything but waiting (and guest time, which user time
/// includes).
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn machine_cpu_time() -> io::Result<Duration> {
    let total = KernelStats::current().map_err(error)?.total;
    let interrupts = total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
    Ok(time(total.user + total.nice + total.system + interrupts))
}

/// CPU time of one core since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// In programs.
    pub user: Duration,
    /// In the kernel, for programs.
    pub system: Duration,
    /// In the kernel, for interrupts: what the network card, or a veth, brought.
    pub interrupts: Duration,
}

/// CPU times of all cores that are online.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn core_cpu_times() -> io::Result<Vec<CoreTime>> {
    let cores = KernelStats::current().map_err(error)?.cpu_time;
    let core = cores.iter().map(|core| CoreTime {
        user: time(core.user + core.nice),
        system: time(core.system),
        interrupts: time(core.irq.unwrap_or(0) + core.softirq.unwrap_or(0)),
    });
    Ok(core.collect())
}

/// CPU time that the calling thread has used, to the nanosecond.
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// A thread, and the CPU time that it has used since it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTime {
    /// Its number.
    pub id: i32,
    /// Its name, of 15 bytes at most.
    pub name: String,
    /// User and system time.
    pub time: Duration,
}

/// CPU times of the threads that a process has now.
///
/// # Errors
///
/// The process has ended, or `/proc` is not mounted.
pub fn thread_cpu_times(pid: u32) -> io::Result<Vec<ThreadTime>> {
    let tasks = process(pid)?.tasks().map_err(error)?;
    // A thread that has ended meanwhile has none.
    let times = tasks.filter_map(|task| {
        let stat = task.ok()?.stat().ok()?;
        Some(ThreadTime {
            id: stat.pid,
            name: stat.comm,
            time: time(stat.utime + stat.stime),
        })
    });
    Ok(times.collect())
}

/// How long the threads that a process has now were ready to run, since they started: with a CPU,
/// and waiting for one.
///
/// # Errors
///
/// The process has ended, `/proc` is not mounted, or the kernel does not count it
/// (CONFIG_SCHED_INFO).
pub fn ready_times(pid: u32) -> io::Result<[Duration; 2]> {
    let mut sums = [Duration::ZERO; 2];
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended meanwhile.
        let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        for (sum, nanoseconds) in sums.iter_mut().zip(text.split_whitespace()) {
            let nanoseconds = nanoseconds.parse().map_err(io::Error::other)?;
            *sum += Duration::from_nanos(nanoseconds);
        }
    }
    match sums[0].is_zero() {
        true => Err(io::ErrorKind::Unsupported.into()),
        false => Ok(sums),
    }
}

/// Whether the process has the file open.
///
/// # Errors
///
/// The process has ended, or belongs to another user.
pub fn has_open(pid: u32, path: &Path) -> io::Result<bool> {
    let mut files = process(pid)?.fd().map_err(error)?;
    Ok(files
        .any(|file| file.is_ok_and(|file| matches!(file.target, FDTarget::Path(at) if at == path))))
}

/// Resident memory, in MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Memory at the moment.
    pub now: f64,
    /// The most that there ever was.
    pub peak: f64,
}

/// How often the threads of a process have stopped to wait for something since they started: so often
/// they were woken up. Threads that have ended do not count.
///
/// # Errors
///
/// The process has ended, or `/proc` is not mounted.
pub fn wake_ups(pid: u32) -> io::Result<u64> {
    let mut sum = 0;
    for task in process(pid)?.tasks().map_err(error)? {
        let status = task.and_then(|task| task.status());
        sum += status.map_err(error)?.voluntary_ctxt_switches.unwrap_or(0);
    }
    Ok(sum)
}

/// How many threads a process has.
///
/// # Errors
///
/// The process has ended, or `/proc` is not mounted.
pub fn threads(pid: u32) -> io::Result<usize> {
    let status = process(pid)?.status().map_err(error)?;
    usize::try_from(status.threads).map_err(io::Error::other)
}

/// The memory of a process.
///
/// # Errors
///
/// The process has ended, or `/proc` is not mounted.
pub fn memory(pid: u32) -> io::Result<Memory> {
    let status = process(pid)?.status().map_err(error)?;
    let kib = status.vmrss.zip(status.vmhwm);
    // A zombie has none.
    let (now, peak) = kib.ok_or_else(|| io::Error::other("the process has no memory"))?;
    Ok(Memory {
        now: mib(now),
        peak: mib(peak),
    })
}

/// TCP segments sent again in the network namespace of the calling thread.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn retransmits() -> io::Result<u64> {
    let snmp = this_thread()?.snmp().map_err(error)?;
    Ok(snmp.tcp_retrans_segs)
}

/// Whether a UDP socket, over IPv4 or IPv6, is bound to the port in the network namespace of the
/// calling thread.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn has_udp_port(port: u16) -> io::Result<bool> {
    let sockets = this_thread()?.udp().map_err(error)?;
    // There is no such file without IPv6.
    let others = this_thread()?.udp6().unwrap_or_default();
    let mut all = sockets.iter().chain(&others);
    Ok(all.any(|socket| socket.local_address.port() == port))
}

/// Whether a TCP socket, over IPv4 or IPv6, listens at the port in the network namespace of the
/// calling thread. Unlike a connection, the question disturbs no server.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn has_tcp_listener(port: u16) -> io::Result<bool> {
    let sockets = this_thread()?.tcp().map_err(error)?;
    // There is no such file without IPv6.
    let others = this_thread()?.tcp6().unwrap_or_default();
    let listens = |state: &TcpState| matches!(state, TcpState::Listen);
    let mut all = sockets.iter().chain(&others);
    Ok(all.any(|socket| socket.local_address.port() == port && listens(&socket.state)))
}

/// The averages of the run queue's length over 1, 5 and 15 minutes, as text; nothing where they
/// cannot be read.
pub fn load_average() -> String {
    LoadAverage::current().map_or_else(
        |_| String::new(),
        |load| format!("{:.2} {:.2} {:.2}", load.one, load.five, load.fifteen),
    )
}

/// The processor's name, or "unknown", and its number of cores, one at least.
pub fn processor() -> (String, usize) {
    let info = CpuInfo::current().ok();
    let name = info.as_ref().and_then(|info| info.model_name(0));
    let cores = info.as_ref().map_or(1, CpuInfo::num_cores);
    (name.unwrap_or("unknown").to_owned(), cores.max(1))
}

fn process(pid: u32) -> io::Result<Process> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    Process::new(pid).map_err(error)
}

/// The calling thread: `/proc/self` is the main one, which may be in another network namespace.
fn this_thread() -> io::Result<Process> {
    Process::new(rustix::thread::gettid().as_raw_nonzero().get()).map_err(error)
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Exact to the nanosecond: the kernel's clock ticks 100 times a second, or another divisor of
/// 10^9.
fn time(ticks: u64) -> Duration {
    Duration::from_nanos(ticks * (1_000_000_000 / ticks_per_second().max(1)))
}

fn error(error: ProcError) -> io::Error {
    match error {
        ProcError::Io(error, _) => error,
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn this_process() -> u32 {
        std::process::id()
    }

    #[test]
    fn work_costs_cpu_time() {
        let (process, machine) = (
            cpu_time(this_process()).unwrap(),
            machine_cpu_time().unwrap(),
        );
        // Both clocks tick soon, but not at the same time.
        let limit = Instant::now() + Duration::from_secs(60);
        while cpu_time(this_process()).unwrap() == process || machine_cpu_time().unwrap() <= machine
        {
            assert!(Instant::now() < limit);
        }
    }

    #[test]
    fn threads_and_cores_have_times_of_their_own() {
        let busy = std::thread::Builder::new().name("proc-busy".into());
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread =
            busy.spawn(
                move || {
                    while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {}
                },
            );
        let time = || {
            let threads = thread_cpu_times(this_process()).unwrap();
            let mut named = threads.iter().filter(|thread| thread.name == "proc-busy");
            named.next().map(|thread| thread.time)
        };
        let cores = core_cpu_times().unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        while time().is_none_or(|time| time < Duration::from_millis(20)) {
            assert!(Instant::now() < limit);
        }
        drop(stop);
        thread.unwrap().join().unwrap();
        let busy = |cores: &[CoreTime]| -> Duration {
            cores.iter().map(|core| core.user + core.system).sum()
        };
        assert!(busy(&core_cpu_times().unwrap()) > busy(&cores));
        assert!(thread_cpu_times(u32::MAX).is_err());
        assert!(ready_times(this_process()).unwrap()[0] >= Duration::from_millis(20));
        assert!(ready_times(u32::MAX).is_err());
    }

    #[test]
    fn the_peak_of_memory_is_no_less_than_what_there_is() {
        let memory = memory(this_process()).unwrap();
        assert!(memory.now > 0.5 && memory.now <= memory.peak, "{memory:?}");
    }

    #[test]
    fn a_process_that_is_gone_has_no_numbers() {
        assert!(cpu_time(u32::MAX).is_err());
        assert!(memory(0).is_err());
    }

    #[test]
    fn open_files_are_those_that_a_process_has() {
        let path = std::env::temp_dir().join(format!("adit-testbed-open-{}", this_process()));
        let _ = std::fs::remove_file(&path);
        let file = std::fs::File::create_new(&path).unwrap();
        let open = has_open(this_process(), &path);
        std::fs::remove_file(&path).unwrap();
        assert!(open.unwrap());
        drop(file);
        assert!(!has_open(this_process(), &path).unwrap());
    }

    #[test]
    fn a_bound_udp_port_is_seen() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(has_udp_port(port).unwrap());
        // Where there is IPv6.
        if let Ok(socket) = std::net::UdpSocket::bind("[::1]:0") {
            assert!(has_udp_port(socket.local_addr().unwrap().port()).unwrap());
        }
        retransmits().unwrap();
    }

    #[test]
    fn a_tcp_socket_is_seen_while_it_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(has_tcp_listener(port).unwrap());
        // A connection from that port does not listen at it.
        let near = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert!(!has_tcp_listener(near.local_addr().unwrap().port()).unwrap());
        drop((near, listener));
        // A process that another test starts has the socket, too, until it runs its program.
        let closed = || {
            std::thread::sleep(Duration::from_millis(10));
            !has_tcp_listener(port).unwrap()
        };
        assert!((0..500).any(|_| closed()));
    }

    #[test]
    fn the_machine_has_a_load_and_cores() {
        assert_eq!(load_average().split(' ').count(), 3);
        assert!(processor().1 >= 1);
    }
}
