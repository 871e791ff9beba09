//! "User space vs kernel": WireGuard beside TLS through a pair of proxies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use adit_testbed::Host;
use adit_testbed::framing::Family;
use adit_testbed::process::Process;

use super::http::{self, Body};
use super::results::{Curve, Measure, Published, Results, Subject, Values};
use super::tls::{self, Identity, Proxies};
use super::{ReproduceArgs, ending};
use crate::goals::Limit;
use crate::implementation::{Entry, Implementation};
use crate::measure;
use crate::metric::Better;
use crate::pair::{LINK, LinkedHosts, Placement};
use crate::sandbox::Failure;
use crate::tools::{self, Iperf};

/// Connections at once.
const CONNECTIONS: [u32; 3] = [1, 8, 64];
/// Requests a second.
const RATES: [u32; 3] = [100, 1000, 5000];
const WARM_UP: u32 = 1;
/// The percentiles that are tabled over the rates. All of them stand in the distribution of each rate.
const TABLED: [&str; 4] = ["50", "90", "99", "99.9"];
/// Seconds of each try for the highest rate, and about how many there are.
const TRY: u32 = 1;
const TRIES: u32 = 14;

const PUBLISHED: [Published; 5] = [
    cpu("CPU time without a tunnel", 50.0, "direct"),
    cpu("CPU time with TLS", 80.0, "haproxy-aes"),
    cpu("CPU time with the kernel's WireGuard", 100.0, "kernel"),
    Published {
        what: "throughput per CPU, direct over WireGuard",
        value: 20.0,
        unit: "×",
        measure: "tcp-1.per-cpu",
        subject: "direct",
        over: Some("adit"),
        differs: "nearly 20 there, with the kernel's module; here CPU time of both hosts, iperf3 included",
    },
    Published {
        what: "HTTP latency, WireGuard over TLS",
        value: 1.0,
        unit: "×",
        measure: "http-1k-1000.p50",
        subject: "adit",
        over: Some("haproxy-aes"),
        differs: "as good as equal there, at rates that are not told; here the p50 of 1,000 requests/s",
    },
];

const fn cpu(what: &'static str, percent: f64, subject: &'static str) -> Published {
    Published {
        what,
        value: percent,
        unit: "% core",
        measure: "tcp-1.cpu-machine",
        subject,
        over: None,
        differs: "of a core at the rate of each there; here s/GB of the whole machine, both ends and iperf3 included",
    }
}

/// What is measured of WireGuard or TLS.
enum Path {
    WireGuard(Entry),
    Tls(Proxies),
}

/// Measures everything that is there.
pub(super) fn measure(args: &ReproduceArgs, results: &mut Results) -> Result<(), Failure> {
    results.published = PUBLISHED.to_vec();
    let http = has_http(results);
    let congestion = args.congestion(results);
    results.measures = congestion
        .iter()
        .flat_map(|of| measures(of, http))
        .collect();
    let paths = find(args, results);
    let loads = CONNECTIONS.len() * usize::try_from(WARM_UP + args.seconds)?;
    let requests =
        RATES.len() * usize::try_from(args.seconds + 1)? + usize::try_from(TRIES * (TRY + 1))?;
    let seconds = loads + if http { Body::ALL.len() * requests } else { 0 } + 3;
    let seconds = seconds * congestion.len();
    results.measure_rounds(
        Duration::from_secs(u64::try_from(seconds)?),
        |name, values| {
            let path = paths.iter().find(|(of, _)| of == name);
            let (_, path) = path.ok_or("it is not there")?;
            let mut done = Ok(());
            for control in &congestion {
                let round = Round::new(path, http, control);
                done = done.and(round.and_then(|round| round.measure(args.seconds, values)));
            }
            done
        },
    )?;
    for control in &congestion {
        judge(control, results);
    }
    Ok(())
}

/// Whether HTTP can be measured.
fn has_http(results: &mut Results) -> bool {
    let nginx = tools::require(&[("nginx", "-v", "nginx-light")]);
    match http::fortio().and(nginx) {
        Ok(()) => true,
        Err(why) => {
            results.leave_out("HTTP", &why.to_string());
            false
        }
    }
}

