//! Ways in which software departs from the document, to be chosen by configuration.

use engine::RemoteAccess;
use protocol::hca::jingzhao::caps::Adapter;
use protocol::hca::jingzhao::pci;
use schemars::JsonSchema;
use serde::Deserialize;

use super::limits::{Limits, LimitsEntry};

/// How queue positions are counted (`sq_addr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SqAddr {
    /// In 16-byte units.
    #[default]
    Unit,
    /// Doorbells in slots, links in bytes: the public kernel driver.
    Index,
    /// Found out for each QP: by slot if only that leads to the slot behind the last WQE.
    Auto,
}

/// Options of work queues. The defaults serve the document and the public user library.
///
/// # Spec
/// JingZhao interface, section 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueOptions {
    /// J-06, J-07: units of positions in send queues. The public user library counts in units, so that with it
    /// there is nothing to find out.
    pub sq_addr: SqAddr,
    /// J-24: skip a doorbell whose WQE was run already, through a link that was set after the chain's doorbell rang. The
    /// public kernel driver links WQEs of different doorbells; without this such a WQE may run twice.
    pub late_link: bool,
    /// J-08: a user's queue is as long as its memory region, if that is a power of two and no shorter than the QPC
    /// says. Needed by the public user library, which rounds lengths up and enlarges slots after the kernel driver wrote
    /// the context.
    pub queue_len_from_region: bool,
    /// J-12: clear the link of a user's send WQE once it is read, so that it is not followed again when the slot is
    /// reused. Needed by the public user library, which leaves the links of earlier batches in place.
    pub clear_links: bool,
    /// J-23: mark a receive WQE that has no valid bit as consumed, by terminators in its data units. Without it such
    /// a slot looks posted for ever: messages land in buffers that were not posted again, and a QP in ERR never
    /// ends to flush.
    pub rq_clear: bool,
    /// J-23: a receive WQE of a user's queue is posted if it has the valid bit, and not otherwise. The public user
    /// library always sets it, and does not clear its queue when a QP is used again after RESET: without this, WQEs of
    /// the QP's earlier life look like the first ones of a queue whose software knows no valid bit.
    /// It also sets it before it writes the rest. With this, a receive is taken when it is whole: RST2INIT marks all that a
    /// queue has as not written, which software may post to from INIT on (J-50).
    pub rq_valid_bit: bool,
    /// J-21: no completion for a send WQE without the signalled bit, unless it fails. Not with the public driver: its
    /// kernel consumers never set the bit, and it does not pass on that all of a QP's requests are signalled.
    pub honour_c: bool,
    /// Believe the MAC and IP addresses of a ud unit. The public user library does not write them, so that they are
    /// what the buffer held before.
    pub ud_addresses: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            sq_addr: SqAddr::default(),
            late_link: false,
            queue_len_from_region: true,
            clear_links: true,
            rq_clear: true,
            rq_valid_bit: false,
            honour_c: false,
            ud_addresses: true,
        }
    }
}

/// Options of the whole device.
///
/// # Spec
/// JingZhao interface, section 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Refuse commands with the precise status codes that only the public driver names, instead of 03h. It turns them
    /// into error numbers that tell more than EINVAL.
    pub extended_status: bool,
    /// J-02: UAR pages, 2048 or 4096, and with them the size of BAR2. The public driver never reuses a low page, so that
    /// with 2048 doorbells get lost once its device was opened some 2000 times.
    #[schemars(with = "u16", extend("enum" = [2048, 4096]))]
    pub uar_pages: UarPages,
    /// Obey a doorbell only in the UAR page that the QP's context names.
    pub uar_check: bool,
    /// J-33: obey a doorbell only if it has the whole number its QP was last given, high bits included. The public
    /// driver changes them when it gives a number again, so that doorbells of the number's earlier life are told apart.
    pub qpn_check: bool,
    /// What QUERY_ADAPTER answers.
    pub board_id: BoardId,
    /// J-29: which times software means by its RNR timer codes.
    pub rnr_timer_table: RnrTimerTable,
    /// J-42: RNR timer code to send for QPs whose software gave 0, and to answer QUERY_QP. 0 itself is 655.36 ms, which
    /// the public driver asks for whatever its user wanted.
    #[schemars(with = "u8", range(max = 31))]
    pub rnr_timer_zero: RnrTimerCode,
    /// J-38: answer MAD_IFC as the hardware does, with LID and state of the port. The document lists the command without
    /// a layout, and no driver issues it: without this it is an unknown opcode.
    pub mad_ifc: bool,
    /// J-30: reserve the first 40 bytes of a UD receive buffer for the GRH, as verbs applications expect.
    pub ud_grh: bool,
    /// J-47: what peers may ask of connected QPs, beside what a region grants: a QPC has no field for ACCESS_FLAGS.
    pub qp_access: QpAccess,
    /// J-47: READs and atomics that a QP may have under way, 1 to 16: a QPC has no field for MAX_QP_RD_ATOMIC.
    #[schemars(with = "u8", range(min = 1, max = 16))]
    pub max_rd_atomic: RdAtomicDepth,
    /// J-47: READs and atomics that a peer may have under way, 1 to 16: a QPC has no field for MAX_DEST_RD_ATOMIC. As
    /// many answers of atomics are kept to be given again.
    #[schemars(with = "u8", range(min = 1, max = 16))]
    pub max_dest_rd_atomic: RdAtomicDepth,
    /// Options of work queues.
    pub queues: QueueOptions,
    /// What QUERY_DEV_LIM reports.
    #[schemars(with = "LimitsEntry")]
    pub limits: Limits,
}

