//! Rejected commands return the correct status code and have no effect (sections 1.4, 2 and 3).

use card::frontend::testing::logged;
use protocol::hca::jingzhao::cqc::{Cqc, ResizeCq};
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::hca::jingzhao::mtt::WriteMtt;
use protocol::ids::Lkey;

use super::*;

const OK: u8 = 0x00;
const INTERNAL_ERR: u8 = 0x01;
const BAD_OP: u8 = 0x02;
const BAD_PARAM: u8 = 0x03;
const BAD_SYS_STATE: u8 = 0x04;

fn mpt(key: u32) -> Mpt {
    let bytes = dump("00: F0 02 01 87 00 00 10 00 00 00 00 00 00 00 00 03", Mpt::LEN);
    Mpt { key: Lkey::new(key), length: 0x1000, ..Mpt::parse(bytes.first_chunk().unwrap()).unwrap() }
}

fn cqc(log_entries: u8) -> [u8; Cqc::LEN] {
    let mut bytes = [0; Cqc::LEN];
    bytes[0x0c] = log_entries;
    bytes
}

#[test]
fn unsupported_opcodes_return_bad_op() {
    let mut machine = initialised(Options::default());
    let unknown =
        [0x000, 0x055, 0xfff, 0x009, 0x00a, 0x00c, 0x025, 0x026, 0x027, 0x02a, 0x02b, 0x030, 0x032, 0x033];
    for code in unknown.into_iter().chain([0x023, 0x024]) {
        // The opcode is checked first, even with an invalid op_modifier and without mailboxes.
        for op_modifier in [0, 7] {
            assert_eq!(
                machine.raw_command(0, 0, 0, GO | op_modifier << 12 | code),
                BAD_OP,
                "opcode {code:#x}"
            );
        }
    }
    machine.ok(Op::Nop, 0, 0x1f, &[]);
}

#[test]
fn mad_ifc_option_enables_port_query() {
    const MAD_IFC: u32 = 0x024;
    let mut machine = initialised(Options::default());
    assert_eq!(machine.raw_command(INBOX, 1, OUTBOX, GO | 1 << 12 | MAD_IFC), BAD_OP);

    let options = Options { mad_ifc: true, ..Options::default() };
    let mut early = powered_on(2, options);
    assert_eq!(early.raw_command(0, 1, OUTBOX, GO | 1 << 12 | MAD_IFC), BAD_SYS_STATE);
    let mut machine = initialised_as(2, options);
    for op_modifier in [0, 2, 5, 0xff] {
        let status = machine.raw_command(INBOX, 1, OUTBOX, GO | op_modifier << 12 | MAD_IFC);
        assert_eq!(status, BAD_PARAM, "op_modifier {op_modifier}");
    }
    assert_eq!(machine.raw_command(INBOX, 1, 0, GO | 1 << 12 | MAD_IFC), BAD_PARAM, "no outbox");
    assert_eq!(machine.raw_command(0, 1, NOWHERE, GO | 1 << 12 | MAD_IFC), INTERNAL_ERR);
    // `states` contains the expected port state and physical state. The device reset after `set_link` must not change
    // them.
    for (link_up, states) in [(true, [4, 5]), (false, [1, 2]), (true, [4, 5])] {
        machine.hca.set_link(link_up);
        machine.write32(0, 0xf10, 1);
        machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
        machine.poke(OUTBOX, &[0xa5; 0x21]);
        // The command has no inbox.
        assert_eq!(machine.raw_command(0, 1, OUTBOX, GO | 1 << 12 | MAD_IFC), OK);
        let mut expected = [0; 0x21];
        expected[1] = 2;
        expected[2..4].copy_from_slice(&states);
        expected[0x20] = 0xa5;
        assert_eq!(machine.peek(OUTBOX, 0x21), expected);
    }
}

