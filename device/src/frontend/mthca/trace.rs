//! What a trace says of this interface: names of registers, and records of commands and queue entries.

use protocol::describe::{Field as _, Hex, Visitor};
use protocol::hca::hcr::{CommandWord, HcrWord, Latched};
use protocol::hca::mthca::cmd::Op;
use protocol::hca::mthca::doorbell::{ArmCq, SendDoorbell, UAR_PAGE, UarRegister};
use protocol::hca::mthca::eqe::Eqe;
use protocol::hca::mthca::regs::Register;
use protocol::ids::Eqn;

use crate::frontend::RegisterAccess;
use crate::frontend::command::{Mailboxes, show_bytes};
use crate::frontend::entry_ring::WriteError;
use crate::telemetry::trace::{Kind, Trace};
use crate::vfio::Bar;

/// Name of the register that an access begins at.
pub(super) fn register_name(access: &RegisterAccess<'_>) -> Option<String> {
    match access.bar {
        Bar::Bar0 => Register::at(access.offset & !3).map(name),
        Bar::Bar2 => {
            let (page, offset) = (access.offset / UAR_PAGE, access.offset % UAR_PAGE);
            let (register, second) = UarRegister::at(offset)?;
            let register = match register {
                UarRegister::Send => "send",
                UarRegister::ArmCq => "arm_cq",
            };
            let half = match (second, access.data.len()) {
                (false, 8) => "",
                (false, _) => "[63:32]",
                (true, _) => "[31:0]",
            };
            Some(format!("UAR[{page}].{register}{half}"))
        }
    }
}

fn name(register: Register) -> String {
    match register {
        Register::Hcr(word) => word.name().into(),
        Register::EqArm => "eq_arm".into(),
        Register::EqSetCi(eqn) => format!("eq_set_ci[{eqn}]"),
        Register::Catastrophe => "catastrophe".into(),
        Register::ClearInterrupt => "clear_interrupt".into(),
        Register::Reset => "reset".into(),
    }
}

/// Tells the fields of what is read or written.
pub(super) fn describe_access(access: &RegisterAccess<'_>, to: &mut dyn Visitor) {
    match (access.bar, access.data) {
        (Bar::Bar0, &[a, b, c, d]) => {
            if let Some(Register::Hcr(HcrWord::Command)) = Register::at(access.offset) {
                let word = CommandWord::from_bits(u32::from_be_bytes([a, b, c, d]));
                word.describe(Op::from_code(word.op()).map(Op::name), to);
            }
        }
        (Bar::Bar2, &[a, b, c, d, e, f, g, h]) if access.write => {
            let bytes = [a, b, c, d, e, f, g, h];
            match UarRegister::at(access.offset % UAR_PAGE) {
                Some((UarRegister::Send, false)) => {
                    let doorbell = SendDoorbell::parse(bytes);
                    doorbell.qpn.show("qpn", to);
                    doorbell.first.show("first", to);
                    doorbell.count.show("count", to);
                    Hex(doorbell.opcode).show("opcode", to);
                    doorbell.size.show("size", to);
                    doorbell.fence.show("fence", to);
                }
                Some((UarRegister::ArmCq, false)) => {
                    let arm = ArmCq::parse(bytes);
                    arm.cqn.show("cqn", to);
                    format_args!("{:?}", arm.arm_for).show("for", to);
                    arm.consumer.show("consumer", to);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

/// Tells parameters and mailboxes of a command.
pub(super) fn describe_command(latched: &Latched, mailboxes: &Mailboxes, to: &mut dyn Visitor) {
    Hex(latched.in_param).show("in_param", to);
    Hex(latched.in_modifier).show("in_modifier", to);
    latched.command.op_modifier().show("op_modifier", to);
    if latched.command.event() {
        Hex(latched.token).show("token", to);
    }
    show_bytes("in", mailboxes.inbox.bytes(), to);
    show_bytes("out", &mailboxes.outbox, to);
}

/// Records an event: queue and slot it was written to, if it was.
pub(super) fn eqe(trace: &mut Trace, place: Option<(Eqn, u32)>, event: &Eqe, lost: Option<&WriteError>) {
    trace.record(Kind::Eqe, &format!("{event:?}"), |fields| {
        match place {
            Some((eqn, slot)) => {
                Hex(eqn.get()).show("eqn", fields);
                slot.show("slot", fields);
            }
            None => "no EQ takes it".show("lost", fields),
        }
        lost.map(|error| format!("{error}")).as_deref().show("lost", fields);
    });
}
