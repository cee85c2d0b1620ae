//! Trace records for the JingZhao interface: registers, commands and queue entries.
//!
//! The types that parse registers and entries also describe their fields for the trace.

use card::frontend::RegisterAccess;
use card::telemetry::trace::{Kind, Trace};
use card::vfio::Bar;
use engine::{Fetch, RecvRequest};
use hcr::command::{Mailboxes, show_mailbox};
use hcr::entry_ring::WriteError;
use protocol::describe::{Describe as _, Field as _, Hex, Value, Visitor};
use protocol::hca::jingzhao::cmd::{Op, PendingCommand, describe_parameters};
use protocol::hca::jingzhao::cqe::{Cqe, CqeQueue};
use protocol::hca::jingzhao::doorbell::{SendDoorbell, UAR_PAGE, UarRegister, arm_cq, arm_eq};
use protocol::hca::jingzhao::eqe::{CqFault, Eqe};
use protocol::hca::jingzhao::mailbox::Mailbox;
use protocol::hca::jingzhao::regs::{CommandWord, HcrWord, Register};
use protocol::hca::jingzhao::wqe::{DataSegment, DataSegments, RecvWqe, WqeOpcode};
use protocol::ids::{Cqn, Qpn};

use super::doorbell::Doorbells;

use super::event_queue::EqSlot;
use super::send_queue::{Entry, FetchedWqe};

/// Returns the name of the register at the start of an access.
pub(super) fn register_name(access: &RegisterAccess<'_>) -> Option<String> {
    match access.bar {
        Bar::Bar0 => Register::at(access.offset & !3).map(|register| register.name().to_owned()),
        _ => {
            let (page, offset) = (access.offset / UAR_PAGE, access.offset % UAR_PAGE);
            let register = UarRegister::at(offset)?;
            let whole = register == UarRegister::SendLow && access.data.len() == 8;
            Some(format!("UAR[{page}].{}", if whole { "sq_doorbell" } else { register.name() }))
        }
    }
}

/// Describes the fields of a value that is read or written.
pub(super) fn describe_access(access: &RegisterAccess<'_>, doorbells: &Doorbells, to: &mut dyn Visitor) {
    let (words, _) = access.data.as_chunks::<4>();
    for (offset, word) in (access.offset..).step_by(4).zip(words) {
        let word = u32::from_le_bytes(*word);
        match access.bar {
            Bar::Bar0 => {
                if let Some(Register::Hcr(HcrWord::Command)) = Register::at(offset) {
                    let word = CommandWord::from_bits(word);
                    word.describe(Op::from_code(word.op()).map(Op::name), to);
                }
            }
            Bar::Bar2 if access.write => match (UarRegister::at(offset % UAR_PAGE), words) {
                (Some(UarRegister::SendLow), [low, high]) => {
                    SendDoorbell::parse(u32::from_le_bytes(*low), u32::from_le_bytes(*high)).describe(to);
                    return;
                }
                (Some(UarRegister::SendHigh), _) => {
                    SendDoorbell::parse(doorbells.first_half(offset / UAR_PAGE), word).describe(to);
                }
                (Some(UarRegister::ArmCq), _) => arm_cq(word).show("cqn", to),
                (Some(UarRegister::ArmEq), _) => arm_eq(word).show("eqn", to),
                (Some(UarRegister::SendLow) | None, _) => {}
            },
            _ => {}
        }
    }
}

pub(super) fn describe_command(pending: &PendingCommand, mailboxes: &Mailboxes, to: &mut dyn Visitor) {
    let op = Op::from_code(pending.command.op());
    describe_parameters(pending, to);
    let (inbox, outbox) = (mailboxes.inbox.bytes(), &mailboxes.outbox[..]);
    show_mailbox("in", inbox, op.and_then(|op| Mailbox::inbox(op, pending.in_modifier, inbox)), to);
    show_mailbox("out", outbox, op.and_then(|op| Mailbox::outbox(op, outbox)), to);
}

pub(super) fn send_wqe(trace: &mut Trace, qpn: Qpn, fetched: &FetchedWqe<'_>) {
    let Entry { position, opcode, size, fence } = fetched.entry;
    trace.record(Kind::Wqe, "send", |to| {
        qpn.show("qpn", to);
        position.show("wr", to);
        Hex(position).show("at", to);
        WqeOpcode::word(opcode).show("opcode", to);
        size.show("size", to);
        fence.show("fence", to);
        match fetched.wqe {
            Some(Ok(wqe)) => wqe.describe(to),
            Some(Err(error)) => {
                format_args!("{error}").show("refused", to);
                to.value("bytes", Value::Bytes(fetched.bytes));
            }
            None => to.value("bytes", Value::Bytes(fetched.bytes)),
        }
    });
}

pub(super) fn recv_wqe(trace: &mut Trace, qpn: Qpn, fetch: &Fetch<RecvRequest>) {
    let (at, units, refused) = match fetch {
        Fetch::Ready(request) => (request.wr_id, &request.sges[..], false),
        Fetch::Refused { wr_id, .. } => (*wr_id, &[][..], true),
        // A subsequent CQE or NAK reports the reason.
        Fetch::Empty | Fetch::Broken => return,
    };
    trace.record(Kind::Wqe, "recv", |to| {
        qpn.show("qpn", to);
        at.show("wr", to);
        Hex(at).show("at", to);
        refused.show("refused", to);
        let units: DataSegments =
            units.iter().map(|sge| DataSegment { len: sge.len, lkey: sge.lkey, va: sge.va }).collect();
        RecvWqe { data: units }.describe(to);
    });
}

/// Records a CQE that was written at the free-running position `slot`, or was lost.
pub(super) fn cqe(trace: &mut Trace, cqn: Cqn, slot: u32, cqe: &Cqe, lost: Option<CqFault>) {
    let name = match cqe.queue {
        CqeQueue::Send => "send",
        CqeQueue::Recv => "recv",
    };
    trace.record(Kind::Cqe, name, |to| {
        cqn.show("cqn", to);
        slot.show("slot", to);
        lost.show("lost", to);
        cqe.wqe.show("wr", to);
        cqe.describe(to);
    });
}

/// Records an event with the EQ and slot that it was written to.
pub(super) fn eqe(trace: &mut Trace, to: Option<EqSlot>, eqe: &Eqe, lost: Option<&WriteError>) {
    trace.record(Kind::Eqe, eqe.event_type().name(), |fields| {
        match to {
            Some(EqSlot { eqn, slot }) => {
                Hex(eqn).show("eqn", fields);
                slot.show("slot", fields);
            }
            None => "no EQ receives this event".show("lost", fields),
        }
        lost.map(|error| format!("{error}")).as_deref().show("lost", fields);
        eqe.describe(fields);
    });
}
