//! Memory keys: their contexts, translation lists and regions. Work requests can change a key if its context permits
//! changes.
//!
//! # Spec
//! mlx5 interface, sections 5.3 and 13.

use card::memory::GuestMemory;
use card::memory::key_op::WindowKind;
use card::memory::keys::{Allocated, Generation, KeyTable, Purpose};
use card::memory::region::{EntryLen, Kind, MemoryRegion, Origin, PageShift, Translation};
use card::memory::translate::{KeyRange, PageTable, RegionAccess};
use card::sparse::TableFull;
use engine::{AccessError, Initiator, Rights};
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, MkeyContext, Mtt, UNIT};
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::hca::mlx5::user_memory::UmemPlace;
use protocol::ids::{Iova, Lkey, MkeyIndex, Pdn, Rkey, Va};

use super::buffer::PageBudget;
use super::check::{Check, Rejection};
use super::limits::first;
use super::numbered::Numbered;
use super::translation_list::{TranslationList, UNIT_PAGES};
use super::umem::Part;
use super::uses::{Object, Used};

/// The high bits of a page table entry number are the index of a key. The low `LIST_BITS` bits are a position in the
/// key's translation list. The page budget limits each list to far fewer than `1 << LIST_BITS` entries.
const LIST_BITS: u32 = 32;

#[derive(Debug)]
pub struct Mkey {
    /// Context as the driver sees it.
    pub context: MkeyContext,
    list: TranslationList,
    /// Low byte that the key had when it was last valid. Strict mode uses it to detect reuse.
    pub last_valid: Option<u8>,
    /// Place of the region if it is in a user memory.
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

#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Selects the checks to make and the fields to change.
    pub control: UmrControl,
    /// New values of the fields to change.
    pub context: MkeyContext,
    /// New entries for a part of the translation list. `None` keeps the list.
    pub list: Option<&'a [u8]>,
    /// Whether the request may change a key in any protection domain, and move the key to another domain.
    pub any_pd: bool,
    /// Whether the request may map guest pages. Otherwise it can only invalidate a key with a page list.
    pub maps_pages: bool,
}

/// All memory keys. The upper 24 bits of a key are its index, and the driver chooses the low byte.
#[derive(Debug)]
pub struct Mkeys {
    objects: Numbered<Mkey>,
    keys: KeyTable,
    /// Generation of the translation lists, for the translation cache. The generation never changes, because every
    /// change to a list also changes the key table. That change alone invalidates the cached translations.
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

    /// Creates a key.
    ///
    /// # Errors
    /// Fails if the context is not supported or the table is full.
    pub fn insert(&mut self, context: MkeyContext, pages: Box<[Iova]>) -> Result<MkeyIndex, Rejection> {
        let index = MkeyIndex::new(self.objects.next().ok_or_else(|| self.full())?);
        let region = created_region(index, &context, &pages)?;
        let list = match TranslationList::new(context.access_mode()) {
            TranslationList::Pages(_) => TranslationList::Pages(pages.into_vec()),
            ranges @ TranslationList::Ranges(_) => ranges,
        };
        let last_valid = (!context.free).then_some(context.key);
        self.add(index, region, Mkey { context, list, last_valid, umem: None })
    }

    /// Creates a key for a region in a user memory.
    ///
    /// # Errors
    /// Fails if the context is not that of such a key or the table is full.
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

    /// Adds a key whose index is the next one of the table.
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

    /// Makes a key valid for `region`. If `region` is `None`, the key exists but permits no access.
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

