//! One queue pair.

pub(crate) mod attr;
