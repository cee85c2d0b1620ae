//! Impairment rules. A rule defines which frames it applies to, when it applies and what it does to them.

use std::fmt;
use std::net::IpAddr;

use protocol::Psn;
use protocol::ids::{MacAddr, Qpn};
use protocol::roce::OpcodePattern;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::summary::FrameSummary;

/// Maximum time that a frame may be held, in microseconds. This far exceeds any QP timeout under test.
const MAX_HOLD_US: u64 = 60_000_000;

/// Maximum value of `by` in [`Action::Reorder`], the number of later frames that overtake a held frame.
const MAX_OVERTAKERS: u32 = 1024;

/// Default for `within_us`, in microseconds.
const OVERTAKEN_WITHIN_US: u64 = 10_000;

/// An impairment: a rule that injects a fault into some of a device's frames.
///
/// The rule matches a frame if the frame travels in the rule's direction and satisfies all given selectors (`qpn`,
/// `psn`, `opcode`, `peer`). If `qpn`, `psn` or `opcode` is given, the rule matches only RoCE packets. By default, the
/// rule affects every matching frame. With `nth`, it affects only the nth matching frame, or `count` frames starting
/// with that frame. With `probability`, it affects a random selection of matching frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleEntry {
    /// Direction of the frames.
    pub direction: Direction,
    /// What to do with a matching frame.
    pub action: Action,
    /// Affect only packets with this destination QP number in the BTH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qpn: Option<u32>,
    /// Affect only packets with this packet sequence number (PSN) in the BTH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Affect only packets with this opcode name from IBTA volume 1, table 38, such as "RDMA READ response
    /// Middle". With a service prefix ("RC SEND Only"), only that service matches. "CNP" is also accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode: Option<String>,
    /// Affect only frames to or from the peer with this MAC or IP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Affect only the nth matching frame, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// With `nth`: number of consecutive matching frames to affect. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Affect each matching frame with this probability, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<Probability>,
    /// Seed for the random choices. The same seed and the same frames produce the same result. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// Direction of a frame, seen from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Sent by the device.
    Tx,
    /// Received by the device.
    Rx,
}

/// What to do with a matching frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Drop the frame.
    Drop,
    /// Send the frame twice.
    Duplicate {
        /// Delay of the copy, in microseconds.
        #[serde(default)]
        after_us: u64,
    },
    /// Delay the frame. Frames with the same delay stay in order.
    Delay {
        /// Delay of the frame, in microseconds.
        us: u64,
        /// Maximum additional random delay, in microseconds.
        #[serde(default)]
        jitter_us: u64,
    },
    /// Hold the frame until later frames have overtaken it.
    Reorder {
        /// Number of later frames that overtake the held frame.
        by: u32,
        /// Maximum time to hold the frame, in microseconds.
        #[serde(default = "overtaken_within")]
        within_us: u64,
    },
    /// Invert one random bit. In a RoCE packet, it is one of the bits that the ICRC covers. In other frames,
    /// it can be any bit after the Ethernet header.
    Corrupt,
    /// Set the ECN field to Congestion Experienced, even if the sender is not ECN-capable. Only IP frames are
    /// changed.
    MarkCe,
}

fn overtaken_within() -> u64 {
    OVERTAKEN_WITHIN_US
}