    /// Applies the change that a work request makes to a key. Returns the key's old and new protection domains.
    ///
    /// # Errors
    /// Fails if any check fails, in which case the key is unchanged.
    pub fn change(
        &mut self,
        initiator: Initiator,
        key: u32,
        change: &Change<'_>,
        budget: &mut PageBudget,
    ) -> Result<[Pdn; 2], AccessError> {
        let Change { control, context, list, any_pd, maps_pages } = change;
        let index = MkeyIndex::of(key);
        let mkey = self.objects.get_mut(index.get()).ok_or(AccessError::Key)?;
        let old = mkey.context;
        if !old.umr_enabled {
            return Err(AccessError::Kind);
        }
        // Section 20, M-5: the driver can require that the key is in use, or that the key is free.
        if control.check_used && old.free {
            return Err(AccessError::Invalid);
        }
        if control.check_free && !old.free {
            return Err(AccessError::Valid);
        }
        if control.check_qpn && old.qpn != initiator.qpn {
            return Err(AccessError::Qp);
        }
        let new = old.updated(control.mask, context);
        if !any_pd && (old.pd != initiator.pd || new.pd != initiator.pd) {
            return Err(AccessError::Pd);
        }
        // Section 23.3: a user program could otherwise map any guest page.
        let is_invalidation = control.mask == MkeyMask::FREE && new.free && list.is_none_or(<[u8]>::is_empty);
        let has_ranges = matches!(old.access_mode(), Some(AccessMode::Ranges | AccessMode::FixedRanges));
        if !maps_pages && !has_ranges && !is_invalidation {
            return Err(AccessError::Right);
        }
        let region = changed_region(index, &new)?;
        if let Some(list) = list {
            mkey.list.write(control.offset(), list, old.translation_units, budget)?;
        }
        mkey.context = new;
        if !new.free {
            mkey.last_valid = Some(new.key);
        }
        // This cannot fail, because the key is already in the table.
        self.set(index, &new, region).map_err(|_| AccessError::Key)?;
        Ok([old.pd, new.pd])
    }

    /// Invalidates a key on behalf of a peer. The key becomes free.
    ///
    /// # Errors
    /// Section 13.3: fails if the key is unknown, does not permit remote invalidation, is already free, or belongs to
    /// another QP or protection domain. In each case, the key is unchanged.
    pub fn remote_invalidate(&mut self, initiator: Initiator, key: Rkey) -> Result<(), AccessError> {
        let index = MkeyIndex::of(key.get());
        let mkey = self.objects.get_mut(index.get()).ok_or(AccessError::Key)?;
        let context = &mut mkey.context;
        if index.key(context.key) != key.get() {
            return Err(AccessError::Key);
        }
        if context.free {
            return Err(AccessError::Invalid);
        }
        if context.pd != initiator.pd {
            return Err(AccessError::Pd);
        }
        if context.qpn != ANY_QP && context.qpn != initiator.qpn {
            return Err(AccessError::Qp);
        }
        if !context.remote_invalidate {
            return Err(AccessError::Right);
        }
        context.free = true;
        let context = *context;
        self.set(index, &context, None).map_err(|_| AccessError::Key)
    }

