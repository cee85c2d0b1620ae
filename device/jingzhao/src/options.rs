//! Device options, many of which are for software that departs from the vendor's interface document.

use card::frontend;
use engine::RemoteAccess;
use protocol::hca::jingzhao::caps::Adapter;
use protocol::hca::jingzhao::pci;
use schemars::JsonSchema;
use serde::Deserialize;

use super::limits::{Limits, LimitsEntry};

/// Parameters of a device.
pub type Setup = frontend::Setup<Options>;

/// Units of send queue positions (`sq_addr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SqAddr {
    /// Units of 16 bytes.
    #[default]
    Unit,
    /// Doorbells in slots, links in bytes, as in the public kernel driver.
    Index,
    /// Detected for each QP: the unit with which a doorbell points to the slot after the last WQE.
    Auto,
}

/// Options for work queues. The defaults are for software that follows the JingZhao interface specification. For the
/// user library of the public `ib_hgrnic` driver, use the settings in `configs/hgrnic.json`.
///
/// # Spec
/// JingZhao interface, section 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueOptions {
    /// J-06, J-07: units of send queue positions. The public user library uses units of 16 bytes and does not need
    /// detection.
    pub sq_addr: SqAddr,
    /// J-24: skip a doorbell whose WQE was already executed because an earlier WQE links to it. Needed with the public
    /// kernel driver, which adds such links after it has rung the doorbell of the earlier WQE. Without this option, the
    /// device may execute a WQE twice.
    pub late_link: bool,
    /// J-08: use the length of a user queue's memory region as the queue length, if it is a power of two and at least
    /// the length in the QPC. Needed by the public user library, which rounds lengths up and enlarges slots after the
    /// kernel driver has written the context.
    pub queue_len_from_region: bool,
    /// J-12: clear the link of a user send WQE after reading it, so that the device does not follow it again when the
    /// slot is reused. Needed by the public user library, which leaves the links of earlier batches in place.
    pub clear_links: bool,
    /// J-23: mark a receive WQE without a valid bit as consumed by writing terminators into its data units. Without
    /// this option, the slot always looks posted. Messages then overwrite buffers that were not posted again, and a QP
    /// in ERR never stops flushing.
    pub rq_clear: bool,
    /// J-23: treat a receive WQE of a user queue as posted only if its valid bit is set. The public user library always
    /// sets the bit, but does not clear its queue when a QP is reused after RESET. Without this option, the device
    /// cannot distinguish WQEs from before the RESET from those of software that does not use the bit. The library also
    /// sets the bit before it writes the rest of the WQE. With this option, the device uses a receive WQE only when it
    /// is complete. To detect this, RST2INIT marks all slots as not written. Software may post receives as soon as the
    /// QP is in INIT (J-50).
    pub rq_valid_bit: bool,
    /// J-21: do not write a completion for a send WQE without the signalled bit, unless the WQE fails. Do not use this
    /// option with the public driver. Its kernel consumers never set the bit, and the driver does not report to the
    /// device whether all of a QP's requests are signalled (`sq_sig_all`).
    pub honour_c: bool,
    /// Use the MAC and IP addresses in the ud unit of a send WQE. Disable this for the public user library, which
    /// leaves stale data in these fields.
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