/// A number from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64")]
pub struct Probability(#[schemars(range(min = 0.0, max = 1.0))] f64);

impl Eq for Probability {}

impl Probability {
    pub(super) fn get(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl TryFrom<f64> for Probability {
    type Error = RuleError;

    fn try_from(value: f64) -> Result<Self, RuleError> {
        let valid = (0.0..=1.0).contains(&value);
        valid
            .then_some(Self(value))
            .ok_or(RuleError { key: "probability", problem: "must be between 0 and 1" })
    }
}

/// Why a rule is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{key}: {problem}")]
pub struct RuleError {
    /// Key of the invalid value.
    pub key: &'static str,
    /// Description of the problem, in one line.
    pub problem: &'static str,
}

#[derive(Clone, Debug)]
pub struct Rule {
    entry: RuleEntry,
    qpn: Option<Qpn>,
    psn: Option<Psn>,
    opcode: Option<OpcodePattern>,
    peer: Option<Peer>,
    when: When,
}

/// Selects which of the matching frames a rule applies to.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    Always,
    /// Applies to `count` consecutive matching frames, beginning with number `first`, counted from 1.
    Nth {
        first: u64,
        count: u64,
    },
    Chance(Probability),
}

#[derive(Clone, Copy, Debug)]
enum Peer {
    Mac(MacAddr),
    Ip(IpAddr),
}

impl TryFrom<RuleEntry> for Rule {
    type Error = RuleError;

    fn try_from(entry: RuleEntry) -> Result<Self, RuleError> {
        let wrong = |key, problem| RuleError { key, problem };
        let number = |key, value: Option<u32>| match value {
            Some(value) if value > 0xff_ffff => Err(wrong(key, "must fit in 24 bits")),
            value => Ok(value),
        };
        let when = match (entry.nth, entry.count, entry.probability) {
            (Some(0), ..) => return Err(wrong("nth", "must be at least 1")),
            (Some(_), Some(0), _) => return Err(wrong("count", "must be at least 1")),
            (Some(first), count, None) => When::Nth { first, count: count.unwrap_or(1) },
            (None, None, Some(probability)) => When::Chance(probability),
            (None, None, None) => When::Always,
            (Some(_), _, Some(_)) => return Err(wrong("probability", "cannot be combined with `nth`")),
            (None, Some(_), _) => return Err(wrong("count", "requires `nth`")),
        };
        let opcode = entry.opcode.as_deref().map(str::parse).transpose();
        let peer = entry.peer.as_deref().map(Peer::parse).transpose()?;
        let (times, overtakers) = match entry.action {
            Action::Delay { us, jitter_us } => ([us, jitter_us], 1),
            Action::Duplicate { after_us } => ([after_us, 0], 1),
            Action::Reorder { by, within_us } => ([within_us, 0], by),
            Action::Drop | Action::Corrupt | Action::MarkCe => ([0, 0], 1),
        };
        if times.iter().any(|us| *us > MAX_HOLD_US) {
            return Err(wrong("action", "must not delay a frame by more than 60 seconds"));
        }
        if !(1..=MAX_OVERTAKERS).contains(&overtakers) {
            return Err(wrong("action.reorder.by", "must be between 1 and 1024"));
        }
        Ok(Self {
            qpn: number("qpn", entry.qpn)?.map(Qpn::new),
            psn: number("psn", entry.psn)?.map(Psn::new),
            opcode: opcode
                .map_err(|_| wrong("opcode", "is not an opcode name from IBTA volume 1, table 38"))?,
            peer,
            when,
            entry,
        })
    }
}

impl Peer {
    fn parse(text: &str) -> Result<Self, RuleError> {
        let mac = text.parse().map(Self::Mac).ok();
        mac.or_else(|| text.parse().map(Self::Ip).ok())
            .ok_or(RuleError { key: "peer", problem: "is neither a MAC nor an IP address" })
    }
}

impl Rule {
    /// Returns the rule as it was configured.
    pub fn entry(&self) -> &RuleEntry {
        &self.entry
    }

    pub(super) fn direction(&self) -> Direction {
        self.entry.direction
    }

    pub(super) fn action(&self) -> Action {
        self.entry.action
    }

    pub(super) fn when(&self) -> When {
        self.when
    }

    pub(super) fn seed(&self) -> u64 {
        self.entry.seed.unwrap_or(0)
    }

    /// Returns the index of the rule's random stream, which differs for each action and direction.
    pub(super) fn stream(&self) -> u64 {
        let action = match self.entry.action {
            Action::Drop => 0,
            Action::Duplicate { .. } => 1,
            Action::Delay { .. } => 2,
            Action::Reorder { .. } => 3,
            Action::Corrupt => 4,
            Action::MarkCe => 5,
        };
        let direction = match self.entry.direction {
            Direction::Tx => 0,
            Direction::Rx => 1,
        };
        action << 1 | direction
    }

    /// Returns whether the rule matches the frame. The caller has checked that the frame travels in the rule's
    /// direction.
    pub(super) fn selects(&self, summary: &FrameSummary) -> bool {
        let bth = summary.bth.as_ref();
        let peer = |wanted| match (wanted, self.entry.direction) {
            (Peer::Mac(mac), Direction::Tx) => summary.dst_mac == mac,
            (Peer::Mac(mac), Direction::Rx) => summary.src_mac == mac,
            (Peer::Ip(ip), Direction::Tx) => summary.ip.is_some_and(|addrs| addrs.dst == ip),
            (Peer::Ip(ip), Direction::Rx) => summary.ip.is_some_and(|addrs| addrs.src == ip),
        };
        self.qpn.is_none_or(|qpn| bth.is_some_and(|bth| bth.dest_qp == qpn))
            && self.psn.is_none_or(|psn| bth.is_some_and(|bth| bth.psn == psn))
            && self.opcode.is_none_or(|opcode| bth.is_some_and(|bth| opcode.matches(bth.opcode)))
            && self.peer.is_none_or(peer)
    }
}
