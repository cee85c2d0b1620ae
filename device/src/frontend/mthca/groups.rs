//! Seam of the queue half.

/// Seam of the queue half.
#[derive(Debug, Default)]
pub struct Groups(());
