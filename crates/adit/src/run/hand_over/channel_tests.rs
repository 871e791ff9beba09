use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_listener_finds_its_place_while_others_take_the_directory_along() {
    let status = std::env::temp_dir().join(format!("adit-channel-{}", std::process::id()));
    std::fs::create_dir(&status).unwrap();
    let dir = status.join(DIR);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::remove_dir(&dir);
                // Faster than any processes end, and not so fast that none of them could bind.
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let bound = (0..500).try_for_each(|_| Listener::bind(&status).map(drop));
        stop.store(true, Ordering::Relaxed);
        assert!(bound.is_ok(), "{}", bound.unwrap_err());
    });
    std::fs::remove_dir(&status).unwrap();
}

#[test]
fn a_directory_that_others_may_enter_is_refused() {
    let dir = std::env::temp_dir().join(format!("adit-channel-open-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o755).create(&dir).unwrap();
    let refused = make_private(&dir).unwrap_err();
    assert!(refused.to_string().contains("alone"), "{refused}");
    std::fs::remove_dir(&dir).unwrap();
}
