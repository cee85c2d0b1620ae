//! Requests from the RDMA engine's units, one type per message. A message has exactly the fields that its unit may read
//! or write.
//!
//! | unit | reads | writes |
//! |---|---|---|
//! | Doorbell Processing | [`RdQpSst`] | |
//! | WQE Parser | [`RdQpState`] | |
//! | Requester Trans Control | [`RdQpNpst`] | [`WrQpNpst`] |
//! | Requester Recv Control | [`RdCqCst`] | [`WrQpUapst`] |
//! | Execution Engine | [`RdQpRst`] | [`WrQpEpst`] |
//! | Frame Encap | [`RdEncap`] | |
//!
//! In the CtxMgt document, responses to Requester Trans Control, Requester Recv Control and Execution Engine also
//! contain the key data of a CQ and its EQ. Here, they contain only the CQN, and the device looks up the rest when it
//! writes a queue entry.
//!
//! Fields marked "Model" are not listed in the CtxMgt document. They are part of the context, and the unit needs them
//! to behave as the JingZhao interface document specifies.
//!
//! # Spec
//! CtxMgt document, table 2.2 (types and opcodes), section 3.2 (access rights, table 3.2) and section 5.4.2; JingZhao
//! interface, section 5.5.

use std::net::Ipv4Addr;
use std::time::Duration;

use protocol::Psn;
use protocol::hca::jingzhao::ctxmgt::{DoorbellPayload, EncapPayload, ParserPayload, psn_and_state};
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::qpc::{QpState, Qpc, ServiceType};
use protocol::ids::{Cqn, Lid, Lkey, MacAddr, Pdn, Qkey, Qpn};

use super::request_controller::{Channel, Writer};

/// ST code for reliable datagram, which is not supported.
const RELIABLE_DATAGRAM: u8 = 2;

/// A unit's request to read a QP's key data.
pub trait ReadQp {
    const CHANNEL: Channel;

    fn of(key: &StoredQpc) -> Self;
}

/// A unit's request to change the state and one PSN in a QP's key data.
pub trait WriteQp {
    const WRITER: Writer;

    /// Applies the request. Returns whether anything changed.
    fn apply(self, key: &mut Qpc) -> bool;
}

/// RD_QP_SST of Doorbell Processing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdQpSst {
    /// ST (service type), or `None` for an unsupported code.
    pub service: Option<ServiceType>,
    pub remote_qpn: Qpn,
    /// PMTU_MSGMAX, bits 7:5: 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// PMTU_MSGMAX, bits 4:0: log2 of the maximum message length. Not used by any unit.
    pub log_max_msg: u8,
    /// PKey: index in the P_Key table.
    pub pkey_index: u8,
    pub sq_lkey: Lkey,
    pub pd: Pdn,
    pub log_sq_slot: u8,
    /// SQ_Length: length in bytes.
    pub sq_len: u32,
    /// Model: UAR page; 0 means a kernel QP (J-08, J-12, J-13).
    pub usr_page: u32,
    /// Model: Q_Key for datagrams whose WQE does not specify one.
    pub qkey: Qkey,
}

impl ReadQp for RdQpSst {
    const CHANNEL: Channel = Channel::DoorbellProcessing;

    fn of(StoredQpc { image, .. }: &StoredQpc) -> Self {
        Self {
            service: image.service(),
            remote_qpn: image.remote_qpn,
            mtu: image.mtu,
            log_max_msg: image.log_max_msg,
            pkey_index: image.pkey_index,
            sq_lkey: image.sq_lkey,
            pd: image.pd,
            log_sq_slot: image.log_sq_slot,
            sq_len: image.sq_len,
            usr_page: image.usr_page,
            qkey: image.qkey,
        }
    }
}

impl RdQpSst {
    /// Returns the response in the document's layout.
    pub fn payload(&self) -> DoorbellPayload {
        DoorbellPayload {
            remote_qpn: self.remote_qpn,
            service: self.service.map_or(RELIABLE_DATAGRAM, ServiceType::code),
            mtu_msgmax: self.mtu << 5 | self.log_max_msg & 0x1f,
            pkey: self.pkey_index.into(),
            sq_lkey: self.sq_lkey,
            pd: self.pd,
            log_sq_slot: self.log_sq_slot,
            sq_len: self.sq_len,
        }
    }
}

