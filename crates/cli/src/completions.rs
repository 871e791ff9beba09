//! `adit completions`: clap's scripts, which know commands and options, with the names of
//! interfaces added, those that have a file in /etc/wireguard and those that run, and the names of
//! peers. Options that are not in the help are left out.

use std::collections::{BTreeMap, BTreeSet};

use adit_ctl::config::{self, Config};
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::{self, Cli};
use crate::failure::Result;
use crate::show;

#[cfg(test)]
#[path = "completions_tests.rs"]
mod tests;

/// Names of interfaces, in any of the shells: running ones, and those with a file that the user may
/// read.
const RUNNING: &str = "command ls /var/run/wireguard /run/adit 2>/dev/null | command sed -n 's/\\.sock$//p' | command sort -u";
const CONFIGURED: &str = "command ls /etc/wireguard /var/run/wireguard /run/adit 2>/dev/null \
                          | command sed -n 's/\\.conf$//p; s/\\.sock$//p' | command sort -u";

/// Which interfaces a command takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// One that has a file or runs.
    Configured,
    /// One that runs.
    Running,
}

impl Takes {
    /// By the name of an argument's value.
    fn of(arg: &Arg) -> Option<Self> {
        match arg.get_value_names()?.first()?.as_str() {
            "CONF|INTERFACE" => Some(Self::Configured),
            "INTERFACE" => Some(Self::Running),
            _ => None,
        }
    }
}

pub(crate) fn print(shell: Option<Shell>, peers: Option<&str>) -> Result<()> {
    let text = match (shell, peers) {
        (_, Some(interface)) => peers_of(interface)
            .into_iter()
            .map(|name| name + "\n")
            .collect(),
        (Some(shell), None) => script(shell),
        (None, None) => String::new(),
    };
    cli::print(text.as_bytes())
}

/// The names of peers, or keys where there is none: of the interface if it runs and this user may ask
/// it, and of the file if this user may read it.
fn peers_of(interface: &str) -> BTreeSet<String> {
    let name = config::locate(interface).map_or(interface.to_owned(), |(_, name)| name);
    let status = show::interface_status(&name).ok();
    let file = config::locate(interface).ok();
    let read = file.and_then(|(path, _)| Config::salvage(&path).ok());
    let config = read.map(|(config, _)| config).unwrap_or_default();
    let in_file: BTreeMap<String, Option<String>> = (config.peers.into_iter())
        .chain(config.disabled)
        .map(|peer| (peer.public_key.to_string(), peer.name))
        .collect();
    let running = status.iter().flat_map(|status| &status.peers);
    let running: Vec<_> = running
        .filter(|peer| !in_file.contains_key(&peer.public_key))
        .map(|peer| (peer.public_key.clone(), peer.name.clone()))
        .collect();
    (in_file.into_iter().chain(running))
        .map(|(key, name)| name.unwrap_or(key))
        .collect()
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "adit", &mut script);
    let script = without_hidden(&String::from_utf8_lossy(&script), shell);
    match shell {
        Shell::Bash => bash(&script),
        Shell::Zsh => zsh(&script),
        Shell::Fish => fish(script),
        _ => script,
    }
}

/// The options that no help shows.
fn hidden() -> BTreeSet<String> {
    let adit = Cli::command();
    let commands = std::iter::once(&adit).chain(adit.get_subcommands());
    let args = commands.flat_map(Command::get_arguments);
    let hidden = args.filter(|arg| arg.is_hide_set());
    hidden
        .filter_map(|arg| Some(arg.get_long()?.to_owned()))
        .collect()
}

/// A script without them: bash's has words in a line, the others' a line for each.
fn without_hidden(script: &str, shell: Shell) -> String {
    let hidden = hidden();
    let mut out = String::with_capacity(script.len());
    for line in script.split_inclusive('\n') {
        let is_offered = |name: &String| {
            let ends =
                |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            let word = |before: &str| {
                let word = format!("{before}{name}");
                line.match_indices(&word)
                    .any(|(at, _)| ends(&line[at + word.len()..]))
            };
            word("--") || word(" -l ")
        };
        if shell != Shell::Bash {
            if !hidden.iter().any(is_offered) {
                out.push_str(line);
            }
            continue;
        }
        match line.split_once("opts=\"") {
            Some((before, words)) => {
                let is_shown = |word: &&str| {
                    let name = word.strip_prefix("--").unwrap_or_default();
                    !hidden.contains(name.trim_end_matches(['"', '\n']))
                };
                let words: Vec<&str> = words.trim_end().trim_end_matches('"').split(' ').collect();
                let words: Vec<&str> = words.into_iter().filter(is_shown).collect();
                out.push_str(&format!("{before}opts=\"{}\"\n", words.join(" ")));
            }
            None => out.push_str(line),
        }
    }
    out
}

