//! Translation from a key and an address to bus addresses.

use engine::{Access, AccessError, AtomicOp, Initiator, PayloadRef, Rights};
use protocol::ids::{Iova, Lkey, Pdn, Qpn, Va};
use protocol::roce::PacketPayload as _;

mod walk;

use self::walk::{Located, Walk};
use super::dma::PAGE_LEN;
use super::keys::{Generation, KeyTable, TlbEntry};
use super::region::{MemoryRegion, Origin};
use super::{GuestMemory, GuestRange};

/// A view of a device's page table. The view is cheap to copy.
pub trait PageTable: Copy {
    /// Returns the bus address of the page that an entry refers to, or `None` if the entry has never been written. The
    /// low bits of the address are undefined.
    fn page(self, entry: u64) -> Option<Iova>;

    /// Returns the first page table entry of a list of 512 pages. `entry` is the list's entry in a two-level table.
    fn list(self, entry: u64) -> Option<u64> {
        let _ = entry;
        None
    }

    /// Returns an entry in a list of keys, or `None` if the entry does not exist. If each entry has its own length, a
    /// missing entry ends the list.
    fn range(self, entry: u64) -> Option<KeyRange> {
        let _ = entry;
        None
    }

    /// Returns the header of a strided list, or `None` if the entry is not such a header.
    fn pattern(self, entry: u64) -> Option<Pattern> {
        let _ = entry;
        None
    }

    /// Returns the version of the table, or `None` if entries may change unnoticed. As long as the version stays the
    /// same, all entries (pages, lists, ranges and patterns) do too.
    fn generation(self) -> Option<Generation> {
        None
    }
}

/// An entry in a list of keys: a range of another key's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Key and first address, or `None` if the range is a hole that does not permit access.
    pub target: Option<(Lkey, Va)>,
    /// Length in bytes, possibly 0.
    pub len: u64,
    /// In a strided list, the distance in bytes between two repetitions of the range. In other lists, 0.
    pub stride: u64,
}

/// Header of a strided list of keys. The entries after the header form a pattern of ranges, which is repeated. Every
/// range advances by its own stride from one repetition to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Number of ranges in the pattern.
    pub ranges: u32,
    /// Number of bytes in one repetition, as given in the header. It can differ from the total length of the ranges.
    pub len: u64,
    pub repetitions: u64,
}

/// A range of bytes that is contiguous on the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bus address of the first byte.
    pub iova: Iova,
    /// Length in bytes, never 0.
    pub len: usize,
}

/// Start address of an access, and the initiator of the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessTarget {
    /// QP and PD on whose behalf the access is executed.
    pub initiator: Initiator,
    pub key: Lkey,
    pub va: Va,
    pub origin: Origin,
}

impl AccessTarget {
    /// Creates a target from an address, as in work requests and remote requests.
    pub const fn address(initiator: Initiator, key: Lkey, va: Va) -> Self {
        Self { initiator, key, va, origin: Origin::Zero }
    }

    /// Creates a target from an offset relative to the region's first byte, as used for queues.
    pub const fn offset(pd: Pdn, key: Lkey, offset: u64) -> Self {
        // Queues do not use memory windows, which makes the QP irrelevant.
        let initiator = Initiator { pd, qpn: Qpn::new(0), reserved_lkey: false };
        Self { initiator, key, va: Va::new(offset), origin: Origin::Start }
    }
}

/// Access to guest memory through a device's keys and page table. Every method checks the key, the PD, the access right
/// and the bounds, in that order, and splits accesses at page boundaries. An access of length 0 is not checked.
#[derive(Clone, Copy, Debug)]
pub struct RegionAccess<'a, P> {
    pub keys: &'a KeyTable,
    pub pages: P,
    pub dma: &'a GuestMemory,
}

/// The region of the reserved L_Key, which is valid in every protection domain.
///
/// # Spec
/// IBTA volume 1, section 10.6.3.4 (reserved L_Key).
static WHOLE_MEMORY: MemoryRegion =
    MemoryRegion::whole_memory(RESERVED_LKEY, Pdn::new(0), Rights::LOCAL_WRITE);
const RESERVED_LKEY: Lkey = Lkey::new(0);

