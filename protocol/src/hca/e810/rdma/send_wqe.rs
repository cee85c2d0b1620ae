//! Work requests of a send queue: one to eight quanta of 32 bytes.
//!
//! A WQE begins with a control word, bytes 24 to 32 of its first quantum, which says what the other bytes are and how many
//! quanta there are. The highest bit of every quantum's last byte is its polarity.
//!
//! # Spec
//! E810 interface, section 13.4.

use smallvec::SmallVec;

use super::fragment::Fragment;
use super::index::{AhIndex, PbleIndex};
use super::page_list::ListLevel;
use crate::ids::{Iova, Lkey, Qkey, Qpn, Rkey, Va};
use crate::layout;

/// Bytes of a quantum.
pub const QUANTUM: usize = 32;
/// Quanta of the longest WQE. None crosses a multiple of as many.
pub const MAX_QUANTA: usize = 8;
/// Bytes of the longest WQE.
pub const MAX_LEN: usize = QUANTUM * MAX_QUANTA;

/// Where the control word is in its quantum.
pub const CONTROL_OFFSET: usize = 24;
/// Where the second quantum begins.
const SECOND: usize = QUANTUM;
/// Inline bytes in the first quantum, and where they are.
const FIRST_INLINE: usize = 8;
/// Inline bytes in each further quantum; its last byte has the polarity.
const MORE_INLINE: usize = QUANTUM - 1;

layout! {
    /// The control word of every WQE.
    pub struct Control[8] {
        /// STag of the peer, or the address handle of a datagram.
        [31:0]   key: u32 => Hex,
        /// What to do.
        [37:32]  opcode: u8,
        /// Fragments behind the first.
        [41:38]  more_fragments: u8,
        /// There is immediate data. Of a fast registration it is a part of the page size.
        [47]     immediate: bool,
        /// Bytes that are in the WQE itself. Of local operations these bits are rights and kind.
        [55:48]  inline_len: u8,
        /// The data are in the WQE itself.
        [57]     inline: bool,
        /// Waits for earlier READs.
        [60]     read_fence: bool,
        /// Waits for everything before.
        [61]     local_fence: bool,
        /// Software wants a completion.
        [62]     signaled: bool,
        /// Polarity.
        [63]     valid: bool,
    }
}

layout! {
    /// The control word of a local operation.
    pub struct LocalControl[8] {
        /// STag that a fast registration makes valid.
        [31:0]   key: Lkey,
        /// Levels of the page list.
        [45:44]  level: ListLevel as u8,
        /// Code of the page size: 4 KiB, 2 MiB, 1 GiB.
        [47:46]  page_size: u8,
        /// Rights of the region or window.
        [52:48]  rights: u8 => Hex,
        /// Addresses in requests are virtual ones, else they count from the first byte.
        [53]     virtual_addresses: bool,
        /// The window belongs to its protection domain, not to this QP.
        [54]     type1: bool,
    }
}

/// What `opcode` of the control word means.
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

    /// The word for an operation.
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

/// Whether a queue's sends name their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Connection,
    /// Datagrams.
    Datagram,
}

/// First byte at the peer, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First byte.
    pub va: Va,
    /// STag.
    pub key: Rkey,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address handle.
    pub handle: AhIndex,
    /// QP.
    pub qpn: Qpn,
    /// Queue key. With bit 31 set the context's is meant.
    pub qkey: Qkey,
}

/// Bytes to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In memory.
    Fragments(Fragments),
    /// In the WQE itself.
    Inline(SmallVec<[u8; 64]>),
}

/// A gather or scatter list; empty pieces are left out.
pub type Fragments = SmallVec<[Fragment; 4]>;

/// A memory window and what it is to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window.
    pub window: Lkey,
    /// The region that it opens a part of.
    pub parent: Lkey,
    /// First byte.
    pub va: Va,
    /// Bytes; none closes the window.
    pub len: u64,
    /// What it permits, as in commands that register a region.
    pub rights: u8,
    /// Addresses in requests are virtual ones, else they count from the first byte.
    pub virtual_addresses: bool,
    /// The window belongs to its protection domain, not to this QP.
    pub type1: bool,
}

