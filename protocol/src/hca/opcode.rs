//! Opcodes of send WQEs, common to the HCR interfaces.

use super::qp::ServiceType;
use crate::describe::Code;

/// Opcode of a send WQE.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WqeOpcode {
    Nop,
    Write,
    WriteImm,
    Send,
    SendImm,
    Read,
    CompareSwap,
    FetchAdd,
}

impl WqeOpcode {
    /// Decodes an opcode. Returns `None` if it is not supported.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Nop,
            0x08 => Self::Write,
            0x09 => Self::WriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x10 => Self::Read,
            0x11 => Self::CompareSwap,
            0x12 => Self::FetchAdd,
            _ => return None,
        })
    }

    /// Returns the code used in WQEs, doorbells and CQEs.
    pub const fn code(self) -> u8 {
        match self {
            Self::Nop => 0x00,
            Self::Write => 0x08,
            Self::WriteImm => 0x09,
            Self::Send => 0x0a,
            Self::SendImm => 0x0b,
            Self::Read => 0x10,
            Self::CompareSwap => 0x11,
            Self::FetchAdd => 0x12,
        }
    }

    /// Returns the name that appears in traces and in the drivers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nop => "NOP",
            Self::Write => "RDMA_WRITE",
            Self::WriteImm => "RDMA_WRITE_IMM",
            Self::Send => "SEND",
            Self::SendImm => "SEND_IMM",
            Self::Read => "RDMA_READ",
            Self::CompareSwap => "ATOMIC_CS",
            Self::FetchAdd => "ATOMIC_FA",
        }
    }

    /// Returns the opcode together with its name, for traces.
    pub fn word(code: u8) -> Code {
        Code(code.into(), Self::from_code(code).map(Self::name))
    }

    /// Returns whether WQEs with the opcode carry immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Returns whether the operation is atomic. Atomics modify remote memory and return the original value.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether QPs with service type `service` support the operation.
    pub const fn supported(self, service: ServiceType) -> bool {
        match service {
            ServiceType::Rc => true,
            ServiceType::Uc => !matches!(self, Self::Read) && !self.is_atomic(),
            ServiceType::Ud => matches!(self, Self::Nop | Self::Send | Self::SendImm),
        }
    }
}
