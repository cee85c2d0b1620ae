//! Structured description of what a queue pair is waiting for. The control client formats it as text.
//!
//! The requester and the responder each report the first condition that blocks them. Times are relative to the query,
//! because no other component shares the engine's clock.

use std::time::Duration;

use protocol::Psn;
use serde::{Deserialize, Serialize};

use crate::{AccessError, DropReason, Queue, Service, State, Status};

/// Snapshot of what a queue pair is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpStatus {
    /// State of the queue pair.
    pub state: State,
    /// Transport service of the queue pair.
    pub service: Service,
    /// Time since the last packet accepted from the peer; `None` if no packet has been accepted since RESET.
    #[serde(rename = "heard_us", with = "micros::optional")]
    pub last_packet: Option<Duration>,
    /// Time and cause of the transition to SQE or ERR, if the QP is in one of these states.
    pub ended: Option<Ended>,
    /// Condition that keeps the send queue from sending.
    pub send: WaitReason,
    /// Packets that have been sent but not acknowledged.
    pub unanswered: Option<Unanswered>,
    /// Number of request packets retransmitted since RESET for any reason, including RNR NAKs.
    #[serde(default)]
    pub retransmitted: u64,
    /// Packet or request that the receive side expects next.
    pub receive: Expecting,
    /// Number of replies waiting to be sent.
    pub answers: u32,
}

/// Time and cause of a transition to SQE or ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Time since the transition.
    #[serde(rename = "ago_us", with = "micros")]
    pub ago: Duration,
    /// Cause of the transition.
    pub by: EndedBy,
}

/// Cause of a transition to SQE or ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// Software moved the QP to this state.
    Software,
    /// A send request failed.
    Send(Status),
    /// A request from the peer or a receive request failed.
    Peer {
        /// Reason for dropping or rejecting the packet.
        reason: DropReason,
        /// The denied memory access, if one caused the failure.
        cause: Option<AccessError>,
    },
    /// A work queue cannot be read.
    Queue(Queue),
}

/// Condition that keeps a send queue from sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The service has no send queue (XRC target).
    NoSendQueue,
    /// The QP is in RESET, INIT or RTR, where it does not send and ignores doorbells.
    State,
    /// The QP is in SQE or ERR, so requests are flushed.
    Ended,
    /// All requests covered by doorbells have been sent.
    NothingPosted,
    /// The QP is ready to send and is waiting for its turn.
    Turn,
    /// Sending is paused because of congestion notifications.
    Congestion {
        /// Time until sending resumes.
        #[serde(rename = "left_us", with = "micros")]
        left: Duration,
    },
    /// The peer had no receive request and returned an RNR NAK for the oldest request.
    ReceiverNotReady {
        /// Time until the request is retried.
        #[serde(rename = "left_us", with = "micros")]
        left: Duration,
        /// Number of RNR NAKs since the peer last acknowledged a packet.
        refusals: u32,
        /// RNR retry limit; `None` if unlimited.
        most: Option<u8>,
    },
    /// The request was retried after an RNR NAK, and only a few packets may be sent until the peer replies.
    AskedAgain {
        /// Number of RNR NAKs since the peer last acknowledged a packet.
        refusals: u32,
        /// RNR retry limit; `None` if unlimited.
        most: Option<u8>,
    },
    /// The peer has not advertised a receive request for the next message.
    Credits {
        /// How far the next message is beyond the credit limit, in messages.
        beyond: u32,
    },
    /// The next request is fenced and waits for older requests.
    Fence {
        /// Number of older requests outstanding.
        older: u32,
    },
    /// The next request invalidates a key that older requests may still need.
    Invalidation {
        /// Number of older requests outstanding.
        older: u32,
    },
    /// The QP has reached its limit on outstanding READs and atomics.
    Reads {
        /// Maximum number of outstanding READs and atomics.
        most: u8,
    },
    /// Two chunks of a long READ are outstanding, which is the maximum.
    ReadPieces,
    /// The window of unacknowledged packets is full.
    Window {
        /// Number of unacknowledged packets.
        in_flight: u32,
        /// Current limit on unacknowledged packets.
        most: u32,
    },
    /// Unacknowledged packets use half of the PSN space, which is the maximum.
    PacketNumbers,
    /// The QP has reached its limit on outstanding requests.
    Requests {
        /// Current limit on outstanding requests.
        most: u32,
    },
    /// The next request failed validation. It completes with an error once older requests are done.
    Failed {
        /// Completion status of the request.
        status: Status,
        /// Number of older requests outstanding.
        older: u32,
    },
    /// The QP is in SQD. Messages that were already started are outstanding, and no new ones are started.
    Draining,
    /// The QP is in SQD. No messages are outstanding, and no new ones are started.
    Drained,
}

/// Packets that were sent but not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// PSN of the oldest unacknowledged packet.
    pub oldest: u32,
    /// Number of unacknowledged packets.
    pub packets: u32,
    /// Number of outstanding requests.
    pub requests: u32,
    /// Time since the peer last acknowledged a packet, or since the oldest unacknowledged packet was sent, whichever is
    /// shorter.
    #[serde(rename = "waiting_us", with = "micros")]
    pub waiting: Duration,
    /// Number of retries after ACK timeouts, sequence NAKs and implied NAKs since the last acknowledgement or RNR NAK.
    pub retries: u8,
    /// Number of retries after which the request fails.
    pub most_retries: u8,
    /// Time until the ACK timeout; `None` if the timer is stopped, as during an RNR wait.
    #[serde(rename = "timeout_us", with = "micros::optional")]
    pub timeout: Option<Duration>,
}

/// Packet or request that the receive side of a queue pair expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expecting {
    /// The service does not receive requests (XRC initiator).
    NoReceive,
    /// The QP is in RESET or INIT, where it drops packets.
    State,
    /// The QP is in ERR: it drops packets and flushes receive requests.
    Ended,
    /// The first packet of a message.
    Message {
        /// PSN of the first packet.
        psn: u32,
    },
    /// The next packet of an incomplete message.
    Rest {
        /// PSN of the next packet.
        psn: u32,
        /// Bytes received so far.
        received: u64,
    },
    /// A missing packet. Later packets have arrived, and a sequence NAK was sent (RC).
    Missing {
        /// PSN of the missing packet.
        psn: u32,
    },
    /// A receive request from local software. A message that needs one has arrived, and an RNR NAK was sent (RC).
    ReceiveRequest {
        /// PSN of the refused packet.
        psn: u32,
        /// Number of RNR NAKs sent for the packet.
        refusals: u32,
        /// Time since the first of these RNR NAKs.
        #[serde(rename = "waiting_us", with = "micros")]
        waiting: Duration,
    },
}

impl Expecting {
    /// Returns [`Self::Rest`] if a message is incomplete and `received` bytes of it have arrived, and [`Self::Message`]
    /// if no message is in progress.
    pub(crate) fn message(psn: Psn, received: Option<u64>) -> Self {
        match received {
            None => Self::Message { psn: psn.get() },
            Some(received) => Self::Rest { psn: psn.get(), received },
        }
    }
}

/// Serialises durations as whole microseconds.
mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    fn of(duration: &Duration) -> u64 {
        u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        of(duration).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_micros)
    }

    pub(super) mod optional {
        use super::{Deserialize, Deserializer, Duration, Serialize, Serializer, of};

        pub(in super::super) fn serialize<S: Serializer>(
            duration: &Option<Duration>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            duration.as_ref().map(of).serialize(to)
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(from)?.map(Duration::from_micros))
        }
    }
}