/// All commands, with the words that call them: `up`, `peer rename`.
fn all_commands() -> Vec<(String, Command)> {
    let adit = Cli::command();
    let within = |command: &Command| {
        let name = command.get_name().to_owned();
        let own = |inner: &Command| (format!("{name} {}", inner.get_name()), inner.clone());
        let inner: Vec<_> = command.get_subcommands().map(own).collect();
        std::iter::once((name.clone(), command.clone())).chain(inner)
    };
    adit.get_subcommands().flat_map(within).collect()
}

/// The commands whose second argument is a peer.
fn commands_of_peers() -> Vec<String> {
    let takes_peer = |command: &Command| {
        let mut args = command.get_positionals();
        let second = args.nth(1).and_then(|arg| arg.get_value_names()?.first());
        second.is_some_and(|name| ["PEER", "NAME|KEY|ADDRESS"].contains(&name.as_str()))
    };
    let all = all_commands().into_iter();
    all.filter(|(_, command)| takes_peer(command))
        .map(|(words, _)| words)
        .collect()
}

/// The commands that take such an interface as their first argument.
fn commands(takes: Takes) -> Vec<String> {
    let wanted = |command: &Command| {
        let first = command.get_positionals().next();
        // `run` makes interfaces: they have no name yet.
        first.and_then(Takes::of) == Some(takes) && command.get_name() != "run"
    };
    let all = all_commands().into_iter();
    all.filter(|(_, command)| wanted(command))
        .map(|(words, _)| words)
        .collect()
}

/// Words of a pattern of bash, one of which is a command.
fn pattern(commands: Vec<String>) -> String {
    let quoted: Vec<String> = commands.iter().map(|words| format!("'{words}'")).collect();
    quoted.join(" | ")
}

