//! Steps for queue pairs and their state transitions.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::{CqId, Hex};

/// Identifies one of the agent's queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QpId(pub u32);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    #[default]
    Rc,
    Uc,
    Ud,
}

/// How software marks a posted receive slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecvStyle {
    /// Sets the V bit, which is cleared when the slot is consumed. The user library uses this format.
    #[default]
    Valid,
    /// Like [`Self::Valid`], but the scatter list has no terminator. The user library uses this format for lists of
    /// `max_recv_sge` elements.
    Unterminated,
    /// Links all slots and terminates the scatter list with lkey 100h. The kernel driver uses this format.
    Terminated,
}

/// Allocates a QP number and registers the buffers of both queues. The queue pair stays in RESET.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateQp {
    /// Completion queue for the send queue.
    pub send_cq: CqId,
    /// Completion queue for the receive queue.
    pub recv_cq: CqId,
    pub pd: u32,
    /// Protection domain of the buffers' regions. Defaults to `pd`. If the two differ, the device cannot fetch
    /// requests.
    pub buffer_pd: Option<u32>,
    pub service: Service,
    /// Log2 of the number of send slots.
    pub log_sq_slots: u8,
    /// Log2 of the size of a send slot in bytes.
    pub log_sq_slot_bytes: u8,
    /// Log2 of the number of receive slots.
    pub log_rq_slots: u8,
    /// Log2 of the size of a receive slot in bytes.
    pub log_rq_slot_bytes: u8,
    /// Format of receive work requests.
    pub recv_style: RecvStyle,
    /// UAR page for the doorbells.
    pub uar_page: u16,
    /// Value of those QP number bits that are above the table's index mask.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// Identifier for later steps.
    pub id: QpId,
    /// QPN, including the bits above the table's index mask.
    pub qpn: u32,
    /// lkey of the send queue's buffer.
    pub sq_lkey: u32,
    /// lkey of the receive queue's buffer.
    pub rq_lkey: u32,
}

/// Moves a queue pair to RESET and frees its number and its buffers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DestroyQp {
    pub qp: QpId,
}

/// Issues one command of the MODIFY_QP family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModifyQp {
    pub qp: QpId,
    pub transition: Transition,
}

/// Transitions and their attributes. Every command with a mailbox carries the whole context image, as in the public
/// driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    ToInit {
        /// Index in the P_Key table.
        pkey_index: u8,
        /// Q_Key of a UD queue pair.
        qkey: u32,
    },
    ToRtr {
        /// QP number of the peer.
        remote_qpn: u32,
        /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
        mtu: u16,
        /// PSN of the first packet that this side expects.
        psn: u32,
        /// RNR NAK timer code that this side sends to its peer.
        rnr_timer: u8,
        path: Path,
    },
    ToRts {
        /// PSN of the first packet that this side sends.
        psn: u32,
        timeout: u8,
        /// Number of retries after timeouts and sequence NAKs, 0 to 7.
        retry: u8,
        /// Number of retries after RNR NAKs, 0 to 7; 7 means unlimited.
        rnr_retry: u8,
    },
    InitToInit(Changes),
    RtsToRts(Changes),
    ToSqd {
        /// Whether to request an event when the send queue has drained.
        notify: bool,
    },
    SqdToSqd(Changes),
    SqdToRts(Changes),
    SqeToRts(Changes),
    /// Issues the 2ERR command, without a mailbox.
    ToErr,
    /// Issues the ERR2RST command, without a mailbox, and clears both rings.
    ToReset,
}

/// Attributes that a transition changes. Attributes set to `None` keep their values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// Index in the P_Key table.
    pub pkey_index: Option<u8>,
    /// Q_Key of a UD queue pair.
    pub qkey: Option<u32>,
    /// RNR NAK timer code that this side sends to its peer.
    pub rnr_timer: Option<u8>,
    pub timeout: Option<u8>,
    /// Number of retries after timeouts and sequence NAKs.
    pub retry: Option<u8>,
    /// Number of retries after RNR NAKs.
    pub rnr_retry: Option<u8>,
    pub path: Option<Path>,
}

/// Address of a peer. If no field is set, the device uses its default peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    pub dlid: Option<u16>,
    pub slid: Option<u16>,
    pub dmac: Option<[u8; 6]>,
    pub smac: Option<[u8; 6]>,
    pub dip: Option<Ipv4Addr>,
    pub sip: Option<Ipv4Addr>,
    pub dgid: Option<[u8; 16]>,
    pub sl: u8,
}

/// Returns the attributes reported by QUERY_QP.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct QueryQp {
    pub qp: QpId,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttributes {
    /// State code: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 4 SQE, 5 SQD, 6 ERR, 7 draining.
    pub state: u8,
    pub mtu_code: u8,
    /// QP number of the peer.
    pub remote_qpn: u32,
    /// PSN of the next packet to send.
    pub next_send_psn: u32,
    /// PSN of the oldest unacknowledged packet.
    pub unacked_psn: u32,
    /// PSN of the next packet expected.
    pub expected_psn: u32,
    /// Output mailbox of the command (C0h bytes).
    pub raw: Hex,
}
