//! The manual pages. They are made of clap's description of the commands, and of the documentation
//! of counters, fields and the log in the code.

use std::io;
use std::path::{Path, PathBuf};

use adit_ctl::status;
use adit_engine::{DropReason, IgnoredKind, PassedKind};
use adit_io::{IcmpKind, Offloads};
use adit_proto::{FailureReason, HandshakeStats, Refusal};
use clap::{Command, CommandFactory};
use clap_mangen::roff::Roff;

use crate::cli::{self, Cli};
use crate::failure::{Context, Result, bail};
use crate::why;
use parts::{
    CONFIGURATION, CONTROL_SOCKET, CREDENTIAL, STATUS_SOCKET, item, list, more, paragraph, see_also,
};

mod agent;
mod examples;
mod page;
mod parts;
mod peers;
mod steer;

#[cfg(test)]
#[path = "man_tests.rs"]
mod tests;

/// Prints a page: that of a command, or adit(8).
pub(crate) fn print(command: Option<&str>) -> Result<()> {
    let name = command.map_or_else(|| "adit".to_owned(), |command| format!("adit-{command}"));
    let Some((_, page)) = pages().into_iter().find(|(known, _)| *known == name) else {
        bail!(
            Mistake,
            "there is no command {}: see `adit --help`",
            command.unwrap_or_default()
        );
    };
    cli::print(page.as_bytes())
}

/// Writes a page for adit itself and for each command to a directory, which is made if it is not
/// there.
pub(crate) fn write_to(dir: PathBuf) -> Result<()> {
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(&dir)?;
        for (name, page) in pages() {
            std::fs::write(Path::new(&dir).join(format!("{name}.8")), page)?;
        }
        Ok(())
    };
    write().context(|| format!("cannot write the manual pages to {}", dir.display()))
}

/// Every page, with its name.
fn pages() -> Vec<(String, String)> {
    let mut adit = Cli::command().disable_help_subcommand(true);
    adit.build();
    let commands = adit
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let within = |command: &Command| -> Vec<Command> {
        let own = command.get_subcommands().cloned();
        std::iter::once(command.clone()).chain(own).collect()
    };
    let commands: Vec<Command> = commands.flat_map(within).collect();
    let all = std::iter::once(adit).chain(commands);
    all.map(|command| {
        let name = command.get_display_name().unwrap_or("adit").to_owned();
        let page = page::render(&command, &sections(&name));
        (name, page)
    })
    .collect()
}

