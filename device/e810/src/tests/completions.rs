//! Tests of transmit completion coalescing (E810 interface, section 3.4).

use std::time::Duration;

use protocol::hca::e810::regs::Register;

use super::interrupts::wait;
use super::lan::{Nic, PEER, VECTOR, frame};
use crate::testing::MAC;

/// Coalescing timeout in microseconds.
const TIMEOUT_US: u64 = 1000;

/// Sends `frames` frames and rings the doorbell for each one.
fn send(nic: &mut Nic, frames: usize) {
    for _ in 0..frames {
        nic.send(&frame(PEER, MAC.0, 60), 0);
    }
    assert_eq!(nic.driver.bus.settle().len(), frames);
}

fn reply(nic: &mut Nic) {
    nic.receive_frame(&frame(MAC.0, PEER, 60));
}

#[test]
fn coalesced_completion_raises_interrupt_after_timeout() {
    let mut nic = Nic::new();
    send(&mut nic, 1);
    assert_eq!(
        nic.driver.bus.hca.next_deadline(),
        Some(nic.driver.bus.now + Duration::from_micros(TIMEOUT_US))
    );
    wait(&mut nic.driver, TIMEOUT_US - 1);
    assert_eq!(nic.interrupts(), 0);
    wait(&mut nic.driver, 1);
    assert_eq!(nic.interrupts(), 1);
    assert_eq!(nic.driver.bus.hca.next_deadline(), None);
}

#[test]
fn reply_shares_interrupt_with_completion() {
    let mut nic = Nic::new();
    for _ in 0..3 {
        send(&mut nic, 1);
        wait(&mut nic.driver, TIMEOUT_US / 2);
        reply(&mut nic);
        assert_eq!(nic.interrupts(), 1);
        nic.driver.enable_vector(VECTOR);
        wait(&mut nic.driver, 2 * TIMEOUT_US);
        assert_eq!(nic.interrupts(), 0, "one interrupt signals both the completion and the reply");
    }
}

#[test]
fn reply_in_same_turn_shares_interrupt() {
    let mut nic = Nic::new();
    nic.driver.bus.hca.handle_frame(&frame(MAC.0, PEER, 60));
    send(&mut nic, 1);
    assert_eq!(nic.interrupts(), 1);
    nic.driver.enable_vector(VECTOR);
    wait(&mut nic.driver, 2 * TIMEOUT_US);
    assert_eq!(nic.interrupts(), 0);
}

#[test]
fn fourth_completion_interrupts_immediately() {
    let mut nic = Nic::new();
    send(&mut nic, 3);
    assert_eq!(nic.interrupts(), 0);
    send(&mut nic, 1);
    assert_eq!(nic.interrupts(), 1);
    nic.driver.enable_vector(VECTOR);
    wait(&mut nic.driver, TIMEOUT_US);
    assert_eq!(nic.interrupts(), 0);
    send(&mut nic, 30);
    assert_eq!(nic.interrupts(), 1);
}

/// If the sender receives no replies, only the first completion is delayed.
#[test]
fn one_way_traffic_disables_coalescing() {
    let mut nic = Nic::new();
    send(&mut nic, 1);
    wait(&mut nic.driver, TIMEOUT_US);
    assert_eq!(nic.interrupts(), 1);
    for _ in 0..3 {
        nic.driver.enable_vector(VECTOR);
        send(&mut nic, 1);
        assert_eq!(nic.interrupts(), 1);
    }
    nic.driver.enable_vector(VECTOR);
    reply(&mut nic);
    assert_eq!(nic.interrupts(), 1);
    nic.driver.enable_vector(VECTOR);
    send(&mut nic, 1);
    assert_eq!(nic.interrupts(), 0, "a received frame enables coalescing again");
}

#[test]
fn completion_interrupt_is_pending_until_vector_is_enabled() {
    let mut nic = Nic::new();
    reply(&mut nic);
    assert_eq!(nic.interrupts(), 1);
    send(&mut nic, 1);
    wait(&mut nic.driver, TIMEOUT_US);
    assert_eq!((nic.interrupts(), nic.driver.bus.hca.next_deadline()), (0, None));
    nic.driver.enable_vector(VECTOR);
    assert_eq!(nic.interrupts(), 1);

    send(&mut nic, 1);
    nic.driver.enable_vector(VECTOR);
    assert_eq!(nic.interrupts(), 1, "a single completion is signalled when the vector is enabled");
}

/// Section 3.2: a vector is signalled at most once per interval, regardless of the cause.
#[test]
fn coalescing_respects_interval() {
    let mut nic = Nic::new();
    nic.driver.write(Register::GlintItr(0, VECTOR), 0xfff);
    reply(&mut nic);
    nic.driver.enable_vector(VECTOR);
    send(&mut nic, 4);
    assert_eq!(nic.interrupts(), 1);
    wait(&mut nic.driver, 2 * 0xfff - 1);
    assert_eq!(nic.interrupts(), 0);
    wait(&mut nic.driver, 1);
    assert_eq!(nic.interrupts(), 1);
}
