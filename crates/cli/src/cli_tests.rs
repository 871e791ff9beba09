use super::*;

#[test]
fn threads_are_set_by_flags_and_mistakes_are_explained() {
    for command in ["run", "up"] {
        let parse = |flag, value| {
            Cli::try_parse_from(["adit", command, flag, value, "wg0"]).map_err(|e| e.to_string())
        };
        for (flag, value) in [
            ("--shards", "2"),
            ("--policy", "inline"),
            ("--policy", "pipeline"),
            ("--cpus", "0-3,8"),
        ] {
            assert!(parse(flag, value).is_ok(), "{command} {flag} {value}");
        }
        for (flag, value, said) in [
            ("--shards", "0", "0 is not in 1..=1024"),
            (
                "--policy",
                "fast",
                "[possible values: auto, inline, pipeline]",
            ),
            ("--cpus", "first", "expected 0-3,8"),
        ] {
            let error = parse(flag, value).map(drop).expect_err(flag);
            assert!(error.contains(said), "{error}");
        }
    }
}
