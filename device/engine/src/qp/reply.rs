//! A responder's replies: acknowledgements, READ responses and atomic results, in request order.
//!
//! Each packet of a READ response is built when it is sent, from the memory contents at that time. Consecutive
//! acknowledgements coalesce into the newest, which covers the older ones.
//!
//! A peer cannot use the responder to amplify traffic:
//!
//! - Replies go to the connection's address, never to an address taken from a packet.
//! - A request packet triggers at most one acknowledgement, NAK or atomic result: 62 bytes over IPv4, 70 with a result.
//! - The responses to a READ carry only the requested bytes and are sent only if the key permits the access. If a READ
//!   is repeated while its responses are being sent, they restart instead of being sent twice.
//! - Datagrams are never answered, nor are packets that no QP accepts.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.5.1 (acknowledge messages) and 9.7.5.1.4 (coalescing).

use std::collections::VecDeque;

use protocol::Psn;
use protocol::ids::{Msn, Pdn, Rkey, Va};
use protocol::roce::{Aeth, Ext, NakCode, Opcode, Operation, Position, Reth, Syndrome};

use super::requester::credits::credit_code;
use super::{Core, Ctx, FatalError, Frame, Headers, Step, ahead};
use crate::gather::FramePayload;
use crate::pooled_slots::shrink_if_empty;
use crate::segment::{packet_count, payload_len};
use crate::{AsyncEvent, DropReason, Dropped, Host, Initiator, limits};

#[derive(Debug)]
enum Reply {
    Acknowledge { psn: Psn, aeth: Aeth },
    Atomic { psn: Psn, aeth: Aeth, original: u64, kind: ReplyKind },
    Read(ReadReply),
}

const _: () = assert!(size_of::<Reply>() <= 48, "the table in `limits` gives the size of a reply");

/// Whether a reply is the first to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// The request has just been executed.
    Original,
    /// The request is a duplicate of one that has already been answered.
    Duplicate,
}

/// A READ whose responses are being sent.
#[derive(Debug)]
struct ReadReply {
    first: Psn,
    va: Va,
    rkey: Rkey,
    len: u32,
    /// Index of the next response packet.
    next: u32,
    /// Number of response packets.
    packets: u32,
    /// Index of the first response packet to send; greater than 0 if the peer has repeated the READ starting from a
    /// later packet.
    begin: u32,
    msn: Msn,
    /// Protection domain of the SRQ specified by the request (XRC).
    srq_pd: Option<Pdn>,
    kind: ReplyKind,
}

#[derive(Debug, Default)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
    /// Whether the shared pool is exhausted, so that only this QP's reserved slots can be used.
    pool_exhausted: bool,
}

impl Replies {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn has_data_next(&self) -> bool {
        matches!(self.queue.front(), Some(Reply::Read(_)))
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        shrink_if_empty(&mut self.queue, limits::KEPT_REPLIES);
    }

    pub(crate) fn pooled_slots(&self) -> usize {
        self.queue.capacity().saturating_sub(limits::KEPT_REPLIES)
    }

    pub(crate) fn set_pool_exhausted(&mut self, pool_exhausted: bool) {
        self.pool_exhausted = pool_exhausted;
    }

