//! Queue pair contexts and the commands that carry them.
//!
//! [`super::transition`] defines how commands change a context.
//!
//! # Spec
//! mlx5 interface, sections 5.4 and 10.1.

use super::code::codes;
use super::path::Path;
use super::transition::QpAttributes;
use super::user_memory::UmemPlace;
use crate::Psn;
use crate::ids::{CounterSet, Cqn, Iova, Pdn, Qkey, Qpn, Srqn, UarIndex, UmemId, UserIndex, XrcDomain};
use crate::layout;

codes! {
    /// State of a QP.
    pub enum QpState(u8) {
        Reset = 0 "RST",
        /// Receives can be posted (INIT).
        Init = 1 "INIT",
        /// The QP can receive (RTR).
        Rtr = 2 "RTR",
        /// The QP can send and receive (RTS).
        Rts = 3 "RTS",
        /// The send queue has failed.
        SqError = 4 "SQER",
        /// The send queue is drained (SQD). No command moves a QP to this state.
        SqDrain = 5 "SQD",
        Error = 6 "ERR",
        Suspended = 9 "SUSPENDED",
    }
}

codes! {
    /// Transport service of a QP.
    pub enum Service(u8) {
        /// QP for reliable connections (RC).
        Rc = 0x0 "RC",
        Uc = 0x1 "UC",
        /// QP for unreliable datagrams (UD).
        Ud = 0x2 "UD",
        /// Extended reliable connection (XRC).
        Xrc = 0x3 "XRC",
        /// Dynamically connected initiator. Not supported.
        Dci = 0x5 "DCI",
        /// Dynamically connected target. Not supported.
        Dct = 0x6 "DCT",
        /// QP0 of the port, which is a UD QP.
        Qp0 = 0x7 "QP0",
        /// QP1 of the port, which is a UD QP.
        Qp1 = 0x8 "QP1",
        /// QP for raw Ethernet frames.
        Raw = 0x9 "RAW",
        /// QP on which the kernel posts UMRs to change memory keys. It has no receive queue.
        Umr = 0xc "UMR",
    }
}

impl Service {
    /// Returns whether the service's send WQEs have a datagram segment.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Qp0 | Self::Qp1)
    }

    /// Returns whether the service is RC or XRC.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

codes! {
    /// Source of a QP's receive WQEs.
    pub enum ReceiveKind(u8) {
        /// The QP's own receive queue.
        Own = 0 "RQ",
        /// An RMP or XRC SRQ.
        Srq = 1 "SRQ",
        /// `CRQ` in the kernel driver. Not supported.
        Crq = 2 "CRQ",
        /// The QP has no receive queue.
        None = 3 "NONE",
    }
}

