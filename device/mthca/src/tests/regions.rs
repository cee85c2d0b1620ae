//! Tests of keys and page table entries (sections 4.4, 4.5, 6.1 and 6.2). To make the device access a region, the tests
//! place an event queue buffer inside it.

use super::*;

/// Executes SW2HW_MPT for the region of EQ 4 in MPT slot 0x14 and returns the status.
fn queue(driver: &mut Driver, mpt: &Mpt) -> u8 {
    driver.with_inbox(0x00d, &mpt.bytes(), 0x14)
}

fn make(driver: &mut Driver) {
    driver.ok(0x013, &eq_context(8, 0, 0x1400), 4);
    assert_eq!(driver.command(0x012, 1 << 9, 4).0, 0);
}

/// Raises an event and returns whether it is written to this bus address.
fn lands_at(driver: &mut Driver, bus: u64) -> bool {
    driver.poke(bus, &[0; 32]);
    let up = driver.hca.is_link_up();
    driver.hca.set_link(!up);
    driver.peek(bus, 32)[1] == 0x09
}

#[test]
fn sw2hw_mpt_copies_mtt_entries() {
    let mut driver = with_port();
    let mpt = Mpt::buffer(0x14, 8192, MTT + 0x1000);
    driver.write_mtt(MTT_BUS + 0x1000, [0x500_0000, 0x501_0000]);
    assert_eq!(queue(&mut driver, &mpt), 0);
    make(&mut driver);
    driver.write_mtt(MTT_BUS + 0x1000, [0x600_0000, 0x600_1000]);
    assert!(lands_at(&mut driver, 0x500_0000));
    driver.ok(0x100f, &[], 0x14);
    assert!(!lands_at(&mut driver, 0x500_0020), "nothing is written to an invalid region");
    assert_eq!(queue(&mut driver, &mpt), 0);
    assert!(lands_at(&mut driver, 0x600_0020), "the region has the new pages");
}

#[test]
fn unmapping_icm_discards_mtt_entries() {
    let mut driver = with_port();
    driver.write_mtt(MTT_BUS + 0x1000, [0x500_0000, 0x501_0000]);
    assert_eq!(queue(&mut driver, &Mpt::buffer(0x14, 8192, MTT + 0x1000)), 0);
    make(&mut driver);
    assert_eq!(driver.command(0xff9, MTT + 0x2000, 1).0, 0);
    assert!(lands_at(&mut driver, 0x500_0000), "a different page was unmapped");
    assert_eq!(driver.command(0xff9, MTT + 0x1000, 1).0, 0);
    assert!(!lands_at(&mut driver, 0x500_0020));
}

#[test]
fn region_may_start_inside_large_page() {
    let mut driver = with_port();
    driver.write_mtt(MTT_BUS + 0x1000, [0x500_4000]);
    // The region consists of one 16 KiB page. The low address bits of its MTT entry are ignored.
    let mpt = Mpt { log_pages: 2, ..Mpt::buffer(0x14, 0x2000, MTT + 0x1000) };
    let mpt = Mpt { start: 0x2000, ..mpt };
    assert_eq!(queue(&mut driver, &mpt), 0);
    make(&mut driver);
    assert!(lands_at(&mut driver, 0x500_6000));
}

#[test]
fn absent_or_unmapped_pages_are_inaccessible() {
    let mut driver = with_port();
    driver.poke(MTT_BUS + 0x1000, &0x500_0000_u64.to_be_bytes());
    driver.poke(MTT_BUS + 0x1008, &0x4000_0000_0001_u64.to_be_bytes());
    assert_eq!(queue(&mut driver, &Mpt::buffer(0x14, 8192, MTT + 0x1000)), 0);
    make(&mut driver);
    for _ in 0..300 {
        assert!(!lands_at(&mut driver, 0x500_0000));
    }
    driver.ok(0x031, &[], 0x1f);
}

#[test]
fn generation_bits_of_memory_key_must_match() {
    let mut driver = with_port();
    // The key of slot 0x18 in section 13.3. Bit 23 of the key is a copy of bit 3.
    let mpt = Mpt::buffer(0x18, 8192, MTT + 0x1000);
    assert_eq!((mpt.key, mpt.lkey()), (0x80_0018, 0x8000_1800));
    driver.write_mtt(MTT_BUS + 0x1000, [0x500_0000, 0x501_0000]);
    driver.ok(0x00d, &mpt.bytes(), 0x18);
    driver.ok(0x013, &eq_context(8, 0, 0x1800), 4);
    assert_eq!(driver.command(0x012, 1 << 9, 4).0, 0);
    assert!(!lands_at(&mut driver, 0x500_0000), "the L_Key lacks the generation bits");
    driver.ok(0x014, &[], 4);
    driver.ok(0x013, &eq_context(8, 0, mpt.lkey()), 4);
    assert_eq!(driver.command(0x012, 1 << 9, 4).0, 0);
    assert!(lands_at(&mut driver, 0x500_0000));
}
