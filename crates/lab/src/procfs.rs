//! What the kernel counts: CPU time, memory, retransmissions.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

use crate::sandbox::Failure;

/// CPU seconds, user and system, that the process has used since it started, all its threads together.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = process_ticks(&stat).ok_or("cannot read /proc/PID/stat")?;
    Ok(ticks / ticks_per_second())
}

/// CPU seconds that all cores together spent on anything but waiting.
pub(crate) fn machine_cpu_seconds() -> Result<f64, Failure> {
    let stat = fs::read_to_string("/proc/stat")?;
    let ticks = machine_ticks(&stat).ok_or("cannot read /proc/stat")?;
    Ok(ticks / ticks_per_second())
}

/// Whether the process has the file open.
pub(crate) fn has_open(pid: u32, path: &str) -> Result<bool, Failure> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let mut targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(targets.any(|target| target.as_os_str() == path))
}

/// Resident memory now and at its peak, in MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Memory {
    pub(crate) now: f64,
    pub(crate) peak: f64,
}

/// The memory of a process.
pub(crate) fn memory(pid: u32) -> Result<Memory, Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    memory_of(&status).ok_or_else(|| "cannot read /proc/PID/status".into())
}

/// TCP segments sent again in the network namespace of the calling thread.
pub(crate) fn retransmits() -> Result<u64, Failure> {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
    snmp_counter(&snmp, "Tcp:", "RetransSegs").ok_or_else(|| "no RetransSegs".into())
}

/// The averages of the run queue's length over 1, 5 and 15 minutes.
pub(crate) fn load_average() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let three: Vec<&str> = load.split_whitespace().take(3).collect();
    three.join(" ")
}

/// The processor's name and number of cores.
pub(crate) fn processor() -> (String, usize) {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = info.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim())
    });
    let name = names.clone().next().unwrap_or("unknown").to_owned();
    (name, names.count().max(1))
}

#[expect(clippy::cast_precision_loss, reason = "a clock rate of 100 to 1000")]
fn ticks_per_second() -> f64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    ticks as f64
}

/// utime and stime, the 14th and 15th field. The 2nd, the command's name, may hold blanks and parentheses.
fn process_ticks(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Everything but idle and iowait (and guest time, which user time includes).
fn machine_ticks(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = line
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = fields[..] else {
        return None;
    };
    Some(user + nice + system + irq + softirq)
}

fn memory_of(status: &str) -> Option<Memory> {
    let mib = |key: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib / 1024.0)
    };
    Some(Memory {
        now: mib("VmRSS:")?,
        peak: mib("VmHWM:")?,
    })
}

/// `snmp` has two lines for each protocol: names, then values.
fn snmp_counter(snmp: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with(protocol));
    let at = lines
        .next()?
        .split_whitespace()
        .position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_behind_a_name_with_blanks_and_parentheses() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194304 100 0 0 0 250 150 0 0 20 0 8 0 12345";
        assert_eq!(process_ticks(stat), Some(400.0));
        assert_eq!(process_ticks("nothing"), None);
        assert_eq!(process_ticks("1 (x) S 1"), None);
    }

    #[test]
    fn waiting_is_no_work() {
        let stat = "cpu  10 20 30 4000 500 6 7 0 0 0\ncpu0 1 2 3\n";
        assert_eq!(machine_ticks(stat), Some(73.0));
        assert_eq!(machine_ticks("cpu  1 2"), None);
    }

    #[test]
    fn memory_is_told_in_mebibytes() {
        let status = "Name:\tx\nVmPeak:\t 999999 kB\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n";
        let memory = memory_of(status).unwrap();
        assert_eq!((memory.now, memory.peak), (2.0, 4.0));
        assert_eq!(memory_of("Name:\tzombie\n"), None);
    }

    #[test]
    fn open_files_are_those_that_a_process_has() {
        let _null = fs::File::open("/dev/null").unwrap();
        assert!(has_open(std::process::id(), "/dev/null").unwrap());
        assert!(!has_open(std::process::id(), "/dev/net/tun").unwrap());
        assert!(has_open(u32::MAX, "/dev/null").is_err());
    }

    #[test]
    fn counters_are_found_by_name() {
        let snmp = "Ip: A B\nIp: 1 2\nTcp: InSegs RetransSegs\nTcp: 7 9\n";
        assert_eq!(snmp_counter(snmp, "Tcp:", "RetransSegs"), Some(9));
        assert_eq!(snmp_counter(snmp, "Tcp:", "Nothing"), None);
        assert_eq!(snmp_counter(snmp, "Udp:", "InErrors"), None);
    }
}
