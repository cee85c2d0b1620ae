//! Compares MAD attributes with those of libibmad (rdma-core 44.0 in Debian).
//!
//! For each golden value, every field was set with `mad_set_field`. Fields that libibmad does not define are 0.
#![allow(clippy::unwrap_used, reason = "tests")]

use protocol::ids::Lid;
use protocol::mad::class_port_info::ClassPortInfo;
use protocol::mad::node::NodeInfo;
use protocol::mad::perf::{PortCounters, PortCountersExtended};
use protocol::mad::port::{LinkState, PhysicalState, PortInfo};
use protocol::mad::rmpp::Rmpp;
use protocol::mad::sm::SmInfo;
use protocol::mad::switch::SwitchInfo;

fn bytes<const LEN: usize>(hex: &str) -> [u8; LEN] {
    let pairs = hex.as_bytes().as_chunks::<2>().0;
    let bytes = pairs.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
    bytes.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn port_info_matches_libibmad() {
    const GOLDEN: &str = "daa66d2c7ddf743f78dde6e5fd29f0541715b54c53845412f1bb8ff32ecc6a08a4e8455f93d711af4ee83860035ea195\
         3fcdde83175f00000000000000000000";
    let expected = PortInfo {
        m_key: 0xdaa6_6d2c_7ddf_743f,
        gid_prefix: 0x78dd_e6e5_fd29_f054,
        lid: Lid::new(0x1715),
        sm_lid: Lid::new(0xb54c),
        capabilities: 0x5384_5412,
        diag_code: 0xf1bb,
        m_key_lease: 0x8ff3,
        local_port: 0x2e,
        width_enabled: 0xcc,
        width_supported: 0x6a,
        width_active: 0x8,
        speed_supported: 0xa,
        state: LinkState(0x4),
        physical_state: PhysicalState(0xe),
        down_default: PhysicalState(0x8),
        m_key_protect: 0x1,
        lmc: 0x5,
        speed_active: 0x5,
        speed_enabled: 0xf,
        neighbour_mtu: 0x9,
        sm_sl: 0x3,
        vl_cap: 0xd,
        init_type: 0x7,
        vl_high_limit: 0x11,
        vl_arb_high_cap: 0xaf,
        vl_arb_low_cap: 0x4e,
        init_type_reply: 0xe,
        mtu_cap: 0x8,
        vl_stall_count: 0x1,
        hoq_life: 0x18,
        operational_vls: 0x6,
        m_key_violations: 0x35e,
        p_key_violations: 0xa195,
        q_key_violations: 0x3fcd,
        guid_cap: 0xde,
        client_reregister: true,
        subnet_timeout: 0x3,
        resp_time: 0x17,
        local_phy_errors: 0x5,
        overrun_errors: 0xf,
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(PortInfo::parse(&bytes(GOLDEN)), expected);
}

#[test]
fn node_info_matches_libibmad() {
    const GOLDEN: &str = "6806a443e162c2724da869d37f9a3c2bccf2e5e81dd1b5e54c3d61fdbc095a40f87823119634e716";
    let expected = NodeInfo {
        base_version: 0x68,
        class_version: 0x6,
        node_type: 0xa4,
        ports: 0x43,
        system_image_guid: 0xe162_c272_4da8_69d3,
        node_guid: 0x7f9a_3c2b_ccf2_e5e8,
        port_guid: 0x1dd1_b5e5_4c3d_61fd,
        partition_cap: 0xbc09,
        device_id: 0x5a40,
        revision: 0xf878_2311,
        local_port: 0x96,
        vendor_id: 0x34_e716,
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(NodeInfo::parse(&bytes(GOLDEN)), expected);
}

#[test]
fn switch_info_matches_libibmad() {
    const GOLDEN: &str = "f663949a32d2d1096f0dab4c8656248ef8000000";
    let expected = SwitchInfo {
        linear_cap: 0xf663,
        random_cap: 0x949a,
        multicast_cap: 0x32d2,
        linear_top: 0xd109,
        default_port: 0x6f,
        default_multicast_primary: 0xd,
        default_multicast_not_primary: 0xab,
        life_time: 0x9,
        state_change: true,
        lids_per_port: 0x8656,
        partition_enforcement_cap: 0x248e,
        inbound_enforcement: true,
        outbound_enforcement: true,
        filter_raw_inbound: true,
        filter_raw_outbound: true,
        enhanced_port_0: true,
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(SwitchInfo::parse(&bytes(GOLDEN)), expected);
}

#[test]
fn sm_info_matches_libibmad() {
    const GOLDEN: &str = "8441b84bf5bc83ff2279320575070014c0b0abbe5f000000";
    let expected = SmInfo {
        guid: 0x8441_b84b_f5bc_83ff,
        sm_key: 0x2279_3205_7507_0014,
        act_count: 0xc0b0_abbe,
        priority: 0x5,
        state: 0xf,
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(SmInfo::parse(&bytes(GOLDEN)), expected);
}

#[test]
fn port_counters_match_libibmad() {
    const GOLDEN: &str =
        "0012b0574e8fec8a2935c76d65a403dba24000d700001af1b928ced05760488af597c24393cf3bfd3206b5b6";
    let expected = PortCounters {
        port: 0x12,
        select: 0xb057,
        symbol_errors: 0x4e8f,
        link_recovered: 0xec,
        link_downed: 0x8a,
        receive_errors: 0x2935,
        remote_physical_errors: 0xc76d,
        switch_relay_errors: 0x65a4,
        transmit_discards: 0x3db,
        transmit_constraint_errors: 0xa2,
        receive_constraint_errors: 0x40,
        local_integrity_errors: 0xd,
        buffer_overruns: 0x7,
        vl15_dropped: 0x1af1,
        transmit_data: 0xb928_ced0,
        receive_data: 0x5760_488a,
        transmit_packets: 0xf597_c243,
        receive_packets: 0x93cf_3bfd,
        transmit_wait: 0x3206_b5b6,
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(PortCounters::parse(&bytes(GOLDEN)), expected);
}

#[test]
fn port_counters_extended_match_libibmad() {
    const GOLDEN: &str = "009f3e3600000000dc6d887e998f86a97aa5023818da02be18dc7bf198247ed3b713f5ab176efae8554b6f6496b976fd\
         f382e91e1603f31291ba62d7954e6f272ff1dc911498eb3c";
    let expected = PortCountersExtended {
        port: 0x9f,
        select: 0x3e36,
        transmit_data: 0xdc6d_887e_998f_86a9,
        receive_data: 0x7aa5_0238_18da_02be,
        transmit_packets: 0x18dc_7bf1_9824_7ed3,
        receive_packets: 0xb713_f5ab_176e_fae8,
        unicast_transmit_packets: 0x554b_6f64_96b9_76fd,
        unicast_receive_packets: 0xf382_e91e_1603_f312,
        multicast_transmit_packets: 0x91ba_62d7_954e_6f27,
        multicast_receive_packets: 0x2ff1_dc91_1498_eb3c,
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(PortCountersExtended::parse(&bytes(GOLDEN)), expected);
}

#[test]
fn class_port_info_matches_libibmad() {
    const GOLDEN: &str = "2dcc6a4b0883709400000000000000000000000000000000000000000000000000000000000000000000000000000000\
         000000000000000000000000000000000000000000000000";
    let expected = ClassPortInfo {
        base_version: 0x2d,
        class_version: 0xcc,
        capabilities: 0x6a4b,
        capabilities2: 0x44_1b84,
        resp_time: 0x14,
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(ClassPortInfo::parse(&bytes(GOLDEN)), expected);
}

#[test]
fn rmpp_header_matches_libibmad() {
    const GOLDEN: &str = "bb59f896349958b1d2d0d26a";
    let expected = Rmpp {
        version: 0xbb,
        kind: 0x59,
        resp_time: 0x1f,
        status: 0x96,
        segment: 0x3499_58b1,
        length_or_window: 0xd2d0_d26a,
        ..Rmpp::default()
    };
    assert_eq!(expected.emit(), bytes(GOLDEN));
    assert_eq!(Rmpp::parse(&bytes(GOLDEN)), expected);
}
