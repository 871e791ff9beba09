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

/// SPEC.md with one text in place of another.
fn changed(from: &str, to: &str) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(repository().join("SPEC.md")).unwrap();
    assert!(text.contains(from), "{from}");
    let text = text.replacen(from, to, 1);
    Ok(again("SPEC.md", &text, &repository())?.differences)
}

#[test]
fn a_number_that_differs_is_named_with_its_line() {
    let whole = changed("| 1, 4 | ", "| 1, 4 | 9").unwrap();
    assert_eq!(whole.len(), 1, "{whole:?}");
    assert!(whole[0].contains("has      | 1, 4 | 9"), "{whole:?}");
    let part = changed("| 3.07 × |", "| 3.08 × |").unwrap();
    assert_eq!(part.len(), 1, "{part:?}");
    assert!(part[0].starts_with("SPEC.md:"), "{part:?}");
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
fn a_table_is_written_as_it_was_read() {
    let text = "| a | |\n|---|---|\n| b, **c** | 1 |\n| | 2 |\n";
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(Table::parse(&lines).unwrap().text(), text);
    assert!(Table::parse(&["| a |"]).is_err());
    assert!(Table::parse(&["| a |", "|---|", "b"]).is_err());
}
