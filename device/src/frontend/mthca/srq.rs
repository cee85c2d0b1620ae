//! Seam of the queue half.

/// Seam of the queue half.
#[derive(Debug)]
pub struct SharedReceiveQueue;
