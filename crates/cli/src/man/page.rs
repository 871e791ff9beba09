//! A manual page: what clap knows of a command, in the form and order of man-pages(7), and sections
//! that clap does not know.

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::parts::{inline, item, paragraph};

/// Of the release: the pages of a version are the same wherever they are made.
const DATE: &str = "2026-11-29";
/// Columns of a line of the source.
const WIDTH: usize = 80;

pub(super) fn render(command: &Command, sections: &Roff) -> String {
    let described = command.clone().subcommand_help_heading("COMMANDS");
    let man = Man::new(described)
        .section("8")
        .date(DATE)
        .source(concat!("adit ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    // Writing to memory does not fail, here and below.
    _ = man.render_title(&mut page);
    _ = man.render_name_section(&mut page);
    let mut roff = Roff::new();
    synopsis(&mut roff, command);
    description(&mut roff, command);
    page.extend_from_slice(roff.render().as_bytes());
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        _ = man.render_options_section(&mut page);
    }
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        _ = man.render_subcommands_section(&mut page);
    }
    let mut roff = Roff::new();
    notes(&mut roff, command);
    page.extend_from_slice(roff.render().as_bytes());
    page.extend_from_slice(sections.render().as_bytes());
    tidy(&String::from_utf8_lossy(&page))
}

fn synopsis(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["SYNOPSIS"]);
    let name = command.get_bin_name().unwrap_or("adit");
    let subcommands = command.has_subcommands().then(|| {
        let placeholder = [roman(" "), italic("COMMAND"), roman(" ...")];
        [vec![bold(name)], placeholder.into()].concat()
    });
    let arguments = arguments(command);
    // A command that has nothing else is no line of its own.
    if !arguments.is_empty() || subcommands.is_none() {
        let line = std::iter::once(vec![bold(name)]).chain(arguments);
        roff.text(line.collect::<Vec<_>>().join(&roman(" ")));
        if subcommands.is_some() {
            roff.control("br", []);
        }
    }
    if let Some(line) = subcommands {
        roff.text(line);
    }
}

/// Options, those of which one is required, and positional arguments.
fn arguments(command: &Command) -> Vec<Vec<Inline>> {
    let shown = |arg: &&Arg| {
        let is_of_clap = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !arg.is_hide_set() && !is_of_clap
    };
    let required = command.get_groups().filter(|group| group.is_required_set());
    let required: Vec<Vec<&Arg>> = required
        .map(|group| {
            let members = group.get_args();
            let find = |id| command.get_arguments().find(|arg| arg.get_id() == id);
            members.filter_map(find).filter(shown).collect()
        })
        .filter(|members: &Vec<&Arg>| members.len() > 1)
        .collect();
    let in_group = |arg: &Arg| {
        let mut members = required.iter().flatten();
        members.any(|member| member.get_id() == arg.get_id())
    };
    let all = || command.get_arguments().filter(shown);
    let options = all().filter(|arg| !arg.is_positional() && !in_group(arg));
    let mut pieces: Vec<Vec<Inline>> = options.map(|arg| enclosed(arg, option(arg))).collect();
    pieces.extend(required.iter().map(|members| {
        let members: Vec<Vec<Inline>> = members.iter().map(|arg| option(arg)).collect();
        [
            vec![roman("{")],
            members.join(&roman(" | ")),
            vec![roman("}...")],
        ]
        .concat()
    }));
    pieces.extend(all().filter(|arg| arg.is_positional()).map(|arg| {
        let names = arg.get_value_names().unwrap_or_default().join(" ");
        enclosed(arg, vec![italic(names)])
    }));
    pieces
}

/// An option as it is typed, with its value.
fn option(arg: &Arg) -> Vec<Inline> {
    let short = arg.get_short().map(|short| bold(format!("-{short}")));
    let long = arg.get_long().map(|long| bold(format!("--{long}")));
    let names: Vec<Inline> = short.into_iter().chain(long).collect();
    let mut typed = Vec::new();
    for name in names {
        if !typed.is_empty() {
            typed.push(roman("|"));
        }
        typed.push(name);
    }
    if !arg.get_action().takes_values() {
        return typed;
    }
    let value = italic(arg.get_value_names().unwrap_or_default().join(" "));
    let is_optional = arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    match (is_optional, arg.is_require_equals_set()) {
        (true, _) => typed.extend([roman("[="), value, roman("]")]),
        (false, true) => typed.extend([roman("="), value]),
        (false, false) => typed.extend([roman(" "), value]),
    }
    typed
}

