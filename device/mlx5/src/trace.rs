//! Trace records of the mlx5 interface: registers, commands, work requests, completions and events.

use std::borrow::Cow;
use std::num::NonZeroU16;
use std::time::Duration;

use card::frontend::RegisterAccess;
use card::memory::GuestMemory;
use card::telemetry::trace::{Kind, Trace};
use engine::{
    AccessError, Fence, Fetch, LocalToken, Payload, Piece, RecvRequest, RecvSource, SendRequest, Sge,
};
use protocol::describe::{Describe, Field as _, Hex, Value, Visitor};
use protocol::hca::mlx5::cqe::{Cqe, Failure};
use protocol::hca::mlx5::doorbell::{ArmCq, EqDoorbell, SendDoorbell, UarRegister};
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::regs::{NicState, QueueWord, Register};
use protocol::hca::mlx5::status::Status;
use protocol::hca::mlx5::wqe::{
    DataItem, DataSegment, FrameOperation, FrameWqe, Opcode, Operation, RecvWqe, SendWqe,
};
use protocol::ids::{Cqn, Eqn, Qpn, Rqn, Sqn};

use super::check::Rejection;
use super::completion_queue::LostEntry;
use super::doorbell;
use super::event_queue::WriteError;
use super::failure;
use super::resources::Resources;
use super::send_queue::{FetchedWqe, SendTag};
use super::work;

/// Returns the name of the register that an access hits.
pub(super) fn register_name(log_uar_page: u16, access: &RegisterAccess<'_>) -> Option<String> {
    if let Some((page, offset)) = doorbell::place(log_uar_page, access.offset) {
        let page = page.get();
        return Some(match UarRegister::at(offset)? {
            UarRegister::ArmCq(false) => format!("UAR[{page}].arm_cq"),
            UarRegister::ArmCq(true) => format!("UAR[{page}].arm_cq[31:0]"),
            UarRegister::ArmEq => format!("UAR[{page}].arm_eq"),
            UarRegister::UpdateEq => format!("UAR[{page}].update_eq"),
            UarRegister::Send { register, second, offset } => {
                format!("UAR[{page}].send[{register}.{}]+{offset:#x}", u8::from(second))
            }
        });
    }
    let (register, within) = Register::at(access.offset & !3)?;
    Some(match register {
        Register::Health => format!("health+{within:#x}"),
        register => register.name().to_owned(),
    })
}

/// Shows the fields of the register value that was read or written.
pub(super) fn describe_access(log_uar_page: u16, access: &RegisterAccess<'_>, to: &mut dyn Visitor) {
    let Some((_, offset)) = doorbell::place(log_uar_page, access.offset) else {
        if let (Some((Register::QueueAddressLow, _)), &[a, b, c, d], true) =
            (Register::at(access.offset), access.data, access.write)
            && let QueueWord::Request { state } = QueueWord::parse(u32::from_be_bytes([a, b, c, d]))
        {
            NicState::word(state).show("request", to);
        }
        return;
    };
    if !access.write {
        return;
    }
    match UarRegister::at(offset) {
        Some(UarRegister::ArmCq(false)) => {
            if let Some(arm) = ArmCq::parse_prefix(access.data) {
                arm.describe(to);
            }
        }
        Some(UarRegister::ArmEq | UarRegister::UpdateEq) => {
            if let Some(doorbell) = EqDoorbell::parse_prefix(access.data) {
                doorbell.describe(to);
            }
        }
        Some(UarRegister::Send { offset: 0, .. }) => {
            if let Some(doorbell) = SendDoorbell::parse_prefix(access.data) {
                doorbell.describe(to);
            }
        }
        _ => {}
    }
}

/// A command that has been executed or rejected.
pub(super) struct Executed<'a> {
    pub slot: usize,
    pub input: &'a [u8],
    /// The command, if its input could be parsed.
    pub command: Option<&'a Command<'a>>,
    /// The output, or the check that rejected the command.
    pub result: Result<&'a [u8], &'a Rejection>,
    /// Start time of the command, on the trace's clock.
    pub began: Duration,
}

