//! How much memory a change of configuration takes, and how much the process may still have.
//!
//! An allocation that fails ends the process. So a change that cannot fit is refused first, where
//! the limit is known: that of the process (RLIMIT_AS, RLIMIT_DATA) or of its cgroup. Then what it
//! takes is allocated and freed, in small pieces, on the thread that will make the change: what a
//! limit leaves is not what malloc(3) can hand out.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use adit_proto::Device;
use adit_proto::config::{Cidr, DeviceChange, PeerStatus, PublicKey};
use adit_proto::memory::{can_allocate, can_allocate_pieces};
use rustix::process::{Resource, getrlimit};

/// Bytes for a new peer and for one of its allowed IPs: with three, 1.64 KB (bench/REPORT.md).
const OF_PEER: u64 = 1_000;
const OF_ALLOWED_IP: u64 = 220;
/// Smaller changes are not looked at.
const SMALL: u64 = 256 << 10;
/// Bytes that have to be left afterwards, for the other threads.
const SPARE: usize = 1 << 20;
/// Up to this size a change is tried in pieces as small as what a peer is made of: malloc(3) may have
/// to take a page for each. Where there is memory for more, there is also some for a heap.
const FEW: u64 = 16 << 20;
const SMALL_PIECE: usize = 128;
const LARGE_PIECE: usize = 1024;
/// Bytes that each small piece of memory may take close to a limit: a page.
const PAGE: usize = 4096;
/// Peers of a change that are looked up: whether half a million are there takes 100 ms.
const SAMPLE: usize = 1024;

/// Bytes that the device needs beyond what it has, roughly; 0 if it is little.
pub(crate) fn needed(device: &Device, change: &DeviceChange) -> u64 {
    let peers = &change.peers;
    if peers.is_empty() {
        return 0;
    }
    let sample = peers.iter().step_by(peers.len().div_ceil(SAMPLE));
    let (mut looked_at, mut bytes) = (0, 0);
    for peer in sample {
        looked_at += 1;
        if !peer.remove && device.peer(&peer.public_key).is_none() {
            bytes += OF_PEER + OF_ALLOWED_IP * peer.allowed_ips.len() as u64;
        }
    }
    let bytes = bytes * peers.len() as u64 / looked_at.max(1);
    if bytes < SMALL { 0 } else { bytes }
}

/// Whether there is memory for a change that needs so much, where `left` says that there is a limit.
pub(crate) fn suffices(needed: u64, left: u64) -> bool {
    let size = match needed {
        ..=FEW => SMALL_PIECE,
        _ => LARGE_PIECE,
    };
    let bytes = usize::try_from(needed + needed / 4);
    left >= needed && bytes.is_ok_and(|bytes| can_allocate_pieces(bytes + SPARE, size))
}

/// Makes room for the status of a device's peers from `first` on, `count` of them at most. False:
/// there is no memory for it.
pub(crate) fn reserve_status(
    device: &Device,
    first: u32,
    count: usize,
    status: &mut Vec<PeerStatus>,
) -> bool {
    let (peers, blocks) = device.sizes_from(first, count);
    // Its allowed IPs, its drops and its preshared key are a piece each.
    let pieces = peers * 3 * PAGE + blocks * size_of::<Cidr>();
    status.try_reserve(peers).is_ok() && can_allocate(pieces + SPARE)
}

/// Makes room for the status of the peers that have these keys. False: there is no memory for it.
pub(crate) fn reserve_some(
    device: &Device,
    keys: &[PublicKey],
    status: &mut Vec<PeerStatus>,
) -> bool {
    let blocks = device.blocks_of(keys);
    let pieces = keys.len() * 3 * PAGE + blocks * size_of::<Cidr>();
    status.try_reserve(keys.len()).is_ok() && can_allocate(pieces + SPARE)
}

/// Bytes that this process may have beyond what it has; `None` if nothing limits it.
pub(crate) fn left() -> Option<u64> {
    let files = FILES.get_or_init(Files::open);
    let own = own_sizes(files.status.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|(resource, used)| {
            let limit = getrlimit(resource).current?;
            Some(limit.saturating_sub(used))
        });
    own.chain(files.left_in_cgroup()).min()
}

/// Opens what [`left`] reads, in a process that will not be able to.
pub(crate) fn open() {
    FILES.get_or_init(Files::open);
}

static FILES: OnceLock<Files> = OnceLock::new();

/// Cgroups above that of the process that are looked at.
const MAX_DEPTH: usize = 16;

/// Files in which the kernel tells of memory.
struct Files {
    status: Option<File>,
    cgroup: Option<(File, String)>,
    /// Of the cgroup of the process, and of those above it.
    groups: Vec<Group>,
}

impl Files {
    fn open() -> Self {
        let cgroup = File::open("/proc/self/cgroup").ok();
        let cgroup = cgroup.and_then(|file| {
            let text = read(&file)?;
            Some((file, text))
        });
        let text = cgroup.as_ref().map_or("", |(_, text)| text);
        let groups = groups(Path::new("/sys/fs/cgroup"), text);
        Self {
            status: File::open("/proc/self/status").ok(),
            cgroup: cgroup.filter(|_| !groups.is_empty()),
            groups,
        }
    }

