//! Known results of the whole suite on an Ethernet port.

use super::{Failure, Known, MODULES, NO_DM, NO_DMABUF, NO_FLUSH, NO_ODP, Skip, skip};

/// Modules that test the interface of libmlx5.
const MLX5_MODULES: &[&str] = &[
    "test_mlx5_cq",
    "test_mlx5_crypto",
    "test_mlx5_cuda_umem",
    "test_mlx5_dc",
    "test_mlx5_devx",
    "test_mlx5_dm_ops",
    "test_mlx5_dma_memcpy",
    "test_mlx5_dmabuf",
    "test_mlx5_dr",
    "test_mlx5_flow",
    "test_mlx5_huge_page",
    "test_mlx5_lag_affinity",
    "test_mlx5_mkey",
    "test_mlx5_ooo_qp",
    "test_mlx5_pp",
    "test_mlx5_query_port",
    "test_mlx5_raw_wqe",
    "test_mlx5_rdmacm",
    "test_mlx5_sched",
    "test_mlx5_timestamp",
    "test_mlx5_uar",
    "test_mlx5_udp_sport",
    "test_mlx5_var",
    "test_mlx5_vfio",
];

pub(super) const KNOWN: Known = Known {
    modules: &[MODULES, MLX5_MODULES],
    device: "mlx5_0",
    failures: FAILURES,
    skips: &[SKIPS],
    turns: &[],
};

/// Tests of key layouts that the device does not have, or not yet.
const FAILURES: &[Failure] = &[
    Failure { test: "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_interleaved", why: STRIDED },
    Failure { test: "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_interleaved_new_api", why: STRIDED },
];
const STRIDED: &str =
    "keys with strided (\"repeat block\") layouts are not supported (mlx5 interface, section 13)";

const NO_CQE_FORMATS: &str =
    "128-byte CQEs with compression or padding are not offered (mlx5 interface, section 6)";
const NO_DC: &str = "DC is not offered";
const NO_CRYPTO: &str = "encryption is not offered";
const NO_SCAPY: &str = "the guest has no scapy";
const NO_MMO: &str = "the device has no engine that copies memory (mlx5 interface, section 6)";
const NO_STEERING: &str = "the device has no software-managed flow tables (mlx5 interface, section 6)";
const NO_ESWITCH: &str = "the device has no e-switch";
const NO_LAG: &str = "LAG is not offered";
const NO_SIGNATURE: &str = "signatures are not offered (mlx5 interface, section 6)";
const NO_OOO: &str = "out-of-order delivery is not offered (mlx5 interface, section 6)";
const NO_QOS: &str = "rate limits and schedulers are not offered (mlx5 interface, section 6)";
const NO_RESERVED: &str = "the driver reserves QP numbers only with software-managed flow tables";
const NO_BLUEFLAME: &str = "BlueFlame is not offered (mlx5 interface, section 6)";
const NO_SPORT: &str = "source ports of QPs cannot be modified (mlx5 interface, section 6)";
const NO_VAR: &str = "the device has no doorbells for virtio (mlx5 interface, section 6)";

const SKIPS: &[Skip] = &[
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
        "the driver has it not",
    ),
    skip(
        "tests.test_tag_matching",
        "Tag matching is not supported",
        "the device does not offer it (section 6)",
    ),
    skip("tests.test_mlx5_cq.DvCqTest.test_dv_cq_compression_flags", "CQE 128B compression", NO_CQE_FORMATS),
    skip("tests.test_mlx5_cq.DvCqTest.test_dv_cq_padding", "CQE 128B padding", NO_CQE_FORMATS),
    skip("tests.test_mlx5_cq.DvCqTest", "Create DC QP is not supported", NO_DC),
    skip("tests.test_mlx5_crypto", "Crypto login details must be supplied", NO_CRYPTO),
    skip("tests.test_mlx5_cuda_umem", "cuda-python 12.0+ must be installed", NO_DMABUF),
    skip("tests.test_mlx5_dc.DCTest.test_odp_dc_traffic", "additional access flags 64", NO_ODP),
    skip("tests.test_mlx5_dc", "is not supported", NO_DC),
    skip("tests.test_mlx5_devx", "ODP is not supported", NO_ODP),
    skip("tests.test_mlx5_devx", "scapy package is needed", NO_SCAPY),
    skip("tests.test_mlx5_dm_ops", "MEMIC atomic operations are not supported", NO_DM),
    skip("tests.test_mlx5_dma_memcpy", "Create Mlx5DV QP is not supported", NO_MMO),
    skip("tests.test_mlx5_dmabuf", "cuda-python 12.0+ must be installed", NO_DMABUF),
    skip("tests.test_mlx5_dr", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr", "must be in switchdev mode", NO_ESWITCH),
    skip("tests.test_mlx5_dr", "scapy package is needed", NO_SCAPY),
    skip("tests.test_mlx5_dr", "ROCE must be disabled", "the scenario uses RoCE"),
    skip("tests.test_mlx5_dr", "DrRule creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr", "DrDomain sync failed", NO_STEERING),
    skip("tests.test_mlx5_flow", "scapy package is needed", NO_SCAPY),
    skip("tests.test_mlx5_lag_affinity", "Set LAG affinity is not supported", NO_LAG),
    skip("tests.test_mlx5_mkey", "Create Mkey is not supported", NO_SIGNATURE),
    skip("tests.test_mlx5_mkey", "Create Mlx5DV QP is not supported", NO_SIGNATURE),
    skip("tests.test_mlx5_mkey", "ODP is not supported", NO_ODP),
    skip("tests.test_mlx5_ooo_qp", "DV QP OOO feature is not supported", NO_OOO),
    skip("tests.test_mlx5_pp", "Packet pacing entry allocation is not supported", NO_QOS),
    skip(
        "tests.test_mlx5_rdmacm.Mlx5CMTestCase.test_rdmacm_async_traffic_dc_external_qp",
        "SkipTest occurred on active side",
        NO_DC,
    ),
    skip("tests.test_mlx5_rdmacm.ReservedQPTest", "Alloc reserved QP number is not supported", NO_RESERVED),
    skip("tests.test_mlx5_sched", "schedule elements is not supported", NO_QOS),
    skip("tests.test_mlx5_uar", "UAR allocation (with flag=0) is not supported", NO_BLUEFLAME),
    skip("tests.test_mlx5_udp_sport", "Modifying a QP UDP sport is not supported", NO_SPORT),
    skip("tests.test_mlx5_var", "VAR allocation is not supported", NO_VAR),
    skip(
        "tests.test_mlx5_vfio",
        "PCI device must be passed by the user",
        "connectx-vfio tests a device without mlx5_core",
    ),
];
