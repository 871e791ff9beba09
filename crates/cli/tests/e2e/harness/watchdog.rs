//! Ends all tests when one of them does not end, and says which.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest tests wait three minutes, for timers of the protocol.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// When each of the tests that run now began, or was heard of last.
static RUNNING: LazyLock<Mutex<BTreeMap<String, Instant>>> = LazyLock::new(|| {
    std::thread::spawn(watch);
    Mutex::default()
});

/// Stands for the calling thread's test as long as the thread lives.
struct Test(String);

impl Drop for Test {
    fn drop(&mut self) {
        running().remove(&self.0);
    }
}

thread_local! {
    static TEST: Test = {
        // Every test has a thread of its name.
        Test(std::thread::current().name().unwrap_or_default().to_owned())
    };
}

/// Watches the calling thread's test from now on, for the limit.
pub fn watch_this_test() {
    TEST.with(|Test(name)| running().insert(name.clone(), Instant::now()));
}

fn running() -> MutexGuard<'static, BTreeMap<String, Instant>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        for (name, began) in running().iter() {
            if began.elapsed() > LIMIT {
                // What a macro prints here would belong to the test that came first, which may hide
                // it.
                let _ = writeln!(
                    std::io::stderr(),
                    "{}not ended within {LIMIT:?}: {name}",
                    threads()
                );
                // All hosts end with this process.
                std::process::exit(101);
            }
        }
    }
}

/// Where every thread of this process is in the kernel.
fn threads() -> String {
    let read = |task: &Path, file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .filter_map(|task| Some(task.ok()?.path()))
        .map(|task| read(&task, "comm") + &read(&task, "stack"))
        .collect()
}