/// The sections of a page that clap does not write.
fn sections(name: &str) -> Roff {
    let mut roff = Roff::new();
    let own_examples = examples::of(name).iter().copied();
    match name {
        "adit" | "adit-run" => {
            diagnostics(&mut roff);
            list(
                &mut roff,
                "FILES",
                [CONTROL_SOCKET, STATUS_SOCKET, CONFIGURATION],
            );
            list(&mut roff, "EXAMPLES", own_examples);
            see_also(
                &mut roff,
                "adit-up(8), adit-show(8), wg(8), wg-quick(8), ip-link(8)",
            );
        }
        "adit-show" => show(&mut roff),
        "adit-events" => events(&mut roff),
        "adit-why" => why(&mut roff),
        "adit-metrics" => metrics(&mut roff),
        "adit-proxy" => proxy(&mut roff),
        "adit-agent" => agent::page(&mut roff),
        "adit-steer" => steer::page(&mut roff),
        "adit-agent-status" => agent::status(&mut roff),
        "adit-up" => {
            keys(&mut roff);
            said(&mut roff);
            list(&mut roff, "FILES", [CONFIGURATION, CREDENTIAL]);
            list(&mut roff, "EXAMPLES", own_examples);
            see_also(
                &mut roff,
                "adit(8), adit-init(8), adit-show(8), wg(8), wg-quick(8), systemd.exec(5)",
            );
        }
        "adit-init" => {
            said(&mut roff);
            list(&mut roff, "FILES", [CONFIGURATION]);
            let examples = [
                ("adit init", "Asks, and makes /etc/wireguard/wg0.conf."),
                (
                    "adit init wg1 --yes --endpoint vpn.example.org --reach lan",
                    "Asks nothing, for a script: peers find this host by that name, and reach its private networks.",
                ),
            ];
            list(&mut roff, "EXAMPLES", examples);
            see_also(
                &mut roff,
                "adit(8), adit-up(8), adit-new-peer(8), adit-check(8), wg(8)",
            );
        }
        "adit-new-peer" => {
            list(&mut roff, "FILES", [CONFIGURATION]);
            let examples = [
                (
                    "adit new-peer wg0 --name phone --qr",
                    "Prints a code that a telephone scans, which may use the networks of wg0.",
                ),
                (
                    "adit new-peer wg0 --full-tunnel --dns 10.0.0.1 --output laptop.conf",
                    "Makes a file for a laptop that sends everything through wg0.",
                ),
                (
                    "adit new-peer wg0 --endpoint home.example.org --qr --output phone.conf",
                    "A code and its file for a telephone that finds this host by a name, at the port of wg0.",
                ),
            ];
            list(&mut roff, "EXAMPLES", examples);
            see_also(&mut roff, "adit(8), adit-add(8), adit-remove(8), wg(8)");
        }
        "adit-peers" => peers::list_of_peers(&mut roff),
        name if name == "adit-peer" || name.starts_with("adit-peer-") => {
            peers::peer(&mut roff, name);
        }
        "adit-down" | "adit-save" | "adit-sync" | "adit-strip" | "adit-add" | "adit-remove"
        | "adit-edit" | "adit-check" => {
            if ["adit-down", "adit-save", "adit-sync"].contains(&name) {
                said(&mut roff);
            }
            list(&mut roff, "FILES", [CONFIGURATION]);
            list(&mut roff, "EXAMPLES", own_examples);
            see_also(
                &mut roff,
                "adit(8), adit-show(8), adit-why(8), wg(8), wg-quick(8)",
            );
        }
        _ => {
            if ["adit-upgrade", "adit-tune", "adit-call"].contains(&name) {
                said(&mut roff);
            }
            if name == "adit-call" {
                calls(&mut roff);
            }
            list(&mut roff, "EXAMPLES", own_examples);
            see_also(&mut roff, "adit(8), wg(8)");
        }
    }
    roff
}

fn calls(roff: &mut Roff) {
    roff.control("SH", ["FAIL-OVER"]);
    paragraph(
        roff,
        "Two gateways have the same file, and share one address that another program moves, such as keepalived. The gateway \
         that has the address sends its list to the other one from time to time. No session key leaves a host: each gateway \
         has sessions of its own, and packets that are on their way when the address moves are lost.",
    );
    paragraph(
        roff,
        "A line of the list has a public key, a blank or a tab, and the address and port of the peer. Lines that begin with \
         `#` are comments. Peers of the list that the interface does not have are left out. A peer refuses a handshake \
         whose time is earlier than that of the last one from the other gateway: the clocks of both must be right. \
         docs/failover.md has a configuration for keepalived.",
    );
    paragraph(
        roff,
        "`--when-present` is for a service on both gateways. It works with any program that moves the address. After a \
         failure, such as a missing interface or list, it tries again when an address or an interface changes. It tells the \
         service manager when it is ready (`Type=notify`).",
    );
}

fn keys(roff: &mut Roff) {
    roff.control("SH", ["KEYS IN A FILE OF THEIR OWN"]);
    paragraph(
        roff,
        "`--keys` names a file with secret keys that the configuration file does not have. It has the form of a \
         configuration file: `PrivateKey` in `[Interface]`, and for each peer with a preshared key a `[Peer]` with \
         `PublicKey` and `PresharedKey`. Anything else in it is refused, and so is a key that stands in both files. Keys \
         from it are never written to the configuration file.",
    );
    paragraph(
        roff,
        "Without `--keys`, it is the credential `INTERFACE.keys` of the service, if there is one that is not empty. The \
         unit `adit@INTERFACE` loads it from /etc/credstore. Other commands find it while that unit runs.",
    );
}

