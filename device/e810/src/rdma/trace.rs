//! Trace records for RDMA: fetched work requests, and entries written to completion and event queues.

use card::memory::key_op::KeyOp;
use card::telemetry::monitor::Monitor;
use card::telemetry::trace::Kind;
use engine::{Fetch, Payload, RecvRequest, Remote, SendOp, SendRequest, Sge};
use protocol::describe::{Code, Describe, Field as _, Hex, Visitor};
use protocol::hca::e810::rdma::cqe::{Cqe, ExtendedCqe};
use protocol::hca::e810::rdma::event_queue::{AsyncEvent, EventCode};
use protocol::hca::e810::rdma::fragment::Fragment;
use protocol::hca::e810::rdma::send_wqe::opcode;
use protocol::ids::{Cqn, Qpn};

use super::completion_queue::PushError;
use super::send_queue::SendTag;

/// Records a request fetched from a send queue. `reject_code` is the reason why the request cannot be executed, if any.
pub(super) fn send(
    monitor: &mut Monitor,
    qpn: Qpn,
    fetch: &Fetch<SendRequest>,
    reject_code: Option<EventCode>,
) {
    let Some(trace) = monitor.trace() else { return };
    let (Fetch::Ready(SendRequest { wr_id, .. }) | Fetch::Refused { wr_id, .. }) = fetch else { return };
    let tag = SendTag::from_bits(*wr_id);
    trace.record(Kind::Wqe, "send", |to| {
        qpn.show("qpn", to);
        tag.index().show("wr", to);
        tag.index().show("index", to);
        Code(tag.opcode().into(), opcode::name(tag.opcode())).show("opcode", to);
        tag.signaled().show("signaled", to);
        match fetch {
            Fetch::Ready(request) => describe_request(request, to),
            _ => reject_code.show("refused", to),
        }
    });
}

fn describe_request(request: &SendRequest, to: &mut dyn Visitor) {
    use engine::Fence;
    match request.fence {
        Fence::None => {}
        Fence::Reads => "reads".show("fence", to),
        Fence::All => "all".show("fence", to),
    }
    request.solicited.show("solicited", to);
    let remote = |remote: &Remote, to: &mut dyn Visitor| {
        remote.va.show("remote_va", to);
        remote.rkey.show("rkey", to);
    };
    match &request.op {
        SendOp::Send { imm } => imm.show("imm", to),
        SendOp::SendInvalidate { rkey } => rkey.show("invalidate", to),
        SendOp::Write { remote: at, imm } => {
            remote(at, to);
            imm.show("imm", to);
        }
        SendOp::Read { remote: at, invalidate } => {
            remote(at, to);
            invalidate.show("invalidate", to);
        }
        SendOp::Local(op) => {
            if let Some(op) = KeyOp::of(&op.token) {
                describe_key_op(&op, to);
            }
            return;
        }
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::Nop => return,
    }
    request.payload.len().show("len", to);
    if let Payload::Sges(list) = &request.payload {
        show_list(list, to);
    }
    if let Some(ud) = &request.ud {
        ud.qpn.show("dqpn", to);
        ud.qkey.show("qkey", to);
        format_args!("{}", ud.path.dst_mac).show("dmac", to);
        format_args!("{}", ud.path.ip.dst()).show("dip", to);
    }
}

fn describe_key_op(op: &KeyOp, to: &mut dyn Visitor) {
    match op {
        KeyOp::Invalidate(key) => key.show("key", to),
        KeyOp::FastRegister(region) => {
            region.key.show("key", to);
            region.start.show("va", to);
            region.len.show("len", to);
            Hex(region.rights.bits()).show("rights", to);
            format_args!("{}", region.pages).show("pages", to);
        }
        KeyOp::Bind(bind) => {
            bind.window.show("window", to);
            bind.parent.show("parent", to);
            bind.va.show("va", to);
            bind.len.show("len", to);
            Hex(bind.rights.bits()).show("rights", to);
        }
    }
}

pub(super) fn receive(monitor: &mut Monitor, qpn: Qpn, fetch: &Fetch<RecvRequest>) {
    let Some(trace) = monitor.trace() else { return };
    let Fetch::Ready(request) = fetch else { return };
    trace.record(Kind::Wqe, "receive", |to| {
        qpn.show("qpn", to);
        request.wr_id.show("wr", to);
        request.wr_id.show("index", to);
        show_list(&request.sges, to);
    });
}

fn show_list(list: &[Sge], to: &mut dyn Visitor) {
    let list: Vec<_> = list.iter().map(|sge| Fragment { va: sge.va, key: sge.lkey, len: sge.len }).collect();
    to.objects("sge", &mut list.iter().map(|fragment| fragment as &dyn Describe));
}

/// Records a CQE. If `lost` is set, the CQE could not be written.
pub(super) fn completion(
    monitor: &mut Monitor,
    (cqn, slot): (Cqn, u32),
    entry: &Cqe,
    more: Option<&ExtendedCqe>,
    lost: Option<&PushError>,
) {
    let Some(trace) = monitor.trace() else { return };
    trace.record(Kind::Cqe, if entry.send { "send" } else { "receive" }, |to| {
        cqn.show("cqn", to);
        slot.show("slot", to);
        if let Some(lost) = lost {
            lost.fault.name().show("lost", to);
        }
        entry.qpn.show("qpn", to);
        entry.wqe_index.show("wr", to);
        to.object("entry", entry);
        if let Some(more) = more {
            to.object("more", more);
        }
    });
}

/// Records a completion event for a CEQ. If `lost` is set, the event could not be written.
pub(super) fn completion_event(monitor: &mut Monitor, ceq: u16, cookie: u64, lost: bool) {
    let Some(trace) = monitor.trace() else { return };
    trace.record(Kind::Eqe, "completion", |to| {
        ceq.show("ceq", to);
        Hex(cookie).show("cookie", to);
        if lost {
            lost.show("lost", to);
        }
    });
}

/// Records an asynchronous event. If `lost` is set, the event could not be written.
pub(super) fn async_event(monitor: &mut Monitor, event: &AsyncEvent, lost: bool) {
    let Some(trace) = monitor.trace() else { return };
    trace.record(Kind::Eqe, event.code.name().unwrap_or("unknown"), |to| {
        to.object("event", event);
        if lost {
            lost.show("lost", to);
        }
    });
}