pub(super) fn command(trace: &mut Trace, executed: &Executed<'_>) {
    let Executed { slot, input, command, result, began } = *executed;
    let took = trace.now().saturating_sub(began);
    let name = command.map_or("unknown", |command| command.opcode().name());
    trace.record(Kind::Command, name, |to| {
        status_name(result.err()).show("status", to);
        if let Err(rejection) = result {
            format_args!("{rejection}").show("refused", to);
            Hex(rejection.check.syndrome()).show("syndrome", to);
        }
        format_args!("{:.1}", took.as_secs_f64() * 1e6).show("us", to);
        slot.show("slot", to);
        match command {
            Some(command) => to.object("in", command),
            None => to.value("in", Value::Bytes(input)),
        }
        if let (Some(command), Ok(output)) = (command, result) {
            to.object("out", &Output { command, output });
        }
    });
}

pub(super) const fn status_name(rejection: Option<&Rejection>) -> &'static str {
    match rejection {
        Some(rejection) => rejection.check.status().name(),
        None => Status::Ok.name(),
    }
}

struct Output<'a> {
    command: &'a Command<'a>,
    output: &'a [u8],
}

impl Describe for Output<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        self.command.describe_output(self.output, to);
    }
}

/// Records an event with the EQ and the slot that received it.
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
        Fetch::Refused { wr_id, status } => (*wr_id, Some(*status)),
        Fetch::Empty | Fetch::Broken => return,
    };
    let tag = SendTag::from_bits(wr_id);
    trace.record(Kind::Wqe, "send", |to| {
        qpn.show("qpn", to);
        tag.index().show("wr", to);
        Opcode::word(tag.opcode()).show("opcode", to);
        tag.signaled().show("signaled", to);
        if let Fetch::Ready(request) = fetch {
            (request.fence != Fence::None).show("fence", to);
            request.solicited.show("solicited", to);
            request.payload.len().show("len", to);
            if let Some(sges) = sges(&request.payload) {
                to.objects("sge", &mut data(&sges).iter().map(|data| data as &dyn Describe));
            }
            if let Some(ud) = &request.ud {
                ud.qpn.show("dqpn", to);
                ud.qkey.show("qkey", to);
                format_args!("{}", ud.path.dst_mac).show("dmac", to);
            }
            request.remote_srq.show("srqn", to);
        }
        refused.map(|status| failure::syndrome(status).name()).show("refused", to);
    });
}

/// Records a UMR that has been executed or has failed.
pub(super) fn umr(
    trace: &mut Trace,
    resources: &Resources,
    qpn: Qpn,
    token: &LocalToken,
    dma: &GuestMemory,
    error: Option<AccessError>,
) {
    let (Some(qp), Some(index)) = (resources.qps.get(qpn.get()), work::index_of(token)) else { return };
    let Ok(bytes) = qp.reread(index, dma) else { return };
    let Ok(wqe) = SendWqe::parse(&bytes, qp.service(), qpn) else { return };
    let Operation::Umr(umr) = &wqe.operation else { return };
    trace.record(Kind::Wqe, "umr", |to| {
        qpn.show("qpn", to);
        index.show("wr", to);
        Hex(wqe.control.key()).show("key", to);
        error.map(AccessError::name).show("refused", to);
        umr.describe(to);
    });
}

pub(super) fn recv_wqe(trace: &mut Trace, source: RecvSource, fetch: &Fetch<RecvRequest>) {
    let Fetch::Ready(request) = fetch else { return };
    let (RecvSource::Qp(qpn) | RecvSource::XrcSrq { qpn, .. }) = source;
    trace.record(Kind::Wqe, "recv", |to| {
        qpn.show("qpn", to);
        source.srqn().show("srqn", to);
        request.wr_id.show("wr", to);
        to.objects("sge", &mut data(&request.sges).iter().map(|data| data as &dyn Describe));
    });
}

