//! Send WQEs: one to eight 32-byte quanta.
//!
//! Bytes 24 to 31 of the first quantum are the control word, which determines the layout of the other bytes and the
//! number of quanta. The highest bit in the last byte of each quantum is the quantum's polarity.
//!
//! # Spec
//! E810 interface, section 13.4.

use smallvec::SmallVec;

use super::fragment::Fragment;
use super::index::{AhIndex, PbleIndex};
use super::page_list::ListLevel;
use crate::ids::{Iova, Lkey, Qkey, Qpn, Rkey, Va};
use crate::layout;

/// Length of a quantum in bytes.
pub const QUANTUM: usize = 32;
/// Maximum length of a WQE in quanta. A WQE in the ring does not cross an index that is a multiple of this number.
pub const MAX_QUANTA: usize = 8;
/// Length of the largest WQE in bytes.
pub const MAX_LEN: usize = QUANTUM * MAX_QUANTA;

/// Offset of the control word in the first quantum.
pub const CONTROL_OFFSET: usize = 24;
/// Offset of the second quantum.
const SECOND: usize = QUANTUM;
/// Maximum number of inline data bytes in the first quantum. They start at offset 8.
const FIRST_INLINE: usize = 8;
/// Maximum number of inline data bytes in each later quantum. The last byte of a quantum contains the polarity.
const MORE_INLINE: usize = QUANTUM - 1;

layout! {
    /// Control word of a WQE.
    pub struct Control[8] {
        /// Remote STag, or address handle of a datagram.
        [31:0]   key: u32 => Hex,
        /// Opcode of the WQE; see [`opcode`].
        [37:32]  opcode: u8,
        /// Number of fragments after the first.
        [41:38]  more_fragments: u8,
        /// Whether immediate data is present. In a fast registration, this bit is part of the page size.
        [47]     immediate: bool,
        /// Length of the inline data in bytes. In a local operation, these bits are fields of [`LocalControl`].
        [55:48]  inline_len: u8,
        /// Whether the data is inline.
        [57]     inline: bool,
        /// Whether to wait for previous READs.
        [60]     read_fence: bool,
        /// Whether to wait for all previous WQEs.
        [61]     local_fence: bool,
        /// Whether the driver requests a CQE.
        [62]     signaled: bool,
        /// Polarity, which toggles on each pass through the ring.
        [63]     valid: bool,
    }
}

layout! {
    /// Control word of a local operation.
    pub struct LocalControl[8] {
        /// STag that a fast registration validates.
        [31:0]   key: Lkey,
        /// Number of levels in the page list.
        [45:44]  level: ListLevel as u8,
        /// Page size: 0 for 4 KiB, 1 for 2 MiB, 2 for 1 GiB.
        [47:46]  page_size: u8,
        /// Access rights of the region or window.
        [52:48]  rights: u8 => Hex,
        /// Whether requests use virtual addresses rather than offsets from the first byte.
        [53]     virtual_addresses: bool,
        /// Whether the window is type 1: tied to a protection domain rather than a QP.
        [54]     type1: bool,
    }
}

/// Opcodes of the control word.
pub mod opcode {
    #![allow(missing_docs)]
    pub const WRITE: u8 = 0x00;
    pub const READ: u8 = 0x01;
    pub const SEND: u8 = 0x03;
    pub const SEND_INVALIDATE: u8 = 0x04;
    pub const SEND_SOLICITED: u8 = 0x05;
    pub const SEND_SOLICITED_INVALIDATE: u8 = 0x06;
    pub const BIND: u8 = 0x08;
    pub const FAST_REGISTER: u8 = 0x09;
    pub const LOCAL_INVALIDATE: u8 = 0x0a;
    pub const READ_INVALIDATE: u8 = 0x0b;
    pub const NOP: u8 = 0x0c;
    pub const WRITE_SOLICITED: u8 = 0x0d;

    /// Returns the name used in traces.
    pub const fn name(code: u8) -> Option<&'static str> {
        Some(match code {
            WRITE => "write",
            READ => "read",
            SEND => "send",
            SEND_INVALIDATE => "send_invalidate",
            SEND_SOLICITED => "send_solicited",
            SEND_SOLICITED_INVALIDATE => "send_solicited_invalidate",
            BIND => "bind",
            FAST_REGISTER => "fast_register",
            LOCAL_INVALIDATE => "local_invalidate",
            READ_INVALIDATE => "read_invalidate",
            NOP => "nop",
            WRITE_SOLICITED => "write_solicited",
            _ => return None,
        })
    }
}

/// Service of a send queue, which determines whether WQEs contain a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Service {
    /// QP for reliable connections (RC).
    Connection,
    Datagram,
}

/// Remote memory of an RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Remote {
    pub va: Va,
    /// R_Key (STag) of the region.
    pub key: Rkey,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address handle of the receiver.
    pub handle: AhIndex,
    /// QP number of the receiver.
    pub qpn: Qpn,
    /// Q_Key of the receiver. If bit 31 is set, the Q_Key of the QP context is used instead.
    pub qkey: Qkey,
}

