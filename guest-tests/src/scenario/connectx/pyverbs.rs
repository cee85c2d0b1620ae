//! Runs rdma-core's own device tests with `mlx5_ib` and lists the tests that cannot run or pass on this device.

mod ethernet;

use anyhow::{Context, Result, ensure};

use super::super::rdma_core_suite::{self as suite, Failure, Known, MODULES, NEWER_MODULES, Skip, skip};
use super::super::stock_pair::StockNode;
use crate::artifacts::RdmaCore;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

/// Violations that strict mode may report without failing the scenario.
const EXPLAINED: &[Explained] = &[Explained {
    rule: "wqe_key",
    why: "tests post requests with wrong keys and protection domains, on purpose",
}];

/// The suite for one kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Suite {
    InfiniBand(RdmaCore),
    Ethernet,
}

impl Suite {
    /// Returns the scenario's name, the device, the known results, and the version of rdma-core.
    const fn parts(self) -> (&'static str, Device, Known, RdmaCore) {
        match self {
            Self::InfiniBand(RdmaCore::Stable) => {
                ("connectx-pyverbs", Device::ConnectxIb, KNOWN, RdmaCore::Stable)
            }
            Self::InfiniBand(RdmaCore::Newest) => {
                ("connectx-pyverbs-newest", Device::ConnectxIb, NEWEST, RdmaCore::Newest)
            }
            Self::Ethernet => ("connectx-roce-pyverbs", Device::Connectx, ethernet::KNOWN, RdmaCore::Stable),
        }
    }
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, suite_of: Suite) -> Result<()> {
    let (name, hca, known, rdma_core) = suite_of.parts();
    let run = lab.new_run(name)?;
    let hint = format!("console output, logs and the suite's output: {}", run.path().display());
    let tests = lab.rdma_core_tests(rdma_core).await?;
    let image = match rdma_core {
        RdmaCore::Stable => lab.debian_image(&run).await?,
        RdmaCore::Newest => lab.newest_rdma_core_image(&run).await?,
    };
    let started = StockNode::start_alone_with(hca, lab, &run, &image, vec![tests], Some(EXPLAINED));
    let mut node = started.await.with_context(|| hint.clone())?;
    report.case("the port is active", &hint, prepare(hca, &mut node)).await?;
    suite::run(&mut node.vm, known, report, &hint, &run.file("suite.log")).await?;
    let title = "the only kernel warnings are about rejected sizes of a CQ";
    report.case(title, &hint, only_rejected_sizes(&mut node)).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, node.stop()).await
}

/// Checks that all new warnings come from the test that tries to shrink a CQ below its number of unread entries (mlx5
/// interface, trap M-30).
async fn only_rejected_sizes(node: &mut StockNode) -> Result<()> {
    let mut lines = node.new_warnings().await?;
    lines.retain(|line| !line.contains("MODIFY_CQ(0x403) op_mod(0x1) failed, status bad size"));
    ensure!(lines.is_empty(), "the kernel logged warnings:\n{lines:#?}");
    Ok(())
}

/// Loads the driver, waits for its port, and configures an address for `rdma_cm`.
async fn prepare(hca: Device, node: &mut StockNode) -> Result<()> {
    node.load().await?;
    if hca == Device::ConnectxIb {
        super::super::mthca::ipoib::up(node).await?;
    }
    suite::prepare(&mut node.vm).await
}

const KNOWN: Known = Known {
    modules: &[MODULES],
    device: "mlx5_0",
    failures: FAILURES,
    skips: &[COMMON_SKIPS, SKIPS],
    turns: &[],
};
const NEWEST: Known =
    Known { modules: &[MODULES, NEWER_MODULES], skips: &[COMMON_SKIPS, SKIPS, NEWER_SKIPS], ..KNOWN };

const FAILURES: &[Failure] = &[];

const NO_DM: &str = "device memory is not offered (mlx5 interface, section 6)";
const NO_ODP: &str = "on-demand paging is not offered (mlx5 interface, section 6)";
const NO_DMABUF: &str = "the guest has no GPU";
const NO_FLUSH: &str = "mlx5_ib has no FLUSH";
const IS_IB: &str = "the port is an InfiniBand port";

