//! Segments of which WQEs consist.

use smallvec::SmallVec;

use super::Opcode;
use crate::describe::{Describe, Field as _, Visitor};
use crate::hca::mlx5::code::codes;
use crate::ids::{FlowLabel, Lid, Lkey, MacAddr, Qkey, Qpn, Rkey, Srqn, Va};
use crate::layout;

codes! {
    /// Earlier requests for which a WQE waits. This device treats every fence as [`Fence::Both`].
    pub enum Fence(u8) {
        /// Waits for no earlier request.
        None = 0 "none",
        /// Waits for earlier UMR requests.
        Small = 1 "small",
        /// Waits for earlier READs and atomics.
        Fence = 2 "fence",
        /// Waits for all earlier WQEs.
        StrongOrdering = 3 "strong_ordering",
        /// Waits for earlier UMRs, READs and atomics.
        Both = 4 "small_and_fence",
    }
}

layout! {
    /// Control segment, the first of every send WQE.
    pub struct ControlSegment[16] big_endian {
        /// Variant of the opcode.
        @0x00[31:24]  op_mod: u8,
        /// Number of the WQE's first block, modulo 2^16.
        @0x00[23:8]   index: u16,
        /// A value of [`Opcode`].
        @0x00[7:0]    opcode: u8 => Opcode::word,
        @0x04[31:8]   qpn: Qpn,
        /// Size of the WQE in units of 16 bytes.
        @0x04[5:0]    size: u8,
        /// Signature of the entry. Not used.
        @0x08[31:24]  signature: u8,
        /// A value of [`Fence`].
        @0x08[7:5]    fence: u8 => Fence::word,
        /// Condition for writing a CQE: 0 only on error, 1 on the first error, 2 always, 3 always with event.
        @0x08[3:2]    completion: u8,
        /// The peer's completion is solicited.
        @0x08[1]      solicited: bool,
        /// Immediate data, key to invalidate, or key that a UMR changes.
        @0x0c         immediate: [u8; 4],
    }
}

impl ControlSegment {
    /// Returns whether the device writes a CQE on success.
    pub const fn is_signaled(&self) -> bool {
        self.completion & 2 != 0
    }

    /// Returns whether the WQE waits for earlier ones.
    pub const fn is_fenced(&self) -> bool {
        self.fence != 0
    }

    /// Returns the immediate word as a key.
    pub const fn key(&self) -> u32 {
        u32::from_be_bytes(self.immediate)
    }
}

layout! {
    /// The segment with the destination XRC SRQ.
    pub struct XrcSegment[16] big_endian {
        /// SRQ of the peer.
        @0x00[23:0]  srqn: Srqn,
    }
}

layout! {
    /// The segment with the remote address.
    pub struct RemoteSegment[16] big_endian {
        /// First byte of the peer's memory.
        @0x00  va: Va,
        @0x08  rkey: Rkey,
    }
}

layout! {
    /// The segment with the operands of an atomic.
    pub struct AtomicSegment[16] big_endian {
        /// Value to add or to store.
        @0x00  swap_or_add: u64 => Hex,
        /// Value that the word must have for the swap.
        @0x08  compare: u64 => Hex,
    }
}

layout! {
    /// Datagram segment. The Ethernet fields are not used by InfiniBand ports.
    pub struct DatagramSegment[48] big_endian {
        /// Q_Key. If bit 31 is set, the Q_Key of the sending QP is used.
        @0x00         qkey: Qkey,
        /// The segment has 48 bytes, otherwise 16.
        @0x08[31]     long: bool,
        /// QP number of the receiver.
        @0x08[23:0]   qpn: Qpn,
        /// Code of the static rate.
        @0x0c[31:28]  static_rate: u8,
        @0x0c[27:24]  service_level: u8,
        /// Packets to the device's own port do not leave the device.
        @0x0c[23]     force_loopback: bool,
        /// Low bits of the source LID.
        @0x0c[22:16]  path_bits: u8,
        /// LID of the receiver; Ethernet: UDP source port.
        @0x0c[15:0]   lid: Lid,
        /// On Ethernet: MAC address of the destination.
        @0x14         mac: MacAddr,
        /// Traffic class of the GRH.
        @0x18[15:8]   traffic_class: u8,
        /// Hop limit of the GRH.
        @0x18[7:0]    hop_limit: u8,
        /// The packet has a GRH.
        @0x1c[30]     grh: bool,
        /// Index of the source GID.
        @0x1c[27:20]  gid_index: u8,
        /// Flow label of the GRH.
        @0x1c[19:0]   flow_label: FlowLabel,
        @0x20         gid: [u8; 16],
    }
}

impl DatagramSegment {
    /// Length in bytes of the short form.
    pub const SHORT_LEN: usize = 16;

    /// Q_Key of the datagram, given the Q_Key of the QP.
    pub const fn effective_qkey(&self, of_qp: Qkey) -> Qkey {
        if self.qkey.get() >> 31 != 0 { of_qp } else { self.qkey }
    }
}

layout! {
    /// Data segment: one entry of a gather or scatter list.
    pub struct DataSegment[16] big_endian {
        /// Length in bytes. 0 is an empty entry.
        @0x00[30:0]  byte_count: u32,
        @0x04        lkey: Lkey,
        @0x08        va: Va,
    }
}

/// A part of the data of a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataItem<'a> {
    /// Memory that a key refers to.
    Pointer(DataSegment),
    /// Bytes in the WQE.
    Inline(&'a [u8]),
}

/// Data of a send WQE. Up to four parts need no allocation.
pub type DataItems<'a> = SmallVec<[DataItem<'a>; 4]>;

impl DataItem<'_> {
    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Pointer(segment) => segment.byte_count as usize,
            Self::Inline(bytes) => bytes.len(),
        }
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Describe for DataItem<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        match self {
            Self::Pointer(segment) => segment.describe(to),
            Self::Inline(bytes) => bytes.len().show("inline", to),
        }
    }
}