#[test]
fn undefined_op_modifiers_return_bad_param() {
    let mut machine = initialised(Options::default());
    for (op, bad) in [
        (Op::QueryDevLim, 1),
        (Op::InitHca, 0x80),
        (Op::CloseHca, 8),
        (Op::MapIcm, 0),
        (Op::MapIcm, 3),
        (Op::UnmapIcm, 0),
        (Op::WriteMtt, 1),
        (Op::Sw2HwCq, 1),
        (Op::ToErr, 1),
        (Op::ToRst, 1),
        (Op::ToRst, 4),
        (Op::Nop, 1),
    ] {
        assert_eq!(machine.command(op, bad, 1, &[0; 0x1000]), BAD_PARAM, "{op} with {bad}");
    }
    // RESIZE_CQ accepts any op_modifier.
    machine.ok(Op::Sw2HwCq, 0, 1, &cqc(5));
    assert_eq!(machine.command(Op::ResizeCq, 0xff, 1, &cqc(0)[..8]), OK);
}

#[test]
fn missing_mailbox_is_reported_before_other_errors() {
    let mut machine = powered_on(1, Options::default());
    // The mailbox is checked before the device state. The opposite order would return BAD_SYS_STATE, because
    // INIT_HCA has not run.
    assert_eq!(machine.command_at(0, Op::MapIcm, 1, 1), BAD_PARAM);
    assert_eq!(machine.command_at(0, Op::Rst2Init, 0, 1), BAD_PARAM);
    assert_eq!(machine.command_at(0, Op::ToRst, 0, 1), BAD_PARAM);
    assert_eq!(machine.raw_command(0, 0, 0, GO | 0x022), BAD_PARAM, "QUERY_QP without outbox");
    assert_eq!(machine.command_at(0, Op::ToRst, 3, 1), BAD_SYS_STATE, "op_modifier 3 needs no inbox");
}

#[test]
fn commands_require_init_hca() {
    let mut machine = powered_on(1, Options::default());
    for spec in &protocol::hca::jingzhao::cmd::COMMANDS {
        let op_modifier = match spec.op {
            Op::MapIcm | Op::UnmapIcm => 1,
            _ => 0,
        };
        let expected = match spec.op {
            Op::QueryDevLim | Op::QueryAdapter | Op::CloseHca | Op::Nop => OK,
            Op::InitHca => continue,
            Op::ConfSpecialQp | Op::MadIfc => BAD_OP,
            _ => BAD_SYS_STATE,
        };
        assert_eq!(machine.command(spec.op, op_modifier, 1, &[0; 0x1000]), expected, "{}", spec.op);
    }
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    machine.ok(Op::QueryQp, 0, 1, &[]);
}

#[test]
fn inaccessible_mailbox_returns_internal_err_without_effect() {
    let mut machine = initialised(Options::default());
    for (op, op_modifier) in [(Op::InitHca, 0), (Op::MapIcm, 1), (Op::WriteMtt, 0), (Op::Rst2Init, 0)] {
        assert_eq!(machine.command_at(NOWHERE, op, op_modifier, 1), INTERNAL_ERR, "inbox of {op}");
    }
    assert_eq!(machine.raw_command(0, 0, NOWHERE, GO | 0x003), INTERNAL_ERR, "outbox of QUERY_DEV_LIM");
    // The mailbox crosses the end of memory.
    assert_eq!(machine.command_at(MEMORY - 0x20, Op::Sw2HwCq, 0, 1), INTERNAL_ERR);
    assert_eq!(machine.raw_command(0, 0, MEMORY - 0x20, GO | 0x003), INTERNAL_ERR);
    assert_eq!(machine.raw_command(0, 0, MEMORY - 0x40, GO | 0x003), OK);
    assert_eq!(machine.command_at(u64::MAX, Op::Sw2HwCq, 0, 1), INTERNAL_ERR);
    // The first INIT_HCA is still in effect, and no rejected command has created an object.
    machine.ok(Op::Sw2HwCq, 0, 1, &cqc(5));
}

#[test]
fn mailbox_may_be_unaligned() {
    let mut machine = initialised(Options::default());
    machine.poke(0x5003, &cqc(5));
    assert_eq!(machine.command_at(0x5003, Op::Sw2HwCq, 0, 1), OK);
}

