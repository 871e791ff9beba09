//! Ideas that `adit-lab reproduce` turns off one by one, to measure what each is worth.
//!
//! Only a build with `--cfg adit_lab_steps`, which the lab makes for itself, looks at the variable.
//! In every other build [`without`] is the constant `false`.

/// Names of ideas, between commas.
pub const VARIABLE: &str = "ADIT_LAB_WITHOUT";

/// Something that can be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idea {
    /// Several messages in one `sendmmsg` or `recvmmsg`.
    Mmsg,
    /// The Internet checksum in vectors.
    VectorChecksum,
    /// GSO packets that fit one train.
    SizedFrames,
}

impl Idea {
    #[cfg(any(test, adit_lab_steps))]
    const ALL: [Self; 3] = [Self::Mmsg, Self::VectorChecksum, Self::SizedFrames];

    /// The name of the idea in [`VARIABLE`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mmsg => "mmsg",
            Self::VectorChecksum => "vector-checksum",
            Self::SizedFrames => "sized-frames",
        }
    }
}

/// Whether this process is to do without.
#[cfg(adit_lab_steps)]
#[inline]
pub fn without(idea: Idea) -> bool {
    static OFF: std::sync::OnceLock<[bool; Idea::ALL.len()]> = std::sync::OnceLock::new();
    OFF.get_or_init(|| named_in(&std::env::var(VARIABLE).unwrap_or_default()))[idea as usize]
}

/// Whether this process is to do without: never.
#[cfg(not(adit_lab_steps))]
#[inline]
pub fn without(_: Idea) -> bool {
    false
}

#[cfg(any(test, adit_lab_steps))]
fn named_in(list: &str) -> [bool; Idea::ALL.len()] {
    Idea::ALL.map(|idea| list.split(',').any(|name| name == idea.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideas_are_turned_off_by_their_names() {
        assert_eq!(named_in(""), [false; 3]);
        assert_eq!(named_in("sized-frames,mmsg"), [true, false, true]);
        assert_eq!(named_in("vector-checksum"), [false, true, false]);
    }

    #[test]
    fn nothing_is_turned_off_in_a_build_for_users() {
        assert!(cfg!(adit_lab_steps) || Idea::ALL.into_iter().all(|idea| !without(idea)));
    }
}
