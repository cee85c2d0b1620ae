//! Interrupts (section 3).

use std::time::Duration;

use protocol::hca::e810::regs::Register;

use super::*;
use crate::vfio::server::{Device as _, Region};

const INTENA: u32 = 1 << 0;
const CLEARPBA: u32 = 1 << 1;
const SWINT_TRIG: u32 = 1 << 2;
const INTENA_MSK: u32 = 1 << 31;

fn pulse(driver: &mut Driver) {
    let up = driver.bus.hca.is_link_up();
    driver.bus.hca.set_link(!up);
}

/// With link events wanted, so that [`pulse`] fires the cause of the admin queue.
fn listening() -> Driver {
    let mut driver = started();
    driver.succeed(&link::want_events());
    driver
}

use super::link;

#[test]
fn a_vector_disables_itself_when_it_is_signalled_and_keeps_what_comes_meanwhile() {
    let mut driver = listening();
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1);
    assert_eq!(driver.read(Register::GlintDynCtl(0)) & INTENA, 0);
    pulse(&mut driver);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 0);
    driver.write(Register::GlintDynCtl(0), INTENA | CLEARPBA | 3 << 3);
    assert_eq!(driver.interrupts(0), 1, "once for both, and CLEARPBA drops none");
    driver.enable_vector(0);
    assert_eq!(driver.interrupts(0), 0);
    assert_eq!(driver.read(Register::GlintDynCtl(0)) & INTENA, INTENA);
}

#[test]
fn a_cause_that_is_not_enabled_signals_nothing() {
    let mut driver = listening();
    driver.write(Register::PfintFwCtl, 0);
    pulse(&mut driver);
    driver.enable_vector(0);
    assert_eq!(driver.interrupts(0), 0);
    assert!(driver.event().is_some(), "the event is there all the same");
}

#[test]
fn causes_go_where_they_are_routed() {
    let mut driver = listening();
    driver.write(Register::PfintFwCtl, 1 << 30 | 5);
    driver.enable_vector(5);
    pulse(&mut driver);
    assert_eq!([driver.interrupts(0), driver.interrupts(5)], [0, 1]);
    driver.write(Register::PfintFwCtl, 1 << 30 | 2047);
    pulse(&mut driver);
    assert_eq!(driver.read(Register::GlintDynCtl(2047)), 0, "a vector that the function has not");
}

#[test]
fn software_triggers_a_vector() {
    let mut driver = started();
    driver.write(Register::GlintDynCtl(3), INTENA | SWINT_TRIG);
    assert_eq!(driver.interrupts(3), 1);
    driver.write(Register::GlintDynCtl(3), SWINT_TRIG);
    assert_eq!(driver.interrupts(3), 0);
    driver.write(Register::GlintDynCtl(3), INTENA);
    assert_eq!(driver.interrupts(3), 1);
}

#[test]
fn software_trigger_shows_in_other_causes() {
    const SWINT: u32 = 1 << 31;
    let mut driver = started();
    driver.write(Register::PfintOicrCtl, 1 << 30 | 4);
    driver.enable_vector(4);
    // As `ice` writes it for its interrupt test: no interval, the enable as it is.
    driver.write(Register::GlintDynCtl(4), INTENA_MSK | SWINT_TRIG | 3 << 25);
    assert_eq!(driver.interrupts(4), 1);
    assert_eq!(driver.read(Register::PfintOicr), SWINT);
    driver.write(Register::GlintDynCtl(3), INTENA | SWINT_TRIG);
    assert_eq!(driver.read(Register::PfintOicr), 0, "the vector of a queue");
    driver.write(Register::PfintOicrCtl, 4);
    driver.write(Register::GlintDynCtl(4), INTENA | SWINT_TRIG);
    assert_eq!(driver.read(Register::PfintOicr), 0, "other causes are disabled");
}

#[test]
fn a_write_with_the_mask_bit_leaves_the_enable_as_it_is() {
    let mut driver = started();
    driver.write(Register::GlintDynCtl(2), INTENA_MSK | INTENA | SWINT_TRIG);
    assert_eq!(driver.interrupts(2), 0, "it was disabled");
    driver.write(Register::GlintDynCtl(2), INTENA);
    assert_eq!(driver.interrupts(2), 1);
    driver.write(Register::GlintDynCtl(2), INTENA);
    driver.write(Register::GlintDynCtl(2), INTENA_MSK | SWINT_TRIG);
    assert_eq!(driver.interrupts(2), 1, "it was enabled");
}

/// Section 3.1: QEMU disables the whole index and installs all eventfds again whenever one more vector is used.
#[test]
fn nothing_is_lost_while_the_vmm_wires_its_vectors_again() {
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
    assert_eq!(driver.interrupts(0), 1, "what waited for the vector to be unmasked");
}

#[test]
fn what_fires_while_msix_is_disabled_waits_for_it() {
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
fn other_causes_wait_in_their_register_until_they_are_enabled() {
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

/// Lets as many microseconds pass, and what is due then happen.
pub(super) fn wait(driver: &mut Driver, micros: u64) {
    driver.bus.now = driver.bus.now + Duration::from_micros(micros);
    driver.bus.hca.set_now(driver.bus.now);
    driver.bus.hca.handle_deadline();
}

#[test]
fn signals_of_a_vector_are_as_far_apart_as_the_driver_has_set() {
    let mut driver = listening();
    driver.write(Register::GlintItr(1, 0), 25);
    driver.write(Register::PfintFwCtl, 1 << 30 | 1 << 11);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1, "at once after a quiet time");
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

#[test]
fn a_vector_that_is_enabled_late_has_waited_already() {
    let mut driver = listening();
    driver.write(Register::GlintItr(0, 0), 25);
    pulse(&mut driver);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1);
    wait(&mut driver, 50);
    assert_eq!(driver.interrupts(0), 0, "it is not enabled");
    driver.enable_vector(0);
    assert_eq!(driver.interrupts(0), 1);
}

#[test]
fn the_control_of_a_vector_sets_its_intervals_too() {
    let mut driver = listening();
    driver.write(Register::GlintDynCtl(0), INTENA | 2 << 3 | 0xabc << 5);
    assert_eq!(driver.read(Register::GlintItr(2, 0)), 0xabc);
    driver.write(Register::GlintDynCtl(0), INTENA | 3 << 3 | 0xfff << 5);
    assert_eq!([0, 1, 2].map(|index| driver.read(Register::GlintItr(index, 0))), [0, 0, 0xabc]);
    driver.write(Register::GlintItr(0, 0), 0xffff_ffff);
    assert_eq!(driver.read(Register::GlintItr(0, 0)), 0xfff);
}

#[test]
fn a_cause_without_an_interval_does_not_wait_for_one_that_has_it() {
    let mut driver = listening();
    driver.write(Register::GlintItr(0, 0), 25);
    driver.write(Register::PfintFwCtl, 1 << 30);
    pulse(&mut driver);
    driver.enable_vector(0);
    pulse(&mut driver);
    assert_eq!(driver.interrupts(0), 1);
    driver.write(Register::GlintDynCtl(0), INTENA | SWINT_TRIG | 3 << 3);
    assert_eq!(driver.interrupts(0), 1, "a software trigger without an interval");
    driver.enable_vector(0);
    wait(&mut driver, 50);
    assert_eq!(driver.interrupts(0), 0, "and nothing comes twice");
}