    pub fn pd_of(&self, key: Lkey) -> Option<Pdn> {
        self.keys.find(key).ok().map(|region| region.pd)
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

/// Reads the page addresses from a list in the CREATE_MKEY input.
///
/// # Errors
/// Fails if the list is shorter than `units` units of 16 bytes.
pub fn list(units: u32, bytes: &[u8]) -> Result<Box<[Iova]>, Rejection> {
    let len = usize::try_from(units).ok().and_then(|units| units.checked_mul(UNIT));
    let bytes = len.and_then(|len| bytes.get(..len)).ok_or_else(|| Check::MkeyList.rejects(units))?;
    let (entries, _) = bytes.as_chunks::<{ Mtt::LEN }>();
    Ok(entries.iter().map(|entry| Mtt::parse(*entry).page).collect())
}

/// Returns the number of bytes that a key's translation list can cover.
fn capacity(context: &MkeyContext) -> u64 {
    let pages = u64::from(context.translation_units) * UNIT_PAGES as u64;
    pages.checked_shl(context.log_page.into()).unwrap_or(u64::MAX)
}

/// Returns the region of a new key, or `None` if the key permits no access until a UMR makes it valid.
fn created_region(
    index: MkeyIndex,
    context: &MkeyContext,
    pages: &[Iova],
) -> Result<Option<MemoryRegion>, Rejection> {
    let mode = context.access_mode().ok_or_else(|| unsupported(context))?;
    if context.free {
        return match mode {
            AccessMode::Pages | AccessMode::Ranges | AccessMode::FixedRanges => Ok(None),
            _ => Err(unsupported(context)),
        };
    }
    let translation = match mode {
        AccessMode::Physical => Translation::Contiguous { bus: Iova::new(context.start.get()) },
        AccessMode::Pages => {
            let size = || Check::MkeyPageSize.rejects(context.log_page);
            let page_shift = PageShift::new(context.log_page).ok_or_else(size)?;
            // Section 13.2: the first byte of the region has the same page offset as the start address.
            let offset = context.start.get() & page_shift.offset_mask();
            let covered = (pages.len() as u64).checked_shl(page_shift.get().into()).unwrap_or(u64::MAX);
            if context.length64 || offset.checked_add(context.length).is_none_or(|end| end > covered) {
                return Err(Check::MkeyRange.rejects(context.length));
            }
            Translation::paged(page_shift, first_entry(index), context.start)
        }
        _ => return Err(unsupported(context)),
    };
    if context.length64 {
        let key = Lkey::new(index.key(context.key));
        return Ok(Some(MemoryRegion::whole_memory(key, context.pd, rights(context))));
    }
    Ok(Some(region(index, context, translation)))
}

/// Returns the region of a key after a UMR, or `None` if the key is free. The region may be longer than the translation
/// list. Accesses past the end of the list fail.
fn changed_region(index: MkeyIndex, context: &MkeyContext) -> Result<Option<MemoryRegion>, AccessError> {
    if context.free {
        return Ok(None);
    }
    let page_shift = || PageShift::new(context.log_page).ok_or(AccessError::Kind);
    let ranges = |entry_len| Translation::Indirect {
        entry_len,
        count: context.translation_units,
        first_entry: first_entry(index),
        offset: 0,
    };
    let translation = match context.access_mode() {
        _ if context.length64 => return Err(AccessError::Bounds),
        Some(AccessMode::Pages) => Translation::paged(page_shift()?, first_entry(index), context.start),
        Some(AccessMode::Ranges) => ranges(EntryLen::PerEntry),
        Some(AccessMode::FixedRanges) => ranges(EntryLen::Fixed(page_shift()?)),
        _ => return Err(AccessError::Kind),
    };
    Ok(Some(region(index, context, translation)))
}

fn first_entry(index: MkeyIndex) -> u64 {
    u64::from(index.get()) << LIST_BITS
}

fn region(index: MkeyIndex, context: &MkeyContext, translation: Translation) -> MemoryRegion {
    // A key that belongs to one QP is a type 2 window. Each access also checks the parent key, which is in the window's
    // list. The device does not count the windows of a parent, so `parent` is the window's own index.
    let kind = if context.qpn == ANY_QP {
        Kind::Registered
    } else {
        Kind::Window { kind: WindowKind::Type2B, owner: Some(context.qpn), parent: index.get() }
    };
    MemoryRegion {
        key: Lkey::new(index.key(context.key)),
        pd: context.pd,
        start: context.start,
        len: context.length,
        origin: Origin::Zero,
        rights: rights(context),
        translation,
        kind,
    }
}

fn unsupported(context: &MkeyContext) -> Rejection {
    Check::MkeyMode.rejects(context.mode_high << 2 | context.mode_low)
}

fn rights(context: &MkeyContext) -> Rights {
    let mut rights = Rights::BIND;
    rights.set(Rights::LOCAL_WRITE, context.local_write);
    rights.set(Rights::REMOTE_WRITE, context.remote_write);
    rights.set(Rights::REMOTE_READ, context.remote_read);
    rights.set(Rights::REMOTE_ATOMIC, context.atomic);
    rights
}

#[cfg(test)]
mod tests {
    use card::memory::testing::guest_memory;
    use card::memory::translate::AccessTarget;
    use engine::{Access, AccessError, Initiator};
    use protocol::hca::mlx5::mkey::ANY_QP;
    use protocol::ids::{Pdn, Qpn};

    use super::*;

    fn context(mode: AccessMode) -> MkeyContext {
        let context = MkeyContext { qpn: ANY_QP, key: 1, pd: Pdn::new(1), ..MkeyContext::default() };
        MkeyContext { local_read: true, local_write: true, ..context.with_access_mode(mode) }
    }

    fn at(pd: u32, key: u32, va: u64) -> AccessTarget {
        let initiator = Initiator { pd: Pdn::new(pd), qpn: Qpn::new(0x80), reserved_lkey: false };
        AccessTarget::address(initiator, Lkey::new(key), Va::new(va))
    }

    /// The key is the first one that `ib_mad` creates in golden trace ib-2.
    #[test]
    fn physical_mkey_addresses_guest_memory_directly() {
        let dma = guest_memory(0x4000, 1);
        let mut keys = Mkeys::new(18);
        let physical = MkeyContext { length64: true, ..context(AccessMode::Physical) };
        let index = keys.insert(physical, Box::default()).unwrap();
        assert_eq!(index.key(physical.key), 0x801);
        let mut bytes = [9; 4];
        let access = keys.access(&dma);
        access.read(at(1, 0x801, 0x4100), &mut bytes, Access::LocalRead).unwrap();
        assert_eq!(bytes, [0; 4]);
        let denied = |target| access.check(target, 4, Access::LocalRead);
        assert_eq!(denied(at(2, 0x801, 0x4100)), Err(AccessError::Pd));
        assert_eq!(denied(at(1, 0x802, 0x4100)), Err(AccessError::Key));
        assert_eq!(access.check(at(1, 0x801, 0), 4, Access::RemoteRead), Err(AccessError::Right));
        assert!(keys.remove(index).is_some() && keys.remove(index).is_none());
        assert_eq!(keys.access(&dma).check(at(1, 0x801, 0), 4, Access::LocalRead), Err(AccessError::Key));
    }

    #[test]
    fn mkey_translates_through_its_page_list() {
        let dma = guest_memory(0x4000, 4);
        let pages = [0x7000_u64 | 3, 0x4000 | 3].map(u64::to_be_bytes).concat();
        let mut keys = Mkeys::new(18);
        let paged = MkeyContext {
            start: Va::new(0x1_0f00),
            length: 0x1000,
            log_page: 12,
            ..context(AccessMode::Pages)
        };
        let index = keys.insert(paged, list(1, &pages).unwrap()).unwrap();
        keys.insert(MkeyContext { pd: Pdn::new(2), ..paged }, list(1, &pages).unwrap()).unwrap();
        let key = index.key(paged.key);
        keys.access(&dma).write(at(1, key, 0x1_0ffe), &[1, 2, 3], Access::LocalWrite).unwrap();
        let mut ends = [[0; 2]; 2];
        dma.read(Iova::new(0x7ffe), &mut ends[0]).unwrap();
        dma.read(Iova::new(0x4000), &mut ends[1]).unwrap();
        assert_eq!(ends, [[1, 2], [3, 0]]);
        let beyond = keys.access(&dma).check(at(1, key, 0x1_1eff), 2, Access::LocalRead);
        assert_eq!(beyond, Err(AccessError::Bounds));
    }

    #[test]
    fn free_key_permits_no_access() {
        let dma = guest_memory(0, 1);
        let mut keys = Mkeys::new(18);
        for mode in [AccessMode::Pages, AccessMode::Ranges, AccessMode::FixedRanges] {
            let free = MkeyContext { free: true, umr_enabled: true, log_page: 12, ..context(mode) };
            let index = keys.insert(free, Box::default()).unwrap();
            let key = index.key(free.key);
            let checked = keys.access(&dma).check(at(1, key, 0), 1, Access::LocalRead);
            assert_eq!(checked, Err(AccessError::Invalid));
            assert_eq!(keys.remove(index).map(|mkey| mkey.context), Some(free));
        }
    }

    #[test]
    fn rejects_invalid_mkey_contexts() {
        let mut keys = Mkeys::new(18);
        let mut check = |context| keys.insert(context, Box::default()).unwrap_err().check;
        assert_eq!(check(context(AccessMode::DeviceMemory)), Check::MkeyMode);
        assert_eq!(check(context(AccessMode::Ranges)), Check::MkeyMode, "not free");
        assert_eq!(check(MkeyContext { free: true, ..context(AccessMode::Physical) }), Check::MkeyMode);
        assert_eq!(check(context(AccessMode::Pages)), Check::MkeyPageSize);
        let long = MkeyContext { log_page: 12, length: u64::MAX, ..context(AccessMode::Pages) };
        assert_eq!(check(long), Check::MkeyRange);
        assert_eq!(check(MkeyContext { length: 1, ..long }), Check::MkeyRange);
        assert_eq!(list(2, &[0; 31]).unwrap_err().check, Check::MkeyList);
        assert_eq!(list(u32::MAX, &[]).unwrap_err().check, Check::MkeyList);
    }
}