/// Sections 3.1, 3.3 and 3.11 (J-09): only the limit on entries per CQ is enforced. The other limits are only reported.
#[test]
fn only_cq_length_is_checked_against_limits() {
    let limits = serde_json::from_str(r#"{"max_qps": 64, "max_cqs": 32, "max_cqes": 16}"#).unwrap();
    let mut machine = initialised(Options { limits, ..Options::default() });
    machine.ok(Op::QueryDevLim, 0, 0, &[]);
    // Log2 of the QP count, the CQ count and the number of entries per CQ.
    assert_eq!(machine.peek(OUTBOX + 0x0c, 2), [6, 5]);
    assert_eq!(machine.peek(OUTBOX + 0x0a, 2), [0, 4]);
    assert_eq!(machine.command(Op::Sw2HwCq, 0, 40, &cqc(5)), BAD_PARAM);
    machine.ok(Op::Sw2HwCq, 0, 40, &cqc(4));
    assert_eq!(machine.command(Op::ResizeCq, 1, 40, &[5, 0, 0, 0, 0, 0, 0, 0]), BAD_PARAM);
    machine.ok(Op::ResizeCq, 1, 40, &[4, 0, 0, 0, 0, 0, 0, 0]);
    // J-09: CQ numbers up to 2^16 - 1 are valid, because INIT_HCA has accepted a count of 2^16 CQs.
    machine.ok(Op::Sw2HwCq, 0, 0xffff, &cqc(4));
}

#[test]
fn rejected_command_logs_one_line() {
    let mut machine = initialised(Options::default());
    machine.ok(Op::Sw2HwCq, 0, 40, &cqc(16));
    let text = logged(|| assert_eq!(machine.command(Op::Sw2HwCq, 0, 41, &cqc(17)), BAD_PARAM));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("SW2HW_CQ") && text.contains("0x11"), "{text}");
}

#[test]
fn init_hca_with_excessive_table_size_returns_bad_param() {
    let mut machine = powered_on(1, Options::default());
    for (offset, limit) in [(0x0f, 24), (0x17, 24), (0x1f, 8), (0x37, 32)] {
        let mut inbox = dump(INIT, 0x40);
        inbox[offset] = limit + 1;
        assert_eq!(machine.command(Op::InitHca, 0, 0, &inbox), BAD_PARAM);
        assert_eq!(machine.command(Op::QueryQp, 0, 0, &[]), BAD_SYS_STATE);
        inbox[offset] = limit;
        assert_eq!(machine.command(Op::InitHca, 0, 0, &inbox), OK);
        machine.ok(Op::CloseHca, 0, 0, &[]);
    }
}

#[test]
fn map_icm_with_invalid_entry_has_no_effect() {
    let mut machine = powered_on(1, Options::default());
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
    let entry = |virt, bus, pages| MapEntry { virt: IcmAddr::new(virt), bus: Iova::new(bus), pages };
    let good = entry(CQC, 0x10_0000, 1);
    for bad in [entry(CQC, 0x20_0000, 0), entry(CQC + 8, 0x20_0000, 1), entry(u64::MAX - 0xfff, 0x20_0000, 2)]
    {
        let inbox = icm::emit(&[good, bad]);
        assert_eq!(machine.command(Op::MapIcm, 1, 2, &inbox), BAD_PARAM, "{bad:?}");
        assert_eq!(
            machine.command(Op::Sw2HwCq, 0, 0, &cqc(5)),
            BAD_PARAM,
            "the valid entry is not mapped either"
        );
    }
    for count in [0, 257, u32::MAX] {
        assert_eq!(machine.command(Op::MapIcm, 1, count, &icm::emit(&[good])), BAD_PARAM, "{count} entries");
    }
    assert_eq!(machine.command_at(CQC + 1, Op::UnmapIcm, 1, 1), BAD_PARAM, "unaligned");
    assert_eq!(machine.command_at(CQC, Op::UnmapIcm, 1, 0), BAD_PARAM, "no pages");
    assert_eq!(machine.command_at(CQC, Op::UnmapIcm, 1, u32::MAX), OK, "unmapping unmapped pages succeeds");
    assert_eq!(machine.command_at(0, Op::UnmapIcm, 1, 1), OK, "address 0 is valid");
    assert_eq!(
        machine.command_at(u64::MAX - 0xfff, Op::UnmapIcm, 2, 9),
        OK,
        "pages past the end are ignored"
    );
    machine.ok(Op::MapIcm, 1, 1, &icm::emit(&[good]));
    machine.ok(Op::Sw2HwCq, 0, 0, &cqc(5));
}

