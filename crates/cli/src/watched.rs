//! All interfaces, or one, looked at again and again: for the programs that do so each second.

use std::collections::BTreeMap;
use std::sync::Arc;

use adit_ctl::status::{InterfaceJson, NoAnswer, PeerRef, WatchedPeers};
use adit_ctl::uapi::ClientError;

use crate::show;

/// What is kept of each peer, from look to look: of those that did not change, nobody is told.
pub(crate) struct Watched<T> {
    watches: BTreeMap<String, WatchedPeers<T>>,
}

/// An interface as of a look.
pub(crate) struct Look<T> {
    pub(crate) interface: InterfaceJson,
    /// What is kept of its peers. `None`: its process is older, or another implementation, and they are
    /// those of `interface`.
    pub(crate) peers: Option<Vec<Arc<T>>>,
}

impl<T> Watched<T> {
    pub(crate) fn new() -> Self {
        let watches = BTreeMap::new();
        Self { watches }
    }

    /// Asks the interface of this name, or all. What could not be asked comes second.
    ///
    /// `make` is that of [`WatchedPeers::look`], with the name of the interface.
    pub(crate) fn look(
        &mut self,
        only: Option<&str>,
        make: &mut dyn FnMut(&str, &PeerRef<'_>, Option<&T>) -> T,
    ) -> (Vec<Look<T>>, Vec<NoAnswer>) {
        let names = match only {
            Some(name) => [name.to_owned()].into(),
            None => show::names(),
        };
        self.watches.retain(|name, _| names.contains(name));
        let (mut looks, mut errors) = (Vec::new(), Vec::new());
        for name in names {
            match self.look_at(&name, &mut |peer, before| make(&name, peer, before)) {
                Ok(look) => looks.push(look),
                Err(error) if only.is_none() && error.is_unserved() => {}
                Err(error) => errors.push(show::no_answer(name, error)),
            }
        }
        (looks, errors)
    }

    fn look_at(
        &mut self,
        name: &str,
        make: &mut dyn FnMut(&PeerRef<'_>, Option<&T>) -> T,
    ) -> Result<Look<T>, ClientError> {
        let watch = self.watches.entry(name.to_owned());
        let watch = watch.or_insert_with(|| WatchedPeers::new(name));
        let (interface, peers) = match watch.look(make).map_err(ClientError::from) {
            Ok(interface) => (interface, Some(watch.peers().to_vec())),
            // It would not answer otherwise, either.
            Err(error) if error.is_silence() => return Err(error),
            Err(_) => (show::interface_status(name)?, None),
        };
        Ok(Look { interface, peers })
    }
}
