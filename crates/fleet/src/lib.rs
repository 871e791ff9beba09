//! Peers that come from a source: a folder, a program, a store.
//!
//! 1. [`PeerRecord`]: one peer, from a `[Peer]` section or from JSON. It never has a secret: a preshared key is
//!    the name of a file.
//! 2. [`RecordList`]: the records that hold together. Of two that claim the same key or the same addresses, the
//!    one that was there first holds; a bad record leaves its peer as it was.
//! 3. [`Reconciler`]: what the interface lacks, as a sequence of bounded changes, and what each of them brings and
//!    removes.
//! 4. [`RuleBook`]: what the packet filter lacks of the ports that records allow.
//! 5. [`HeldPeers`]: which gateway has which peer, as they tell each other.
//! 6. [`AgentStatus`]: what is told of all this.
//!
//! Nothing here does I/O.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod blocks;
mod etcd;
mod etcd_write;
mod held;
mod lines;
mod list;
mod ports;
mod reconcile;
mod record;
mod refusals;
mod rules;
mod status;

pub use etcd::{
    EtcdAddress, EtcdChanges, EtcdPage, EtcdPair, EtcdRefusal, EtcdValue, GETS, MAX_ETCD_ANSWER,
    PAGE, gets as etcd_gets, gets_request, page as etcd_page, range_request,
    record_change as etcd_change, token as etcd_token, watch_line, watch_request,
};
pub use etcd_write::{delete_request, is_changed, put_request};
pub use held::{
    HELD_AT_ONCE, HeldPeer, HeldPeers, LEASE, PeerNews, held_change, hold_request, is_gateway_name,
    lease as etcd_lease, lease_request,
};
pub use lines::{MAX_LINE, ProgramLine};
pub use list::{ForeignPeers, RecordChange, RecordList};
pub use ports::{AllowedPorts, FlowRange, RuleElement};
pub use reconcile::{ChangeBatch, MAX_SECTIONS, Reconciler};
pub use record::{MAX_RECORD, PeerRecord, RecordId, preshared_key};
pub use rules::{RuleBook, RuleChange};
pub use status::{AgentStatus, JustInTime, MAX_REFUSALS, RefusedRecord, SCHEMA, SourceState};
