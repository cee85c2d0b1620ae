//! Host memory cache (HMC): maps the function's private address space to guest memory in segments. The device accesses
//! only one part of this address space, the PBLE array, which it reads on demand and does not cache.
//!
//! # Spec
//! E810 interface, section 11.

use card::frontend::snapshot::{IcmRow, IcmTable};
use card::memory::GuestMemory;
use card::memory::translate::PageTable;
use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::hmc::{
    BASE_UNIT, DirectoryEntry, ENTRY_LEN, PAGE_LEN, SEGMENT_LEN, SegmentDescriptor, SegmentEntry,
    UpdateSegments,
};
use protocol::hca::e810::rdma::index::PbleIndex;
use protocol::ids::Iova;

use super::dispatch::{Done, Outcome};

/// Number of PBLEs in a leaf of a two-level list.
const LEAF_LEN: u64 = 512;

/// Maximum number of segment entries that "Update SDs" reads from memory. The count field is four bits wide.
const MAX_MORE: usize = 15;

#[derive(Debug)]
pub(in super::super) struct Hmc {
    /// Segments, by index. "Query FPM" reports their number. The whole table is allocated up front.
    segments: Vec<Option<Segment>>,
    /// Location of the PBLE array, once software has committed it.
    pbles: Pbles,
}

/// A segment: 2 MiB of context memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    /// The segment is physically contiguous, starting at this address.
    Direct(Iova),
    /// The segment consists of pages listed in the directory page at this address.
    Paged(Iova),
}

/// Location of the PBLE array in the private address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pbles {
    /// Start of the array, in units of 512 bytes.
    pub(super) base: u32,
    pub(super) count: u32,
}

impl Hmc {
    /// Creates an address space of `segments` segments, all unmapped.
    pub(super) fn new(segments: u16) -> Self {
        Self { segments: vec![None; segments.into()], pbles: Pbles::default() }
    }

    /// Returns the size of the private address space in bytes.
    pub(super) const fn len(&self) -> u64 {
        self.segments.len() as u64 * SEGMENT_LEN
    }

    /// Executes "Update SDs".
    ///
    /// # Errors
    /// Fails if the segment index is out of range or if the entries are not in mapped memory. Earlier entries remain in
    /// effect.
    pub(super) fn update(&mut self, dma: &GuestMemory, command: &UpdateSegments) -> Outcome {
        if !command.skip_first {
            self.set(&command.first)?;
        }
        for entry in [command.second, command.third] {
            if entry.valid {
                self.set(&entry)?;
            }
        }
        let mut more = [[0; SegmentEntry::LEN]; MAX_MORE];
        let more = more.get_mut(..command.more_count.into()).unwrap_or_default();
        let at = Iova::new(command.more.get() & !0x7f);
        if !more.is_empty() {
            dma.read(at, more.as_flattened_mut())
                .map_err(|error| unreachable("segment entries at", error.iova))?;
        }
        for entry in more {
            self.set(&SegmentEntry::parse(entry))?;
        }
        Ok(Done::Plain)
    }

    fn set(&mut self, entry: &SegmentEntry) -> Result<(), CqpError> {
        let SegmentEntry { index, descriptor, .. } = *entry;
        let segment = self.segments.get_mut(usize::from(index));
        let segment = segment.ok_or(CqpError::invalid("segment descriptor", index.into()))?;
        let SegmentDescriptor { valid, direct, .. } = descriptor;
        let address = descriptor.address();
        *segment = valid.then_some(if direct { Segment::Direct(address) } else { Segment::Paged(address) });
        Ok(())
    }

    pub(super) const fn place_pbles(&mut self, pbles: Pbles) {
        self.pbles = pbles;
    }

    pub(super) const fn pbles(&self) -> u32 {
        self.pbles.count
    }

    /// Returns the rows for mapped segments, starting at index `from`. The row for a paged segment shows the
    /// address of the directory page.
    pub(super) fn rows(&self, from: u64) -> impl Iterator<Item = (u64, IcmRow)> {
        let segments =
            self.segments.iter().zip(0_u64..).filter_map(|(segment, place)| Some(((*segment)?, place)));
        segments.filter(move |(_, place)| *place >= from).map(|(segment, place)| {
            let (Segment::Direct(at) | Segment::Paged(at)) = segment;
            let row = IcmRow {
                table: IcmTable::All,
                start: place * SEGMENT_LEN,
                length: SEGMENT_LEN,
                bus: at.get(),
            };
            (place, row)
        })
    }

    pub(in super::super) const fn pages<'a>(&'a self, dma: &'a GuestMemory) -> Pages<'a> {
        Pages { hmc: self, dma }
    }
}

/// Page lists in context memory.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Pages<'a> {
    hmc: &'a Hmc,
    dma: &'a GuestMemory,
}

impl<'a> Pages<'a> {
    pub(in super::super) const fn dma(self) -> &'a GuestMemory {
        self.dma
    }

    /// Returns the address of page number `page` in a one-level list.
    pub(super) fn listed(self, first: PbleIndex, page: u64) -> Option<Iova> {
        Some(Iova::new(self.pble(first.checked_add(page)?)? & !(PAGE_LEN - 1)))
    }

    /// Returns the address of page number `page` in a two-level list. Each leaf of the list has 512 entries.
    pub(super) fn nested(self, first: PbleIndex, page: u64) -> Option<Iova> {
        let leaf = self.pble(first.checked_add(page / LEAF_LEN)?)?;
        self.listed(PbleIndex::new(u32::try_from(leaf).ok()?), page % LEAF_LEN)
    }

    fn pble(self, index: PbleIndex) -> Option<u64> {
        let Pbles { base, count } = self.hmc.pbles;
        if index.get() >= count {
            return None;
        }
        self.word(u64::from(base) * BASE_UNIT + u64::from(index.get()) * ENTRY_LEN)
    }

    /// Reads a 64-bit word from the private address space.
    fn word(self, address: u64) -> Option<u64> {
        let segment = usize::try_from(address / SEGMENT_LEN).ok()?;
        let within = address % SEGMENT_LEN;
        match (*self.hmc.segments.get(segment)?)? {
            Segment::Direct(first) => self.read(first, within),
            Segment::Paged(directory) => {
                let entry = self.read(directory, within / PAGE_LEN * ENTRY_LEN)?;
                let entry = DirectoryEntry::parse(&entry.to_le_bytes());
                entry.valid.then(|| self.read(entry.address(), within % PAGE_LEN))?
            }
        }
    }

    fn read(self, first: Iova, offset: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.dma.read(Iova::new(first.get().checked_add(offset)?), &mut word).ok()?;
        Some(u64::from_le_bytes(word))
    }
}

/// A page table whose entries are numbered by PBLE index.
impl PageTable for Pages<'_> {
    fn page(self, entry: u64) -> Option<Iova> {
        self.listed(PbleIndex::new(0), entry)
    }

    fn list(self, entry: u64) -> Option<u64> {
        self.pble(PbleIndex::new(0).checked_add(entry)?)
    }
}

fn unreachable(what: &'static str, at: Iova) -> CqpError {
    CqpError::new(CqpErrorCode::Unreachable, what, at.get())
}
