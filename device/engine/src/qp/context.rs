//! Types shared by requester and responder: QP identity, call context, errors and step results.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use protocol::Psn;
use protocol::ids::{MacAddr, Qpn, Srqn};
use protocol::roce::{
    Bth, Encap, Ext, FrameWriter, Kind, Mtu, Offload, Opcode, Operation, PacketPayload as _, PacketWith,
    PayloadLen,
};

use super::attr::{Flush, QpAttrs, Service, State};
use super::requester::Request;
use crate::gather::FramePayload;
use crate::pkeys::Pkeys;
use crate::pooled_slots::{PooledSlots, SpareBuffers};
use crate::segment::packets_in_frame;
use crate::stats::Stats;
use crate::{
    AccessError, AsyncEvent, Completion, DetachedPayload, DropReason, Dropped, Event, Host, Initiator,
    Instant, NakKind, PeerRequest, Queue, ReceivedNak, RecvSource, Room, SendDone, SendOp, SendRequest,
    Status, Success, TxOffloads,
};

/// Minimum length in bytes of a [detached payload](DetachedPayload). Copying a shorter payload costs less than
/// detaching it.
pub(crate) const MIN_DETACHED_LEN: usize = 2048;

/// Length of a UDP header in bytes.
pub(crate) const UDP_LEN: usize = 8;

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) qpn: Qpn,
    pub(crate) state: State,
    pub(crate) attrs: QpAttrs,
}

/// Context of one call into a QP.
pub(crate) struct Ctx<'a, H: Host> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut H,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) stats: &'a mut Stats,
    pub(crate) pkeys: &'a Pkeys,
    /// Number of pooled slots allocated to all QPs at the start of the call, plus the request slots that the call
    /// itself has allocated.
    pub(crate) pooled: PooledSlots,
    pub(crate) spares: &'a mut SpareBuffers<Request>,
    pub(crate) offloads: TxOffloads,
    /// Ranges of detached payload, or `None` if all payload is copied.
    pub(crate) ranges: Option<&'a mut Vec<H::Range>>,
    /// Limit on the frames that the call appends.
    pub(crate) room: Room,
}

/// An error that stops the QP. Any completion or NAK that it produces is already queued. The caller changes the QP
/// state and flushes the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FatalError {
    /// A send request failed.
    Send(Status),
    /// The responder rejected a request. The NAK is queued but not yet sent.
    Recv(DropReason, Option<AccessError>),
    /// A work queue cannot be read.
    Queue(Queue),
    /// The SRQ specified by an XRC message cannot be read.
    XrcSrq(Srqn),
}

/// Context in which a received request is executed: the identity that its memory accesses are checked against, and the
/// queue that its receive request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext {
    pub(crate) initiator: Initiator,
    pub(crate) source: RecvSource,
}

pub(crate) struct Headers<'a> {
    pub(crate) encap: &'a Encap,
    pub(crate) bth: &'a Bth,
    pub(crate) srqn: Option<Srqn>,
    pub(crate) ext: &'a Ext,
}

/// Size of a frame or a burst of frames that was appended to the output, and the work left to do on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Emitted {
    /// Number of frames, which all have the same length.
    pub(crate) frames: u32,
    /// Number of bytes appended for each frame, excluding a detached payload.
    pub(crate) len: usize,
    /// Number of packets that the frames carry.
    pub(crate) packets: u32,
    /// Total length of the packets in bytes, from the BTH to the ICRC.
    pub(crate) octets: u32,
    pub(crate) offload: Offload,
    /// Payload of the frame, if it is detached.
    pub(crate) detached: Option<DetachedPayload>,
}

impl Emitted {
    /// Returns the length in bytes of a frame with its payload, whether or not the payload is detached.
    pub(crate) fn frame_len(&self) -> usize {
        self.len + self.detached.map_or(0, |payload| payload.len.get() as usize)
    }
}

/// A frame or a burst of frames that was appended to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) emitted: Emitted,
    pub(crate) dst_mac: MacAddr,
    /// Work request of the first frame, if it carries request packets.
    pub(crate) wr_id: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Frame(Frame),
    /// No frame was produced, but more work is left.
    Again,
    /// No work is left until the next input or deadline.
    Idle,
}

/// Returns the distance from `base` to `psn`, modulo 2^24. PSNs wrap, so a QP's outstanding PSNs are ordered by their
/// distance from a common base.
pub(crate) fn ahead(psn: Psn, base: Psn) -> u32 {
    Psn::new(psn.get().wrapping_sub(base.get())).get()
}

