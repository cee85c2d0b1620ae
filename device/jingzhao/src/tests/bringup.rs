//! Issues the public driver's commands (section 13) with the documented mailboxes (section 14).

use super::*;

const DEV_LIM: &str = "
    00: 01 00 00 00 00 00 00 00 00 0E 00 10 10 10 05 11
    10: 0F 00 00 00 00 08 00 00 01 00 00 40 00 40 00 40
    20: 00 50 00 11 00 0C 00 00 00 10 02 00 00 10 02 00
    30: 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00";
const ADAPTER: &str = "10: 00 00 00 00 00 00 00 00 01 23 45 67 89 AB CD EF";
pub(super) const MAP_EQC: &str = "10: 00 00 00 00 02 40 00 00 00 00 00 00 12 34 50 01";
const MAP_THREE: &str = "
    00: 00 00 00 00 00 04 00 00 00 00 00 01 00 04 00 20
    10: 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 40
    20: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    30: 00 00 00 00 00 06 00 00 00 00 00 01 00 20 00 20";
const WRITE_FIVE: &str = "
    10: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 10
    20: 00 00 00 02 00 00 40 00 00 00 00 02 00 00 30 00
    30: 00 00 00 02 00 00 20 00 00 00 00 02 00 00 10 00
    50: 00 00 00 00 00 00 00 00 00 00 00 02 00 00 50 00";
pub(super) const CQ0_REGION: &str = "
    00: F0 02 01 81 00 00 10 00 00 00 00 00 00 00 00 00
    10: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 04 00";
const USER_REGION: &str = "
    00: F0 02 01 87 00 00 10 00 00 02 00 05 00 00 00 03
    10: 00 00 7F 00 12 34 56 78 00 00 00 00 00 00 21 00
    30: 00 00 00 10 00 00 00 00 00 00 00 00 00 00 00 00";
pub(super) const CQ0: &str = "00: 00 04 00 00 00 00 00 00 00 00 00 00 05 00 00 00";
const EQ: &str = "
    00: 01 04 01 00 00 00 00 00 00 00 00 00 07 00 00 00
    10: 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 30";

fn probe(hcr: u64) -> Machine {
    let mut machine = powered_on(1, Options::default());
    machine.interface.hcr = hcr;
    // The driver reuses one mailbox without clearing it. The outbox therefore contains stale bytes.
    machine.poke(OUTBOX, &[0xff; 0x100]);
    machine.ok(Op::QueryAdapter, 0, 0, &[]);
    assert_eq!(machine.peek(OUTBOX, 0x20), dump(ADAPTER, 0x20));
    machine.ok(Op::QueryDevLim, 0, 0, &[]);
    assert_eq!(machine.peek(OUTBOX, 0x40), dump(DEV_LIM, 0x40));
    assert_eq!(machine.peek(OUTBOX + 0x40, 4), [0xff; 4], "bytes after the outbox are unchanged");
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    machine.map_memory(0x1_0000_0000, 0x40_0000);
    machine.ok(Op::MapIcm, 1, 1, &dump(MAP_EQC, 0x20));
    machine.ok(Op::MapIcm, 1, 3, &dump(MAP_THREE, 0x40));
    machine.map(IcmTable::Context, CQC, 0x10_0000, 64);
    machine.map(IcmTable::Tpt, MTT, 0x14_0000, 64);
    machine.map(IcmTable::Tpt, MPT, 0x18_0000, 64);
    machine
}

