//! Segmentation and coalescing of packets as pure functions.
