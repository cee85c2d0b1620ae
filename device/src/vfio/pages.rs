//! Pages of a BAR that the client maps: what is stored there makes no message, and is found by whoever looks.
//!
//! What is in them is the guest's and may change at any time: a word is taken out once, and used from the copy.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{MmapRegion, VolatileMemory as _};

use crate::shared_memory;

/// What the memory is called in `/proc/PID/maps`.
const NAME: &str = "hcad-doorbells";

/// A BAR as memory that is shared with the client.
#[derive(Debug)]
pub struct SharedPages {
    file: Arc<OwnedFd>,
    region: MmapRegion,
}

impl SharedPages {
    /// `len` bytes of zeros, of which the host has none until they are touched.
    ///
    /// # Errors
    /// The host refuses a descriptor or the mapping.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = shared_memory::make(NAME, len)?;
        let region = shared_memory::map(file.try_clone()?, len)?;
        Ok(Self { file: Arc::new(file), region })
    }

    /// For the client to map.
    pub fn file(&self) -> Arc<OwnedFd> {
        self.file.clone()
    }

    /// Takes the eight bytes out that were stored at a multiple of eight, and leaves zeros. `None`: there is nothing new, or
    /// no such place.
    ///
    /// What software wrote to memory before it stored the word is visible to reads that come after.
    pub fn take(&self, offset: u64) -> Option<[u8; 8]> {
        // Only looked at as long as it is zero: its cache line stays with the processor that stores there.
        let word = self.word(offset).filter(|word| word.load(Ordering::Relaxed) != 0)?;
        Some(word.swap(0, Ordering::AcqRel)).filter(|word| *word != 0).map(u64::to_ne_bytes)
    }

    /// Whether there is something to take.
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

    /// The pages as a client maps them.
    fn mapped(pages: &SharedPages, len: usize) -> MmapRegion {
        shared_memory::map(pages.file().try_clone().unwrap(), len).unwrap()
    }

    #[test]
    fn what_the_client_stores_is_taken_once() {
        let pages = SharedPages::new(8192).unwrap();
        let theirs = mapped(&pages, 8192);
        assert_eq!(pages.take(0x1010), None);
        theirs.as_volatile_slice().write_slice(&[1, 2, 3, 4, 5, 6, 7, 8], 0x1010).unwrap();
        assert_eq!(pages.take(0x1018), None);
        assert!(pages.has(0x1010) && !pages.has(0x1018));
        assert_eq!(pages.take(0x1010), Some([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(pages.take(0x1010), None);
        theirs.as_volatile_slice().write_slice(&[9], 0x1017).unwrap();
        assert_eq!(pages.take(0x1010), Some([0, 0, 0, 0, 0, 0, 0, 9]), "half a doorbell, or less");
    }

    #[test]
    fn there_is_nothing_beyond_them_and_between_words() {
        let pages = SharedPages::new(4096).unwrap();
        for offset in [4096, 4089, 12, u64::MAX] {
            assert!(!pages.has(offset) && pages.take(offset).is_none(), "{offset:#x}");
        }
    }
}
