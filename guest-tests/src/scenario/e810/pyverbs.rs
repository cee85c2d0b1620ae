//! Runs rdma-core's own device tests with `irdma` and lists the tests that this hardware cannot run or pass.

use anyhow::{Context, Result};

use crate::artifacts::RdmaCore;
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::nic::roce;
use crate::scenario::nic::station::Station;
use crate::scenario::rdma_core_suite::{self as suite, Failure, Known, MODULES, Skip, skip};

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("e810-pyverbs")?;
    let hint = format!("console output, logs and the suite's output: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let tests = lab.rdma_core_tests(RdmaCore::Stable).await?;
    let mut station = roce::alone(lab, &run, &image, vec![tests]).await.with_context(|| hint.clone())?;
    report.case("the port is active", &hint, prepare(&mut station)).await?;
    let windows = station.sh("uname -r").await?.starts_with("6.12.");
    let known = if windows { WITH_WINDOWS } else { WITHOUT_WINDOWS };
    suite::run(&mut station.vm, known, report, &hint, &run.file("suite.log")).await?;
    report
        .case(
            "the only kernel warnings are about failed work requests",
            &hint,
            station.no_warnings_but(FAILING_WORK),
        )
        .await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, station.stop()).await
}

/// Kernel messages from tests that provoke errors.
const FAILING_WORK: &[&str] = &[
    // The driver logs this for every asynchronous event (E810 interface, E-37).
    "abnormal ae_id",
    // The driver moves a queue pair to the error state before destroying it, even from RESET. The RDMA core does not
    // permit this transition.
    "old_state=0x0, new_state=0x6",
];

async fn prepare(station: &mut Station) -> Result<()> {
    roce::start(station).await?;
    suite::prepare(&mut station.vm).await
}

/// Known results on kernel 6.12, which supports memory windows. Later kernels do not (E810 interface, section 15.2).
const WITH_WINDOWS: Known = Known {
    modules: &[MODULES],
    device: roce::DEVICE,
    failures: FAILURES,
    skips: &[TYPE_1_SKIPS, SKIPS],
    turns: TURNS,
};
const WITHOUT_WINDOWS: Known = Known { skips: &[MW_SKIPS, SKIPS], ..WITH_WINDOWS };

/// Tests that must not run concurrently. Between look-up and insertion, the driver unlocks its group list
/// (`irdma_attach_mcast`, verbs.c), so two processes that join concurrently create two entries for one address. QPs
/// attached through the second entry can never be detached (E810 interface, section 13.8).
const TURNS: &[&str] =
    &["rdmacm_utils.CMAsyncConnection.join_to_multicast", "rdmacm_utils.CMAsyncConnection.leave_multicast"];

const NO_RESET: &str = "a failed QP cannot be reused: on RESET, the driver keeps the QP in an internal error state and then rejects INIT (irdma_modify_qp_roce, verbs.c)";

const FAILURES: &[Failure] = &[
    Failure { test: "tests.test_mr.MRTest.test_mr_rereg_addr", why: NO_RESET },
    Failure { test: "tests.test_mr.MRTest.test_mr_rereg_pd", why: NO_RESET },
    Failure {
        test: "tests.test_mr.MRTest.test_mr_rereg_atomic",
        why: "the test posts an atomic operation without checking for support; libirdma rejects the request",
    },
];

const NO_ATOMICS: &str = "neither second-generation hardware nor libirdma supports atomic operations";
const NO_XRC: &str = "the driver has no XRC domains";
const NO_EX: &str = "libirdma creates QPs only through the original verbs API";
const NO_EX_WR: &str = "libirdma supports extended CQs, but not with the options of the test";
const NO_DM: &str = "the hardware has no device memory";
const NO_MW: &str = "the driver has no memory windows on second-generation hardware";
const NO_TYPE_2: &str = "libirdma creates only memory windows of type 1 (irdma_ualloc_mw, uverbs.c)";
const NO_ODP: &str = "the hardware does not support on-demand paging";
const NO_DMABUF: &str = "the guest has no GPU";
const NO_RAW: &str = "the driver has RC and UD only (section 13.1)";
const NO_SRQ: &str = "second-generation hardware has no SRQs";
const NO_PARENT: &str = "libirdma does not support custom allocators";

const MW_SKIPS: &[Skip] = &[
    skip(
        "tests.test_mr.MWTest.test_reg_mw_wrong_type",
        "Create memory window of type 3 is not supported",
        NO_MW,
    ),
    skip("tests.test_mr.MWTest", "Create MW is not supported", NO_MW),
];

