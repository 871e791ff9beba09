//! A round of `adit-lab embed` with programs of Adit's library.

mod common;

use std::path::Path;

#[test]
fn programs_that_embed_the_library_carry_tcp() {
    let ways = [
        "adit-engine",
        "adit-device",
        "adit-net",
        "adit-proxy",
        "adit-daemon",
    ];
    let adit = Path::new(env!("CARGO_BIN_EXE_adit-lab")).with_file_name("adit");
    let arguments = [
        "embed",
        "--only",
        "packets,streams,stacks,proxies",
        "--ways",
        &ways.join(","),
        "--adit",
        &adit.to_string_lossy(),
    ];
    let short = ["--packet-rounds", "1", "--rounds", "1", "--seconds", "1"];
    let Some(output) = common::lab(&[&arguments[..], &short].concat()) else {
        return;
    };
    let (json, said) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let document: serde_json::Value = serde_json::from_slice(json).expect(&said);
    assert_eq!(
        (&document["schema"], &document["command"]),
        (&1.into(), &"embed".into())
    );
    assert_eq!(document["results"].as_array().expect("results").len(), 6);
    // How much it is depends on what else the machine does.
    let parts = [
        ("streams", &ways[..2]),
        ("stacks", &ways[2..3]),
        ("proxies", &ways[3..]),
    ];
    for (comparison, names) in parts {
        let comparison = &document[comparison];
        let found = comparison["ways"].as_array().expect("ways");
        assert_eq!(found.len(), names.len(), "{said}");
        let measures = comparison["measures"].as_array().expect("measures");
        for (way, name) in found.iter().zip(names) {
            assert_eq!(way["way"], *name);
            for measure in measures {
                let id = measure["id"].as_str().expect("an id");
                if *name == "adit-daemon" && id.starts_with("rss") {
                    continue;
                }
                let value = &way["measures"][id]["median"];
                assert!(value.as_f64() > Some(0.0), "{name}, {id}: {said}");
            }
        }
    }
    // Those of packets, and of proxies without wireproxy; gotatun was not asked for.
    assert_eq!(document["goals"].as_array().expect("goals").len(), 8);
}
