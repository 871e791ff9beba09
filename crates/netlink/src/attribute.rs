//! Attributes of netlink messages: `struct nlattr` is a length with this header (2) and a kind (2);
//! the value follows, padded to a multiple of 4.

/// `NLA_F_NESTED`
const NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`: the kind without its flags.
const KIND: u16 = (1 << 14) - 1;

pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    // The kernel refuses a length that is not the value's.
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(crate) fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(NESTED | kind, attributes)
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// The attributes in a message, each with its kind and value. It ends at the first that does not
/// fit.
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) fn find(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find_map(|(found, value)| (found == kind).then_some(value))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & KIND;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}