/// clap's function offers the names of values as if they were words to type. This wraps it.
fn bash(script: &str) -> String {
    // The last command of the script registers the function, in two forms.
    let (functions, register) = match script.rfind("\nif [[ ") {
        Some(at) => script.split_at(at + 1),
        None => (script, ""),
    };
    let register = register.replace("-F _adit ", "-F _adit_with_names ");
    format!(
        "{functions}
_adit_with_names() {{
    _adit \"$@\"
    local cur=\"${{COMP_WORDS[COMP_CWORD]}}\" word words=()
    for word in \"${{COMPREPLY[@]}}\"; do
        case \"$word\" in
            '['* | '<'*) ;;
            *) words+=(\"$word\") ;;
        esac
    done
    COMPREPLY=(\"${{words[@]}}\")
    local at=1 command=\"${{COMP_WORDS[1]}}\" is_peer=0
    [[ \"$command\" == peer ]] && at=2 && command=\"peer ${{COMP_WORDS[2]}}\"
    [[ \"$cur\" == -* || \"$COMP_CWORD\" -le \"$at\" ]] && return
    [[ \"${{COMP_WORDS[COMP_CWORD - 1]}}\" == --peer ]] && is_peer=1
    case \"$command\" in
        {of_peers})
            [[ \"$COMP_CWORD\" -eq $((at + 2)) ]] && is_peer=1 ;;
    esac
    if [[ \"$is_peer\" == 1 ]]; then
        COMPREPLY=()
        while IFS= read -r word; do
            [[ \"$word\" == \"${{cur//\\\\/}}\"* ]] && COMPREPLY+=(\"$(printf %q \"$word\")\")
        done < <(command adit completions --peers \"${{COMP_WORDS[at + 1]}}\" 2>/dev/null)
        return
    fi
    case \"$command\" in
        {configured})
            COMPREPLY+=($(compgen -W \"$({CONFIGURED})\" -- \"$cur\")) ;;
        {running})
            COMPREPLY+=($(compgen -W \"$({RUNNING})\" -- \"$cur\")) ;;
    esac
}}

{register}",
        configured = pattern(commands(Takes::Configured)),
        running = pattern(commands(Takes::Running)),
        of_peers = pattern(commands_of_peers()),
    )
}

/// A value's line ends in the function that completes it.
fn zsh(script: &str) -> String {
    let mut out = String::with_capacity(script.len() + 1024);
    // The words before the command of these lines, and it.
    let (mut before, mut command) = (Vec::new(), String::new());
    let (configured, running) = (commands(Takes::Configured), commands(Takes::Running));
    let of_peers = commands_of_peers();
    // clap takes the first word for the interface of `adit INTERFACE`, and never gets to a command.
    let script = script.replace("$line[2]", "$line[1]");
    let is_first = |line: &&str| !line.starts_with("':interfaces -- ");
    for line in script.lines().filter(is_first) {
        // `(up)` opens the arguments of a command.
        if let Some(name) = line
            .trim_start()
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
            .filter(|name| !name.contains(' '))
        {
            let words = before.iter().filter(|word: &&String| !word.is_empty());
            command = words
                .map(String::as_str)
                .chain([name])
                .collect::<Vec<_>>()
                .join(" ");
        }
        match line.trim() {
            // The whole is a state, too.
            "case $line[1] in" if command != "adit" => before.push(command.clone()),
            text if text.starts_with("case ") => before.push(String::new()),
            "esac" => _ = before.pop(),
            _ => {}
        }
        let function = match () {
            () if !line.starts_with("':") && !line.starts_with("'::") => None,
            () if configured.contains(&command) => Some("_adit_configured"),
            () if running.contains(&command) => Some("_adit_running"),
            () => None,
        };
        let is_of = |name: &str| {
            line.starts_with(&format!("':{name} --")) || line.starts_with(&format!("'::{name} --"))
        };
        let names = is_of("conf") || is_of("interface");
        let is_peer = line.starts_with("'--peer=[") || of_peers.contains(&command) && is_of("peer");
        match (function, line.strip_suffix(":_default' \\")) {
            (_, Some(start)) if is_peer => {
                out.push_str(&format!("{start}:_adit_peers' \\\n"));
            }
            (Some(function), Some(start)) if names => {
                out.push_str(&format!("{start}:{function}' \\\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    let functions = format!(
        "_adit_configured() {{ local -a names; names=(${{(f)\"$({CONFIGURED})\"}}); compadd -a names; _files -g '*.conf' }}
_adit_running() {{ local -a names; names=(${{(f)\"$({RUNNING})\"}}); compadd -a names }}
_adit_peers() {{ local -a names; names=(${{(f)\"$(command adit completions --peers \"${{words[2]}}\" 2>/dev/null)\"}}); compadd -a names }}

"
    );
    match out.find("_adit() {") {
        Some(at) => {
            out.insert_str(at, &functions);
            out
        }
        None => out,
    }
}

fn fish(mut script: String) -> String {
    // The word behind the command is the interface.
    let peers = |at: usize| {
        format!("(command adit completions --peers (commandline -opc)[{at}] 2>/dev/null)")
    };
    let seen = |command: &str| {
        let words = command.split(' ');
        let seen = words.map(|word| format!("__fish_seen_subcommand_from {word}"));
        seen.collect::<Vec<_>>().join("; and ")
    };
    for command in commands_of_peers() {
        let at = command.split(' ').count() + 2;
        script.push_str(&format!(
            "complete -c adit -n \"{}; and test (count (commandline -opc)) -eq {at}\" -f -a \"{}\"\n",
            seen(&command),
            peers(at)
        ));
    }
    let peers = peers(3);
    script.push_str(&format!(
        "complete -c adit -n \"__fish_seen_subcommand_from show top\" -l peer -x -a \"{peers}\"\n"
    ));
    // A file may be given, too, where one has to be.
    for (takes, names, files) in [
        (Takes::Configured, CONFIGURED, ""),
        (Takes::Running, RUNNING, " -f"),
    ] {
        for command in commands(takes) {
            script.push_str(&format!(
                "complete -c adit -n \"{}\"{files} -a \"({})\"\n",
                seen(&command),
                names.replace('$', "\\$")
            ));
        }
    }
    script
}
