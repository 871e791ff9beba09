//! The targets.

pub(crate) mod aead;
pub(crate) mod allowed_ips;
pub(crate) mod answers;
pub(crate) mod cmsg;
pub(crate) mod config;
pub(crate) mod configure;
pub(crate) mod datagrams;
pub(crate) mod devices;
pub(crate) mod frames;
pub(crate) mod hand_over;
pub(crate) mod http_proxy;
pub(crate) mod merge;
pub(crate) mod netlink;
pub(crate) mod plaintext;
pub(crate) mod proxy_files;
pub(crate) mod rekeys;
pub(crate) mod replay;
pub(crate) mod requests;
pub(crate) mod segment;
pub(crate) mod sni;
pub(crate) mod socks5;
pub(crate) mod status;
pub(crate) mod uapi;

mod naive;
