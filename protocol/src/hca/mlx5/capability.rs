//! Device capabilities: QUERY_HCA_CAP, SET_HCA_CAP, and the general and atomic capability areas.
//!
//! A capability bit that is 0 disables a driver feature. [`GeneralCaps`] therefore has fields only for the bits that
//! the device sets and for those that must stay 0 for a known reason.
//!
//! # Spec
//! mlx5 interface, section 6.

use super::code::codes;
use super::command::OutputHeader;
use super::ethernet_capability::{EthernetCaps, FlowTableCaps, RoceCaps};
use super::user_context::UserRights;
use crate::describe::{Describe, Field as _, Value, Visitor};
use crate::layout;

/// Length in bytes of a capability area. The area follows the header of an input or output.
pub const AREA_LEN: usize = 4096;
/// Length in bytes of the QUERY_HCA_CAP output and the SET_HCA_CAP input.
pub const COMMAND_LEN: usize = OutputHeader::LEN + AREA_LEN;

codes! {
    /// Type of a capability area.
    pub enum CapType(u16) {
        General = 0 "general",
        EthernetOffloads = 1 "ethernet_offloads",
        Atomic = 3 "atomic",
        Roce = 4 "roce",
        /// Capabilities of the NIC's flow tables.
        FlowTable = 7 "flow_table",
    }
}

layout! {
    /// Input of the QUERY_HCA_CAP command.
    pub struct Query[16] big_endian {
        /// A value of [`CapType`].
        @0x04[15:1]  cap_type: u16 => CapType::word,
        /// Whether the driver requests the current values instead of the maximum values.
        @0x04[0]     current: bool,
    }
}

layout! {
    /// Fixed part of the SET_HCA_CAP input. The capability area follows.
    pub struct SetHcaCap[16] big_endian {
        /// A value of [`CapType`].
        @0x04[15:1]  cap_type: u16 => CapType::word,
    }
}

impl Query {
    /// Returns the type of the area, or `None` if the type is unknown. The device rejects unknown types with BAD_PARAM.
    pub const fn cap_type(&self) -> Option<CapType> {
        CapType::from_code(self.cap_type)
    }

    pub(super) fn describe_output(&self, output: &[u8], to: &mut dyn Visitor) {
        describe_area(self.cap_type, output.get(OutputHeader::LEN..).unwrap_or_default(), to);
    }
}

impl SetHcaCap {
    /// Returns the type of the area, or `None` if the type is unknown. The device rejects unknown types with BAD_PARAM.
    pub const fn cap_type(&self) -> Option<CapType> {
        CapType::from_code(self.cap_type)
    }

    pub(super) fn describe_area(&self, area: &[u8], to: &mut dyn Visitor) {
        self.describe(to);
        describe_area(self.cap_type, area, to);
    }
}

fn describe_area(cap_type: u16, area: &[u8], to: &mut dyn Visitor) {
    let general = || GeneralCaps::parse_prefix(area);
    let atomic = || AtomicCaps::parse_prefix(area);
    let ethernet = || EthernetCaps::parse_prefix(area);
    let roce = || RoceCaps::parse_prefix(area);
    let flow_table = || FlowTableCaps::parse_prefix(area);
    match CapType::from_code(cap_type) {
        Some(CapType::EthernetOffloads) if ethernet().is_some() => ethernet().show("ethernet", to),
        Some(CapType::Roce) if roce().is_some() => roce().show("roce", to),
        Some(CapType::FlowTable) if flow_table().is_some() => flow_table().show("flow_table", to),
        Some(CapType::General) if general().is_some() => general().show("general", to),
        Some(CapType::Atomic) if atomic().is_some() => atomic().show("atomic", to),
        _ => to.value("area", Value::Bytes(area)),
    }
}

