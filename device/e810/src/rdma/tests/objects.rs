//! Tests for ARP entries, address handles, groups, nodes, regions and event queues, with operations from the E810
//! interface, section 16.3.

use std::net::IpAddr;

use card::memory::translate::{AccessTarget, RegionAccess};
use engine::{Access, Initiator};
use protocol::hca::e810::rdma::WQE_LEN;
use protocol::hca::e810::rdma::event_queue::{CreateAeq, CreateCeq, DestroyCeq};
use protocol::hca::e810::rdma::index::{AhIndex, ArpIndex};
use protocol::hca::e810::rdma::statistics::GatherStatistics;
use protocol::ids::{Lkey, MacAddr, Pdn, Qpn, Va};
use protocol::roce::IpAddrs;

use super::super::Rdma;
use super::*;
use crate::testing::PBLE_SEGMENT;

fn wqe(words: &[(usize, u64)]) -> Operation {
    let mut wqe = [0; WQE_LEN];
    for (offset, word) in words {
        wqe[*offset..*offset + 8].copy_from_slice(&word.to_le_bytes());
    }
    Operation::parse(&wqe).unwrap()
}

fn rdma(driver: &mut Driver) -> &Rdma {
    &driver.bus.hca.frontend_and_memory().0.state.function.rdma
}

/// Operation "0f ARP add" from section 16.3, as recorded in `irdma-probe.cqp.gz`.
const ARP_ADD: &[(usize, u64)] = &[(16, 0x02e8_1000_0001), (24, 0x8000_0c0f_0000_0001)];
/// Operation "1c AH, IPv4" from section 16.3.
const AH: &[(usize, u64)] = &[
    (0, 0x02e8_1000_0001_0000),
    (8, 0x000e_0000_0000_ffff),
    (16, 0x0003_0040_0000_0000),
    (24, 0x8800_001c_0000_0001),
    (32, 0x0a00_0002),
    (48, 0x0a00_0001),
];

#[test]
fn arp_entry_exists_until_deleted() {
    let mut driver = brought_up();
    driver.perform_well(&wqe(ARP_ADD));
    let mac = MacAddr([0x02, 0xe8, 0x10, 0, 0, 1]);
    assert_eq!(rdma(&mut driver).paths.neighbour(ArpIndex::new(1)), Some(mac));
    let delete = wqe(&[(24, 0x8000_000f_0000_0001)]);
    driver.perform_well(&delete);
    assert_eq!(rdma(&mut driver).paths.neighbour(ArpIndex::new(1)), None);
    assert_eq!(refused(&mut driver, &delete), codes(CqpErrorCode::NoObject));
}

#[test]
fn address_handle_keeps_path_until_destroyed() {
    let mut driver = brought_up();
    driver.perform_well(&wqe(AH));
    let handle = *rdma(&mut driver).paths.handle(AhIndex::new(1)).unwrap();
    assert_eq!((handle.pd, handle.arp, handle.hop_limit), (Pdn::new(0xe), ArpIndex::new(3), 64));
    assert_eq!(handle.source_mac, MacAddr([0x02, 0xe8, 0x10, 0, 0, 1]));
    let expected = IpAddrs::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    assert_eq!(handle.addresses, expected);
    assert_eq!((handle.tag, handle.loopback), (None, false));
    assert_eq!(refused(&mut driver, &wqe(AH)), codes(CqpErrorCode::Exists));
    let destroy = wqe(&[(24, 0x8000_001e_0000_0001)]);
    driver.perform_well(&destroy);
    assert_eq!(refused(&mut driver, &destroy), codes(CqpErrorCode::NoObject));
}

const GROUP_MAC: MacAddr = MacAddr([0x01, 0x00, 0x5e, 0x01, 0x02, 0x03]);

/// Address of the group's member list.
const MEMBERS: u64 = 0x90_0000;

/// Returns operation 622 from the recording `run612-bat7-dev0.cqp.gz`, with the opcode replaced by `operation`.
fn group(operation: u64) -> [(usize, u64); 5] {
    [
        (0, 0x0100_5e01_0203),
        (16, 0x0fff_0000_0001),
        (24, 0x9000_0000_0000_0001 | operation << 32),
        (32, MEMBERS),
        (48, 0xef01_0203),
    ]
}

