use std::collections::BTreeMap;

use adit_ctl::status::{
    AllowanceJson, BatchesJson, DeviceJson, EngineJson, FailureJson, InterfaceJson, NoAnswer,
    PeerJson, StatusReport, TrainsJson, WaitingJson,
};
use serde_json::Value;

use super::*;

fn page(name: &str) -> String {
    let page = pages().into_iter().find(|(known, _)| known == name);
    unwrapped(&page.expect("a page").1).replace("\\-", "-")
}

/// A page whose texts have one line each.
fn unwrapped(page: &str) -> String {
    let mut text = String::new();
    let mut is_text = false;
    for line in page.lines() {
        let was_text = std::mem::replace(&mut is_text, !line.starts_with('.'));
        // The name of an item has a line of its own.
        let is_name = text.ends_with("\n.TP\n") || text.rsplit('\n').next().is_some_and(is_bold);
        if is_text && was_text && !is_name {
            text.push(' ');
        } else if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
        if !is_text {
            text.push('\n');
        }
    }
    text + "\n"
}

fn is_bold(line: &str) -> bool {
    line.starts_with("\\fB") && line.ends_with("\\fR") && line.matches("\\fB").count() == 1
}

/// A document with every field and every counter. A new field has to be added here.
fn full_document() -> StatusReport {
    let some = || Some("text".to_owned());
    let counters = |names: Vec<&str>| -> BTreeMap<String, u64> {
        names.into_iter().map(|name| (name.to_owned(), 1)).collect()
    };
    let engine = EngineJson {
        version: String::new(),
        aead: String::new(),
        shards: 1,
        max_shards: Some(1),
        pid: 1,
        device: Some(DeviceJson::default()),
        stack: some(),
        gateway_id: Some(3),
        ended: vec![String::new()],
        started: 1,
        cpu_milliseconds: BTreeMap::new(),
        offloads: Offloads::NAMES.map(|name| (name.to_owned(), true)).into(),
        sandbox: adit_sandbox::parts()
            .iter()
            .map(|(name, on)| (name.to_owned(), on))
            .collect(),
        tx_udp_segmentation: Some(true),
        refused: vec![String::new()],
        drops: counters(DropReason::ALL.iter().map(|one| one.name()).collect()),
        ignored: counters(IgnoredKind::ALL.iter().map(|one| one.name()).collect()),
        passed: counters(PassedKind::ALL.iter().map(|one| one.name()).collect()),
        icmp_errors: counters(IcmpKind::ALL.iter().map(|one| one.name()).collect()),
        handshakes: counters(
            HandshakeStats::default()
                .counters()
                .map(|(name, ..)| name)
                .collect(),
        ),
        policy: some(),
        outbound: Some(BatchesJson::default()),
        inbound: Some(BatchesJson::default()),
        lanes: vec![1, 1],
        lane_loads: vec![1, 1],
        sent_trains: Some(TrainsJson::default()),
        received_trains: Some(TrainsJson::default()),
        waiting: Some(WaitingJson::default()),
    };
    let peer = PeerJson {
        public_key: String::new(),
        name: some(),
        state: some(),
        last_attempt: Some(1),
        unanswered: Some(1),
        last_failure: Some(FailureJson {
            at: 1,
            reason: String::new(),
        }),
        handshake_microseconds: Some(1),
        path_mtu: Some(1),
        allowance: Some(AllowanceJson {
            to_peer_bits: Some(1),
            from_peer_bits: Some(1),
            quota_bytes: Some(1),
            used_bytes: 1,
            expires: Some(1),
            access: String::new(),
        }),
        lane: Some(1),
        has_preshared_key: true,
        preshared_key: some(),
        endpoint: some(),
        allowed_ips: vec![String::new()],
        latest_handshake: Some(1),
        transfer_rx: 1,
        transfer_tx: 1,
        drops: counters(DropReason::ALL.iter().map(|one| one.name()).collect()),
        persistent_keepalive: 1,
    };
    let interface = InterfaceJson {
        name: String::new(),
        public_key: some(),
        private_key: some(),
        listen_port: 1,
        fwmark: 1,
        engine: Some(engine),
        peers: vec![peer],
    };
    let mut report = StatusReport::new(vec![interface]);
    report.errors.push(NoAnswer {
        interface: String::new(),
        error: String::new(),
    });
    report
}

/// The path of every field, and the name of every entry of a map whose field is documented.
fn names(value: &Value, path: &str, documented: &[String], into: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            let is_documented = |path: &str| documented.iter().any(|field| field == path);
            // The fields of a structure are documented, the entries of a map are not.
            let is_structure = object
                .keys()
                .any(|name| is_documented(&format!("{path}.{name}")));
            let is_map = is_documented(path) && !is_structure;
            for (name, value) in object {
                match (is_map, path) {
                    (true, _) => into.push(name.clone()),
                    (_, "") => names_of_field(value, name.clone(), documented, into),
                    _ => names_of_field(value, format!("{path}.{name}"), documented, into),
                }
            }
        }
        Value::Array(array) => {
            for value in array {
                names(value, &format!("{path}[]"), documented, into);
            }
        }
        _ => {}
    }
}

