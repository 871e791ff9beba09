use super::*;

#[test]
fn log_levels_are_wireguard_gos() {
    assert_eq!(LogLevel::parse("debug"), LogLevel::Verbose);
    assert_eq!(LogLevel::parse("verbose"), LogLevel::Verbose);
    assert_eq!(LogLevel::parse("error"), LogLevel::Error);
    assert_eq!(LogLevel::parse("silent"), LogLevel::Silent);
    assert_eq!(LogLevel::parse(""), LogLevel::Unset);
}

#[test]
fn a_group_is_found_by_its_name() {
    let groups = "root:x:0:\nprometheus:x:112:alice,bob\nbad\nempty:x::\n";
    assert_eq!(group_id(groups, "prometheus"), Some(112));
    for name in ["prom", "x", "bad", "empty", ""] {
        assert_eq!(group_id(groups, name), None, "{name}");
    }
}

#[test]
fn an_unknown_offload_is_an_error_that_names_it() {
    let failure = allowed_offloads(&["udp-gso".into(), "warp".into()])
        .unwrap_err()
        .to_string();
    assert!(failure.contains("warp"), "{failure}");
    assert!(!allowed_offloads(&["udp-gso".into()]).unwrap().udp_gso);
}

#[test]
fn a_socket_is_bound_once_the_killed_process_has_let_go_of_it() {
    use adit_ctl::BindError;
    let taken = || BindError::AlreadyRunning("wg0.sock".into());
    let tries = std::cell::Cell::new(0);
    let bind = || match tries.replace(tries.get() + 1) {
        0 | 1 => Err(taken()),
        number => Ok(number),
    };
    assert!(matches!(process::once_free(bind, || false), Ok(2)));
    // One that has the interface stays.
    tries.set(0);
    let refused = process::once_free(bind, || true);
    assert!(matches!(refused, Err(BindError::AlreadyRunning(_))));
    assert_eq!(tries.get(), 1);
}

/// `adit upgrade` takes the names from the old process, which may lie.
#[test]
fn a_new_process_opens_no_device_by_the_name_that_an_old_one_gave() {
    let mut args = RunArgs {
        interfaces: vec!["wg0".into()],
        ..RunArgs::default()
    };
    assert_eq!(process::devices_of_user(&args), ["wg0"]);
    args.take_over = Some(1);
    assert!(process::devices_of_user(&args).is_empty());
}