layout! {
    /// General capabilities of the device.
    pub struct GeneralCaps[256] big_endian {
        /// If set, the device never requests pages, and the driver does not create an EQ for page requests.
        @0x00[25]     page_requests_disabled: bool,
        /// Log2 of the maximum number of entries in an SRQ.
        @0x10[31:24]  log_max_srq_entries: u8,
        /// Log2 of the maximum size of a QP's work queues, in 64-byte blocks for the send queue and in entries for the
        /// receive queue.
        @0x10[23:16]  log_max_qp_blocks: u8,
        @0x10[4:0]    log_max_qps: u8,
        @0x14[20:16]  log_max_srqs: u8,
        /// Maximum number of scatter entries for optimal performance.
        @0x18[31:24]  max_sgl_for_performance: u8,
        /// Log2 of the maximum number of entries in a CQ.
        @0x18[23:16]  log_max_cq_entries: u8,
        @0x18[4:0]    log_max_cqs: u8,
        /// Log2 of the maximum number of entries in an EQ.
        @0x1c[31:24]  log_max_eq_entries: u8,
        @0x1c[21:16]  log_max_mkeys: u8,
        /// Whether the device reports the terminate-list key.
        @0x1c[9]      terminate_list_key: bool,
        /// Whether the device reports the key in the header of a strided list.
        @0x1c[8]      repeated_key: bool,
        /// Whether the device reports the dump-fill key.
        @0x1c[7]      dump_fill_key: bool,
        /// Whether the driver may stop the device with fast teardown while objects exist.
        @0x1c[4]      fast_teardown: bool,
        @0x1c[3:0]    log_max_eqs: u8,
        /// Maximum nesting depth of memory keys that refer to other keys.
        @0x20[31:24]  max_indirection: u8,
        /// Whether the device supports KSM keys.
        @0x20[23]     fixed_buffer_size: bool,
        /// Log2 of the maximum memory region length in bytes.
        @0x20[22:16]  log_max_mr_size: u8,
        /// Whether the device reports the null key.
        @0x20[6]      null_mkey: bool,
        /// Log2 of the maximum number of entries in a KLM list.
        @0x20[5:0]    log_max_klm_list: u8,
        @0x28[22]     roce_acceleration: bool,
        /// Log2 of the maximum number of outstanding READs and atomics as the requester.
        @0x28[21:16]  log_max_requester_depth: u8,
        /// Log2 of the maximum number of outstanding READs and atomics as the responder.
        @0x28[5:0]    log_max_responder_depth: u8,
        @0x2c[31]     end_padding: bool,
        @0x2c[28]     start_padding: bool,
        /// Whether RTS2RTS can change a QP's counter set.
        @0x2c[22]     rts2rts_counter_set: bool,
        /// Size code of the GID table; code n means 8 · 2^n entries.
        @0x2c[15:0]   gid_table_code: u16,
        /// Whether the device counts packets that arrive out of sequence.
        @0x30[31]     out_of_sequence_counter: bool,
        /// Whether the device supports QUERY_VPORT_COUNTER.
        @0x30[30]     vport_counters: bool,
        /// Whether the device counts retransmissions.
        @0x30[29]     retransmission_counters: bool,
        /// Whether the counter set of an RQ can be changed.
        @0x30[27]     modify_rq_counter_set: bool,
        /// Number of Q counter sets.
        @0x30[25:16]  max_q_counters: u16,
        /// Size code of the P_Key table; code n means 128 · 2^n entries.
        @0x30[15:0]   pkey_table_code: u16,
        /// Whether the device has port commands that replace MAD_IFC.
        @0x34[29]     ib_virt: bool,
        /// Whether the device has flow tables for the NIC.
        @0x34[25]     nic_flow_table: bool,
        /// Whether the function manages an eswitch.
        @0x34[24]     eswitch_manager: bool,
        /// Whether the device supports the MCAM register.
        @0x34[22]     mcam: bool,
        /// Maximum local ACK delay, as a timeout code.
        @0x34[20:16]  local_ack_delay: u8,
        /// Whether the device counts CQEs with errors.
        @0x34[14]     error_counters: bool,
        /// Type of the port; a value of [`PortType`].
        @0x34[9:8]    port_type: u8 => PortType::word,
        @0x34[7:0]    ports: u8,
        /// Log2 of the maximum message length in bytes.
        @0x38[28:24]  log_max_message: u8,
        /// Mask of supported static rates.
        @0x3c[31:16]  rate_support: u16 => Hex,
        /// Version of the CQE format. In version 1, CQEs hold the user index.
        @0x3c[3:0]    cqe_version: u8,
        /// Whether an entry of a receive queue can hold several packets.
        @0x40[30]     striding_rq: bool,
        /// Set if the device does not support strided memory keys.
        @0x40[25]     strided_mkey_disabled: bool,
        /// Set if UMRs cannot change the size of a key's translation list.
        @0x40[24]     umr_entity_size_disabled: bool,
        /// Set if UMRs cannot change the atomic access right.
        @0x40[23]     umr_atomic_disabled: bool,
        /// Fence that is required after a UMR: 1 for none, 2 for a small fence.
        @0x40[21:20]  umr_fence: u8,
        /// Whether the device supports inline data in CQEs.
        @0x40[10]     scatter_to_cqe: bool,
        @0x40[8]      signature_handover: bool,
        /// Whether the device supports dynamically connected transport (DC).
        @0x40[5]      dct: bool,
        @0x40[4]      qos: bool,
        @0x40[3]      ethernet_offloads: bool,
        @0x40[2]      roce: bool,
        @0x40[1]      atomic: bool,
        /// Whether CQs can be set to ignore overruns.
        @0x44[31]     cq_ignore_overrun: bool,
        @0x44[30]     cq_resize: bool,
        @0x44[29]     cq_moderation: bool,
        /// Whether MODIFY_CQ can change the moderation period mode.
        @0x44[28]     cq_period_mode: bool,
        /// Whether the device supports on-demand paging.
        @0x44[24]     paging: bool,
        /// Whether a QP can block loopback of its own multicast datagrams.
        @0x44[23]     block_multicast_loopback: bool,
        /// Whether the device supports automatic path migration.
        @0x44[17]     path_migration: bool,
        @0x44[14]     memory_windows: bool,
        /// Whether the device counts Q_Key violations.
        @0x44[9]      qkey_violation_counter: bool,
        /// Whether the device counts P_Key violations.
        @0x44[8]      pkey_violation_counter: bool,
        /// Whether QPs can send datagrams with a source QP number other than their own.
        @0x44[7]      set_deth_qpn: bool,
        /// Whether the device supports XRC, which drivers require.
        @0x44[3]      xrc: bool,
        @0x44[2]      ud: bool,
        @0x44[1]      uc: bool,
        @0x44[0]      rc: bool,
        /// Whether the device supports 4 KiB UAR pages.
        @0x48[31]     uar_4k: bool,
        /// Log2 of the total size of all UAR pages in MiB.
        @0x48[21:16]  log_uar_size: u8,
        /// Log2 of the page size in bytes.
        @0x48[7:0]    log_page: u8,
        @0x4c[31]     blue_flame: bool,
        /// Whether the device supports SET_DRIVER_VERSION.
        @0x4c[30]     driver_version: bool,
        /// Log2 of the send doorbell register length in bytes.
        @0x4c[20:16]  log_register_len: u8,
        /// Maximum send WQE size in bytes.
        @0x50[15:0]   max_send_wqe: u16,
        /// Maximum receive WQE size in bytes.
        @0x54[15:0]   max_recv_wqe: u16,
        /// Maximum DC send WQE size in bytes.
        @0x58[15:0]   max_dc_wqe: u16,
        /// Maximum number of QPs in a multicast group.
        @0x5c[24:0]   max_group_qps: u32,
        /// Log2 of the number of multicast groups.
        @0x60[7:0]    log_max_groups: u8,
        @0x64[28:24]  log_max_transport_domains: u8,
        @0x64[20:16]  log_max_pds: u8,
        @0x64[4:0]    log_max_xrcds: u8,
        /// Log2 of the maximum number of flow counters that one command can query.
        @0x68[23:16]  log_max_counter_query: u8,
        @0x6c[28:24]  log_max_rqs: u8,
        @0x6c[20:16]  log_max_sqs: u8,
        @0x6c[12:8]   log_max_tirs: u8,
        @0x6c[4:0]    log_max_tises: u8,
        /// Whether RQs can be cyclic, as opposed to linked lists.
        @0x70[31]     cyclic_rq: bool,
        @0x70[28:24]  log_max_rmps: u8,
        @0x70[20:16]  log_max_rqts: u8,
        /// Log2 of the maximum number of entries in an RQT.
        @0x70[12:8]   log_max_rqt_entries: u8,
        /// Log2 of the maximum number of TISes per SQ.
        @0x70[4:0]    log_max_tises_per_sq: u8,
        /// Log2 of the maximum entry size of an RQ in bytes.
        @0x74[28:24]  log_max_rq_stride: u8,
        /// Log2 of the minimum entry size of an RQ in bytes.
        @0x74[20:16]  log_min_rq_stride: u8,
        /// Log2 of the maximum block size of an SQ in bytes.
        @0x74[12:8]   log_max_sq_stride: u8,
        /// Log2 of the minimum block size of an SQ in bytes.
        @0x74[4:0]    log_min_sq_stride: u8,
        /// Log2 of the maximum number of entries in an RQ or SQ.
        @0x78[4:0]    log_max_wq_entries: u8,
        /// Log2 of the maximum length of the VLAN list in the vport context.
        @0x7c[20:16]  log_max_vlan_list: u8,
        /// Log2 of the maximum length of the multicast list in the vport context.
        @0x7c[12:8]   log_max_multicast_list: u8,
        /// Log2 of the maximum length of the unicast list in the vport context.
        @0x7c[4:0]    log_max_unicast_list: u8,
        /// Log2 of the number of DevX user contexts. 0 disables DevX.
        @0x8c[28:24]  log_max_user_contexts: u8,
        /// Log2 of the number of user memory objects (UMEMs).
        @0x8c[20:16]  log_max_user_memories: u8,
        @0x8c[15:0]   max_eqs: u16,
        /// Log2 of the size of a UAR page in units of 4 KiB. The driver sets it to the page size of its processor.
        @0x90[15:0]   log_uar_page: u16,
        /// Frequency of the internal timer in MHz.
        @0x98         timer_mhz: u32,
        /// Frequency of the internal timer in kHz.
        @0x9c         timer_khz: u32,
        /// Number of UAR pages per system page.
        @0xa4[15:0]   uars_per_page: u16,
        /// Whether CQs may be created with CQE compression. The device is not required to compress any CQEs.
        @0xb4[0]      cqe_compression: bool,
        /// Maximum number of completions in a compressed CQE.
        @0xb8[15:0]   max_mini_cqes: u16,
        /// Rights that a DevX user context can have.
        @0xd4         user_rights: UserRights as u32,
    }
}

