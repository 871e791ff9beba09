use super::*;

#[test]
fn commands_are_told_by_what_they_take() {
    let configured = commands(Takes::Configured);
    for name in [
        "up",
        "down",
        "sync",
        "save",
        "strip",
        "peers",
        "peer rename",
    ] {
        assert!(configured.contains(&name.to_owned()), "{configured:?}");
    }
    for name in ["show", "why"] {
        assert!(commands(Takes::Running).contains(&name.to_owned()));
    }
    assert!(!commands(Takes::Running).contains(&"run".to_owned()));
}

/// clap's scripts may change with its versions; then so must what is added to them.
#[test]
fn scripts_have_the_names_of_interfaces() {
    let bash = script(Shell::Bash);
    assert_eq!(bash.matches("-F _adit_with_names ").count(), 2, "{bash}");
    assert!(!bash.contains("-F _adit "));
    let zsh = script(Shell::Zsh);
    let configured = commands(Takes::Configured).len();
    assert_eq!(zsh.matches(":_adit_configured' ").count(), configured);
    assert_eq!(zsh.matches("_adit_running() {").count(), 1);
    // The first word is a command, or one of a command's own.
    assert_eq!(zsh.matches("case $line[1] in").count(), 5);
    assert!(!zsh.contains("$line[2]") && !zsh.contains("':interfaces -- "));
    let fish = script(Shell::Fish);
    assert_eq!(fish.matches("s/\\.conf\\$//p").count(), configured);
}

#[test]
fn scripts_offer_peers_and_no_option_that_the_help_hides() {
    assert!(hidden().contains("background") && hidden().contains("peers"));
    for shell in [
        Shell::Bash,
        Shell::Zsh,
        Shell::Fish,
        Shell::Elvish,
        Shell::PowerShell,
    ] {
        let text = script(shell);
        for name in hidden() {
            let is_offered = |line: &str| {
                let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                let offers = match shell {
                    Shell::Bash => line.contains("opts="),
                    Shell::Fish => line.starts_with("complete "),
                    _ => true,
                };
                let name = match shell {
                    Shell::Fish => name.clone(),
                    _ => format!("--{name}"),
                };
                offers
                    && words.into_iter().any(|word| word == name)
                    && !line.contains("completions --")
            };
            let line = text.lines().find(|line| is_offered(line));
            // A description of another option may have such a word.
            assert!(
                line.is_none_or(
                    |line| shell == Shell::Fish && !line.contains(&format!(" -l {name} "))
                ),
                "{shell} {line:?}"
            );
        }
    }
    let peers = commands_of_peers();
    assert!(
        ["why", "remove", "peers", "peer enable"]
            .iter()
            .all(|name| peers.contains(&(*name).to_owned())),
        "{peers:?}"
    );
    assert_eq!(
        script(Shell::Zsh).matches(":_adit_peers' ").count(),
        2 + peers.len()
    );
}
