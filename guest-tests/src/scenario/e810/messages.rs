//! Expected kernel messages about an E810 at warning level or above (E810 interface, sections 6.2 and 17.4).

use anyhow::{Result, ensure};

/// Substrings of expected messages.
const NORMAL: &[&str] = &[
    // The root bus has no link speed.
    "available PCIe bandwidth",
    "FW logging is not supported",
    // The driver tries to load a device-specific DDP package before the common one.
    "firmware: failed to load intel/ice/ddp/ice-",
    "Direct firmware load for intel/ice/ddp/ice-",
    "Failed to apply Tx scheduling configuration",
    "QinQ functionality cannot be enabled",
    "Failed to remove Rx LLDP rule",
    "into aggregator",
    "Unable to turn off FW logging",
    "Unable to unregister FW logging",
    // In kernel 7.3, irdma unlinks a CQ, then destroys it, and only then removes its events from the CEQ. If an
    // interrupt arrives in between, its handler still finds the CQ's events.
    "Stale CEQE for CQ",
];

/// Substrings of messages that are expected if there is no DDP package.
const SAFE_MODE: &[&str] = &[
    "firmware: failed to load intel/ice/ddp/ice.pkg",
    "Direct firmware load for intel/ice/ddp/ice.pkg",
    // The kernel logs a link to instructions for installing firmware, but only once.
    "See https://wiki.debian.org/Firmware",
    "The DDP package file was not found or could not be read. Entering Safe Mode",
    "Fail during requesting FW",
    // In safe mode, the driver does not support RDMA.
    "RDMA is not supported on this device",
    // In kernel 6.12, the driver keeps only two interrupt vectors.
    "not enough device MSI-X vectors",
];

/// Fails on any unexpected message.
pub(in crate::scenario) fn check(lines: &[String]) -> Result<()> {
    check_others(lines, &[])
}

/// Fails on any message that is unexpected for a driver in safe mode.
pub(in crate::scenario) fn check_safe_mode(lines: &[String]) -> Result<()> {
    check_others(lines, SAFE_MODE)
}

/// Fails on any unexpected message that contains none of the substrings in `also`.
pub(in crate::scenario) fn check_except(lines: &[String], also: &[&str]) -> Result<()> {
    check_others(lines, also)
}

fn check_others(lines: &[String], also: &[&str]) -> Result<()> {
    let others: Vec<_> =
        others(lines).into_iter().filter(|line| !also.iter().any(|text| line.contains(text))).collect();
    ensure!(others.is_empty(), "the kernel logged warnings:\n{others:#?}");
    Ok(())
}

pub(in crate::scenario) fn others(lines: &[String]) -> Vec<String> {
    let known = |line: &&String| NORMAL.iter().any(|text| line.contains(text));
    lines.iter().filter(|line| !known(line)).cloned().collect()
}
