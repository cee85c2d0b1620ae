use card::memory::testing::guest_memory;
use card::memory::translate::AccessTarget;
use engine::{Access, AccessError, Initiator};
use protocol::hca::mlx5::mkey::{ANY_QP, Klm};
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

/// The key in this test is the first one that `ib_mad` creates in golden trace ib-2.
#[test]
fn physical_mkey_addresses_guest_memory_directly() {
    let dma = guest_memory(0x4000, 1);
    let mut keys = Mkeys::new(18);
    let physical = MkeyContext { length64: true, ..context(AccessMode::Physical) };
    let index = keys.insert(physical, &[]).unwrap();
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
    let paged =
        MkeyContext { start: Va::new(0x1_0f00), length: 0x1000, log_page: 12, ..context(AccessMode::Pages) };
    let index = keys.insert(paged, &pages).unwrap();
    keys.insert(MkeyContext { pd: Pdn::new(2), ..paged }, &pages).unwrap();
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
fn free_key_does_not_permit_access() {
    let dma = guest_memory(0, 1);
    let mut keys = Mkeys::new(18);
    for mode in [AccessMode::Pages, AccessMode::Ranges, AccessMode::FixedRanges] {
        let free = MkeyContext { free: true, umr_enabled: true, log_page: 12, ..context(mode) };
        let index = keys.insert(free, &[]).unwrap();
        let key = index.key(free.key);
        let checked = keys.access(&dma).check(at(1, key, 0), 1, Access::LocalRead);
        assert_eq!(checked, Err(AccessError::Invalid));
        assert_eq!(keys.remove(index).map(|mkey| mkey.context), Some(free));
    }
}

/// UCX creates keys with a list of ranges through DevX.
#[test]
fn new_mkey_translates_through_its_ranges() {
    let dma = guest_memory(0x4000, 1);
    let mut keys = Mkeys::new(18);
    let paged = MkeyContext { start: Va::new(0), length: 0x1000, log_page: 12, ..context(AccessMode::Pages) };
    let page = [0x4000_u64, 0].map(u64::to_be_bytes).concat();
    let [own, foreign] = [1, 2].map(|pd| {
        let context = MkeyContext { pd: Pdn::new(pd), ..paged };
        keys.insert(context, &page).unwrap().key(context.key)
    });
    let klm = |key, va| Klm { byte_count: 0x100, key, va: Va::new(va) }.emit();
    let list = [klm(own, 0x200), klm(foreign, 0)].concat();
    for (mode, log_page, size) in [(AccessMode::Ranges, 0, 0x100), (AccessMode::FixedRanges, 12, 0x1000)] {
        let ranges = MkeyContext {
            start: Va::new(0x7000),
            length: 2 * size,
            log_page,
            translation_units: 2,
            ..context(mode)
        };
        let key = keys.insert(ranges, &list).unwrap().key(ranges.key);
        let access = keys.access(&dma);
        access.write(at(1, key, 0x7010), &[log_page + 1], Access::LocalWrite).unwrap();
        let mut byte = [0];
        dma.read(Iova::new(0x4210), &mut byte).unwrap();
        assert_eq!(byte, [log_page + 1]);
        let mut read = |va| access.read(at(1, key, va), &mut byte, Access::LocalRead);
        assert_eq!(read(0x7000 + size), Err(AccessError::Pd));
        assert_eq!(read(0x7000 + 2 * size), Err(AccessError::Bounds));
    }
}

#[test]
fn rejects_invalid_mkey_contexts() {
    let mut keys = Mkeys::new(18);
    let mut check = |context| keys.insert(context, &[]).unwrap_err().check;
    assert_eq!(check(context(AccessMode::DeviceMemory)), Check::MkeyMode);
    assert_eq!(check(MkeyContext { free: true, ..context(AccessMode::Physical) }), Check::MkeyMode);
    assert_eq!(check(context(AccessMode::Pages)), Check::MkeyPageSize);
    assert_eq!(check(context(AccessMode::FixedRanges)), Check::MkeyPageSize);
    let whole = MkeyContext { length64: true, ..context(AccessMode::Ranges) };
    assert_eq!(check(whole), Check::MkeyRange);
    let long = MkeyContext { log_page: 12, length: u64::MAX, ..context(AccessMode::Pages) };
    assert_eq!(check(long), Check::MkeyRange);
    assert_eq!(check(MkeyContext { length: 1, ..long }), Check::MkeyRange);
    assert_eq!(list(2, &[0; 31]).unwrap_err().check, Check::MkeyList);
    assert_eq!(list(u32::MAX, &[]).unwrap_err().check, Check::MkeyList);
}
