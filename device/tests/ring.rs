//! Tests `hcad` processes that communicate through shared memory, in the default sandbox.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::machine::{Machine, WRITE, exchange, write_to};
use crate::common::{hcactl, until};
use serde_json::json;
use tempfile::TempDir;

/// Starts a daemon with the device `id` on the ring.
fn start(ring: &TempDir, id: u16) -> Machine {
    Machine::start(id, &json!({ "ring": { "folder": ring.path().join("ring") } }), &[])
}

/// Waits until the ring's other members are exactly these devices.
fn wait_for_members(machine: &Machine, ids: &[u16]) {
    let wanted: Vec<_> = ids.iter().map(|id| format!("02:00:00:00:00:{id:02x}")).collect();
    until("members of the ring", || {
        let rows = machine.ask(&["peer", "list"]);
        let macs = rows.as_array().unwrap().iter().map(|row| row["mac"].as_str().unwrap());
        macs.eq(wanted.iter().map(String::as_str)).then_some(())
    });
}

#[test]
fn processes_with_same_directory_exchange_frames() {
    let ring = tempfile::tempdir().unwrap();
    let (mut a, mut b) = (start(&ring, 1), start(&ring, 2));
    wait_for_members(&a, &[2]);
    wait_for_members(&b, &[1]);
    for n in 0..2 {
        a.connect(n, 2);
        b.connect(n, 1);
    }
    exchange(&mut a, &mut b, 0);
    exchange(&mut b, &mut a, 1);
    for machine in [&a, &b] {
        assert_eq!((machine.fabric("rings_broken"), machine.fabric("tx_refused")), (0, 0));
        let rows = machine.ask(&["peer", "list"]);
        assert_eq!(rows[0]["rx_frames"], machine.fabric("rx_frames"));
        assert_eq!(rows[0]["tx_frames"], machine.fabric("tx_frames"));
    }
    let error = hcactl(&a.control, &["peer", "add", "127.0.0.1:9"]).unwrap_err();
    assert!(error.contains("ring members cannot be added or removed"), "{error}");
}

#[test]
fn restarted_process_is_reachable_again() {
    let ring = tempfile::tempdir().unwrap();
    // One process creates the memory for a link, and the other receives it. Kill each of them in turn.
    for (stays, killed) in [(1, 2), (2, 1)] {
        let (mut a, b) = (start(&ring, stays), start(&ring, killed));
        wait_for_members(&a, &[killed]);
        b.signal(libc::SIGKILL);
        wait_for_members(&a, &[]);
        drop(b);
        let mut b = start(&ring, killed);
        wait_for_members(&a, &[killed]);
        wait_for_members(&b, &[stays]);
        a.connect(0, killed);
        b.connect(0, stays);
        exchange(&mut a, &mut b, 0);
        assert_eq!(a.fabric("rings_broken"), 0);
    }
}

#[test]
fn stopped_process_does_not_block_others() {
    /// Number of QPs that send to the stopped process. Together, their messages exceed the size of the ring.
    const MANY: u32 = 16;
    let ring = tempfile::tempdir().unwrap();
    let mut machines = [1, 2, 3].map(|id| start(&ring, id));
    let [a, b, c] = &mut machines;
    wait_for_members(a, &[2, 3]);
    for n in 0..MANY + 1 {
        a.connect(n, 3);
        c.connect(n, 1);
    }
    a.connect(MANY + 1, 2);
    b.connect(MANY + 1, 1);

    c.signal(libc::SIGSTOP);
    for n in 0..MANY {
        a.send(n, 0, WRITE, &write_to(0, 1 << 20));
    }
    until("refused frames", || (a.fabric("tx_refused") > 0).then_some(()));
    let rows = a.ask(&["peer", "list"]);
    assert!(rows[1]["tx_refused"].as_u64() > Some(0) && rows[0]["tx_refused"] == 0, "{rows}");
    exchange(a, b, MANY + 1);

    c.signal(libc::SIGCONT);
    // Frames that do not fit in the ring would be sent again only after the ACK timeout.
    until("an empty ring", || (a.ask(&["peer", "list"])[1]["tx_waiting_bytes"] == 0).then_some(()));
    exchange(a, c, MANY);
    assert_eq!((a.fabric("rings_broken"), c.fabric("rings_broken")), (0, 0));
}
