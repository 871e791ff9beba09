//! A line of the listing.

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ApiLine {
    /// What it is sorted by.
    pub(super) path: String,
    /// An implementation of a trait stands behind what it is for.
    pub(super) is_implementation: bool,
    pub(super) text: String,
    /// The types and traits in it that users of the library cannot depend on.
    pub(super) leaks: Vec<Leak>,
}

/// A type or trait in a public signature that is neither public in this library nor std's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leak {
    /// Its own path.
    pub(super) name: String,
    /// Its crate; `None`: this library's, but it is visible nowhere.
    pub(super) of: Option<String>,
}