/// What `--json` prints of a command that changes a whole interface.
fn said(roff: &mut Roff) {
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "With `--json`, `adit up`, `down`, `sync` and `save` print an object with `schema`, `interface` and `done`, which is \
         `up`, `down`, `synced` or `saved`; `adit tune` the same with `tuned`, and `shards` and `policy` as they were asked for; \
         `adit init` the same with `made`, and `file`, `public_key`, `addresses`, `listen_port`, `endpoint` and `forward` \
         (null for this host alone); `adit upgrade` one with `schema`, `done` (`upgraded`) and `processes`, of which each \
         has `interfaces`, `pid`, `old_pid`, `version` and `old_version`. It is all of standard output: what hooks print goes \
         to standard error, with messages. Where something failed, the exit status is 1; only `adit upgrade` then prints an \
         object, with the processes that were replaced. Fields may be added under the same `schema`; that one is removed or \
         means something else makes it 2.",
    );
}

fn diagnostics(roff: &mut Roff) {
    roff.control("SH", ["DIAGNOSTICS"]);
    for text in [
        "With `LOG_LEVEL=verbose` there is a line for each handshake message that is sent, with the number of unanswered \
         ones before it, for each new session, for each handshake message that is refused, for packets from an inner \
         source that is not among their peer's allowed IPs, for datagrams that could not be sent, with the reason, and for \
         ICMP errors that come back. The line names the address of the other end, and the public key of the peer where \
         that is known. An event that repeats within a second has one line, with a count. In a flood from many addresses \
         a few addresses have lines, and the others are counted together.",
        "`adit show` has counters for all of this at any level; adit-show(8) explains them. A private or preshared key is \
         never logged.",
        "A handshake message is refused for one of these reasons:",
    ] {
        paragraph(roff, text);
    }
    for refusal in Refusal::ALL {
        item(roff, refusal.name(), refusal.explanation());
    }
}

