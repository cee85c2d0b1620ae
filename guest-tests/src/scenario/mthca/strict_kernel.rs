//! Bugs planted in Linux's own `ib_mthca`. hcad's log must identify each bug, and must report nothing if no bug is
//! selected.
//!
//! The driver is built from Linux's source, with an additional module parameter that selects a bug. Management
//! datagrams trigger the bugs, because the queue pairs for these datagrams belong to the kernel driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::stock_pair::StockNode;
use super::strict::Violations;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

/// Directory of the driver in the Linux source tree.
const DRIVER: &str = "drivers/infiniband/hw/mthca";
/// Time limit for loading and unloading the driver.
const LIMIT: Duration = Duration::from_secs(180);
/// The disk that contains the module. It follows the disks of the root file system.
const DISK: &str = "/dev/vdc";
/// Size of a sector. Disks consist of whole sectors, and the kernel ignores bytes after the module.
const SECTOR: usize = 512;

/// Replacements in the driver's files, given by file, old text and new text. Every occurrence is replaced.
const CHANGES: &[(&str, &str, &str)] = &[
    (
        "mthca_dev.h",
        "#endif /* MTHCA_DEV_H */",
        "#include <linux/delay.h>\nextern int mthca_planted;\n#endif",
    ),
    (
        "mthca_main.c",
        "MODULE_LICENSE(",
        "int mthca_planted;\nmodule_param_named(planted, mthca_planted, int, 0444);\nMODULE_LICENSE(",
    ),
    ("mthca_wqe.h", "cpu_to_be32(sg->lkey)", "cpu_to_be32(sg->lkey ^ (mthca_planted == 1) << 20)"),
    ("mthca_qp.c", RECORD, "if (mthca_planted != 2) *qp->sq.db = cpu_to_be32(qp->sq.head & 0xffff);"),
    (
        "mthca_qp.c",
        "MTHCA_GET_DOORBELL_LOCK(&dev->doorbell_lock));",
        "MTHCA_GET_DOORBELL_LOCK(&dev->doorbell_lock));\n\
         if (mthca_planted == 2) { udelay(500); *qp->sq.db = cpu_to_be32(qp->sq.head & 0xffff); }",
    ),
    ("mthca_cq.c", "++cq->arm_sn;", "cq->arm_sn += mthca_planted != 3;"),
];
/// The statement that writes a doorbell record.
const RECORD: &str = "*qp->sq.db = cpu_to_be32(qp->sq.head & 0xffff);";

/// A planted bug, identified by its number in the module parameter.
struct Planted {
    number: u32,
    about: &'static str,
    /// Rules that must be reported as violated.
    rules: &'static [&'static str],
    /// Text in the log line that identifies the bug.
    says: &'static str,
}

const PLANTED: &[Planted] = &[
    Planted {
        number: 1,
        about: "a WQE with a wrong L_Key",
        rules: &["wqe_key"],
        says: "of QP 0x10: local read of",
    },
    Planted {
        number: 2,
        about: "a doorbell before its doorbell record",
        rules: &["doorbell_record"],
        says: "QP 0x10: doorbell announces",
    },
    Planted {
        number: 3,
        about: "a CQ armed with a stale sequence number",
        rules: &["arm_sequence"],
        says: "with sequence number 1, expected 2",
    },
];

/// All violations in this scenario are intentional.
const EXPLAINED: &[Explained] = &[
    Explained { rule: "wqe_key", why: "planted" },
    Explained { rule: "doorbell_record", why: "planted" },
    Explained { rule: "arm_sequence", why: "planted" },
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("strict-mthca-kernel")?;
    let hint = format!("console output, logs and the driver: {}", run.path().display());
    let module = lab.build_changed_driver(&run, DRIVER, plant).await.with_context(|| hint.clone())?;
    let disk = disk_of(&module).with_context(|| hint.clone())?;
    let started = StockNode::start_alone(Device::Mthca, lab, &run, vec![disk], Some(EXPLAINED)).await;
    let mut node = started.with_context(|| hint.clone())?;
    report.case("the unmodified driver is not reported", &hint, expect_no_report(&mut node)).await?;
    for planted in PLANTED {
        report.case(planted.about, &hint, expect_reports(&mut node, planted)).await?;
    }
    report.case("the correct driver is still not reported", &hint, expect_no_report(&mut node)).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, node.stop()).await
}

/// Applies the replacements to the driver's source.
fn plant(folder: &Path) -> Result<()> {
    for (file, old, new) in CHANGES {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(text.contains(old), "{file} of this kernel does not contain {old:?}");
        fs::write(&path, text.replace(old, new))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Creates a disk that starts with the bytes of the module.
fn disk_of(module: &Path) -> Result<PathBuf> {
    let mut bytes = fs::read(module)?;
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    let disk = module.with_extension("disk");
    fs::write(&disk, bytes)?;
    Ok(disk)
}

/// Loads the driver with this bug, sends queries to the subnet manager, and unloads the driver.
async fn use_driver(node: &mut StockNode, planted: u32) -> Result<()> {
    const LOAD: &str = "cat $1 > /run/ib_mthca.ko && modprobe -a ib_uverbs ib_umad || exit; \
                        insmod /run/ib_mthca.ko planted=$2";
    // With some bugs, the query receives no answer.
    const USE: &str = "for turn in 1 2 3; do timeout 2 sminfo; done; rmmod ib_mthca";
    node.vm.run_within(LIMIT, &["sh", "-c", LOAD, "sh", DISK, &planted.to_string()]).await?;
    node.port_is("4: ACTIVE").await?;
    node.vm.run_within(LIMIT, &["sh", "-c", USE]).await.map(drop)
}

/// Checks that a correct driver causes no report.
async fn expect_no_report(node: &mut StockNode) -> Result<()> {
    let told = Violations::by_now(node).await?;
    use_driver(node, 0).await?;
    told.expect_none_since(node).await
}

/// Checks that a bug causes reports for exactly the expected rules, and that a log line identifies the bug.
async fn expect_reports(node: &mut StockNode, planted: &Planted) -> Result<()> {
    let told = Violations::by_now(node).await?;
    use_driver(node, planted.number).await?;
    let new = told.since(node, planted.says).await?;
    ensure!(new.keys().eq(planted.rules), "reported: {new:?}, expected {:?}", planted.rules);
    Ok(())
}
