//! Tests of interrupts (E810 interface, section 3).

use std::time::Duration;

use card::vfio::server::{Device as _, Region};
use protocol::hca::e810::regs::Register;

use super::*;

const INTENA: u32 = 1 << 0;
const CLEARPBA: u32 = 1 << 1;
const SWINT_TRIG: u32 = 1 << 2;
const INTENA_MSK: u32 = 1 << 31;

fn pulse(driver: &mut Driver) {
    let up = driver.bus.hca.is_link_up();
    driver.bus.hca.set_link(!up);
}

/// Creates a driver with link events enabled, so that each [`pulse`] raises the admin queue cause.
fn listening() -> Driver {
    let mut driver = started();
    driver.succeed(&link::want_events());
    driver
}

use super::link;

#[test]
fn signalled_vector_is_disabled_but_keeps_pending_causes() {
    let mut driver = listening();
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1);
    assert_eq!(driver.read(Register::GlintDynCtl(0)) & INTENA, 0);
    pulse(&mut driver);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 0);
    driver.write(Register::GlintDynCtl(0), INTENA | CLEARPBA | 3 << 3);
    assert_eq!(driver.interrupts(0), 1, "the two events cause one interrupt, which CLEARPBA does not drop");
    driver.enable_vector(0);
    assert_eq!(driver.interrupts(0), 0);
    assert_eq!(driver.read(Register::GlintDynCtl(0)) & INTENA, INTENA);
}

#[test]
fn disabled_cause_does_not_signal() {
    let mut driver = listening();
    driver.write(Register::PfintFwCtl, 0);
    pulse(&mut driver);
    driver.enable_vector(0);
    assert_eq!(driver.interrupts(0), 0);
    assert!(driver.event().is_some(), "the event is still written");
}

#[test]
fn control_register_routes_cause_to_vector() {
    let mut driver = listening();
    driver.write(Register::PfintFwCtl, 1 << 30 | 5);
    driver.enable_vector(5);
    pulse(&mut driver);
    assert_eq!([driver.interrupts(0), driver.interrupts(5)], [0, 1]);
    driver.write(Register::PfintFwCtl, 1 << 30 | 2047);
    pulse(&mut driver);
    assert_eq!(driver.read(Register::GlintDynCtl(2047)), 0, "the function does not have this vector");
}

#[test]
fn software_trigger_signals_vector() {
    let mut driver = started();
    driver.write(Register::GlintDynCtl(3), INTENA | SWINT_TRIG);
    assert_eq!(driver.interrupts(3), 1);
    driver.write(Register::GlintDynCtl(3), SWINT_TRIG);
    assert_eq!(driver.interrupts(3), 0);
    driver.write(Register::GlintDynCtl(3), INTENA);
    assert_eq!(driver.interrupts(3), 1);
}

#[test]
fn software_trigger_on_oicr_vector_sets_swint() {
    const SWINT: u32 = 1 << 31;
    let mut driver = started();
    driver.write(Register::PfintOicrCtl, 1 << 30 | 4);
    driver.enable_vector(4);
    // As in `ice`'s interrupt test, the write selects no interval and leaves the enable bit unchanged.
    driver.write(Register::GlintDynCtl(4), INTENA_MSK | SWINT_TRIG | 3 << 25);
    assert_eq!(driver.interrupts(4), 1);
    assert_eq!(driver.read(Register::PfintOicr), SWINT);
    driver.write(Register::GlintDynCtl(3), INTENA | SWINT_TRIG);
    assert_eq!(driver.read(Register::PfintOicr), 0, "triggering another vector must not set SWINT");
    driver.write(Register::PfintOicrCtl, 4);
    driver.write(Register::GlintDynCtl(4), INTENA | SWINT_TRIG);
    assert_eq!(driver.read(Register::PfintOicr), 0, "SWINT must not be set if the OICR cause is disabled");
}

#[test]
fn intena_msk_leaves_enable_bit_unchanged() {
    let mut driver = started();
    driver.write(Register::GlintDynCtl(2), INTENA_MSK | INTENA | SWINT_TRIG);
    assert_eq!(driver.interrupts(2), 0, "the vector stays disabled");
    driver.write(Register::GlintDynCtl(2), INTENA);
    assert_eq!(driver.interrupts(2), 1);
    driver.write(Register::GlintDynCtl(2), INTENA);
    driver.write(Register::GlintDynCtl(2), INTENA_MSK | SWINT_TRIG);
    assert_eq!(driver.interrupts(2), 1, "the vector stays enabled");
}

/// Section 3.1: when the guest starts to use an additional vector, QEMU disables all vectors and reinstalls all
/// eventfds.
#[test]
fn reinstalled_eventfds_deliver_pending_interrupts() {
    let mut driver = listening();
    driver.bus.hca.interrupts().disconnect();
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 0);
    driver.bus.wire();
    assert_eq!(driver.interrupts(0), 1);

    driver.enable_vector(0);
    driver.bus.hca.interrupts().set_masked(0, true);
    pulse(&mut driver);
    driver.bus.hca.interrupts().disconnect();
    driver.bus.wire();
    assert_eq!(driver.interrupts(0), 1, "the interrupt was pending while the vector was masked");
}

