//! Event queues (mthca interface, sections 2.4, 7.7 and 7.8).

use super::*;

/// Section 13.3 gives the bytes of the port event.
#[test]
fn map_eq_selects_eq_for_port_events() {
    let mut driver = with_port();
    driver.hca.set_link(false);
    driver.hca.set_link(true);
    let entry = driver.eqe(2, 1);
    assert_eq!((entry[1], entry[3], &entry[0x0c..0x10]), (0x09, 0x04, &[0x10, 0, 0, 0][..]));
    assert_ne!(driver.eqe(2, 0)[3], 0x04);
    assert_eq!((driver.interrupts(0), driver.interrupts(1), driver.interrupts(2)), (0, 1, 0));

    // Mapping the event type to another queue redirects its events. Once the type is unmapped, its
    // events are dropped.
    assert_eq!(driver.command(0x012, 1 << 9, 1).0, 0);
    driver.hca.set_link(false);
    assert_eq!(driver.eqe(1, 0)[1], 0x09);
    assert_eq!(driver.command(0x012, 1 << 9, 0x8000_0001).0, 0);
    driver.hca.set_link(true);
    assert_eq!((driver.eqe(1, 1)[1], driver.eqe(2, 2)[1]), (0, 0));
}

#[test]
fn armed_eq_raises_only_one_interrupt() {
    let mut driver = with_port();
    let change = |driver: &mut Driver, up| driver.hca.set_link(up);
    change(&mut driver, false);
    change(&mut driver, true);
    assert_eq!(driver.interrupts(1), 1, "a new EQ is armed for one event");
    // Arming other queues, existing or not, does not arm this one.
    driver.write(EQ_ARM, 0xffff_fff9);
    assert_eq!(driver.interrupts(1), 0);
    driver.write(EQ_SET_CI + 16, 1);
    driver.write(EQ_ARM, 1 << 2);
    assert_eq!(driver.interrupts(1), 1, "arming an EQ with an unread entry raises an interrupt");
    driver.write(EQ_SET_CI + 16, 2);
    driver.write(EQ_ARM, 1 << 2);
    assert_eq!(driver.interrupts(1), 0);
    change(&mut driver, false);
    assert_eq!(driver.interrupts(1), 1);
}

#[test]
fn eq_overflow_is_reported_when_eq_has_room_again() {
    let mut driver = with_port();
    let mut up = true;
    let mut change = |driver: &mut Driver| {
        up = !up;
        driver.hca.set_link(up);
    };
    (0..300).for_each(|_| change(&mut driver));
    assert_eq!(driver.eqe(2, 0)[1], 0x09, "the first event is not overwritten");
    driver.write(EQ_SET_CI + 16, 256);
    driver.poke(EQ_BUFFERS[2], &[0; 64]);
    change(&mut driver);
    assert_eq!((driver.eqe(2, 0)[1], driver.eqe(2, 1)[1]), (0x0f, 0x09));
}

#[test]
fn destroyed_eq_does_not_receive_events() {
    let mut driver = with_port();
    driver.ok(0x014, &[], 2);
    driver.hca.set_link(false);
    assert_eq!(driver.eqe(2, 0), [0; 32]);
    // A re-created queue does not receive events before MAP_EQ.
    driver.ok(0x013, &eq_context(8, 1, 0x1200), 2);
    driver.hca.set_link(true);
    assert_eq!(driver.eqe(2, 0), [0; 32]);
}

#[test]
fn eq_without_region_loses_events() {
    let mut driver = with_port();
    driver.ok(0x100f, &[], 0x12);
    driver.hca.set_link(false);
    assert_eq!((driver.eqe(2, 0), driver.interrupts(1)), (vec![0; 32], 0));
    driver.ok(0x031, &[], 0x1f);
}

#[test]
fn command_event_carries_token_and_result() {
    let mut driver = initialised();
    driver.interface.events = command_events(0xffe1);
    for _ in 0..600 {
        assert_eq!(driver.command(0x031, 0, 0x1f), (0, OUTBOX));
    }
    let (status, _) = driver.command(0x014, 0, 9);
    assert_eq!(status, CmdStatus::BadResState.code(), "the event reports the rejection");
    assert_eq!(driver.command(0xffd, 0x1000, 0), (0, 1), "the event carries the immediate result");
    let interrupts = driver.interrupts(2);
    driver.interface.events = None;
    driver.ok(0x031, &[], 0x1f);
    assert_eq!(driver.interrupts(2), interrupts, "a polled command raises no event");
}
