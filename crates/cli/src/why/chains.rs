//! Which chain of nftables drops all that comes from one interface, as far as its rules can be read
//! simply: what cannot be read may let packets through, and then nothing is said.

/// How deep chains may jump.
const MAX_DEPTH: usize = 8;

/// Packets that chains are asked about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packets<'a> {
    /// The hook that they meet: `input` or `forward`.
    pub(super) hook: &'a str,
    pub(super) from: &'a str,
    /// The device that they leave by; none for this host itself.
    pub(super) to: Option<&'a str>,
    /// Whether they are what answers this host's probes: ICMP.
    pub(super) are_answers: bool,
    pub(super) v6: bool,
}

/// A rule or policy that drops packets, with where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dropping {
    /// `FAMILY TABLE CHAIN`, as nft(8) takes it: the chain of the hook.
    pub(crate) chain: String,
    /// As `nft list ruleset` has it.
    pub(crate) rule: String,
}

#[derive(Debug, Default)]
struct Chain<'a> {
    table: &'a str,
    name: &'a str,
    /// The line of a chain with a hook.
    hook: Option<&'a str>,
    rules: Vec<&'a str>,
}

/// What becomes of packets in a chain.
#[derive(Debug, PartialEq, Eq)]
enum Fate<'a> {
    /// No rule decides.
    GoesOn,
    /// They are accepted, or may be.
    MayPass,
    DroppedBy(&'a str),
}

/// Whether a rule is about the packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fits {
    Yes,
    No,
    Maybe,
}

/// The first chain of the hook that drops all of these packets, but for chains of tables that Adit
/// makes itself.
pub(super) fn dropping(ruleset: &str, packets: Packets<'_>) -> Option<Dropping> {
    let chains = chains(ruleset);
    let hook = format!(" hook {} ", packets.hook);
    let family = if packets.v6 { "ip6 " } else { "ip " };
    let is_met = |chain: &&Chain<'_>| {
        let is_hooked = (chain.hook)
            .is_some_and(|line| line.starts_with("type filter") && line.contains(&hook));
        let is_adits =
            (chain.table.split_whitespace().nth(1)).is_some_and(|table| table.starts_with("adit-"));
        let of_family = chain.table.starts_with(family) || chain.table.starts_with("inet ");
        is_hooked && of_family && !is_adits
    };
    chains.iter().filter(is_met).find_map(|chain| {
        let rule = match fate(&chains, chain, packets, 0) {
            Fate::DroppedBy(rule) => rule,
            Fate::GoesOn => chain.hook.filter(|line| line.contains("policy drop"))?,
            Fate::MayPass => return None,
        };
        Some(Dropping {
            chain: format!("{} {}", chain.table, chain.name),
            rule: rule.to_owned(),
        })
    })
}

fn chains(ruleset: &str) -> Vec<Chain<'_>> {
    let mut chains = Vec::new();
    let (mut table, mut chain): (&str, Option<Chain<'_>>) = ("", None);
    for line in ruleset.lines().map(str::trim) {
        let named = |kind: &str| line.strip_prefix(kind)?.strip_suffix(" {");
        if let Some(name) = named("table ") {
            table = name;
        } else if let Some(name) = named("chain ") {
            chain = Some(Chain {
                table,
                name,
                ..Chain::default()
            });
        } else if line == "}" {
            chains.extend(chain.take());
        } else if let Some(chain) = chain.as_mut().filter(|_| !line.is_empty()) {
            match line.starts_with("type ") && line.contains(" hook ") {
                true => chain.hook = Some(line),
                false => chain.rules.push(line),
            }
        }
    }
    chains
}

fn fate<'a>(
    chains: &[Chain<'a>],
    chain: &Chain<'a>,
    packets: Packets<'_>,
    depth: usize,
) -> Fate<'a> {
    for rule in &chain.rules {
        let (fits, verdict) = read(rule, packets);
        if fits == Fits::No {
            continue;
        }
        match verdict.as_slice() {
            ["accept"] => return Fate::MayPass,
            ["drop", ..] | ["reject", ..] if fits == Fits::Yes => return Fate::DroppedBy(rule),
            // It drops some.
            ["drop", ..] | ["reject", ..] => {}
            ["return"] if fits == Fits::Yes => return Fate::GoesOn,
            ["return"] => return Fate::MayPass,
            [word @ ("jump" | "goto"), name] => {
                let is_it = |other: &&Chain<'a>| other.table == chain.table && other.name == *name;
                let Some(next) = chains.iter().find(is_it).filter(|_| depth < MAX_DEPTH) else {
                    return Fate::MayPass;
                };
                match (fate(chains, next, packets, depth + 1), fits) {
                    (Fate::MayPass, _) => return Fate::MayPass,
                    (Fate::DroppedBy(rule), Fits::Yes) => return Fate::DroppedBy(rule),
                    (Fate::GoesOn, Fits::Yes) if *word == "goto" => return Fate::GoesOn,
                    (Fate::GoesOn, _) if *word == "goto" => return Fate::MayPass,
                    _ => {}
                }
            }
            // Only counts, logs or marks.
            [] => {}
            // A verdict map, a queue, or what this does not know.
            _ => return Fate::MayPass,
        }
    }
    Fate::GoesOn
}

