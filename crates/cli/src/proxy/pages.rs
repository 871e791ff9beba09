//! `/metrics` and `/readyz`.

use std::sync::{Arc, OnceLock, Weak};

use adit_proxy::serve::{InfoPage, Proxy, ProxyStats};

use super::alive::AliveChecks;
use super::control::TunnelFacts;
use crate::metrics::proxy::document;
use crate::run::answer::now;

/// What the pages are made of.
pub(super) struct ProxyPages {
    pub(super) facts: Arc<TunnelFacts>,
    pub(super) alive: Arc<AliveChecks>,
    /// TCP connections inside the tunnel.
    pub(super) connections: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    /// Set once it has begun.
    pub(super) proxy: Arc<OnceLock<Weak<Proxy>>>,
}

impl ProxyPages {
    /// The page at a path; `None` if there is none.
    pub(super) fn page(&self, path: &str) -> Option<InfoPage> {
        match path {
            "/metrics" => {
                let proxy = self.proxy.get().and_then(Weak::upgrade);
                let stats = proxy.map_or_else(ProxyStats::default, |proxy| proxy.stats());
                let connections = self.connections.as_ref().map(|count| count());
                Some(match self.facts.status() {
                    Some(status) => InfoPage {
                        status: 200,
                        content_type: "text/plain; version=0.0.4; charset=utf-8",
                        body: document(status, &stats, connections),
                    },
                    None => InfoPage {
                        status: 503,
                        content_type: "text/plain; charset=utf-8",
                        body: "the tunnel has ended, or has no memory left\n".into(),
                    },
                })
            }
            "/readyz" => {
                let (status, body) = self.alive.ready(now());
                Some(InfoPage {
                    status,
                    content_type: "application/json",
                    body,
                })
            }
            _ => None,
        }
    }
}