/// Records a WQE fetched from an SQ.
pub(super) fn frame_wqe(trace: &mut Trace, sqn: Sqn, fetch: &Fetch<FetchedWqe<'_>>) {
    let (tag, wqe) = match fetch {
        Fetch::Ready(wqe) => (wqe.tag, FrameWqe::parse(wqe.bytes, sqn).map_err(|error| error.to_string())),
        Fetch::Refused { wr_id, .. } => (SendTag::from_bits(*wr_id), Err("invalid size".to_owned())),
        Fetch::Empty | Fetch::Broken => return,
    };
    trace.record(Kind::Wqe, "transmit", |to| {
        sqn.show("sqn", to);
        tag.index().show("wr", to);
        Opcode::word(tag.opcode()).show("opcode", to);
        tag.signaled().show("signaled", to);
        match &wqe {
            Ok(FrameWqe { operation: FrameOperation::Send { segment, mss, header, data }, .. }) => {
                let payload: usize = data.iter().map(DataItem::len).sum();
                (header.len() + payload).show("len", to);
                header.len().show("header_len", to);
                mss.map(NonZeroU16::get).show("mss", to);
                segment.l3_checksum.show("l3_checksum", to);
                segment.l4_checksum.show("l4_checksum", to);
                segment.insert_vlan.then_some(Hex(segment.vlan_tag)).show("vlan_tag", to);
                to.objects("data", &mut data.iter().map(|item| item as &dyn Describe));
            }
            Ok(FrameWqe { operation: FrameOperation::Nop, .. }) => {}
            Err(defect) => defect.as_str().show("refused", to),
        }
    });
}

/// Records a receive WQE that the device has consumed from an RQ for a frame.
pub(super) fn frame_receive(trace: &mut Trace, rqn: Rqn, number: u16, wqe: &RecvWqe) {
    trace.record(Kind::Wqe, "receive", |to| {
        rqn.show("rqn", to);
        number.show("wr", to);
        wqe.describe(to);
    });
}

/// Returns the scatter/gather elements of a payload, or `None` if all its data is inline.
fn sges(payload: &Payload) -> Option<Cow<'_, [Sge]>> {
    match payload {
        Payload::Sges(sges) => Some(Cow::Borrowed(sges)),
        Payload::Inline(_) => None,
        Payload::Mixed(pieces) => {
            let sge = |piece: &Piece| match piece {
                Piece::Sge(sge) => Some(*sge),
                Piece::Inline(_) => None,
            };
            Some(pieces.iter().filter_map(sge).collect())
        }
    }
}

fn data(sges: &[Sge]) -> Vec<DataSegment> {
    sges.iter().map(|sge| DataSegment { byte_count: sge.len, lkey: sge.lkey, va: sge.va }).collect()
}

/// Records a CQE. `slot` is its free-running index, and `lost` is set if the CQE was not written.
pub(super) fn cqe(trace: &mut Trace, cqn: Cqn, slot: u32, cqe: &Cqe, lost: Option<&LostEntry>) {
    let name = match cqe {
        Cqe::Sent(_) | Cqe::Failed(Failure { send: true, .. }) => "send",
        Cqe::Received(_) | Cqe::Failed(_) => "recv",
        Cqe::Resize => "resize",
        Cqe::Frame(_) => "frame",
    };
    let wr = match cqe {
        Cqe::Sent(sent) => Some(sent.wqe_counter),
        Cqe::Received(receipt) => Some(receipt.wqe_counter),
        Cqe::Failed(failure) => Some(failure.wqe_counter),
        Cqe::Resize => None,
        Cqe::Frame(receipt) => Some(receipt.fields().wqe_counter),
    };
    trace.record(Kind::Cqe, name, |to| {
        cqn.show("cqn", to);
        slot.show("slot", to);
        lost.map(|error| format!("{error}")).as_deref().show("lost", to);
        wr.show("wr", to);
        cqe.describe(to);
    });
}