    /// The least that a cgroup leaves. It is unknown once the process was moved to another one.
    fn left_in_cgroup(&self) -> Option<u64> {
        let (file, text) = self.cgroup.as_ref()?;
        let stayed = read(file).as_ref() == Some(text);
        stayed.then(|| least(&self.groups)).flatten()
    }
}

/// The beginning of a file of the kernel's.
fn read(file: &File) -> Option<String> {
    let mut text = vec![0; 8192];
    let len = file.read_at(&mut text, 0).ok()?;
    text.truncate(len);
    String::from_utf8(text).ok()
}

/// Sizes of this process, by the limit that they count towards.
fn own_sizes(status: Option<&File>) -> Option<[(Resource, u64); 2]> {
    let status = read(status?)?;
    let of = |name: &str| {
        let size = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(size.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    Some([
        (Resource::As, of("VmSize:")?),
        (Resource::Data, of("VmData:")?),
    ])
}

/// The cgroups of this process, version 2; `of_process` is /proc/self/cgroup.
fn groups(root: &Path, of_process: &str) -> Vec<Group> {
    let path = of_process
        .lines()
        .find_map(|line| line.strip_prefix("0::/"));
    let group = path.map(|path| root.join(path)).unwrap_or_default();
    let groups = group
        .ancestors()
        .take_while(|group| group.starts_with(root));
    groups.take(MAX_DEPTH).filter_map(Group::open).collect()
}

/// The least that one of them leaves.
fn least(groups: &[Group]) -> Option<u64> {
    groups.iter().filter_map(Group::left).min()
}

/// The files of a cgroup.
struct Group {
    max: File,
    current: File,
    stat: Option<File>,
}

impl Group {
    fn open(group: &Path) -> Option<Self> {
        let open = |file| File::open(group.join(file)).ok();
        Some(Self {
            max: open("memory.max")?,
            current: open("memory.current")?,
            stat: open("memory.stat"),
        })
    }

    fn left(&self) -> Option<u64> {
        left_of(
            &read(&self.max)?,
            &read(&self.current)?,
            &self.stat.as_ref().and_then(read).unwrap_or_default(),
        )
    }
}

fn left_of(limit: &str, used: &str, stat: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let used: u64 = used.trim().parse().ok()?;
    // What files are cached is given up first.
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        let counts = matches!(name, "active_file" | "inactive_file");
        counts.then(|| bytes.parse::<u64>().ok()).flatten()
    });
    Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
}

#[cfg(test)]
mod tests {
    use adit_proto::Time;
    use adit_proto::config::{AllowedIpChange, Cidr, PeerChange, PublicKey};

    use super::*;

    fn change(peers: u32) -> DeviceChange {
        let block = Cidr::new([10, 0, 0, 0].into(), 8).expect("a prefix");
        let peer = |n: u32| {
            let mut key = [1; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            PeerChange {
                allowed_ips: vec![AllowedIpChange::Add(block)],
                ..PeerChange::new(PublicKey(key))
            }
        };
        DeviceChange {
            peers: (0..peers).map(peer).collect(),
            ..DeviceChange::default()
        }
    }

    #[test]
    fn only_peers_that_are_new_need_memory() {
        let mut device = Device::new(Box::new(|bytes| bytes.fill(7)));
        assert_eq!(needed(&device, &change(200)), 0);
        let mut one = change(1);
        let blocks = vec![one.peers[0].allowed_ips[0]; 10_000];
        one.peers[0].allowed_ips = blocks;
        assert_eq!(needed(&device, &one), 2_201_000);
        assert_eq!(needed(&device, &change(20_000)), 20_000 * 1220);
        device.apply(Time(1), &change(20_000)).expect("few peers");
        assert_eq!(needed(&device, &change(20_000)), 0);
        let half = needed(&device, &change(40_000));
        assert!((24_000_000..25_000_000).contains(&half), "{half}");
    }

    #[test]
    fn the_tightest_cgroup_above_the_process_counts() {
        let root = std::env::temp_dir().join(format!("adit-cgroup-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let inner = root.join("outer/inner");
        std::fs::create_dir_all(&inner).expect("directories");
        let write = |group: &Path, max: &str, current: &str| {
            std::fs::write(group.join("memory.max"), max).expect("written");
            std::fs::write(group.join("memory.current"), current).expect("written");
        };
        let left = || least(&groups(&root, "1:name=x:/y\n0::/outer/inner\n"));
        assert_eq!(left(), None);
        write(&inner, "max\n", "5000\n");
        assert_eq!(left(), None);
        write(&root.join("outer"), "10000\n", "7000\n");
        assert_eq!(left(), Some(3000));
        let stat = "anon 4000\nactive_file 1500\ninactive_file 500\n";
        std::fs::write(root.join("outer/memory.stat"), stat).expect("written");
        assert_eq!(left(), Some(5000));
        write(&inner, "6000\n", "7000\n");
        assert_eq!(left(), Some(0));
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
