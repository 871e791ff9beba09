//! `adit completions`: clap's scripts, which know commands and options, with the names of
//! interfaces added: those that have a file in /etc/wireguard, and those that run.

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::{self, Cli};
use crate::failure::Result;

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

pub(crate) fn print(shell: Shell) -> Result<()> {
    cli::print(script(shell).as_bytes())
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "adit", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => bash(&script),
        Shell::Zsh => zsh(&script),
        Shell::Fish => fish(script),
        _ => script,
    }
}

/// The subcommands that take such an interface as their first argument.
fn commands(takes: Takes) -> Vec<String> {
    let adit = Cli::command();
    let wanted = |command: &&Command| {
        let first = command.get_positionals().next();
        // `run` makes interfaces: they have no name yet.
        first.and_then(Takes::of) == Some(takes) && command.get_name() != "run"
    };
    let names = adit.get_subcommands().filter(wanted);
    names.map(|command| command.get_name().to_owned()).collect()
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
    [[ \"$cur\" == -* || \"$COMP_CWORD\" -lt 2 ]] && return
    case \"${{COMP_WORDS[1]}}\" in
        {configured})
            COMPREPLY+=($(compgen -W \"$({CONFIGURED})\" -- \"$cur\")) ;;
        {running})
            COMPREPLY+=($(compgen -W \"$({RUNNING})\" -- \"$cur\")) ;;
    esac
}}

{register}",
        configured = commands(Takes::Configured).join("|"),
        running = commands(Takes::Running).join("|"),
    )
}

/// A value's line ends in the function that completes it.
fn zsh(script: &str) -> String {
    let mut out = String::with_capacity(script.len() + 1024);
    let mut command = String::new();
    let (configured, running) = (commands(Takes::Configured), commands(Takes::Running));
    // clap takes the first word for the interface of `adit INTERFACE`, and never gets to a command.
    let script = script.replace("$line[2]", "$line[1]");
    let is_first = |line: &&str| !line.starts_with("':interfaces -- ");
    for line in script.lines().filter(is_first) {
        // `(up)` opens the arguments of a command.
        if let Some(name) = line
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
        {
            command = name.to_owned();
        }
        let function = match () {
            () if !line.starts_with("':") && !line.starts_with("'::") => None,
            () if configured.contains(&command) => Some("_adit_configured"),
            () if running.contains(&command) => Some("_adit_running"),
            () => None,
        };
        let names = ["conf", "interface"].iter().any(|name| {
            line.starts_with(&format!("':{name} --")) || line.starts_with(&format!("'::{name} --"))
        });
        match (function, line.strip_suffix(":_default' \\")) {
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
    // A file may be given, too, where one has to be.
    for (takes, names, files) in [
        (Takes::Configured, CONFIGURED, ""),
        (Takes::Running, RUNNING, " -f"),
    ] {
        for command in commands(takes) {
            script.push_str(&format!(
                "complete -c adit -n \"__fish_seen_subcommand_from {command}\"{files} -a \"({})\"\n",
                names.replace('$', "\\$")
            ));
        }
    }
    script
}
