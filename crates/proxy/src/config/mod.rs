//! What a proxy is to do, as files say it.

mod model;

pub use model::{
    Bind, Credentials, Endpoint, Host, PeerPart, ProxyConfig, Resolve, Service, ServiceKind,
    TunnelPart,
};
