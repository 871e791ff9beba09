//! Other processes of the test: as nobody, without a TUN device, without user namespaces, and to be killed.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use adit_proxy::kernel::{
    ChosenStack, KernelDevice, NotHere, SocketNamespace, StackChoice, choose,
};
use adit_sandbox::calls::INTRUDER;
use adit_sandbox::{Otherwise, Role, filters_of, install};
use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use crate::{CHILD, inner, kernel, net_builder, program, wait_until};

pub(crate) const AS_NOBODY: &str = "--as-nobody";
pub(crate) const HELD: &str = "--held";
pub(crate) const REFUSED: &str = "--refused";
pub(crate) const WITHOUT_TUN: &str = "--without-tun";

/// Nobody.
const UID: u32 = 65_534;

/// A copy of this program where anybody may execute it; it goes with the test.
pub(crate) struct Copy(PathBuf);

impl Copy {
    pub(crate) fn new() -> Self {
        let copy = std::env::temp_dir().join(format!("adit-kernel-{}", std::process::id()));
        std::fs::copy(program(), &copy).expect("a copy");
        Self(copy)
    }

    pub(crate) fn run_as_nobody(&self, filter: &OsStr) -> bool {
        let mut command = Command::new(&self.0);
        command.args([OsStr::new(AS_NOBODY), filter]);
        command.uid(UID).gid(UID);
        command.status().expect("it is started").success()
    }

    /// Runs it with one argument, as nobody if that is possible.
    pub(crate) fn run(&self, argument: &str) -> bool {
        let mut command = Command::new(&self.0);
        command.arg(argument);
        if rustix::process::getuid().is_root() {
            command.uid(UID).gid(UID);
        }
        let passed = command.status().expect("it is started").success();
        let word = if passed { "ok" } else { "FAILED" };
        println!("test {} ... {word}", argument.trim_start_matches('-'));
        passed
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Some systems leave `/dev/net/tun` to root. This process and its children see one that anybody may open.
#[expect(
    deprecated,
    reason = "safe with these flags: the mounts of a process with one thread"
)]
pub(crate) fn open_tun_to_all() -> std::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    mount("none", "/dev/net", "tmpfs", MountFlags::empty(), None)?;
    let (tun, mode) = ("/dev/net/tun", Mode::from_raw_mode(0o666));
    mknodat(CWD, tun, FileType::CharacterDevice, mode, makedev(10, 200))?;
    // Whatever the umask says.
    Ok(chmod(tun, mode)?)
}

/// Leaves it to root again.
pub(crate) fn close_tun() -> std::io::Result<()> {
    Ok(chmod("/dev/net/tun", Mode::from_raw_mode(0o600))?)
}

/// The network namespace of a child process, which only root may look at.
pub(crate) fn namespace_of(process: u32) -> Option<PathBuf> {
    let place = std::fs::read_link(format!("/proc/{process}/ns/net"));
    let is_root = rustix::process::getuid().is_root();
    is_root.then(|| place.expect("a namespace"))
}

/// Whether no process that this one may look at is in this network namespace.
pub(crate) fn nobody_is_in(namespace: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc");
    let mut places = processes.flatten().map(|entry| entry.path().join("ns/net"));
    places.all(|place| std::fs::read_link(place).map_or(true, |at| at != namespace))
}

/// In another process: a stack, until it is killed.
pub(crate) fn hold(device: Option<OsString>) -> ExitCode {
    let device = match device.as_deref().and_then(OsStr::to_str) {
        Some("tun") => KernelDevice::Tun,
        _ => KernelDevice::PacketSocket,
    };
    let net = net_builder().start().expect("a network");
    let stack = kernel(device, crate::endpoint(net.tunnel()));
    println!("it runs");
    loop {
        std::thread::park();
        let _ = &stack;
    }
}

/// The children of a process.
fn children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("/proc");
    let lists = tasks.flatten().map(|task| {
        let list = std::fs::read_to_string(task.path().join("children"));
        list.unwrap_or_default()
    });
    let words: Vec<String> = lists.collect();
    let words = words.iter().flat_map(|list| list.split_whitespace());
    words.map(|word| word.parse().expect("a number")).collect()
}

