//! Issues the commands of a successful probe and the subsequent unload (sections 14.3 and 14.4).

use protocol::hca::mthca::init::InitHca;

use super::*;

/// Commands 1 to 33, all polled. Each line contains the opcode, op_modifier and in_modifier. Some lines also contain
/// in_param, or values used to build the inbox.
pub(super) const BRING_UP: &str = "
    004 0 00
    ff8 0 00
    fff 0 01 0 0
    ff6 0 00
    003 0 00
    ffd 0 00 26854000
    ffc 0 01 0 0
    ffa 0 01 26852000 0
    ffa 0 01 20000000 6
    ffa 0 01 25800000 6
    ffa 0 01 24000000 6
    ffa 0 01 26400000 6
    ffa 0 01 26000000 6
    ffa 0 01 26800000 6
    ffa 0 01 26600000 6
    ffa 0 01 26640000 6
    ffa 0 01 26680000 6
    ffa 0 01 266c0000 6
    ffa 0 01 26700000 6
    ffa 0 01 26740000 6
    ffa 0 01 26780000 6
    ffa 0 01 267c0000 6
    007 0 00
    006 0 00
    00d 0 10
    00d 0 11
    013 0 01
    00d 0 12
    013 0 02
    00d 0 13
    013 0 03
    012 0 02 1f43fe
    012 0 03 400";

/// Commands 208 to 234, in the format of [`BRING_UP`].
pub(super) const TEAR_DOWN: &str = "
    012 0 80000002 1f43fe
    012 0 80000003 400
    014 0 03
    00f 1 13
    014 0 02
    00f 1 12
    014 0 01
    00f 1 11
    00f 1 10
    008 0 00
    ff9 0 40 26600000
    ff9 0 40 26640000
    ff9 0 40 26680000
    ff9 0 40 266c0000
    ff9 0 40 26700000
    ff9 0 40 26740000
    ff9 0 40 26780000
    ff9 0 40 267c0000
    ff9 0 40 26800000
    ff9 0 40 26000000
    ff9 0 40 26400000
    ff9 0 40 24000000
    ff9 0 40 25800000
    ff9 0 40 20000000
    ff9 0 01 26852000
    ffb 0 00
    ffe 0 00";

/// Issues the commands in a list. All but ENABLE_LAM must succeed.
pub(super) fn replay(driver: &mut Driver, list: &str) {
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let numbers: Vec<u64> =
            line.split(' ').map(|number| u64::from_str_radix(number, 16).unwrap()).collect();
        let [op, op_modifier, in_modifier, ..] = numbers[..] else { panic!("{line}") };
        let in_modifier = u32::try_from(in_modifier).unwrap();
        let argument = numbers.get(3).copied().unwrap_or(0);
        let inbox = inbox(driver, op, in_modifier, argument, numbers.get(4).copied());
        if !inbox.is_empty() {
            driver.poke(INBOX, &inbox);
        }
        let in_param = if inbox.is_empty() { argument } else { INBOX };
        let word = u32::try_from(op_modifier << 12 | op).unwrap();
        let (status, out) = driver.command(word, in_param, in_modifier);
        let expected = if op == 0xff8 { 0x22 } else { 0 };
        assert_eq!(status, expected, "status of {line}");
        if op == 0xffd {
            assert_eq!(out, 1, "SET_ICM_SIZE requests one page");
        }
    }
}

/// Returns the contents of a command's inbox, or an empty vector if it has none.
fn inbox(driver: &mut Driver, op: u64, in_modifier: u32, argument: u64, log: Option<u64>) -> Vec<u8> {
    let log = u8::try_from(log.unwrap_or(0)).unwrap();
    match (op, in_modifier) {
        (0xffa, _) if argument == MTT => block(MTT, MTT_BUS, log),
        (0xffa, _) => block(argument, ICM + argument, log),
        (0xfff | 0xffc, _) => block(0, 0x40_0000, log),
        (0x007, _) => InitHca::DRIVER_DEFAULT.emit().to_vec(),
        (0x00d, 0x10) => Mpt::everything().bytes(),
        (0x00d, 0x11) => {
            let pages: Vec<_> = (0..1024).map(|page| EQ_BUFFERS[1] + 0x1000 * page).collect();
            driver.write_mtt(MTT_BUS + 0x2000, pages);
            Mpt::buffer(0x11, 4 << 20, MTT + 0x2000).bytes()
        }
        (0x00d, slot @ (0x12 | 0x13)) => {
            let (buffer, mtt) = if slot == 0x12 { (EQ_BUFFERS[2], 0x80) } else { (EQ_BUFFERS[3], 0xc0) };
            driver.write_mtt(MTT_BUS + mtt, [buffer, buffer + 0x1000]);
            Mpt::buffer(slot, 8 << 10, MTT + mtt).bytes()
        }
        (0x013, 1) => eq_context(17, 0, 0x1100),
        (0x013, eqn) => eq_context(8, if eqn == 2 { 1 } else { 2 }, 0x1000 + (eqn << 8)),
        _ => Vec::new(),
    }
}