/// In brackets what may be left out, and with dots what may be repeated.
fn enclosed(arg: &Arg, typed: Vec<Inline>) -> Vec<Inline> {
    let is_repeated =
        matches!(arg.get_action(), ArgAction::Append) && arg.get_value_delimiter().is_none();
    let dots = if is_repeated { "..." } else { "" };
    match arg.is_required_set() {
        true => [typed, vec![roman(dots)]].concat(),
        false => [vec![roman("[")], typed, vec![roman(format!("]{dots}"))]].concat(),
    }
}

fn description(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["DESCRIPTION"]);
    let about = command.get_long_about().or_else(|| command.get_about());
    for text in paragraphs(&about.map(ToString::to_string).unwrap_or_default()) {
        roff.control("PP", []);
        roff.text(inline(&text.replace('\n', " ")));
    }
}

/// What stands below the help of a command: notes, then the environment and exit status.
fn notes(roff: &mut Roff, command: &Command) {
    let help = command.get_after_long_help();
    let help = help
        .or_else(|| command.get_after_help())
        .map(ToString::to_string);
    let help = help.unwrap_or_default();
    let all = || paragraphs(&help);
    let is_status = |text: &&str| text.starts_with("Exit status: ");
    let is_environment = |text: &&str| text.starts_with("Environment");
    let mut notes = all()
        .filter(|text| !is_status(text) && !is_environment(text))
        .peekable();
    if notes.peek().is_some() {
        roff.control("SH", ["NOTES"]);
    }
    for text in notes {
        paragraph(roff, &text.replace('\n', " "));
    }
    for text in all().filter(is_status) {
        roff.control("SH", ["EXIT STATUS"]);
        let text = text
            .trim_start_matches("Exit status: ")
            .trim_end_matches('.');
        for (code, meaning) in codes(text) {
            item(roff, &code, &meaning);
        }
    }
    for text in all().filter(is_environment) {
        roff.control("SH", ["ENVIRONMENT"]);
        for line in text.lines().skip(1) {
            let (name, meaning) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
            item(roff, name, meaning.trim());
        }
    }
}

/// `0 it works, 1 it fails, or hangs` as codes with their meanings, which may have a comma.
fn codes(text: &str) -> Vec<(String, String)> {
    let mut codes: Vec<(String, String)> = Vec::new();
    for piece in text.split(", ") {
        match (piece.split_once(' '), codes.last_mut()) {
            (Some((code, meaning)), _) if code.parse::<u8>().is_ok() => {
                codes.push((code.to_owned(), meaning.to_owned()));
            }
            (_, Some((_, meaning))) => *meaning += &format!(", {piece}"),
            (_, None) => {}
        }
    }
    codes
}

fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n\n")
        .map(str::trim_end)
        .filter(|text| !text.is_empty())
}

/// The same page without what groff and mandoc warn of.
fn tidy(page: &str) -> String {
    // clap parts a list of values from the text above it so.
    let page = page.replace("\n.br\n\n.br\n", "\n.sp\n");
    let preamble: Vec<&str> = page.lines().take(2).collect();
    let mut tidied = preamble.join("\n") + "\n";
    let mut last = "";
    for line in page.lines().map(str::trim_end) {
        let is_redundant = line == ".PP" && last.starts_with(".SH");
        if line.is_empty() || is_redundant || preamble.contains(&line) {
            continue;
        }
        match line.starts_with('.') {
            true => tidied.extend([line, "\n"]),
            false => wrap(&mut tidied, &emphasized(line)),
        }
        last = line;
    }
    tidied
}

/// What stands `so` in clap's texts is bold.
fn emphasized(line: &str) -> String {
    let pieces: Vec<&str> = line.split('`').collect();
    if pieces.len().is_multiple_of(2) {
        return line.to_owned();
    }
    let pieces = pieces
        .iter()
        .enumerate()
        .map(|(number, piece)| match number % 2 {
            0 => (*piece).to_owned(),
            _ => format!("\\fB{piece}\\fR"),
        });
    pieces.collect()
}

/// Breaks a line of text, where none begins with what is a request.
fn wrap(page: &mut String, line: &str) {
    let mut length = 0;
    for (number, word) in line.split(' ').enumerate() {
        let fits = length + 1 + word.len() < WIDTH;
        match number {
            0 => {}
            _ if fits || word.is_empty() || word.starts_with(['.', '\'']) => {
                page.push(' ');
                length += 1;
            }
            _ => {
                page.push('\n');
                length = 0;
            }
        }
        page.push_str(word);
        length += word.len();
    }
    page.push('\n');
}
