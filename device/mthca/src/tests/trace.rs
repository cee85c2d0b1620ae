//! Tests the traces of the driver's probe (mthca interface, section 14.3), of commands on a program's objects, and of
//! rejected commands.

use card::frontend::testing::assert_golden;
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;

use super::user::{CQN, QPN, RC, SRQN, User, cq_context, qpc, srq_context};
use super::*;

fn commands(driver: &mut Driver, run: impl FnOnce(&mut Driver)) -> String {
    let written = Written::default();
    driver.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    run(driver);
    driver.hca.flush();
    let text = written.text();
    text.lines().filter(|line| line.contains(" command ")).flat_map(|line| [line, "\n"]).collect()
}

/// Creates, queries and destroys each kind of object.
fn objects(user: &mut Driver) {
    user.ok(0x017, &[], CQN);
    user.ok(0x016, &cq_context(), CQN);
    let mut resize = [0; 0x40];
    resize[0x0c] = 4;
    resize[0x1c..0x20].copy_from_slice(&[0, 0, 0x20, 0]);
    user.ok(0x102c, &resize, CQN);
    user.ok(0x036, &[], SRQN);
    user.ok(0x035, &srq_context(), SRQN);
    assert_eq!(user.command(0x040, 2, SRQN).0, 0);
    user.ok(0x037, &[], SRQN);
    user.connect(&qpc(RC, 2));
    user.ok(0x022, &[], QPN);
    user.ok(0x2021, &[], QPN);
    user.ok(0x00c, &[0, 0, 0, 1, 2, 0x51, 0x0a, 0x68], 1);
    assert_eq!(user.command(0xff9, MTT, 64).0, 0);
    // The device rejects each of these commands. The causes are, in order: an MPT index that does not match the key, an
    // invalid page size, an unknown opcode, and an inaccessible mailbox.
    let region = Mpt { key: 0x30, ..Mpt::everything() };
    assert_eq!(user.with_inbox(0x00d, &region.bytes(), 0x31), CmdStatus::BadIndex.code());
    let pages = Mpt { log_pages: 20, ..region };
    assert_eq!(user.with_inbox(0x00d, &pages.bytes(), 0x30), CmdStatus::BadParam.code());
    assert_eq!(user.command(0x055, 0, 0).0, CmdStatus::BadOp.code());
    assert_eq!(user.command(0x016, u64::MAX - 0xfff, CQN).0, CmdStatus::InternalErr.code());
}

/// To update the golden file, run with HCAD_UPDATE_GOLDEN=1 and review the diff.
#[test]
fn mailbox_trace_matches_golden_file() {
    let probe = commands(&mut powered_on(), |driver| replay(driver, probe::BRING_UP));
    let program = commands(&mut User::new(1), objects);
    assert_golden(
        concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/trace_commands.txt"),
        &format!("{probe}{program}"),
    );
}

#[test]
fn json_trace_contains_mailbox_fields() {
    let written = Written::default();
    let mut user = User::new(1);
    user.hca.set_trace(Some(written.trace(TraceFormat::Json)));
    user.connect(&qpc(RC, 2));
    user.hca.flush();
    let text = written.text();
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let rtr = records.into_iter().find(|record| record["name"] == "INIT2RTR_QP").unwrap();
    let (qpn, inbox) = (&rtr["qpn"], &rtr["in"]);
    assert_eq!((qpn, &inbox["kind"], &inbox["mtu"]), (&QPN.into(), &"RC".into(), &1.into()));
    assert_eq!(inbox["primary"]["address"]["dlid"], 2);
    assert_eq!((&inbox["responder"]["reads"], &inbox["rmsn"]), (&true.into(), &0.into()));
}
