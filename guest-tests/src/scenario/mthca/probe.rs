//! Checks that the driver initialises the device, including after reloads, failures and reboots (mthca interface,
//! section 13.2).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use agent::wire::Info;
use anyhow::{Context, Result, ensure};

use super::super::extent::Extent;
use super::super::leak::Cycles;
use super::super::stock_pair::{StockNode, StockPair};
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::vm::Vm;

/// Expected values in the output of `ibv_devinfo -v` (section 13.2).
const DEVINFO: &[(&str, &str)] = &[
    ("fw_ver", "1.2.0"),
    ("vendor_id", "0x02c9"),
    ("vendor_part_id", "25204"),
    ("hw_ver", "0xA0"),
    ("phys_port_cnt", "1"),
    ("max_qp", "65520"),
    ("max_qp_wr", "16384"),
    ("device_cap_flags", "0x00001c26"),
    ("max_sge", "30"),
    ("max_cq", "65520"),
    ("max_cqe", "131071"),
    ("max_mr", "131056"),
    ("max_pd", "32767"),
    ("max_qp_rd_atom", "4"),
    ("max_qp_init_rd_atom", "16"),
    ("max_res_rd_atom", "262080"),
    ("atomic_cap", "ATOMIC_HCA (1)"),
    ("max_mcast_grp", "8192"),
    ("max_mcast_qp_attach", "56"),
    ("max_srq", "4080"),
    ("max_srq_wr", "16384"),
    ("max_srq_sge", "30"),
    ("max_pkeys", "64"),
    ("local_ca_ack_delay", "15"),
    ("state", "PORT_ACTIVE (4)"),
    ("max_mtu", "2048 (4)"),
    ("active_mtu", "2048 (4)"),
    ("port_lmc", "0x00"),
    ("link_layer", "InfiniBand"),
    ("active_width", "4X (2)"),
    ("active_speed", "5.0 Gbps (2)"),
    ("phys_state", "LINK_UP (5)"),
];

/// Files in `/sys/class/infiniband/mthca0` with their expected content.
const SYSFS: &[(&str, &str)] = &[
    ("fw_ver", "1.2.0"),
    ("hca_type", "MT25204"),
    ("hw_rev", "a0"),
    ("node_type", "1: CA"),
    ("ports/1/state", "4: ACTIVE"),
    ("ports/1/phys_state", "5: LinkUp"),
    ("ports/1/rate", "20 Gb/sec (4X DDR)"),
    ("ports/1/link_layer", "InfiniBand"),
    ("ports/1/lid_mask_count", "0"),
    ("ports/1/pkeys/0", "0xffff"),
    ("ports/1/counters/symbol_error", "0"),
];

/// Interrupt names, each with the minimum count once the port is active.
const INTERRUPTS: &[(&str, u64)] = &[("ib_mthca-comp", 0), ("ib_mthca-async", 1), ("ib_mthca-cmd", 100)];

/// Module parameters for non-default table sizes. Some make a table smaller than the chunks in which tables are mapped
/// (section 12, T17 and T18).
const PARAMETERS: &[&str] = &[
    "num_qp=1024 num_cq=1024 num_mpt=4096 rdb_per_qp=16",
    "num_qp=1024 num_cq=1024 num_mpt=4096",
    "num_qp=16384 num_mcg=1024 num_mtt=524288",
];

/// How long the port may take to become active again after the device has failed.
const RECOVERY: Duration = Duration::from_secs(40);
/// Counter of device resets requested by the driver.
const RESETS: &str = "/frontend/mthca/resets";

/// Cycles that unload and reload the driver. Each takes at least a second, during which the driver waits for the device
/// to reset.
const CYCLES: Cycles<'static> = Cycles {
    commands: "modprobe -r ib_mthca && modprobe ib_mthca",
    batches: 7,
    batch: 7,
    timeout: Duration::from_secs(600),
};

