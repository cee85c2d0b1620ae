//! Operations of send WQEs, independent of the WQE format.

use crate::describe::describe;
use crate::hca::opcode::WqeOpcode;
use crate::ids::{Rkey, Va};
use crate::roce::Imm;

/// Remote memory that an RDMA or atomic operation accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Virtual address of the first byte.
    pub va: Va,
    /// R_Key of the remote region.
    pub rkey: Rkey,
}

describe!(RemoteAddress { va, rkey });

/// Operation of a send WQE. `To` is the type of a datagram's destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation<To> {
    Nop,
    /// SEND on a connected QP.
    Send {
        /// Immediate data, in wire byte order.
        imm: Option<Imm>,
    },
    /// SEND of a datagram.
    Datagram {
        /// Immediate data, in wire byte order.
        imm: Option<Imm>,
        /// Address of the destination QP.
        to: To,
    },
    Write {
        /// Remote memory to write.
        remote: RemoteAddress,
        /// Immediate data, in wire byte order.
        imm: Option<Imm>,
    },
    /// RDMA READ. The received data is written to the data segments.
    Read {
        /// Remote memory to read.
        remote: RemoteAddress,
    },
    /// Compare and swap. The original value is written to the data segment.
    CompareSwap {
        /// Location of the remote 64-bit word.
        remote: RemoteAddress,
        /// Value to compare with the word.
        compare: u64,
        /// Value that replaces the word.
        swap: u64,
    },
    /// Fetch and add. The original value is written to the data segment.
    FetchAdd {
        /// Location of the remote 64-bit word.
        remote: RemoteAddress,
        /// Value to add to the word.
        add: u64,
    },
}

impl<To> Operation<To> {
    /// Returns the opcode that identifies the operation in doorbells and in links between WQEs.
    pub const fn opcode(&self) -> WqeOpcode {
        match self {
            Self::Nop => WqeOpcode::Nop,
            Self::Send { imm: None } | Self::Datagram { imm: None, .. } => WqeOpcode::Send,
            Self::Send { imm: Some(_) } | Self::Datagram { imm: Some(_), .. } => WqeOpcode::SendImm,
            Self::Write { imm: None, .. } => WqeOpcode::Write,
            Self::Write { imm: Some(_), .. } => WqeOpcode::WriteImm,
            Self::Read { .. } => WqeOpcode::Read,
            Self::CompareSwap { .. } => WqeOpcode::CompareSwap,
            Self::FetchAdd { .. } => WqeOpcode::FetchAdd,
        }
    }
}
