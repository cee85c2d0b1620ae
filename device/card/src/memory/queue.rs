//! Access to guest queue memory.

use engine::{Access, AccessError};
use protocol::ids::{Lkey, Pdn};

use super::translate::{AccessTarget, PageTable, RegionAccess};

/// Access to queues by key. Offsets are relative to the region's first byte, regardless of the region's start address.
///
/// Every call checks the key, the PD and the bounds, and splits accesses at page boundaries.
pub trait QueueMemory {
    /// Copies bytes out of a region.
    ///
    /// # Errors
    /// Returns the error of the first check that fails. On error, `out` may have been partly written.
    fn read(&self, pd: Pdn, key: Lkey, offset: u64, out: &mut [u8]) -> Result<(), AccessError>;

    /// Modifies bytes of a work queue. Does not require write permission, since software registers work queues for
    /// local reads only.
    ///
    /// # Errors
    /// Fails as `read` does.
    fn patch(&self, pd: Pdn, key: Lkey, offset: u64, data: &[u8]) -> Result<(), AccessError>;

    /// Writes an entry to a completion or event queue, storing the entry's last byte last. A reader that sees
    /// the last byte also sees the rest of the entry and all earlier writes. Requires local write permission.
    ///
    /// # Errors
    /// Fails as `read` does. On error, the last byte has not been written.
    fn publish(&self, pd: Pdn, key: Lkey, offset: u64, entry: &[u8]) -> Result<(), AccessError>;

    /// Returns the length of the key's region, or `None` if the key is not valid.
    fn region_len(&self, key: Lkey) -> Option<u64>;

    /// Returns the start address of the key's region, or `None` if the key is not valid.
    fn region_start(&self, key: Lkey) -> Option<u64>;
}

impl<P: PageTable> QueueMemory for RegionAccess<'_, P> {
    fn read(&self, pd: Pdn, key: Lkey, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        RegionAccess::read(self, AccessTarget::offset(pd, key, offset), out, Access::LocalRead)
    }

    fn patch(&self, pd: Pdn, key: Lkey, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        RegionAccess::write(self, AccessTarget::offset(pd, key, offset), data, Access::LocalRead)
    }

    fn publish(&self, pd: Pdn, key: Lkey, offset: u64, entry: &[u8]) -> Result<(), AccessError> {
        RegionAccess::publish(self, AccessTarget::offset(pd, key, offset), entry)
    }

    fn region_len(&self, key: Lkey) -> Option<u64> {
        self.keys.find(key).ok().map(|region| region.len)
    }

    fn region_start(&self, key: Lkey) -> Option<u64> {
        self.keys.find(key).ok().map(|region| region.start.get())
    }
}

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
pub mod testing {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A modification by software and the number of reads after which it takes place.
    type Later = (u32, Box<dyn Fn(&mut [u8])>);

    /// A region whose bytes are stored in a vector.
    pub struct Region {
        pub pd: Pdn,
        pub key: Lkey,
        pub start: u64,
        pub bytes: RefCell<Vec<u8>>,
        /// Makes `patch` and `publish` fail.
        pub read_only: Cell<bool>,
        pub later: RefCell<Option<Later>>,
    }

    impl Region {
        pub fn new(len: usize) -> Self {
            Self {
                pd: Pdn::new(3),
                key: Lkey::new(0x21),
                start: 0,
                bytes: RefCell::new(vec![0; len]),
                read_only: Cell::new(false),
                later: RefCell::new(None),
            }
        }

        pub fn put(&self, offset: usize, bytes: &[u8]) {
            self.bytes.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }

        pub fn get<const N: usize>(&self, offset: usize) -> [u8; N] {
            self.bytes.borrow()[offset..offset + N].try_into().unwrap()
        }

        fn find(&self, pd: Pdn, key: Lkey, offset: u64, len: usize) -> Result<usize, AccessError> {
            if key != self.key {
                return Err(AccessError::Key);
            }
            if pd != self.pd {
                return Err(AccessError::Pd);
            }
            let offset = usize::try_from(offset).map_err(|_| AccessError::Bounds)?;
            let end = offset.checked_add(len).ok_or(AccessError::Bounds)?;
            if end > self.bytes.borrow().len() { Err(AccessError::Bounds) } else { Ok(offset) }
        }

        fn store(&self, pd: Pdn, key: Lkey, offset: u64, data: &[u8]) -> Result<(), AccessError> {
            let at = self.find(pd, key, offset, data.len())?;
            if self.read_only.get() {
                return Err(AccessError::Right);
            }
            self.put(at, data);
            Ok(())
        }
    }

    impl QueueMemory for Region {
        fn read(&self, pd: Pdn, key: Lkey, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
            let at = self.find(pd, key, offset, out.len())?;
            out.copy_from_slice(&self.bytes.borrow()[at..at + out.len()]);
            let mut later = self.later.borrow_mut();
            if let Some((reads, change)) = later.as_mut() {
                *reads -= 1;
                if *reads == 0 {
                    change(&mut self.bytes.borrow_mut());
                    *later = None;
                }
            }
            Ok(())
        }

        fn patch(&self, pd: Pdn, key: Lkey, offset: u64, data: &[u8]) -> Result<(), AccessError> {
            self.store(pd, key, offset, data)
        }

        fn publish(&self, pd: Pdn, key: Lkey, offset: u64, entry: &[u8]) -> Result<(), AccessError> {
            self.store(pd, key, offset, entry)
        }

        fn region_len(&self, key: Lkey) -> Option<u64> {
            (key == self.key).then(|| self.bytes.borrow().len() as u64)
        }

        fn region_start(&self, key: Lkey) -> Option<u64> {
            (key == self.key).then_some(self.start)
        }
    }
}
