//! Names that were looked up.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How many, at most.
const MAX: usize = 1024;
/// What is known holds for so long at least, and at most.
const LEAST: u32 = 1;
const MOST: u32 = 86_400;

#[derive(Default)]
pub(super) struct Cache {
    known: HashMap<String, (Vec<IpAddr>, Instant)>,
}

impl Cache {
    pub(super) fn find(&self, name: &str, now: Instant) -> Option<Vec<IpAddr>> {
        let (addresses, until) = self.known.get(name)?;
        (now < *until).then(|| addresses.clone())
    }

    pub(super) fn add(&mut self, name: String, addresses: &[IpAddr], ttl: u32, now: Instant) {
        if self.known.len() >= MAX && !self.known.contains_key(&name) {
            self.known.retain(|_, (_, until)| now < *until);
            // All hold: any one goes.
            if self.known.len() >= MAX
                && let Some(any) = self.known.keys().next().cloned()
            {
                self.known.remove(&any);
            }
        }
        let until = now + Duration::from_secs(ttl.clamp(LEAST, MOST).into());
        self.known.insert(name, (addresses.to_vec(), until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_until_its_time_has_passed_and_not_too_many_are() {
        let mut cache = Cache::default();
        let now = Instant::now();
        let addresses = ["10.0.0.1".parse().expect("an address")];
        cache.add("a".into(), &addresses, 60, now);
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(cache.find("a", later(59)), Some(addresses.to_vec()));
        assert_eq!(cache.find("a", later(60)), None);
        for n in 0..2 * MAX {
            cache.add(n.to_string(), &addresses, 60, now);
        }
        assert_eq!(cache.known.len(), MAX);
        cache.add("b".into(), &addresses, 60, later(60));
        assert_eq!(cache.known.len(), 1);
    }
}
