use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_tables_of_the_documents_are_those_of_the_results() {
    for document in documents() {
        let text = fs::read_to_string(repository().join(document)).unwrap();
        let made = again(document, &text, &repository()).unwrap();
        assert!(
            made.differences.is_empty(),
            "{}cargo lab spec --write\n",
            made.differences.concat()
        );
        assert_eq!(made.text, text);
    }
}

/// A document with one text in place of another.
fn changed_in(document: &str, from: &str, to: &str) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(repository().join(document)).unwrap();
    assert!(text.contains(from), "{from}");
    let text = text.replacen(from, to, 1);
    Ok(again(document, &text, &repository())?.differences)
}

fn changed(from: &str, to: &str) -> Result<Vec<String>, String> {
    changed_in("bench/REPORT.md", from, to)
}

/// SPEC.md's differences after a change of its table of goals.
fn goals_changed(from: &str, to: &str) -> Result<Vec<String>, String> {
    changed_in("SPEC.md", from, to)
}

#[test]
fn a_number_that_differs_is_named_with_its_line() {
    let whole = changed("| 1, 4 | ", "| 1, 4 | 9").unwrap();
    assert_eq!(whole.len(), 1, "{whole:?}");
    assert!(whole[0].contains("has      | 1, 4 | 9"), "{whole:?}");
    let part = changed("| 3.07 × |", "| 3.08 × |").unwrap();
    assert_eq!(part.len(), 1, "{part:?}");
    assert!(part[0].starts_with("bench/REPORT.md:"), "{part:?}");
}

#[test]
fn what_no_file_has_is_left_alone() {
    let elsewhere = changed("| 7.42 × |", "| 9.99 × |").unwrap();
    assert_eq!(elsewhere, [""; 0]);
}

#[test]
fn a_table_cannot_get_lost() {
    let lost = changed("<!-- from results/idle-zen4.json: silent -->", "");
    assert!(lost.unwrap_err().contains("silent is there 0 times"));
    let unknown = changed("idle-zen4.json: silent", "idle-zen4.json: loud");
    assert!(unknown.unwrap_err().contains("no table of this name"));
    let missing = changed("idle-zen4.json: silent", "idle-zen9.json: silent");
    assert!(missing.unwrap_err().contains("idle-zen9.json"));
    let weaker = changed("<!-- from results/idle", "<!-- in part from results/idle");
    assert!(weaker.unwrap_err().contains("it is to say"));
    let row = changed("| ping idle p50, µs |", "| ping |");
    assert!(row.unwrap_err().contains("its rows are"));
}

#[test]
fn no_goal_can_be_lowered_lost_or_called_met() {
    let lowered = goals_changed("| ≥ 3 × | 4.44 |", "| ≥ 2 × | 4.44 |").unwrap();
    assert!(lowered[0].starts_with("SPEC.md:"), "{lowered:?}");
    let called_met = goals_changed("| **1.07** |", "| 1.07 |").unwrap();
    assert_eq!(called_met.len(), 1, "{called_met:?}");
    let by_hand = goals_changed("| ***2.14*** |", "| *2.14* |").unwrap();
    assert_eq!(by_hand.len(), 1, "{by_hand:?}");
    let lost = goals_changed("| 8 TCP streams, over one |", "| 9 TCP streams, over one |");
    assert!(lost.unwrap_err().contains("is there 0 times"));
    let lowered = goals_changed("| ≤ 250 | *128* |", "| ≤ 300 | *128* |").unwrap();
    assert_eq!(lowered.len(), 1, "{lowered:?}");
    let unknown = goals_changed("| 1,000 interfaces: start, s |", "| start |");
    assert!(unknown.unwrap_err().contains("is there 0 times"));
    let unexplained = goals_changed("| [runs] |", "| |");
    assert!(unexplained.unwrap_err().contains("nothing says why"));
    let prose = goals_changed("| *1.2* |", "| fast |");
    assert!(
        prose
            .unwrap_err()
            .contains("neither of a file nor a number")
    );
}

#[test]
fn a_table_is_written_as_it_was_read() {
    let text = "| a | |\n|---|---|\n| b, **c** | 1 |\n| | 2 |\n";
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(Table::parse(&lines).unwrap().text(), text);
    assert!(Table::parse(&["| a |"]).is_err());
    assert!(Table::parse(&["| a |", "|---|", "b"]).is_err());
}

/// Documents of the repository whose links are followed.
const LINKED: [&str; 9] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "EXPERIMENTS.md",
    "README.md",
    "SPEC.md",
    "bench/REPORT.md",
    "crates/aead/README.md",
    "docs/dependencies.md",
];

/// The targets of a text's links, inline ones and definitions.
fn links(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1);
    let inline = inline.filter_map(|rest| rest.split([')', ' ']).next());
    let defined = text.lines().filter(|line| line.starts_with('['));
    let defined = defined.filter_map(|line| Some(line.split_once("]: ")?.1));
    inline.chain(defined).collect()
}

/// What a link to a heading says after `#`.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_of_documents_lead_to_files_and_headings() {
    for document in LINKED {
        let path = repository().join(document);
        let text = fs::read_to_string(&path).unwrap();
        for link in links(&text).into_iter().filter(|it| !it.contains(':')) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{document}: {link}");
            if !heading.is_empty() {
                let there = fs::read_to_string(&target).unwrap();
                let mut headings = there.lines().filter(|line| line.starts_with('#'));
                assert!(
                    headings.any(|line| anchor(line) == heading),
                    "{document}: {link}"
                );
            }
        }
    }
}

#[test]
fn the_specification_defines_the_links_of_its_goals() {
    let text = fs::read_to_string(repository().join("SPEC.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let reasons = rows.filter_map(|row| row.trim_end_matches(" |").rsplit("| ").next());
    for reason in reasons.filter(|cell| cell.starts_with('[')) {
        for link in reason.split(", ") {
            let definition = format!("\n{link}: bench/REPORT.md#");
            assert!(text.contains(&definition), "{link}");
        }
    }
}

#[test]
fn the_specification_is_short_and_so_are_its_sentences() {
    let text = fs::read_to_string(repository().join("SPEC.md")).unwrap();
    assert!(text.len() <= 20 << 10, "{} bytes", text.len());
    let defined = |line: &&str| line.starts_with('[') && line.contains("]: ");
    let lines: Vec<&str> = text.lines().filter(|line| !defined(line)).collect();
    let paragraphs = lines.join("\n").replace("\n\n", "|");
    for cell in paragraphs.split('|') {
        for sentence in cell.replace('\n', " ").split(". ") {
            let words = sentence.split_whitespace().count();
            assert!(words <= 25, "{words} words: {sentence}");
        }
    }
}
