//! Fuzz targets: one function of bytes for everything that reads bytes from outside.
//!
//! A target compares what the code does with a naive reference, or checks what must hold for any
//! input, and panics if it does not. `cargo test -p adit-fuzz` runs each over its corpus and over
//! mutations of it, the same ones each time. `scripts/fuzz` runs them under libFuzzer, guided by
//! coverage.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    reason = "a target panics when it finds something"
)]

pub mod corpus;
pub mod mutate;
mod source;
mod targets;
mod world;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// What it is called, as is the file of its corpus.
    pub name: &'static str,
    /// Runs it on one input; panics if it finds something.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "datagrams",
        run: targets::datagrams::run,
    },
    Target {
        name: "devices",
        run: targets::devices::run,
    },
    Target {
        name: "rekeys",
        run: targets::rekeys::run,
    },
    Target {
        name: "configure",
        run: targets::configure::run,
    },
    Target {
        name: "allowed_ips",
        run: targets::allowed_ips::run,
    },
    Target {
        name: "replay",
        run: targets::replay::run,
    },
    Target {
        name: "requests",
        run: targets::requests::run,
    },
    Target {
        name: "uapi",
        run: targets::uapi::run,
    },
    Target {
        name: "answers",
        run: targets::answers::run,
    },
    Target {
        name: "config",
        run: targets::config::run,
    },
    Target {
        name: "proxy_files",
        run: targets::proxy_files::run,
    },
    Target {
        name: "status",
        run: targets::status::run,
    },
    Target {
        name: "segment",
        run: targets::segment::run,
    },
    Target {
        name: "merge",
        run: targets::merge::run,
    },
    Target {
        name: "plaintext",
        run: targets::plaintext::run,
    },
    Target {
        name: "cmsg",
        run: targets::cmsg::run,
    },
    Target {
        name: "netlink",
        run: targets::netlink::run,
    },
    Target {
        name: "hand_over",
        run: targets::hand_over::run,
    },
    Target {
        name: "frames",
        run: targets::frames::run,
    },
    Target {
        name: "socks5",
        run: targets::socks5::run,
    },
    Target {
        name: "http_proxy",
        run: targets::http_proxy::run,
    },
    Target {
        name: "sni",
        run: targets::sni::run,
    },
    Target {
        name: "aead",
        run: targets::aead::run,
    },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
