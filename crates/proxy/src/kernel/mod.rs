//! The kernel's TCP and UDP as a [`Stack`](crate::stack::Stack), without root: in a user namespace, which has a
//! network namespace.
//!
//! 1. [`SocketNamespace::make`] starts a child process, which alone may enter a user namespace, as it has one thread. It
//!    makes a TUN device there, or two joined interfaces of which a packet socket has one end (`child.rs`).
//! 2. The device's descriptor is the source of packets of a tunnel in this process ([`KernelStack`]).
//! 3. From then on the child makes sockets, which belong to its namespace wherever they are used; it has no other
//!    right left. This process connects, binds, reads and writes them.
//! 4. A thread of this process (`thread.rs`) connects sockets, and moves what joined ones receive (`relay.rs`).
//!
//! Either process ends with the other, and the namespaces with their last descriptor.

mod child;
mod child_end;
mod choice;
mod names;
mod namespace;
mod relay;
mod setup;
mod socket_kind;
mod sockets;
mod stack;
mod tasks;
mod thread;

pub use child::serve_child;
pub use choice::{ChosenStack, StackChoice, choose};
pub use namespace::{NotHere, SocketNamespace};
pub use setup::{InnerNetwork, KernelDevice};
pub use stack::{KernelOptions, KernelStack};
