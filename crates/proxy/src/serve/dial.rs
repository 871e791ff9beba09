//! How a target is connected to: its name is looked up, its addresses are tried one after the other.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::ServeCore;
use super::news::{ClientToken, News, Side};
use super::report::RefusalReason;
use crate::config::{EndpointHost, ProxyEndpoint};
use crate::stack::OpenedTcp;

/// The stack says when the time is over. If it has ended, it says nothing.
const GRACE: Duration = Duration::from_secs(1);

/// A target that is being connected to.
pub(crate) struct Dial {
    port: u16,
    addresses: Arc<[IpAddr]>,
    tried: usize,
    until: Instant,
}

impl Dial {
    /// Begins. The client is told news, which are for [`Self::told`].
    pub(crate) fn begin(
        core: &mut ServeCore,
        token: ClientToken,
        from: Option<SocketAddr>,
        target: &ProxyEndpoint,
    ) -> Result<Self, RefusalReason> {
        let mut dial = Self {
            port: target.port,
            addresses: Arc::new([]),
            tried: 0,
            until: core.now + core.limits.connect,
        };
        match &target.host {
            EndpointHost::Name(name) => {
                let asker = (token, from.map(|from| from.ip()));
                core.look_up(asker, Side::Inside, name)?;
            }
            EndpointHost::Address(ip) => {
                // One of IPv4 in that of IPv6 is of IPv4.
                dial.addresses = Arc::new([ip.to_canonical()]);
                dial.open(core, token)?;
            }
        }
        Ok(dial)
    }

    /// When it takes too long.
    pub(crate) fn deadline(&self) -> Instant {
        self.until + GRACE
    }

    /// Connects to the next address.
    fn open(&self, core: &ServeCore, token: ClientToken) -> Result<(), RefusalReason> {
        let left = self.until.saturating_duration_since(core.now);
        let others = u32::try_from(self.addresses.len() - self.tried).unwrap_or(u32::MAX);
        let remote = SocketAddr::new(self.addresses[self.tried], self.port);
        core.open(token, remote, left / others.max(1))
    }

    /// Takes news: what came of it, once that is known.
    pub(crate) fn told(
        &mut self,
        core: &ServeCore,
        token: ClientToken,
        news: News,
    ) -> Option<Result<Box<dyn OpenedTcp>, RefusalReason>> {
        match news {
            News::Names(_, Ok(names)) if self.addresses.is_empty() => {
                self.addresses = names;
                self.open(core, token).err().map(Err)
            }
            News::Names(_, Err(error)) if self.addresses.is_empty() => Some(Err(error)),
            News::Opened(Err(error)) => {
                self.tried += 1;
                let is_final = matches!(error, RefusalReason::NoMemory | RefusalReason::Failed);
                if is_final || self.tried >= self.addresses.len() {
                    return Some(Err(error));
                }
                self.open(core, token).err().map(Err)
            }
            News::Opened(opened) => Some(opened),
            _ => None,
        }
    }
}
