//! Expected kernel messages about a ConnectX (mlx5 interface, sections 1, 2.1 and 18.2).

use anyhow::{Result, ensure};

/// Substrings of messages that concern the device.
const SUBJECTS: &[&str] = &["mlx5", "infiniband", "ib_core", "ib_cm"];

/// Substrings of expected messages.
const NORMAL: &[&str] = &[
    "firmware version: 16.35.3006",
    "available PCIe bandwidth",
    // Without a vendor-specific PCI capability, crash dumps are not available.
    "Failed to get valid vendor specific ID",
    // Linux 6.12 reports that precision time measurement is not supported.
    "PTM is not supported by PCIe",
    // The device reports no support for flow counters, so the driver limits a bulk query to the minimum, one counter.
    "Flow counters bulk query buffer size increased, bulk_query_len(1)",
    // Logged when promiscuous mode is enabled.
    "S-tagged traffic will be dropped while C-tag vlan stripping is enabled",
    // The driver reports link changes.
    "Port: 1 Link DOWN",
    "Port: 1 Link ACTIVE",
    // Logged while a driver binds, when the kernel enables the function and routes its interrupt.
    "enabling device",
    "ACPI",
];

/// Substrings of messages that are expected while a driver recovers from a failure.
const RECOVERY: &[&str] = &[
    "poll_health:",
    "print_health_info:",
    "handling bad device here",
    "mlx5_handle_bad_state:",
    "mlx5_error_sw_reset:",
    // The port does not respond while the driver restarts the device.
    "mlx5_query_mad_ifc_port:",
    "Skipping wait for vf pages stage",
    "starting health recovery flow",
    "mlx5_pci_slot_reset Device state",
    "wait vital counter value",
    "health recovery succeeded",
];

/// Substring of the message that a driver logs before it unloads itself.
pub(super) const GIVES_UP: &str = "Driver is in error state. Unloading";

/// Substrings of messages that are expected when a driver unloads itself. A driver does so after a second failure
/// within the grace period of its first recovery (`mlx5_fw_fatal_reporter_err_work`, health.c). The last message
/// appears when the driver is removed afterwards (`mlx5_uninit_one`, main.c).
const UNLOAD: &[&str] = &[GIVES_UP, "mlx5_uninit_one: interface is down, NOP"];

/// Fails on any unexpected message about the device and on any unexpected warning.
pub(super) fn check(lines: &[String], warnings: &[String]) -> Result<()> {
    check_others(lines, warnings, &[])
}

/// Like [`check`], but also accepts messages that a driver logs while it recovers from a failure.
pub(super) fn check_recovery(lines: &[String], warnings: &[String]) -> Result<()> {
    check_others(lines, warnings, RECOVERY)
}

/// Returns whether a message is expected in the absence of errors.
pub(in super::super) fn is_normal(line: &str) -> bool {
    NORMAL.iter().any(|text| line.contains(text))
}

/// Like [`check`], but also accepts messages that a driver logs when it unloads itself after a failure.
pub(super) fn check_unload(lines: &[String], warnings: &[String]) -> Result<()> {
    check_others(lines, warnings, &[RECOVERY, UNLOAD].concat())
}

fn check_others(lines: &[String], warnings: &[String], also: &[&str]) -> Result<()> {
    let is_known = |line: &&String| is_normal(line) || also.iter().any(|text| line.contains(text));
    let about = lines.iter().filter(|line| SUBJECTS.iter().any(|text| line.contains(text)));
    let others: Vec<_> = about.chain(warnings).filter(|line| !is_known(line)).collect();
    ensure!(others.is_empty(), "the kernel logged unexpected messages:\n{others:#?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_kernel_messages_are_rejected() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let usual = lines(&["mlx5_core 0000:01:00.0: firmware version: 16.35.3006", "virtio_net: other"]);
        check(&usual, &[]).unwrap();
        let failure = lines(&["mlx5_core 0000:01:00.0: poll_health:803:(pid 17): Fatal error 3 detected"]);
        check(&failure, &[]).unwrap_err();
        check_recovery(&failure, &[]).unwrap();
        check(&[], &lines(&["WARNING: at any place"])).unwrap_err();
    }
}
