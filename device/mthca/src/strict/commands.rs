//! Checks for all commands, and additional checks for device-wide commands.

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use card::telemetry::monitor::Monitor;
use hcr::strict::overlapping;
use protocol::hca::hcr::PendingCommand;
use protocol::hca::mthca::PAGE;
use protocol::hca::mthca::cmd::{Command, Op};
use protocol::hca::mthca::eqe::Eqe;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::mailbox::Mailbox;
use protocol::hca::qp::Transition;
use protocol::ids::Lkey;

use super::rules::{
    CLOSE_IN_USE, CLOSE_TWICE, EVENT_DROPPED, FIRMWARE_IN_USE, FIRMWARE_ORDER, INIT_OVERLAP, INIT_TWICE,
    MAILBOX_ALIGNMENT, UNDOCUMENTED_MODIFIER, UNUSED_PARAMETER,
};
use super::{Strict, View, icm, memory, qps, queues};
use crate::resources::{DeviceState, Resources};

#[derive(Debug)]
pub(in super::super) struct Examined {
    found: Findings,
    op: Op,
    /// Key that the command makes valid.
    registers: Option<Lkey>,
}

impl Examined {
    /// Reports the findings and records the effects of a command that has succeeded.
    pub(in super::super) fn succeeded(
        mut self,
        strict: &mut Strict,
        state: &DeviceState,
        monitor: &mut Monitor,
    ) {
        if let (Some(key), Some(resources)) = (self.registers, state.resources()) {
            memory::registered(resources, key, &mut self.found);
        }
        strict.bring_up.done(self.op);
        self.found.report(monitor);
    }
}

/// Checks a command before it executes.
pub(in super::super) fn examine(
    strict: &Strict,
    state: &DeviceState,
    dma: &GuestMemory,
    uar_pages: u32,
    pending: &PendingCommand,
    command: &Command,
    inbox: &[u8],
) -> Examined {
    let mut found = Findings::default();
    parameters(command, &mut found);
    bring_up(strict, state, command, &mut found);
    let mailbox = Mailbox::inbox(command.op, inbox);
    match (command.op, &mailbox) {
        (Op::MapIcm, Some(Mailbox::Blocks(blocks))) => icm::map(state.page_map(), blocks, &mut found),
        (Op::UnmapIcm, _) => icm::unmap(state, command, &mut found),
        (Op::InitHca, Some(Mailbox::InitHca(init))) => layout(init, &mut found),
        _ => {}
    }
    if let Some(resources) = state.resources() {
        if pending.command.event() && takes_no_command_events(resources) {
            found.add(
                &EVENT_DROPPED,
                format!("{} has the event bit set, but no EQ receives command events", command.op),
            );
        }
        let view = View { resources, dma, uar_pages };
        on_resources(view, command, mailbox.as_ref(), &mut found);
    }
    let registers = match &mailbox {
        Some(Mailbox::Mpt(mpt)) => Some(mpt.key),
        _ => None,
    };
    Examined { found, op: command.op, registers }
}

fn on_resources(view: View<'_>, command: &Command, mailbox: Option<&Mailbox>, found: &mut Findings) {
    let resources = view.resources;
    match (command.op, mailbox) {
        (Op::CloseHca, _) => close(resources, found),
        (Op::Sw2HwMpt, Some(Mailbox::Mpt(mpt))) => memory::sw2hw_mpt(resources, mpt, found),
        (Op::Hw2SwMpt, _) => memory::hw2sw_mpt(resources, command, found),
        (Op::Sw2HwCq, Some(Mailbox::Cqc(cqc))) => queues::sw2hw_cq(view, command, cqc, found),
        (Op::Hw2SwCq, _) => queues::hw2sw_cq(resources, command, found),
        (Op::ResizeCq, Some(Mailbox::ResizeCq(resize))) => queues::resize_cq(view, command, resize, found),
        (Op::Sw2HwEq, Some(Mailbox::Eqc(eqc))) => queues::sw2hw_eq(view, command, eqc, found),
        (Op::Hw2SwEq, _) => queues::hw2sw_eq(resources, command, found),
        (Op::MapEq, _) => queues::map_eq(command, found),
        (Op::Sw2HwSrq, Some(Mailbox::Srqc(srqc))) => queues::sw2hw_srq(view, command, srqc, found),
        (Op::Hw2SwSrq, _) => queues::hw2sw_srq(resources, command, found),
        (Op::Modify(transition), Some(Mailbox::ModifyQp(new))) => {
            qps::modify(view, command, transition, new, found);
        }
        _ => {}
    }
}

/// How a command uses a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Nothing,
    Value,
    /// The address of a mailbox, or 0 if no mailbox is provided.
    Mailbox,
}

