//! What the programs that look often read of a status: its texts stay where they are in the JSON, and
//! one peer is there at a time. With thousands of peers, that is a third of the time of a
//! `StatusReport`, and a fraction of its memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use adit_ctl::status::{self, Engine};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// An interface without its peers.
#[derive(Debug, Default)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) engine: Option<Engine>,
}

/// The fields of a `status::Peer` that are looked at.
#[derive(Deserialize)]
pub(crate) struct Peer<'a> {
    #[serde(borrow)]
    pub(crate) public_key: Text<'a>,
    pub(crate) name: Option<Text<'a>>,
    pub(crate) endpoint: Option<Text<'a>>,
    pub(crate) allowed_ips: Vec<Text<'a>>,
    pub(crate) latest_handshake: Option<u64>,
    pub(crate) state: Option<Text<'a>>,
    pub(crate) last_attempt: Option<u64>,
    pub(crate) unanswered: Option<u32>,
    pub(crate) last_failure: Option<Failure<'a>>,
    pub(crate) handshake_microseconds: Option<u64>,
    pub(crate) path_mtu: Option<u16>,
    pub(crate) transfer_rx: u64,
    pub(crate) transfer_tx: u64,
    #[serde(default)]
    pub(crate) drops: BTreeMap<Text<'a>, u64>,
}

#[derive(Deserialize)]
pub(crate) struct Failure<'a> {
    pub(crate) at: u64,
    #[serde(borrow)]
    pub(crate) reason: Text<'a>,
}

/// Within lists and options, serde borrows only what says so itself.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl Text<'_> {
    fn of(text: &str) -> Text<'_> {
        Text(Cow::Borrowed(text))
    }
}

impl<'a> From<&'a status::Peer> for Peer<'a> {
    fn from(peer: &'a status::Peer) -> Self {
        Self {
            public_key: Text::of(&peer.public_key),
            name: peer.name.as_deref().map(Text::of),
            endpoint: peer.endpoint.as_deref().map(Text::of),
            allowed_ips: peer
                .allowed_ips
                .iter()
                .map(|block| Text::of(block))
                .collect(),
            latest_handshake: peer.latest_handshake,
            state: peer.state.as_deref().map(Text::of),
            last_attempt: peer.last_attempt,
            unanswered: peer.unanswered,
            last_failure: peer.last_failure.as_ref().map(|failure| Failure {
                at: failure.at,
                reason: Text::of(&failure.reason),
            }),
            handshake_microseconds: peer.handshake_microseconds,
            path_mtu: peer.path_mtu,
            transfer_rx: peer.transfer_rx,
            transfer_tx: peer.transfer_tx,
            drops: (peer.drops.iter())
                .map(|(reason, packets)| (Text::of(reason), *packets))
                .collect(),
        }
    }
}

/// Reads a report. Each peer is given to `each`, with the name of its interface, and then forgotten.
///
/// # Errors
///
/// It is no report.
pub(crate) fn read<'a>(
    json: &'a [u8],
    each: &mut dyn FnMut(&str, Peer<'a>),
) -> serde_json::Result<Vec<Interface>> {
    let mut interfaces = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(json);
    let report = Report {
        interfaces: &mut interfaces,
        each,
    };
    report.deserialize(&mut reader)?;
    reader.end()?;
    Ok(interfaces)
}

type Each<'e, 'a> = &'e mut dyn FnMut(&str, Peer<'a>);

struct Report<'e, 'a> {
    interfaces: &'e mut Vec<Interface>,
    each: Each<'e, 'a>,
}

struct Interfaces<'e, 'a>(Report<'e, 'a>);

struct One<'e, 'a>(Each<'e, 'a>);

struct Peers<'e, 'a> {
    interface: &'e str,
    each: Each<'e, 'a>,
}

impl<'a> DeserializeSeed<'a> for Report<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Report<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a report")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { interfaces, each } = self;
        while let Some(key) = map.next_key::<Text<'_>>()? {
            match &*key.0 {
                "interfaces" => map.next_value_seed(Interfaces(Report {
                    interfaces: &mut *interfaces,
                    each: &mut *each,
                }))?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

impl<'a> DeserializeSeed<'a> for Interfaces<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'a> Visitor<'a> for Interfaces<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interfaces")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<(), A::Error> {
        let Report { interfaces, each } = self.0;
        while let Some(one) = list.next_element_seed(One(&mut *each))? {
            interfaces.push(one);
        }
        Ok(())
    }
}

impl<'a> DeserializeSeed<'a> for One<'_, 'a> {
    type Value = Interface;

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<Interface, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for One<'_, 'a> {
    type Value = Interface;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an interface")
    }

    /// The peers come last: those of a nameless interface are not looked at.
    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Interface, A::Error> {
        let mut one = Interface::default();
        while let Some(key) = map.next_key::<Text<'_>>()? {
            match &*key.0 {
                "name" => one.name = map.next_value()?,
                "engine" => one.engine = map.next_value()?,
                "peers" if !one.name.is_empty() => map.next_value_seed(Peers {
                    interface: &one.name,
                    each: &mut *self.0,
                })?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(one)
    }
}

impl<'a> DeserializeSeed<'a> for Peers<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'a> Visitor<'a> for Peers<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("peers")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(peer) = list.next_element()? {
            (self.each)(self.interface, peer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_ctl::status::StatusReport;

    #[test]
    fn peers_come_one_by_one_without_copies_of_their_texts() {
        let mut interface = status::Interface::default();
        "wg0".clone_into(&mut interface.name);
        for name in [None, Some("a \"name\"")] {
            let mut peer = status::Peer::default();
            "KEY=".clone_into(&mut peer.public_key);
            peer.name = name.map(str::to_owned);
            peer.allowed_ips = vec!["10.0.0.1/32".into(), "fd00::/64".into()];
            peer.drops = BTreeMap::from([("replayed".into(), 3)]);
            interface.peers.push(peer);
        }
        let mut other = status::Interface::default();
        "wg1".clone_into(&mut other.name);
        let report = StatusReport::new(vec![interface, other]);
        let json = serde_json::to_vec(&report).expect("JSON");
        let mut seen = Vec::new();
        let interfaces = read(&json, &mut |name, peer| seen.push((name.to_owned(), peer)));
        let names: Vec<String> = (interfaces.expect("a report").into_iter())
            .map(|one| one.name)
            .collect();
        assert_eq!(names, ["wg0", "wg1"]);
        let is_borrowed = |text: &Text<'_>| matches!(text.0, Cow::Borrowed(_));
        assert_eq!(seen.len(), 2);
        for (interface, peer) in &seen {
            assert_eq!(interface, "wg0");
            assert!(is_borrowed(&peer.public_key) && peer.allowed_ips.iter().all(is_borrowed));
            assert_eq!(peer.drops.values().sum::<u64>(), 3);
        }
        // Only what is escaped in JSON has to be copied.
        let name = seen[1].1.name.as_ref().expect("a name");
        assert_eq!(name.0, "a \"name\"");
        assert!(read(&json[..json.len() - 3], &mut |_, _| {}).is_err());
        assert!(read(b"[]", &mut |_, _| {}).is_err());
    }
}