impl Core {
    /// Returns the BTH for a packet to the connected peer.
    pub(crate) fn bth<H: Host>(&self, ctx: &Ctx<'_, H>, operation: Operation, psn: Psn) -> Bth {
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

    pub(crate) fn initiator(&self) -> Initiator {
        let QpAttrs { pd, reserved_lkey, .. } = self.attrs;
        Initiator { pd, qpn: self.qpn, reserved_lkey }
    }

    /// Returns the request context for services other than XRC.
    pub(crate) fn request_context(&self) -> RequestContext {
        RequestContext { initiator: self.initiator(), source: RecvSource::Qp(self.qpn) }
    }

    pub(crate) fn uses_srq(&self) -> bool {
        self.attrs.srq || self.attrs.service == Service::XrcTgt
    }

    /// Returns the SRQ number for a request packet's XRCETH.
    pub(crate) fn xrceth(&self, wr: &SendRequest) -> Option<Srqn> {
        wr.remote_srq.filter(|_| self.attrs.service == Service::XrcIni)
    }

    pub(crate) fn wire_qpn(&self) -> Qpn {
        self.attrs.service.wire_number().unwrap_or(self.qpn)
    }

    pub(crate) fn mtu(&self) -> usize {
        self.attrs.mtu.bytes()
    }

    /// Returns the maximum number of packets that one frame to the connected peer can carry, starting with packet
    /// `index` of a message. Frames whose destination MAC address the port has to resolve carry one packet, because the
    /// port may have to hold them in wire format until the address is known.
    pub(crate) fn packets_in_frame<H: Host>(&self, ctx: &Ctx<'_, H>, index: u32) -> u32 {
        if ctx.offloads == TxOffloads::Segmentation && self.has_resolved_peer() {
            packets_in_frame(self.mtu(), index)
        } else {
            1
        }
    }

    /// Returns whether payload may be detached. On an unreliable service, a request completes when it is sent, so its
    /// payload must be copied to the frame immediately.
    fn may_detach(&self) -> bool {
        self.attrs.service.is_reliable() && self.has_resolved_peer()
    }

    pub(crate) fn has_resolved_peer(&self) -> bool {
        let dst_mac = self.attrs.path.dst_mac;
        dst_mac != MacAddr::default() && !dst_mac.is_multicast()
    }
}

impl<H: Host> Ctx<'_, H> {
    /// Counts a request that the responder has executed.
    #[inline]
    pub(crate) fn count_executed(&mut self, core: &Core, kind: Kind) {
        self.stats.executed.count(kind);
        let request = match kind {
            Kind::Write => PeerRequest::Write,
            Kind::Read => PeerRequest::Read,
            Kind::Atomic => PeerRequest::Atomic,
            // SENDs are not reported, since the device can count each one when it provides the receive request.
            Kind::Send
            | Kind::ReadResponse
            | Kind::Acknowledge
            | Kind::AtomicAcknowledge
            | Kind::Reserved => return,
        };
        self.host.request_executed(core.qpn, request);
    }

    /// Reports a completion for a queue of the QP; see [`Ctx::complete_from`].
    pub(crate) fn complete(
        &mut self,
        core: &Core,
        queue: Queue,
        wr_id: u64,
        result: Result<Success, Status>,
    ) {
        self.complete_from(core, (queue, None), wr_id, result);
    }

    /// Reports a completion, unless the request is flushed and the engine's owner reports flushed requests itself.
    /// `srqn` is the XRC SRQ that the request came from, if any.
    pub(crate) fn complete_from(
        &mut self,
        core: &Core,
        (queue, srqn): (Queue, Option<Srqn>),
        wr_id: u64,
        result: Result<Success, Status>,
    ) {
        if result == Err(Status::Flushed) && core.attrs.flush == Flush::Owner {
            return;
        }
        if let Ok(Success::Send(done)) = &result {
            self.stats.requested.count_request(&done.op);
        }
        self.events.push_back(Event::Completion(Completion { qpn: core.qpn, queue, srqn, wr_id, result }));
    }

    /// Reports that a send request to the connected peer succeeded.
    pub(crate) fn complete_send(&mut self, core: &Core, wr_id: u64, op: SendOp, byte_len: u32) {
        let done =
            SendDone { op, byte_len, remote_qpn: core.attrs.remote_qpn, remote_mac: core.attrs.path.dst_mac };
        self.complete(core, Queue::Send, wr_id, Ok(Success::Send(done)));
    }

    /// Counts and reports a packet that is dropped or rejected.
    #[cold]
    pub(crate) fn drop_packet(&mut self, dropped: &Dropped) {
        self.stats.drops.count(dropped.reason);
        self.host.dropped(dropped);
    }

    /// Reports a NAK that the requester handles.
    #[cold]
    pub(crate) fn report_nak(&mut self, core: &Core, psn: Psn, kind: NakKind) {
        self.host.nak_received(&ReceivedNak { qpn: core.qpn, psn, kind });
    }

    pub(crate) fn raise(&mut self, core: &Core, event: AsyncEvent) {
        self.events.push_back(Event::Async { qpn: core.qpn, event });
    }