/// Violations that strict mode may report without failing the scenario.
const EXPLAINED: &[Explained] = &[
    Explained {
        rule: "map_over_mapped",
        why: "with num_qp=1024, the driver maps a whole chunk for the RDB table, which is smaller (T18)",
    },
    Explained {
        rule: "unmap_in_use",
        why: "it unmaps that chunk together with the contexts of neighbouring tables (T18)",
    },
    Explained {
        rule: "unmap_nothing",
        why: "the neighbouring tables are therefore already unmapped when the driver unmaps them (T18)",
    },
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let name = extent.select("mthca-probe", "mthca-probe-full");
    let mut pair = StockPair::start_strict(lab, name, EXPLAINED).await?;
    let hint = pair.hint();
    report.case("the driver binds and its port becomes active", &hint, binds(&mut pair)).await?;
    report.case("ibv_devinfo", &hint, devinfo(&mut pair.a)).await?;
    report.case("sysfs", &hint, sysfs(&mut pair.a)).await?;
    report.case("three MSI-X interrupts", &hint, interrupts(&mut pair.a.vm)).await?;
    report.case("two HCAs have different GUIDs", &hint, differ(&mut pair)).await?;
    report.case("kernel messages of driver and core", &hint, messages(&mut pair.a)).await?;
    for parameters in PARAMETERS {
        report
            .case(&format!("loaded with {parameters}"), &hint, loaded_with(&mut pair.a, parameters))
            .await?;
    }
    let repeated = extent.select(CYCLES.fewer(), CYCLES);
    let name = format!("{} unload and load cycles", repeated.times());
    report.case(&name, &hint, cycles(&mut pair.a, repeated)).await?;
    report.case("the driver recovers from a catastrophic error", &hint, recovers(&mut pair.a)).await?;
    if extent == Extent::Full {
        report.case("the guest restarts", &hint, restarts(&mut pair)).await?;
    }
    report.case("the guest is killed and replaced by another", &hint, replaced(lab, &mut pair)).await?;
    report.case("no kernel warnings", &hint, pair.no_warnings()).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, pair.stop()).await
}

async fn binds(pair: &mut StockPair) -> Result<()> {
    pair.load().await?;
    let info = pair.a.vm.call(Info {}).await?;
    let function = info.devices.iter().find(|f| (f.vendor, f.device) == (0x15b3, 0x6274));
    let function = function.context("no function 15b3:6274")?;
    ensure!(function.driver.as_deref() == Some("ib_mthca"), "bound to {:?}", function.driver);
    pair.no_warnings().await
}

async fn devinfo(node: &mut StockNode) -> Result<()> {
    let text = node.vm.run(&["ibv_devinfo", "-v", "-d", "mthca0"]).await?;
    // Each line has the form `name: value`. Some names occur once per GID.
    let mut found = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        found.entry(name.trim()).or_insert(value.trim());
    }
    let differences: Vec<String> = DEVINFO
        .iter()
        .filter(|(name, value)| found.get(name) != Some(value))
        .map(|(name, value)| format!("{name} is {:?}, expected {value}", found.get(name)))
        .collect();
    ensure!(differences.is_empty(), "{}\n{text}", differences.join("\n"));
    let lid = found.get("port_lid").and_then(|lid| lid.parse::<u16>().ok());
    ensure!(lid == Some(node.id), "LID {lid:?}, expected the number of the HCA, {}", node.id);
    Ok(())
}

async fn sysfs(node: &mut StockNode) -> Result<()> {
    for (file, value) in SYSFS {
        let text = node.vm.run(&["cat", &format!("/sys/class/infiniband/mthca0/{file}")]).await?;
        ensure!(text.trim() == *value, "{file} is {}, expected {value}", text.trim());
    }
    let lid = node.vm.run(&["cat", "/sys/class/infiniband/mthca0/ports/1/lid"]).await?;
    ensure!(lid.trim() == format!("{:#x}", node.id), "LID {lid}");
    let board = node.vm.run(&["cat", "/sys/class/infiniband/mthca0/board_id"]).await?;
    ensure!(!board.trim().is_empty(), "no board id");
    Ok(())
}

async fn interrupts(vm: &mut Vm) -> Result<()> {
    let text = vm.run(&["cat", "/proc/interrupts"]).await?;
    for (name, least) in INTERRUPTS {
        let line = text.lines().find(|line| line.contains(name));
        let line = line.with_context(|| format!("{name} is missing in\n{text}"))?;
        // The line starts with the interrupt number, followed by a count for each CPU.
        let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
        let count: u64 = counts.sum();
        ensure!(count >= *least, "{name} occurred {count} times, expected at least {least}");
    }
    ensure!(text.contains("MSI") && !text.contains("ib_mthca\n"), "not by MSI-X:\n{text}");
    Ok(())
}

async fn differ(pair: &mut StockPair) -> Result<()> {
    for file in ["node_guid", "sys_image_guid", "ports/1/gids/0", "ports/1/lid"] {
        let path = format!("/sys/class/infiniband/mthca0/{file}");
        let (a, b) = (pair.a.vm.run(&["cat", &path]).await?, pair.b.vm.run(&["cat", &path]).await?);
        ensure!(a != b, "{file} is {a} in both guests");
    }
    Ok(())
}