codes! {
    /// Type of the port.
    pub enum PortType(u8) {
        InfiniBand = 0 "ib",
        Ethernet = 1 "ethernet",
    }
}

impl GeneralCaps {
    /// Returns these capabilities without DevX.
    #[must_use]
    pub fn without_devx(self) -> Self {
        Self { log_max_user_contexts: 0, log_max_user_memories: 0, user_rights: UserRights::empty(), ..self }
    }

    /// Returns this device's capabilities with an InfiniBand port.
    pub fn infiniband() -> Self {
        Self {
            log_max_srq_entries: 15,
            // With a value of 14, NFS over RDMA cannot create its QPs (section 20, M-27).
            log_max_qp_blocks: 15,
            log_max_qps: 17,
            log_max_srqs: 16,
            max_sgl_for_performance: 30,
            log_max_cq_entries: 16,
            log_max_cqs: 16,
            log_max_eq_entries: 22,
            // The Linux 6.12 driver creates about 6,100 keys when it loads (section 20, M-17).
            log_max_mkeys: 18,
            repeated_key: true,
            // The driver uses fast teardown at power-off. Without it, Linux 6.12 destroys its 6,100 keys one by one.
            fast_teardown: true,
            log_max_eqs: 6,
            max_indirection: 4,
            fixed_buffer_size: true,
            log_max_mr_size: 40,
            log_max_klm_list: 16,
            log_max_requester_depth: 4,
            log_max_responder_depth: 4,
            rts2rts_counter_set: true,
            out_of_sequence_counter: true,
            vport_counters: true,
            retransmission_counters: true,
            max_q_counters: 256,
            mcam: true,
            local_ack_delay: 16,
            error_counters: true,
            port_type: PortType::InfiniBand.code(),
            ports: 1,
            log_max_message: 30,
            rate_support: 0x1ff,
            cqe_version: 1,
            umr_fence: 1,
            scatter_to_cqe: true,
            atomic: true,
            cq_ignore_overrun: true,
            cq_resize: true,
            cq_moderation: true,
            cq_period_mode: true,
            block_multicast_loopback: true,
            memory_windows: true,
            qkey_violation_counter: true,
            pkey_violation_counter: true,
            // Without XRC, the driver does not register an InfiniBand device (section 20, M-6).
            xrc: true,
            ud: true,
            uc: true,
            rc: true,
            log_uar_size: 5,
            log_page: 12,
            driver_version: true,
            log_register_len: 9,
            max_send_wqe: 1024,
            max_recv_wqe: 512,
            max_dc_wqe: 1024,
            max_group_qps: 56,
            log_max_groups: 13,
            log_max_transport_domains: 10,
            log_max_pds: 16,
            log_max_xrcds: 16,
            log_max_user_contexts: 10,
            log_max_user_memories: 12,
            user_rights: UserRights::RAW_TRANSMIT,
            max_eqs: 64,
            timer_mhz: 156,
            timer_khz: 156_250,
            uars_per_page: 1,
            ..Self::default()
        }
    }

