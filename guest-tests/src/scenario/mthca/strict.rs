//! Runs a driver with planted bugs and checks that each produces exactly the expected violation reports.
//!
//! The driver (`guest/planted_driver.py`) runs in the guest's user space in place of the kernel driver and performs the
//! same steps: reset, firmware, context memory, commands, queues and doorbells. For each bug, it reinitialises the
//! device and then makes a single mistake.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::planted::{Violations, meant};
use super::super::stock_pair::StockNode;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::line_program::LineProgram;
use crate::report::Report;
use crate::testbed::kind::Device;

const PROGRAM: &str = include_str!("../../../guest/planted_driver.py");
/// Timeout for one bug in an emulated guest, including the roughly forty commands that precede it.
const LIMIT: Duration = Duration::from_secs(60);

/// A planted bug, identified by its name in the program.
struct Planted {
    name: &'static str,
    about: &'static str,
    /// Rules that must be reported, each exactly once.
    rules: &'static [&'static str],
    /// Text in the report that identifies the bug: the object, and the expected and actual values.
    says: &'static str,
}

const fn planted(
    name: &'static str,
    about: &'static str,
    rules: &'static [&'static str],
    says: &'static str,
) -> Planted {
    Planted { name, about, rules, says }
}

const PLANTED: &[Planted] = &[
    planted(
        "wrong_lkey",
        "a WQE with a wrong L_Key",
        &["wqe_key"],
        "element 0 of the WQE at 0x40 of QP 0x8: local read of 8 bytes",
    ),
    planted(
        "early_doorbell",
        "a doorbell before its doorbell record",
        &["doorbell_link", "doorbell_record"],
        "QP 0x8: doorbell announces WQE count 0x2, doorbell record 1 has 0x1",
    ),
    planted(
        "stale_sequence",
        "a CQ armed with a stale sequence number",
        &["arm_sequence"],
        "CQ 0x8 armed with sequence number 1, expected 2",
    ),
    planted(
        "entry_kept",
        "a CQ entry that is not returned to the device",
        &["cqe_owner"],
        "CQ 0x8: entry 0x10 is not in hardware ownership, but the consumer index is 0x10",
    ),
    planted(
        "unread_events",
        "an EQ consumer index beyond the producer index",
        &["eq_consumer"],
        "EQ 0x1: consumer index 0x3 is past producer index 0x0",
    ),
    planted(
        "unnamed_attribute",
        "an attribute that is not in the mask",
        &["qp_unnamed"],
        "RST2INIT_QP of QP 0x8 sets the ACK timeout without opt_param_mask bit 14",
    ),
    planted(
        "freed_buffer",
        "a region freed before its CQ",
        &["mpt_in_use"],
        "the memory region with key 0x400 is the buffer of CQ 0x8",
    ),
    planted(
        "lost_records",
        "doorbell records unmapped before their queues are destroyed",
        &["unmap_in_use"],
        "UNMAP_ICM at ICM address 0x162000, page count 1: the pages still hold a doorbell record of QP 0x8",
    ),
    planted("no_firmware", "INIT_HCA before RUN_FW", &["firmware_order"], "INIT_HCA before RUN_FW"),
    planted(
        "busy_register",
        "a command issued before the previous one completed",
        &["hcr_not_polled"],
        "HCR.in_param[63:32] written before software polled the previous command to completion",
    ),
];

/// All violations in this scenario are intentional.
const EXPLAINED: &[Explained] = &[
    meant("wqe_key"),
    meant("doorbell_link"),
    meant("doorbell_record"),
    meant("arm_sequence"),
    meant("cqe_owner"),
    meant("eq_consumer"),
    meant("qp_unnamed"),
    meant("mpt_in_use"),
    meant("unmap_in_use"),
    meant("firmware_order"),
    meant("hcr_not_polled"),
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("strict-mthca")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let started = StockNode::start_alone(Device::Mthca, lab, &run, Vec::new(), Some(EXPLAINED)).await;
    let mut node = started.with_context(|| hint.clone())?;
    let driver = LineProgram::start(&mut node.vm, PROGRAM).await.with_context(|| hint.clone())?;
    report.case("a correct driver triggers no reports", &hint, expect_no_report(&mut node, driver)).await?;
    for planted in PLANTED {
        report.case(planted.about, &hint, expect_reports(&mut node, driver, planted)).await?;
    }
    report
        .case("the correct driver still triggers no reports", &hint, expect_no_report(&mut node, driver))
        .await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, node.stop()).await
}

/// Checks that no violation is reported for the driver without planted bugs.
async fn expect_no_report(node: &mut StockNode, driver: LineProgram) -> Result<()> {
    let before = Violations::by_now(node).await?;
    driver.ask::<Value>(LIMIT, &mut node.vm, "nothing", json!({})).await?;
    before.expect_none_since(node).await
}

/// Checks that a bug produces exactly the expected reports and that the daemon's log identifies it.
async fn expect_reports(node: &mut StockNode, driver: LineProgram, planted: &Planted) -> Result<()> {
    let before = Violations::by_now(node).await?;
    driver.ask::<Value>(LIMIT, &mut node.vm, planted.name, json!({})).await?;
    let new = before.since(node, planted.says).await?;
    let expected: BTreeMap<String, u64> = planted.rules.iter().map(|rule| (rule.to_string(), 1)).collect();
    ensure!(new == expected, "reported: {new:?}, expected {expected:?}");
    Ok(())
}
