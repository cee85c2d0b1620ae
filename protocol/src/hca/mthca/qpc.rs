//! Queue pair contexts (QPC), as found in the inboxes of QP commands and the outbox of QUERY_QP.
//!
//! [`super::modify`] defines how commands change a context.
//!
//! # Spec
//! mthca interface, section 6.5.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::path::{self, Path};
use crate::Psn;
use crate::describe::{Code, Describe, Field as _, Hex, Visitor, describe};
use crate::hca::qp::{QpState, ServiceType};
use crate::ids::{Cqn, Lkey, Pdn, Qkey, Qpn, Srqn};

/// Length of a context in bytes.
pub const LEN: usize = 0x100;

/// The kind of QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpKind {
    /// An ordinary QP with the given service type.
    Service(ServiceType),
    /// QP0 or QP1: sends MADs with headers written by the driver.
    Mlx,
}

impl QpKind {
    /// Decodes a kind. Returns `None` for an unsupported code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            7 => Some(Self::Mlx),
            code => match ServiceType::from_code(code) {
                Some(service) => Some(Self::Service(service)),
                None => None,
            },
        }
    }

    /// Returns the code together with its name, for traces.
    pub fn word(code: u8) -> Code {
        match Self::from_code(code) {
            Some(Self::Mlx) => Code(code.into(), Some("MLX")),
            _ => ServiceType::word(code),
        }
    }

    /// Returns the service type that the QP uses on the wire.
    pub const fn service(self) -> ServiceType {
        match self {
            Self::Service(service) => service,
            Self::Mlx => ServiceType::Ud,
        }
    }
}

/// Size of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Geometry {
    /// Log2 of the number of slots, five bits. It is 0 for a queue with one slot, and also for an absent queue.
    pub log_slots: u8,
    /// Log2 of the slot size in bytes, 4 to 11.
    pub log_slot: u8,
}

impl Geometry {
    /// Log2 of the largest slot size in bytes.
    pub const MAX_LOG_SLOT: u8 = 11;

    const fn from_byte(byte: u8) -> Self {
        Self { log_slots: byte >> 3, log_slot: (byte & 0x7) + 4 }
    }

    const fn byte(self) -> u8 {
        self.log_slots << 3 | self.log_slot.saturating_sub(4) & 0x7
    }
}

/// A parsed QP context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Qpc {
    /// 00h, bits 31:28: see [`Qpc::state`].
    pub state: u8,
    /// 00h, bits 19:16: see [`Qpc::kind`].
    pub kind: u8,
    /// 00h, bits 12:11: path migration state.
    pub migration: u8,
    /// 08h, bits 7:5: path MTU code, 1 to 4 for 256 to 2048 bytes.
    pub mtu: u8,
    /// 08h, bits 4:0: log2 of the largest message in bytes.
    pub log_max_msg: u8,
    /// 09h: size of the receive queue.
    pub rq: Geometry,
    /// 0Ah: size of the send queue.
    pub sq: Geometry,
    /// 0Bh: scheduling queue. Not used.
    pub sched_queue: u8,
    /// 0Ch: UAR page of the QP's doorbells and doorbell records.
    pub page: u32,
    /// 10h: local QP number.
    pub local_qpn: Qpn,
    /// 14h: QP number of the peer.
    pub remote_qpn: Qpn,
    /// 20h: primary path to the peer.
    pub primary: Path,
    /// 40h: alternate path to the peer.
    pub alternate: Path,
    /// 64h: protection domain of the queues and the data.
    pub pd: Pdn,
    /// 6Ch: L_Key of the region that contains both queues.
    pub wqe_lkey: Lkey,
    /// 70h: parameters of the requester.
    pub requester: Requester,
    /// 78h: next PSN to send. The device updates it while the QP runs.
    pub next_send_psn: Psn,
    /// 7Ch: CQ number of the send queue.
    pub send_cqn: Cqn,
    /// 80h: offset of the send queue within its region.
    pub sq_base: u32,
    /// 84h: index of the send queue's doorbell record.
    pub sq_record: u32,
    /// 88h: oldest unacknowledged PSN. The device updates it while the QP runs.
    pub last_acked_psn: Psn,
    /// 8Ch: number of messages sent. This device does not count them.
    pub ssn: u32,
    /// 90h: parameters of the responder.
    pub responder: Responder,
    /// 94h, bits 28:24: timer code for the RNR NAKs that the QP sends.
    pub min_rnr_timer: u8,
    /// 94h, bits 23:0: expected PSN. The device updates it while the QP runs.
    pub recv_psn: Psn,
    /// 9Ch: CQ number of the receive queue.
    pub recv_cqn: Cqn,
    /// A0h: offset of the receive queue within its region.
    pub rq_base: u32,
    /// A4h: index of the receive queue's doorbell record.
    pub rq_record: u32,
    /// A8h: Q_Key of the QP.
    pub qkey: Qkey,
    /// ACh: SRQ number, if [`Responder::srq`] is set.
    pub srqn: Srqn,
    /// B0h: number of messages received. The device updates it while the QP runs.
    pub rmsn: u32,
    /// B4h: number of receive WQEs consumed. The device updates it while the QP runs.
    pub rq_counter: u16,
    /// B6h: number of send WQEs consumed. The device updates it while the QP runs.
    pub sq_counter: u16,
}