    /// Appends one frame to `out`. A payload longer than the path MTU is left to segmentation offload, and a long
    /// payload is detached if possible. On error, nothing is appended.
    pub(crate) fn emit(
        &mut self,
        core: &Core,
        out: &mut Vec<u8>,
        headers: &Headers<'_>,
        payload: &FramePayload<'_>,
    ) -> Result<Emitted, AccessError> {
        let payload_len = payload.len();
        let offload = match self.offloads {
            TxOffloads::None => Offload::None,
            TxOffloads::Segmentation if payload_len > core.mtu() => Offload::Segmentation(core.attrs.mtu),
            TxOffloads::Icrc | TxOffloads::Segmentation => Offload::Icrc,
        };
        let Headers { encap, bth, srqn, ext } = *headers;
        let mut writer = FrameWriter::with_xrceth(out, encap, bth, srqn, ext, payload_len);
        let detached = match &mut self.ranges {
            Some(ranges)
                if offload != Offload::None && payload_len >= MIN_DETACHED_LEN && core.may_detach() =>
            {
                locate(self.host, ranges, payload)?
            }
            _ => None,
        };
        let (len, detached) = match detached {
            Some((ranges, detached_len)) => {
                let (len, at) = writer.finish_without_payload();
                (len, Some(DetachedPayload { at, ranges, len: detached_len }))
            }
            None => {
                if payload_len > 0 {
                    writer.payload(|out| payload.append(self.host, out))?;
                }
                (writer.finish_with(offload), None)
            }
        };
        if let Offload::Segmentation(mtu) = offload {
            let (packets, octets) = self.count_segments(headers, payload_len, mtu);
            return Ok(Emitted { frames: 1, len, packets, octets, offload, detached });
        }
        let ip_octets =
            len.saturating_sub(encap.ether_len()) + detached.map_or(0, |payload| payload.len.get() as usize);
        self.count_sent(encap, bth.opcode, payload_len, ip_octets, 1);
        let octets = ip_octets.saturating_sub(encap.ip.header_len() + UDP_LEN);
        let octets = u32::try_from(octets).unwrap_or(u32::MAX);
        Ok(Emitted { frames: 1, len, packets: 1, octets, offload, detached })
    }

    /// Adds `frames` further frames of a burst to the counters. Each carries one packet with the given opcode, like the
    /// first frame. Returns the size of the whole burst.
    pub(crate) fn count_burst(
        &mut self,
        core: &Core,
        first: Emitted,
        (opcode, payload_len): (Opcode, usize),
        frames: u32,
    ) -> Emitted {
        let encap = &core.attrs.path;
        let ip_octets = first.octets as usize + encap.ip.header_len() + UDP_LEN;
        self.count_sent(encap, opcode, payload_len, ip_octets, frames);
        let all = first.frames + frames;
        Emitted { frames: all, packets: all, octets: first.octets * all, ..first }
    }

    /// Counts the packets of a frame with segmentation offload, as if each had a frame of its own. Returns their number
    /// and their total length, from the BTH to the ICRC.
    fn count_segments(&mut self, headers: &Headers<'_>, payload_len: usize, mtu: Mtu) -> (u32, u32) {
        let Headers { encap, bth, srqn, ext } = *headers;
        let packet = PacketWith { bth: *bth, srqn, ext: *ext, payload: PayloadLen(payload_len) };
        for (segment, packets) in packet.segment_runs(mtu) {
            let octets = encap.ip.header_len() + UDP_LEN + segment.wire_len();
            self.count_sent(encap, segment.bth.opcode, segment.payload.len(), octets, packets);
        }
        let octets = u32::try_from(packet.segmented_wire_len(mtu)).unwrap_or(u32::MAX);
        (packet.segment_count(mtu), octets)
    }

    /// Counts `packets` packets of `octets` each, including the IP header.
    fn count_sent(&mut self, encap: &Encap, opcode: Opcode, payload: usize, octets: usize, packets: u32) {
        let count = u64::from(packets);
        self.stats.sent_packets += count;
        self.stats.sent_opcodes.count(opcode, packets);
        self.stats.sent_payload_bytes += count * payload as u64;
        self.stats.sent_ip.count(&encap.ip, octets, packets);
    }
}

/// Detaches a payload by appending the ranges that contain it to `ranges`. Returns the number of ranges and the length
/// of the payload. Returns `None` if the payload cannot be detached as a whole, and then appends nothing.
fn locate<H: Host>(
    host: &H,
    ranges: &mut Vec<H::Range>,
    payload: &FramePayload<'_>,
) -> Result<Option<(u16, NonZeroU32)>, AccessError> {
    let before = ranges.len();
    let located = payload.locate(host, ranges);
    let count = u16::try_from(ranges.len() - before).ok();
    let len = u32::try_from(payload.len()).ok().and_then(NonZeroU32::new);
    match (located, count.zip(len)) {
        (Ok(true), Some(payload)) => Ok(Some(payload)),
        _ => {
            ranges.truncate(before);
            located.map(|_| None)
        }
    }
}
