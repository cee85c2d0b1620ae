//! The DMA map: bus address ranges the client lent us, and the only place that touches them.

use protocol::ids::Iova;
use thiserror::Error;

/// A bus address range is not wholly mapped with the needed permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no {access} mapping for {len} bytes at {iova}")]
pub struct DmaError {
    /// First address asked for.
    pub iova: Iova,
    /// Bytes asked for.
    pub len: usize,
    /// "read" or "write".
    pub access: &'static str,
}

/// Guest memory as the device reaches it. All accesses are bounds-checked; the guest may change the bytes at any
/// time, so everything is copied out once and used from the copy.
#[derive(Debug, Default)]
pub struct GuestMemory {}

impl GuestMemory {
    /// Copies bytes out of guest memory. The range may cross mappings that adjoin.
    ///
    /// # Errors
    /// Some of the range is not mapped readable; `out` may be partly written.
    pub fn read(&self, iova: Iova, out: &mut [u8]) -> Result<(), DmaError> {
        Err(DmaError { iova, len: out.len(), access: "read" })
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    /// Some of the range is not mapped writable; then nothing was written.
    pub fn write(&self, iova: Iova, data: &[u8]) -> Result<(), DmaError> {
        Err(DmaError { iova, len: data.len(), access: "write" })
    }

    /// Writes an entry whose last byte hands it to software: all bytes but the last first, then the last with
    /// release order, so that whoever sees the last sees the rest and all earlier writes. `entry` is at most one
    /// page and not empty.
    ///
    /// # Errors
    /// As `write`.
    pub fn publish(&self, iova: Iova, entry: &[u8]) -> Result<(), DmaError> {
        Err(DmaError { iova, len: entry.len(), access: "write" })
    }

    /// Replaces the naturally aligned 64-bit word at `iova` atomically: `update` gets the current value and gives
    /// the new one, or `None` to leave it. Returns the value that was there. Host byte order, which is the guest's.
    ///
    /// # Errors
    /// As `write`, or `iova` is not a multiple of 8.
    pub fn update_u64(&self, iova: Iova, update: impl FnMut(u64) -> Option<u64>) -> Result<u64, DmaError> {
        let _ = update;
        Err(DmaError { iova, len: 8, access: "write" })
    }
}
