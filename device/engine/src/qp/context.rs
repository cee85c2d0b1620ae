//! What the machines of a QP have in common: its identity, its surroundings, and how a step ends.

use std::collections::VecDeque;

use protocol::Psn;
use protocol::ids::{MacAddr, Qpn};
use protocol::roce::{Bth, Encap, Ext, FrameWriter, IcrcField, Opcode, Operation};

use super::attr::{Flush, QpAttrs, State};
use crate::held::Held;
use crate::pkeys::Pkeys;
use crate::stats::Stats;
use crate::{
    AccessError, Accessor, AsyncEvent, Completion, DropReason, Dropped, Event, Host, Instant, Queue,
    SendDone, SendOp, Status, Success,
};

/// Identity and attributes.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) qpn: Qpn,
    pub(crate) state: State,
    pub(crate) attrs: QpAttrs,
}

/// Surroundings of one input.
pub(crate) struct Ctx<'a, H> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut H,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) stats: &'a mut Stats,
    pub(crate) pkeys: &'a Pkeys,
    /// Of all QPs, as of the beginning of the input.
    pub(crate) held: Held,
    /// What frames are to have in it.
    pub(crate) icrc: IcrcField,
}

/// Why a machine cannot go on. Its own completion, event and NAK are already queued; the QP changes state and flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A send request failed.
    Send(Status),
    /// The responder refused a request, and has said so in a NAK that still has to go out.
    Recv(DropReason, Option<AccessError>),
    /// A work queue cannot be read.
    Queue(Queue),
}

/// A frame that was appended to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) len: usize,
    pub(crate) dst_mac: MacAddr,
    pub(crate) wr_id: Option<u64>,
}

/// Result of asking a machine for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Frame(Frame),
    /// No frame yet, but there is more to do.
    Again,
    /// Nothing to do until the next input.
    Idle,
}

/// Packets from `base` to `psn`, modulo 2^24. Within one QP's outstanding range this orders PSNs.
pub(crate) fn ahead(psn: Psn, base: Psn) -> u32 {
    Psn::new(psn.get().wrapping_sub(base.get())).get()
}

impl Core {
    /// BTH of a packet to the connected peer.
    pub(crate) fn bth<H>(&self, ctx: &Ctx<'_, H>, operation: Operation, psn: Psn) -> Bth {
        Bth {
            opcode: Opcode { transport: self.attrs.service.transport(), operation },
            solicited: false,
            mig_req: true,
            pkey: ctx.pkeys.get(self.attrs.pkey_index),
            fecn: false,
            becn: false,
            dest_qp: self.attrs.remote_qpn,
            ack_req: false,
            psn,
        }
    }

    /// Who accesses memory in the QP's name.
    pub(crate) fn accessor(&self) -> Accessor {
        let QpAttrs { pd, reserved_lkey, .. } = self.attrs;
        Accessor { pd, qpn: self.qpn, reserved_lkey }
    }

    /// The number by which others know the QP.
    pub(crate) fn wire_qpn(&self) -> Qpn {
        self.attrs.service.wire_number().unwrap_or(self.qpn)
    }

    pub(crate) fn mtu(&self) -> usize {
        self.attrs.mtu.bytes()
    }
}

impl<H: Host> Ctx<'_, H> {
    /// Reports a request, unless it is flushed and the owner does that.
    pub(crate) fn complete(
        &mut self,
        core: &Core,
        queue: Queue,
        wr_id: u64,
        result: Result<Success, Status>,
    ) {
        if result == Err(Status::Flushed) && core.attrs.flush == Flush::Owner {
            return;
        }
        if let Ok(Success::Send(done)) = &result {
            self.stats.requested.count_request(&done.op);
        }
        self.events.push_back(Event::Completion(Completion { qpn: core.qpn, queue, wr_id, result }));
    }

    /// Success of a send request to the connected peer.
    pub(crate) fn complete_send(&mut self, core: &Core, wr_id: u64, op: SendOp, byte_len: u32) {
        let done =
            SendDone { op, byte_len, remote_qpn: core.attrs.remote_qpn, remote_mac: core.attrs.path.dst_mac };
        self.complete(core, Queue::Send, wr_id, Ok(Success::Send(done)));
    }

    /// A packet changes nothing, or is refused.
    #[cold]
    pub(crate) fn drop(&mut self, dropped: &Dropped) {
        self.stats.drops.count(dropped.reason);
        self.host.dropped(dropped);
    }

    pub(crate) fn raise(&mut self, core: &Core, event: AsyncEvent) {
        self.events.push_back(Event::Async { qpn: core.qpn, event });
    }

    /// Appends one frame, of whose payload `fill` appends all. When `fill` fails, nothing is appended.
    pub(crate) fn emit(
        &mut self,
        out: &mut Vec<u8>,
        encap: &Encap,
        bth: &Bth,
        ext: &Ext,
        payload_len: usize,
        fill: impl FnOnce(&H, &mut Vec<u8>) -> Result<(), AccessError>,
    ) -> Result<usize, AccessError> {
        let mut writer = FrameWriter::new(out, encap, bth, ext, payload_len);
        if payload_len > 0 {
            writer.payload(|out| fill(self.host, out))?;
        }
        let len = writer.finish_with(self.icrc);
        self.stats.sent_packets += 1;
        self.stats.sent_opcodes.count(bth.opcode);
        self.stats.sent_payload_bytes += payload_len as u64;
        self.stats.sent_ip.count(&encap.ip, len.saturating_sub(encap.ether_len()));
        Ok(len)
    }
}