impl<'a, P: PageTable> RegionAccess<'a, P> {
    /// Checks an access. Returns its region, and its offset in that region.
    fn grant(
        &self,
        at: AccessTarget,
        len: u64,
        access: Access,
    ) -> Result<(&'a MemoryRegion, u64), AccessError> {
        if at.initiator.reserved_lkey && at.key == RESERVED_LKEY && access.is_local() {
            let offset = WHOLE_MEMORY.offset(at.va, at.origin, len)?;
            return Ok((&WHOLE_MEMORY, offset));
        }
        let region = self.keys.find(at.key)?;
        Ok((region, region.grant(at.initiator, at.va, at.origin, len, access)?))
    }

    /// Returns the bus address of a non-empty range if a cached translation covers it and grants the access.
    #[inline]
    fn cached(&self, at: AccessTarget, len: usize, access: Access) -> Option<Iova> {
        // An ordinary region may have the same key as the reserved L_Key, and the cache does not distinguish them.
        if len == 0 || at.key == RESERVED_LKEY {
            return None;
        }
        let entry = self.keys.lookup(at.key, at.va)?;
        entry.find(at.initiator.pd, at.va, at.origin, len, access, self.pages.generation())
    }

    /// Checks whether `access` to `len` bytes at `at` is granted, but not whether the pages exist.
    ///
    /// # Errors
    /// Returns the error of the first check that fails.
    pub fn check(&self, at: AccessTarget, len: u64, access: Access) -> Result<(), AccessError> {
        if len == 0 {
            return Ok(());
        }
        self.grant(at, len, access).map(drop)
    }