#[test]
fn interrupt_causes_stay_pending_until_msix_is_enabled() {
    let mut driver = listening();
    driver.bus.hca.region_write(Region::Config, 0x52, &[0, 0]);
    pulse(&mut driver);
    driver.bus.settle();
    assert_eq!(driver.interrupts(0), 0);
    driver.bus.hca.region_write(Region::Config, 0x52, &[0, 0x80]);
    driver.bus.settle();
    assert_eq!(driver.interrupts(0), 1);
}

#[test]
fn enabling_pending_oicr_cause_signals_vector() {
    let mut driver = started();
    driver.write(Register::PfintOicrCtl, 1 << 30 | 4);
    driver.enable_vector(4);
    driver.bus.hca.fail();
    assert_eq!(driver.interrupts(4), 0);
    driver.write(Register::PfintOicrEna, 1 << 16);
    assert_eq!(driver.interrupts(4), 1);
    assert_eq!(driver.read(Register::PfintOicr), 1 << 16);
    assert_eq!(driver.read(Register::PfintOicr), 0);
}

/// Advances time by `micros` microseconds and handles any deadline that has passed.
pub(super) fn wait(driver: &mut Driver, micros: u64) {
    driver.bus.now = driver.bus.now + Duration::from_micros(micros);
    driver.bus.hca.set_now(driver.bus.now);
    driver.bus.hca.handle_deadline();
}

#[test]
fn vector_signals_at_most_once_per_interval() {
    let mut driver = listening();
    driver.write(Register::GlintItr(1, 0), 25);
    driver.write(Register::PfintFwCtl, 1 << 30 | 1 << 11);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1, "the first signal is not delayed");
    driver.enable_vector(0);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 0);
    let due = driver.bus.now + Duration::from_micros(50);
    assert_eq!(driver.bus.hca.next_deadline(), Some(due));
    wait(&mut driver, 49);
    assert_eq!(driver.interrupts(0), 0);
    wait(&mut driver, 1);
    assert_eq!(driver.interrupts(0), 1);
    assert_eq!(driver.bus.hca.next_deadline(), None);
}

/// Section 3.4: the rate limit applies to all causes, and the longer of the limit and the cause's interval decides.
#[test]
fn rate_limit_delays_signals_of_all_causes() {
    const ENABLE: u32 = 1 << 6;
    for (rate, interval, expected_us) in
        [(ENABLE | 59, 0, 236), (ENABLE | 59, 126, 252), (ENABLE | 1, 25, 50), (59, 0, 0), (ENABLE, 25, 50)]
    {
        let mut driver = listening();
        driver.write(Register::GlintRate(0), rate);
        driver.write(Register::GlintItr(0, 0), interval);
        pulse(&mut driver);
        assert_eq!(driver.interrupts(0), 1, "the first signal is not delayed");
        driver.enable_vector(0);
        pulse(&mut driver);
        let due = (expected_us != 0).then(|| driver.bus.now + Duration::from_micros(expected_us));
        assert_eq!(
            (driver.interrupts(0), driver.bus.hca.next_deadline()),
            (due.is_none().into(), due),
            "{rate:#x}"
        );
        wait(&mut driver, expected_us);
        assert_eq!(driver.interrupts(0), u64::from(due.is_some()), "{rate:#x}");
    }
}

#[test]
fn enabling_vector_after_interval_signals_immediately() {
    let mut driver = listening();
    driver.write(Register::GlintItr(0, 0), 25);
    pulse(&mut driver);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1);
    wait(&mut driver, 50);
    assert_eq!(driver.interrupts(0), 0, "a disabled vector must not be signalled");
    driver.enable_vector(0);
    assert_eq!(driver.interrupts(0), 1);
}

#[test]
fn dyn_ctl_sets_intervals() {
    let mut driver = listening();
    driver.write(Register::GlintDynCtl(0), INTENA | 2 << 3 | 0xabc << 5);
    assert_eq!(driver.read(Register::GlintItr(2, 0)), 0xabc);
    driver.write(Register::GlintDynCtl(0), INTENA | 3 << 3 | 0xfff << 5);
    assert_eq!([0, 1, 2].map(|index| driver.read(Register::GlintItr(index, 0))), [0, 0, 0xabc]);
    driver.write(Register::GlintItr(0, 0), 0xffff_ffff);
    assert_eq!(driver.read(Register::GlintItr(0, 0)), 0xfff);
}

#[test]
fn cause_without_interval_signals_immediately() {
    let mut driver = listening();
    driver.write(Register::GlintItr(0, 0), 25);
    driver.write(Register::PfintFwCtl, 1 << 30);
    pulse(&mut driver);
    driver.enable_vector(0);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1);
    driver.write(Register::GlintDynCtl(0), INTENA | SWINT_TRIG | 3 << 3);
    assert_eq!(driver.interrupts(0), 1, "a software trigger without an interval signals at once");
    driver.enable_vector(0);
    wait(&mut driver, 50);
    assert_eq!(driver.interrupts(0), 0, "no interrupt may be repeated");
}