    /// Returns whether there is room for the reply to another READ or atomic.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.limit(limits::PENDING_REPLIES)
    }

    /// Returns the number of READs and atomics that have been executed but not yet answered. Duplicates do not count.
    /// If they did, a late copy of a request could cause a new request to be rejected even though the peer is within
    /// its limit.
    pub(crate) fn unanswered(&self) -> usize {
        let first = |reply: &&Reply| match reply {
            Reply::Acknowledge { .. } => false,
            Reply::Atomic { kind, .. } => *kind == ReplyKind::Original,
            Reply::Read(read) => read.kind == ReplyKind::Original,
        };
        self.queue.iter().filter(first).count()
    }

    /// Acknowledges all packets up to `psn`, replacing a pending ACK. A pending NAK is kept even if the missing packet
    /// has arrived in the meantime, because only ACKs may be coalesced (IBTA volume 1, section 9.7.5.1.4).
    pub(crate) fn push_ack(&mut self, psn: Psn, msn: Msn) {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn };
        match self.queue.back_mut() {
            Some(Reply::Acknowledge { psn: last_psn, aeth: last })
                if matches!(last.syndrome, Syndrome::Ack { .. }) =>
            {
                (*last_psn, *last) = (psn, aeth);
            }
            _ => self.push_acknowledgement(psn, aeth),
        }
    }

    /// Queues a NAK for `psn`, unless the newest pending reply is the same NAK.
    pub(crate) fn push_nak(&mut self, psn: Psn, msn: Msn, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn };
        let waits = matches!(self.queue.back(),
            Some(Reply::Acknowledge { psn: last_psn, aeth: last }) if *last_psn == psn && *last == aeth);
        if !waits {
            self.push_acknowledgement(psn, aeth);
        }
    }

    /// Queues an acknowledgement. If the queue is full, the acknowledgement is dropped as if lost on the wire, and the
    /// requester times out and retries.
    fn push_acknowledgement(&mut self, psn: Psn, aeth: Aeth) {
        if self.queue.len() < self.limit(limits::PENDING_ANSWERS) {
            self.queue.push_back(Reply::Acknowledge { psn, aeth });
        }
    }

    fn limit(&self, unrestricted: usize) -> usize {
        if self.pool_exhausted { limits::KEPT_REPLIES } else { unrestricted }
    }

    pub(crate) fn push_atomic(&mut self, psn: Psn, msn: Msn, original: u64, kind: ReplyKind) {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn };
        self.queue.push_back(Reply::Atomic { psn, aeth, original, kind });
    }

    pub(crate) fn push_read(
        &mut self,
        psn: Psn,
        msn: Msn,
        reth: &Reth,
        mtu: usize,
        srq_pd: Option<Pdn>,
        kind: ReplyKind,
    ) {
        self.queue.push_back(Reply::Read(ReadReply {
            first: psn,
            va: reth.va,
            rkey: reth.rkey,
            len: reth.dma_len,
            next: 0,
            packets: packet_count(reth.dma_len, mtu),
            begin: 0,
            msn,
            srq_pd,
            kind,
        }));
    }

    /// Restarts the responses to the pending READ that covers `psn`, beginning with a FIRST or ONLY packet at that PSN.
    /// Has no effect if the responses have not reached that PSN yet. Returns false if no pending READ covers `psn`.
    pub(crate) fn rewind_read(&mut self, psn: Psn) -> bool {
        for reply in &mut self.queue {
            if let Reply::Read(read) = reply {
                let index = ahead(psn, read.first);
                if index < read.packets {
                    if index <= read.next {
                        (read.next, read.begin) = (index, index);
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Returns whether the result of the atomic at `psn` is waiting to be sent.
    pub(crate) fn has_atomic(&self, psn: Psn) -> bool {
        self.queue.iter().any(|reply| matches!(reply, Reply::Atomic { psn: waiting, .. } if *waiting == psn))
    }

    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, FatalError> {
        let (operation, ext, psn) = match self.queue.front_mut() {
            None => return Ok(Step::Idle),
            Some(Reply::Read(_)) => return self.transmit_read(core, ctx, out),
            Some(Reply::Acknowledge { psn, aeth }) => {
                count_nak(ctx, aeth.syndrome);
                (Operation::Acknowledge, Ext::Aeth(with_credits(core, ctx, *aeth)), *psn)
            }
            Some(Reply::Atomic { psn, aeth, original, .. }) => (
                Operation::AtomicAcknowledge,
                Ext::AtomicAck(with_credits(core, ctx, *aeth), *original),
                *psn,
            ),
        };
        self.queue.pop_front();
        shrink_if_empty(&mut self.queue, limits::KEPT_REPLIES);
        let bth = core.bth(ctx, operation, psn);
        let headers = Headers { encap: &core.attrs.path, bth: &bth, srqn: None, ext: &ext };
        let emitted = ctx
            .emit(core, out, &headers, &FramePayload::EMPTY)
            .expect("a packet without payload reads no memory");
        Ok(Step::Frame(Frame { emitted, dst_mac: core.attrs.path.dst_mac, wr_id: None }))
    }

    fn transmit_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, FatalError> {
        let Some(Reply::Read(read)) = self.queue.front_mut() else { return Ok(Step::Idle) };
        let index = read.next;
        let packets = index..read.packets.min(index + core.packets_in_frame(ctx, index));
        let last = packets.end == read.packets;
        let position = Position::of(index == read.begin, last);
        let ext = match position {
            Position::Middle => Ext::None,
            _ => Ext::Aeth(with_credits(core, ctx, Aeth { syndrome: Syndrome::ACK, msn: read.msn })),
        };
        let psn = read.first.advance(index);
        let bth = core.bth(ctx, Operation::read_response(position), psn);
        let len = payload_len(read.len, core.mtu(), packets.clone());
        let va = Va::new(read.va.get().wrapping_add(u64::from(index) * core.mtu() as u64));
        let (rkey, msn, kind) = (read.rkey, read.msn, read.kind);
        let own = core.initiator();
        let initiator = Initiator { pd: read.srq_pd.unwrap_or(own.pd), ..own };
        let headers = Headers { encap: &core.attrs.path, bth: &bth, srqn: None, ext: &ext };
        let payload = FramePayload::Region { initiator, key: rkey.as_lkey(), va, len };
        let emitted = match ctx.emit(core, out, &headers, &payload) {
            Ok(emitted) => emitted,
            Err(reason) => {
                // The access was permitted when the READ was accepted, but no longer is.
                let drop = |why| Dropped {
                    qpn: core.qpn,
                    opcode: Opcode {
                        transport: core.attrs.service.transport(),
                        operation: Operation::ReadRequest,
                    },
                    psn,
                    reason: why,
                    cause: Some(reason),
                };
                // A duplicate never triggers a NAK, because it may be forged or a late copy.
                if kind == ReplyKind::Duplicate {
                    ctx.drop_packet(&drop(DropReason::StaleDuplicate));
                    self.queue.pop_front();
                    return Ok(Step::Again);
                }
                ctx.drop_packet(&drop(DropReason::NoAccess));
                self.clear();
                self.push_nak(psn, msn, Syndrome::Nak(NakCode::RemoteAccess));
                ctx.raise(core, AsyncEvent::AccessError(reason));
                return Err(FatalError::Recv(DropReason::NoAccess, Some(reason)));
            }
        };
        read.next = packets.end;
        if last {
            self.queue.pop_front();
            shrink_if_empty(&mut self.queue, limits::KEPT_REPLIES);
        }
        Ok(Step::Frame(Frame { emitted, dst_mac: core.attrs.path.dst_mac, wr_id: None }))
    }
}

/// Adds the end-to-end credit count to an ACK, if the host can count posted receive requests.
fn with_credits<H: Host>(core: &Core, ctx: &Ctx<'_, H>, aeth: Aeth) -> Aeth {
    match aeth.syndrome {
        Syndrome::Ack { .. } => {
            // IBTA 9.7.7.2: a responder that uses a shared receive queue does not advertise credits.
            let posted = if core.uses_srq() { None } else { ctx.host.posted_receives(core.qpn) };
            let credits = credit_code(posted);
            Aeth { syndrome: Syndrome::Ack { credits }, ..aeth }
        }
        _ => aeth,
    }
}

fn count_nak<H: Host>(ctx: &mut Ctx<'_, H>, syndrome: Syndrome) {
    let naks = &mut ctx.stats.naks_sent;
    match syndrome {
        Syndrome::RnrNak { .. } => naks.rnr += 1,
        Syndrome::Nak(NakCode::PsnSequence) => naks.sequence += 1,
        Syndrome::Nak(NakCode::InvalidRequest) => naks.invalid_request += 1,
        Syndrome::Nak(NakCode::RemoteAccess) => naks.remote_access += 1,
        Syndrome::Nak(NakCode::RemoteOperational) => naks.remote_operational += 1,
        Syndrome::Nak(NakCode::InvalidRdRequest) => naks.invalid_rd_request += 1,
        Syndrome::Ack { .. } | Syndrome::Nak(NakCode::Reserved(_)) | Syndrome::Reserved(_) => {}
    }
}