/// Whether a rule is about the packets, and the words of its verdict.
fn read<'a>(rule: &'a str, packets: Packets<'_>) -> (Fits, Vec<&'a str>) {
    let rule = rule.split(" comment \"").next().unwrap_or(rule);
    let mut words = rule.split_whitespace().peekable();
    let mut fits = Fits::Yes;
    let narrow = |fits: &mut Fits, more: Fits| match (*fits, more) {
        (Fits::No, _) | (_, Fits::Yes) => {}
        (_, other) => *fits = other,
    };
    while let Some(word) = words.next() {
        match word {
            "iifname" | "iif" | "oifname" | "oif" if words.peek() != Some(&"vmap") => {
                let device = match word.starts_with('i') {
                    true => Some(packets.from),
                    false => packets.to,
                };
                let (is_not, values) = values(&mut words);
                let fit = device.map_or(Fits::No, |device| is_among(device, &values));
                narrow(&mut fits, negated(fit, is_not));
            }
            "ct" if words.peek() == Some(&"state") => {
                words.next();
                if words.peek() == Some(&"vmap") {
                    // Its verdicts are those of states that it lists.
                    let listed: Vec<&str> = words.by_ref().collect();
                    let state = state(packets);
                    return match listed.iter().any(|word| state.contains(word)) {
                        true => (Fits::Maybe, vec!["vmap"]),
                        false => (Fits::No, Vec::new()),
                    };
                }
                let (is_not, values) = values(&mut words);
                let is_state = values.iter().any(|value| state(packets).contains(value));
                let fit = if is_state { Fits::Yes } else { Fits::No };
                narrow(&mut fits, negated(fit, is_not));
            }
            "counter" => {
                // Without `-s`, `packets N bytes N` follows.
                while matches!(words.peek(), Some(&"packets" | &"bytes")) {
                    words.next();
                    words.next();
                }
            }
            "accept" | "drop" | "reject" | "return" | "jump" | "goto" | "queue" => {
                return (fits, std::iter::once(word).chain(words).collect());
            }
            "vmap" => return (fits, vec!["vmap"]),
            "log" => {}
            // ICMP has no ports.
            "tcp" | "udp" | "th"
                if packets.are_answers && matches!(words.peek(), Some(&("dport" | "sport"))) =>
            {
                fits = Fits::No;
            }
            // Something else that packets must be, or that is done to them.
            _ => narrow(&mut fits, Fits::Maybe),
        }
    }
    (fits, Vec::new())
}

/// The states of connection tracking that the packets have.
fn state(packets: Packets<'_>) -> &'static [&'static str] {
    match packets.are_answers {
        true => &["established", "related"],
        false => &["new"],
    }
}

/// The values that follow a word, and whether they are those that are not meant.
fn values<'a>(words: &mut impl Iterator<Item = &'a str>) -> (bool, Vec<&'a str>) {
    let mut first = words.next();
    let is_not = first == Some("!=");
    if is_not {
        first = words.next();
    }
    let mut values = Vec::new();
    match first {
        Some("{") => values.extend(words.by_ref().take_while(|word| *word != "}")),
        other => values.extend(other),
    }
    let values = values.into_iter().flat_map(|value| value.split(','));
    let values = values.map(|value| value.trim_matches('"'));
    (is_not, values.filter(|value| !value.is_empty()).collect())
}

/// Whether a device is among names, of which one may end in a star, or be that of a set.
fn is_among(device: &str, names: &[&str]) -> Fits {
    let is_it = |name: &&&str| match name.strip_suffix('*') {
        Some(start) => device.starts_with(start),
        None => **name == device,
    };
    match names.iter().find(is_it) {
        Some(_) => Fits::Yes,
        None if names.iter().any(|name| name.starts_with('@')) => Fits::Maybe,
        None => Fits::No,
    }
}

fn negated(fits: Fits, is_not: bool) -> Fits {
    match (fits, is_not) {
        (Fits::Yes, true) => Fits::No,
        (Fits::No, true) => Fits::Yes,
        (fits, _) => fits,
    }
}

#[cfg(test)]
#[path = "chains_tests.rs"]
mod tests;
