//! Switch, resources, VSIs and RSS: commands 0200 to 02A2 and 0B02 to 0B05.
//!
//! # Spec
//! E810 interface, sections 5.4 and 5.7 to 5.9.

use protocol::hca::e810::admin::resource::AllocatedResources;
use protocol::hca::e810::admin::rss::{KeyParameters, TableParameters};
use protocol::hca::e810::admin::scheduler::ListParameters;
use protocol::hca::e810::admin::switch::{SwitchElement, SwitchParameters};
use protocol::hca::e810::admin::vsi::VsiParameters;
use protocol::hca::e810::admin::{AdminError, Opcode};

use super::Command;
use crate::pf_config::PfConfig;
use crate::switch::{RuleCommand, Switch};

/// Executes a switch command. Returns `None` for other commands.
pub(crate) fn dispatch(
    pf_config: &mut PfConfig,
    opcode: Opcode,
    command: &mut Command,
) -> Option<Result<(), AdminError>> {
    let vsis = &mut pf_config.vsis;
    Some(match opcode {
        Opcode::GetSwitchConfig => {
            let first = command.parameters(SwitchParameters::parse).next;
            Switch::configuration(vsis, first, command.buffer_mut()).and_then(|(count, next)| {
                command.answer(SwitchParameters { count, next, ..SwitchParameters::default() }.emit());
                command.fill(|_| Ok(usize::from(count) * SwitchElement::LEN))
            })
        }
        Opcode::AllocateResources => pf_config.allocate(command.buffer_mut()),
        Opcode::FreeResources => pf_config.free(command.buffer_mut()),
        Opcode::AllocatedResources => {
            let request = command.parameters(AllocatedResources::parse);
            pf_config.allocated(request, command.buffer_mut()).map(|answer| command.answer(answer.emit()))
        }
        Opcode::AddVsi => {
            let parameters = command.parameters(VsiParameters::parse);
            vsis.add(&parameters, command.buffer_mut()).map(|answer| command.answer(answer.emit()))
        }
        Opcode::UpdateVsi => {
            let parameters = command.parameters(VsiParameters::parse);
            vsis.update(&parameters, command.buffer_mut()).map(|answer| command.answer(answer.emit()))
        }
        Opcode::FreeVsi => {
            let parameters = command.parameters(VsiParameters::parse);
            pf_config.free_vsi(&parameters).map(|answer| command.answer(answer.emit()))
        }
        Opcode::AddRules => rules(pf_config, RuleCommand::Add, command),
        Opcode::UpdateRules => rules(pf_config, RuleCommand::Update, command),
        Opcode::RemoveRules => rules(pf_config, RuleCommand::Remove, command),
        Opcode::SetRssKey => vsis.set_key(&command.parameters(KeyParameters::parse), command.buffer()),
        Opcode::SetRssTable => vsis.set_table(&command.parameters(TableParameters::parse), command.buffer()),
        Opcode::GetRssKey => {
            let parameters = command.parameters(KeyParameters::parse);
            command.fill(|buffer| vsis.get_key(&parameters, buffer))
        }
        Opcode::GetRssTable => {
            let parameters = command.parameters(TableParameters::parse);
            command.fill(|buffer| vsis.get_table(&parameters, buffer))
        }
        _ => return None,
    })
}

fn rules(pf_config: &mut PfConfig, kind: RuleCommand, command: &mut Command) -> Result<(), AdminError> {
    let count = command.parameters(ListParameters::parse).count;
    pf_config.rules(kind, count, command.buffer_mut())
}
