//! What a queue pair waits for, as values: what they mean in words is their reader's business.
//!
//! Each side says one thing, the first that stands in the way. Times are relative to the moment of the question, since
//! nobody else has the engine's clock.

use std::time::Duration;

use protocol::Psn;
use serde::{Deserialize, Serialize};

use crate::{AccessError, DropReason, Queue, Service, State, Status};

/// A queue pair at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Situation {
    /// State.
    pub state: State,
    /// Service.
    pub service: Service,
    /// The newest packet that was for it and from its peer came so long ago; `None`: there was none since RESET.
    #[serde(rename = "heard_us", with = "micros::optional")]
    pub heard: Option<Duration>,
    /// In SQE and ERR: how it came there.
    pub ended: Option<Ended>,
    /// Why nothing leaves its send queue.
    pub send: Blocked,
    /// What it has sent and has no answer to.
    pub unanswered: Option<Unanswered>,
    /// What it takes from its peer next.
    pub receive: Expecting,
    /// Answers it owes its peer.
    pub answers: u32,
}

/// How a queue pair came to be in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// So long ago.
    #[serde(rename = "ago_us", with = "micros")]
    pub ago: Duration,
    /// Why.
    pub by: EndedBy,
}

/// What ended the work of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// Software moved it.
    Software,
    /// A request of its send queue failed.
    Send(Status),
    /// A request of its peer was refused, or a receive request was.
    Peer {
        /// Why.
        reason: DropReason,
        /// Why an access was refused, where one was.
        cause: Option<AccessError>,
    },
    /// A work queue cannot be read.
    Queue(Queue),
}

/// Why nothing leaves a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blocked {
    /// The state has no sending, and doorbells are ignored: RESET, INIT, RTR.
    State,
    /// SQE and ERR: requests are flushed.
    Ended,
    /// All that doorbells announced has been sent.
    NothingPosted,
    /// Nothing is in the way: the next frame leaves with its turn.
    Turn,
    /// The peer's notifications of congestion slow it down.
    Congestion {
        /// It goes on after so long.
        #[serde(rename = "left_us", with = "micros")]
        left: Duration,
    },
    /// The peer had no receive request for the oldest request.
    ReceiverNotReady {
        /// It is asked again after so long.
        #[serde(rename = "left_us", with = "micros")]
        left: Duration,
        /// Refusals since there was progress.
        refusals: u8,
        /// So many are borne; `None`: any number.
        most: Option<u8>,
    },
    /// The peer was asked again after a refusal, and few packets are sent until it answers.
    AskedAgain {
        /// Refusals since there was progress.
        refusals: u8,
        /// So many are borne; `None`: any number.
        most: Option<u8>,
    },
    /// The peer has posted no receive request for the next message, as it says in its acknowledges.
    Credits {
        /// Messages by which the next one is beyond those it has receive requests for.
        beyond: u32,
    },
    /// The next request is fenced: it waits for older ones.
    Fence {
        /// Older requests that are not done.
        older: u32,
    },
    /// The next request ends a key, which older requests may still need.
    Invalidation {
        /// Older requests that are not done.
        older: u32,
    },
    /// As many READs and atomics are unanswered as may be.
    Reads {
        /// The most there may be.
        most: u8,
    },
    /// A long READ is asked for in pieces, and both that may be under way are.
    ReadPieces,
    /// As many packets are unanswered as may be.
    Window {
        /// Packets without an answer.
        in_flight: u32,
        /// The most there may be now.
        most: u32,
    },
    /// Half of all packet numbers are in use by what is unanswered.
    PacketNumbers,
    /// As many requests are taken and not done as may be.
    Requests {
        /// The most there may be now.
        most: u32,
    },
    /// The next request cannot be executed, and completes when older ones are done.
    Failed {
        /// What it completes with.
        status: Status,
        /// Older requests that are not done.
        older: u32,
    },
    /// SQD: messages that were begun are not done, new ones do not begin.
    Draining,
    /// SQD: nothing is under way, and nothing begins.
    Drained,
}

/// Packets that no answer has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unanswered {
    /// The oldest.
    pub oldest: u32,
    /// How many.
    pub packets: u32,
    /// Requests that are taken and not done.
    pub requests: u32,
    /// Nothing was acknowledged for so long.
    #[serde(rename = "waiting_us", with = "micros")]
    pub waiting: Duration,
    /// They were sent again so often since there was progress.
    pub retries: u8,
    /// So often they may be, then the request fails.
    pub most_retries: u8,
    /// They are sent again after so long; `None`: never, or when the wait for the receiver is over.
    #[serde(rename = "timeout_us", with = "micros::optional")]
    pub timeout: Option<Duration>,
}

/// What a queue pair takes from its peer next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expecting {
    /// The state drops packets: RESET, INIT.
    State,
    /// ERR: packets are dropped, and receive requests flushed.
    Ended,
    /// The next message.
    Message {
        /// Packet number of its first packet.
        psn: u32,
    },
    /// The rest of a message.
    Rest {
        /// Packet number of the next packet.
        psn: u32,
        /// Bytes that are there.
        received: u64,
    },
    /// A packet is missing: younger ones came, and the peer was told (RC).
    Missing {
        /// Its packet number.
        psn: u32,
    },
    /// Its own software: the peer's message came, no receive request was posted, and the peer was told to come again
    /// (RC).
    ReceiveRequest {
        /// Packet number of the packet that was refused.
        psn: u32,
        /// Times the packet was refused.
        refusals: u8,
    },
}

impl Expecting {
    /// The packet number that comes next.
    pub(crate) fn message(psn: Psn, received: Option<u64>) -> Self {
        match received {
            None => Self::Message { psn: psn.get() },
            Some(received) => Self::Rest { psn: psn.get(), received },
        }
    }
}

/// Durations in whole microseconds, as rows have them.
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
