//! Queueing disciplines, as far as a TUN has use for them.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};

use crate::{Netlink, Result};

impl Netlink {
    /// Gives an interface the root qdisc `noqueue`, unless its qdisc was chosen by hand: true if it
    /// was still the default.
    ///
    /// A packet that the driver drops then counts as not sent: TCP on this host keeps it and slows
    /// down. Behind any other qdisc it is lost. `tc qdisc add` with a handle replaces only the
    /// default qdisc and drops what is in it, so this is not done before it is needed.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn set_noqueue(&self, index: u32) -> Result<bool> {
        let what = "setting the qdisc to noqueue";
        let answers = self.dump(what, Message::GetQueueDiscipline(root(index)))?;
        // The default has no handle; one of a device with many queues has children, which have
        // parents.
        let default = answers.iter().any(|answer| {
            matches!(answer, Message::NewQueueDiscipline(TcMessage { header, .. })
                if header.index == index.cast_signed()
                    && header.parent == TcHandle::ROOT
                    && header.handle == TcHandle::UNSPEC)
        });
        if default {
            let mut message = root(index);
            message
                .attributes
                .push(TcAttribute::Kind("noqueue".to_owned()));
            let flags = NLM_F_CREATE | NLM_F_REPLACE;
            self.change(what, Message::NewQueueDiscipline(message), flags)?;
        }
        Ok(default)
    }
}

/// A message about the root qdisc of an interface, whatever its handle.
fn root(index: u32) -> TcMessage {
    let mut message = TcMessage::default();
    message.header.index = index.cast_signed();
    message.header.parent = TcHandle::ROOT;
    message
}
