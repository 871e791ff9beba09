//! HTTP at fixed rates: fortio asks, a server of its own or nginx answers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use adit_testbed::Host;
use adit_testbed::process::{self, Process};
use serde::Deserialize;

use super::tls;
use crate::install;
use crate::sandbox::Failure;

/// Where fortio's own server listens, which makes short answers.
pub(super) const FORTIO_PORT: u16 = 8080;
/// Where nginx listens, which has the long ones.
pub(super) const NGINX_PORT: u16 = 8081;
/// Connections that requests share.
const CONNECTIONS: &str = "16";

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Kilobyte,
    Kilobytes64,
}

impl Body {
    pub(super) const ALL: [Self; 2] = [Self::Kilobyte, Self::Kilobytes64];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kilobyte => "1k",
            Self::Kilobytes64 => "64k",
        }
    }

    pub(super) const fn port(self) -> u16 {
        match self {
            Self::Kilobyte => FORTIO_PORT,
            Self::Kilobytes64 => NGINX_PORT,
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Kilobyte => "/echo?size=1024",
            Self::Kilobytes64 => "/64k",
        }
    }
}

/// fortio, where `scripts/lab-tools` put it.
pub(super) fn fortio() -> Result<PathBuf, Failure> {
    let path = install::peers_dir().join("bin/fortio");
    if !path.is_file() {
        let path = path.display();
        return Err(format!("{path} is missing: run scripts/lab-tools").into());
    }
    Ok(path)
}

/// Starts both servers in a host. They listen at all of its addresses.
pub(super) fn serve(host: &Host) -> Result<[Process; 2], Failure> {
    let configuration = format!(
        "daemon off;\npid /run/lab-nginx.pid;\nuser root;\nworker_processes auto;\n\
         error_log stderr crit;\nevents {{ }}\nhttp {{\n  access_log off;\n  sendfile on;\n  \
         tcp_nopush on;\n  keepalive_requests 1000000;\n  client_body_temp_path /run/lab-body;\n  \
         proxy_temp_path /run/lab-proxy;\n  fastcgi_temp_path /run/lab-fastcgi;\n  \
         uwsgi_temp_path /run/lab-uwsgi;\n  scgi_temp_path /run/lab-scgi;\n  \
         server {{ listen {NGINX_PORT}; root /run/lab-www; }}\n}}\n"
    );
    host.run(move || -> std::io::Result<()> {
        std::fs::create_dir_all("/run/lab-www")?;
        std::fs::write("/run/lab-www/64k", vec![b'x'; 64 << 10])?;
        std::fs::write("/run/lab-nginx.conf", configuration)
    })?;
    let mut nginx = host.spawn(process::command("nginx", &["-c", "/run/lab-nginx.conf"]))?;
    let port = FORTIO_PORT.to_string();
    let disabled = ["-grpc-port", "-redirect-port", "-tcp-port", "-udp-port"];
    let mut args = vec!["server", "-http-port", &port, "-loglevel", "error"];
    args.extend(disabled.iter().flat_map(|port| [*port, "disabled"]));
    let program = fortio()?;
    let mut fortio = host.spawn(process::command(&program.to_string_lossy(), &args))?;
    tls::listens(host, NGINX_PORT, &mut nginx)?;
    tls::listens(host, FORTIO_PORT, &mut fortio)?;
    Ok([nginx, fortio])
}

/// The latency of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latency {
    /// Milliseconds below which [`PERCENTILES`] of the requests were answered.
    pub(super) percentiles: [f64; PERCENTILES.len()],
    /// Answers a second.
    pub(super) rate: f64,
}

/// The percentiles, as fortio is asked for them, and one of how many requests takes longer.
pub(super) const PERCENTILES: [(&str, u16); 7] = [
    ("50", 2),
    ("75", 4),
    ("90", 10),
    ("95", 20),
    ("99", 100),
    ("99.5", 200),
    ("99.9", 1000),
];
/// Where the p99 stands among them.
const P99: usize = 4;

