//! Tests of registers and resets (sections 1.2 and 2).

use card::vfio::Bar;
use card::vfio::server::{Device as _, Region};
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::regs::Register;

use super::*;
use crate::Options;

#[test]
fn constant_registers_have_values_that_drivers_require() {
    let mut driver = powered_on(Options::default());
    for (register, value) in [
        (Register::PfFuncRid, 0),
        (Register::GlgenRstat, 0),
        (Register::GlgenRstctl, 0),
        (Register::GlnvmUld, 0x73f),
        (Register::GlnvmGens, 0xc0),
        (Register::GlnvmFla, 0x40),
        (Register::GlMngFwsm, 0),
        (Register::GlPwrModeCtl, 0x4000_0000),
        (Register::GlgenClkstatSrc, 0),
        (Register::GlpciCnf2, 0),
        (Register::GlqfFdSize, 0x0200_0200),
        (Register::GlqfFdCnt, 0),
        (Register::GlpciLbarctrl, 0x20),
        (Register::GlpeCpustatus(0), 0x80),
        (Register::GlpeCpustatus(2), 0x80),
        (Register::PrtdcbGens, 7),
        // The function owns queues 0 to 63.
        (Register::PflanRxQalloc, 1 << 31 | 63 << 16),
    ] {
        driver.write(register, !value);
        assert_eq!(driver.read(register), value, "{register}");
    }
}

#[test]
fn unknown_registers_read_as_zero() {
    let mut driver = powered_on(Options::default());
    for offset in [0, 0x9_1004, 0x22_fc00, 0x7f_0000, 0x7f_fffc] {
        driver.bus.store(Bar::Bar0, offset, &[0xff; 4]);
        assert_eq!(driver.bus.load(Bar::Bar0, offset), [0; 4], "{offset:#x}");
    }
}

#[test]
fn read_write_registers_keep_value_until_reset() {
    let mut driver = powered_on(Options::default());
    let kept =
        [Register::GlintVect2func(3), Register::GlintRate(5), Register::GlqfHmask(3), Register::GlintCtl];
    for register in kept {
        driver.write(register, 0x1234);
        assert_eq!(driver.read(register), 0x1234, "{register}");
    }
    driver.write(Register::PfgenCtrl, 1);
    assert_eq!(driver.read(Register::PfgenCtrl), 0, "a reset completes before the register can be read");
    assert_eq!(kept.map(|register| driver.read(register)), [0; 4]);
}

#[test]
fn admin_queue_registers_can_be_read_back() {
    let mut driver = started();
    assert_eq!(driver.read(Register::PfFwAtqlen), 0x8000_00c0);
    assert_eq!(driver.read(Register::PfFwArqlen), 0x8000_00c0);
    assert_eq!(driver.read(Register::PfFwAtqbal), 0x1_0000);
    driver.write(Register::PfMbxAtqt, 5);
    assert_eq!(
        driver.read(Register::PfMbxAtqh),
        5,
        "mailbox messages complete although no function receives them"
    );
}

/// Returns a device with state that every reset must clear.
fn used() -> Driver {
    let mut driver = started();
    driver.succeed(&AdminCommand::direct(Opcode::GetVersion, [0; 16]));
    driver.write(Register::PfintOicrEna, 1 << 16);
    driver.write(Register::QintRqctl(3), 1 << 30 | 2);
    driver
}

fn is_fresh(driver: &mut Driver) -> bool {
    [
        Register::PfFwAtqlen,
        Register::PfFwArqlen,
        Register::PfFwAtqh,
        Register::PfFwAtqt,
        Register::PfintOicrEna,
        Register::PfintFwCtl,
        Register::QintRqctl(3),
        Register::GlintDynCtl(0),
    ]
    .into_iter()
    .all(|register| driver.read(register) == 0)
}

#[test]
fn every_reset_clears_function_state() {
    type Reset = fn(&mut Driver);
    let resets: [(&str, Reset); 5] = [
        ("function", |driver| driver.write(Register::PfgenCtrl, 1)),
        ("core", |driver| driver.write(Register::GlgenRtrig, 1)),
        ("global", |driver| driver.write(Register::GlgenRtrig, 2)),
        ("vfio", |driver| {
            driver.bus.hca.reset();
            driver.bus.hca.region_write(Region::Config, 4, &[6, 0]);
        }),
        ("function level", |driver| {
            driver.bus.hca.region_write(Region::Config, 0x68, &[0x10, 0xa8]);
            driver.bus.hca.region_write(Region::Config, 4, &[6, 0]);
        }),
    ];
    for (name, reset) in resets {
        let mut driver = used();
        assert!(!is_fresh(&mut driver), "{name}");
        reset(&mut driver);
        assert!(is_fresh(&mut driver), "{name}");
        driver.bus.hca.region_write(Region::Config, 0x52, &[0, 0x80]);
        driver.open_admin_queue();
        driver.succeed(&AdminCommand::direct(Opcode::GetVersion, [0; 16]));
    }
}

