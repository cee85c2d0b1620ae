//! Seam of the queue half.

use super::device::Setup;
use super::resources::Resources;
use crate::frontend::Context;

/// Seam of the queue half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {}

/// Seam of the queue half.
#[derive(Debug)]
pub struct Doorbells;

impl Doorbells {
    /// Pages for a BAR of `bar_len` bytes.
    pub fn new(_bar_len: u64) -> Self {
        Self
    }

    /// Forgets halves of doorbells (device reset).
    pub fn reset(&mut self) {}

    /// Takes a store to BAR2.
    pub fn write(&mut self, _offset: u64, _data: &[u8]) -> Option<Rung> {
        None
    }
}

impl Resources {
    /// Obeys a doorbell.
    pub fn ring(&mut self, _: &Setup, _: &mut Context<'_>, rung: Rung) {
        match rung {}
    }
}