const TYPE_1_SKIPS: &[Skip] = &[
    skip("tests.test_mr.MWTest.test_mw_type2", "Create MW is not supported", NO_TYPE_2),
    skip("tests.test_mr.MWTest.test_mw_type2_invalidate_dealloc", "Create MW is not supported", NO_TYPE_2),
    skip("tests.test_mr.MWTest.test_mw_type2_invalidate_local", "Create MW is not supported", NO_TYPE_2),
    skip("tests.test_mr.MWTest.test_mw_type2_invalidate_remote", "Create MW is not supported", NO_TYPE_2),
    skip(
        "tests.test_mr.MWTest.test_reg_mw_wrong_type",
        "Create memory window of type 3 is not supported",
        NO_TYPE_2,
    ),
];

/// Tests that are expected to skip themselves. If several entries match a test, the first one applies.
const SKIPS: &[Skip] = &[
    skip("tests.test_atomic", "Atomic operations are not supported", NO_ATOMICS),
    skip("tests.test_cqex.CqExTestCase.test_xrc_traffic_cq_ex", "Create XRCD is not supported", NO_XRC),
    skip("tests.test_cuda_dmabuf", "cuda-python 12.0+ must be installed", NO_DMABUF),
    skip("tests.test_device.DMTest", "Device memory is not supported", NO_DM),
    skip("tests.test_device.SharedDMTest", "Device memory is not supported", NO_DM),
    skip("tests.test_flow", "Create QP type 8 is not supported", NO_RAW),
    skip("tests.test_mr.DeviceMemoryAPITest", "Device memory is not supported", NO_DM),
    skip("tests.test_mr.DeviceMemoryTest", "Device memory is not supported", NO_DM),
    skip("tests.test_mr.DmaBufMRTest", "Device /dev/dri/renderD128 is not present", NO_DMABUF),
    skip("tests.test_mr.DmaBufTestCase", "Device /dev/dri/renderD128 is not present", NO_DMABUF),
    skip("tests.test_odp.OdpTestCase.test_odp_xrc_traffic", "Create XRCD is not supported", NO_XRC),
    skip("tests.test_odp.OdpTestCase", "ODP is not supported - No ODP caps", NO_ODP),
    skip(
        "tests.test_parent_domain.ParentDomainTrafficTest",
        "Parent Domain is not supported on this device",
        NO_PARENT,
    ),
    skip("tests.test_qp.QPTest.test_create_raw_qp_ex_no_attr", "Create Raw Packet QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_create_raw_qp_ex_with_attr", "Create Raw Packet QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_create_raw_qp_no_attr", "Create Raw Packet QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_create_raw_qp_with_attr", "Create Raw Packet QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_query_raw_qp", "Create Raw Packet QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_create_uc_qp_ex_no_attr", "Create UC QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_create_uc_qp_ex_with_attr", "Create UC QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_create_uc_qp_no_attr", "Create UC QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_create_uc_qp_with_attr", "Create UC QP", NO_RAW),
    skip("tests.test_qp.QPTest.test_query_uc_qp", "Create UC QP", NO_RAW),
    skip(
        "tests.test_qp.QPTest.test_create_rc_qp_ex_no_attr",
        "without extended attrs is not supported",
        NO_EX,
    ),
    skip(
        "tests.test_qp.QPTest.test_create_rc_qp_ex_with_attr",
        "with extended attrs is not supported",
        NO_EX,
    ),
    skip(
        "tests.test_qp.QPTest.test_create_ud_qp_ex_no_attr",
        "without extended attrs is not supported",
        NO_EX,
    ),
    skip("tests.test_qp.QPTest.test_modify_ud_qp", "without extended attrs is not supported", NO_EX),
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
        "tests.test_rdmacm.CMTestCase.test_rdmacm_async_traffic",
        "Can not run the test over irdma device",
        "the suite excludes this driver from the test",
    ),
    skip(
        "tests.test_relaxed_ordering.RoTestCase.test_ro_xrc_traffic",
        "Create XRCD is not supported",
        NO_XRC,
    ),
    skip("tests.test_rss_traffic", "Create QP type 8 is not supported", NO_RAW),
    skip("tests.test_shared_pd", "Extended QP is not supported on this device", NO_EX),
    skip("tests.test_srq", "Create SRQ is not supported", NO_SRQ),
    skip("tests.test_tag_matching", "Extended CQ is not supported", NO_EX_WR),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_results_are_well_formed() {
        WITH_WINDOWS.check();
        WITHOUT_WINDOWS.check();
    }
}
