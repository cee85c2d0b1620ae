//! Known results of the whole suite on an Ethernet port.

use super::{COMMON_SKIPS, Failure, Known, MODULES, NO_DM, NO_DMABUF, NO_ODP, Skip, skip};

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
    skips: &[COMMON_SKIPS, SKIPS],
    turns: &[],
};

const FAILURES: &[Failure] = &[Failure {
    test: "tests.test_mlx5_dr.Mlx5DrTest.test_flow_meter",
    why: "on a device without flow meters, the test fails instead of skipping itself (`get_first_flow_meter_reg_id` in \
          test_mlx5_dr.py)",
}];

const NO_DC: &str = "the device does not offer DC (mlx5 interface, section 6)";
const NO_LAYOUT: &str = "the device does not offer CQEs of 128 bytes with compression or padding";
const NO_SIGNATURES: &str = "the device does not offer signatures (mlx5 interface, section 6)";
const NO_STEERING: &str = "the device does not offer software steering (mlx5 interface, section 6)";
const NO_SWITCH: &str = "the device has no switch (mlx5 interface, section 6)";
const NO_SCHEDULING: &str = "the device does not offer QoS (mlx5 interface, section 6)";

const SKIPS: &[Skip] = &[
    skip(
        "tests.test_mlx5_cq.DvCqTest.test_scatter_to_cqe_control_by_qp",
        "Create DC QP is not supported",
        NO_DC,
    ),
    skip("tests.test_mlx5_cq.DvCqTest.test_dv_cq_compression_flags", "CQE 128B compression", NO_LAYOUT),
    skip("tests.test_mlx5_cq.DvCqTest.test_dv_cq_padding", "CQE 128B padding", NO_LAYOUT),
    skip(
        "tests.test_mlx5_cq.DvCqTest.test_dv_cq_padding_not_aligned_cqe_size",
        "CQE 128B padding",
        NO_LAYOUT,
    ),
    skip("tests.test_mlx5_crypto", "Crypto login details must be supplied", "the device has no encryption"),
    skip("tests.test_mlx5_cuda_umem", "cuda-python 12.0+ must be installed", NO_DMABUF),
    skip(
        "tests.test_mlx5_dc.DCTest.test_odp_dc_traffic",
        "additional access flags 64 is not supported",
        NO_ODP,
    ),
    skip("tests.test_mlx5_dc.DCTest.test_dc_rdma_write_stream", "DCI caps is not supported", NO_DC),
    skip("tests.test_mlx5_dc.DCTest.test_dc_send_stream_bad_flow", "DCI caps is not supported", NO_DC),
    skip("tests.test_mlx5_dc.DCTest.test_dc_send_stream_bad_flow_qp", "DCI caps is not supported", NO_DC),
    skip("tests.test_mlx5_dc", "Create DC QP is not supported", NO_DC),
    skip(
        "tests.test_mlx5_devx.Mlx5DevxRcTrafficTest.test_devx_rc_qp_odp_traffic",
        "ODP is not supported",
        NO_ODP,
    ),
    skip(
        "tests.test_mlx5_devx.Mlx5DevxRcTrafficTest.test_devx_rc_qp_send_imm_doorbell_less_traffic",
        "The device doesn't support general HCA CAPs 2",
        "the device reads the doorbell records of send queues",
    ),
    skip("tests.test_mlx5_dm_ops", "MEMIC atomic operations are not supported", NO_DM),
    skip("tests.test_mlx5_dma_memcpy", "Create Mlx5DV QP is not supported", "the device copies no memory"),
    skip("tests.test_mlx5_dmabuf", "cuda-python 12.0+ must be installed", NO_DMABUF),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_dest_ib_port", "must be in switchdev mode", NO_SWITCH),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_dest_vport", "must be in switchdev mode", NO_SWITCH),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_roce_bth_match_rx", "ROCE must be disabled", "RoCE is enabled"),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_roce_bth_match_tx", "ROCE must be disabled", "RoCE is enabled"),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_dest_array", "DrTable creation failed", NO_STEERING),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_l2_geneve",
        "DrTable creation failed",
        NO_STEERING,
    ),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_l2_gre", "DrTable creation failed", NO_STEERING),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_l3_geneve",
        "DrTable creation failed",
        NO_STEERING,
    ),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_l3_gre", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_pop_vlan", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_push_vlan", "DrTable creation failed", NO_STEERING),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_reuse_action_and_matcher",
        "DrTable creation failed",
        NO_STEERING,
    ),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_root_dest_array", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_root_tbl_drop_action", "DrRule creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_root_tbl_qp_tag_rule", "DrDomain sync failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_set_matcher_layout", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_tbl_drop_action", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_tbl_qp_rule", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_tbl_qp_tag_rule", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_tx_def_miss_action", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_dest_tir", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_flow_sampler", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_geneve_match_rx", "does not support geneve fields", NO_STEERING),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_geneve_match_tx",
        "This test is not supported on cx5/6",
        NO_STEERING,
    ),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_metadata_modify_action_set_copy_match",
        "DrTable creation failed",
        NO_STEERING,
    ),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_root_l2_geneve",
        "does not support reformat",
        NO_STEERING,
    ),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_root_l2_gre",
        "does not support reformat",
        NO_STEERING,
    ),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_root_l3_geneve",
        "does not support reformat",
        NO_STEERING,
    ),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_packet_reformat_root_l3_gre",
        "does not support reformat",
        NO_STEERING,
    ),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_prevent_duplicate_rule", "DrTable creation failed", NO_STEERING),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_root_geneve_match_rx",
        "does not support geneve fields",
        NO_STEERING,
    ),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_root_reuse_action_and_matcher",
        "DrRule creation failed",
        NO_STEERING,
    ),
    skip(
        "tests.test_mlx5_dr.Mlx5DrTest.test_root_tbl_modify_header_rule",
        "Failed to create dr action modify header",
        NO_STEERING,
    ),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_tbl_counter_action", "DrTable creation failed", NO_STEERING),
    skip("tests.test_mlx5_dr.Mlx5DrTest.test_tbl_modify_header_rule", "DrTable creation failed", NO_STEERING),
    skip(
        "tests.test_mlx5_flow.Mlx5MatcherTest.test_tx_packet_reformat",
        "does not support reformat",
        NO_STEERING,
    ),
    skip("tests.test_mlx5_lag_affinity", "Set LAG affinity is not supported", "the device has one port"),
    skip(
        "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_sig_crc",
        "Create Mkey is not supported",
        NO_SIGNATURES,
    ),
    skip(
        "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_sig_err",
        "Create Mkey is not supported",
        NO_SIGNATURES,
    ),
    skip(
        "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_sig_t10dif",
        "Create Mkey is not supported",
        NO_SIGNATURES,
    ),
    skip(
        "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_sig_pipelining_bad",
        "Create Mlx5DV QP is not supported",
        NO_SIGNATURES,
    ),
    skip(
        "tests.test_mlx5_mkey.Mlx5MkeyTest.test_mkey_sig_pipelining_good",
        "Create Mlx5DV QP is not supported",
        NO_SIGNATURES,
    ),
    skip("tests.test_mlx5_mkey.Mlx5MkeyTest.test_odp_mkey_list_new_api", "ODP is not supported", NO_ODP),
    skip(
        "tests.test_mlx5_ooo_qp",
        "DV QP OOO feature is not supported",
        "the engine delivers packets in order",
    ),
    skip("tests.test_mlx5_pp", "Packet pacing entry allocation is not supported", NO_SCHEDULING),
    skip(
        "tests.test_mlx5_rdmacm.ReservedQPTest.test_reservered_qpn",
        "Alloc reserved QP number is not supported",
        "the device reserves no QP numbers",
    ),
    skip(
        "tests.test_mlx5_rdmacm.Mlx5CMTestCase.test_rdmacm_async_traffic_dc_external_qp",
        "SkipTest occurred on active side",
        NO_DC,
    ),
    skip("tests.test_mlx5_sched", "schedule elements is not supported", NO_SCHEDULING),
    skip(
        "tests.test_mlx5_uar",
        "UAR allocation (with flag=0) is not supported",
        "the device does not offer dynamic UARs (mlx5 interface, section 6)",
    ),
    skip(
        "tests.test_mlx5_udp_sport",
        "Modifying a QP UDP sport is not supported",
        "the device chooses the source port of a QP's packets",
    ),
    skip(
        "tests.test_mlx5_var",
        "VAR allocation is not supported",
        "the device has no emulated doorbells (mlx5 interface, section 6)",
    ),
    skip(
        "tests.test_mlx5_vfio",
        "PCI device must be passed by the user",
        "the scenario connectx-vfio tests vfio",
    ),
];
