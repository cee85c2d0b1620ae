//! Memory regions and windows: operations on their keys.
//!
//! # Spec
//! E810 interface, sections 10.3 and 13.7.

use protocol::hca::e810::rdma::error::{CqpError, Refusal};
use protocol::hca::e810::rdma::region::{AllocateStag, DeallocateStag, RegisterMr};

use super::dispatch::Outcome;
use super::fpm::LOG2_MAX_REGIONS;
use crate::memory::keys::KeyTable;

/// Bits of a STag below its index.
const KEY_BITS: u32 = 8;

/// Regions and windows by STag. Its low bits are the driver's, and so are those above the ones that number regions: the
/// table has as many entries as there are regions, and the whole STag has to match.
#[derive(Debug)]
pub(in super::super) struct Regions {
    /// Keys.
    pub(super) keys: KeyTable,
}

impl Default for Regions {
    fn default() -> Self {
        Self { keys: KeyTable::rotated(LOG2_MAX_REGIONS, KEY_BITS) }
    }
}

impl Regions {
    /// "Allocate STag".
    ///
    /// # Errors
    /// The key is in use, or its parameters make no sense.
    pub(super) fn allocate(&mut self, command: &AllocateStag) -> Outcome {
        Err(CqpError::new(Refusal::UnknownOperation, "STag", command.index.into()))
    }

    /// "Register MR".
    ///
    /// # Errors
    /// As [`Regions::allocate`].
    pub(super) fn register(&mut self, command: &RegisterMr) -> Outcome {
        Err(CqpError::new(Refusal::UnknownOperation, "STag", command.stag.into()))
    }

    /// "Deallocate STag".
    ///
    /// # Errors
    /// It is not allocated.
    pub(super) fn deallocate(&mut self, command: &DeallocateStag) -> Outcome {
        Err(CqpError::no_object("STag", command.index.into()))
    }
}
