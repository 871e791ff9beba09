use super::*;

#[test]
fn resolvconfs_order_gives_the_first_plain_pattern_as_prefix() {
    let prefix = |order| resolvconf_prefix(Path::new("/sbin/resolvconf.none"), order);
    assert_eq!(prefix("lo.inet6\nlo.*\ntun*\neth*\n"), "tun.");
    assert_eq!(prefix("lo.inet6\n"), "");
    assert_eq!(prefix(""), "");
}

#[test]
fn systemd_resolved_under_resolvconfs_name_gets_no_prefix() {
    // Any link will do.
    let link = Path::new("/proc/self/exe");
    assert_eq!(resolvconf_prefix(link, "tun*\n"), "");
}

#[test]
fn hooks_run_as_by_wg_quick_and_stop_at_the_first_failure() {
    let run_hooks =
        |hooks: &[String], name| run_hooks(hooks, name, Path::new("/x/wg7.conf"), false);
    let seen = "test \"$INTERFACE $CONFIG_FILE $LC_ALL\" = 'wg7 /x/wg7.conf C'";
    assert!(run_hooks(&[seen.to_owned()], "wg7").is_ok());
    let hooks = [
        "test %i = wg7".to_owned(),
        "exit 3".to_owned(),
        "exit 4".to_owned(),
    ];
    let failure = run_hooks(&hooks, "wg7").unwrap_err();
    assert!(failure.to_string().contains("exit 3"), "{failure}");
    assert!(run_hooks(&hooks[..1], "wg7").is_ok());
}

#[test]
fn a_hook_ends_at_the_first_command_that_fails() {
    let run_hooks = |hooks: &[String], name| run_hooks(hooks, name, Path::new("wg7.conf"), false);
    for hook in ["false; true", "false | true; true"] {
        assert!(run_hooks(&[hook.to_owned()], "wg7").is_err(), "{hook}");
    }
    for hook in ["false || true; true", "[[ aa == +(a) ]]"] {
        assert!(run_hooks(&[hook.to_owned()], "wg7").is_ok(), "{hook}");
    }
}
