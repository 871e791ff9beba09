//! Messages to the service manager.

use crate::failure::say;
use crate::run;

/// Tells the service manager. The tunnel works without it.
pub(crate) fn tell(state: &str) {
    if let Err(error) = run::notify_systemd(state) {
        say!("adit: cannot notify the service manager: {error}");
    }
}
