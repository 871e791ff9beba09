//! Which stack it is to be, and why.

use std::path::Path;

use super::namespace::{NotHere, SocketNamespace};
use super::setup::{InnerNetwork, KernelDevice};

/// What the user asks for: `--stack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackChoice {
    /// What is best here: the kernel's by a TUN device, or else that in this process.
    #[default]
    Auto,
    /// That in this process, which works everywhere.
    Smoltcp,
    /// The kernel's, in a namespace, by a TUN device or else by a packet socket.
    Kernel,
}

/// What was chosen.
#[derive(Debug)]
pub enum ChosenStack {
    /// That in this process: [`Net`](adit::net::Net).
    Smoltcp,
    /// The kernel's: [`KernelStack`](super::KernelStack).
    Kernel(SocketNamespace),
}

/// Chooses, and says in one line what and why. `program` and `argument` are those of [`SocketNamespace::make`], which is
/// to be called before the process has a sandbox.
///
/// # Errors
///
/// [`NotHere`]: the kernel's stack was asked for, and cannot be had.
pub fn choose(
    choice: StackChoice,
    program: &Path,
    argument: &str,
    network: &InnerNetwork,
) -> Result<(ChosenStack, String), NotHere> {
    if choice == StackChoice::Smoltcp {
        return Ok((ChosenStack::Smoltcp, "smoltcp, as asked for".into()));
    }
    let device = match choice {
        // By a packet socket the kernel's is no better than that in this process: it is there to be asked for.
        StackChoice::Auto => KernelDevice::Tun,
        _ => KernelDevice::Any,
    };
    match SocketNamespace::make(program, argument, network, device) {
        Ok((namespace, why)) => {
            let by = match namespace.device() {
                KernelDevice::PacketSocket => "a packet socket",
                KernelDevice::Any | KernelDevice::Tun => "a TUN device",
            };
            let mut text = format!("kernel, by {by} in a user namespace");
            if let Some(why) = why {
                text += &format!(", as a TUN device cannot be had: {why}");
            }
            Ok((ChosenStack::Kernel(namespace), text))
        }
        Err(error) if choice == StackChoice::Auto => {
            let text = format!("smoltcp, as the kernel's cannot be had by a TUN device: {error}");
            Ok((ChosenStack::Smoltcp, text))
        }
        Err(error) => Err(error),
    }
}