/// Word at 70h: parameters of the requester.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Requester {
    #[bits(3)]
    __: u8,
    /// Whether every send WQE generates a CQE.
    pub signal_all: bool,
    #[bits(9)]
    __: u16,
    /// Whether the QP can send atomics.
    pub atomics: bool,
    /// Whether the QP can send WRITEs; always set.
    pub writes: bool,
    /// Whether the QP can send READs.
    pub reads: bool,
    /// Maximum number of retries after a timeout.
    #[bits(3)]
    pub retry_count: u8,
    #[bits(2)]
    __: u8,
    /// Log2 of the maximum number of outstanding READs and atomics.
    #[bits(3)]
    pub log_depth: u8,
    /// Log2 of the maximum number of packets in flight.
    #[bits(4)]
    pub flight_limit: u8,
    /// Log2 of the number of packets between acknowledge requests.
    #[bits(4)]
    pub ack_frequency: u8,
}

/// Word at 90h: parameters of the responder.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Responder {
    #[bits(3)]
    __: u8,
    /// Whether every receive generates a CQE; always set.
    pub signal_all: bool,
    /// Whether receive WQEs come from an SRQ.
    pub srq: bool,
    #[bits(8)]
    __: u8,
    /// Whether peers can execute atomic operations.
    pub atomics: bool,
    /// Whether peers can execute RDMA WRITE.
    pub writes: bool,
    /// Whether peers can execute RDMA READ.
    pub reads: bool,
    #[bits(5)]
    __: u8,
    /// Log2 of the maximum number of READs and atomics outstanding from the peer.
    #[bits(3)]
    pub log_depth: u8,
    __: u8,
}

describe!(Geometry { log_slots, log_slot });
describe!(Qpc {
    state as QpState::word,
    kind as QpKind::word,
    migration,
    mtu,
    log_max_msg,
    rq,
    sq,
    sched_queue as Hex,
    page as Hex,
    local_qpn,
    remote_qpn,
    primary,
    alternate,
    pd,
    wqe_lkey,
    requester,
    next_send_psn,
    send_cqn,
    sq_base as Hex,
    sq_record,
    last_acked_psn,
    ssn,
    responder,
    min_rnr_timer,
    recv_psn,
    recv_cqn,
    rq_base as Hex,
    rq_record,
    qkey,
    srqn,
    rmsn,
    rq_counter,
    sq_counter,
});

impl Describe for Requester {
    fn describe(&self, to: &mut dyn Visitor) {
        self.signal_all().show("signal_all", to);
        self.reads().show("reads", to);
        self.writes().show("writes", to);
        self.atomics().show("atomics", to);
        self.retry_count().show("retry_count", to);
        self.log_depth().show("log_depth", to);
        self.flight_limit().show("flight_limit", to);
        self.ack_frequency().show("ack_frequency", to);
    }
}

impl Describe for Responder {
    fn describe(&self, to: &mut dyn Visitor) {
        self.signal_all().show("signal_all", to);
        self.srq().show("srq", to);
        self.reads().show("reads", to);
        self.writes().show("writes", to);
        self.atomics().show("atomics", to);
        self.log_depth().show("log_depth", to);
    }
}

describe!(@field Requester);
describe!(@field Responder);