/// RD_QP_STATE of the WQE Parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdQpState {
    /// QP State, or `None` for an undefined code.
    pub state: Option<QpState>,
    pub log_sq_slot: u8,
    pub sq_len: u32,
}

impl ReadQp for RdQpState {
    const CHANNEL: Channel = Channel::WqeParser;

    fn of(StoredQpc { image, .. }: &StoredQpc) -> Self {
        Self { state: image.state(), log_sq_slot: image.log_sq_slot, sq_len: image.sq_len }
    }
}

impl RdQpState {
    /// Returns the response in the document's layout.
    pub fn payload(&self) -> ParserPayload {
        ParserPayload {
            state: self.state.map_or(0, QpState::code),
            log_sq_slot: self.log_sq_slot,
            sq_len: self.sq_len,
        }
    }
}

/// RD_QP_NPST of Requester Trans Control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdQpNpst {
    pub state: Option<QpState>,
    pub next_psn: Psn,
    /// CQN of the send queue.
    pub send_cqn: Cqn,
    pub rlid: Lid,
}

impl ReadQp for RdQpNpst {
    const CHANNEL: Channel = Channel::RequesterTransControl;

    fn of(StoredQpc { image, .. }: &StoredQpc) -> Self {
        Self {
            state: image.state(),
            next_psn: image.next_send_psn,
            send_cqn: image.send_cqn,
            rlid: image.dlid,
        }
    }
}

/// WR_QP_NPST of Requester Trans Control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrQpNpst {
    pub state: QpState,
    pub next_psn: Psn,
}

impl WrQpNpst {
    /// Returns the request's data in the document's layout.
    pub fn payload(&self) -> [u32; 4] {
        psn_and_state(self.next_psn, self.state.code())
    }
}

impl WriteQp for WrQpNpst {
    const WRITER: Writer = Writer::RequesterTransControl;

    fn apply(self, key: &mut Qpc) -> bool {
        write(&mut key.state, self.state, &mut key.next_send_psn, self.next_psn)
    }
}

/// RD_CQ_CST of Requester Recv Control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdCqCst {
    pub state: Option<QpState>,
    pub unacked_psn: Psn,
    pub next_psn: Psn,
    pub remote_qpn: Qpn,
    pub rlid: Lid,
    pub pd: Pdn,
    /// CQN of the send queue.
    pub send_cqn: Cqn,
    /// Model: ACK timeout in effect; `None` means infinite.
    pub ack_timeout: Option<Duration>,
    /// Model: retry count in effect.
    pub retry_count: u8,
    /// Model: RNR retry count in effect; 7 means unlimited.
    pub rnr_retry: u8,
}

impl ReadQp for RdCqCst {
    const CHANNEL: Channel = Channel::RequesterRecvControl;

    fn of(key: &StoredQpc) -> Self {
        let image = &key.image;
        Self {
            state: image.state(),
            unacked_psn: image.unacked_psn,
            next_psn: image.next_send_psn,
            remote_qpn: image.remote_qpn,
            rlid: image.dlid,
            pd: image.pd,
            send_cqn: image.send_cqn,
            ack_timeout: key.ack_timeout(),
            retry_count: key.retry_count(),
            rnr_retry: key.rnr_retry(),
        }
    }
}

/// WR_QP_UAPST of Requester Recv Control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrQpUapst {
    pub state: QpState,
    pub unacked_psn: Psn,
}

impl WriteQp for WrQpUapst {
    const WRITER: Writer = Writer::RequesterRecvControl;

    fn apply(self, key: &mut Qpc) -> bool {
        write(&mut key.state, self.state, &mut key.unacked_psn, self.unacked_psn)
    }
}

/// RD_QP_RST of the Execution Engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdQpRst {
    /// Model: ST (service type), which determines whether a message can be retried.
    pub service: Option<ServiceType>,
    pub state: Option<QpState>,
    pub expected_psn: Psn,
    /// RNR timer: the code to send, 0 to 31 (J-15).
    pub rnr_timer: u8,
    /// PMTU as a code, 1 to 5.
    pub mtu: u8,
    /// PKey: index in the P_Key table.
    pub pkey_index: u8,
    pub log_rq_slot: u8,
    pub remote_qpn: Qpn,
    pub rq_lkey: Lkey,
    pub pd: Pdn,
    pub rq_len: u32,
    /// CQN of the receive queue.
    pub recv_cqn: Cqn,
    pub rlid: Lid,
    /// Model: UAR page; 0 means a kernel QP (J-08, J-23).
    pub usr_page: u32,
    /// Model: Q_Key that received datagrams must have.
    pub qkey: Qkey,
}