layout! {
    /// Context of a QP.
    pub struct QpContext[232] big_endian {
        /// A value of [`QpState`].
        @0x00[31:28]  state: u8 => QpState::word,
        /// A value of [`Service`].
        @0x00[23:16]  service: u8 => Service::word,
        /// Path migration state; 3 means migrated.
        @0x00[12:11]  migration: u8,
        /// Type of offload used by the QP.
        @0x00[7:4]    offload: u8,
        @0x00[3:2]    end_padding: u8,
        /// Whether WQEs have signatures. Not supported.
        @0x04[31]     wqe_signatures: bool,
        /// If set, the QP does not receive its own multicast datagrams.
        @0x04[30]     block_multicast_loopback: bool,
        /// Whether the QP is latency sensitive.
        @0x04[28]     latency_sensitive: bool,
        @0x04[23:0]   pd: Pdn,
        /// Path MTU code, 1 to 5 for 256 to 4096 bytes.
        @0x08[31:29]  mtu: u8,
        /// Log2 of the maximum message length in bytes.
        @0x08[28:24]  log_max_message: u8,
        /// Log2 of the number of receive entries.
        @0x08[22:19]  log_rq_entries: u8,
        /// Log2 of the size of a receive entry in bytes, minus 4.
        @0x08[18:16]  log_rq_stride: u8,
        /// If set, the QP has no send queue.
        @0x08[15]     no_sq: bool,
        /// Log2 of the length of the send queue in 64-byte blocks.
        @0x08[14:11]  log_sq_blocks: u8,
        /// Whether the QP can use the reserved L_Key.
        @0x08[4]      reserved_lkey: bool,
        /// Stateless offload mode, used by IPoIB.
        @0x08[3:0]    stateless_offload: u8,
        /// Q counter set of the QP.
        @0x0c[31:24]  counter_set: CounterSet,
        /// UAR page that contains the QP's doorbell.
        @0x0c[23:0]   uar: UarIndex,
        /// User index that CQEs report.
        @0x10[23:0]   user_index: UserIndex,
        /// The pages of the queues are `4096 << log_page_size` bytes long.
        @0x14[28:24]  log_page_size: u8,
        /// QP number of the peer.
        @0x14[23:0]   remote_qpn: Qpn,
        @0x18         primary: Path,
        /// Alternate path to the peer. Not used.
        @0x44         alternate: Path,
        /// Log2 of the number of messages between two ACK requests. Ignored.
        @0x70[31:28]  log_ack_frequency: u8,
        /// Log2 of the maximum number of outstanding READs and atomics as the requester.
        @0x70[23:21]  log_requester_depth: u8,
        /// Maximum number of retries after a timeout.
        @0x70[18:16]  retry_count: u8,
        /// Maximum number of retries after an RNR NAK; 7 means no limit.
        @0x70[15:13]  rnr_retry: u8,
        /// Whether fast registration is allowed.
        @0x70[11]     fast_registration: bool,
        /// Next PSN to send.
        @0x78[23:0]   next_send_psn: Psn,
        /// CQ of the send queue, or 0 if there is none.
        @0x7c[23:0]   send_cqn: Cqn,
        /// Source QP number for the DETH. Requires a capability that this device does not report.
        @0x80[23:0]   deth_qpn: Qpn,
        /// Oldest unacknowledged PSN. Reported by QUERY_QP.
        @0x84[23:0]   last_acked_psn: Psn,
        /// Log2 of the maximum number of outstanding READs and atomics as the responder.
        @0x90[23:21]  log_responder_depth: u8,
        /// Atomic mode; 1 means InfiniBand atomics.
        @0x90[19:16]  atomic_mode: u8,
        /// Whether peers may execute RDMA READ.
        @0x90[15]     remote_read: bool,
        /// Whether peers may execute RDMA WRITE.
        @0x90[14]     remote_write: bool,
        /// Whether peers may execute atomic operations.
        @0x90[13]     remote_atomic: bool,
        /// Offset of the first entry in its page; see [`super::page_offset`].
        @0x90[11:6]   page_offset: u8,
        /// Whether the QP is the slave of a cross-channel connection. Ignored.
        @0x90[1]      cross_channel_slave: bool,
        /// Timer code for the RNR NAKs that the QP sends.
        @0x94[28:24]  min_rnr_timer: u8,
        /// PSN of the next expected packet.
        @0x94[23:0]   recv_psn: Psn,
        @0x98[23:0]   xrcd: XrcDomain,
        /// CQ of the receive queue.
        @0x9c[23:0]   recv_cqn: Cqn,
        /// Address of the doorbell record.
        @0xa0         record: Iova,
        @0xa8         qkey: Qkey,
        /// A value of [`ReceiveKind`].
        @0xac[26:24]  receive_kind: u8 => ReceiveKind::word,
        /// RMP number or XRC SRQ number. Drivers set this field even if the QP does not use an SRQ.
        @0xac[23:0]   srqn: Srqn,
        /// Counters of the send queue. Reported by QUERY_QP.
        @0xb4         sq_counters: u32 => Hex,
        /// Number of receives that the device has consumed. Reported by QUERY_QP.
        @0xb8         rq_hw_counter: u32,
        /// Number of receives that the driver has posted. Reported by QUERY_QP.
        @0xbc         rq_sw_counter: u32,
        /// Whether the requester may place short data into CQEs. Ignored.
        @0xc4[15:8]   inline_request: u8 => Hex,
        /// Whether the responder may place short data into CQEs. Ignored.
        @0xc4[7:0]    inline_response: u8 => Hex,
        /// Access key for DC. Not used.
        @0xc8         dc_key: u64 => Hex,
        /// Whether the doorbell record is in a UMEM. If so, `record` is an offset into that UMEM.
        @0xd0[28]     record_in_umem: bool,
        /// UMEM that holds the doorbell record.
        @0xe4         record_umem: UmemId,
    }
}

