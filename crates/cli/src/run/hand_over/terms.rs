//! What all files of a hand-over know.

use adit_proto::HAND_OVER_FORMAT;

use crate::failure::Failure;

/// The formats that this program gives and takes.
pub(super) const FORMATS: [u32; 1] = [HAND_OVER_FORMAT];

/// The failure when a message comes that should not be there.
pub(super) fn out_of_turn() -> Failure {
    Failure::State("the other process says something out of turn".into())
}