fn member(qpn: u64) -> [u8; 8] {
    (4791 << 32 | 1 << 31 | qpn).to_le_bytes()
}

#[test]
fn group_contains_members_listed_in_its_context() {
    let mut driver = brought_up();
    driver.bus.poke(MEMBERS, &[member(5), [0; 8], member(0x3_0007), [0; 8]].concat());
    driver.perform_well(&wqe(&group(0x26)));
    let address = IpAddr::from([239, 1, 2, 3]);
    let members = rdma(&mut driver).groups.members(address, GROUP_MAC, None);
    assert_eq!(*members, [Qpn::new(5), Qpn::new(0x3_0007)]);
    assert_eq!(
        rdma(&mut driver).groups.members(address, GROUP_MAC, Some(1)),
        members,
        "a group without a VLAN accepts all VLANs"
    );
    let of_vlan = |words: [(usize, u64); 5]| words.map(|(at, word)| (at, word | u64::from(at == 24) << 59));
    driver.perform_well(&wqe(&of_vlan(group(0x27))));
    assert_eq!(rdma(&mut driver).groups.members(address, GROUP_MAC, Some(0xfff)), members);
    for other in [None, Some(1)] {
        assert!(rdma(&mut driver).groups.members(address, GROUP_MAC, other).is_empty(), "{other:?}");
    }
    driver.bus.poke(MEMBERS, &[0; 64]);
    driver.perform_well(&wqe(&group(0x27)));
    assert!(rdma(&mut driver).groups.members(address, GROUP_MAC, None).is_empty());
    driver.perform_well(&wqe(&group(0x28)));
    assert_eq!(refused(&mut driver, &wqe(&group(0x28))), codes(CqpErrorCode::NoObject));
}

/// Section 13.8: drivers choose an operation under a lock, but issue it after releasing the lock, so the operations for
/// two members can arrive in the wrong order.
#[test]
fn group_accepts_reordered_modify_operations() {
    let address = IpAddr::from([239, 1, 2, 3]);
    let mut driver = brought_up();
    let mut perform = |operation: u64, members: &[u64]| {
        let mut places = [[0; 8]; 8];
        places.iter_mut().zip(members).for_each(|(place, qpn)| *place = member(*qpn));
        driver.bus.poke(MEMBERS, &places.concat());
        driver.perform_well(&wqe(&group(operation)));
        let members = rdma(&mut driver).groups.members(address, GROUP_MAC, None);
        members.into_iter().map(|qpn| u64::from(qpn.get())).collect::<Vec<_>>()
    };
    // Two members join concurrently. The operation for the second member arrives first and lists both members. The
    // operation for the first member arrives later and lists only the first member.
    assert!(perform(0x27, &[5, 6]).is_empty());
    assert_eq!(perform(0x26, &[5]), [5, 6]);
    // Both members leave concurrently. The operation for the first member arrives last.
    assert!(perform(0x28, &[5]).is_empty());
    assert!(perform(0x27, &[6]).is_empty());
    // An unrelated member joins.
    assert_eq!(perform(0x26, &[7]), [7]);
}

/// Operations "2c nodes" from section 16.3, and the operations recorded while the driver was being unloaded.
#[test]
fn adding_leaf_node_returns_queue_set_handle() {
    let node = |word| wqe(&[(24, word), (32, 0x0001_0001_0000_0000)]);
    let mut driver = brought_up();
    assert_eq!(driver.perform_well(&node(0xc800_002c_0000_0000)), 0);
    assert_eq!(driver.perform_well(&node(0xc800_002c_0000_0001)), 0);
    assert_eq!(driver.perform_well(&node(0xa800_002c_0001_0002)), 1);
    assert_eq!(driver.perform_well(&node(0xe810_002c_0001_0002)), 0, "enabling a node returns no handle");
    assert_eq!(driver.perform_well(&node(0xa800_002c_0001_0003)), 2, "each leaf gets its own handle");
    assert_eq!(
        refused(&mut driver, &node(0xa800_002c_0002_0004)),
        codes(CqpErrorCode::NoObject),
        "a leaf cannot have children"
    );
    assert_eq!(refused(&mut driver, &node(0xa820_002c_0000_0001)), codes(CqpErrorCode::InUse));
    driver.perform_well(&node(0xa820_002c_0001_0002));
    driver.perform_well(&node(0xa820_002c_0001_0003));
    driver.perform_well(&node(0xa820_002c_0000_0001));
    driver.perform_well(&node(0xa820_002c_0000_0000));
    assert_eq!(refused(&mut driver, &node(0xa820_002c_0000_0000)), codes(CqpErrorCode::NoObject));
}