impl QpContext {
    /// Returns the state, or `None` if the code is unknown.
    pub const fn state(&self) -> Option<QpState> {
        QpState::from_code(self.state)
    }

    /// Returns the service, or `None` if the code is unknown.
    pub const fn service(&self) -> Option<Service> {
        Service::from_code(self.service)
    }

    /// Returns the source of the QP's receive WQEs, or `None` if the code is unknown.
    pub const fn receive_kind(&self) -> Option<ReceiveKind> {
        ReceiveKind::from_code(self.receive_kind)
    }

    /// Returns the location of the doorbell record in a UMEM, or `None` if `record` is a DMA address.
    pub fn record_place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.record_in_umem, self.record_umem, self.record.get())
    }

    /// Returns the length of the receive queue in bytes, or 0 if the QP has none. The receive queue is at the start of
    /// the buffer.
    pub const fn rq_len(&self) -> usize {
        match self.receive_kind() {
            Some(ReceiveKind::Own) => 1 << (self.log_rq_entries + self.log_rq_stride + 4),
            _ => 0,
        }
    }

    /// Returns the length of the send queue in bytes, or 0 if the QP has none. The send queue follows the receive
    /// queue.
    pub const fn sq_len(&self) -> usize {
        if self.no_sq { 0 } else { 64 << self.log_sq_blocks }
    }
}

layout! {
    /// Fixed part of the CREATE_QP input. The page addresses of the queues follow, unless the queues are in a UMEM.
    pub struct CreateQp[0x110] big_endian {
        /// QP number. Reserved in this command; must be 0.
        @0x08[23:0]  qpn: Qpn,
        /// Attribute mask. Not used by this command.
        @0x10        optional: QpAttributes as u32,
        @0x18        context: QpContext,
        /// Byte offset of the queues in their UMEM.
        @0x100       umem_offset: u64 => Hex,
        @0x108       umem: UmemId,
        /// Whether the queues are in a UMEM.
        @0x10c[31]   in_umem: bool,
    }
}

impl CreateQp {
    /// Returns the location of the queues in a UMEM, or `None` if the input lists their pages.
    pub fn place(&self) -> Option<UmemPlace> {
        UmemPlace::new(self.in_umem, self.umem, self.umem_offset)
    }
}

layout! {
    /// Input of the commands that change the QP state.
    pub struct ModifyQp[0x110] big_endian {
        @0x08[23:0]  qpn: Qpn,
        /// Attributes to copy in addition to those that the transition always copies.
        @0x10        optional: QpAttributes as u32,
        /// Context with the new values.
        @0x18        context: QpContext,
    }
}

layout! {
    /// Input of the QUERY_QP command.
    pub struct QueryQp[16] big_endian {
        /// Whether the driver requests the extended context. Not supported.
        @0x08[31]    extended: bool,
        @0x08[23:0]  qpn: Qpn,
    }
}