/// Tests that skip themselves on both kinds of port.
const COMMON_SKIPS: &[Skip] = &[
    skip("tests.test_cuda_dmabuf", "cuda-python 12.0+ must be installed", NO_DMABUF),
    skip("tests.test_device.DMTest", "Device memory is not supported", NO_DM),
    skip("tests.test_device.SharedDMTest", "Device memory is not supported", NO_DM),
    skip("tests.test_mr.DeviceMemoryAPITest", "Device memory is not supported", NO_DM),
    skip("tests.test_mr.DeviceMemoryTest", "Device memory is not supported", NO_DM),
    skip("tests.test_mr.DmaBufMRTest", "Device /dev/dri/renderD128 is not present", NO_DMABUF),
    skip("tests.test_mr.DmaBufTestCase", "Device /dev/dri/renderD128 is not present", NO_DMABUF),
    skip("tests.test_odp.OdpTestCase", "ODP is not supported", NO_ODP),
    skip(
        "tests.test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write",
        "Extended QP is not supported on this device",
        "libmlx5 has no atomic WRITE",
    ),
    skip("tests.test_qpex.QpExTestCase.test_qp_ex_rc_flush", "additional access flags 258", NO_FLUSH),
    skip(
        "tests.test_qpex.QpExTestCase.test_qp_ex_rc_flush_type_violate",
        "additional access flags 258",
        NO_FLUSH,
    ),
    skip(
        "tests.test_srq.SrqTestCase.test_resize_srq",
        "SRQ resize is not supported",
        "mlx5_ib does not implement it",
    ),
    skip(
        "tests.test_tag_matching",
        "Tag matching is not supported",
        "the device does not offer it (section 6)",
    ),
];

const SKIPS: &[Skip] = &[
    skip("tests.test_addr.AHTest.test_create_ah_roce", "Link layer of port=1 is InfiniBand", IS_IB),
    skip(
        "tests.test_device.DeviceTest.test_query_gid_ex_bad_flow",
        "All gid indices populated",
        "the driver makes a GID from the subnet prefix and every entry in the table, used or not",
    ),
    skip("tests.test_flow", "on Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_create_raw_qp_ex_no_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_create_raw_qp_ex_with_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_create_raw_qp_no_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_create_raw_qp_with_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_query_raw_qp", "Ethernet link layer", IS_IB),
    skip("tests.test_rss_traffic", "on Ethernet link layer", IS_IB),
];

const NO_BOUNCE: &str = "the guest is not a confidential VM";
const NO_DMAH: &str = "the device does not offer PCIe TPH (mlx5 interface, section 6)";

/// Tests that only the newest rdma-core contains, and that are expected to skip themselves.
const NEWER_SKIPS: &[Skip] = &[
    skip(
        "tests.test_buf.BufAPITest.test_buf_export_dmabuf_fd_on_bounce_device",
        "does not report CC_DMA_BOUNCE",
        NO_BOUNCE,
    ),
    skip(
        "tests.test_buf.BufAPITest.test_plain_mr_rejected_on_bounce_device",
        "does not report CC_DMA_BOUNCE",
        NO_BOUNCE,
    ),
    skip("tests.test_dmah.DMAHandleTest.test_dmah_mrex_odp_bad_flow", "ODP is not supported", NO_ODP),
    skip("tests.test_dmah.DMAHandleTest.test_dmah_persistent_memory", "Failed to create DMA Handle", NO_DMAH),
    skip("tests.test_dmah.DMAHandleTest.test_dmah_with_mrex", "Failed to create DMA Handle", NO_DMAH),
    skip("tests.test_dmah.DmaHandleTrafficTest", "Failed to create DMA Handle", NO_DMAH),
    skip("tests.test_qp.QPTest.test_raw_qp_rate_limit_modify", "on Ethernet link layer", IS_IB),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_results_are_well_formed() {
        KNOWN.check();
        NEWEST.check();
        ethernet::KNOWN.check();
    }
}
