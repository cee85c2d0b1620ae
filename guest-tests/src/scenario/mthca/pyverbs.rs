//! Runs rdma-core's device tests with `ib_mthca` and lists the tests that this hardware cannot run or pass.

use anyhow::{Context, Result};

use super::super::rdma_core_suite::{self as suite, Failure, Known, MODULES, Skip, skip};
use super::super::stock_pair::StockNode;
use super::DOORBELL_RECORD_REMAPS;
use crate::artifacts::RdmaCore;
use crate::daemon::Explained;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

/// Violations that strict mode may report without failing the scenario.
const EXPLAINED: &[Explained] = &[
    DOORBELL_RECORD_REMAPS[0],
    DOORBELL_RECORD_REMAPS[1],
    Explained { rule: "wqe_key", why: "a test of atomics posts a request with a wrong key, on purpose" },
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("mthca-pyverbs")?;
    let hint = format!("console output, logs and the suite's output: {}", run.path().display());
    let tests = lab.rdma_core_tests(RdmaCore::Stable).await?;
    let mut node = StockNode::start_alone(Device::Mthca, lab, &run, vec![tests], Some(EXPLAINED))
        .await
        .with_context(|| hint.clone())?;
    report.case("the port is active", &hint, prepare(&mut node)).await?;
    suite::run(&mut node.vm, KNOWN, report, &hint, &run.file("suite.log")).await?;
    report.case("no kernel warnings", &hint, node.no_warnings()).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, node.stop()).await
}

/// Loads the driver, waits for its port, and configures an address for `rdma_cm`.
async fn prepare(node: &mut StockNode) -> Result<()> {
    node.load().await?;
    super::ipoib::up(node).await?;
    suite::prepare(&mut node.vm).await
}

const KNOWN: Known =
    Known { modules: &[MODULES], device: "mthca0", failures: FAILURES, skips: &[SKIPS], turns: &[] };

const FAILURES: &[Failure] = &[Failure {
    test: "tests.test_cq.CQTest.test_resize_cq",
    why: "RESIZE_CQ to fewer entries than are in use returns status 0x40 (mthca interface, sections 2.3 and 3.5). The driver (mthca_status_to_errno, mthca_cmd.c) converts it to ENOMEM, but the test expects EINVAL. Neither the driver nor libmthca checks the number before the command",
}];

const NO_XRC: &str = "the driver has no XRC domains";
const NO_EX: &str = "libmthca creates QPs and CQs only through the original verbs API";
const NO_DM: &str = "the hardware has no device memory";
const NO_MW: &str = "the driver has no memory windows";
const NO_REREG: &str = "the driver cannot modify memory regions";
const NO_ODP: &str = "the hardware does not support on-demand paging";
const NO_DMABUF: &str = "the guest has no GPU, and the driver cannot register GPU memory";
const IS_IB: &str = "the port is an InfiniBand port";