layout! {
    /// Output of QUERY_QP. Newer drivers request 464 bytes, older ones 272. The bytes after the context are zero.
    pub struct QueriedQp[464] big_endian {
        @0x18  context: QpContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn qp_context_fields_are_at_specified_offsets() {
        let primary = Path { lid: crate::ids::Lid::new(0x11), ack_timeout: 14, port: 1, ..Path::default() };
        let context = QpContext {
            state: 3,
            service: 0xc,
            migration: 3,
            offload: 5,
            end_padding: 1,
            wqe_signatures: true,
            block_multicast_loopback: true,
            latency_sensitive: true,
            pd: Pdn::new(4),
            mtu: 3,
            log_max_message: 30,
            log_rq_entries: 9,
            log_rq_stride: 1,
            no_sq: true,
            log_sq_blocks: 8,
            reserved_lkey: true,
            stateless_offload: 2,
            counter_set: CounterSet::new(1),
            uar: UarIndex::new(0x10),
            user_index: UserIndex::NONE,
            log_page_size: 4,
            remote_qpn: Qpn::new(0x84),
            primary,
            alternate: Path { port: 2, ..Path::default() },
            log_ack_frequency: 8,
            log_requester_depth: 4,
            retry_count: 7,
            rnr_retry: 6,
            fast_registration: true,
            next_send_psn: Psn::new(0xf9_ab06),
            send_cqn: Cqn::new(0x43),
            deth_qpn: Qpn::new(0x44),
            last_acked_psn: Psn::new(0xf9_ab05),
            log_responder_depth: 2,
            atomic_mode: 1,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            page_offset: 28,
            cross_channel_slave: true,
            min_rnr_timer: 12,
            recv_psn: Psn::new(0x44_c40b),
            xrcd: XrcDomain::new(2),
            recv_cqn: Cqn::new(0x45),
            record: Iova::new(0x1_35b9_d200),
            qkey: Qkey::new(0x8001_0000),
            receive_kind: 3,
            srqn: Srqn::new(0x11),
            sq_counters: 0x0001_0002,
            rq_hw_counter: 3,
            rq_sw_counter: 4,
            inline_request: 0x11,
            inline_response: 0x22,
            dc_key: 0x0102_0304_0506_0708,
            record_in_umem: true,
            record_umem: UmemId::new(0x99aa_bbcc),
        };
        let bytes = words(&[
            (0x00, 0x300c_1854),
            (0x04, 0xd000_0004),
            (0x08, 0x7e49_c012),
            (0x0c, 0x0100_0010),
            (0x10, 0x00ff_ffff),
            (0x14, 0x0400_0084),
            (0x1c, 0x11),
            (0x20, 0x7000_0000),
            (0x3c, 0x0001_0000),
            (0x68, 0x0002_0000),
            (0x70, 0x8087_c800),
            (0x78, 0x00f9_ab06),
            (0x7c, 0x43),
            (0x80, 0x44),
            (0x84, 0x00f9_ab05),
            (0x90, 0x0041_e702),
            (0x94, 0x0c44_c40b),
            (0x98, 2),
            (0x9c, 0x45),
            (0xa0, 1),
            (0xa4, 0x35b9_d200),
            (0xa8, 0x8001_0000),
            (0xac, 0x0300_0011),
            (0xb4, 0x0001_0002),
            (0xb8, 3),
            (0xbc, 4),
            (0xc4, 0x1122),
            (0xc8, 0x0102_0304),
            (0xcc, 0x0506_0708),
            (0xd0, 0x1000_0000),
            (0xe4, 0x99aa_bbcc),
        ]);
        assert_eq!(context.emit(), bytes);
        assert_eq!(QpContext::parse(&bytes), context);
        assert_eq!((context.state(), context.service()), (Some(QpState::Rts), Some(Service::Umr)));
    }

    #[test]
    fn queue_lengths_are_computed_from_log_sizes() {
        let context =
            QpContext { log_rq_entries: 9, log_rq_stride: 0, log_sq_blocks: 2, ..QpContext::default() };
        assert_eq!((context.rq_len(), context.sq_len()), (0x2000, 0x100));
        let target = QpContext { receive_kind: 1, no_sq: true, ..context };
        assert_eq!((target.rq_len(), target.sq_len()), (0, 0));
        let largest = QpContext { log_rq_entries: 15, log_rq_stride: 7, log_sq_blocks: 15, ..context };
        assert_eq!((largest.rq_len(), largest.sq_len()), (1 << 26, 1 << 21));
    }

    #[test]
    fn qp0_and_qp1_are_datagram_qps() {
        assert!(Service::Qp0.is_datagram() && Service::Qp1.is_datagram() && Service::Ud.is_datagram());
        assert!(!Service::Rc.is_datagram() && Service::Xrc.is_reliable() && !Service::Uc.is_reliable());
    }
}
