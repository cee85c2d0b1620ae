//! Expected output of NIC tools for an E810 (E810 interface, sections 5.3, 5.6, 6 and 17.2).

use anyhow::{Result, ensure};

use super::probe::Probe;

/// Each case has a name, a command with the placeholders `{device}` and `{function}`, and substrings of the command's
/// expected output. White space is normalised.
pub(super) const ALL: &[(&str, &str, &[&str])] = &[
    (
        "ethtool",
        "ethtool {device}",
        &["Speed: 100000Mb/s", "Duplex: Full", "Port: Direct Attach Copper", "Link detected: yes"],
    ),
    (
        "ethtool -i",
        "ethtool -i {device}",
        &["driver: ice", "firmware-version: 4.40 0x", "bus-info: {function}", "supports-statistics: yes"],
    ),
    (
        "ethtool -S",
        "ethtool -S {device}",
        &[
            "rx_unicast.nic:",
            "tx_unicast.nic:",
            "rx_crc_errors.nic: 0",
            "rx_queue_1_packets:",
            "tx_errors: 0",
        ],
    ),
    (
        "ethtool -k",
        "ethtool -k {device}",
        &[
            "rx-checksumming: on",
            "tx-checksum-ipv4: on",
            "tx-checksum-ipv6: on",
            "tx-checksum-sctp: on",
            "tx-tcp-segmentation: on",
            "tx-tcp6-segmentation: on",
            "tx-udp-segmentation: on",
            "rx-vlan-offload: on",
            "tx-vlan-offload: on",
            "rx-vlan-filter: on",
            "receive-hashing: on",
        ],
    ),
    ("ethtool -g", "ethtool -g {device}", &["RX: 8160", "TX: 8160", "RX: 2048", "TX: 256"]),
    ("ethtool -l", "ethtool -l {device}", &["Combined: 2"]),
    ("ethtool -c", "ethtool -c {device}", &["Adaptive RX: on TX: on", "rx-usecs: 50", "tx-usecs: 50"]),
    ("ethtool -a", "ethtool -a {device}", &["Autonegotiate: on", "RX:", "TX:"]),
    ("ethtool -x", "ethtool -x {device}", &["with 2 RX ring(s)", "2040: 0 1", "toeplitz: on"]),
    ("ethtool -m prints the module data or an error", "ethtool -m {device} 2>&1; true", &[]),
    (
        "devlink dev info",
        "devlink dev info pci/{function}",
        &["driver ice", "serial_number", "board.id", "fw.mgmt", "fw.mgmt.api 1.5", "fw.app.name hcad"],
    ),
    ("devlink port", "devlink port show", &["pci/{function}/"]),
    (
        "ip -d link",
        "ip -d link show {device}",
        &["LOWER_UP", "minmtu 68 maxmtu 9702", "parentdev {function}"],
    ),
    (
        "lspci -vv",
        "lspci -vv -s {function}",
        &[
            "Class 0200: Device 8086:1592",
            "MSI-X: Enable+",
            "Device Serial Number",
            "Capabilities: [",
            "LnkSta: Speed",
            "Kernel driver in use: ice",
        ],
    ),
];

/// Runs a command and checks that its output contains all expected substrings.
pub(super) async fn check(probe: &mut Probe, line: &str, expected: &[&str]) -> Result<()> {
    let fill = |text: &str| text.replace("{device}", &probe.device).replace("{function}", &probe.function);
    let parts: Vec<String> = expected.iter().map(|part| fill(part)).collect();
    let line = fill(line);
    let text = probe.sh(&line).await?;
    let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let missing: Vec<&String> = parts.iter().filter(|part| !plain.contains(part.as_str())).collect();
    ensure!(missing.is_empty(), "the output lacks {missing:?}:\n{text}");
    ensure!(!plain.is_empty(), "{line} printed nothing");
    Ok(())
}
