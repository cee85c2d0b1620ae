//! Transmit scheduler: commands 0400 to 0415, and 0A08, which enables traffic classes.
//!
//! # Spec
//! E810 interface, sections 5.2 and 5.5.

use protocol::hca::e810::admin::lldp;
use protocol::hca::e810::admin::scheduler::{ListParameters, PortEtsParameters, TopologyParameters};
use protocol::hca::e810::admin::{AdminError, Opcode};

use super::Command;
use crate::scheduler::Scheduler;

/// Executes a scheduler command. Returns `None` for other commands.
pub(crate) fn dispatch(
    scheduler: &mut Scheduler,
    opcode: Opcode,
    command: &mut Command,
) -> Option<Result<(), AdminError>> {
    Some(match opcode {
        Opcode::QuerySchedulerResources => command.fill(Scheduler::resources),
        Opcode::GetDefaultTopology => {
            command.answer(TopologyParameters { branches: 1 }.emit());
            command.fill(|buffer| scheduler.default_topology(buffer))
        }
        Opcode::QueryPortEts => {
            let PortEtsParameters { port } = command.parameters(PortEtsParameters::parse);
            command.fill(|buffer| scheduler.port_ets(port, buffer))
        }
        // Linux adds a branch below the element of each class. Frames are not scheduled by class.
        Opcode::SetLldpMib => lldp::traffic_classes(command.buffer())
            .map_or(Ok(()), |classes| scheduler.enable_classes(classes)),
        Opcode::AddElements => list(command, |count, buffer| scheduler.add(count, buffer)),
        Opcode::GetElements => list(command, |count, buffer| scheduler.get(count, buffer)),
        Opcode::ConfigureElements => list(command, |count, buffer| scheduler.configure(count, buffer)),
        Opcode::MoveElements => list(command, |count, buffer| scheduler.relocate(count, buffer)),
        Opcode::SuspendElements => {
            list(command, |count, buffer| scheduler.set_suspended(true, count, buffer))
        }
        Opcode::ResumeElements => {
            list(command, |count, buffer| scheduler.set_suspended(false, count, buffer))
        }
        Opcode::DeleteElements => list(command, |count, buffer| scheduler.delete(count, buffer)),
        Opcode::AddRateProfiles => list(command, |count, buffer| scheduler.add_profiles(count, buffer)),
        Opcode::RemoveRateProfiles => list(command, |count, buffer| scheduler.remove_profiles(count, buffer)),
        _ => return None,
    })
}

/// Executes a command whose buffer contains a list. Responds with the number of list entries processed.
fn list(
    command: &mut Command,
    process: impl FnOnce(u16, &mut [u8]) -> Result<u16, AdminError>,
) -> Result<(), AdminError> {
    let parameters = command.parameters(ListParameters::parse);
    let processed = process(parameters.count, command.buffer_mut())?;
    command.answer(ListParameters { processed, ..parameters }.emit());
    Ok(())
}