#[test]
fn rejects_duplicate_and_unknown_event_queues() {
    let mut driver = brought_up();
    let ceq = |ceq| CreateCeq { ceq, entries: 16, ring: Iova::new(0x90_0000), ..CreateCeq::default() };
    assert_eq!(refused(&mut driver, &Operation::CreateCeq(ceq(0))), codes(CqpErrorCode::Exists));
    assert_eq!(refused(&mut driver, &Operation::CreateCeq(ceq(16))), codes(CqpErrorCode::Invalid));
    driver.perform_well(&Operation::CreateCeq(ceq(15)));
    let destroy = Operation::DestroyCeq(DestroyCeq { ceq: 15 });
    driver.perform_well(&destroy);
    assert_eq!(refused(&mut driver, &destroy), codes(CqpErrorCode::NoObject));
    let none = CreateCeq { entries: 0, ..ceq(1) };
    assert_eq!(refused(&mut driver, &Operation::CreateCeq(none)), codes(CqpErrorCode::Invalid));
    let aeq = CreateAeq { entries: 16, ring: Iova::new(0x90_0000), ..CreateAeq::default() };
    assert_eq!(refused(&mut driver, &Operation::CreateAeq(aeq)), codes(CqpErrorCode::Exists));
    let destroy = Operation::DestroyAeq(Acknowledged { operand: 0 });
    driver.perform_well(&destroy);
    assert_eq!(refused(&mut driver, &destroy), codes(CqpErrorCode::NoObject));
    driver.perform_well(&Operation::CreateAeq(aeq));
}

/// The STag in the examples of section 16.3.
const STAG: u32 = 0x9132_58d1;
const DEALLOCATE: &[(usize, u64)] =
    &[(8, 0x0001_8000_0000_0000), (16, 0x9132_5800), (24, 0x8000_080d_0000_0000)];

/// Performs a local read from the region registered as [`STAG`], on behalf of a QP in protection domain `pd`.
fn read(driver: &mut Driver, pd: u32, va: u64, len: usize) -> Result<Vec<u8>, engine::AccessError> {
    let (device, dma) = driver.bus.hca.frontend_and_memory();
    let rdma = &device.state.function.rdma;
    let access = RegionAccess { keys: &rdma.regions.keys, pages: rdma.hmc.pages(dma), dma };
    let mut bytes = vec![0; len];
    let who = Initiator { pd: Pdn::new(pd), qpn: Qpn::new(3), reserved_lkey: false };
    access.read(AccessTarget::address(who, Lkey::new(STAG), Va::new(va)), &mut bytes, Access::LocalRead)?;
    Ok(bytes)
}

/// Operation "0a register MR" from section 16.3, but with a different page.
#[test]
fn contiguous_region_checks_bounds_pd_and_stag() {
    const VA: u64 = 0x55ec_bd10_3000;
    let mut driver = brought_up();
    let register = wqe(&[
        (0, VA),
        (8, 0x0001_8000_0000_1000),
        (16, STAG.into()),
        (24, 0x8803_080a_0000_0000),
        (32, 0xa0_0000),
    ]);
    driver.perform_well(&register);
    driver.bus.poke(0xa0_0ff0, &[0xab; 16]);
    assert_eq!(read(&mut driver, 6, VA + 0xff0, 16), Ok(vec![0xab; 16]));
    assert_eq!(read(&mut driver, 6, VA + 0xff1, 16), Err(engine::AccessError::Bounds));
    assert_eq!(read(&mut driver, 7, VA, 1), Err(engine::AccessError::Pd));
    assert_eq!(refused(&mut driver, &register), codes(CqpErrorCode::Exists));
    driver.perform_well(&wqe(DEALLOCATE));
    assert_eq!(read(&mut driver, 6, VA, 1), Err(engine::AccessError::Key));
    assert_eq!(refused(&mut driver, &wqe(DEALLOCATE)), codes(CqpErrorCode::NoObject));
}

