//! Going to the background without fork(2): the command starts itself anew and waits for the word.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};

use super::{LogLevel, RunArgs, level};
use crate::failure::{Context, Failure, Result, bail};

/// The line that the background process writes when the interface exists and the socket answers.
const READY: &[u8] = b"ready\n";

/// Starts the background process and returns when it is ready. The process prints its own errors,
/// on the standard error that both share until it is ready. A process that dies with its parent
/// keeps this standard error for later errors.
pub(crate) fn start(args: &RunArgs) -> Result<Child> {
    // Not the path of the binary, which may have been replaced since.
    start_program(Path::new("/proc/self/exe"), args, &[])
}

/// The same of any program that is an Adit, with more variables in its environment.
pub(crate) fn start_program(
    program: &Path,
    args: &RunArgs,
    environment: &[(String, String)],
) -> Result<Child> {
    let mut command = Command::new(program);
    command
        .arg0("adit")
        .args(["run", "--foreground", "--background"]);
    for name in &args.disable_offload {
        command.args(["--disable-offload", name]);
    }
    command.args(args.threads.to_args());
    if let Some(id) = args.gateway.gateway_id {
        command.args(["--gateway-id", &id.to_string()]);
    }
    if args.no_sandbox {
        command.arg("--no-sandbox");
    }
    if let Some(group) = &args.status_group {
        command.args(["--status-group", group]);
    }
    // A process that goes on for another one learns it from that one.
    if args.names && args.take_over.is_none() {
        command.arg("--names");
    }
    if let Some(pid) = args.take_over {
        command.args(["--take-over", &pid.to_string()]);
        // These are for a process that begins.
        for variable in ["NOTIFY_SOCKET", "WG_TUN_FD", "WG_UAPI_FD"] {
            command.env_remove(variable);
        }
    }
    command.envs(environment.iter().cloned());
    if let Some(parent) = args.die_with {
        command.args(["--die-with", &parent.to_string()]);
        // Readiness is the parent's to tell.
        command.env_remove("NOTIFY_SOCKET");
        if LogLevel::from_env() == LogLevel::Unset {
            command.env("LOG_LEVEL", "error");
        }
    }
    command.arg("--").args(&args.interfaces);
    let stdin = if inherited_number("WG_UAPI_FD")? == Some(0) {
        Stdio::inherit()
    } else {
        Stdio::null()
    };
    command.stdin(stdin);
    until_ready(command)
}

/// Starts a background process, and returns when it says that it is ready.
pub(crate) fn until_ready(mut command: Command) -> Result<Child> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "cannot start the background process".into())?;

    let mut word = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout
            .take(READY.len() as u64)
            .read_to_end(&mut word)
            .context(|| "cannot hear from the background process".into())?;
    }
    if word == READY {
        return Ok(child);
    }
    let status = child
        .wait()
        .context(|| "cannot wait for the background process".into())?;
    if let Some(signal) = status.signal() {
        bail!(
            State,
            "the background process was killed by signal {signal}"
        );
    }
    Err(Failure::Reported)
}

/// What takes the place of the terminal of a process in the background, which leaves the directory that it
/// was started in, too: before the sandbox begins.
pub(crate) fn null(background: bool) -> Result<Option<File>> {
    if !background {
        return Ok(None);
    }
    level::find_system_log();
    let open = || File::options().read(true).write(true).open("/dev/null");
    let opened = std::env::set_current_dir("/").and_then(|()| open());
    opened.map(Some).context(LEAVE)
}

/// Reports that this process is ready: to systemd, if it asks, and to the waiting parent, whose
/// terminal this process then leaves.
///
/// A process that goes on for another one tells no service manager: that one does (`is_first` is false).
pub(crate) fn report_ready(
    is_first: bool,
    null: Option<&File>,
    notifier: &Notifier,
    level: LogLevel,
) -> Result<()> {
    if is_first && let Err(error) = notifier.tell("READY=1") {
        // The socket may belong to another program, be out of reach, or be of a kind that came
        // later: that is no reason to go without a tunnel.
        level.error(format_args!("cannot notify the service manager: {error}"));
    }
    let Some(null) = null else {
        return Ok(());
    };
    rustix::stdio::dup2_stdin(null).context(LEAVE)?;
    // If a log was asked for, standard error stays open. Otherwise a program that waits for its end
    // must not wait for ever.
    if level == LogLevel::Unset || level == LogLevel::Silent {
        rustix::stdio::dup2_stderr(null).context(LEAVE)?;
        level::leave_terminal();
    }
    let mut stdout = std::io::stdout();
    let reported = stdout.write_all(READY).and_then(|()| stdout.flush());
    reported.context(|| "cannot report readiness".into())?;
    rustix::stdio::dup2_stdout(null).context(LEAVE)
}

const LEAVE: fn() -> String = || "cannot leave the terminal".into();

/// Leaves the session, so that signals of its terminal no longer reach this process.
pub(crate) fn leave_session() {
    // It fails for the leader of a session, which has no need of it.
    let _ = rustix::process::setsid();
}

/// A socket towards the service manager, if it asks to be told. It is connected before the sandbox
/// begins, which leaves no new connection to a socket without a file.
pub(crate) struct Notifier(std::io::Result<Option<UnixDatagram>>);

impl Notifier {
    pub(crate) fn new() -> Self {
        let path = std::env::var_os("NOTIFY_SOCKET");
        Self(path.map(|path| Self::connect(&path)).transpose())
    }

    fn connect(path: &OsStr) -> std::io::Result<UnixDatagram> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(socket)
    }

    pub(crate) fn is_asked_for(&self) -> bool {
        !matches!(self.0, Ok(None))
    }

    /// sd_notify(3).
    pub(crate) fn tell(&self, state: &str) -> std::io::Result<()> {
        match &self.0 {
            Ok(Some(socket)) => socket.send(state.as_bytes()).map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
        }
    }
}

/// sd_notify(3) of a process without a sandbox.
pub(crate) fn notify_systemd(state: &str) -> std::io::Result<()> {
    Notifier::new().tell(state)
}

/// Has the kernel end this process when the thread that started it ends.
pub(super) fn die_with(parent: i32) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .context(|| "cannot ask to die with the parent".into())?;
    // It may have ended before we asked.
    if rustix::process::getppid().map(Pid::as_raw_pid) != Some(parent) {
        bail!(State, "the parent process {parent} has ended");
    }
    Ok(())
}

pub(super) fn inherited_number(variable: &str) -> Result<Option<i32>> {
    match std::env::var(variable) {
        Err(_) => Ok(None),
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => match value.parse() {
            Ok(number) if number >= 0 => Ok(Some(number)),
            _ => bail!(
                Mistake,
                "{variable} is `{value}`; expected the number of an open file descriptor"
            ),
        },
    }
}
