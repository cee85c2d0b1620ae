//! What a queue pair is waiting for, as data; the control client turns it into text.
//!
//! Requester and responder each report the first condition that blocks them. Times are relative to the query, because
//! no other component shares the engine's clock.

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
    /// Time since the last packet accepted from the peer; `None` if there was none since RESET.
    #[serde(rename = "heard_us", with = "micros::optional")]
    pub last_packet: Option<Duration>,
    /// In SQE and ERR: when and why the QP stopped.
    pub ended: Option<Ended>,
    /// Why the send queue is not sending.
    pub send: WaitReason,
    /// Packets sent and not acknowledged.
    pub unanswered: Option<Unanswered>,
    /// What the receive side expects next.
    pub receive: Expecting,
    /// Number of replies waiting to be sent.
    pub answers: u32,
}

/// When and why a queue pair stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Time since the transition.
    #[serde(rename = "ago_us", with = "micros")]
    pub ago: Duration,
    /// Cause of the transition.
    pub by: EndedBy,
}

/// Cause of the transition of a queue pair to SQE or ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// Software moved the QP.
    Software,
    /// A send request failed.
    Send(Status),
    /// A request of the peer or a receive request failed.
    Peer {
        /// Reason under which the packet is counted.
        reason: DropReason,
        /// The denied memory access, if that was the cause.
        cause: Option<AccessError>,
    },
    /// A work queue cannot be read.
    Queue(Queue),
}

/// Why a send queue is not sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The service has no send queue: XRC target.
    NoSendQueue,
    /// The state does not send and ignores doorbells: RESET, INIT or RTR.
    State,
    /// SQE or ERR: requests are flushed.
    Ended,
    /// All requests announced by doorbells have been sent.
    NothingPosted,
    /// Ready: the next frame is sent in the QP's turn.
    Turn,
    /// Sending is paused after congestion notifications.
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
        /// RNR NAKs since the last progress.
        refusals: u8,
        /// RNR retry limit; `None` if unlimited.
        most: Option<u8>,
    },
    /// The request was retried after an RNR NAK, and only a few packets are sent until the peer answers.
    AskedAgain {
        /// RNR NAKs since the last progress.
        refusals: u8,
        /// RNR retry limit; `None` if unlimited.
        most: Option<u8>,
    },
    /// The peer advertised no receive request for the next message.
    Credits {
        /// Number of messages by which the next one exceeds the credits.
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
    /// The limit of outstanding READs and atomics is reached.
    Reads {
        /// Limit of consecutive retries.
        most: u8,
    },
    /// Both chunks of a long READ that can be outstanding are outstanding.
    ReadPieces,
    /// The window of unacknowledged packets is full.
    Window {
        /// Number of unacknowledged packets.
        in_flight: u32,
        /// Number of unacknowledged packets currently permitted.
        most: u32,
    },
    /// Half of the PSN space is in use by unacknowledged packets.
    PacketNumbers,
    /// The limit of outstanding requests is reached.
    Requests {
        /// Number of outstanding READs and atomics currently permitted.
        most: u32,
    },
    /// The next request failed validation and completes once older ones are done.
    Failed {
        /// Completion status of the request.
        status: Status,
        /// Number of older requests outstanding.
        older: u32,
    },
    /// SQD: started messages are outstanding; no new ones start.
    Draining,
    /// SQD: nothing is outstanding, and nothing starts.
    Drained,
}

/// Packets that were sent and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// PSN of the oldest unacknowledged packet.
    pub oldest: u32,
    /// Number of unacknowledged packets.
    pub packets: u32,
    /// Number of outstanding requests.
    pub requests: u32,
    /// Time since the last progress.
    #[serde(rename = "waiting_us", with = "micros")]
    pub waiting: Duration,
    /// Retries since the last progress.
    pub retries: u8,
    /// Retry limit, after which the request fails.
    pub most_retries: u8,
    /// Time until the ACK timeout; `None` if no timer runs, or until the RNR wait is over.
    #[serde(rename = "timeout_us", with = "micros::optional")]
    pub timeout: Option<Duration>,
}

/// What the receive side of a queue pair expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expecting {
    /// The service does not receive: XRC initiator.
    NoReceive,
    /// The state drops packets: RESET or INIT.
    State,
    /// ERR: packets are dropped and receive requests flushed.
    Ended,
    /// The first packet of a message.
    Message {
        /// PSN of the first packet.
        psn: u32,
    },
    /// Further packets of an incomplete message.
    Rest {
        /// PSN of the next packet.
        psn: u32,
        /// Bytes received so far.
        received: u64,
    },
    /// A missing packet: later ones arrived, and a sequence NAK was sent (RC).
    Missing {
        /// PSN of the missing packet.
        psn: u32,
    },
    /// A receive request from local software: a message arrived without one, and an RNR NAK was sent (RC).
    ReceiveRequest {
        /// PSN of the refused packet.
        psn: u32,
        /// RNR NAKs sent for the packet.
        refusals: u8,
    },
}

impl Expecting {
    /// Returns the expectation of the packet `psn`: the first of a message, or the next after `received` bytes.
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
