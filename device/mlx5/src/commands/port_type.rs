//! Rejects commands that do not apply to the port's type, InfiniBand or Ethernet.
//!
//! # Spec
//! mlx5 interface, sections 5.4 to 5.6.

use protocol::hca::mlx5::opcode::Opcode;

use super::Call;
use crate::check::{Check, Rejection};
use crate::options::Port;
use crate::port::{EthernetPort, PortState};

/// Returns the port type that a command requires, or `None` if the command applies to both types.
const fn required(opcode: Opcode) -> Option<Port> {
    use Opcode as Op;
    match opcode {
        Op::MadIfc | Op::QueryHcaVportContext | Op::ModifyHcaVportContext | Op::QueryHcaVportGid => {
            Some(Port::InfiniBand)
        }
        Op::QueryVportState
        | Op::ModifyVportState
        | Op::QueryNicVportContext
        | Op::ModifyNicVportContext
        | Op::QueryRoceAddress
        | Op::SetRoceAddress
        | Op::QueryHcaVportPkey
        | Op::CreateTir
        | Op::ModifyTir
        | Op::DestroyTir
        | Op::QueryTir
        | Op::CreateSq
        | Op::ModifySq
        | Op::DestroySq
        | Op::QuerySq
        | Op::CreateRq
        | Op::ModifyRq
        | Op::DestroyRq
        | Op::QueryRq
        | Op::CreateTis
        | Op::ModifyTis
        | Op::DestroyTis
        | Op::QueryTis
        | Op::CreateRqt
        | Op::ModifyRqt
        | Op::DestroyRqt
        | Op::QueryRqt
        | Op::SetFlowTableRoot
        | Op::CreateFlowTable
        | Op::DestroyFlowTable
        | Op::QueryFlowTable
        | Op::ModifyFlowTable
        | Op::CreateFlowGroup
        | Op::DestroyFlowGroup
        | Op::QueryFlowGroup
        | Op::SetFlowTableEntry
        | Op::QueryFlowTableEntry
        | Op::DeleteFlowTableEntry
        | Op::AllocFlowCounter
        | Op::DeallocFlowCounter
        | Op::QueryFlowCounter => Some(Port::Ethernet),
        _ => None,
    }
}

impl Call<'_, '_> {
    fn wrong_port(&self) -> Rejection {
        Check::PortType.rejects(self.opcode.code())
    }

    /// Rejects the command if it does not apply to the port's type.
    pub(super) fn check_port(&self) -> Result<(), Rejection> {
        match (required(self.opcode), &self.resources.port) {
            (Some(Port::InfiniBand), PortState::Ethernet(_))
            | (Some(Port::Ethernet), PortState::InfiniBand) => Err(self.wrong_port()),
            _ => Ok(()),
        }
    }

    /// Returns the Ethernet port.
    ///
    /// # Errors
    /// Fails if the port is an InfiniBand port.
    pub(super) fn ethernet(&mut self) -> Result<&mut EthernetPort, Rejection> {
        let wrong_port = self.wrong_port();
        self.resources.port.ethernet_mut().ok_or(wrong_port)
    }
}
