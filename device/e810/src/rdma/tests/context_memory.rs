//! Tests of context memory (E810 interface, section 11).

use card::memory::translate::PageTable as _;
use protocol::hca::e810::rdma::hmc::{FpmCommand, SegmentDescriptor, SegmentEntry, UpdateSegments};
use protocol::hca::e810::rdma::index::PbleIndex;

use super::*;
use crate::testing::{PBLE_SEGMENT, segment};

/// Returns the address of the page that a PBLE refers to.
fn page(driver: &mut Driver, index: u32) -> Option<u64> {
    let (device, memory) = driver.bus.hca.frontend_and_memory();
    device.state.function.rdma.hmc.pages(memory).page(index.into()).map(Iova::get)
}

fn word(driver: &mut Driver, offset: u64) -> u64 {
    u64::from_le_bytes(driver.bus.peek(RDMA_BUFFER + offset, 8).try_into().unwrap())
}

#[test]
fn query_fpm_returns_documented_limits() {
    let mut driver = started();
    driver.start_cqp();
    let query = FpmCommand { buffer: Iova::new(RDMA_BUFFER), ..FpmCommand::default() };
    driver.perform_well(&Operation::QueryFpm(query));
    for (offset, value) in [
        (0, 319 << 32),
        (8, 1024),
        (16, 2048),
        (24, 0),
        (32, 4096),
        (40, 4096),
        (48, 16384),
        (56, 8192),
        (64, 1 << 32 | 8192),
        (72, 262_144),
        (80, 1 << 32 | 262_144),
        (88, 4096),
        (96, 8192),
        (104, 4096),
        (112, 1 << 26),
        (120, 1 << 32 | 1 << 16 | 16),
        (128, 0),
        (136, 1 << 32),
        (144, 1024),
        (152, 1),
        (160, 0),
        (168, 1 << 32),
    ] {
        assert_eq!(word(&mut driver, offset), value, "word {offset}");
    }
}

#[test]
fn committed_objects_are_contiguous_with_pbles_last() {
    let mut driver = started();
    driver.start_cqp();
    assert_eq!(driver.commit_fpm(), 1);
    // 1024 queue pairs, at one byte each, occupy two 512-byte units.
    for (offset, value) in
        [(0, 1024), (8, 2 << 32 | 2048), (16, 6 << 32), (32, 6 << 32 | 256), (48, 7 << 32 | 16384)]
    {
        assert_eq!(word(&mut driver, offset), value, "word {offset}");
    }
    assert_eq!(word(&mut driver, 112), 4096 << 32 | 1 << 18);
}

#[test]
fn rejects_objects_past_address_space() {
    let mut driver = started();
    driver.start_cqp();
    driver.bus.poke(RDMA_BUFFER + 48, &((638_u32 << 20) + 1).to_le_bytes());
    let commit = FpmCommand { len: 176, buffer: Iova::new(RDMA_BUFFER), ..FpmCommand::default() };
    assert_eq!(driver.perform(&Operation::CommitFpm(commit)).error, codes(CqpErrorCode::NoRoom));
    let short = FpmCommand { len: 168, ..commit };
    assert_eq!(driver.perform(&Operation::CommitFpm(short)).error, codes(CqpErrorCode::Invalid));
}

#[test]
fn pbles_are_read_through_current_segment_descriptors() {
    let mut driver = brought_up();
    driver.bus.poke(PBLE_SEGMENT + 8, &0x1234_5000_u64.to_le_bytes());
    assert_eq!(page(&mut driver, 1), Some(0x1234_5000));
    driver.bus.poke(PBLE_SEGMENT + 8, &0x8765_4000_u64.to_le_bytes());
    assert_eq!(page(&mut driver, 1), Some(0x8765_4000));
    assert_eq!(page(&mut driver, 1 << 18), None, "the index is past the end of the PBLE array");
    // Unmap the segment. Its PBLEs become inaccessible.
    driver.perform_well(&segment(1, SegmentDescriptor { entries: 512, ..SegmentDescriptor::default() }));
    assert_eq!(page(&mut driver, 1), None);
}

#[test]
fn paged_segment_uses_directory() {
    const DIRECTORY: u64 = 0x90_0000;
    const PAGE: u64 = 0x90_2000;
    let mut driver = brought_up();
    let paged = SegmentDescriptor { valid: true, direct: false, entries: 512, page: DIRECTORY >> 12 };
    driver.perform_well(&segment(1, paged));
    // PBLE 513 is the second entry of the second page.
    driver.bus.poke(PAGE + 8, &0x4242_0000_u64.to_le_bytes());
    driver.bus.poke(DIRECTORY + 8, &PAGE.to_le_bytes());
    assert_eq!(page(&mut driver, 513), None, "the page's directory entry is not valid");
    driver.bus.poke(DIRECTORY + 8, &(PAGE | 1).to_le_bytes());
    driver.write(Register::PfhmcPdinv, 1 | 1 << 15 | 1 << 16);
    assert_eq!(page(&mut driver, 513), Some(0x4242_0000));
}

#[test]
fn leaf_of_two_level_list_covers_512_pages() {
    let mut driver = brought_up();
    // The second leaf starts at PBLE 1024.
    driver.bus.poke(PBLE_SEGMENT + 8 * 17, &1024_u64.to_le_bytes());
    driver.bus.poke(PBLE_SEGMENT + 8 * (1024 + 3), &0x7700_0000_u64.to_le_bytes());
    let (device, memory) = driver.bus.hca.frontend_and_memory();
    let pages = device.state.function.rdma.hmc.pages(memory);
    assert_eq!(pages.nested(PbleIndex::new(16), 512 + 3), Some(Iova::new(0x7700_0000)));
}

#[test]
fn one_command_sets_many_segments() {
    const MORE: u64 = 0x90_0000;
    let entry = |index: u16, page| SegmentEntry {
        index,
        valid: true,
        descriptor: SegmentDescriptor { valid: true, direct: true, entries: 512, page },
        ..SegmentEntry::default()
    };
    let mut driver = brought_up();
    driver.bus.poke(MORE, &[entry(1, 0xa00).emit(), entry(63, 0xb00).emit()].concat());
    let update = UpdateSegments {
        skip_first: true,
        first: entry(0, 1),
        second: entry(1, 0x900),
        third: SegmentEntry { valid: false, ..entry(1, 0x901) },
        more: Iova::new(MORE | 0x7f),
        more_count: 2,
    };
    driver.perform_well(&Operation::UpdateSegments(update));
    driver.bus.poke(0xa0_0000, &0x5555_0000_u64.to_le_bytes());
    assert_eq!(page(&mut driver, 0), Some(0x5555_0000), "the last entry for a segment takes effect");
    driver.bus.poke(MORE, &entry(319, 0xb00).emit());
    assert_eq!(refused(&mut driver, &Operation::UpdateSegments(update)), codes(CqpErrorCode::Invalid));
}
