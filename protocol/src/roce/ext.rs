//! Extended transport headers, one type each, and [`Ext`]: the set an opcode carries.

use crate::ids::{Msn, Qkey, Qpn, Rkey, Va};

/// Immediate data: four bytes that travel verbatim, never swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Imm(pub [u8; 4]);

/// RDMA extended transport header, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// First remote address.
    pub va: Va,
    /// Key of the remote region.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub dma_len: u32,
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of the 64-bit word.
    pub va: Va,
    /// Key of the remote region.
    pub rkey: Rkey,
    /// Value to store (CMP_SWAP) or to add (FETCH_ADD).
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key of the sender.
    pub qkey: Qkey,
    /// QP of the sender.
    pub src_qp: Qpn,
}

/// Negative acknowledgement codes, AETH syndrome 011xxxxx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// 0
    PsnSequence,
    /// 1
    InvalidRequest,
    /// 2
    RemoteAccess,
    /// 3
    RemoteOperational,
    /// 4
    InvalidRdRequest,
    /// Reserved codes, kept as they came.
    Reserved(u8),
}

/// What an AETH says.
///
/// # Spec
/// IBTA volume 1, section 9.7.5.1 (tables 43 to 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Positive; the encoded credit count, 31 means that flow control is not in use.
    Ack {
        /// Encoded credit count, five bits.
        credits: u8,
    },
    /// Receiver not ready; the timer code, five bits.
    RnrNak {
        /// Timer code of the IBTA table.
        timer: u8,
    },
    /// Negative.
    Nak(NakCode),
    /// Reserved classes, the whole byte.
    Reserved(u8),
}

/// ACK extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Meaning.
    pub syndrome: Syndrome,
    /// Messages the responder has completed.
    pub msn: Msn,
}

/// The extension headers of a packet. Which variant it is follows from the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// None.
    None,
    /// ImmDt.
    Imm(Imm),
    /// RETH.
    Reth(Reth),
    /// RETH and ImmDt.
    RethImm(Reth, Imm),
    /// AETH.
    Aeth(Aeth),
    /// AETH and AtomicAckETH (the original value).
    AtomicAck(Aeth, u64),
    /// AtomicETH.
    Atomic(AtomicEth),
    /// DETH.
    Deth(Deth),
    /// DETH and ImmDt.
    DethImm(Deth, Imm),
    /// IETH: the key to invalidate.
    Invalidate(Rkey),
}