fn names_of_field(value: &Value, path: String, documented: &[String], into: &mut Vec<String>) {
    into.push(path.clone());
    names(value, &path, documented, into);
}

#[test]
fn every_field_and_counter_of_the_json_stands_in_the_page() {
    let page = page("adit-show");
    let documented: Vec<String> = status::fields().map(|(path, _)| path).collect();
    let json = serde_json::to_value(full_document()).expect("JSON");
    let mut all = Vec::new();
    names(&json, "", &documented, &mut all);
    let counters = DropReason::ALL.len()
        + IgnoredKind::ALL.len()
        + PassedKind::ALL.len()
        + IcmpKind::ALL.len();
    assert!(all.len() > counters + 40, "{all:?}");
    for name in &all {
        assert!(
            page.contains(&format!(".TP\n\\fB{name}\\fR\n")),
            "{name} is missing"
        );
    }
    // And nothing stands there that is not in the document.
    for path in documented {
        assert!(all.contains(&path), "there is no {path}");
    }
}

#[test]
fn every_cause_and_field_of_why_stands_in_its_page() {
    let page = page("adit-why");
    let causes = why::causes::Cause::EXPLAINED;
    let names = causes.iter().map(|cause| cause.name);
    for name in names.chain(why::FIELDS.iter().map(|(name, _)| *name)) {
        assert!(
            page.contains(&format!(".TP\n\\fB{name}\\fR\n")),
            "{name} is missing"
        );
    }
    assert!(
        page.contains(".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nit works\n"),
        "{page}"
    );
    assert!(
        page.contains("\\fB2\\fR\nwrong usage, or it could not be looked at\n"),
        "{page}"
    );
}

/// What it means, what it looks like, and what to type.
#[test]
fn every_cause_of_why_is_explained_in_three_parts() {
    let page = page("adit-why");
    let causes = why::causes::Cause::EXPLAINED;
    assert!(causes.len() >= 40, "{}", causes.len());
    for cause in causes {
        for part in [cause.meaning, cause.looks, cause.remedy] {
            assert!(
                part.len() > 10 && !part.contains("  "),
                "{}: {part}",
                cause.name
            );
        }
        assert!(cause.meaning.ends_with('.'), "{}", cause.name);
        let item = page.split(&format!(".TP\n\\fB{}\\fR\n", cause.name)).nth(1);
        let item = item.and_then(|rest| rest.split("\n.TP").next());
        let item = item.expect("an item");
        assert!(
            item.contains(".br\nlooks like: ") && item.contains(".br\ntype: "),
            "{item}"
        );
    }
    let mut names: Vec<&str> = causes.iter().map(|cause| cause.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), causes.len());
}

#[test]
fn every_reason_for_a_refused_handshake_stands_in_the_page() {
    let page = page("adit");
    for refusal in Refusal::ALL {
        assert!(
            page.contains(&format!("\\fB{}\\fR\n", refusal.name())),
            "{refusal:?}"
        );
    }
}

#[test]
fn each_command_has_a_page_with_a_name_and_what_to_see_also() {
    let pages = pages();
    assert!(pages.iter().any(|(name, _)| name == "adit-up"));
    for (name, page) in pages {
        assert!(
            page.contains(".SH NAME") && page.contains(".SH \"SEE ALSO\""),
            "{name}"
        );
        let titles: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with(".TH "))
            .collect();
        let version = concat!("adit ", env!("CARGO_PKG_VERSION"));
        let title = format!(".TH {name} 8 2026-11-29 \"{version}\"");
        assert_eq!(titles.len(), 1, "{name}");
        assert_eq!(titles[0].trim_end(), title);
    }
}

