//! Attributes of a queue pair, as set and queried by software.

use std::fmt;
use std::time::Duration;

use protocol::Psn;
use protocol::ids::{Msn, Pdn, Qkey, Qpn};
use protocol::roce::{Encap, Kind, Mtu, Opcode, Transport};
use serde::{Deserialize, Serialize};

use crate::limits::GRH_BYTES;

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Reliable connection (RC), IBTA 9.7.
    Rc,
    /// Initiator of an extended reliable connection (XRC). It only sends, and each request specifies an SRQ at the
    /// target.
    XrcIni,
    /// Target of an extended reliable connection (XRC). It only responds, and each request specifies an SRQ in the
    /// target's XRC domain.
    XrcTgt,
    /// Unreliable connection (UC), IBTA 9.8.2.
    Uc,
    /// Unreliable datagram (UD), IBTA 9.8.3.
    Ud,
    /// Subnet management datagrams (QP0).
    Smi,
    /// General management datagrams (QP1).
    Gsi,
}

impl Service {
    /// Returns whether each message carries its own destination, instead of going to a connected peer.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Smi | Self::Gsi)
    }

    /// Returns whether requests are acknowledged and retried.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// Returns whether a QP of this service has a send queue. If it has none, doorbells are ignored.
    pub const fn has_send_queue(self) -> bool {
        !matches!(self, Self::XrcTgt)
    }

    /// Returns whether a QP of this service receives messages, from its own queue or an SRQ.
    pub const fn receives(self) -> bool {
        !matches!(self, Self::XrcIni)
    }

    /// Returns the QP number that the service uses on the wire in place of the QP's own: 0 or 1.
    pub(crate) const fn wire_number(self) -> Option<Qpn> {
        match self {
            Self::Smi => Some(Qpn::new(0)),
            Self::Gsi => Some(Qpn::new(1)),
            Self::Rc | Self::XrcIni | Self::XrcTgt | Self::Uc | Self::Ud => None,
        }
    }

    /// Returns the transport type, bits 7:5 of the BTH opcode.
    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::XrcIni | Self::XrcTgt => Transport::Xrc,
            Self::Uc => Transport::Uc,
            Self::Ud | Self::Smi | Self::Gsi => Transport::Ud,
        }
    }

    /// Returns whether packets with the given opcode belong to the service. An XRC initiator accepts only responses,
    /// and an XRC target accepts only requests (IBTA annex A14).
    pub(crate) fn accepts(self, opcode: Opcode) -> bool {
        opcode.transport == self.transport()
            && match self {
                Self::XrcIni => opcode.is_response(),
                Self::XrcTgt => !opcode.is_response(),
                Self::Rc | Self::Uc | Self::Ud | Self::Smi | Self::Gsi => true,
            }
    }
}

/// Remote operations enabled on a QP. An operation must also be permitted by the key that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAccess {
    /// Peers can execute RDMA READs.
    pub read: bool,
    /// Peers can execute RDMA WRITEs.
    pub write: bool,
    /// Peers can execute atomic operations.
    pub atomic: bool,
    /// Peers can execute SENDs with invalidate.
    pub invalidate: bool,
}

impl RemoteAccess {
    /// Permits all remote operations.
    pub const ALL: Self = Self { read: true, write: true, atomic: true, invalidate: true };

    /// Returns whether requests of the given kind are enabled.
    pub(crate) const fn allows(self, kind: Kind) -> bool {
        match kind {
            Kind::Read => self.read,
            Kind::Write => self.write,
            Kind::Atomic => self.atomic,
            _ => true,
        }
    }
}

/// Layout of the area in front of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrhArea {
    /// No area: the buffer starts with the payload.
    None,
    /// RoCE: 40 bytes with the IP header (IBTA annex A17, section A17.4.5.1).
    Roce,
    /// InfiniBand: 40 bytes with the GRH, if the datagram was received over IPv6. For a datagram received over IPv4,
    /// the area is left unchanged.
    InfiniBand,
}

impl GrhArea {
    /// Returns the number of bytes in front of the payload.
    pub(crate) const fn len_bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Roce | Self::InfiniBand => GRH_BYTES,
        }
    }
}

/// Whether the engine or its owner flushes a QP's requests after an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Flush {
    /// The engine completes each request, including those posted later.
    #[default]
    Each,
    /// The owner completes the requests. The engine reports only the failed request, discards the other requests
    /// that it has fetched, and fetches no more. Once the QP leaves SQE, the queue resumes at the next doorbell.
    Owner,
}

/// QP states (IBTA volume 1, section 10.3.1).
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

/// Formats the state as in the specification, such as `RTS`.
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

/// Number of retries after RNR NAKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RnrRetry {
    /// At most this many retries, 0 to 6.
    Limited(u8),
    /// No limit on retries (code 7).
    Infinite,
}

/// RNR NAK timer code, 5 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Creates a timer code from the low 5 bits of `code`.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Returns the 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the timer for the next RNR NAK after `others` earlier NAKs for the same packet. Each earlier NAK
    /// quadruples the wait, but does not raise it above the wait of timer `most`.
    pub(crate) fn after(self, others: u32, most: Self) -> Self {
        /// Code increment that quadruples the time. The time doubles every two codes, except that code 0 stands for the
        /// longest time.
        const FOURFOLD: u32 = 4;
        let code = others.saturating_mul(FOURFOLD).saturating_add(self.0.into());
        match u8::try_from(code) {
            _ if self.duration() >= most.duration() => self,
            Ok(code) if code < 32 && Self(code).duration() < most.duration() => Self(code),
            _ => most,
        }
    }

    /// Returns the shortest timer that is at least as long as both this timer and `wait`, or the longest timer if
    /// `wait` exceeds all timers.
    pub(crate) fn at_least(self, wait: Duration) -> Self {
        // Code 0 is the longest timer.
        let longer = (self.0..32).map(Self).find(|timer| timer.duration() >= wait);
        if self.duration() >= wait { self } else { longer.unwrap_or(Self(0)) }
    }

    /// Returns how long the requester must wait.
    ///
    /// # Spec
    /// IBTA volume 1, table 45 (RNR NAK timer field).
    pub const fn duration(self) -> Duration {
        /// Time for each code, in units of 10 us.
        const TABLE: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
            2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(TABLE[self.0 as usize] as u64 * 10)
    }
}

