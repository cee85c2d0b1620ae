//! Rejected commands return the right status code and have no effect (sections 2.3 and 3).

use super::*;

fn status(driver: &mut Driver, op: u32, inbox: &[u8], in_modifier: u32) -> CmdStatus {
    let code = driver.with_inbox(op, inbox, in_modifier);
    let all = [
        CmdStatus::Ok,
        CmdStatus::InternalErr,
        CmdStatus::BadOp,
        CmdStatus::BadParam,
        CmdStatus::BadSysState,
        CmdStatus::ExceedLim,
        CmdStatus::BadResState,
        CmdStatus::BadIndex,
        CmdStatus::NoLocalMemory,
    ];
    all.into_iter().find(|status| status.code() == code).unwrap_or_else(|| panic!("status {code:#x}"))
}

#[test]
fn unknown_opcodes_are_rejected() {
    let mut driver = initialised();
    for op in [0x000, 0x001, 0x005, 0x00b, 0x010, 0x034, 0x050, 0xff5] {
        assert_eq!(status(&mut driver, op, &[], 0), CmdStatus::BadOp, "{op:03x}");
    }
}

#[test]
fn commands_require_init_hca() {
    let mut driver = powered_on();
    for op in [0x009, 0x00a, 0x00c, 0x00d, 0x00f, 0x012, 0x013, 0x014, 0x016, 0x019, 0x022, 0x024, 0x035] {
        assert_eq!(status(&mut driver, op, &[], 1), CmdStatus::BadSysState, "{op:03x}");
    }
}

#[test]
fn unmapped_mailbox_returns_internal_error() {
    const NOWHERE: u64 = 0x4000_0000_0000;
    let mut driver = initialised();
    assert_eq!(driver.command(0x00d, NOWHERE, 0x14).0, CmdStatus::InternalErr.code());
    assert_eq!(driver.raw(0, 0, NOWHERE, 0xffff, 0x0080_0004), CmdStatus::InternalErr.code());
}

#[test]
fn map_icm_accepts_only_whole_pages_and_blocks() {
    let mut driver = powered_on();
    let cases = [
        (block(0x800, ICM, 0), 1, CmdStatus::BadParam),
        (block(u64::MAX << 12, ICM, 1), 1, CmdStatus::BadParam),
        (block(0, ICM, 0), 0, CmdStatus::BadParam),
        (block(0, ICM, 0), 257, CmdStatus::BadParam),
        (block(0, ICM, 0), 1, CmdStatus::Ok),
    ];
    for (inbox, count, expected) in cases {
        assert_eq!(status(&mut driver, 0xffa, &inbox, count), expected, "{inbox:02x?} {count}");
    }
    assert_eq!(driver.command(0xff9, 0x800, 1).0, CmdStatus::BadParam.code());
    assert_eq!(driver.command(0xff9, 0, 0).0, CmdStatus::BadParam.code());
    assert_eq!(
        driver.command(0xff9, 0, u32::MAX).0,
        CmdStatus::Ok.code(),
        "pages that do not exist are ignored"
    );
    assert_eq!(driver.command(0xffd, 0x8_0000_1000, 0).0, CmdStatus::ExceedLim.code());
    assert_eq!(driver.command(0xffd, 0x800, 0).0, CmdStatus::BadParam.code());
}

#[test]
fn invalid_mpt_entries_are_rejected() {
    let mut driver = initialised();
    let good = || Mpt::buffer(0x14, 4096, MTT + 0x1000);
    let cases = [
        (good(), 0x15, CmdStatus::BadIndex),
        (Mpt { log_pages: 20, ..good() }, 0x14, CmdStatus::BadParam),
        (Mpt { mtt: MTT + 0x1004, ..good() }, 0x14, CmdStatus::BadParam),
        (Mpt { mtt: 0x7_0000_0000, ..good() }, 0x14, CmdStatus::BadParam),
        (Mpt { mtt: u64::MAX << 3, ..good() }, 0x14, CmdStatus::BadParam),
        (Mpt { len: u64::MAX, ..good() }, 0x14, CmdStatus::ExceedLim),
        (Mpt { start: u64::MAX, len: 1 << 40, ..good() }, 0x14, CmdStatus::ExceedLim),
        // The key that terminates scatter lists.
        (Mpt { key: 1, ..good() }, 1, CmdStatus::BadIndex),
        (Mpt::buffer(0x11, 4096, MTT + 0x1000), 0x11, CmdStatus::BadResState),
        (good(), 0x14, CmdStatus::Ok),
        (good(), 0x14, CmdStatus::BadResState),
    ];
    for (mpt, index, expected) in cases {
        assert_eq!(status(&mut driver, 0x00d, &mpt.bytes(), index), expected, "{:02x?}", mpt.bytes());
    }
    assert_eq!(status(&mut driver, 0x00f, &[], 1 << 17), CmdStatus::BadIndex);
    assert_eq!(status(&mut driver, 0x00f, &[], 0x20), CmdStatus::BadResState);
    assert_eq!(status(&mut driver, 0x100f, &[], 0x14), CmdStatus::Ok);
    assert_eq!(status(&mut driver, 0x100f, &[], 0x14), CmdStatus::BadResState);
}

#[test]
fn eq_commands_reject_invalid_number_size_or_state() {
    let mut driver = initialised();
    assert_eq!(status(&mut driver, 0x013, &eq_context(8, 0, 0x1100), 1), CmdStatus::BadResState);
    assert_eq!(status(&mut driver, 0x013, &eq_context(8, 0, 0x1100), 32), CmdStatus::BadIndex);
    assert_eq!(status(&mut driver, 0x013, &eq_context(21, 0, 0x1100), 4), CmdStatus::ExceedLim);
    assert_eq!(status(&mut driver, 0x014, &[], 4), CmdStatus::BadResState);
    assert_eq!(driver.command(0x012, 1 << 9, 4).0, CmdStatus::BadResState.code());
    assert_eq!(status(&mut driver, 0x014, &[], 1), CmdStatus::Ok);
    assert_eq!(status(&mut driver, 0x013, &eq_context(8, 0, 0x1100), 1), CmdStatus::Ok);
}

#[test]
fn rejects_ports_other_than_one() {
    let mut driver = initialised();
    for op in [0x009, 0x00a, 0x00c] {
        assert_eq!(status(&mut driver, op, &[], 2), CmdStatus::BadParam, "{op:03x}");
        assert_eq!(status(&mut driver, op, &[], 0), CmdStatus::BadParam, "{op:03x}");
    }
}