    /// Returns the bus segments of a range.
    ///
    /// # Errors
    /// Fails as `check` does. The iterator may also yield errors, such as [`AccessError::Unmapped`].
    pub fn segments(
        &self,
        at: AccessTarget,
        len: usize,
        access: Access,
    ) -> Result<Segments<'a, P>, AccessError> {
        if len == 0 {
            let walk = Walk::new(self.keys, self.pages, at.initiator, access);
            return Ok(Segments { region: None, walk, va: at.va, is_first: true, offset: 0, left: 0 });
        }
        let (region, offset) = self.grant(at, len as u64, access)?;
        let walk = Walk::new(self.keys, self.pages, at.initiator, access);
        Ok(Segments { region: Some(region), walk, va: at.va, is_first: true, offset, left: len })
    }

    /// Copies a range into `out`.
    ///
    /// # Errors
    /// Fails as `check` does. Also fails if a page cannot be accessed, for example with [`AccessError::Unmapped`]. On
    /// error, part of `out` may have been overwritten.
    pub fn read(&self, at: AccessTarget, out: &mut [u8], access: Access) -> Result<(), AccessError> {
        if let Some(iova) = self.cached(at, out.len(), access) {
            return self.dma.read(iova, out).map_err(|_| AccessError::Unmapped);
        }
        self.read_segments(at, out, access)
    }

    #[inline(never)]
    fn read_segments(&self, at: AccessTarget, out: &mut [u8], access: Access) -> Result<(), AccessError> {
        let mut rest = out;
        for segment in self.segments(at, rest.len(), access)? {
            let segment = segment?;
            let (head, tail) = rest.split_at_mut(segment.len);
            self.dma.read(segment.iova, head).map_err(|_| AccessError::Unmapped)?;
            rest = tail;
        }
        Ok(())
    }

    /// Appends a range of `len` bytes to `out`.
    ///
    /// # Errors
    /// Fails as `read` does. On error, part of the range may have been appended.
    pub fn append(
        &self,
        at: AccessTarget,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError> {
        if let Some(iova) = self.cached(at, len, access) {
            return self.dma.append(iova, len, out).map_err(|_| AccessError::Unmapped);
        }
        self.append_segments(at, len, out, access)
    }

    #[inline(never)]
    fn append_segments(
        &self,
        at: AccessTarget,
        len: usize,
        out: &mut Vec<u8>,
        access: Access,
    ) -> Result<(), AccessError> {
        for segment in self.segments(at, len, access)? {
            let segment = segment?;
            self.dma.append(segment.iova, segment.len, out).map_err(|_| AccessError::Unmapped)?;
        }
        Ok(())
    }

    /// Appends references to a range of `len` bytes to `ranges`, as [`GuestMemory::locate`] does. Returns whether the
    /// references have been appended.
    ///
    /// # Errors
    /// Fails as `read` does. On error, references may have been appended.
    pub fn locate(
        &self,
        at: AccessTarget,
        len: usize,
        ranges: &mut Vec<GuestRange>,
        access: Access,
    ) -> Result<bool, AccessError> {
        if let Some(iova) = self.cached(at, len, access) {
            return self.dma.locate(iova, len, ranges).map_err(|_| AccessError::Unmapped);
        }
        for segment in self.segments(at, len, access)? {
            let segment = segment?;
            let located =
                self.dma.locate(segment.iova, segment.len, ranges).map_err(|_| AccessError::Unmapped)?;
            if !located {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies `data` into a range.
    ///
    /// # Errors
    /// Fails as `read` does. On error, part of the range may have been written.
    pub fn write<'d>(
        &self,
        at: AccessTarget,
        data: impl Into<PayloadRef<'d>>,
        access: Access,
    ) -> Result<(), AccessError> {
        let data = data.into();
        if let Some(iova) = self.cached(at, data.len(), access) {
            return self.store(iova, data);
        }
        self.write_segments(at, data, access)
    }

    #[inline(never)]
    fn write_segments(
        &self,
        at: AccessTarget,
        data: PayloadRef<'_>,
        access: Access,
    ) -> Result<(), AccessError> {
        let mut rest = data;
        for segment in self.segments(at, rest.len(), access)? {
            let segment = segment?;
            let (head, tail) = rest.split_at(segment.len);
            self.store(segment.iova, head)?;
            rest = tail;
        }
        Ok(())
    }

    #[inline(always)]
    fn store(&self, iova: Iova, data: PayloadRef<'_>) -> Result<(), AccessError> {
        let stored = match data {
            PayloadRef::Private(bytes) => self.dma.write(iova, bytes),
            PayloadRef::Shared(bytes) => self.dma.write_shared(iova, bytes),
        };
        stored.map_err(|_| AccessError::Unmapped)
    }

    /// Writes an entry whose last byte transfers ownership to software. The last byte becomes visible after all other
    /// bytes and all earlier writes. Requires local write permission.
    ///
    /// # Errors
    /// Fails as `write` does. On error, the last byte has not been written.
    pub fn publish(&self, at: AccessTarget, entry: &[u8]) -> Result<(), AccessError> {
        if let Some(iova) = self.cached(at, entry.len(), Access::LocalWrite)
            && is_in_one_page(iova, entry.len())
        {
            return self.dma.publish(iova, entry).map_err(|_| AccessError::Unmapped);
        }
        self.publish_segments(at, entry)
    }

    #[inline(never)]
    fn publish_segments(&self, at: AccessTarget, entry: &[u8]) -> Result<(), AccessError> {
        let segments = self.segments(at, entry.len(), Access::LocalWrite)?;
        let Some((owner, body)) = entry.split_last() else { return Ok(()) };
        let mut rest = body;
        for segment in segments {
            let segment = segment?;
            let whole = rest.len() == body.len() && segment.len == entry.len();
            if whole && is_in_one_page(segment.iova, entry.len()) {
                return self.dma.publish(segment.iova, entry).map_err(|_| AccessError::Unmapped);
            }
            let (head, tail) = rest.split_at(segment.len.min(rest.len()));
            self.dma.write(segment.iova, head).map_err(|_| AccessError::Unmapped)?;
            rest = tail;
            if head.len() < segment.len {
                let last = Iova::new(segment.iova.get() + head.len() as u64);
                self.dma.publish(last, &[*owner]).map_err(|_| AccessError::Unmapped)?;
            }
        }
        Ok(())
    }

    /// Executes `op` on the 64-bit word at `at` and returns the word's original value.
    ///
    /// # Errors
    /// Fails as `check` does for [`Access::RemoteAtomic`], or with [`AccessError::Unmapped`] if the word cannot be
    /// accessed or is misaligned on the bus.
    pub fn atomic(&self, at: AccessTarget, op: AtomicOp) -> Result<u64, AccessError> {
        let iova = match self.cached(at, 8, Access::RemoteAtomic) {
            Some(iova) => iova,
            None => match self.segments(at, 8, Access::RemoteAtomic)?.next() {
                Some(Ok(Segment { iova, len: 8 })) => iova,
                Some(Err(error)) => return Err(error),
                _ => return Err(AccessError::Unmapped),
            },
        };
        let update = |current: u64| match op {
            AtomicOp::CompareSwap { compare, swap } => (current == compare).then_some(swap),
            AtomicOp::FetchAdd { add } => Some(current.wrapping_add(add)),
        };
        self.dma.update_u64(iova, update).map_err(|_| AccessError::Unmapped)
    }
}

/// Why part of a granted range cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    pub error: AccessError,
    /// The last key looked up in a list of keys, or `None` if the range has no such list.
    pub listed_key: Option<Lkey>,
}

impl<P: PageTable> RegionAccess<'_, P> {
    /// Finds the first part of a granted range that cannot be accessed. Used to explain an access that has failed.
    ///
    /// # Errors
    /// Fails as `check` does, or with the error of that part.
    pub fn explain(&self, at: AccessTarget, len: usize, access: Access) -> Result<(), Denied> {
        let segments = self.segments(at, len, access);
        let mut segments = segments.map_err(|error| Denied { error, listed_key: None })?;
        let error = segments.find_map(Result::err);
        error.map_or(Ok(()), |error| Err(Denied { error, listed_key: segments.walk.listed_key }))
    }
}

