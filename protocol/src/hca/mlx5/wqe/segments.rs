//! Segments that make up a WQE.

use smallvec::SmallVec;

use super::Opcode;
use crate::describe::{Describe, Field as _, Visitor};
use crate::hca::mlx5::code::codes;
use crate::ids::{FlowLabel, Lid, Lkey, MacAddr, Qkey, Qpn, Rkey, Srqn, Va};
use crate::layout;

codes! {
    /// Fence mode: which earlier requests a WQE waits for.
    pub enum Fence(u8) {
        /// The WQE does not wait for earlier requests.
        None = 0 "none",
        /// The WQE waits for earlier UMRs.
        Small = 1 "small",
        /// The WQE waits for earlier READs and atomics.
        Fence = 2 "fence",
        /// The WQE waits for all earlier WQEs.
        StrongOrdering = 3 "strong_ordering",
        /// The WQE waits for earlier UMRs, READs and atomics.
        Both = 4 "small_and_fence",
    }
}

layout! {
    /// Control segment, the first segment of every send WQE.
    pub struct ControlSegment[16] big_endian {
        /// Variant of the operation; its meaning depends on the opcode.
        @0x00[31:24]  op_mod: u8,
        /// Index of the WQE's first block, modulo 2^16.
        @0x00[23:8]   index: u16,
        /// A value of [`Opcode`].
        @0x00[7:0]    opcode: u8 => Opcode::word,
        @0x04[31:8]   qpn: Qpn,
        /// Size of the WQE in units of 16 bytes.
        @0x04[5:0]    size: u8,
        /// Signature of the WQE. Not used.
        @0x08[31:24]  signature: u8,
        /// A value of [`Fence`].
        @0x08[7:5]    fence: u8 => Fence::word,
        /// When to write a CQE: 0 only on error, 1 only on the first error, 2 always, 3 always and with an event.
        @0x08[3:2]    completion: u8,
        /// Whether the peer's completion raises a solicited event.
        @0x08[1]      solicited: bool,
        /// Immediate data, the key to invalidate, or the key that a UMR changes.
        @0x0c         immediate: [u8; 4],
    }
}

impl ControlSegment {
    /// Returns whether the device writes a CQE on success.
    pub const fn is_signaled(&self) -> bool {
        self.completion & 2 != 0
    }

    /// Returns whether the WQE waits for earlier WQEs.
    pub const fn is_fenced(&self) -> bool {
        self.fence != 0
    }

    /// Returns the immediate field as a key.
    pub const fn key(&self) -> u32 {
        u32::from_be_bytes(self.immediate)
    }
}

layout! {
    /// XRC segment: the destination SRQ.
    pub struct XrcSegment[16] big_endian {
        /// SRQ number of the peer's XRC SRQ.
        @0x00[23:0]  srqn: Srqn,
    }
}

layout! {
    /// Remote address segment of an RDMA or atomic operation.
    pub struct RemoteSegment[16] big_endian {
        /// Address of the first byte in the peer's memory.
        @0x00  va: Va,
        @0x08  rkey: Rkey,
    }
}

layout! {
    /// Atomic segment: the operands.
    pub struct AtomicSegment[16] big_endian {
        /// Value to add, or the new value for a compare and swap.
        @0x00  swap_or_add: u64 => Hex,
        /// Value to compare with the remote word.
        @0x08  compare: u64 => Hex,
    }
}

layout! {
    /// Datagram segment. InfiniBand ports do not use the Ethernet fields.
    pub struct DatagramSegment[48] big_endian {
        /// Q_Key of the receiver. If bit 31 is set, the Q_Key of the sending QP is used instead.
        @0x00         qkey: Qkey,
        /// Whether the segment is 48 bytes long instead of 16.
        @0x08[31]     long: bool,
        /// QP number of the receiver.
        @0x08[23:0]   qpn: Qpn,
        /// Static rate, IBTA encoding.
        @0x0c[31:28]  static_rate: u8,
        @0x0c[27:24]  service_level: u8,
        /// Whether packets to the local port are looped back inside the device.
        @0x0c[23]     force_loopback: bool,
        /// Low bits of the source LID.
        @0x0c[22:16]  path_bits: u8,
        /// LID of the receiver. On Ethernet: the UDP source port.
        @0x0c[15:0]   lid: Lid,
        /// On Ethernet: destination MAC address.
        @0x14         mac: MacAddr,
        /// Traffic class of the GRH.
        @0x18[15:8]   traffic_class: u8,
        /// Hop limit of the GRH.
        @0x18[7:0]    hop_limit: u8,
        /// Whether the packet has a GRH.
        @0x1c[30]     grh: bool,
        /// Index of the source GID.
        @0x1c[27:20]  gid_index: u8,
        /// Flow label of the GRH.
        @0x1c[19:0]   flow_label: FlowLabel,
        @0x20         gid: [u8; 16],
    }
}

impl DatagramSegment {
    /// Length in bytes of the short segment.
    pub const SHORT_LEN: usize = 16;

    /// Returns the Q_Key to send in the datagram. `qp_qkey` is the Q_Key of the sending QP.
    pub const fn effective_qkey(&self, qp_qkey: Qkey) -> Qkey {
        if self.qkey.get() >> 31 != 0 { qp_qkey } else { self.qkey }
    }
}

layout! {
    /// Data segment: one entry in a gather or scatter list.
    pub struct DataSegment[16] big_endian {
        /// Length in bytes, 31 bits; 0 for an empty entry.
        @0x00[30:0]  byte_count: u32,
        @0x04        lkey: Lkey,
        @0x08        va: Va,
    }
}

/// A data segment or an inline segment in a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataItem<'a> {
    /// Data in memory, accessed with the segment's key.
    Pointer(DataSegment),
    /// Bytes in the WQE itself.
    Inline(&'a [u8]),
}

/// Data of a send WQE. Up to four items are stored without allocation.
pub type DataItems<'a> = SmallVec<[DataItem<'a>; 4]>;

impl DataItem<'_> {
    /// Returns the length of the data in bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Pointer(segment) => segment.byte_count as usize,
            Self::Inline(bytes) => bytes.len(),
        }
    }

    /// Returns whether the length is zero.
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