#[test]
fn non_trigger_bits_of_reset_registers_are_ignored() {
    let mut driver = used();
    driver.write(Register::PfgenCtrl, !1);
    driver.write(Register::GlgenRtrig, !0b11);
    assert!(!is_fresh(&mut driver));
}

#[test]
fn core_reset_sets_grst_cause_in_oicr() {
    let mut driver = used();
    driver.write(Register::PfintOicrEna, 1 << 20);
    driver.write(Register::PfintOicrCtl, 1 << 30 | 1);
    driver.enable_vector(1);
    driver.write(Register::GlgenRtrig, 1);
    assert_eq!(driver.interrupts(1), 1);
    assert_eq!(driver.read(Register::PfintOicr), 1 << 20);
    assert_eq!(driver.read(Register::PfintOicr), 0, "reading PFINT_OICR clears it");
}

/// The reset discards pending causes, so its interrupt cannot wait for the driver or for an interval.
#[test]
fn core_reset_interrupts_through_disabled_vector() {
    for enabled in [false, true] {
        let mut driver = used();
        driver.write(Register::PfintOicrEna, 1 << 20);
        driver.write(Register::PfintOicrCtl, 1 << 30 | 1);
        driver.write(Register::GlintItr(0, 1), 62);
        driver.enable_vector(1);
        driver.write(Register::GlintDynCtl(1), 1 << 2 | 1 << 31 | 3 << 3);
        assert_eq!(driver.interrupts(1), 1, "software interrupt");
        if enabled {
            driver.enable_vector(1);
        }
        driver.write(Register::GlgenRtrig, 1);
        assert_eq!(driver.interrupts(1), 1, "vector enabled: {enabled}");
        assert_eq!(driver.read(Register::PfintOicr), 1 << 20);
    }
}

#[test]
fn core_reset_respects_disabled_grst_cause() {
    let mut driver = used();
    driver.write(Register::PfintOicrCtl, 1 << 30 | 1);
    driver.enable_vector(1);
    driver.write(Register::GlgenRtrig, 1);
    assert_eq!(driver.interrupts(1), 0);
    assert_eq!(driver.read(Register::PfintOicr), 1 << 20);
}

/// `ice` reads the type when GRST is set. After a reset of an unknown type, it waits for five seconds.
#[test]
fn rstat_reports_type_of_device_reset() {
    let mut driver = used();
    for (trigger, reset_type) in [(0b01, 1), (0b10, 2), (0b11, 2), (0b01, 1)] {
        driver.write(Register::GlgenRtrig, trigger);
        assert_eq!(driver.read(Register::GlgenRstat), reset_type << 2, "{trigger:#b}");
    }
    driver.write(Register::PfgenCtrl, 1);
    assert_eq!(driver.read(Register::GlgenRstat), 1 << 2, "a function reset is not a reset of the device");
    driver.bus.hca.reset();
    driver.bus.hca.region_write(Region::Config, 4, &[6, 0]);
    assert_eq!(driver.read(Register::GlgenRstat), 0);
}

/// Each function needs a unique serial number, because `ice` shares state among functions with the same serial number.
#[test]
fn config_space_matches_e810() {
    let mut driver = powered_on(Options::default());
    let mut space = [0; 0x110];
    driver.bus.hca.region_read(Region::Config, 0, &mut space);
    assert_eq!(space[..4], [0x86, 0x80, 0x92, 0x15]);
    assert_eq!(space[8..12], [2, 0, 0, 2]);
    assert_eq!(space[0x2c..0x30], [0x86, 0x80, 1, 0]);
    assert_eq!(space[0x10], 0b1100, "BAR0 is a prefetchable 64-bit BAR");
    assert_eq!(space[0x1c], 0b1100);
    assert_eq!(space[0x54..0x5c], [3, 0, 0, 0, 3, 0x80, 0, 0], "the MSI-X structures are in BAR3");
    assert_eq!(space[0x100..0x10c], [3, 0, 1, 0, 1, 0, 0, 0xff, 0xff, 0x10, 0xe8, 0x02]);
    assert_eq!(driver.bus.hca.region_len(Region::Bar(Bar::Bar0)), 8 << 20);
    assert_eq!(driver.bus.hca.region_len(Region::Bar(Bar::Bar3)), 64 << 10);
}