    /// Returns the area as it appears in the QUERY_HCA_CAP output.
    pub fn area(&self) -> [u8; AREA_LEN] {
        in_area(&self.emit())
    }
}

layout! {
    /// Capabilities for atomic operations.
    pub struct AtomicCaps[32] big_endian {
        /// Byte order of results. It is 0 in the maximum capabilities. In the current capabilities, it is the value set
        /// by SET_HCA_CAP.
        @0x08[31:30]  endianness_mode: u8,
        /// Whether the device supports endianness mode 1, which returns results in host byte order.
        @0x08[25]     host_order_supported: bool,
        /// Mask of supported operations: bit 0 for compare and swap, bit 1 for fetch and add, and bits 2 and 3 for
        /// their masked variants.
        @0x10[15:0]   operations: u16 => Hex,
        /// Operand sizes for QPs. Bit n means that 2^n bytes are supported.
        @0x14[15:0]   qp_sizes: u16 => Hex,
        /// Operand sizes for DC. Bit n means that 2^n bytes are supported.
        @0x18[15:0]   dc_sizes: u16 => Hex,
    }
}

impl AtomicCaps {
    /// Returns this device's maximum capabilities: both 64-bit operations, but no masked variants.
    pub fn largest() -> Self {
        Self { host_order_supported: true, operations: 3, qp_sizes: 8, dc_sizes: 8, ..Self::default() }
    }

