use super::*;

#[test]
fn cpu_time_is_found_behind_a_hostile_process_name() {
    let stat = "42 (a) 9 (b) R 1 42 42 0 -1 4194304 100 0 0 0 70 30 0 0 20 0 3 0 100 1 1";
    assert_eq!(cpu_ticks(stat), Some(100));
    assert_eq!(cpu_ticks("42 (adit) R 1 2"), None);
    assert_eq!(cpu_ticks(""), None);
}
