//! Known results of the whole suite on an Ethernet port.

use super::{Known, MODULES, NO_DM, NO_DMABUF, NO_FLUSH, NO_ODP, Skip, skip};

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

pub(super) const KNOWN: Known =
    Known { modules: &[MODULES, MLX5_MODULES], device: "mlx5_0", failures: &[], skips: &[SKIPS], turns: &[] };

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
];
