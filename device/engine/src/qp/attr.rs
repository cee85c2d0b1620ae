//! What software sets on a queue pair and reads back.

use std::fmt;
use std::time::Duration;

use protocol::Psn;
use protocol::ids::{Msn, Pdn, Qkey, Qpn};
use protocol::roce::{Encap, Kind, Transport};
use serde::{Deserialize, Serialize};

use crate::limits::GRH_BYTES;

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Datagrams of subnet management: QP0.
    Smi,
    /// Datagrams of general management: QP1.
    Gsi,
}

impl Service {
    /// Whether each message names its destination. The others have one peer.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Smi | Self::Gsi)
    }

    /// The number by which others know the QP, if that is not its own.
    pub(crate) const fn wire_number(self) -> Option<Qpn> {
        match self {
            Self::Smi => Some(Qpn::new(0)),
            Self::Gsi => Some(Qpn::new(1)),
            Self::Rc | Self::Uc | Self::Ud => None,
        }
    }

    /// Bits 7:5 of its opcodes.
    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud | Self::Smi | Self::Gsi => Transport::Ud,
        }
    }
}

/// What the peer of a connection may ask for, beside what keys allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAccess {
    /// READ.
    pub read: bool,
    /// WRITE.
    pub write: bool,
    /// Atomics.
    pub atomic: bool,
    /// Invalidation of a key with a SEND.
    pub invalidate: bool,
}

impl RemoteAccess {
    /// Everything.
    pub const ALL: Self = Self { read: true, write: true, atomic: true, invalidate: true };

    /// Whether requests of this kind are enabled.
    pub(crate) const fn allows(self, kind: Kind) -> bool {
        match kind {
            Kind::Read => self.read,
            Kind::Write => self.write,
            Kind::Atomic => self.atomic,
            _ => true,
        }
    }
}

/// What a datagram's receive request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrhArea {
    /// The payload.
    None,
    /// 40 bytes with the IP header: RoCE's (IBTA annex A17, section A17.4.5.1).
    Roce,
    /// 40 bytes with the global route header, if the datagram has one: InfiniBand's. What came over IPv6 has one. Else
    /// they stay as they are.
    InfiniBand,
}

impl GrhArea {
    /// Bytes in front of the payload.
    pub(crate) const fn len_bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Roce | Self::InfiniBand => GRH_BYTES,
        }
    }
}

/// Who completes the requests that a QP in error leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flush {
    /// The engine, each: also those that are posted later.
    #[default]
    Each,
    /// Its owner. The request that failed is reported; those behind it are neither fetched nor reported, and those that
    /// were fetched are forgotten. Where the QP can go on (SQE), so can its queue, at the next doorbell.
    Owner,
}

/// QP states of IBTA volume 1, section 10.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqe,
    Sqd,
    Err,
}

/// In the words of the specification.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqe => "SQE",
            Self::Sqd => "SQD",
            Self::Err => "ERR",
        })
    }
}

/// Path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Mtu {
    Mtu256,
    Mtu512,
    Mtu1024,
    Mtu2048,
    Mtu4096,
}

impl Mtu {
    /// From the IBTA code, 1 = 256 to 5 = 4096.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }

    /// All, the smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Its IBTA code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        }
    }

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Mtu256 => 256,
            Self::Mtu512 => 512,
            Self::Mtu1024 => 1024,
            Self::Mtu2048 => 2048,
            Self::Mtu4096 => 4096,
        }
    }
}

/// How often an RNR NAK is obeyed before the request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RnrRetry {
    /// So many times, 0 to 6.
    Limited(u8),
    /// Code 7.
    Infinite,
}

/// RNR NAK timer code, five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Keeps the five bits.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// What the RNR NAK after so many others for the same packet asks for: four times as long each time, at most `most`.
    pub(crate) fn after(self, others: u8, most: Self) -> Self {
        /// Times double every two codes, with code 0 behind the last.
        const FOURFOLD: u8 = 4;
        let code = others.checked_mul(FOURFOLD).and_then(|more| self.0.checked_add(more));
        match code {
            _ if self.duration() >= most.duration() => self,
            Some(code) if code < 32 && Self(code).duration() < most.duration() => Self(code),
            _ => most,
        }
    }

    /// The time a requester waits.
    ///
    /// # Spec
    /// IBTA volume 1, table 45 (RNR NAK timer field).
    pub const fn duration(self) -> Duration {
        /// In units of 10 us.
        const TABLE: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
            2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(TABLE[self.0 as usize] as u64 * 10)
    }
}

