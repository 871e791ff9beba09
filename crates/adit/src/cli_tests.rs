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
        "genkey", "dmz",
    ];
    for name in names {
        assert_eq!(misspelt(name), None, "{name}");
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

#[test]
fn several_shards_are_refused_with_the_reason() {
    for command in ["run", "up"] {
        let parse =
            |number| Cli::try_parse_from(["adit", command, "--shards", number, "wg0"]).map(drop);
        assert!(parse("1").is_ok(), "{command}");
        for number in ["2", "256", "65535"] {
            let error = parse(number).expect_err(number).to_string();
            assert!(error.contains("reorder packets"), "{error}");
        }
        assert!(parse("0").is_err() && parse("two").is_err());
    }
}