/// A process that does not outlive its test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn killed_program(device: KernelDevice) {
    let word = match device {
        KernelDevice::Tun => "tun",
        _ => "packet socket",
    };
    let held = Command::new(program())
        .args([HELD, word])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it is started");
    let mut held = Killed(held);
    let mut line = String::new();
    let output = held.0.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    assert_eq!(line, "it runs\n");
    let children = children(held.0.id());
    let [child] = &children[..] else {
        panic!("one child, not {children:?}");
    };
    let inside = namespace_of(*child);
    assert!(inside.as_ref().is_none_or(|inside| !nobody_is_in(inside)));
    held.0.kill().expect("killed");
    drop(held);
    let inside = inside.as_deref();
    wait_until("nobody is in the namespace", || {
        inside.is_none_or(nobody_is_in)
    });
    // Its parent has gone, and another process takes note of its end.
    let is_gone = || {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.is_empty() || status.contains("State:\tZ")
    };
    wait_until("the process is gone", is_gone);
}

fn choice(of: StackChoice) -> Result<(ChosenStack, String), NotHere> {
    choose(of, &program(), CHILD, &inner())
}

/// With a TUN device it is the kernel's that is chosen.
pub(crate) fn chosen(device: KernelDevice) {
    if device != KernelDevice::Tun {
        return;
    }
    for of in [StackChoice::Auto, StackChoice::Kernel] {
        let (chosen, why) = choice(of).expect("a stack");
        let ChosenStack::Kernel(namespace) = chosen else {
            panic!("{why}");
        };
        assert_eq!(namespace.device(), KernelDevice::Tun);
        assert_eq!(why, "kernel, by a TUN device in a user namespace");
    }
}

/// In another process that may not have user namespaces, as with the filter of a container: the choice falls
/// elsewhere, and says why.
pub(crate) fn choose_where_refused() -> bool {
    let unshare = INTRUDER.iter().find(|call| call.name() == "unshare");
    let number = unshare.expect("it is in the list").number;
    let mut filter = filters_of(Role::Packets, Otherwise::Refuse).expect("filters");
    let mut filter = filter.remove(0);
    // Load the number, compare it; EPERM or go on.
    let program = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, u32::try_from(number).expect("a number")),
        (0x06, 0, 0, 0x0005_0001),
        (0x06, 0, 0, 0x7fff_0000),
    ];
    filter.truncate(program.len());
    for (step, (code, jt, jf, k)) in filter.iter_mut().zip(program) {
        (step.code, step.jt, step.jf, step.k) = (code, jt, jf, k);
    }
    install(&[filter]).expect("a filter");
    let refused = "user namespaces are refused here, by seccomp";
    let (chosen, why) = choice(StackChoice::Auto).expect("it falls back");
    assert!(matches!(chosen, ChosenStack::Smoltcp), "{chosen:?}");
    assert!(why.starts_with("smoltcp") && why.contains(refused), "{why}");
    let error = choice(StackChoice::Kernel).expect_err("refused");
    assert!(error.to_string().contains(refused), "{error}");
    let (chosen, why) = choice(StackChoice::Smoltcp).expect("it is everywhere");
    assert!(matches!(chosen, ChosenStack::Smoltcp), "{why}");
    true
}

/// In another process that may not open the TUN device: the choice is the other device, and it says why.
pub(crate) fn choose_without_tun() -> bool {
    if let Err(error) =
        SocketNamespace::make(&program(), CHILD, &inner(), KernelDevice::PacketSocket)
    {
        println!("not possible here: {error}");
        return error.to_string().contains("refused");
    }
    let (chosen, why) = choice(StackChoice::Auto).expect("a stack");
    assert!(matches!(chosen, ChosenStack::Smoltcp), "{why}");
    assert!(why.contains("/dev/net/tun"), "{why}");
    let (chosen, why) = choice(StackChoice::Kernel).expect("a stack");
    let ChosenStack::Kernel(namespace) = chosen else {
        panic!("{why}");
    };
    assert_eq!(namespace.device(), KernelDevice::PacketSocket);
    assert!(
        why.contains("a packet socket") && why.contains("/dev/net/tun"),
        "{why}"
    );
    let error =
        SocketNamespace::make(&program(), CHILD, &inner(), KernelDevice::Tun).expect_err("none");
    assert!(error.to_string().contains("/dev/net/tun"), "{error}");
    true
}
