//! Send queue of UC and UD QPs, including QP0 and QP1.
//!
//! # Spec
//! IBTA volume 1, sections 9.8.2 (UC) and 9.8.3 (UD); JingZhao interface, section 6.7.

use protocol::Psn;
use protocol::ids::Qkey;
use protocol::roce::{Deth, Ext};

use crate::qp::attr::{Service, State};
use crate::qp::{Core, Ctx, FatalError, Frame, Headers, Step};
use crate::segment::{Segment, packet_count, segment};
use crate::{
    Fetch, Host, Queue, ReadyHeader, SendDone, SendOp, SendRequest, Status, Success, UdDestination,
    WaitReason, limits,
};

/// The message being sent.
#[derive(Debug)]
struct Current {
    wr: SendRequest,
    len: u32,
    packets: u32,
    next: u32,
}

#[derive(Debug)]
pub(crate) struct Sender {
    psn: Psn,
    current: Option<Current>,
    may_have_posted: bool,
}

impl Sender {
    pub(crate) fn new(psn: Psn) -> Self {
        Self { psn, current: None, may_have_posted: false }
    }

    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.psn = psn;
    }

    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    pub(crate) fn notify_send(&mut self) {
        self.may_have_posted = true;
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.current.is_none()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.may_have_posted || self.current.is_some()
    }

    /// Returns why [`Sender::transmit`] would not produce a frame, or [`WaitReason::Turn`] if it would produce one.
    pub(crate) fn wait_reason(&self, core: &Core) -> WaitReason {
        match core.state {
            _ if self.current.is_some() => WaitReason::Turn,
            State::Sqd => WaitReason::Drained,
            _ if self.may_have_posted => WaitReason::Turn,
            _ => WaitReason::NothingPosted,
        }
    }

    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        if let Some(current) = self.current.take() {
            ctx.complete(core, Queue::Send, current.wr.wr_id, Err(Status::Flushed));
        }
        self.may_have_posted = false;
    }

    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, FatalError> {
        // The loop is bounded because a guest can link a chain of NOPs to itself.
        for _ in 0..limits::REQUESTS_PER_STEP {
            if self.current.is_some() {
                return self.send(core, ctx, out);
            }
            if !self.may_have_posted || core.state != State::Rts {
                return Ok(Step::Idle);
            }
            match ctx.host.next_send(core.qpn) {
                Fetch::Ready(wr) if wr.op == SendOp::Nop => {
                    ctx.complete_send(core, wr.wr_id, SendOp::Nop, 0);
                }
                Fetch::Ready(SendRequest { wr_id, op: SendOp::Local(op), .. })
                    if !core.attrs.service.is_datagram() =>
                {
                    // Older requests have been sent and are never retransmitted, so no fence is needed.
                    if let Err(reason) = ctx.host.run_local(core.initiator(), &op.token) {
                        return Err(fail(core, ctx, wr_id, Status::MemoryManagement(reason)));
                    }
                    ctx.complete_send(core, wr_id, SendOp::Local(op), 0);
                }
                Fetch::Ready(wr) => match message_len(core, &wr) {
                    Ok(len) => {
                        let packets = packet_count(len, core.mtu());
                        self.current = Some(Current { wr, len, packets, next: 0 });
                    }
                    Err(status) => return Err(fail(core, ctx, wr.wr_id, status)),
                },
                Fetch::Refused { wr_id, status } => return Err(fail(core, ctx, wr_id, status)),
                Fetch::Empty => self.may_have_posted = false,
                Fetch::Broken => return Err(FatalError::Queue(Queue::Send)),
            }
        }
        Ok(Step::Again)
    }

    fn send<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, FatalError> {
        let Some(current) = &mut self.current else { return Ok(Step::Idle) };
        let wr_id = current.wr.wr_id;
        let end = current.next + core.packets_in_frame(ctx, current.next);
        let packets = current.next..current.packets.min(end);
        let Some(segment) = segment(&current.wr.op, current.len, core.mtu(), packets.clone()) else {
            self.current = None;
            return Err(fail(core, ctx, wr_id, Status::LocalQpOperation));
        };
        let mut bth = core.bth(ctx, segment.operation, self.psn);
        let last = segment.operation.position().ends();
        bth.solicited = last && current.wr.solicited && current.wr.op.consumes_receive();
        let (path, ext) = match &current.wr.ud {
            Some(to) if core.attrs.service.is_datagram() => {
                bth.dest_qp = to.qpn;
                if let Some(header) = header_of(core, to) {
                    (bth.pkey, bth.psn) = (header.pkey, header.psn);
                }
                (&to.path, datagram_ext(core, to, &segment))
            }
            _ => (&core.attrs.path, segment.ext),
        };
        let (dst_mac, remote_qpn) = (path.dst_mac, bth.dest_qp);
        let headers = Headers { encap: path, bth: &bth, srqn: None, ext: &ext };
        let payload = segment.payload(core.initiator(), &current.wr.payload);
        let emitted = match ctx.emit(core, out, &headers, &payload) {
            Ok(emitted) => emitted,
            Err(reason) => {
                self.current = None;
                return Err(fail(core, ctx, wr_id, Status::LocalProtection(reason)));
            }
        };
        self.psn = self.psn.advance(emitted.packets);
        current.next = packets.end;
        if current.next == current.packets {
            let (op, byte_len) = (current.wr.op, current.len);
            let done = SendDone { op, byte_len, remote_qpn, remote_mac: dst_mac };
            ctx.complete(core, Queue::Send, wr_id, Ok(Success::Send(done)));
            self.current = None;
        }
        Ok(Step::Frame(Frame { emitted, dst_mac, wr_id: Some(wr_id) }))
    }
}

