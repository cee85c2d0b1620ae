//! What kernels say about an E810 at level warning or worse though nothing is wrong (E810 interface, sections 6.2 and
//! 17.4).

use anyhow::{Result, ensure};

/// Parts of such lines.
const NORMAL: &[&str] = &[
    // On the root bus there is no link to have a speed.
    "available PCIe bandwidth",
    "FW logging is not supported",
    // The package of this one device, which is looked for before that of all.
    "firmware: failed to load intel/ice/ddp/ice-",
    "Direct firmware load for intel/ice/ddp/ice-",
    "Failed to apply Tx scheduling configuration",
    "QinQ functionality cannot be enabled",
    "Failed to remove Rx LLDP rule",
    "into aggregator",
    "Unable to turn off FW logging",
    "Unable to unregister FW logging",
    // 7.3's irdma forgets a CQ, then destroys it, and then looks for its events in their queue: an interrupt in between
    // finds them first.
    "Stale CEQE for CQ",
];

/// The same where there is no package.
const SAFE_MODE: &[&str] = &[
    "firmware: failed to load intel/ice/ddp/ice.pkg",
    "Direct firmware load for intel/ice/ddp/ice.pkg",
    // The kernel says once where it would have found firmware.
    "See https://wiki.debian.org/Firmware",
    "The DDP package file was not found or could not be read. Entering Safe Mode",
    "Fail during requesting FW",
    // In safe mode.
    "RDMA is not supported on this device",
    // 6.12 leaves itself two, whatever there are.
    "not enough device MSI-X vectors",
];

/// Fails when there is a line of another kind.
pub(super) fn judge(lines: &[String]) -> Result<()> {
    judge_others(lines, &[])
}

/// The same for a driver in safe mode.
pub(super) fn judge_safe_mode(lines: &[String]) -> Result<()> {
    judge_others(lines, SAFE_MODE)
}

/// The same where lines with one of these parts are accounted for.
pub(super) fn judge_but(lines: &[String], also: &[&str]) -> Result<()> {
    judge_others(lines, also)
}

fn judge_others(lines: &[String], also: &[&str]) -> Result<()> {
    let others: Vec<_> =
        others(lines).into_iter().filter(|line| !also.iter().any(|text| line.contains(text))).collect();
    ensure!(others.is_empty(), "the kernel logged warnings:\n{others:#?}");
    Ok(())
}

/// Lines of another kind.
pub(super) fn others(lines: &[String]) -> Vec<String> {
    let known = |line: &&String| NORMAL.iter().any(|text| line.contains(text));
    lines.iter().filter(|line| !known(line)).cloned().collect()
}