/// Times of the RNR timer codes of contexts (`rnr_timer_table`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RnrTimerTable {
    /// IBTA's.
    #[default]
    Ibta,
    /// Those of the ibv_query_qp notes, which have the times of codes 6 to 21 in another order.
    QueryQpNotes,
}

impl RnrTimerTable {
    /// The code that IBTA has for what software means by `code`: packets carry nothing else.
    ///
    /// # Spec
    /// JingZhao interface, section 10.6.
    pub const fn on_the_wire(self, code: u8) -> u8 {
        match (self, code) {
            // 2.56 to 15.36 ms, which IBTA has from 16 on.
            (Self::QueryQpNotes, 6..=11) => code + 10,
            // 0.08 to 1.92 ms, which IBTA has from 6 on.
            (Self::QueryQpNotes, 12..=21) => code - 6,
            _ => code,
        }
    }

    /// What software says for a code that IBTA has.
    pub const fn in_a_context(self, code: u8) -> u8 {
        match (self, code) {
            (Self::QueryQpNotes, 16..=21) => code - 10,
            (Self::QueryQpNotes, 6..=15) => code + 6,
            _ => code,
        }
    }
}

/// What peers may ask of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QpAccess {
    /// RDMA WRITE.
    pub write: bool,
    /// RDMA READ (RC).
    pub read: bool,
    /// Atomic operations (RC).
    pub atomic: bool,
}

impl Default for QpAccess {
    fn default() -> Self {
        Self { write: true, read: true, atomic: true }
    }
}

impl From<QpAccess> for RemoteAccess {
    fn from(QpAccess { write, read, atomic }: QpAccess) -> Self {
        Self { read, write, atomic, invalidate: false }
    }
}

/// A number of READs and atomics, 1 to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u8")]
pub struct RdAtomicDepth(u8);

impl RdAtomicDepth {
    /// Bound: for each, a peer may have an answer kept by us, and we by it.
    const MAX: u8 = 16;

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for RdAtomicDepth {
    fn default() -> Self {
        Self(Self::MAX)
    }
}

impl TryFrom<u8> for RdAtomicDepth {
    type Error = &'static str;

    fn try_from(depth: u8) -> Result<Self, Self::Error> {
        if (1..=Self::MAX).contains(&depth) {
            Ok(Self(depth))
        } else {
            Err("a QP has 1 to 16 READs and atomics under way")
        }
    }
}

/// Number of UAR pages (J-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "u16")]
pub enum UarPages {
    /// 2048 (8 MiB), as the document has it.
    #[default]
    Documented,
    /// 4096 (16 MiB), as many as the public driver hands out.
    Driver,
}

impl TryFrom<u16> for UarPages {
    type Error = &'static str;

    fn try_from(pages: u16) -> Result<Self, Self::Error> {
        match pages {
            2048 => Ok(Self::Documented),
            4096 => Ok(Self::Driver),
            _ => Err("a device has 2048 or 4096 UAR pages"),
        }
    }
}

impl UarPages {
    /// Bytes of BAR2.
    pub const fn bar_len(self) -> u64 {
        match self {
            Self::Documented => pci::BAR2_LEN,
            Self::Driver => pci::BAR2_LEN_MAX,
        }
    }
}

/// Identification of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct BoardId(pub u64);

impl Default for BoardId {
    fn default() -> Self {
        Self(Adapter::DEFAULT.board_id)
    }
}

/// An RNR timer code, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "u8")]
pub struct RnrTimerCode(u8);

impl RnrTimerCode {
    /// The code.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for RnrTimerCode {
    type Error = &'static str;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        if code <= 31 { Ok(Self(code)) } else { Err("an RNR timer code is at most 31") }
    }
}