#[test]
fn invalid_mpt_commands_return_bad_param() {
    let mut machine = initialised(Options::default());
    let (sw2hw, hw2sw) = (Op::Sw2HwMpt, Op::Hw2SwMpt);
    assert_eq!(
        machine.command(sw2hw, 0, 1 << 17, &mpt(1 << 17).emit()),
        BAD_PARAM,
        "index outside the table"
    );
    assert_eq!(machine.command(sw2hw, 0, 6, &mpt(0x20005).emit()), BAD_PARAM, "key for a different index");
    for bad in [20u32, 4095, 2048, 0x3000, 3 << 30] {
        let mut inbox = mpt(5).emit();
        inbox[4..8].copy_from_slice(&bad.to_be_bytes());
        assert_eq!(machine.command(sw2hw, 0, 5, &inbox), BAD_PARAM, "page size {bad:#x}");
    }
    assert_eq!(machine.command(sw2hw, 0, 0x1_ffff, &mpt(0x1_ffff).emit()), BAD_PARAM, "ICM not mapped");
    machine.ok(sw2hw, 0, 5, &mpt(0x20005).emit());
    assert_eq!(machine.command(sw2hw, 0, 5, &mpt(5).emit()), BAD_PARAM, "already valid");
    assert_eq!(machine.command(hw2sw, 0, 6, &[]), BAD_PARAM, "not valid");
    assert_eq!(machine.command(hw2sw, 0, 0x20005, &[]), BAD_PARAM, "index outside the table");
    machine.ok(hw2sw, 0, 5, &[]);
    assert_eq!(machine.command(hw2sw, 0, 5, &[]), BAD_PARAM, "no longer valid");
    for good in [0u32, 1, 19, 4096, 1 << 31] {
        let mut inbox = mpt(5).emit();
        inbox[4..8].copy_from_slice(&good.to_be_bytes());
        machine.ok(sw2hw, 0, 5, &inbox);
        machine.ok(hw2sw, 0, 5, &[]);
    }
    let physical = Mpt { flags: MptFlags::PHYSICAL, ..mpt(5) };
    machine.ok(sw2hw, 0, 5, &physical.emit());
}

#[test]
fn largest_key_table_is_fully_usable() {
    let mut machine = powered_on(1, Options::default());
    machine.ok(Op::InitHca, 0, 0, &layout(24, 16, 32).emit());
    machine.map(IcmTable::Tpt, (MPT + 0xffff_ffff * 64) & !0xfff, ICM_TPT, 1);
    machine.ok(Op::Sw2HwMpt, 0, u32::MAX, &mpt(u32::MAX).emit());
    assert_eq!(machine.peek(ICM_TPT + 0xfc0, 0x40), mpt(u32::MAX).emit());
}

#[test]
fn mtt_writes_require_nonzero_count_and_mapped_pages() {
    let mut machine = initialised(Options::default());
    let write = |start, pages: &[u64]| {
        WriteMtt { start, pages: pages.iter().copied().map(Iova::new).collect() }.emit()
    };
    assert_eq!(machine.command(Op::WriteMtt, 0, 0, &write(0, &[0x1000])), BAD_PARAM);
    // The 1024 mapped ICM pages hold 2^19 entries.
    let last = (1 << 19) - 1;
    machine.ok(Op::WriteMtt, 0, 1, &write(last, &[0x1000]));
    assert_eq!(machine.command(Op::WriteMtt, 0, 2, &write(last, &[0x2000, 0x3000])), BAD_PARAM);
    let stored = ICM_TPT + MTT + last * 8;
    assert_eq!(
        machine.peek(stored, 8),
        0x1000u64.to_be_bytes(),
        "the rejected command must not store an entry"
    );
    for beyond in [1 << 20, u64::MAX / 8, u64::MAX] {
        assert_eq!(machine.command(Op::WriteMtt, 0, 1, &write(beyond, &[0x1000])), BAD_PARAM);
    }
}