/// Iterates over the bus segments of a granted range. Pages that are contiguous on the bus form one segment.
#[derive(Debug)]
pub struct Segments<'a, P> {
    /// Region of the range. `None` only if the range is empty.
    region: Option<&'a MemoryRegion>,
    walk: Walk<'a, P>,
    /// Address of the first byte, which selects the slot in the translation cache.
    va: Va,
    is_first: bool,
    offset: u64,
    left: usize,
}

impl<P: PageTable> Segments<'_, P> {
    /// Caches the translation around the byte at `offset`, unless it depends on tables that may change unnoticed.
    fn cache(&self, region: &MemoryRegion, offset: u64, at: &Located) {
        let Walk { keys, pages, .. } = self.walk;
        let generation = pages.generation();
        if (at.from_table && generation.is_none()) || region.key == RESERVED_LKEY {
            return;
        }
        let before = at.before.min(offset);
        let first = offset - before;
        let len = before.saturating_add(at.room).min(region.len - first);
        let bus = Iova::new(at.bus - before);
        // A cached entry grants only the rights that the key and all keys in its lists grant.
        let region = MemoryRegion { rights: region.rights.difference(at.denied), ..*region };
        if let Some(entry) = TlbEntry::of(&region, first, len, bus, generation.filter(|_| at.from_table)) {
            keys.cache(region.key, self.va, entry);
        }
    }

    fn advance(&mut self, region: &MemoryRegion, is_first: bool) -> Result<Segment, AccessError> {
        let found = self.walk.locate(region, self.offset)?;
        if is_first {
            self.cache(region, self.offset, &found);
        }
        let Located { bus: first, room, .. } = found;
        let mut len = take(room, self.left);
        while len < self.left {
            let offset = self.offset + len as u64;
            let next = first.checked_add(len as u64);
            match self.walk.locate(region, offset) {
                Ok(Located { bus, room, .. }) if Some(bus) == next => len += take(room, self.left - len),
                _ => break,
            }
        }
        self.offset += len as u64;
        self.left -= len;
        Ok(Segment { iova: Iova::new(first), len })
    }
}

fn is_in_one_page(iova: Iova, len: usize) -> bool {
    iova.get() % PAGE_LEN + len as u64 <= PAGE_LEN
}

fn take(room: u64, left: usize) -> usize {
    usize::try_from(room).unwrap_or(usize::MAX).min(left)
}

impl<P: PageTable> Iterator for Segments<'_, P> {
    type Item = Result<Segment, AccessError>;

    fn next(&mut self) -> Option<Self::Item> {
        let region = self.region.filter(|_| self.left != 0)?;
        let is_first = std::mem::take(&mut self.is_first);
        let segment = self.advance(region, is_first);
        if segment.is_err() {
            self.left = 0;
        }
        Some(segment)
    }
}

#[cfg(test)]
mod tests;