impl Qpc {
    /// Parses a context. Accepts every bit pattern; [`Qpc::modify`] checks the values.
    pub fn parse(image: &[u8; LEN]) -> Self {
        let raw: Raw = transmute!(*image);
        Self {
            state: raw.flags.state(),
            kind: raw.flags.kind(),
            migration: raw.flags.migration(),
            mtu: raw.mtu_msgmax >> 5,
            log_max_msg: raw.mtu_msgmax & 0x1f,
            rq: Geometry::from_byte(raw.rq),
            sq: Geometry::from_byte(raw.sq),
            sched_queue: raw.sched_queue,
            page: raw.page.get() & 0xff_ffff,
            local_qpn: Qpn::new(raw.local_qpn.get()),
            remote_qpn: Qpn::new(raw.remote_qpn.get()),
            primary: Path::parse(&raw.primary),
            alternate: Path::parse(&raw.alternate),
            pd: Pdn::new(raw.pd.get() & 0xff_ffff),
            wqe_lkey: Lkey::new(raw.wqe_lkey.get()),
            requester: raw.requester,
            next_send_psn: Psn::new(raw.next_send_psn.get()),
            send_cqn: Cqn::new(raw.send_cqn.get()),
            sq_base: raw.sq_base.get(),
            sq_record: raw.sq_record.get(),
            last_acked_psn: Psn::new(raw.last_acked_psn.get()),
            ssn: raw.ssn.get(),
            responder: raw.responder,
            min_rnr_timer: raw.receive.min_rnr_timer(),
            recv_psn: Psn::new(raw.receive.psn()),
            recv_cqn: Cqn::new(raw.recv_cqn.get()),
            rq_base: raw.rq_base.get(),
            rq_record: raw.rq_record.get(),
            qkey: Qkey::new(raw.qkey.get()),
            srqn: Srqn::new(raw.srq.get()),
            rmsn: raw.rmsn.get(),
            rq_counter: raw.rq_counter.get(),
            sq_counter: raw.sq_counter.get(),
        }
    }