/// What is measured without a proxy.
const WITHOUT_PROXY: [Implementation; 5] = [
    Implementation::Direct,
    Implementation::Kernel,
    Implementation::WireguardGo,
    Implementation::Tailscale,
    Implementation::Adit,
];

/// The names of all that its tables may have.
pub(super) fn subjects() -> Vec<&'static str> {
    let without = WITHOUT_PROXY.into_iter().map(Implementation::name);
    without.chain(tls::ALL.map(|of| of.name)).collect()
}

fn find(args: &ReproduceArgs, results: &mut Results) -> Vec<(String, Path)> {
    let mut paths = Vec::new();
    for who in WITHOUT_PROXY {
        if let Some(entry) = args.find(who, results) {
            results.subjects.push(Subject {
                name: who.name().to_owned(),
                what: entry.version.clone(),
            });
            paths.push((who.name().to_owned(), Path::WireGuard(entry)));
        }
    }
    for proxies in tls::ALL.into_iter().filter(|of| args.wants(of.name)) {
        let openssl = tools::require(&[("openssl", "version", "openssl")]);
        let version = match openssl.and_then(|()| proxies.program.version()) {
            Ok(version) => version,
            Err(why) => {
                results.leave_out(proxies.name, &why.to_string());
                continue;
            }
        };
        results.subjects.push(Subject {
            name: proxies.name.to_owned(),
            what: version,
        });
        paths.push((proxies.name.to_owned(), Path::Tls(proxies)));
    }
    paths
}

fn measures(congestion: &str, http: bool) -> Vec<Measure> {
    use Better::{Higher, Lower};
    let end = ending(congestion);
    let mut all = Vec::new();
    let one = |id: String, title: String, unit, better, places| Measure {
        id,
        title,
        unit,
        better,
        places,
        curve: None,
        distribution: None,
    };
    for n in CONNECTIONS {
        let title = format!("TCP, connections: {n}, {congestion}");
        let cpu = format!("{title}, CPU time of the machine");
        let per_cpu = format!("{title}, for each busy core");
        all.extend([
            one(format!("tcp-{n}{end}"), title, "Gb/s", Higher, 2),
            one(format!("tcp-{n}{end}.cpu-machine"), cpu, "s/GB", Lower, 2),
            one(format!("tcp-{n}{end}.per-cpu"), per_cpu, "Gb/s", Higher, 2),
        ]);
    }
    for body in Body::ALL.into_iter().filter(|_| http) {
        let name = body.name();
        for rate in RATES {
            for (p, one_of) in http::PERCENTILES {
                let id = format!("http-{name}-{rate}{end}.p{p}");
                let title = format!("HTTP, {name}, {rate}/s, {congestion}, p{p}");
                let over_rates = || Curve {
                    title: format!("HTTP, {name}, {congestion}, p{p}"),
                    axis: "requests a second",
                    at: rate.into(),
                };
                let distribution = Curve {
                    title: format!("HTTP, {name}, {rate}/s, {congestion}"),
                    axis: "1 in so many is slower",
                    at: one_of.into(),
                };
                all.push(Measure {
                    curve: TABLED.contains(&p).then(over_rates),
                    distribution: Some(distribution),
                    ..one(id, title, "ms", Lower, 3)
                });
            }
        }
        let title = format!("HTTP, {name}, {congestion}, highest rate with a p99 below 10 ms");
        let id = format!("http-{name}{end}.highest");
        all.push(one(id, title, "1/s", Higher, 0));
    }
    all
}

/// A path that is up, with what runs on its hosts.
struct Round {
    // What runs is stopped before the hosts go.
    proxies: Option<Vec<Process>>,
    _servers: Option<[Process; 2]>,
    pair: LinkedHosts,
    /// The server's address.
    server: IpAddr,
    http: bool,
    /// What ids end with.
    end: String,
}