/// Returns how a command uses in_param and out_param, whether it uses in_modifier, and which op_modifiers are valid,
/// according to the command table.
fn row(op: Op) -> (Use, Use, bool, &'static [u8]) {
    use Use::{Mailbox, Nothing, Value};
    match op {
        Op::QueryFw | Op::QueryDevLim | Op::QueryAdapter | Op::EnableLam => (Nothing, Mailbox, false, &[0]),
        Op::DisableLam | Op::RunFw | Op::UnmapFa | Op::UnmapIcmAux => (Nothing, Nothing, false, &[0]),
        Op::CloseHca => (Nothing, Nothing, false, &[0, 1]),
        Op::InitHca => (Mailbox, Nothing, false, &[0]),
        Op::SetIcmSize => (Value, Value, false, &[0]),
        Op::UnmapIcm | Op::MapEq | Op::ArmSrq => (Value, Nothing, true, &[0]),
        Op::MapFa | Op::MapIcmAux | Op::MapIcm | Op::InitIb | Op::SetIb | Op::Sw2HwMpt => {
            (Mailbox, Nothing, true, &[0])
        }
        Op::Sw2HwEq | Op::Sw2HwCq | Op::Sw2HwSrq | Op::WriteMgm => (Mailbox, Nothing, true, &[0]),
        Op::Hw2SwMpt => (Nothing, Mailbox, true, &[0, 1]),
        Op::Hw2SwEq | Op::Hw2SwCq | Op::Hw2SwSrq | Op::QuerySrq | Op::QueryQp | Op::ReadMgm => {
            (Nothing, Mailbox, true, &[0])
        }
        Op::ResizeCq => (Mailbox, Nothing, true, &[1]),
        Op::Modify(Transition::ToRst) => (Nothing, Mailbox, true, &[2, 3]),
        Op::Modify(_) => (Mailbox, Nothing, true, &[0]),
        Op::ConfSpecialQp => (Nothing, Nothing, true, &[0, 1]),
        Op::MadIfc => (Mailbox, Mailbox, true, &[0, 1, 2, 3, 4, 5, 6, 7]),
        Op::MgidHash => (Mailbox, Value, false, &[0]),
        Op::CloseIb | Op::Nop => (Nothing, Nothing, true, &[0]),
    }
}

fn parameters(command: &Command, found: &mut Findings) {
    let Command { op, op_modifier, in_modifier, in_param, out_param, .. } = *command;
    let (input, output, numbered, modifiers) = row(op);
    for (name, value, what) in [("in_param", in_param, input), ("out_param", out_param, output)] {
        match what {
            Use::Nothing if value != 0 => {
                found.add(&UNUSED_PARAMETER, format!("{op} has {name} {value:#x}, expected 0"));
            }
            Use::Mailbox if !value.is_multiple_of(PAGE as u64) => {
                found.add(
                    &MAILBOX_ALIGNMENT,
                    format!("{name} of {op} is {value:#x}, which is not page-aligned"),
                );
            }
            _ => {}
        }
    }
    if !numbered && in_modifier != 0 {
        found.add(&UNUSED_PARAMETER, format!("{op} has in_modifier {in_modifier:#x}, expected 0"));
    }
    if !modifiers.contains(&op_modifier) {
        found.add(&UNDOCUMENTED_MODIFIER, format!("{op} has undefined op_modifier {op_modifier}"));
    }
}

fn bring_up(strict: &Strict, state: &DeviceState, command: &Command, found: &mut Findings) {
    let done = &strict.bring_up;
    let missing = match command.op {
        Op::RunFw if !done.firmware_mapped => Some("MAP_FA"),
        Op::MapIcm if !done.aux_mapped => Some("MAP_ICM_AUX"),
        Op::InitHca if !done.firmware_running => Some("RUN_FW"),
        _ => None,
    };
    if let Some(missing) = missing {
        found.add(&FIRMWARE_ORDER, format!("{} before {missing}", command.op));
    }
    let open = state.resources().is_some();
    match command.op {
        Op::UnmapFa | Op::UnmapIcmAux if open => {
            found.add(&FIRMWARE_IN_USE, format!("{} before CLOSE_HCA", command.op));
        }
        Op::InitHca if open => found.add(&INIT_TWICE, "second INIT_HCA without CLOSE_HCA"),
        Op::CloseHca if !open => found.add(&CLOSE_TWICE, "CLOSE_HCA before INIT_HCA"),
        _ => {}
    }
}

fn layout(init: &InitHca, found: &mut Findings) {
    for what in overlapping(&icm::tables(init)) {
        found.add(&INIT_OVERLAP, what);
    }
}

fn takes_no_command_events(resources: &Resources) -> bool {
    let event = Eqe::Command { token: 0, status: 0, out_param: 0 };
    resources.eqs.taker(&event).is_none_or(|eqn| !resources.eqs.contains(eqn))
}

fn close(resources: &Resources, found: &mut Findings) {
    let Resources { qps, cqs, srqs, eqs, regions, .. } = resources;
    let counts = [
        ("QPs", qps.len()),
        ("CQs", cqs.len()),
        ("SRQs", srqs.len()),
        ("EQs", eqs.iter_from(0).count()),
        ("keys", regions.keys.iter().count()),
    ];
    let left: Vec<_> =
        counts.iter().filter(|(_, n)| *n != 0).map(|(name, n)| format!("{name}: {n}")).collect();
    if !left.is_empty() {
        found.add(&CLOSE_IN_USE, format!("CLOSE_HCA while objects are in use ({})", left.join(", ")));
    }
}