/// Returns the message length, if the service supports both the operation and the length.
fn message_len(core: &Core, wr: &SendRequest) -> Result<u32, Status> {
    let datagram = core.attrs.service.is_datagram();
    let supported = match &wr.op {
        SendOp::Send { .. } => !datagram || wr.ud.is_some(),
        SendOp::Write { .. } => !datagram,
        _ => false,
    };
    if !supported {
        return Err(Status::LocalQpOperation);
    }
    let mtu = u32::try_from(core.mtu()).unwrap_or(u32::MAX);
    let most = core.attrs.max_message_len;
    let longest = if datagram { mtu.min(most) } else { most };
    u32::try_from(wr.payload.len()).ok().filter(|&len| len <= longest).ok_or(Status::LocalLength)
}

/// Returns the header fields supplied by software, which only QP0 and QP1 accept.
fn header_of(core: &Core, to: &UdDestination) -> Option<ReadyHeader> {
    to.header.filter(|_| matches!(core.attrs.service, Service::Smi | Service::Gsi))
}

/// Builds a datagram's extension headers. A controlled Q_Key (bit 31 set) is replaced with the QP's Q_Key (IBTA volume
/// 1, section 10.2.5).
fn datagram_ext(core: &Core, to: &UdDestination, segment: &Segment) -> Ext {
    let header = header_of(core, to);
    let controlled = to.qkey.get() >> 31 != 0 && header.is_none();
    let qkey: Qkey = if controlled { core.attrs.qkey } else { to.qkey };
    let deth = Deth { qkey, src_qp: header.map_or(core.wire_qpn(), |header| header.src_qp) };
    match segment.ext {
        Ext::Imm(imm) => Ext::DethImm(deth, imm),
        _ => Ext::Deth(deth),
    }
}

fn fail<H: Host>(core: &Core, ctx: &mut Ctx<'_, H>, wr_id: u64, status: Status) -> FatalError {
    ctx.complete(core, Queue::Send, wr_id, Err(status));
    FatalError::Send(status)
}
