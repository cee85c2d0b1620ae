//! Steps about queue pairs and their transitions.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::{CqId, Hex};

/// Names a queue pair of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QpId(pub u32);

/// Transport services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Reliable connected.
    #[default]
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// How software marks a receive slot as posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecvStyle {
    /// The V bit, zeros after consumption: the user library.
    #[default]
    Valid,
    /// Links between all slots, lkey 100h as terminator: the kernel driver.
    Terminated,
}

/// Allocate a number and the queues' buffers with their regions. The queue pair stays in RESET.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateQp {
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receive queue.
    pub recv_cq: CqId,
    /// Protection domain.
    pub pd: u32,
    /// Protection domain the buffers are registered in, when it is another: the device cannot fetch requests then.
    pub buffer_pd: Option<u32>,
    /// Service.
    pub service: Service,
    /// log2 of the number of send slots.
    pub log_sq_slots: u8,
    /// log2 of the bytes of a send slot.
    pub log_sq_slot_bytes: u8,
    /// log2 of the number of receive slots.
    pub log_rq_slots: u8,
    /// log2 of the bytes of a receive slot.
    pub log_rq_slot_bytes: u8,
    /// Style of receive work requests.
    pub recv_style: RecvStyle,
    /// UAR page the doorbells go to.
    pub uar_page: u16,
    /// Bits of the number above the table's mask.
    pub high_bits: u32,
}

impl Default for CreateQp {
    fn default() -> Self {
        Self {
            send_cq: CqId(0),
            recv_cq: CqId(0),
            pd: 1,
            buffer_pd: None,
            service: Service::Rc,
            log_sq_slots: 6,
            log_sq_slot_bytes: 9,
            log_rq_slots: 6,
            log_rq_slot_bytes: 9,
            recv_style: RecvStyle::Valid,
            uar_page: 1,
            high_bits: 0,
        }
    }
}

/// Answer of [`CreateQp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// Name for later steps.
    pub id: QpId,
    /// Full number.
    pub qpn: u32,
    /// lkey of the send queue's buffer.
    pub sq_lkey: u32,
    /// lkey of the receive queue's buffer.
    pub rq_lkey: u32,
}

/// Move to RESET, and free number and buffers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyQp {
    /// Queue pair.
    pub qp: QpId,
}

/// One command of the MODIFY_QP family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModifyQp {
    /// Queue pair.
    pub qp: QpId,
    /// Which one.
    pub transition: Transition,
}

/// Transitions and their attributes. The whole context image goes with each, as the public driver sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// RST2INIT.
    ToInit {
        /// Index in the P_Key table.
        pkey_index: u8,
        /// Q_Key of a UD queue pair.
        qkey: u32,
    },
    /// INIT2RTR.
    ToRtr {
        /// Number of the peer's queue pair.
        remote_qpn: u32,
        /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
        mtu: u16,
        /// PSN expected first.
        psn: u32,
        /// RNR NAK timer code this side sends.
        rnr_timer: u8,
        /// Where the peer is.
        path: Path,
    },
    /// RTR2RTS.
    ToRts {
        /// PSN sent first.
        psn: u32,
        /// ACK timeout code.
        timeout: u8,
        /// Retries after timeouts and sequence NAKs, 0 to 7.
        retry: u8,
        /// Retries after RNR NAKs, 0 to 7, 7 without end.
        rnr_retry: u8,
    },
    /// INIT2INIT.
    InitToInit(Changes),
    /// RTS2RTS.
    RtsToRts(Changes),
    /// RTS2SQD.
    ToSqd {
        /// Ask for an event once the send queue has drained.
        notify: bool,
    },
    /// SQD2SQD.
    SqdToSqd(Changes),
    /// SQD2RTS.
    SqdToRts(Changes),
    /// SQERR2RTS.
    SqeToRts(Changes),
    /// 2ERR, without mailbox.
    ToErr,
    /// ERR2RST, without mailbox. Both rings are cleared.
    ToReset,
}

/// Attributes a transition changes; the others stay as they were given last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// Index in the P_Key table.
    pub pkey_index: Option<u8>,
    /// Q_Key of a UD queue pair.
    pub qkey: Option<u32>,
    /// RNR NAK timer code this side sends.
    pub rnr_timer: Option<u8>,
    /// ACK timeout code.
    pub timeout: Option<u8>,
    /// Retries after timeouts and sequence NAKs.
    pub retry: Option<u8>,
    /// Retries after RNR NAKs.
    pub rnr_retry: Option<u8>,
    /// Where the peer is.
    pub path: Option<Path>,
}

/// Address of a peer; with nothing set the device uses its default peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    /// Destination LID.
    pub dlid: Option<u16>,
    /// Source LID.
    pub slid: Option<u16>,
    /// Destination MAC.
    pub dmac: Option<[u8; 6]>,
    /// Source MAC.
    pub smac: Option<[u8; 6]>,
    /// Destination IPv4 address.
    pub dip: Option<Ipv4Addr>,
    /// Source IPv4 address.
    pub sip: Option<Ipv4Addr>,
    /// Destination GID.
    pub dgid: Option<[u8; 16]>,
    /// Service level.
    pub sl: u8,
}

/// QUERY_QP.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct QueryQp {
    /// Queue pair.
    pub qp: QpId,
}

/// Answer of [`QueryQp`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttributes {
    /// State code: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQE, 5 SQD, 6 ERR, 7 draining.
    pub state: u8,
    /// Path MTU code.
    pub mtu_code: u8,
    /// Peer's number.
    pub remote_qpn: u32,
    /// Next PSN to send.
    pub next_send_psn: u32,
    /// Oldest PSN not acknowledged.
    pub unacked_psn: u32,
    /// Next PSN expected.
    pub expected_psn: u32,
    /// The outbox, C0h bytes.
    pub raw: Hex,
}
