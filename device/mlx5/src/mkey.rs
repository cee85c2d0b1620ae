//! Memory keys: their contexts, translation lists and regions. Work requests can change a key if its context permits
//! it.
//!
//! # Spec
//! mlx5 interface, sections 5.3 and 13.

mod change;
mod list;
mod region;

use card::memory::GuestMemory;
use card::memory::keys::{Allocated, Generation, KeyTable, Purpose};
use card::memory::region::{MemoryRegion, Translation};
use card::memory::translate::{KeyRange, PageTable, Pattern, RegionAccess};
use card::sparse::TableFull;
use protocol::hca::mlx5::mkey::{AccessMode, MkeyContext, Mtt, UNIT};
use protocol::hca::mlx5::user_memory::UmemPlace;
use protocol::ids::{Iova, Lkey, MkeyIndex, Va};

pub use self::change::Change;
use self::list::TranslationList;
use self::region::{capacity, created_region, first_entry, region, unsupported};
use super::check::{Check, Rejection};
use super::limits::first;
use super::numbered::Numbered;
use super::umem::Part;
use super::uses::{Object, Used};

/// The high bits of a page table entry number are the index of a key. The low `LIST_BITS` bits are a position in the
/// key's translation list. The page budget limits each list to far fewer than `1 << LIST_BITS` entries.
const LIST_BITS: u32 = 32;

#[derive(Debug)]
pub struct Mkey {
    /// Context, as the driver sees it.
    pub context: MkeyContext,
    list: TranslationList,
    /// Low byte of the key when it was last valid. Strict mode uses it to detect reuse.
    pub last_valid: Option<u8>,
    /// Location of the region, if it is in a UMEM.
    umem: Option<UmemPlace>,
}

impl Mkey {
    pub fn pages(&self) -> usize {
        self.list.pages()
    }

    pub fn uses(&self) -> Used {
        let mut used = Used::from_slice(&[Object::Pd(self.context.pd.get())]);
        used.extend(self.umem.map(|place| Object::Umem(place.umem.get())));
        used
    }
}

/// All memory keys. The upper 24 bits of a key are its index, and the driver chooses the low byte.
#[derive(Debug)]
pub struct Mkeys {
    objects: Numbered<Mkey>,
    keys: KeyTable,
    /// Generation of the translation lists, for the translation cache. The generation never needs to change, because
    /// every change to a list also changes the key table, which invalidates the cached translations.
    generation: Generation,
}

impl Mkeys {
    /// Creates an empty table of `2^log` keys.
    pub fn new(log: u8) -> Self {
        let last = 1_u32.checked_shl(log.into()).map_or(u32::MAX, |count| count - 1);
        Self {
            objects: Numbered::new(first::MKEY, last),
            keys: KeyTable::rotated(log, 8),
            generation: Generation::fresh(),
        }
    }

    /// Creates a key with a translation list.
    ///
    /// # Errors
    /// Fails if the context is not supported or the table is full.
    pub fn insert(&mut self, context: MkeyContext, list: &[u8]) -> Result<MkeyIndex, Rejection> {
        let index = MkeyIndex::new(self.objects.next().ok_or_else(|| self.full())?);
        let list = TranslationList::parse(context.access_mode(), list);
        let region = created_region(index, &context, &list)?;
        let last_valid = (!context.free).then_some(context.key);
        self.add(index, region, Mkey { context, list, last_valid, umem: None })
    }

    /// Creates a key for a region in a UMEM.
    ///
    /// # Errors
    /// Fails if the context does not describe such a key, or the table is full.
    pub fn insert_in(
        &mut self,
        context: MkeyContext,
        place: UmemPlace,
        part: &Part<'_>,
    ) -> Result<MkeyIndex, Rejection> {
        if context.access_mode() != Some(AccessMode::Pages) || context.free || context.length64 {
            return Err(unsupported(&context));
        }
        let index = MkeyIndex::new(self.objects.next().ok_or_else(|| self.full())?);
        let translation = Translation::paged(part.page_shift, first_entry(index), Va::new(part.start));
        let region = region(index, &context, translation);
        let list = TranslationList::Pages(part.pages.to_vec());
        let mkey = Mkey { context, list, last_valid: Some(context.key), umem: Some(place) };
        self.add(index, Some(region), mkey)
    }

    fn full(&self) -> Rejection {
        Check::MkeyLimit.rejects(self.objects.count() as u64)
    }

    /// Adds a key at the table's next free index.
    fn add(
        &mut self,
        index: MkeyIndex,
        region: Option<MemoryRegion>,
        mkey: Mkey,
    ) -> Result<MkeyIndex, Rejection> {
        self.set(index, &mkey.context, region).map_err(|_| self.full())?;
        self.objects.insert(mkey);
        Ok(index)
    }

    /// Makes a key valid for `region`. If `region` is `None`, the key exists but does not permit access.
    fn set(
        &mut self,
        index: MkeyIndex,
        context: &MkeyContext,
        region: Option<MemoryRegion>,
    ) -> Result<(), TableFull> {
        match region {
            Some(region) => self.keys.insert(region).map(drop),
            None => self.keys.allocate(Allocated {
                key: Lkey::new(index.key(context.key)),
                pd: context.pd,
                purpose: Purpose::Region { most: capacity(context) },
            }),
        }
    }

    pub fn get(&self, index: MkeyIndex) -> Option<&Mkey> {
        self.objects.get(index.get())
    }

    pub fn count(&self) -> usize {
        self.objects.count()
    }

    pub fn remove(&mut self, index: MkeyIndex) -> Option<Mkey> {
        self.keys.remove(index.get());
        self.objects.remove(index.get())
    }

    /// Returns the valid regions in ascending order of their key indices, starting at `index`.
    pub fn regions_from(&self, index: u32) -> impl Iterator<Item = (u32, &MemoryRegion)> {
        self.keys.iter_from(index)
    }

    pub fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Self> {
        RegionAccess { keys: &self.keys, pages: self, dma }
    }
}

impl PageTable for &Mkeys {
    fn page(self, entry: u64) -> Option<Iova> {
        let (list, place) = self.entry(entry)?;
        list.page(place)
    }

    fn range(self, entry: u64) -> Option<KeyRange> {
        let (list, place) = self.entry(entry)?;
        list.range(place)
    }

    fn pattern(self, entry: u64) -> Option<Pattern> {
        // Only the first entry of a list can be a header.
        let (list, place) = self.entry(entry)?;
        if place == 0 { list.pattern() } else { None }
    }

    fn generation(self) -> Option<Generation> {
        Some(self.generation)
    }
}

impl Mkeys {
    fn entry(&self, entry: u64) -> Option<(&TranslationList, usize)> {
        let index = u32::try_from(entry >> LIST_BITS).ok()?;
        let place = usize::try_from(entry & ((1 << LIST_BITS) - 1)).ok()?;
        Some((&self.objects.get(index)?.list, place))
    }
}

/// Returns the translation list in the CREATE_MKEY input and the number of page addresses in the list.
///
/// # Errors
/// Fails if the input is shorter than `units` 16-byte units.
pub fn list(units: u32, bytes: &[u8]) -> Result<(&[u8], usize), Rejection> {
    let len = usize::try_from(units).ok().and_then(|units| units.checked_mul(UNIT));
    let list = len.and_then(|len| bytes.get(..len)).ok_or_else(|| Check::MkeyList.rejects(units))?;
    Ok((list, list.len() / Mtt::LEN))
}

#[cfg(test)]
mod tests;
