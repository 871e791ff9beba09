//! Which stack it is to be, and why.

use std::path::Path;

use super::namespace::{Namespace, NotHere};
use super::setup::{InnerNetwork, KernelDevice};

/// What the user asks for: `--stack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackChoice {
    /// What is best here.
    #[default]
    Auto,
    /// That in this process, which works everywhere.
    Smoltcp,
    /// The kernel's, in a namespace.
    Kernel,
}

/// What was chosen.
#[derive(Debug)]
pub enum ChosenStack {
    /// That in this process: [`Net`](adit::net::Net).
    Smoltcp,
    /// The kernel's: [`KernelStack`](super::KernelStack).
    Kernel(Namespace),
}

/// Chooses, and says in one line what and why. `program` and `argument` are those of [`Namespace::make`], which is
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
    match Namespace::make(program, argument, network, KernelDevice::Any) {
        Ok((namespace, why)) => {
            let by = match namespace.device() {
                KernelDevice::PacketSocket => "a packet socket",
                KernelDevice::Any | KernelDevice::Tun => "a TUN device",
            };
            let text = match why {
                Some(why) => format!("kernel, by {by} in a user namespace: {why}"),
                None => format!("kernel, by {by} in a user namespace"),
            };
            Ok((ChosenStack::Kernel(namespace), text))
        }
        Err(error) if choice == StackChoice::Auto => {
            let text = format!("smoltcp, as the kernel's stack cannot be had: {error}");
            Ok((ChosenStack::Smoltcp, text))
        }
        Err(error) => Err(error),
    }
}
