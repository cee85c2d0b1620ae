//! Tests of both sides of enforced limits. The last object within a limit works. The next one is rejected with the
//! right status, counted, and logged in one line (section 3.3.6).

use card::frontend::testing::logged;
use drivers::mthca::{Cq, srq_context};

use super::*;

/// Issues a command and checks that it is rejected with this status, and that the log has a single line, which contains
/// `line`.
#[track_caller]
fn refused(driver: &mut Driver, op: u32, inbox: &[u8], in_modifier: u32, status: CmdStatus, line: &str) {
    let text = logged(|| assert_eq!(driver.with_inbox(op, inbox, in_modifier), status.code()));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(line), "{text}");
}

fn cq(cqn: u32, log_entries: u8) -> Vec<u8> {
    Cq { cqn, log_entries, pd: 1, lkey: 0x1100, record: 0, arm_record: 1 }.bytes()
}

#[test]
fn longest_completion_queue_works_and_longer_is_rejected() {
    let mut driver = initialised();
    driver.ok(0x016, &cq(0x20, 17), 0x20);
    refused(&mut driver, 0x016, &cq(0x21, 18), 0x21, CmdStatus::ExceedLim, "log2 of the CQ size 0x12");
    let resized = |log_entries: u32| drivers::mthca::words(&[0, 0, 0, log_entries << 24], 0x40);
    driver.ok(0x102c, &resized(17), 0x20);
    refused(&mut driver, 0x102c, &resized(18), 0x20, CmdStatus::ExceedLim, "log2 of the CQ size 0x12");
}

#[test]
fn longest_shared_receive_queue_works_and_longer_is_rejected() {
    let limits = serde_json::from_str(r#"{"max_srq_wqes": 1024}"#).unwrap();
    let mut driver = powered_on_with(1, Options { limits, ..Options::default() });
    replay(&mut driver, probe::BRING_UP);
    // A ring needs one slot more than the number of requests, and the number of slots is rounded up to a power of two.
    driver.ok(0x035, &srq_context(0x50, [11, 2], 1, 0x1100, 2), 0x50);
    let next = srq_context(0x51, [12, 2], 1, 0x1100, 2);
    refused(&mut driver, 0x035, &next, 0x51, CmdStatus::ExceedLim, "SRQ");
}

#[test]
fn last_event_queue_works_and_next_is_rejected() {
    let mut driver = initialised();
    driver.ok(0x013, &eq_context(8, 0, 0x1100), 31);
    let next = eq_context(8, 0, 0x1100);
    refused(&mut driver, 0x013, &next, 32, CmdStatus::BadIndex, "EQ number 0x20");
}

#[test]
fn last_region_works_and_next_is_rejected() {
    let mut driver = initialised();
    let region = |slot| Mpt::buffer(slot, 4096, MTT + 0x1000).bytes();
    driver.ok(0x00d, &region(0x1_ffff), 0x1_ffff);
    refused(&mut driver, 0x00d, &region(0x2_0000), 0x2_0000, CmdStatus::BadIndex, "0x20000");
}

#[test]
fn largest_icm_size_is_accepted_and_larger_is_rejected() {
    let mut driver = powered_on();
    assert_eq!(driver.command(0xffd, 1 << 35, 0).0, 0);
    let text = logged(|| {
        assert_eq!(driver.command(0xffd, (1 << 35) + 0x1000, 0).0, CmdStatus::ExceedLim.code());
    });
    assert!(text.lines().count() == 1 && text.contains("ICM size 0x800001000"), "{text}");
}
