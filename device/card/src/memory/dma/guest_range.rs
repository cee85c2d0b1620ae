//! References to guest memory that outlive the look-up of an address.

use std::sync::Arc;

use vm_memory::VolatileSlice;

use super::file::MappedFile;

/// A range of guest memory that the device may read, in one file. It keeps the file mapped, but does not notice when
/// the client unmaps the range or software revokes access to it.
#[derive(Clone, Debug)]
pub struct GuestRange {
    file: Arc<MappedFile>,
    offset: u64,
    len: usize,
}

impl GuestRange {
    pub(super) fn new(file: Arc<MappedFile>, offset: u64, len: usize) -> Self {
        Self { file, offset, len }
    }

    /// Returns the bytes, or `None` if a page of the file has been lost.
    pub(crate) fn bytes(&self) -> Option<VolatileSlice<'_>> {
        if self.is_lost() { None } else { self.file.slice(self.offset, self.len) }
    }

    /// Returns whether a page of the file has been lost. Bytes copied before this call may then be zeros.
    pub(crate) fn is_lost(&self) -> bool {
        self.file.is_lost()
    }
}
