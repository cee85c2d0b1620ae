//! Opcodes of send WQEs.

use crate::hca::mlx5::code::codes;
use crate::hca::mlx5::qp::Service;

codes! {
    /// Opcode of a send WQE. Covers only operations that this device executes.
    #[allow(missing_docs)]
    pub enum Opcode(u8) {
        Nop = 0x00 "NOP",
        SendInvalidate = 0x01 "SEND_INVAL",
        Write = 0x08 "RDMA_WRITE",
        WriteImm = 0x09 "RDMA_WRITE_IMM",
        Send = 0x0a "SEND",
        SendImm = 0x0b "SEND_IMM",
        Lso = 0x0e "LSO",
        Read = 0x10 "RDMA_READ",
        CompareSwap = 0x11 "ATOMIC_CS",
        FetchAdd = 0x12 "ATOMIC_FA",
        Umr = 0x25 "UMR",
    }
}

impl Opcode {
    /// Returns whether QPs with the given service can execute the operation.
    pub const fn supported(self, service: Service) -> bool {
        match self {
            Self::Nop => true,
            Self::Umr => !matches!(service, Service::Dci | Service::Dct | Service::Raw),
            Self::Send | Self::SendImm => {
                matches!(service, Service::Rc | Service::Uc | Service::Xrc) || service.is_datagram()
            }
            // Only SQs segment frames; see `FrameWqe`.
            Self::Lso => false,
            Self::Write | Self::WriteImm => matches!(service, Service::Rc | Service::Uc | Service::Xrc),
            Self::SendInvalidate | Self::Read | Self::CompareSwap | Self::FetchAdd => service.is_reliable(),
        }
    }

    /// Returns whether the operation is atomic. Atomics modify remote memory and return the original value.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether the data segments form a scatter list that the device writes to.
    pub const fn scatters(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }
}