#[test]
fn documented_probe_sequence_succeeds() {
    let mut driver = powered_on();
    // The driver reuses mailboxes without clearing them.
    driver.poke(OUTBOX, &[0xff; 0x1000]);
    replay(&mut driver, BRING_UP);
    assert_eq!(driver.peek(OUTBOX + 0x100, 4), [0xff; 4], "bytes after the outbox are unchanged");
    for bit in [8, 4, 2] {
        driver.write(EQ_ARM, bit);
    }
    // The first command in event mode is NOP (section 13.3).
    assert_eq!(driver.raw(0, 0x1f, 0, 0x20, 0x00c0_0031), 0);
    assert_eq!((driver.interrupts(0), driver.interrupts(1), driver.interrupts(2)), (0, 0, 1));
    let mut expected = vec![0; 32];
    expected[1] = 0x0a;
    expected[7] = 0x20;
    assert_eq!(driver.eqe(3, 0), expected);
}

#[test]
fn documented_unload_allows_second_probe() {
    let mut driver = initialised();
    replay(&mut driver, TEAR_DOWN);
    let (status, _) = driver.command(0x014, 0, 3);
    assert_eq!(status, CmdStatus::BadSysState.code(), "the unload ends with CLOSE_HCA");
    replay(&mut driver, BRING_UP);
    driver.write(RESET, 1);
    replay(&mut driver, BRING_UP);
}

/// Section 13.3 lists the seven words that issue a polled QUERY_FW, and the outbox that it returns.
#[test]
fn query_fw_returns_documented_outbox() {
    let mut driver = powered_on();
    for (offset, word) in (HCR..).step_by(4).zip([
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0x23, 0x45, 0x60, 0],
        [0xff, 0xff, 0, 0],
        [0, 0x80, 0, 4],
    ]) {
        driver.store(Bar::Bar0, offset, &word);
    }
    assert_eq!(driver.load::<4>(Bar::Bar0, HCR + 0x18), [0, 0, 0, 4]);
    let outbox = driver.peek(0x1_2345_6000, 0x10);
    assert_eq!(outbox, [0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5]);
}

/// Section 1.5: a reset preserves config space and immediately discards everything else.
#[test]
fn reset_discards_everything_except_config_space() {
    let mut driver = initialised();
    driver.store(Bar::Bar0, RESET, &[0, 0, 0, 1]);
    assert_eq!(driver.read(HCR + 0x18), 0, "the reset clears the HCR");
    let mut ids = [0; 4];
    driver.hca.region_read(Region::Config, 0, &mut ids);
    assert_eq!(ids, [0xb3, 0x15, 0x74, 0x62]);
    let (status, _) = driver.command(0x012, 1 << 9, 2);
    assert_eq!(status, CmdStatus::BadSysState.code());
    // After the reset, the region's page table entries cannot be read, as ICM is not mapped.
    driver.ok(0x007, &InitHca::DRIVER_DEFAULT.emit(), 0);
    let refused = driver.with_inbox(0x00d, &Mpt::buffer(0x11, 4096, MTT + 0x2000).bytes(), 0x11);
    assert_eq!(refused, CmdStatus::BadParam.code());
    // Values other than 1 do not reset the device.
    driver.write(RESET, 2);
    driver.ok(0x031, &[], 0x1f);
    assert_eq!(driver.with_inbox(0x00d, &Mpt::everything().bytes(), 0x10), 0);
}

/// Section 2.6: the error buffer reports a failure until the device is reset.
#[test]
fn catastrophic_error_is_reported_until_reset() {
    const CATASTROPHE: u64 = 0x8_3000;
    let mut driver = initialised();
    assert_eq!(driver.read(CATASTROPHE), 0);
    driver.hca.fail();
    assert_eq!(driver.load::<4>(Bar::Bar0, CATASTROPHE), [0, 0, 0, 1], "internal error");
    driver.write(CATASTROPHE, 0);
    assert_eq!(driver.read(CATASTROPHE), 1);
    replay(&mut driver, TEAR_DOWN);
    driver.write(RESET, 1);
    assert_eq!(driver.read(CATASTROPHE), 0);
    replay(&mut driver, BRING_UP);
}