#[test]
fn stag_lookup_compares_all_bits() {
    let mut driver = brought_up();
    driver.perform_well(&wqe(&[
        (8, 0x0001_8000_0000_1000),
        (16, STAG.into()),
        (24, 0x8803_080a_0000_0000),
        (32, 0xa0_0000),
    ]));
    let other = wqe(&[(16, 0x1132_5800), (24, 0x8000_080d_0000_0000)]);
    assert_eq!(refused(&mut driver, &other), codes(CqpErrorCode::NoObject));
    driver.perform_well(&wqe(DEALLOCATE));
}

#[test]
fn read_can_cross_page_boundary_of_paged_region() {
    const VA: u64 = 0x7f43_0ec0_0100;
    let mut driver = brought_up();
    // PBLEs 8 and 9 form a list of two page addresses, 0xa00000 and 0xc00000. PBLE 16 refers to this list.
    driver
        .bus
        .poke(PBLE_SEGMENT + 8 * 8, &[0xa0_0000_u64.to_le_bytes(), 0xc0_0000_u64.to_le_bytes()].concat());
    driver.bus.poke(PBLE_SEGMENT + 8 * 16, &8_u64.to_le_bytes());
    driver.bus.poke(0xa0_0ff8, &[1; 8]);
    driver.bus.poke(0xc0_0000, &[2; 8]);
    for (command, first) in [(0x8803_180a, 8), (0x882f_380a, 16)] {
        driver.perform_well(&wqe(&[
            (0, VA),
            (8, 0x0001_8000_0000_1800),
            (16, STAG.into()),
            (24, command << 32),
            (48, first),
        ]));
        let expected = [[1; 8], [2; 8]].concat();
        assert_eq!(read(&mut driver, 6, VA - 0x100 + 0xff8, 16), Ok(expected), "{command:#x}");
        driver.perform_well(&wqe(DEALLOCATE));
    }
    let reserved = wqe(&[(8, 0x1000), (16, STAG.into()), (24, 0x882f_280a << 32)]);
    assert_eq!(refused(&mut driver, &reserved), codes(CqpErrorCode::Invalid));
}

/// Operations "09 allocate STag" and "09 window (6.12)" from section 16.3.
#[test]
fn allocated_stag_is_invalid_until_registered() {
    let mut driver = brought_up();
    for (pd, index, command) in [
        (0x0001_4000_0010_1000, 0x6cdb_0e00, 0x8020_0809_0000_0000),
        (0x0001_8000_0000_0000, 0x513b_af00, 0x8000_0409_0000_0000),
    ] {
        let allocate = wqe(&[(8, pd), (16, index), (24, command)]);
        driver.perform_well(&allocate);
        assert_eq!(refused(&mut driver, &allocate), codes(CqpErrorCode::Exists));
        let key = Lkey::new(u32::try_from(index).unwrap());
        assert_eq!(rdma(&mut driver).regions.keys.find(key).err(), Some(engine::AccessError::Invalid));
        let deallocate = wqe(&[(16, index), (24, 0x8000_080d_0000_0000)]);
        driver.perform_well(&deallocate);
        assert_eq!(refused(&mut driver, &deallocate), codes(CqpErrorCode::NoObject));
    }
}

#[test]
fn gather_statistics_writes_1024_bytes() {
    let mut driver = brought_up();
    driver.bus.poke(RDMA_BUFFER, &[0xff; 1032]);
    let gather = GatherStatistics { buffer: Iova::new(RDMA_BUFFER), ..GatherStatistics::default() };
    driver.perform_well(&Operation::GatherStatistics(gather));
    assert_eq!(driver.bus.peek(RDMA_BUFFER, 1024), [0; 1024]);
    assert_eq!(driver.bus.peek(RDMA_BUFFER + 1024, 8), [0xff; 8]);
}
