use clap::Parser;

use super::*;

#[test]
fn a_mistyped_command_is_told_from_an_interface_name() {
    for (slip, meant) in [
        ("genkye", "genkey"),
        ("shwo", "show"),
        ("stirp", "strip"),
        ("demos", "demo"),
        ("upp", "up"),
        ("rnu", "run"),
        ("hlep", "help"),
    ] {
        assert_eq!(misspelt(slip).as_deref(), Some(meant));
    }
    let names = [
        "wg0", "up0", "run1", "show1", "utun", "utun3", "tun", "lan", "wan", "us", "uk", "home",
        "genkey", "dmz", "server", "client", "office", "new-york", "vpn", "wg", "wg-home",
        "site-a",
    ];
    for name in names {
        assert_eq!(misspelt(name), None, "{name}");
    }
}

#[test]
fn words_that_people_guess_make_no_interface() {
    for (guess, meant) in [
        ("status", "show"),
        ("list", "show"),
        ("start", "up"),
        ("stop", "down"),
        ("restart", "up"),
        ("reload", "sync"),
        ("setup", "init"),
        ("config", "edit"),
        ("logs", "events"),
        ("help-me", "help"),
        ("add-peer", "new-peer"),
        ("list-peers", "peers"),
        ("delete_user", "remove"),
        ("gen-key", "genkey"),
        ("Status", "show"),
        ("statsu", "show"),
        ("version", "--version"),
        ("keygen", "genkey"),
        ("ping", "why"),
    ] {
        assert_eq!(misspelt(guess).as_deref(), Some(meant), "{guess}");
        let parsed = Cli::try_parse_from(["adit", guess, "wg0"]);
        let args = parsed.ok().and_then(|cli| cli.run);
        assert_eq!(args.expect("names of interfaces").interfaces[0], guess);
    }
    // Each leads to a command, and none is one.
    let named: Vec<String> = (Cli::command().get_subcommands())
        .map(|command| command.get_name().to_owned())
        .collect();
    for (meant, words) in GUESSED {
        let is_named = named.iter().any(|name| name == meant);
        assert!(is_named || ["help", "--version"].contains(meant), "{meant}");
        for word in words.split_whitespace() {
            assert!(!named.iter().any(|name| name == word), "{word}");
            assert_eq!(command_near(word).as_deref(), Some(*meant), "{word}");
        }
    }
}

#[test]
fn a_slip_before_an_argument_is_noticed_in_short_commands_too() {
    for (slip, meant) in [("upp", "up"), ("rnu", "run"), ("donw", "down")] {
        let parsed = Cli::try_parse_from(["adit", slip, "wg0"]);
        let args = parsed.ok().and_then(|cli| cli.run);
        let interfaces = args.expect("names of interfaces").interfaces;
        assert_eq!(interfaces, [slip, "wg0"]);
        assert_eq!(command_near(slip).as_deref(), Some(meant));
    }
    for word in ["up", "show", "wg0", "--help", "-f", ""] {
        assert_eq!(command_near(word), None, "{word}");
    }
}
