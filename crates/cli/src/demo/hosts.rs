//! Two hosts and the cable between them: network namespaces without names, joined by a veth pair.

use std::io;
use std::net::Ipv4Addr;

use adit_netlink::netns;
use adit_testbed::{Host, link};

use crate::failure::{Context, Failure, Result};

/// From the block for documentation: these hosts talk only to each other.
pub(super) const LEFT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const RIGHT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PREFIX: u8 = 24;
/// Both ends have the same name: they are in different namespaces.
const CABLE: &str = "cable";

/// Processes that a host starts die with it (see `--die-with`).
pub(super) struct HostPair {
    pub(super) left: Host,
    pub(super) right: Host,
}

impl HostPair {
    /// Must be called while the process has one thread: without privileges it becomes root in a
    /// user namespace.
    pub(super) fn new() -> Result<Self> {
        let pair = hosts()?;
        pair.lay_cable()
            .context(|| "cannot lay a cable between two network namespaces".into())?;
        Ok(pair)
    }

    fn lay_cable(&self) -> io::Result<()> {
        link((&self.left, CABLE), (&self.right, CABLE))?;
        for (host, at) in [(&self.left, LEFT), (&self.right, RIGHT)] {
            host.bring_up(CABLE, &[(at.into(), PREFIX)], None)?;
        }
        Ok(())
    }
}

fn hosts() -> Result<HostPair> {
    let both = || -> io::Result<_> {
        Ok(HostPair {
            left: Host::new()?,
            right: Host::new()?,
        })
    };
    let advice = |error: io::Error| {
        Failure::State(format!(
            "cannot make network namespaces for two hosts: {error}\nRun `sudo adit demo`; in a container, allow \
             CAP_SYS_ADMIN (docker run --privileged)."
        ))
    };
    match both() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            netns::become_root_in_user_namespace().map_err(advice)?;
            both().map_err(advice)
        }
        result => result.map_err(advice),
    }
}