impl Round {
    fn new(path: &Path, http: bool, congestion: &str) -> Result<Self, Failure> {
        let no_tunnel = Entry::plain(Implementation::Direct, "");
        let entry = match path {
            Path::WireGuard(entry) => entry,
            Path::Tls(_) => &no_tunnel,
        };
        let pair = LinkedHosts::new(entry, Placement::Free, Family::V4, congestion)?;
        let server = pair.address(Family::V4, 1);
        let servers = http.then(|| http::serve(&pair.b)).transpose()?;
        let ports = [tools::PORT, http::FORTIO_PORT, http::NGINX_PORT];
        let proxies = match path {
            Path::WireGuard(_) => None,
            Path::Tls(proxies) => {
                choose_on_host(&pair.a, Ipv4Addr::LOCALHOST.into(), congestion)?;
                choose_on_host(&pair.b, server, congestion)?;
                let identity = Identity::new(server)?;
                Some(proxies.start([&pair.a, &pair.b], server, &ports, &identity)?)
            }
        };
        Ok(Self {
            proxies,
            _servers: servers,
            pair,
            server,
            http,
            end: ending(congestion),
        })
    }

    /// Where a client connects for a port of the server.
    fn to(&self, port: u16) -> SocketAddr {
        match self.proxies {
            Some(_) => tls::near(port),
            None => SocketAddr::new(self.server, port),
        }
    }

    fn measure(mut self, seconds: u32, values: &mut Values) -> Result<(), Failure> {
        let done = self.measure_all(seconds, values);
        // That a daemon has ended tells more than what the tools make of it.
        self.pair.check()?;
        done
    }

    fn measure_all(&self, seconds: u32, values: &mut Values) -> Result<(), Failure> {
        let end = &self.end;
        for n in CONNECTIONS {
            let load = Iperf {
                warm_up: WARM_UP,
                ..Iperf::tcp(n, seconds)
            };
            let (a, b) = (&self.pair.a, &self.pair.b);
            let proxy = self.proxies.as_ref().map(|_| self.to(tools::PORT));
            let run = || load.start_through(a, b, self.server, proxy)?.finish();
            let done = measure::account(&self.pair, run)?;
            values.push((format!("tcp-{n}{end}"), done.flow.gbps()));
            values.push((format!("tcp-{n}{end}.cpu-machine"), done.machine));
            values.push((format!("tcp-{n}{end}.per-cpu"), 8.0 / done.machine));
        }
        if !self.http {
            return Ok(());
        }
        for body in Body::ALL {
            let to = self.to(body.port());
            let ask = |rate, seconds| http::ask(&self.pair.a, to, body, rate, seconds);
            let name = body.name();
            for rate in RATES {
                let latency = ask(rate, seconds)?;
                for ((p, _), value) in http::PERCENTILES.into_iter().zip(latency.percentiles) {
                    values.push((format!("http-{name}-{rate}{end}.p{p}"), value));
                }
            }
            let highest = http::highest_rate(|rate| ask(rate, TRY))?;
            values.push((format!("http-{name}{end}.highest"), f64::from(highest)));
        }
        Ok(())
    }
}

/// Connections that a host has with itself at this address, between a proxy and whom it serves, begin
/// with this congestion control, too, and not with the machine's.
fn choose_on_host(host: &Host, at: IpAddr, congestion: &str) -> Result<(), Failure> {
    let device = if at.is_loopback() { "lo" } else { LINK };
    let route = format!("local {at} dev {device} table local");
    Ok(host.ip(&format!("route replace {route} congctl {congestion}"))?)
}

/// Adit against the proxies that are best in each measure.
fn judge(congestion: &str, results: &mut Results) {
    let end = ending(congestion);
    let proxies = tls::ALL.map(|of| of.name);
    let mut against_best = |measure: &str, limit| {
        if let Some(best) = results.best(measure, &proxies) {
            results.judge(measure, "adit", best, limit);
        }
    };
    against_best(&format!("tcp-1{end}.cpu-machine"), Limit::AtMost(1.0));
    against_best(&format!("tcp-1{end}"), Limit::AtLeast(1.0));
    against_best(&format!("tcp-8{end}"), Limit::AtLeast(1.0));
    for body in ["1k", "64k"] {
        for p in ["50", "99"] {
            against_best(&format!("http-{body}-1000{end}.p{p}"), Limit::AtMost(1.0));
        }
    }
}
