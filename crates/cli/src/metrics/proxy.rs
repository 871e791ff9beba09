//! The metrics of a proxy: those of its tunnel, and its own.

use std::io;

use adit_ctl::status::InterfaceJson;
use adit_proxy::serve::ProxyStats;

use super::page::{Metric, Page};
use super::{Collected, Look, engines};

/// The document of one tunnel, with the counters of its proxy and the connections inside it.
pub(crate) fn document(
    interface: InterfaceJson,
    stats: &ProxyStats,
    connections: Option<u64>,
) -> String {
    let name = interface.name.clone();
    let mut collected = Collected::default();
    collected.add(Look {
        interface,
        peers: None,
    });
    let mut text = Vec::new();
    let put = &mut |piece: &[u8]| -> io::Result<()> {
        text.extend_from_slice(piece);
        Ok(())
    };
    let mut page = Page::new(put);
    collected.render_peers(&mut page);
    engines(&mut page, &collected.interfaces);
    own(&mut page, &name, stats, connections);
    // Writing to a vector cannot fail.
    let _ = page.finish();
    String::from_utf8_lossy(&text).into_owned()
}

fn own(page: &mut Page<'_>, name: &str, stats: &ProxyStats, connections: Option<u64>) {
    let mut metric = Metric::new(
        page,
        "adit_proxy_clients",
        "gauge",
        "Clients whose request is under way, and UDP clients",
    );
    metric.line(&[("interface", name)], stats.clients);
    if let Some(connections) = connections {
        let mut metric = Metric::new(
            page,
            "adit_proxy_connections",
            "gauge",
            "TCP connections inside the tunnel",
        );
        metric.line(&[("interface", name)], connections);
    }
    let mut metric = Metric::new(
        page,
        "adit_proxy_clients_total",
        "counter",
        "Clients that came, by service",
    );
    for (service, count) in &stats.accepted {
        metric.line(&[("interface", name), ("service", service.label())], count);
    }
    let mut metric = Metric::new(
        page,
        "adit_proxy_refused_total",
        "counter",
        "Clients that were refused, or what they asked for, by reason",
    );
    for (reason, count) in &stats.refused {
        metric.line(&[("interface", name), ("reason", reason.label())], count);
    }
    let mut metric = Metric::new(
        page,
        "adit_proxy_dropped_datagrams_total",
        "counter",
        "Datagrams of clients that were dropped: malformed, from elsewhere, too long, or one client too many",
    );
    metric.line(&[("interface", name)], stats.datagrams_dropped);
}