/// Asks `rate` times a second for so many seconds.
pub(super) fn ask(
    client: &Host,
    server: SocketAddr,
    body: Body,
    rate: u32,
    seconds: u32,
) -> Result<Latency, Failure> {
    let url = format!("http://{server}{}", body.path());
    let (rate_text, time) = (rate.to_string(), format!("{seconds}s"));
    let percentiles = PERCENTILES.map(|(name, _)| name).join(",");
    let args = [
        "load",
        "-quiet",
        "-nocatchup",
        "-c",
        CONNECTIONS,
        "-qps",
        &rate_text,
        "-t",
        &time,
        "-r",
        "0.00001",
        "-p",
        &percentiles,
        "-json",
        "-",
        &url,
    ];
    let limit = Duration::from_secs(u64::from(seconds) + 20);
    let said = client.output(&fortio()?.to_string_lossy(), &args, limit)?;
    parse(&said)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Said {
    #[serde(rename = "ActualQPS")]
    actual_qps: f64,
    ret_codes: std::collections::BTreeMap<String, u64>,
    duration_histogram: Histogram,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Histogram {
    percentiles: Vec<Percentile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Percentile {
    percentile: f64,
    value: f64,
}

fn parse(said: &str) -> Result<Latency, Failure> {
    let said: Said =
        serde_json::from_str(said).map_err(|e| format!("fortio's report is not readable: {e}"))?;
    if let Some((code, count)) = said.ret_codes.iter().find(|(code, _)| *code != "200") {
        return Err(format!("{count} requests ended with {code} instead of 200").into());
    }
    let mut percentiles = [0.0; PERCENTILES.len()];
    for (value, (name, _)) in percentiles.iter_mut().zip(PERCENTILES) {
        let is_it = |of: &&Percentile| of.percentile.to_string() == name;
        let found = said.duration_histogram.percentiles.iter().find(is_it);
        let found = found.ok_or_else(|| format!("fortio does not tell the p{name}"))?;
        *value = found.value * 1e3;
    }
    Ok(Latency {
        percentiles,
        rate: said.actual_qps,
    })
}

/// The highest rate that was tried of which 99 % are answered within 10 ms: doubled until that fails,
/// then halved in between. A rate that fails is tried once more, because a try is short, and a
/// machine that stands still for a moment spoils it.
pub(super) fn highest_rate(
    mut ask: impl FnMut(u32) -> Result<Latency, Failure>,
) -> Result<u32, Failure> {
    const FIRST: u32 = 1000;
    const LAST: u32 = 128_000;
    const HALVINGS: u32 = 3;
    let mut held = |rate| -> Result<bool, Failure> {
        let latency = ask(rate)?;
        Ok(latency.percentiles[P99] < 10.0 && latency.rate >= f64::from(rate) * 0.95)
    };
    let mut holds = |rate| Ok::<_, Failure>(held(rate)? || held(rate)?);
    let (mut good, mut bad) = (0, FIRST);
    while bad <= LAST && holds(bad)? {
        (good, bad) = (bad, bad * 2);
    }
    if bad > LAST {
        return Ok(good);
    }
    for _ in 0..HALVINGS {
        let middle = good.midpoint(bad);
        if holds(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"{"ActualQPS": 999.5, "RetCodes": {"200": 4998}, "DurationHistogram":
        {"Count": 4998, "Percentiles": [{"Percentile": 50, "Value": 0.0001},
        {"Percentile": 75, "Value": 0.00015}, {"Percentile": 90, "Value": 0.0002},
        {"Percentile": 95, "Value": 0.0005}, {"Percentile": 99, "Value": 0.0015},
        {"Percentile": 99.5, "Value": 0.004}, {"Percentile": 99.9, "Value": 0.02}]}}"#;

    #[test]
    fn latencies_are_read_from_what_fortio_says() {
        let latency = parse(SAID).unwrap();
        assert_eq!(latency.percentiles, [0.1, 0.15, 0.2, 0.5, 1.5, 4.0, 20.0]);
        assert_eq!(PERCENTILES[P99].0, "99");
        for (percent, of) in PERCENTILES {
            let percent: f64 = percent.parse().unwrap();
            assert!((f64::from(of) * (100.0 - percent) - 100.0).abs() < 1e-6);
        }
        assert_eq!(latency.rate, 999.5);
        let failed = parse(&SAID.replace("\"200\"", "\"503\"")).unwrap_err();
        assert!(failed.to_string().contains("503"), "{failed}");
        assert!(parse(&SAID.replace("99.9", "80")).is_err());
    }

    #[test]
    fn the_highest_rate_is_found_within_an_eighth() {
        let limited = |limit: u32| {
            highest_rate(|rate| {
                let p99 = if rate <= limit { 1.0 } else { 50.0 };
                let rate = f64::from(rate.min(limit));
                let percentiles = [0.1, 0.1, 0.2, 0.2, p99, p99, p99];
                Ok(Latency { percentiles, rate })
            })
            .unwrap()
        };
        assert_eq!(limited(7000), 7000);
        assert_eq!(limited(300), 250);
        assert_eq!(limited(1_000_000), 128_000);
        let mut tries = 0;
        let stalls = highest_rate(|rate| {
            tries += 1;
            let p99 = if tries % 2 == 1 { 50.0 } else { 1.0 };
            Ok(Latency {
                percentiles: [p99; PERCENTILES.len()],
                rate: f64::from(rate),
            })
        });
        assert_eq!(stalls.unwrap(), 128_000, "one bad try of two is forgiven");
    }
}
