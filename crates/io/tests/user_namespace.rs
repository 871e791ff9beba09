//! Everything works without privileges in a user namespace, where the kernel allows one.
//!
//! A process of its own, for only one with a single thread may enter a user namespace, and run as a
//! user without rights.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use adit_io::tun::Tun;
use adit_io::{Offloads, udp};
use adit_netlink::netns::{self, Netns};
use adit_netlink::{LinkChange, Netlink};
use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

const NAME: &str = "everything_works_without_privileges_in_a_user_namespace";

/// Nobody.
const UID: u32 = 65_534;

fn main() -> ExitCode {
    if std::env::var_os("INSIDE").is_some() {
        return inside();
    }
    println!("\nrunning 1 test");
    // A copy where anybody may execute it.
    let copy = std::env::temp_dir().join(format!("adit-user-namespace-{}", std::process::id()));
    let result = std::env::current_exe()
        .and_then(|exe| std::fs::copy(exe, &copy))
        .and_then(|_| {
            let mut command = Command::new(&copy);
            if rustix::process::getuid().is_root() {
                open_tun_to_all()?;
                command.uid(UID).gid(UID);
            }
            command.env("INSIDE", "1").status()
        });
    let _ = std::fs::remove_file(&copy);
    let passed = match result {
        Ok(status) => status.success(),
        Err(error) => {
            println!("{error}");
            false
        }
    };
    let (word, counts) = if passed {
        ("ok", "1 passed; 0 failed")
    } else {
        ("FAILED", "0 passed; 1 failed")
    };
    println!("test {NAME} ... {word}\n\ntest result: {word}. {counts}; 0 ignored\n");
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Some systems leave `/dev/net/tun` to root. This process and its children see one that anybody
/// may open.
#[expect(
    deprecated,
    reason = "safe with these flags: the mounts of a process with one thread"
)]
fn open_tun_to_all() -> std::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    mount("none", "/dev/net", "tmpfs", MountFlags::empty(), None)?;
    let (tun, mode) = ("/dev/net/tun", Mode::from_raw_mode(0o666));
    mknodat(CWD, tun, FileType::CharacterDevice, mode, makedev(10, 200))?;
    // Whatever the umask says.
    Ok(chmod(tun, mode)?)
}

fn inside() -> ExitCode {
    if let Err(error) = netns::become_root_in_user_namespace() {
        println!("not possible here: {error}");
        return ExitCode::SUCCESS;
    }
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> Result<(), Box<dyn std::error::Error>> {
    let other = Netns::new()?;
    let netlink = Netlink::open()?;
    netlink.add_veth("here", "there", Some(&other))?;
    let index = netlink.link("here")?.index;
    netlink.add_address(index, "10.0.0.1".parse()?, 24, false)?;
    let up = LinkChange {
        up: Some(true),
        ..LinkChange::default()
    };
    netlink.set_link(index, &up)?;
    netns::set_sysctl("net.ipv4.ip_forward", "1")?;
    let tun = other.run(|| Tun::open("tun0", 1, Offloads::ALL))??;
    assert_eq!(tun[0].place()?.link.map(|link| link.mtu), Some(1500));
    let (v4, _, _) = other.run(|| udp::bind_pair(0, 7, Offloads::ALL))??;
    assert!(v4.is_some_and(|v4| v4.gso()));
    Ok(())
}