fn show(roff: &mut Roff) {
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "`adit show --json` prints one object. Fields may be added under the same `schema`; that one is removed or means \
         something else makes it 2. Keys are in base64, counters count from the start of the process.",
    );
    for (path, text) in status::fields() {
        item(roff, &path, text);
    }
    let offloads = Offloads::NAMES.into_iter().zip(Offloads::EXPLANATIONS);
    list(roff, "OFFLOADS", offloads);
    list(roff, "SANDBOX", adit_sandbox::Parts::EXPLAINED);
    let drops = DropReason::ALL.iter();
    list(
        roff,
        "DROPS",
        drops.map(|one| (one.name(), one.explanation())),
    );
    let ignored = IgnoredKind::ALL.iter();
    list(
        roff,
        "IGNORED PACKETS",
        ignored.map(|one| (one.name(), one.explanation())),
    );
    let passed = PassedKind::ALL.iter();
    list(
        roff,
        "PACKETS THAT PASSED",
        passed.map(|one| (one.name(), one.explanation())),
    );
    let icmp = IcmpKind::ALL.iter();
    list(
        roff,
        "ICMP ERRORS",
        icmp.map(|one| (one.name(), one.explanation())),
    );
    let stats = HandshakeStats::default();
    let handshakes = stats.counters();
    list(
        roff,
        "HANDSHAKES",
        handshakes.map(|(name, _, text)| (name, text)),
    );
    let failures = FailureReason::ALL.iter();
    list(
        roff,
        "FAILURES",
        failures.map(|one| (one.name(), one.explanation())),
    );
    roff.control("SH", ["NAMES"]);
    paragraph(
        roff,
        "A comment in the wg-quick file is the name of a peer: right above `[Peer]`, behind it or right below it, as \
         wg-easy, wireguard-ui, wireguard-install and PiVPN write it; or `# Name = alice` or `# friendly_name = alice` \
         anywhere in the section. `adit up` and `adit sync` read them, and adit-new-peer(8), adit-add(8) and \
         adit-remove(8) tell the process at once. A comment with a blank line above and below it, and one that stands at \
         a peer that is commented out, is nobody's. Where no blank line parts a comment from the settings above it and \
         from the `[Peer]` below it, it is the name of the peer below; `# friendly_name` is that of the peer above, as \
         for prometheus_wireguard_exporter, unless one stands before the first peer.",
    );
    roff.control("SH", ["STATUS SOCKET"]);
    paragraph(
        roff,
        "A program may ask the socket itself. It writes a word and a line end: `status` is answered with the JSON above, \
         `events` with that of adit-events(8). `watch` is for those that look often: it tells which peers changed since it \
         was written last on the same connection. Its first line is `{\"watch\":1,\"status\":…}` without peers. The others \
         go through the peers that were told before: `{\"same\":N}` are as they were, `{\"changed\":PEER}` is now this, \
         `{\"gone\":N}` are there no more. `{\"added\":PEER}` follow, and `{\"end\":N}` says how many there are now.",
    );
    list(roff, "FILES", [STATUS_SOCKET, CONTROL_SOCKET]);
    list(
        roff,
        "EXAMPLES",
        [
            (
                "adit show wg0 --peer alice",
                "The peers whose name contains `alice`, in any case.",
            ),
            (
                "adit show --watch=1 --layout lines --sort rx",
                "A line for each peer, every second, with rates; who sends most comes first.",
            ),
            (
                "adit show",
                "Every userspace WireGuard interface of this network namespace's host.",
            ),
            (
                "adit show wg0 latest-handshakes",
                "One field, byte for byte as `wg show wg0 latest-handshakes` prints it.",
            ),
            (
                "adit show wg0 --json | jq .interfaces[0].engine.drops",
                "Packets that an interface dropped, by reason.",
            ),
        ],
    );
    see_also(roff, "adit(8), wg(8)");
}

fn events(roff: &mut Roff) {
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "`adit events --json` prints one object a line. Fields and kinds may be added under the same `schema`; that one is \
         removed or means something else makes it 2. A reader that is too slow misses events, and learns how many. \
         Unknown peers have events one by one, 512 a second at most and 64 for one address; of other kinds an event that \
         repeats within a second has a count, and in a flood `others` counts the rest.",
    );
    for (name, text) in status::event_fields() {
        item(roff, &name, text);
    }
    list(roff, "EVENTS", status::EventKind::EXPLAINED.iter().copied());
    list(roff, "FILES", [STATUS_SOCKET]);
    list(
        roff,
        "EXAMPLES",
        [
            (
                "adit events --json | jq -r 'select(.event == \"unknown_peer\").peer'",
                "The keys of those who knock and are no peers.",
            ),
            (
                "adit events wg0 --since 1h",
                "What the journal kept of the last hour: who changed what, upgrades and errors.",
            ),
            (
                "echo events | socat -t 3600 - UNIX-CONNECT:/run/adit/wg0.sock",
                "The same lines without this command.",
            ),
        ],
    );
    see_also(roff, "adit(8), adit-show(8)");
}

