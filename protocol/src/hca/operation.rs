//! What a send WQE asks for, whatever its bytes look like.

use crate::describe::describe;
use crate::hca::opcode::WqeOpcode;
use crate::ids::{Rkey, Va};
use crate::roce::Imm;

/// Target of an RDMA or atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// First address in the peer's region.
    pub va: Va,
    /// Key of the region.
    pub rkey: Rkey,
}

describe!(RemoteAddress { va, rkey });

/// What a send WQE asks for. `To` is how the interface names the destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<To> {
    /// Nothing.
    Nop,
    /// SEND on a connected QP.
    Send {
        /// Immediate data.
        imm: Option<Imm>,
    },
    /// SEND of a datagram.
    Datagram {
        /// Immediate data.
        imm: Option<Imm>,
        /// Destination.
        to: To,
    },
    /// RDMA WRITE.
    Write {
        /// Target.
        remote: RemoteAddress,
        /// Immediate data.
        imm: Option<Imm>,
    },
    /// RDMA READ; the data list is the scatter list.
    Read {
        /// Source.
        remote: RemoteAddress,
    },
    /// Compare and swap; the data list takes the original value.
    CompareSwap {
        /// Target.
        remote: RemoteAddress,
        /// Value that must be there.
        compare: u64,
        /// Value to store then.
        swap: u64,
    },
    /// Fetch and add; the data list takes the original value.
    FetchAdd {
        /// Target.
        remote: RemoteAddress,
        /// Value to add.
        add: u64,
    },
}

impl<To> Operation<To> {
    /// The opcode that goes with it in a doorbell or link.
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