#[test]
fn bringup_succeeds_at_both_hcr_addresses() {
    for hcr in [0, 0x8_0000] {
        let mut machine = probe(hcr);
        // CQ 0's buffer is the page at bus address 200000h.
        machine.ok(Op::WriteMtt, 0, 1, &dump("30: 00 00 00 00 00 00 00 00 00 00 00 00 00 20 00 00", 0x40));
        assert_eq!(machine.peek(0x14_0000, 8), [0, 0, 0, 0, 0, 0x20, 0, 0]);
        machine.ok(Op::Sw2HwMpt, 0, 0, &dump(CQ0_REGION, 0x40));
        assert_eq!(machine.peek(0x18_0000, 0x40), dump(CQ0_REGION, 0x40));
        machine.ok(Op::Sw2HwCq, 0, 0, &dump(CQ0, 0x40));
        assert_eq!(machine.peek(0x10_0000, 0x40), dump(CQ0, 0x40));

        // The driver unmaps whole chunks when it is unloaded, even if only parts of them are mapped.
        for (table, base) in [(2, MPT), (2, MTT), (1, CQC), (1, QPC), (1, EQC)] {
            assert_eq!(machine.command_at(base, Op::UnmapIcm, table, 0x40), 0);
        }
        machine.ok(Op::CloseHca, 0, 0, &[]);
        machine.ok(Op::CloseHca, 0, 0, &[]);
        assert_eq!(machine.command(Op::Hw2SwCq, 0, 0, &[]), CmdStatus::BadSysState.code());
        machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    }
}

#[test]
fn example_mtt_entries_are_stored_in_order() {
    let mut machine = probe(0);
    machine.ok(Op::WriteMtt, 0, 5, &dump(WRITE_FIVE, 0x60));
    let expected: Vec<u8> = (1..=5u64).flat_map(|n| (0x2_0000_0000 + n * 0x1000).to_be_bytes()).collect();
    assert_eq!(machine.peek(0x14_0080, 40), expected);
    assert_eq!(machine.peek(0x14_00a8, 8), [0; 8]);
    machine.ok(Op::Sw2HwMpt, 0, 5, &dump(USER_REGION, 0x40));
    assert_eq!(machine.peek(0x18_0140, 0x40), dump(USER_REGION, 0x40));
    machine.ok(Op::Hw2SwMpt, 0, 5, &[]);
    assert_eq!(machine.peek(0x18_0140, 0x40), [0; 0x40]);
}

#[test]
fn sw2hw_eq_stores_context_and_hw2sw_eq_zeroes_it() {
    let mut machine = probe(0);
    machine.ok(Op::Sw2HwEq, 0, 3, &dump(EQ, 0x40));
    assert_eq!(machine.peek(0x1234_50c0, 0x30), dump(EQ, 0x30));
    machine.ok(Op::MapEq, 0, 3, &[]);
    machine.ok(Op::Hw2SwEq, 0, 3, &[]);
    assert_eq!(machine.peek(0x1234_50c0, 0x30), [0; 0x30]);
    assert_eq!(machine.command(Op::MapEq, 0, 3, &[]), CmdStatus::BadParam.code());
}

#[test]
fn write_mtt_writes_at_most_508_entries() {
    let mut machine = probe(0);
    // Only entry 507 is nonzero. Each group stores four entries in reverse order, so entry 507 is in the first slot of
    // group 126.
    let mut inbox = vec![0; 0x1000];
    inbox[0x20 + 126 * 0x20 + 6] = 0x30;
    machine.ok(Op::WriteMtt, 0, 512, &inbox);
    assert_eq!(machine.peek(0x14_0000 + 507 * 8, 8), [0, 0, 0, 0, 0, 0, 0x30, 0]);
    machine.poke(0x14_0000 + 508 * 8, &[0xaa; 8]);
    machine.ok(Op::WriteMtt, 0, u32::MAX, &inbox);
    assert_eq!(machine.peek(0x14_0000 + 508 * 8, 8), [0xaa; 8], "entry 508 is not written");
}

#[test]
fn second_init_hca_discards_existing_objects() {
    let mut machine = probe(0);
    machine.ok(Op::Sw2HwMpt, 0, 0, &dump(CQ0_REGION, 0x40));
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    assert_eq!(machine.command(Op::Hw2SwMpt, 0, 0, &[]), CmdStatus::BadParam.code());
    let unmapped = machine.command(Op::Sw2HwMpt, 0, 0, &dump(CQ0_REGION, 0x40));
    assert_eq!(unmapped, CmdStatus::BadParam.code());
}
