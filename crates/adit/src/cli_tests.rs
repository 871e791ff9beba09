use super::*;

#[test]
fn a_slip_in_a_command_is_noticed_and_a_name_of_an_interface_is_none() {
    for (slip, meant) in [
        ("genkye", "genkey"),
        ("shwo", "show"),
        ("stirp", "strip"),
        ("demos", "demo"),
    ] {
        assert_eq!(misspelt(slip).as_deref(), Some(meant));
    }
    for name in ["wg0", "up0", "run1", "utun3", "home", "genkey", "dmz"] {
        assert_eq!(misspelt(name), None, "{name}");
    }
}