#[test]
fn pages_are_written_to_a_directory_that_is_made() {
    let dir = std::env::temp_dir().join(format!("adit-man-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    write_to(dir.join("man8")).expect("written");
    let written = std::fs::read_to_string(dir.join("man8/adit-show.8")).expect("a page");
    assert!(written.contains("no_route"));
    std::fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn commands_of_peers_have_pages_with_examples_of_their_own() {
    for verb in ["show", "rename", "disable", "enable", "remove"] {
        let text = page(&format!("adit-peer-{verb}"));
        assert!(text.contains(&format!("adit peer {verb} wg0")), "{text}");
        assert!(text.contains("WHICH PEER"), "{text}");
    }
    let all = page("adit-peer");
    for text in [
        "adit peer rename wg0",
        "adit peer enable wg0",
        "# disabled:",
    ] {
        assert!(all.contains(text), "{text}");
    }
    let peers = page("adit-peers");
    for (field, _) in crate::quick::FIELDS {
        assert!(peers.contains(field), "{field}");
    }
}

#[test]
fn every_field_of_an_agents_status_stands_in_its_page() {
    let full = adit_fleet::AgentStatus {
        failure: Some("text".into()),
        last_list: Some(1),
        gateway: Some(String::new()),
        write_back_failure: Some(String::new()),
        held: Some(1),
        just_in_time: Some(adit_fleet::JustInTime::default()),
        refusals: vec![adit_fleet::RefusedRecord {
            record: String::new(),
            reason: String::new(),
            public_key: Some(String::new()),
            name: Some(String::new()),
        }],
        ..adit_fleet::AgentStatus::default()
    };
    let json = serde_json::to_value(full).expect("JSON");
    let mut all = Vec::new();
    names(&json, "", &[], &mut all);
    let page = page("adit-agent-status");
    let documented = crate::agent::FIELDS.iter().map(|(path, _)| *path);
    for path in documented {
        assert!(page.contains(&format!("\\fB{path}\\fR")), "{path}");
        assert!(all.iter().any(|name| name == path), "{path}: {all:?}");
    }
    for name in all
        .iter()
        .filter(|name| !["refusals", "just_in_time"].contains(&name.as_str()))
    {
        let is_known = crate::agent::FIELDS.iter().any(|(path, _)| path == name);
        assert!(is_known, "{name}");
    }
}

/// The commands in the section EXAMPLES of a page.
fn examples(page: &str) -> Vec<String> {
    let section = page.split(".SH EXAMPLES\n").nth(1).unwrap_or_default();
    let section = section.split("\n.SH").next().unwrap_or_default();
    let lines = section.split(".TP\n").skip(1);
    lines
        .filter_map(|lines| lines.split("\\fR").next())
        .map(|command| command.trim_start_matches("\\fB").replace('\n', " "))
        .collect()
}

/// Words as a shell has them, without what it would replace.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, piece) in command.split('\'').enumerate() {
        match number % 2 {
            0 => words.extend(piece.split_whitespace().map(str::to_owned)),
            _ => words.push(piece.to_owned()),
        }
    }
    words
}

#[test]
fn each_page_has_examples_that_the_command_line_takes() {
    let mut taken = 0;
    for (name, page) in pages() {
        let page = page.replace("\\-", "-").replace("\\*(Aq", "'");
        let examples = examples(&page);
        assert!(!examples.is_empty(), "{name}");
        for example in examples {
            for one in example.split(" | ").flat_map(|one| one.split(" && ")) {
                let words = words(one.split(" > ").next().unwrap_or_default());
                let words = words.iter().skip_while(|word| word.contains("LEVEL="));
                let words: Vec<&String> = words.collect();
                if words[0] == "adit" {
                    let parsed = <Cli as clap::Parser>::try_parse_from(&words);
                    assert!(parsed.is_ok(), "{name}: {example}: {:?}", parsed.err());
                    taken += 1;
                }
            }
        }
    }
    assert!(taken > 40, "{taken}");
}

/// The synopsis of a page as plain text.
fn synopsis(name: &str) -> String {
    let page = page(name);
    let text = page.split(".SH SYNOPSIS\n").nth(1).expect("a synopsis");
    let text = text.split(".SH").next().expect("an end");
    text.replace("\\fB", "")
        .replace("\\fI", "")
        .replace("\\fR", "")
        .replace(".br\n", "")
        .trim()
        .to_owned()
}

#[test]
fn a_synopsis_has_the_values_of_options() {
    assert_eq!(
        synopsis("adit-why"),
        "adit why [--inside ADDRESS] [--wait SECONDS] [--json] INTERFACE [NAME|KEY|ADDRESS]"
    );
    assert_eq!(
        synopsis("adit-tune"),
        "adit tune [-q|--quiet] [--json] {--shards N | --policy POLICY}... INTERFACE"
    );
    assert_eq!(synopsis("adit-peer"), "adit peer COMMAND ...");
    assert!(synopsis("adit-show").contains("[--watch[=SECONDS]]"));
    assert!(synopsis("adit-up").contains("[-f|--foreground]"));
    let adit = synopsis("adit");
    assert!(adit.contains("[--disable-offload NAME]... "), "{adit}");
    assert!(adit.ends_with("INTERFACE...\nadit COMMAND ..."), "{adit}");
}

#[test]
fn a_page_has_the_sections_of_manual_pages_and_no_line_that_is_too_long() {
    for (name, page) in pages() {
        for line in page.lines() {
            assert!(
                line.len() <= 100 && line.trim_end() == line && !line.is_empty(),
                "{name}: {line:?}"
            );
            assert!(!line.contains('`'), "{name}: {line}");
        }
        assert!(
            !page.contains(".SH EXTRA") && !page.contains("SUBCOMMANDS"),
            "{name}"
        );
    }
    let run = page("adit");
    assert!(
        run.contains(".SH ENVIRONMENT\n.TP\n\\fBLOG_LEVEL\\fR\n"),
        "{run}"
    );
}