/// A region that becomes valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The region.
    pub key: Lkey,
    /// First byte.
    pub va: Va,
    /// Bytes.
    pub len: u64,
    /// Where its pages are.
    pub pages: FastPages,
    /// Code of the page size: 4 KiB, 2 MiB, 1 GiB.
    pub page_size: u8,
    /// What it permits, as in commands that register a region.
    pub rights: u8,
    /// Addresses in requests are virtual ones, else they count from the first byte.
    pub virtual_addresses: bool,
}

/// Where the pages of a fast registration are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPages {
    /// Level 0: one after the other.
    Contiguous(Iova),
    /// Level 1: listed from this entry on.
    List(PbleIndex),
    /// Level 3: in lists that are listed from this entry on.
    Lists(PbleIndex),
}

/// What a WQE asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA WRITE.
    Write {
        /// Target.
        remote: Remote,
        /// Immediate data, a number.
        imm: Option<u32>,
        /// The peer is to be woken.
        solicited: bool,
        /// What is written.
        data: Data,
    },
    /// RDMA READ.
    Read {
        /// Source.
        remote: Remote,
        /// Where the data go.
        to: Fragments,
        /// Region that becomes invalid behind it: that of the first fragment.
        invalidate: Option<Lkey>,
    },
    /// SEND.
    Send {
        /// Immediate data, a number.
        imm: Option<u32>,
        /// Region of the peer that becomes invalid.
        invalidate: Option<Rkey>,
        /// The peer is to be woken.
        solicited: bool,
        /// What is sent.
        data: Data,
    },
    /// SEND of a queue of datagrams.
    Datagram {
        /// Where it goes.
        to: Destination,
        /// Immediate data, a number.
        imm: Option<u32>,
        /// The peer is to be woken.
        solicited: bool,
        /// What is sent.
        data: Data,
    },
    /// Opens or closes a memory window.
    Bind(Bind),
    /// Makes a region valid.
    FastRegister(FastRegister),
    /// Makes a region invalid.
    LocalInvalidate(Lkey),
    /// Nothing.
    Nop,
}

/// A WQE that no QP of its kind can execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WqeError {
    /// No such operation, or not of such a queue.
    #[error("unknown operation {0:#x}")]
    Opcode(u8),
    /// More quanta than a WQE can have, or than there are before the next multiple of that.
    #[error("send WQE of {0} quanta does not fit in an aligned block of {MAX_QUANTA} quanta")]
    Quanta(usize),
    /// A page list that there is not.
    #[error("two-level page lists are not supported")]
    Level,
}

impl Control {
    /// The control word of a WQE, in its first quantum.
    pub fn of(first: &[u8; QUANTUM]) -> Self {
        first.last_chunk().map(Self::parse).unwrap_or_default()
    }

    /// Quanta of the WQE, the first included.
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
    /// The meaning of a WQE, of which `bytes` are all quanta.
    ///
    /// # Errors
    /// [`WqeError`].
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
                // Which one is invalidated is said by the first fragment even if that is empty.
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
                // The highest 12 bits of the index are beside the address, the lowest 16 beside the length.
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

/// Bits of a length.
const LEN_MASK: u64 = (1 << 46) - 1;
/// Bits of the length of a fast registration.
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

/// Inline bytes: 8 of the first quantum, whatever is in front of them, and 31 of each further one.
fn inline(control: &Control, bytes: &[u8]) -> SmallVec<[u8; 64]> {
    let (first, rest) = bytes.split_at_checked(SECOND).unwrap_or((bytes, &[]));
    let of_first = first.iter().skip(8).take(FIRST_INLINE);
    let of_rest = rest.chunks(QUANTUM).flat_map(|quantum| quantum.iter().take(MORE_INLINE));
    of_first.chain(of_rest).take(control.inline_len.into()).copied().collect()
}

/// All fragments that have bytes. Immediate data takes the place of the first.
fn fragments(control: &Control, bytes: &[u8]) -> Fragments {
    let first = bytes.first_chunk().filter(|_| !control.immediate).map(Fragment::parse);
    let rest = bytes.get(SECOND..).unwrap_or_default();
    let more = rest.as_chunks().0.iter().map(Fragment::parse).take(control.more_fragments.into());
    first.into_iter().chain(more).filter(|fragment| fragment.len != 0).collect()
}

fn word(quantum: &[u8; QUANTUM], at: usize) -> u64 {
    quantum.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    low(word >> 32)
}

#[cfg(test)]
mod tests;