const SKIPS: &[Skip] = &[
    skip("tests.test_addr.AHTest.test_create_ah_roce", "Link layer of port=1 is InfiniBand", IS_IB),
    skip("tests.test_atomic.AtomicTest.test_xrc_atomic_cmp_and_swap", "Create XRCD is not supported", NO_XRC),
    skip(
        "tests.test_atomic.AtomicTest.test_xrc_atomic_fetch_and_add",
        "Create XRCD is not supported",
        NO_XRC,
    ),
    skip(
        "tests.test_cqex.CQEXAPITest.test_create_cq_ex_bad_flow",
        "Create Extended CQ is not supported",
        NO_EX,
    ),
    skip("tests.test_cqex.CqExTestCase.test_xrc_traffic_cq_ex", "Create XRCD is not supported", NO_XRC),
    skip("tests.test_cqex.CqExTestCase", "Create Extended CQ is not supported", NO_EX),
    skip("tests.test_cuda_dmabuf", "cuda-python 12.0+ must be installed", NO_DMABUF),
    skip("tests.test_device.DMTest", "Device memory is not supported", NO_DM),
    skip("tests.test_device.SharedDMTest", "Device memory is not supported", NO_DM),
    skip(
        "tests.test_device.DeviceTest.test_query_gid_ex_bad_flow",
        "All gid indices populated",
        "the driver combines every table entry, used or not, with the subnet prefix into a GID",
    ),
    skip("tests.test_flow", "Must be run by root on Ethernet link layer", IS_IB),
    skip("tests.test_mr.DeviceMemoryAPITest", "Device memory is not supported", NO_DM),
    skip("tests.test_mr.DeviceMemoryTest", "Device memory is not supported", NO_DM),
    skip("tests.test_mr.DmaBufMRTest", "Device /dev/dri/renderD128 is not present", NO_DMABUF),
    skip("tests.test_mr.DmaBufTestCase", "Device /dev/dri/renderD128 is not present", NO_DMABUF),
    skip("tests.test_mr.MRTest.test_mr_rereg_access", "Rereg MR is not supported", NO_REREG),
    skip("tests.test_mr.MRTest.test_mr_rereg_access_bad_flow", "Rereg MR is not supported", NO_REREG),
    skip("tests.test_mr.MRTest.test_mr_rereg_addr", "Rereg MR is not supported", NO_REREG),
    skip("tests.test_mr.MRTest.test_mr_rereg_atomic", "Rereg MR is not supported", NO_REREG),
    skip("tests.test_mr.MRTest.test_mr_rereg_pd", "Rereg MR is not supported", NO_REREG),
    skip(
        "tests.test_mr.MWTest.test_reg_mw_wrong_type",
        "Create memory window of type 3 is not supported",
        NO_MW,
    ),
    skip("tests.test_mr.MWTest", "Create MW is not supported", NO_MW),
    skip("tests.test_odp.OdpTestCase.test_odp_xrc_traffic", "Create XRCD is not supported", NO_XRC),
    skip("tests.test_odp.OdpTestCase", "ODP is not supported - No ODP caps", NO_ODP),
    skip(
        "tests.test_parent_domain.ParentDomainTrafficTest",
        "Parent Domain is not supported on this device",
        "libmthca does not support custom allocators",
    ),
    skip("tests.test_qp.QPTest.test_create_raw_qp_ex_no_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_create_raw_qp_ex_with_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_create_raw_qp_no_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_create_raw_qp_with_attr", "Ethernet link layer", IS_IB),
    skip("tests.test_qp.QPTest.test_query_raw_qp", "Ethernet link layer", IS_IB),
    skip(
        "tests.test_qp.QPTest.test_create_rc_qp_ex_no_attr",
        "without extended attrs is not supported",
        NO_EX,
    ),
    skip("tests.test_qp.QPTest.test_query_rc_qp", "without extended attrs is not supported", NO_EX),
    skip("tests.test_qp.QPTest.test_query_uc_qp", "without extended attrs is not supported", NO_EX),
    skip("tests.test_qp.QPTest.test_query_ud_qp", "without extended attrs is not supported", NO_EX),
    skip(
        "tests.test_qpex.QpExTestCase.test_qp_ex_rc_flush",
        "additional access flags 258 is not supported",
        NO_EX,
    ),
    skip(
        "tests.test_qpex.QpExTestCase.test_qp_ex_rc_flush_type_violate",
        "additional access flags 258 is not supported",
        NO_EX,
    ),
    skip("tests.test_qpex.QpExTestCase.test_qp_ex_xrc_send", "Create XRCD is not supported", NO_XRC),
    skip("tests.test_qpex.QpExTestCase.test_qp_ex_xrc_send_imm", "Create XRCD is not supported", NO_XRC),
    skip("tests.test_qpex.QpExTestCase", "Extended QP is not supported on this device", NO_EX),
    skip(
        "tests.test_relaxed_ordering.RoTestCase.test_ro_xrc_traffic",
        "Create XRCD is not supported",
        NO_XRC,
    ),
    skip("tests.test_rss_traffic", "Must be run by root on Ethernet link layer", IS_IB),
    skip("tests.test_shared_pd", "Extended QP is not supported on this device", NO_EX),
    skip(
        "tests.test_srq.SrqTestCase.test_resize_srq",
        "SRQ resize is not supported",
        "the driver does not support it (mthca_srq.c)",
    ),
    skip("tests.test_tag_matching", "Extended CQ is not supported", NO_EX),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_results_are_well_formed() {
        KNOWN.check();
    }
}
