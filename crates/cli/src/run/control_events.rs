//! What the server of a control socket tells.

use std::sync::Arc;

use adit_ctl::ServerEvent;
use adit_ctl::status::Events;

use super::events::{EventSender, MainEvent};
use super::level::LogLevel;
use super::watch;

/// Puts it into the log and among the events of `owner`, an interface. Changes come into the log only if
/// `logs_changes`.
pub(crate) fn listener(
    owner: String,
    level: LogLevel,
    told: Arc<Events>,
    main: EventSender,
    logs_changes: bool,
) -> impl Fn(ServerEvent<'_>) + Send + Sync + 'static {
    move |event| {
        match event {
        ServerEvent::Configured(change) => {
            if logs_changes {
                level.change(format_args!("{owner}: configuration changed: {change}"));
            }
            watch::configured(&told, change);
        }
        ServerEvent::Refused(error) => {
            level.error(format_args!("{owner}: refused a request: {error}"));
        }
        ServerEvent::Failed(error) => {
            level.error(format_args!("{owner}: cannot accept clients: {error}"));
        }
        ServerEvent::Panicked(text) => level.error(format_args!(
            "{owner}: a client was hung up, because its request met a defect of this program: {text}"
        )),
        ServerEvent::Removed => main.send(MainEvent::SocketRemoved(owner.clone())),
    }
    }
}
