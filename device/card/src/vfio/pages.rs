//! BAR pages mapped by the client. Stores to them do not generate messages; the device polls the pages instead.
//!
//! Since the guest may change the pages at any time, each word is read once and only the copy is used.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{MmapRegion, VolatileMemory as _};

use crate::shared_memory;

/// Name of the memory in `/proc/PID/maps`.
const NAME: &str = "hcad-doorbells";

/// A BAR as memory shared with the client.
#[derive(Debug)]
pub struct SharedPages {
    file: Arc<OwnedFd>,
    region: MmapRegion,
}

impl SharedPages {
    /// Creates pages with `len` zero bytes in total. Memory is allocated only for pages that are touched.
    ///
    /// # Errors
    /// Fails if the process has reached its descriptor limit or if the host cannot map the memory.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = shared_memory::make(NAME, len)?;
        let region = shared_memory::map(file.try_clone()?, len)?;
        Ok(Self { file: Arc::new(file), region })
    }

    /// Returns the file for the client to map.
    pub fn file(&self) -> Arc<OwnedFd> {
        self.file.clone()
    }

    /// Replaces the eight bytes at `offset`, which must be a multiple of eight, with zeros. Returns the old bytes, or
    /// `None` if they were zero or the offset is invalid.
    ///
    /// Reads of guest memory after this call see all writes that software made before it stored the returned bytes.
    pub fn take(&self, offset: u64) -> Option<[u8; 8]> {
        // Load first so that the cache line stays with the guest's CPU while the word is zero.
        let word = self.word(offset).filter(|word| word.load(Ordering::Relaxed) != 0)?;
        Some(word.swap(0, Ordering::AcqRel)).filter(|word| *word != 0).map(u64::to_ne_bytes)
    }

    /// Returns whether a nonzero word has been stored at `offset`.
    pub fn has(&self, offset: u64) -> bool {
        self.word(offset).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.region.get_atomic_ref(usize::try_from(offset).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes as _;

    use super::*;

    fn mapped(pages: &SharedPages, len: usize) -> MmapRegion {
        shared_memory::map(pages.file().try_clone().unwrap(), len).unwrap()
    }

    #[test]
    fn stored_word_is_taken_once() {
        let pages = SharedPages::new(8192).unwrap();
        let client = mapped(&pages, 8192);
        assert_eq!(pages.take(0x1010), None);
        client.as_volatile_slice().write_slice(&[1, 2, 3, 4, 5, 6, 7, 8], 0x1010).unwrap();
        assert_eq!(pages.take(0x1018), None);
        assert!(pages.has(0x1010) && !pages.has(0x1018));
        assert_eq!(pages.take(0x1010), Some([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(pages.take(0x1010), None);
        client.as_volatile_slice().write_slice(&[9], 0x1017).unwrap();
        assert_eq!(
            pages.take(0x1010),
            Some([0, 0, 0, 0, 0, 0, 0, 9]),
            "a partly written word is also returned"
        );
    }

    #[test]
    fn no_doorbell_is_found_at_invalid_offsets() {
        let pages = SharedPages::new(4096).unwrap();
        for offset in [4096, 4089, 12, u64::MAX] {
            assert!(!pages.has(offset) && pages.take(offset).is_none(), "{offset:#x}");
        }
    }
}