    /// Returns the context in wire format. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; LEN] {
        const SRQ: u32 = 1 << 24;
        let srq = if self.responder.srq() { SRQ | self.srqn.get() } else { 0 };
        transmute!(Raw {
            flags: Flags::new()
                .with_state(self.state & 0xf)
                .with_kind(self.kind & 0xf)
                .with_migration(self.migration & 0x3)
                .with_descriptor_event(true),
            sched_queue_tavor: U32::ZERO,
            mtu_msgmax: self.mtu << 5 | self.log_max_msg & 0x1f,
            rq: self.rq.byte(),
            sq: self.sq.byte(),
            sched_queue: self.sched_queue,
            page: self.page.into(),
            local_qpn: self.local_qpn.get().into(),
            remote_qpn: self.remote_qpn.get().into(),
            reserved_18: [0; 8],
            primary: self.primary.emit(),
            alternate: self.alternate.emit(),
            rdd: U32::ZERO,
            pd: self.pd.get().into(),
            wqe_base: U32::ZERO,
            wqe_lkey: self.wqe_lkey.get().into(),
            requester: self.requester,
            reserved_74: [0; 4],
            next_send_psn: self.next_send_psn.get().into(),
            send_cqn: self.send_cqn.get().into(),
            sq_base: self.sq_base.into(),
            sq_record: self.sq_record.into(),
            last_acked_psn: self.last_acked_psn.get().into(),
            ssn: self.ssn.into(),
            responder: self.responder,
            receive: Receive::new()
                .with_min_rnr_timer(self.min_rnr_timer & 0x1f)
                .with_psn(self.recv_psn.get()),
            rdb: U32::ZERO,
            recv_cqn: self.recv_cqn.get().into(),
            rq_base: self.rq_base.into(),
            rq_record: self.rq_record.into(),
            qkey: self.qkey.get().into(),
            srq: srq.into(),
            rmsn: self.rmsn.into(),
            rq_counter: self.rq_counter.into(),
            sq_counter: self.sq_counter.into(),
            reserved_b8: [0; LEN - 0xb8],
        })
    }

    /// Returns the state, or `None` for an undefined code.
    pub const fn state(&self) -> Option<QpState> {
        QpState::from_code(self.state)
    }

    /// Returns the kind, or `None` for an unsupported code.
    pub const fn kind(&self) -> Option<QpKind> {
        QpKind::from_code(self.kind)
    }
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Flags {
    __: u8,
    descriptor_event: bool,
    #[bits(2)]
    __: u8,
    #[bits(2)]
    migration: u8,
    #[bits(3)]
    __: u8,
    #[bits(4)]
    kind: u8,
    __: u8,
    #[bits(4)]
    state: u8,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Receive {
    #[bits(24)]
    psn: u32,
    #[bits(5)]
    min_rnr_timer: u8,
    #[bits(3)]
    __: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    flags: Flags,
    sched_queue_tavor: U32,
    mtu_msgmax: u8,
    rq: u8,
    sq: u8,
    sched_queue: u8,
    page: U32,
    local_qpn: U32,
    remote_qpn: U32,
    reserved_18: [u8; 8],
    primary: [u8; path::LEN],
    alternate: [u8; path::LEN],
    rdd: U32,
    pd: U32,
    wqe_base: U32,
    wqe_lkey: U32,
    requester: Requester,
    reserved_74: [u8; 4],
    next_send_psn: U32,
    send_cqn: U32,
    sq_base: U32,
    sq_record: U32,
    last_acked_psn: U32,
    ssn: U32,
    responder: Responder,
    receive: Receive,
    rdb: U32,
    recv_cqn: U32,
    rq_base: U32,
    rq_record: U32,
    qkey: U32,
    srq: U32,
    rmsn: U32,
    rq_counter: U16,
    sq_counter: U16,
    reserved_b8: [u8; LEN - 0xb8],
}

const _: () = assert!(size_of::<Raw>() == LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn image(words: &[(usize, u32)]) -> [u8; LEN] {
        let mut image = [0; LEN];
        for (at, word) in words {
            image[*at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        image
    }

    #[test]
    fn qp_context_fields_are_at_specified_offsets() {
        let bytes = image(&[
            (0x00, 0x3000_1900),
            (0x08, 0x9f2b_4301),
            (0x0c, 0x0000_0007),
            (0x10, 0x0001_0014),
            (0x14, 0x0002_0015),
            (0x20, 0x0100_0002),
            (0x40, 0x0100_0003),
            (0x64, 0x0000_0005),
            (0x6c, 0x0000_1800),
            (0x70, 0xa987_e008),
            (0x78, 0x0012_3456),
            (0x7c, 0x0000_0011),
            (0x80, 0x0000_4000),
            (0x84, 0x0000_0001),
            (0x88, 0x0012_3455),
            (0x8c, 0x0000_0033),
            (0x90, 0x0040_e018),
            (0x94, 0x0c65_4321),
            (0x9c, 0x0000_0012),
            (0xa4, 0x0000_7ffe),
            (0xa8, 0x8001_0000),
            (0xac, 0x0100_0017),
            (0xb0, 0x0000_0044),
            (0xb4, 0x0001_0002),
        ]);
        let requester = Requester::new()
            .with_signal_all(true)
            .with_atomics(true)
            .with_writes(true)
            .with_reads(true)
            .with_retry_count(7)
            .with_log_depth(4)
            .with_flight_limit(9)
            .with_ack_frequency(10);
        let responder = Responder::new()
            .with_signal_all(true)
            .with_srq(true)
            .with_atomics(true)
            .with_writes(true)
            .with_reads(true)
            .with_log_depth(2);
        let qpc = Qpc {
            state: 3,
            kind: 0,
            migration: 3,
            mtu: 4,
            log_max_msg: 31,
            rq: Geometry { log_slots: 5, log_slot: 7 },
            sq: Geometry { log_slots: 8, log_slot: 7 },
            sched_queue: 1,
            page: 7,
            local_qpn: Qpn::new(0x1_0014),
            remote_qpn: Qpn::new(0x2_0015),
            primary: Path { port: 1, pkey_index: 2, ..Path::default() },
            alternate: Path { port: 1, pkey_index: 3, ..Path::default() },
            pd: Pdn::new(5),
            wqe_lkey: Lkey::new(0x1800),
            requester,
            next_send_psn: Psn::new(0x12_3456),
            send_cqn: Cqn::new(0x11),
            sq_base: 0x4000,
            sq_record: 1,
            last_acked_psn: Psn::new(0x12_3455),
            ssn: 0x33,
            responder,
            min_rnr_timer: 12,
            recv_psn: Psn::new(0x65_4321),
            recv_cqn: Cqn::new(0x12),
            rq_base: 0,
            rq_record: 0x7ffe,
            qkey: Qkey::new(0x8001_0000),
            srqn: Srqn::new(0x17),
            rmsn: 0x44,
            rq_counter: 1,
            sq_counter: 2,
        };
        assert_eq!(Qpc::parse(&bytes), qpc);
        assert_eq!(qpc.emit(), bytes);
        assert_eq!(qpc.state(), Some(QpState::Rts));
        assert_eq!(qpc.kind(), Some(QpKind::Service(ServiceType::Rc)));
    }

    #[test]
    fn service_type_7_is_mlx() {
        assert_eq!(QpKind::from_code(7), Some(QpKind::Mlx));
        assert_eq!(QpKind::Mlx.service(), ServiceType::Ud);
        assert_eq!(QpKind::from_code(2), None);
    }
}
