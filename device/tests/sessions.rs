//! Replays sessions of the stock drivers `ib_mthca`, `ice` and `irdma`, recorded in `guest-lab` guests. A failure means
//! that the device no longer behaves exactly as it did when the driver worked with it.
//!
//! If a change alters the behaviour intentionally, record the sessions again: `guest-lab run replay-sessions` prints
//! where it stores them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use card::telemetry::trace::TraceFormat;
use device::replay::{Options, run};

/// Replays a session. Returns the output, which contains each step with the device's actions, and the trace.
fn replay(session: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions").join(session);
    let trace = folder.path().join("trace");
    let trace_to = Some((trace.clone(), TraceFormat::Text));
    let options = Options { trace: trace_to, steps: true, ..Options::default() };
    let mut out = Vec::new();
    let result = run(&file, &options, &mut out);
    let out = String::from_utf8(out).unwrap();
    let end = out.lines().rev().take(6).collect::<Vec<_>>();
    assert!(result.is_ok(), "{session}: {end:#?}");
    assert_eq!(end[0], "no differences; recording ended: closed by hcad");
    (out, fs::read_to_string(trace).unwrap())
}

/// Replays a session and checks that each expected string appears in its steps or trace. This ensures that the session
/// still exercises what the test is meant to cover.
#[track_caller]
fn check_replay(session: &str, expected: &[&str]) {
    let (steps, trace) = replay(session);
    for text in expected {
        assert!(trace.contains(text) || steps.contains(text), "{session} does not show {text:?}");
    }
}

/// The driver loads, queries the device, maps ICM, and creates its event queues and special queue pairs.
#[test]
fn ib_mthca_probe_recording_can_be_replayed() {
    check_replay(
        "mthca-probe.record",
        &[
            " write reset at=bar0+0xf0010 ",
            " command QUERY_FW status=OK ",
            " command INIT_HCA status=OK ",
            " command MAP_ICM status=OK ",
            " command SW2HW_EQ status=OK ",
            " command CONF_SPECIAL_QP status=OK ",
            " command INIT_IB status=OK ",
            " command MAD_IFC status=OK ",
            " interrupt MSIX[2] delivery=sent",
        ],
    );
}

/// The errors are an unknown R_Key, an access beyond the end of a region, a local buffer without a valid L_Key, a
/// receive buffer that is too small, and an unreachable peer. Requests after each error are flushed.
#[test]
fn mthca_error_recording_can_be_replayed() {
    check_replay(
        "mthca-errors.record",
        &[
            " syndrome=REMOTE_ACCESS_ERR",
            " syndrome=LOCAL_PROT_ERR",
            " syndrome=REMOTE_INVAL_REQ_ERR",
            " syndrome=RETRY_EXC_ERR",
            " syndrome=WR_FLUSH_ERR",
        ],
    );
}

#[test]
fn ice_and_irdma_probe_recording_can_be_replayed() {
    check_replay(
        "e810-probe.record",
        &[
            " command read_nvm status=OK ",
            " command update_package status=OK ",
            " write PFPE_CQPDB ",
            " eqe completion ",
        ],
    );
}

/// The errors are an unknown R_Key, an access beyond the end of a region, a local buffer without a valid L_Key, a
/// receive buffer that is too small, and an unreachable peer.
#[test]
fn irdma_error_recording_can_be_replayed() {
    check_replay(
        "e810-errors.record",
        &[
            " eqe remote_access ",
            " eqe key_unallocated ",
            " eqe remote_invalid_request ",
            " eqe retries_exceeded ",
            " entry.error=true",
        ],
    );
}

/// Strings that appear if frames were lost, duplicated, delayed and reordered during the recording, and if sends
/// completed.
const IMPAIRMENTS: &[&str] = &[
    r#"impairment {"direction":"tx","action":"drop""#,
    r#"impairment {"direction":"rx","action":"drop""#,
    r#""action":{"duplicate""#,
    r#""action":{"delay""#,
    r#""action":{"reorder""#,
    " cqe send ",
];

#[test]
fn mthca_recording_over_impaired_link_can_be_replayed() {
    check_replay("mthca-loss.record", IMPAIRMENTS);
    check_replay("mthca-loss.record", &[" opcode=SEND ", " opcode=RDMA_READ "]);
}

#[test]
fn irdma_recording_over_impaired_link_can_be_replayed() {
    check_replay("e810-loss.record", IMPAIRMENTS);
}
