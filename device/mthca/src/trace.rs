//! Trace records of the mthca interface: registers, commands and queue entries.

use card::frontend::RegisterAccess;
use card::telemetry::trace::{Kind, Trace};
use card::vfio::Bar;
use engine::{Fence, Fetch, Payload, RecvRequest, SendRequest, Sge};
use hcr::command::{Mailboxes, show_mailbox};
use hcr::entry_ring::WriteError;
use hcr::notify::CqError;
use hcr::verbs::{WorkTag, syndrome};
use protocol::describe::{Describe, Field as _, Hex, Visitor};
use protocol::hca::hcr::{CommandWord, HcrWord, PendingCommand};
use protocol::hca::mthca::cmd::{Op, describe_parameters};
use protocol::hca::mthca::cqe::{Cqe, ImmOrPkey, Outcome};
use protocol::hca::mthca::doorbell::{ArmCq, ArmFor, SendDoorbell, UAR_PAGE, UarRegister};
use protocol::hca::mthca::eqe::Eqe;
use protocol::hca::mthca::mailbox::Mailbox;
use protocol::hca::mthca::regs::Register;
use protocol::hca::mthca::wqe::DataSegment;
use protocol::hca::opcode::WqeOpcode;
use protocol::ids::{Cqn, Eqn, Qpn};
use protocol::roce::Opcode;

/// Returns the name of the register that an access hits.
pub(super) fn register_name(access: &RegisterAccess<'_>) -> Option<String> {
    match access.bar {
        Bar::Bar0 => Register::at(access.offset & !3).map(name),
        _ => {
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
        Register::EqArm(first) if first == Eqn::new(0) => "eq_arm".into(),
        Register::EqArm(_) => "eq_arm_high".into(),
        Register::EqSetCi(eqn) => format!("eq_set_ci[{eqn}]"),
        Register::Catastrophe => "catastrophe".into(),
        Register::ClearInterrupt => "clear_interrupt".into(),
        Register::Reset => "reset".into(),
    }
}

/// Shows the fields of the register value that was read or written.
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
                    arm.arm_for.map(ArmFor::name).show("for", to);
                    arm.consumer.show("consumer", to);
                    arm.sequence.show("sequence", to);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

pub(super) fn describe_command(pending: &PendingCommand, mailboxes: &Mailboxes, to: &mut dyn Visitor) {
    let op = Op::from_code(pending.command.op());
    describe_parameters(pending, to);
    let (inbox, outbox) = (mailboxes.inbox.bytes(), &mailboxes.outbox[..]);
    show_mailbox("in", inbox, op.and_then(|op| Mailbox::inbox(op, inbox)), to);
    show_mailbox("out", outbox, op.and_then(|op| Mailbox::outbox(op, outbox)), to);
}

/// Records an event, with the EQ and slot that it was written to.
pub(super) fn eqe(trace: &mut Trace, place: Option<(Eqn, u32)>, event: &Eqe, lost: Option<&WriteError>) {
    trace.record(Kind::Eqe, event.name(), |fields| {
        match place {
            Some((eqn, slot)) => {
                Hex(eqn.get()).show("eqn", fields);
                slot.show("slot", fields);
            }
            None => "no EQ receives this event".show("lost", fields),
        }
        lost.map(|error| format!("{error}")).as_deref().show("lost", fields);
        event.describe(fields);
    });
}

pub(super) fn send_wqe(trace: &mut Trace, qpn: Qpn, fetch: &Fetch<SendRequest>) {
    let (wr_id, refused) = match fetch {
        Fetch::Ready(request) => (request.wr_id, None),
        Fetch::Refused { wr_id, status } => (*wr_id, Some(status)),
        Fetch::Empty | Fetch::Broken => return,
    };
    let tag = WorkTag::from_bits(wr_id);
    trace.record(Kind::Wqe, "send", |to| {
        qpn.show("qpn", to);
        tag.wqe().show("wr", to);
        Hex(tag.wqe()).show("wqe", to);
        WqeOpcode::word(tag.opcode()).show("opcode", to);
        tag.signalled().show("signalled", to);
        if let Fetch::Ready(request) = fetch {
            (request.fence != Fence::None).show("fence", to);
            request.solicited.show("solicited", to);
            request.payload.len().show("len", to);
            if let Payload::Sges(sges) = &request.payload {
                to.objects("sge", &mut data(sges).iter().map(|data| data as &dyn Describe));
            }
            if let Some(ud) = &request.ud {
                ud.qpn.show("dqpn", to);
                ud.qkey.show("qkey", to);
                format_args!("{}", ud.path.dst_mac).show("dmac", to);
            }
        }
        refused.map(|status| syndrome(*status)).show("refused", to);
    });
}

pub(super) fn recv_wqe(trace: &mut Trace, qpn: Qpn, fetch: &Fetch<RecvRequest>) {
    let (wr_id, sges) = match fetch {
        Fetch::Ready(request) => (request.wr_id, data(&request.sges)),
        Fetch::Refused { wr_id, .. } => (*wr_id, Vec::new()),
        Fetch::Empty | Fetch::Broken => return,
    };
    trace.record(Kind::Wqe, "recv", |to| {
        qpn.show("qpn", to);
        let wqe = WorkTag::from_bits(wr_id).wqe();
        wqe.show("wr", to);
        Hex(wqe).show("wqe", to);
        to.objects("sge", &mut sges.iter().map(|data| data as &dyn Describe));
    });
}

fn data(sges: &[Sge]) -> Vec<DataSegment> {
    sges.iter().map(|sge| DataSegment { len: sge.len, lkey: sge.lkey, va: sge.va }).collect()
}

/// Records a CQE. `slot` is its free-running index, and `lost` is set if the CQE was not written.
pub(super) fn cqe(trace: &mut Trace, cqn: Cqn, slot: u32, cqe: &Cqe, lost: Option<&CqError>) {
    let name = match cqe.outcome {
        Outcome::Sent { .. } | Outcome::Failed { send: true, .. } => "send",
        Outcome::Received(_) | Outcome::Failed { send: false, .. } => "recv",
    };
    trace.record(Kind::Cqe, name, |to| {
        cqn.show("cqn", to);
        slot.show("slot", to);
        lost.map(|error| format!("{error}")).as_deref().show("lost", to);
        cqe.qpn.show("qpn", to);
        cqe.wqe.show("wr", to);
        Hex(cqe.wqe).show("wqe", to);
        match cqe.outcome {
            Outcome::Sent { opcode, byte_len } => {
                WqeOpcode::word(opcode).show("opcode", to);
                byte_len.show("byte_len", to);
            }
            Outcome::Received(received) => {
                format_args!("{}", Opcode::from_byte(received.opcode)).show("opcode", to);
                received.byte_len.show("byte_len", to);
                received.remote_qpn.show("remote_qpn", to);
                received.remote_lid.show("remote_lid", to);
                received.service_level.show("sl", to);
                received.grh.show("grh", to);
                match received.imm_or_pkey {
                    ImmOrPkey::Imm(imm) => imm.show("imm", to),
                    ImmOrPkey::PkeyIndex(index) => index.show("pkey_index", to),
                }
            }
            Outcome::Failed { syndrome, vendor, .. } => {
                syndrome.show("syndrome", to);
                vendor.show("vendor", to);
            }
        }
    });
}
