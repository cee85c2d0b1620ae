//! Kernel messages of level warning or more severe that an E810 causes without an error (E810 interface, sections 6.2
//! and 17.4).

use anyhow::{Result, ensure};

/// Parts of expected messages.
const NORMAL: &[&str] = &[
    // On the root bus, there is no link speed.
    "available PCIe bandwidth",
    "FW logging is not supported",
    // The driver searches for a device-specific package before the common one.
    "firmware: failed to load intel/ice/ddp/ice-",
    "Direct firmware load for intel/ice/ddp/ice-",
    "Failed to apply Tx scheduling configuration",
    "QinQ functionality cannot be enabled",
    "Failed to remove Rx LLDP rule",
    "into aggregator",
    "Unable to turn off FW logging",
    "Unable to unregister FW logging",
    // irdma of kernel 7.3 first unlinks a CQ, then destroys it, and then removes its events from the CEQ. An interrupt
    // in between finds these events.
    "Stale CEQE for CQ",
];

/// Parts of expected messages without a package.
const SAFE_MODE: &[&str] = &[
    "firmware: failed to load intel/ice/ddp/ice.pkg",
    "Direct firmware load for intel/ice/ddp/ice.pkg",
    // The kernel prints once where firmware can be found.
    "See https://wiki.debian.org/Firmware",
    "The DDP package file was not found or could not be read. Entering Safe Mode",
    "Fail during requesting FW",
    // The driver is in safe mode.
    "RDMA is not supported on this device",
    // The driver of kernel 6.12 keeps only two vectors.
    "not enough device MSI-X vectors",
];

/// Fails if there is an unexpected message.
pub(super) fn judge(lines: &[String]) -> Result<()> {
    judge_others(lines, &[])
}

/// Fails if there is an unexpected message of a driver in safe mode.
pub(super) fn judge_safe_mode(lines: &[String]) -> Result<()> {
    judge_others(lines, SAFE_MODE)
}

/// Fails if there is an unexpected message without any of these parts.
pub(super) fn judge_but(lines: &[String], also: &[&str]) -> Result<()> {
    judge_others(lines, also)
}

fn judge_others(lines: &[String], also: &[&str]) -> Result<()> {
    let others: Vec<_> =
        others(lines).into_iter().filter(|line| !also.iter().any(|text| line.contains(text))).collect();
    ensure!(others.is_empty(), "the kernel logged warnings:\n{others:#?}");
    Ok(())
}

pub(super) fn others(lines: &[String]) -> Vec<String> {
    let known = |line: &&String| NORMAL.iter().any(|text| line.contains(text));
    lines.iter().filter(|line| !known(line)).cloned().collect()
}