fn why(roff: &mut Roff) {
    roff.control("SH", ["CAUSES"]);
    for cause in why::causes::Cause::EXPLAINED {
        item(roff, cause.name, cause.meaning);
        more(roff, "looks like", cause.looks);
        more(roff, "type", cause.remedy);
    }
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "`adit why --json` prints one object. Fields and causes may be added under the same `schema`; that one is removed or \
         means something else makes it 2.",
    );
    for (path, text) in why::FIELDS {
        item(roff, path, text);
    }
    roff.control("SH", ["OTHER IMPLEMENTATIONS"]);
    paragraph(
        roff,
        "Of an interface that another userspace WireGuard serves, only its configuration and its latest handshakes can be \
         seen. A packet to an address inside begins the handshake there. Without root, none is begun.",
    );
    list(roff, "FILES", [STATUS_SOCKET, CONTROL_SOCKET]);
    list(
        roff,
        "EXAMPLES",
        [
            (
                "adit why wg0",
                "Looks at each peer, or at the eight that need it most.",
            ),
            (
                "adit why wg0 alice --inside 10.9.0.80",
                "Looks at one peer, and asks a host behind it.",
            ),
            (
                "adit why wg0 --json | jq -r '.peers[].findings[0].cause'",
                "The most likely cause of each peer.",
            ),
        ],
    );
    see_also(
        roff,
        "adit(8), adit-show(8), adit-check(8), adit-events(8), wg(8)",
    );
}

fn metrics(roff: &mut Roff) {
    roff.control("SH", ["METRICS"]);
    paragraph(
        roff,
        "`wireguard_sent_bytes_total`, `wireguard_received_bytes_total` and `wireguard_latest_handshake_seconds` have the \
         names and labels of prometheus_wireguard_exporter; `friendly_name` is the name of adit-show(8). What begins with \
         `adit_` has the reasons and results of adit-show(8) as labels. `adit_interface_answers` is 0 for an interface \
         whose process does not answer, or does not answer this user. Metrics of adit-agent(8) begin with `adit_agent_`. \
         `adit_agent_works` is 0 while the agent cannot read its whole source, or cannot change the interface.",
    );
    paragraph(
        roff,
        "It needs no root: a member of the group that the process of an interface was given with `--status-group` or \
         ADIT_STATUS_GROUP, and that of an agent, may read the status. At most 16 connections are answered at a time; the oldest without a request \
         makes room for a new one. Over TCP, requests are answered where their header Host has an address, `localhost`, the \
         name of the system or of `--listen`, or a name of `--host`.",
    );
    list(roff, "FILES", [STATUS_SOCKET]);
    list(
        roff,
        "EXAMPLES",
        [(
            "adit metrics --listen 127.0.0.1:9586",
            "What Prometheus scrapes with `targets: [localhost:9586]`.",
        )],
    );
    see_also(roff, "adit(8), adit-show(8)");
}

fn proxy(roff: &mut Roff) {
    roff.control("SH", ["FOR WATCHERS"]);
    paragraph(
        roff,
        "adit-show(8), adit-top(8), adit-events(8), adit-why(8) and adit-metrics(8) know a proxy by the name of its file \
         without the ending, and `wg` does where the control socket could be made. With `--info`, `/metrics` has the metrics \
         of adit-metrics(8) for the tunnel and its peers. `adit_proxy_clients`, `adit_proxy_connections`, \
         `adit_proxy_clients_total` by service, `adit_proxy_refused_total` by reason and \
         `adit_proxy_dropped_datagrams_total` are of the proxy. `/readyz` says when each address of `CheckAlive` answered \
         last; its status is 503 while one has not for `CheckAliveInterval` and two seconds, and 200 without `CheckAlive`.",
    );
    paragraph(
        roff,
        "While a peer does not answer, the log says once a minute why, with the words of adit-why(8), as far as that shows \
         without any right.",
    );
    let file = (
        "/etc/wireproxy/wireproxy.conf, ~/.config/wireproxy.conf",
        "The files that are taken where none is named.",
    );
    let own = (
        "$XDG_RUNTIME_DIR/adit/NAME.sock",
        "The status socket where /run/adit cannot be written to.",
    );
    list(
        roff,
        "FILES",
        [file, CONFIGURATION, own, STATUS_SOCKET, CONTROL_SOCKET],
    );
    list(roff, "EXAMPLES", examples::of("adit-proxy").iter().copied());
    see_also(roff, "adit(8), adit-show(8), adit-why(8), curl(1)");
}
