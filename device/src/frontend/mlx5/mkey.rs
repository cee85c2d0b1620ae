//! Memory keys: contexts, translation lists, and the regions behind them.
//!
//! # Spec
//! mlx5 interface, sections 5.3 and 13.

use engine::Rights;
use protocol::hca::mlx5::mkey::{AccessMode, MkeyContext, Mtt, UNIT};
use protocol::ids::{Iova, Lkey, MkeyIndex};

use super::check::{Check, Rejection};
use super::limits::first;
use super::numbered::Numbered;
use super::uses::{Object, Used};
use crate::memory::GuestMemory;
use crate::memory::keys::{Allocated, KeyTable, Purpose};
use crate::memory::region::{Kind, MemoryRegion, Origin, PageShift, Translation};
use crate::memory::translate::{PageTable, RegionAccess};

/// Page addresses in a translation unit.
const UNIT_PAGES: u64 = (UNIT / Mtt::LEN) as u64;

/// Bits of a page table entry number below the index of its key. The longest list, a whole input, has fewer pages.
const LIST_BITS: u32 = 32;

#[derive(Debug)]
pub struct Mkey {
    /// Context as the driver sees it.
    pub context: MkeyContext,
    /// Pages of a key that was created with a list.
    pages: Box<[Iova]>,
}

impl Mkey {
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Objects that the key uses.
    pub fn uses(&self) -> Used {
        Used::from_slice(&[Object::Pd(self.context.pd.get())])
    }
}

/// All memory keys. The index of a key is in its upper 24 bits, and the driver chooses the low byte.
#[derive(Debug)]
pub struct Mkeys {
    objects: Numbered<Mkey>,
    keys: KeyTable,
}

impl Mkeys {
    /// Creates an empty table of `2^log` keys.
    pub fn new(log: u8) -> Self {
        let last = 1_u32.checked_shl(log.into()).map_or(u32::MAX, |count| count - 1);
        Self { objects: Numbered::new(first::MKEY, last), keys: KeyTable::rotated(log, 8) }
    }

    /// Creates a key.
    ///
    /// # Errors
    /// The context is not supported, or the table is full.
    pub fn insert(&mut self, context: MkeyContext, pages: Box<[Iova]>) -> Result<MkeyIndex, Rejection> {
        let full = || Check::MkeyLimit.rejects(self.objects.count() as u64);
        let number = self.objects.next().ok_or_else(full)?;
        let index = MkeyIndex::new(number);
        match region(index, &context, &pages)? {
            Some(region) => self.keys.insert(region).map(drop),
            None => self.keys.allocate(Allocated {
                key: Lkey::new(index.key(context.key)),
                pd: context.pd,
                purpose: Purpose::Region { most: capacity(&context) },
            }),
        }
        .map_err(|_| full())?;
        self.objects.insert(Mkey { context, pages });
        Ok(index)
    }

    pub fn get(&self, index: MkeyIndex) -> Option<&Mkey> {
        self.objects.get(index.get())
    }

    pub fn remove(&mut self, index: MkeyIndex) -> Option<Mkey> {
        self.keys.remove(index.get());
        self.objects.remove(index.get())
    }

    /// Valid regions from an index on, in ascending order.
    pub fn regions_from(&self, index: u32) -> impl Iterator<Item = (u32, &MemoryRegion)> {
        self.keys.iter_from(index)
    }

    /// Access to the memory behind keys.
    pub fn access<'a>(&'a self, dma: &'a GuestMemory) -> RegionAccess<'a, &'a Self> {
        RegionAccess { keys: &self.keys, pages: self, dma }
    }
}

impl PageTable for &Mkeys {
    fn page(self, entry: u64) -> Option<Iova> {
        let index = u32::try_from(entry >> LIST_BITS).ok()?;
        let place = usize::try_from(entry & ((1 << LIST_BITS) - 1)).ok()?;
        self.objects.get(index)?.pages.get(place).copied()
    }
}

/// Reads the page addresses of a list in the input of CREATE_MKEY.
///
/// # Errors
/// The list is shorter than the input says.
pub fn list(units: u32, bytes: &[u8]) -> Result<Box<[Iova]>, Rejection> {
    let len = usize::try_from(units).ok().and_then(|units| units.checked_mul(UNIT));
    let bytes = len.and_then(|len| bytes.get(..len)).ok_or_else(|| Check::MkeyList.rejects(units))?;
    let (entries, _) = bytes.as_chunks::<{ Mtt::LEN }>();
    Ok(entries.iter().map(|entry| Mtt::parse(*entry).page).collect())
}

/// Bytes that the translation list of a key can cover.
fn capacity(context: &MkeyContext) -> u64 {
    let pages = u64::from(context.translation_units) * UNIT_PAGES;
    pages.checked_shl(context.log_page.into()).unwrap_or(u64::MAX)
}

/// The region of a key; `None` for a key that permits no access until a UMR makes it valid.
fn region(
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
            // Section 13.2: the first byte has the page offset of the start address.
            let offset = context.start.get() & page_shift.offset_mask();
            let covered = (pages.len() as u64).checked_shl(page_shift.get().into()).unwrap_or(u64::MAX);
            if context.length64 || offset.checked_add(context.length).is_none_or(|end| end > covered) {
                return Err(Check::MkeyRange.rejects(context.length));
            }
            Translation::paged(page_shift, u64::from(index.get()) << LIST_BITS, context.start)
        }
        _ => return Err(unsupported(context)),
    };
    let key = Lkey::new(index.key(context.key));
    if context.length64 {
        return Ok(Some(MemoryRegion::whole_memory(key, context.pd, rights(context))));
    }
    Ok(Some(MemoryRegion {
        key,
        pd: context.pd,
        start: context.start,
        len: context.length,
        origin: Origin::Zero,
        rights: rights(context),
        translation,
        kind: Kind::Registered,
    }))
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
    use engine::{Access, AccessError, Initiator};
    use protocol::hca::mlx5::mkey::ANY_QP;
    use protocol::ids::{Pdn, Qpn, Va};

    use super::*;
    use crate::memory::testing::guest_memory;
    use crate::memory::translate::AccessTarget;

    fn context(mode: AccessMode) -> MkeyContext {
        let context = MkeyContext { qpn: ANY_QP, key: 1, pd: Pdn::new(1), ..MkeyContext::default() };
        MkeyContext { local_read: true, local_write: true, ..context.with_access_mode(mode) }
    }

    fn at(pd: u32, key: u32, va: u64) -> AccessTarget {
        let initiator = Initiator { pd: Pdn::new(pd), qpn: Qpn::new(0x80), reserved_lkey: false };
        AccessTarget::address(initiator, Lkey::new(key), Va::new(va))
    }

    /// Trace ib-2: the first key of `ib_mad`.
    #[test]
    fn physical_key_covers_guest_memory() {
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
    fn listed_pages_back_their_key() {
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
    fn free_key_permits_nothing() {
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
    fn rejects_unusable_contexts() {
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