/// ACK timeout of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimeout {
    first: Duration,
    doubles: bool,
}

impl AckTimeout {
    /// Uses the same timeout for every retry (IBTA volume 1, section 9.9.2.1.1).
    pub const fn constant(timeout: Duration) -> Self {
        Self { first: timeout, doubles: false }
    }

    /// Doubles the timeout with each consecutive retry, so that a lost packet is retried early, but a stalled peer or
    /// link is given more time.
    pub const fn doubling(first: Duration) -> Self {
        Self { first, doubles: true }
    }

    /// Returns the timeout after `retries` consecutive retries. More than 7 retries count as 7.
    pub fn after(self, retries: u8) -> Duration {
        if self.doubles { self.first * (1 << retries.min(7)) } else { self.first }
    }
}

/// Attributes of a QP that software controls. A front-end keeps its own QP context and derives these attributes from it
/// on each modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttrs {
    /// Transport service; fixed once the QP leaves RESET.
    pub service: Service,
    /// Protection domain. An XRC target uses the SRQ's instead.
    pub pd: Pdn,
    /// A second QP number accepted on the wire, with the same low bits. Used by interfaces whose software omits the
    /// high bits of QP numbers.
    pub alias: Option<Qpn>,
    /// Largest payload of a packet.
    pub mtu: Mtu,
    /// Longest message that this QP can send, in bytes.
    pub max_message_len: u32,
    /// QP number of the connected peer (RC, XRC, UC).
    pub remote_qpn: Qpn,
    /// Addresses of the connection (RC, XRC, UC). The UDP source port `src_port` distinguishes this QP's flow from
    /// others.
    pub path: Encap,
    /// Whether packets from the peer must be addressed to the source address of `path` (RC, XRC, UC). False if it is
    /// unknown which of the port's addresses the peer uses.
    pub own_address: bool,
    /// Index of the QP's P_Key in the table set by [`Engine::set_pkeys`](crate::Engine::set_pkeys).
    pub pkey_index: u16,
    /// Q_Key that incoming datagrams must carry (UD). An outgoing datagram also carries this Q_Key if its work request
    /// specifies a controlled Q_Key.
    pub qkey: Qkey,
    /// Whether datagrams with any Q_Key are accepted (UD).
    pub any_qkey: bool,
    /// ACK timeout; `None` to wait indefinitely.
    pub ack_timeout: Option<AckTimeout>,
    /// Maximum number of consecutive retries after timeouts, sequence NAKs and implied NAKs, 0 to 7.
    pub retry_count: u8,
    /// Maximum number of consecutive retries after RNR NAKs.
    pub rnr_retry: RnrRetry,
    /// Timer code of the first RNR NAK for a packet.
    pub min_rnr_timer: RnrTimer,
    /// Timer code of the longest wait that an RNR NAK requests. Repeated RNR NAKs for a packet quadruple the wait up to
    /// this limit. Equal to `min_rnr_timer` if software sets the timer and relies on its value.
    pub max_rnr_timer: RnrTimer,
    /// Maximum number of outstanding READs and atomics as the requester.
    pub max_rd_atomic: u8,
    /// Maximum number of READs and atomics that the peer can have outstanding at this QP.
    pub max_dest_rd_atomic: u8,
    /// Remote operations enabled for the peer.
    pub remote: RemoteAccess,
    /// Layout of the area in front of a received datagram.
    pub grh_area: GrhArea,
    /// Whether receive requests come from the QP's shared receive queue (SRQ). Has no effect on XRC, where each message
    /// specifies an SRQ.
    pub srq: bool,
    /// Whether work requests on this QP can use the reserved L_Key; see [`Initiator`](crate::Initiator).
    pub reserved_lkey: bool,
    /// Whether the engine or its owner flushes requests after an error.
    pub flush: Flush,
}

/// One modification of a QP. The front-end checks that the transition is legal, using [`State::may_move`]; the engine
/// executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modify {
    /// New state. To change only attributes, pass the current state.
    pub to: State,
    /// Attributes after the transition.
    pub attrs: QpAttrs,
    /// New value of both the next PSN to send and the oldest unacknowledged PSN.
    pub send_psn: Option<Psn>,
    /// New PSN of the next request expected from the peer.
    pub recv_psn: Option<Psn>,
    /// For a transition to SQD: whether to raise an event once the send queue is drained.
    pub notify_drained: bool,
}

/// Current state and sequence numbers of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSnapshot {
    /// State of the queue pair.
    pub state: State,
    /// Whether the QP is in SQD with started messages still outstanding.
    pub draining: bool,
    /// PSN of the next packet to send.
    pub send_psn: Psn,
    /// Oldest unacknowledged PSN; equal to `send_psn` when nothing is outstanding.
    pub unacked_psn: Psn,
    /// PSN that the responder expects next.
    pub recv_psn: Psn,
    /// Message sequence number: the number of messages completed as the responder.
    pub msn: Msn,
}
