//! Counters of one engine: plain fields, each drop and each NAK with its own reason.

use serde::{Deserialize, Serialize};

/// What the engine saw and did since it was created. Packets unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Frames handed out.
    pub sent_packets: u64,
    /// Payload bytes in them.
    pub sent_payload_bytes: u64,
    /// Packets handed in.
    pub received_packets: u64,
    /// Payload bytes in them.
    pub received_payload_bytes: u64,
    /// Packets dropped, by reason.
    pub drops: Drops,
    /// Negative acknowledgements sent.
    pub naks_sent: Naks,
    /// Negative acknowledgements obeyed.
    pub naks_received: Naks,
    /// Recovery from loss.
    pub recovery: Recovery,
    /// Congestion on the way.
    pub congestion: Congestion,
}

/// Packets that changed nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Drops {
    /// No such QP.
    pub unknown_qp: u64,
    /// For a group that no QP is attached to.
    pub unknown_group: u64,
    /// The opcode's service is not the QP's.
    pub wrong_service: u64,
    /// The QP is in a state without reception.
    pub wrong_state: u64,
    /// The partition key does not match.
    pub wrong_pkey: u64,
    /// A connected QP's packet from somebody else's address.
    pub wrong_source: u64,
    /// The queue key does not match (UD).
    pub wrong_qkey: u64,
    /// Request beyond the expected PSN.
    pub out_of_sequence: u64,
    /// Duplicate request that was not worth an answer.
    pub stale_duplicate: u64,
    /// Response for a PSN nobody waits for.
    pub ghost_response: u64,
    /// READ response or atomic acknowledge behind a missing one.
    pub response_gap: u64,
    /// No receive request was posted (UC, UD).
    pub no_receive: u64,
    /// No receive request was posted for a datagram of subnet management (QP0).
    pub vl15_dropped: u64,
    /// Longer than the receive request (UC, UD).
    pub too_long: u64,
    /// Not a legal packet of its service, or part of a message that was given up (UC, UD).
    pub malformed: u64,
    /// The key or right of a WRITE was refused (UC).
    pub no_access: u64,
    /// The peer has more requests under way than any limit allows.
    pub reply_overflow: u64,
}

/// Negative acknowledgements by meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Naks {
    pub sequence: u64,
    pub invalid_request: u64,
    pub remote_access: u64,
    pub remote_operational: u64,
    pub invalid_rd_request: u64,
    pub rnr: u64,
}

/// Congestion management (IBTA annex A17, section A17.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Congestion {
    /// Packets handed in with the ECN mark of a congested switch (CE).
    pub received_marked: u64,
    /// Notifications sent for them.
    pub sent_cnps: u64,
    /// Notifications that slowed a QP.
    pub received_cnps: u64,
}

/// Events of loss recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recovery {
    /// Request packets sent a second time or more.
    pub retransmitted_packets: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Holes noticed by a later response.
    pub implied_naks: u64,
    /// Duplicate requests answered.
    pub duplicates: u64,
    /// Congestion windows halved.
    pub window_cuts: u64,
}