/// Data of a send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Data in memory regions.
    Fragments(Fragments),
    /// Data in the WQE itself.
    Inline(SmallVec<[u8; 64]>),
}

/// Gather or scatter list, without empty fragments.
pub type Fragments = SmallVec<[Fragment; 4]>;

/// Parameters of a memory window bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bind {
    /// STag of the window.
    pub window: Lkey,
    /// STag of the window's region.
    pub parent: Lkey,
    pub va: Va,
    /// Length in bytes. Length 0 unbinds the window.
    pub len: u64,
    /// Access rights; see [`StagRights`](super::region::StagRights).
    pub rights: u8,
    /// Whether requests use virtual addresses rather than offsets from the first byte.
    pub virtual_addresses: bool,
    /// Whether the window is type 1: tied to a protection domain rather than a QP.
    pub type1: bool,
}

/// Parameters of a fast registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FastRegister {
    /// STag of the region.
    pub key: Lkey,
    pub va: Va,
    /// Length of the region in bytes.
    pub len: u64,
    /// Pages of the region.
    pub pages: FastPages,
    /// Page size: 0 for 4 KiB, 1 for 2 MiB, 2 for 1 GiB.
    pub page_size: u8,
    /// Access rights; see [`StagRights`](super::region::StagRights).
    pub rights: u8,
    /// Whether requests use virtual addresses rather than offsets from the first byte.
    pub virtual_addresses: bool,
}

/// Pages of a fast registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPages {
    /// No page list; the memory is contiguous.
    Contiguous(Iova),
    /// One level: page addresses, starting at this PBLE.
    List(PbleIndex),
    /// Two levels: references to lists of page addresses, starting at this PBLE.
    Lists(PbleIndex),
}

/// Operation that a send WQE requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Write {
        /// Remote memory to write.
        remote: Remote,
        /// Immediate data in host byte order.
        imm: Option<u32>,
        /// Requests a solicited event at the receiver.
        solicited: bool,
        data: Data,
    },
    Read {
        /// Remote memory to read.
        remote: Remote,
        /// Scatter list for the received data.
        to: Fragments,
        /// STag of the first fragment, if the READ must invalidate it.
        invalidate: Option<Lkey>,
    },
    Send {
        /// Immediate data in host byte order.
        imm: Option<u32>,
        /// R_Key that the peer must invalidate.
        invalidate: Option<Rkey>,
        /// Requests a solicited event at the receiver.
        solicited: bool,
        data: Data,
    },
    /// SEND on a datagram QP.
    Datagram {
        /// Destination of the datagram.
        to: Destination,
        /// Immediate data in host byte order.
        imm: Option<u32>,
        /// Requests a solicited event at the receiver.
        solicited: bool,
        data: Data,
    },
    /// Binds or unbinds a memory window.
    Bind(Bind),
    /// Registers a region and validates its STag.
    FastRegister(FastRegister),
    /// Invalidates a local STag.
    LocalInvalidate(Lkey),
    Nop,
}

/// Error in a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WqeError {
    /// The opcode is unknown or not supported by the queue.
    #[error("unknown send WQE opcode {0:#x}")]
    Opcode(u8),
    /// The WQE has too many quanta: it crosses a multiple of [`MAX_QUANTA`] or the end of the ring.
    #[error("a WQE of {0} quanta crosses a {MAX_QUANTA}-quantum boundary or the end of the ring")]
    Quanta(usize),
    /// The page list level is reserved.
    #[error("the page list level has the reserved code 2")]
    Level,
}

impl Control {
    /// Returns the control word of a WQE, given its first quantum.
    pub fn of(first: &[u8; QUANTUM]) -> Self {
        first.last_chunk().map(Self::parse).unwrap_or_default()
    }

    /// Returns the total number of quanta in the WQE.
    pub const fn quanta(&self) -> usize {
        match self.opcode {
            opcode::BIND | opcode::FAST_REGISTER | opcode::LOCAL_INVALIDATE | opcode::NOP => 1,
            _ if self.inline => {
                1 + (self.inline_len as usize).saturating_sub(FIRST_INLINE).div_ceil(MORE_INLINE)
            }
            _ => 1 + (self.more_fragments as usize).div_ceil(2),
        }
    }
}