    /// Returns the capabilities after SET_HCA_CAP requests `set`. Only the byte order can be changed.
    #[must_use]
    pub const fn with_endianness(self, set: &Self) -> Self {
        Self { endianness_mode: set.endianness_mode, ..self }
    }

    /// Returns the area as it appears in the QUERY_HCA_CAP output.
    pub fn area(&self) -> [u8; AREA_LEN] {
        in_area(&self.emit())
    }
}

/// Returns a capability area that begins with `caps`.
pub(super) fn in_area(caps: &[u8]) -> [u8; AREA_LEN] {
    let mut area = [0; AREA_LEN];
    area.iter_mut().zip(caps).for_each(|(to, from)| *to = *from);
    area
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The expected words are from the table in section 6.1.
    #[test]
    fn infiniband_caps_match_published_words() {
        let expected = words(&[
            (0x10, 0x0f0f_0011),
            (0x14, 0x0010_0000),
            (0x18, 0x1e10_0010),
            (0x1c, 0x1612_0116),
            (0x20, 0x04a8_0010),
            (0x28, 0x0004_0004),
            (0x2c, 0x0040_0000),
            (0x30, 0xe100_0000),
            (0x34, 0x0050_4001),
            (0x38, 0x1e00_0000),
            (0x3c, 0x01ff_0001),
            (0x40, 0x0010_0402),
            (0x44, 0xf080_430f),
            (0x48, 0x0005_000c),
            (0x4c, 0x4009_0000),
            (0x50, 1024),
            (0x54, 512),
            (0x58, 1024),
            (0x5c, 56),
            (0x60, 13),
            (0x64, 0x0a10_0010),
            (0x8c, 0x0a0c_0040),
            (0x98, 156),
            (0x9c, 156_250),
            (0xa4, 1),
            (0xd4, 1),
        ]);
        assert_eq!(GeneralCaps::infiniband().emit(), expected);
        assert_eq!(GeneralCaps::parse(&expected), GeneralCaps::infiniband());
        let area = GeneralCaps::infiniband().area();
        assert_eq!(area[..256], expected);
        assert_eq!(area[256..], [0; AREA_LEN - 256]);
    }

    /// Example from golden trace ib-1.
    #[test]
    fn current_atomic_caps_report_selected_byte_order() {
        let set = AtomicCaps { endianness_mode: 1, ..AtomicCaps::default() };
        assert_eq!(set.emit(), words(&[(0x08, 0x4000_0000)]));
        let current = AtomicCaps::largest().with_endianness(&set);
        assert_eq!(current.emit(), words(&[(0x08, 0x4200_0000), (0x10, 3), (0x14, 8), (0x18, 8)]));
        assert_eq!(AtomicCaps::largest().emit()[8], 2);
    }

    #[test]
    fn op_mod_encodes_capability_type() {
        let query = Query::parse(&[1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((query.cap_type(), query.current), (Some(CapType::Atomic), true));
        let unknown = Query { cap_type: 2, current: false };
        assert_eq!((unknown.cap_type(), unknown.emit()[7]), (None, 4));
        assert_eq!(SetHcaCap { cap_type: 3 }.emit()[7], 6);
    }
}