impl ReadQp for RdQpRst {
    const CHANNEL: Channel = Channel::ExecutionEngine;

    fn of(key: &StoredQpc) -> Self {
        let image = &key.image;
        Self {
            state: image.state(),
            service: image.service(),
            expected_psn: image.recv_psn,
            rnr_timer: key.min_rnr_timer(),
            mtu: image.mtu,
            pkey_index: image.pkey_index,
            log_rq_slot: image.log_rq_slot,
            remote_qpn: image.remote_qpn,
            rq_lkey: image.rq_lkey,
            pd: image.pd,
            rq_len: image.rq_len,
            recv_cqn: image.recv_cqn,
            rlid: image.dlid,
            usr_page: image.usr_page,
            qkey: image.qkey,
        }
    }
}

/// WR_QP_EPST of the Execution Engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrQpEpst {
    pub state: QpState,
    pub expected_psn: Psn,
}

impl WriteQp for WrQpEpst {
    const WRITER: Writer = Writer::ExecutionEngine;

    fn apply(self, key: &mut Qpc) -> bool {
        write(&mut key.state, self.state, &mut key.recv_psn, self.expected_psn)
    }
}

/// RD_ENCAP of Frame Encap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdEncap {
    /// PKey: index in the P_Key table.
    pub pkey_index: u8,
    pub service_level: u8,
    pub port: u8,
    /// Source IP, if set.
    pub sip: Option<Ipv4Addr>,
    /// Destination IP, if set.
    pub dip: Option<Ipv4Addr>,
    /// Source MAC, if its high part is set.
    pub smac: Option<MacAddr>,
    /// Source LID: Source MAC, bits 15:0.
    pub slid: Lid,
    /// Destination MAC, if its high part is set.
    pub dmac: Option<MacAddr>,
    /// Destination LID: Destination MAC, bits 15:0.
    pub dlid: Lid,
    /// Model: GID of the destination port.
    pub remote_gid: [u8; 16],
    /// Model: traffic class of the global route.
    pub traffic_class: u8,
    /// Model: hop limit, 0 if unset.
    pub hop_limit: u8,
}

impl ReadQp for RdEncap {
    const CHANNEL: Channel = Channel::FrameEncap;

    fn of(StoredQpc { image, .. }: &StoredQpc) -> Self {
        Self {
            pkey_index: image.pkey_index,
            service_level: image.service_level,
            port: image.port,
            sip: image.sip(),
            dip: image.dip(),
            smac: image.smac(),
            slid: image.slid,
            dmac: image.dmac(),
            dlid: image.dlid,
            remote_gid: image.remote_gid,
            traffic_class: image.traffic_class,
            hop_limit: image.hop_limit,
        }
    }
}

impl RdEncap {
    /// Returns the response in the document's layout. An unset IP address is 0. An unset MAC address contains only the
    /// LID.
    pub fn payload(&self) -> EncapPayload {
        let mac = |mac: Option<MacAddr>, lid: Lid| {
            let [high, low] = lid.get().to_be_bytes();
            mac.unwrap_or(MacAddr([0, 0, 0, 0, high, low]))
        };
        EncapPayload {
            pkey: self.pkey_index.into(),
            service_level: self.service_level,
            port: self.port,
            source_ip: self.sip.unwrap_or(Ipv4Addr::UNSPECIFIED),
            dest_ip: self.dip.unwrap_or(Ipv4Addr::UNSPECIFIED),
            source_mac: mac(self.smac, self.slid),
            dest_mac: mac(self.dmac, self.dlid),
        }
    }
}

fn write(state: &mut u8, new_state: QpState, psn: &mut Psn, new_psn: Psn) -> bool {
    let changes = (*state, *psn) != (new_state.code(), new_psn);
    (*state, *psn) = (new_state.code(), new_psn);
    changes
}