impl Operation {
    /// Parses a WQE from `bytes`, which contain all of its quanta.
    ///
    /// # Errors
    /// Fails if the WQE is invalid; see [`WqeError`].
    pub fn parse(bytes: &[u8], service: Service) -> Result<Self, WqeError> {
        let quanta = bytes.len() / QUANTUM;
        let first = bytes.first_chunk::<QUANTUM>().ok_or(WqeError::Quanta(quanta))?;
        let control = Control::of(first);
        if control.quanta() > quanta.min(MAX_QUANTA) {
            return Err(WqeError::Quanta(control.quanta()));
        }
        let word = |at| word(first, at);
        let imm = control.immediate.then(|| low(word(0)));
        let remote = Remote { va: Va::new(word(16)), key: Rkey::new(control.key) };
        Ok(match (control.opcode, service) {
            (opcode::NOP, _) => Self::Nop,
            (opcode::SEND | opcode::SEND_SOLICITED, Service::Datagram) => Self::Datagram {
                to: Destination {
                    handle: AhIndex::new(control.key),
                    qpn: Qpn::new(high(word(16))),
                    qkey: Qkey::new(low(word(16))),
                },
                imm,
                solicited: control.opcode == opcode::SEND_SOLICITED,
                data: data(&control, bytes),
            },
            (other, Service::Datagram) => return Err(WqeError::Opcode(other)),
            (opcode::WRITE | opcode::WRITE_SOLICITED, _) => Self::Write {
                remote,
                imm,
                solicited: control.opcode == opcode::WRITE_SOLICITED,
                data: data(&control, bytes),
            },
            (opcode::READ | opcode::READ_INVALIDATE, _) if !control.inline => {
                // The first fragment selects the STag to invalidate, even if it is empty.
                let key = Lkey::new(low(word(8)));
                let invalidate = (control.opcode == opcode::READ_INVALIDATE).then_some(key);
                Self::Read { remote, to: fragments(&control, bytes), invalidate }
            }
            (opcode::SEND | opcode::SEND_SOLICITED, _) => Self::Send {
                imm,
                invalidate: None,
                solicited: control.opcode == opcode::SEND_SOLICITED,
                data: data(&control, bytes),
            },
            (opcode::SEND_INVALIDATE | opcode::SEND_SOLICITED_INVALIDATE, _) => Self::Send {
                imm: None,
                invalidate: Some(remote.key),
                solicited: control.opcode == opcode::SEND_SOLICITED_INVALIDATE,
                data: data(&control, bytes),
            },
            (opcode::BIND, _) => {
                let local = local_control(first);
                Self::Bind(Bind {
                    window: Lkey::new(low(word(8))),
                    parent: Lkey::new(high(word(8))),
                    va: Va::new(word(0)),
                    len: word(16) & LEN_MASK,
                    rights: local.rights,
                    virtual_addresses: local.virtual_addresses,
                    type1: local.type1,
                })
            }
            (opcode::FAST_REGISTER, _) => {
                let local = local_control(first);
                // The PBLE index is split. Its high 12 bits are in the address word, and its low 16 bits are in the
                // length word.
                let list = (low(word(8)) & 0xfff) << 16 | high(word(16)) >> 16;
                Self::FastRegister(FastRegister {
                    key: local.key,
                    va: Va::new(word(0)),
                    len: word(16) & FAST_LEN_MASK,
                    pages: match local.level {
                        ListLevel::Contiguous => FastPages::Contiguous(Iova::new(word(8) & !0xfff)),
                        ListLevel::One => FastPages::List(PbleIndex::new(list)),
                        ListLevel::Two => FastPages::Lists(PbleIndex::new(list)),
                        ListLevel::Reserved => return Err(WqeError::Level),
                    },
                    page_size: local.page_size,
                    rights: local.rights,
                    virtual_addresses: local.virtual_addresses,
                })
            }
            (opcode::LOCAL_INVALIDATE, _) => Self::LocalInvalidate(Lkey::new(low(word(8)))),
            (other, _) => return Err(WqeError::Opcode(other)),
        })
    }
}

/// Mask of the length field of a bind.
const LEN_MASK: u64 = (1 << 46) - 1;
/// Mask of the length field of a fast registration.
const FAST_LEN_MASK: u64 = (1 << 41) - 1;

fn local_control(first: &[u8; QUANTUM]) -> LocalControl {
    first.last_chunk().map(LocalControl::parse).unwrap_or_default()
}

fn data(control: &Control, bytes: &[u8]) -> Data {
    if control.inline {
        Data::Inline(inline(control, bytes))
    } else {
        Data::Fragments(fragments(control, bytes))
    }
}

/// Returns the inline data: up to 8 bytes from the first quantum, then up to 31 bytes from each later quantum.
fn inline(control: &Control, bytes: &[u8]) -> SmallVec<[u8; 64]> {
    let (first, rest) = bytes.split_at_checked(SECOND).unwrap_or((bytes, &[]));
    let of_first = first.iter().skip(8).take(FIRST_INLINE);
    let of_rest = rest.chunks(QUANTUM).flat_map(|quantum| quantum.iter().take(MORE_INLINE));
    of_first.chain(of_rest).take(control.inline_len.into()).copied().collect()
}

/// Returns the fragments with a nonzero length. Immediate data replaces the first fragment.
fn fragments(control: &Control, bytes: &[u8]) -> Fragments {
    let first = bytes.first_chunk().filter(|_| !control.immediate).map(Fragment::parse);
    let rest = bytes.get(SECOND..).unwrap_or_default();
    let more = rest.as_chunks().0.iter().map(Fragment::parse).take(control.more_fragments.into());
    first.into_iter().chain(more).filter(|fragment| fragment.len != 0).collect()
}

fn word(quantum: &[u8; QUANTUM], at: usize) -> u64 {
    quantum.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[allow(clippy::cast_possible_truncation, reason = "only the lower half is needed")]
const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    low(word >> 32)
}

#[cfg(test)]
mod tests;