/// How long a requester waits for an answer until it sends again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimeout {
    first: Duration,
    doubles: bool,
}

impl AckTimeout {
    /// The same each time, as transports of InfiniBand do that are told how long (IBTA volume 1, section 9.9.2.1.1).
    pub const fn constant(timeout: Duration) -> Self {
        Self { first: timeout, doubles: false }
    }

    /// Twice as long each time since there was progress: soon where a packet was lost, and patient with a peer or a wire
    /// that stands still for a while.
    pub const fn doubling(first: Duration) -> Self {
        Self { first, doubles: true }
    }

    /// After so many retries without progress, of which there are no more than 7.
    pub fn after(self, retries: u8) -> Duration {
        if self.doubles { self.first * (1 << retries.min(7)) } else { self.first }
    }
}

/// Everything the engine needs to know of a QP that software sets. A front-end keeps its own context and derives
/// this from it anew at each modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttrs {
    /// Service; fixed from the move out of RESET on.
    pub service: Service,
    /// Protection domain.
    pub pd: Pdn,
    /// Another number by which others may know it, with the same low bits: that of an interface whose software tells the
    /// numbers of peers without their high bits.
    pub alias: Option<Qpn>,
    /// Path MTU.
    pub mtu: Mtu,
    /// Longest message this QP may send, bytes.
    pub max_message_len: u32,
    /// Connected QP (RC, UC).
    pub remote_qpn: Qpn,
    /// Addresses of the connected peer (RC, UC). `src_port` carries this QP's entropy.
    pub path: Encap,
    /// What its peer sends has to go to the source address of `path`, not only to an address of the port (RC, UC). False
    /// where a connection does not know which of the port's addresses its peer uses.
    pub own_address: bool,
    /// Partition, by its place in the table of [`Engine::set_pkeys`](crate::Engine::set_pkeys).
    pub pkey_index: u16,
    /// Queue key (UD): demanded of datagrams that arrive, and sent where a request has a controlled key.
    pub qkey: Qkey,
    /// Datagrams are received whatever their queue key is (UD).
    pub any_qkey: bool,
    /// ACK timeout; `None` waits for ever.
    pub ack_timeout: Option<AckTimeout>,
    /// Timeouts and sequence NAKs without progress before failure, 0 to 7.
    pub retry_count: u8,
    /// RNR NAKs obeyed before failure.
    pub rnr_retry: RnrRetry,
    /// Sent in RNR NAKs.
    pub min_rnr_timer: RnrTimer,
    /// The most that RNR NAKs ask for, of which each further one for the same packet asks for four times as long. As
    /// `min_rnr_timer` where software knows the time and counts on it.
    pub max_rnr_timer: RnrTimer,
    /// READs and atomics this side may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// What the peer may ask for.
    pub remote: RemoteAccess,
    /// What a datagram's receive request begins with.
    pub grh_area: GrhArea,
    /// Receive requests come from a queue that other QPs share (SRQ).
    pub srq: bool,
    /// Own work requests may use the reserved L_Key: see [`Accessor`](crate::Accessor).
    pub reserved_lkey: bool,
    /// What becomes of requests that cannot be executed any more.
    pub flush: Flush,
}

/// One modification of a QP. Legality of the transition is the front-end's business, with
/// [`State`]'s table; the engine executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modify {
    /// New state; equal to the current one to change attributes only.
    pub to: State,
    /// New attributes.
    pub attrs: QpAttrs,
    /// New next send PSN (and with it the oldest unacknowledged one).
    pub send_psn: Option<Psn>,
    /// New expected PSN.
    pub recv_psn: Option<Psn>,
    /// To SQD: tell when drained.
    pub notify_drained: bool,
}

/// Live values of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSnapshot {
    /// State.
    pub state: State,
    /// In SQD and still finishing started messages.
    pub draining: bool,
    /// Next PSN to send.
    pub send_psn: Psn,
    /// Oldest unacknowledged PSN; equal to `send_psn` when nothing is outstanding.
    pub unacked_psn: Psn,
    /// Expected PSN.
    pub recv_psn: Psn,
    /// Messages completed as responder.
    pub msn: Msn,
}