#[test]
fn invalid_cq_commands_return_bad_param() {
    let mut machine = initialised(Options::default());
    assert_eq!(machine.command(Op::Sw2HwCq, 0, 1 << 24, &cqc(5)), BAD_PARAM, "number exceeds 24 bits");
    assert_eq!(machine.command(Op::Sw2HwCq, 0, 1, &cqc(17)), BAD_PARAM, "too many entries");
    assert_eq!(machine.command(Op::Hw2SwCq, 0, 1, &[]), BAD_PARAM, "not valid");
    assert_eq!(machine.command(Op::ResizeCq, 1, 1, &cqc(5)[..8]), BAD_PARAM, "not valid");
    machine.ok(Op::Sw2HwCq, 0, 0x12_0001, &cqc(16));
    assert_eq!(machine.command(Op::Sw2HwCq, 0, 1, &cqc(5)), BAD_PARAM, "already valid under its index");
    let resize = |log_entries| ResizeCq { log_entries, lkey: Lkey::new(7) }.emit();
    assert_eq!(machine.command(Op::ResizeCq, 1, 1, &resize(17)), BAD_PARAM);
    machine.ok(Op::ResizeCq, 1, 1, &resize(6));
    // CtxMgt document, table 3.1: WR_CQ_MODIFY.
    assert_eq!(machine.peek(ICM_CONTEXT + CQC + 0x4c, 1), [6]);
    assert_eq!(machine.peek(ICM_CONTEXT + CQC + 0x58, 4), [0, 0, 0, 7]);
    machine.ok(Op::Hw2SwCq, 0, 0x340001, &[]);
    assert_eq!(machine.peek(ICM_CONTEXT + CQC + 0x40, 56), [0; 56]);
    assert_eq!(machine.command_at(CQC, Op::UnmapIcm, 1, 1), OK);
    assert_eq!(machine.command(Op::Sw2HwCq, 0, 1, &cqc(5)), BAD_PARAM, "ICM not mapped");
}

#[test]
fn invalid_eq_commands_return_bad_param() {
    let mut machine = initialised(Options::default());
    let eqc = |log_entries| cqc(log_entries);
    assert_eq!(machine.command(Op::Sw2HwEq, 0, 32, &eqc(5)), BAD_PARAM, "outside the table");
    assert_eq!(machine.command(Op::Sw2HwEq, 0, 1, &eqc(21)), BAD_PARAM, "too many entries");
    assert_eq!(machine.command(Op::MapEq, 0, 1, &[]), BAD_PARAM, "not valid");
    machine.ok(Op::Sw2HwEq, 0, 1, &eqc(20));
    assert_eq!(machine.command(Op::Sw2HwEq, 0, 1, &eqc(5)), BAD_PARAM, "already valid");
    machine.ok(Op::MapEq, 0, 1 << 31 | 1, &[]);
    machine.ok(Op::Hw2SwEq, 0, 1, &[]);
    assert_eq!(machine.command(Op::Hw2SwEq, 0, 1, &[]), BAD_PARAM, "no longer valid");
}

#[test]
fn extended_status_option_distinguishes_error_codes() {
    let options = Options { extended_status: true, ..Options::default() };
    let mut machine = initialised(options);
    assert_eq!(machine.command(Op::QueryQp, 0, 1 << 24, &[]), 0x0a);
    assert_eq!(machine.command(Op::Hw2SwMpt, 0, 1 << 17, &[]), 0x0a);
    assert_eq!(machine.command(Op::Hw2SwMpt, 0, 1, &[]), 0x09);
    assert_eq!(machine.command(Op::Sw2HwCq, 0, 1, &cqc(17)), 0x08);
    assert_eq!(machine.command(Op::Rtr2Rts, 0, 1, &[0; 0xc0]), 0x10);
    assert_eq!(machine.command(Op::WriteMtt, 0, 0, &[]), 0x03);
    assert_eq!(machine.raw_command(0, 0, 0, GO | 0x055), 0x02);
}

#[test]
fn arbitrary_commands_leave_device_usable() {
    let mut machine = initialised(Options::default());
    for round in 0..2000u32 {
        let word = GO | (round % 0x1000);
        machine.raw_command(u64::from(round) << 32, round.wrapping_mul(0x9e37_79b1), NOWHERE, word);
    }
    machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
}