/// Checks that the kernel logs the driver's banner and, on kernels that log it, the port's state. Also checks that the
/// kernel logs nothing else about the device except for the PCI core's messages.
async fn messages(node: &mut StockNode) -> Result<()> {
    let lines = node.vm.call(agent::wire::Dmesg { level: None }).await?.lines;
    let about: Vec<&String> = lines.iter().filter(|line| line.contains("mthca")).collect();
    let mut expected = vec!["Mellanox InfiniBand HCA driver", "Initializing"];
    // Not all kernels log the port's state. Other cases check the state in sysfs.
    if node.logs_port_state().await? {
        expected.push("Link ACTIVE");
    }
    for text in &expected {
        ensure!(about.iter().any(|line| line.contains(text)), "{text:?} is missing in {about:#?}");
    }
    // When a driver binds, the PCI core logs that it enables the function and routes its interrupt.
    let known = |line: &str| {
        expected.iter().any(|text| line.contains(text))
            || line.contains("enabling device")
            || line.contains("ACPI")
    };
    let others: Vec<_> = about.iter().filter(|line| !known(line)).collect();
    ensure!(others.is_empty(), "{others:#?}");
    Ok(())
}

async fn loaded_with(node: &mut StockNode, parameters: &str) -> Result<()> {
    node.vm.run(&["modprobe", "-r", "ib_mthca"]).await?;
    let mut command = vec!["modprobe", "ib_mthca"];
    command.extend(parameters.split_whitespace());
    node.vm.run(&command).await?;
    node.port_is("4: ACTIVE").await?;
    node.no_warnings().await
}

async fn cycles(node: &mut StockNode, repeated: Cycles<'_>) -> Result<()> {
    repeated.run(&mut node.vm).await?;
    node.port_is("4: ACTIVE").await?;
    devinfo(node).await?;
    node.no_warnings().await
}

/// Makes the device fail and checks that the driver recovers without any other error (section 2.6). The driver polls
/// for failures every five seconds. When it detects a failure, it logs a message, resets the device and reinitialises
/// it.
async fn recovers(node: &mut StockNode) -> Result<()> {
    node.no_warnings().await?;
    let resets = node.daemon.counter(RESETS).await?;
    node.daemon.control(&["fail", "--yes"]).await?;
    // Wait for the reset first. Until then, sysfs shows the old port state.
    let deadline = Instant::now() + RECOVERY;
    while node.daemon.counter(RESETS).await? == resets {
        ensure!(Instant::now() < deadline, "the driver did not reset the device within {RECOVERY:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.port_is("4: ACTIVE").await?;
    let after = node.daemon.counter(RESETS).await?;
    ensure!(after == resets + 1, "{resets} resets before, {after} after");
    let warnings = without_flush_warning(node.new_warnings().await?);
    let expected = |line: &String| line.contains("Catastrophic error detected") || line.contains("buf[");
    ensure!(warnings.iter().all(expected), "{warnings:#?}");
    devinfo(node).await
}

/// Removes a known warning from kernel messages. The driver unregisters the device in a work item of a WQ_MEM_RECLAIM
/// workqueue. Unregistering flushes an `ib_core` workqueue that lacks this flag. The kernel warns only if the flushed
/// workqueue is busy.
fn without_flush_warning(lines: Vec<String>) -> Vec<String> {
    const FIRST: &str =
        "workqueue: WQ_MEM_RECLAIM mthca_catas:catas_reset [ib_mthca] is flushing !WQ_MEM_RECLAIM";
    const LAST: &str = "---[ end trace";
    let mut inside = false;
    let keep = |line: &String| {
        inside |= line.contains(FIRST);
        let keep = !inside;
        inside &= !line.contains(LAST);
        keep
    };
    lines.into_iter().filter(keep).collect()
}

async fn restarts(pair: &mut StockPair) -> Result<()> {
    pair.reboot_a().await?;
    pair.a.load().await?;
    devinfo(&mut pair.a).await
}

async fn replaced(lab: &Lab, pair: &mut StockPair) -> Result<()> {
    pair.replace_a(lab).await?;
    pair.a.load().await?;
    devinfo(&mut pair.a).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_flush_warning_is_ignored() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let said = lines(&[
            "ib_mthca 0000:00:05.0: Catastrophic error detected: internal error",
            "workqueue: WQ_MEM_RECLAIM mthca_catas:catas_reset [ib_mthca] is flushing !WQ_MEM_RECLAIM infiniband:0x0",
            "WARNING: kernel/workqueue.c:3921 at check_flush_dependency.part.0+0x94/0xf0, CPU#0: kworker/u4:0/11",
            "---[ end trace 0000000000000000 ]---",
            "WARNING: at another place",
            "---[ end trace 0000000000000000 ]---",
        ]);
        let rest = without_flush_warning(said);
        assert_eq!(
            rest,
            lines(&[
                "ib_mthca 0000:00:05.0: Catastrophic error detected: internal error",
                "WARNING: at another place",
                "---[ end trace 0000000000000000 ]---",
            ])
        );
    }
}