/// Options for JingZhao devices. Numbers such as J-02 refer to section 12 of the JingZhao interface specification.
///
/// # Spec
/// JingZhao interface, section 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// If a command fails, report one of the precise status codes that only the public driver defines, instead of 03h.
    /// The driver maps these codes to more specific errno values than EINVAL.
    pub extended_status: bool,
    /// J-02: number of UAR pages, 2048 or 4096, which determines the size of BAR2. The public driver allocates 4096
    /// pages in round-robin order. With 2048 pages, doorbells are lost after the device has been opened about 2000
    /// times.
    #[schemars(with = "u16", extend("enum" = [2048, 4096]))]
    pub uar_pages: UarPages,
    /// Execute a doorbell only if it is written to the UAR page in the context of its QP.
    pub uar_check: bool,
    /// J-33: execute a doorbell only if all 24 bits of the QP number match. The public driver changes the high bits
    /// when it reuses the low bits, so the device can detect doorbells meant for an earlier QP.
    pub qpn_check: bool,
    /// Board ID that QUERY_ADAPTER returns.
    pub board_id: BoardId,
    /// J-29: meaning of the RNR timer codes in contexts.
    pub rnr_timer_table: RnrTimerTable,
    /// J-42: RNR timer code that the device uses for a QP whose context has code 0, and that QUERY_QP returns. Code 0
    /// itself means 655.36 ms. The public driver always sets code 0, regardless of the timer that its user requests.
    #[schemars(with = "u8", range(max = 31))]
    pub rnr_timer_zero: RnrTimerCode,
    /// J-38: implement MAD_IFC as the hardware does. The command returns the LID and state of the port. The document
    /// lists it without a layout, and no driver uses it. Without this option, MAD_IFC is an unknown opcode.
    pub mad_ifc: bool,
    /// J-30: reserve the first 40 bytes of a UD receive buffer for the GRH, as verbs applications expect.
    pub ud_grh: bool,
    /// J-47: operations that peers may perform on connected QPs. The memory region must permit them too. A QPC has no
    /// field for ACCESS_FLAGS.
    pub qp_access: QpAccess,
    /// J-47: maximum number of outstanding READs and atomics of a QP as requester, 1 to 16. A QPC has no
    /// field for MAX_QP_RD_ATOMIC.
    #[schemars(with = "u8", range(min = 1, max = 16))]
    pub max_rd_atomic: RdAtomicDepth,
    /// J-47: maximum number of outstanding READs and atomics of a QP as responder, 1 to 16. A QPC has no
    /// field for MAX_DEST_RD_ATOMIC. The device keeps the same number of atomic responses for duplicate
    /// requests.
    #[schemars(with = "u8", range(min = 1, max = 16))]
    pub max_dest_rd_atomic: RdAtomicDepth,
    /// Options for work queues.
    pub queues: QueueOptions,
    /// Limits that QUERY_DEV_LIM reports.
    #[schemars(with = "LimitsEntry")]
    pub limits: Limits,
}

/// Meaning of the RNR timer codes in contexts (`rnr_timer_table`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RnrTimerTable {
    /// As in the IBTA specification.
    #[default]
    Ibta,
    /// As in the ibv_query_qp notes, which list codes 6 to 21 in a different order.
    QueryQpNotes,
}

impl RnrTimerTable {
    /// Converts a timer code in a context to the IBTA code used in packets.
    ///
    /// # Spec
    /// JingZhao interface, section 10.6.
    pub const fn on_the_wire(self, code: u8) -> u8 {
        match (self, code) {
            // 2.56 to 15.36 ms: IBTA codes 16 and up.
            (Self::QueryQpNotes, 6..=11) => code + 10,
            // 0.08 to 1.92 ms: IBTA codes 6 and up.
            (Self::QueryQpNotes, 12..=21) => code - 6,
            _ => code,
        }
    }

    /// Converts an IBTA timer code to the code used in contexts.
    pub const fn in_a_context(self, code: u8) -> u8 {
        match (self, code) {
            (Self::QueryQpNotes, 16..=21) => code - 10,
            (Self::QueryQpNotes, 6..=15) => code + 6,
            _ => code,
        }
    }
}

/// Operations that peers may perform on a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QpAccess {
    /// RDMA WRITE.
    pub write: bool,
    /// RDMA READ; only for RC.
    pub read: bool,
    /// Atomic operations; only for RC.
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
    /// Maximum number of READs and atomics that each side keeps state for.
    const MAX: u8 = 16;

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
        if (1..=Self::MAX).contains(&depth) { Ok(Self(depth)) } else { Err("must be between 1 and 16") }
    }
}

/// Number of UAR pages (J-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "u16")]
pub enum UarPages {
    /// 2048 (8 MiB), as the document specifies.
    #[default]
    Documented,
    /// 4096 (16 MiB), as many as the public driver allocates.
    Driver,
}

impl TryFrom<u16> for UarPages {
    type Error = &'static str;

    fn try_from(pages: u16) -> Result<Self, Self::Error> {
        match pages {
            2048 => Ok(Self::Documented),
            4096 => Ok(Self::Driver),
            _ => Err("must be 2048 or 4096"),
        }
    }
}

impl UarPages {
    /// Returns the size of BAR2 in bytes.
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
    /// Returns the code, 0 to 31.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for RnrTimerCode {
    type Error = &'static str;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        if code <= 31 { Ok(Self(code)) } else { Err("must be between 0 and 31") }
    }
}
