//! What a responder owes its peer: acknowledges, READ responses and atomic results, in the order of the requests.
//!
//! READ responses are made packet by packet when the QP has its turn, from memory as it is then. Acknowledges that
//! follow each other merge into the newest, since it covers the older ones.
//!
//! A peer cannot make much of little:
//!
//! - an answer goes to the address of the connection, never to one that a packet brings;
//! - a request packet draws at most one acknowledge, refusal or result, of 62 bytes over IPv4 or 70 with a result;
//! - a READ draws the bytes it asks for, which its key must grant, and asked again while it is being answered it goes back
//!   instead of being answered twice;
//! - what no QP accepts, and every datagram, draws nothing.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.5.1 (acknowledge messages) and 9.7.5.1.4 (coalescing).

use std::collections::VecDeque;

use protocol::Psn;
use protocol::ids::{Msn, Rkey, Va};
use protocol::roce::{Aeth, Ext, NakCode, Opcode, Operation, Position, Reth, Syndrome};

use super::requester::credits::code_of;
use super::{Core, Ctx, Failure, Frame, Step, ahead};
use crate::held::shrink_if_empty;
use crate::segment::{packet_count, payload_len};
use crate::{Access, AsyncEvent, DropReason, Dropped, Host, limits};

#[derive(Debug)]
enum Reply {
    Acknowledge { psn: Psn, aeth: Aeth },
    Atomic { psn: Psn, aeth: Aeth, original: u64, occasion: Occasion },
    Read(ReadReply),
}

/// Why a READ or atomic is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// It was executed.
    First,
    /// Its answer was sent before, and it is asked for again.
    Again,
}

/// A READ being answered.
#[derive(Debug)]
struct ReadReply {
    first: Psn,
    va: Va,
    rkey: Rkey,
    len: u32,
    /// Next response packet, and how many there are.
    next: u32,
    packets: u32,
    /// Packet the answer begins with: not 0 when its end is asked for again.
    begin: u32,
    msn: Msn,
    occasion: Occasion,
}

#[derive(Debug, Default)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
    /// Only the slots that a QP keeps may be used.
    restricted: bool,
}

impl Replies {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether the next answer carries data.
    pub(crate) fn has_data_next(&self) -> bool {
        matches!(self.queue.front(), Some(Reply::Read(_)))
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        shrink_if_empty(&mut self.queue, limits::KEPT_REPLIES);
    }

    /// Slots for answers beyond those a QP keeps.
    pub(crate) fn held(&self) -> usize {
        self.queue.capacity().saturating_sub(limits::KEPT_REPLIES)
    }

    /// Says whether only the slots that a QP keeps may be used from now on.
    pub(crate) fn restrict(&mut self, restricted: bool) {
        self.restricted = restricted;
    }

    /// Whether another READ or atomic may be accepted.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.most(limits::PENDING_REPLIES)
    }

    /// READs and atomics that were executed and whose answer is not sent, but for those that are asked for again: a copy
    /// that comes late must not count against a peer that waits for the newer ones only.
    pub(crate) fn unanswered(&self) -> usize {
        let first = |reply: &&Reply| match reply {
            Reply::Acknowledge { .. } => false,
            Reply::Atomic { occasion, .. } => *occasion == Occasion::First,
            Reply::Read(read) => read.occasion == Occasion::First,
        };
        self.queue.iter().filter(first).count()
    }

    /// Positive acknowledge of everything up to `psn`. Replaces one that still waits. A NAK is never taken back, not even
    /// when what it asks for is here: only acknowledges may be coalesced (IBTA volume 1, section 9.7.5.1.4).
    pub(crate) fn acknowledge(&mut self, psn: Psn, msn: Msn) {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn };
        match self.queue.back_mut() {
            Some(Reply::Acknowledge { psn: last_psn, aeth: last })
                if matches!(last.syndrome, Syndrome::Ack { .. }) =>
            {
                (*last_psn, *last) = (psn, aeth);
            }
            _ => self.push_acknowledge(psn, aeth),
        }
    }

    /// Negative acknowledge of `psn`, unless the same one waits already.
    pub(crate) fn refuse(&mut self, psn: Psn, msn: Msn, syndrome: Syndrome) {
        let aeth = Aeth { syndrome, msn };
        let waits = matches!(self.queue.back(),
            Some(Reply::Acknowledge { psn: last_psn, aeth: last }) if *last_psn == psn && *last == aeth);
        if !waits {
            self.push_acknowledge(psn, aeth);
        }
    }

    /// What does not fit is as good as lost on the wire: the peer asks again.
    fn push_acknowledge(&mut self, psn: Psn, aeth: Aeth) {
        if self.queue.len() < self.most(limits::PENDING_ANSWERS) {
            self.queue.push_back(Reply::Acknowledge { psn, aeth });
        }
    }

    fn most(&self, unrestricted: usize) -> usize {
        if self.restricted { limits::KEPT_REPLIES } else { unrestricted }
    }

    pub(crate) fn atomic(&mut self, psn: Psn, msn: Msn, original: u64, occasion: Occasion) {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn };
        self.queue.push_back(Reply::Atomic { psn, aeth, original, occasion });
    }

    pub(crate) fn read(&mut self, psn: Psn, msn: Msn, reth: &Reth, mtu: usize, occasion: Occasion) {
        self.queue.push_back(Reply::Read(ReadReply {
            first: psn,
            va: reth.va,
            rkey: reth.rkey,
            len: reth.dma_len,
            next: 0,
            packets: packet_count(reth.dma_len, mtu),
            begin: 0,
            msn,
            occasion,
        }));
    }

    /// A READ whose answer is not all sent yet is asked again from `psn` on: goes back there in place, and begins anew with
    /// FIRST or ONLY. False: no such answer is pending.
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

    /// Whether the result of the atomic at `psn` waits to be sent.
    pub(crate) fn has_atomic(&self, psn: Psn) -> bool {
        self.queue.iter().any(|reply| matches!(reply, Reply::Atomic { psn: waiting, .. } if *waiting == psn))
    }

    /// Appends the next packet to `out`.
    pub(crate) fn transmit<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
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
        let len = ctx
            .emit(out, &core.attrs.path, &core.bth(ctx, operation, psn), &ext, 0, |_, _| Ok(()))
            .expect("a packet without payload reads no memory");
        Ok(Step::Frame(Frame { len, dst_mac: core.attrs.path.dst_mac, wr_id: None }))
    }

    fn transmit_read<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        out: &mut Vec<u8>,
    ) -> Result<Step, Failure> {
        let Some(Reply::Read(read)) = self.queue.front_mut() else { return Ok(Step::Idle) };
        let index = read.next;
        let last = index + 1 == read.packets;
        let position = Position::of(index == read.begin, last);
        let ext = match position {
            Position::Middle => Ext::None,
            _ => Ext::Aeth(with_credits(core, ctx, Aeth { syndrome: Syndrome::ACK, msn: read.msn })),
        };
        let psn = read.first.advance(index);
        let bth = core.bth(ctx, Operation::read_response(position), psn);
        let len = payload_len(read.len, core.mtu(), index);
        let va = Va::new(read.va.get().wrapping_add(u64::from(index) * core.mtu() as u64));
        let (rkey, msn, occasion) = (read.rkey, read.msn, read.occasion);
        let sent = ctx.emit(out, &core.attrs.path, &bth, &ext, len, |host, payload| {
            host.read(core.accessor(), rkey.as_lkey(), va, len, payload, Access::RemoteRead)
        });
        let len = match sent {
            Ok(len) => len,
            Err(reason) => {
                // The region went away after the request was accepted.
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
                if occasion == Occasion::Again {
                    ctx.drop(&drop(DropReason::StaleDuplicate));
                    self.queue.pop_front();
                    return Ok(Step::Again);
                }
                ctx.drop(&drop(DropReason::NoAccess));
                self.clear();
                self.refuse(psn, msn, Syndrome::Nak(NakCode::RemoteAccess));
                ctx.raise(core, AsyncEvent::AccessError(reason));
                return Err(Failure::Recv(DropReason::NoAccess, Some(reason)));
            }
        };
        read.next += 1;
        if last {
            self.queue.pop_front();
            shrink_if_empty(&mut self.queue, limits::KEPT_REPLIES);
        }
        Ok(Step::Frame(Frame { len, dst_mac: core.attrs.path.dst_mac, wr_id: None }))
    }
}

/// Positive acknowledges say how many receive requests are posted, as far as the host can tell.
fn with_credits<H: Host>(core: &Core, ctx: &Ctx<'_, H>, aeth: Aeth) -> Aeth {
    match aeth.syndrome {
        Syndrome::Ack { .. } => {
            // Requests of a shared queue are promised to nobody (IBTA volume 1, section 9.7.7.2).
            let posted = if core.attrs.srq { None } else { ctx.host.posted_receives(core.qpn) };
            let credits = code_of(posted);
            Aeth { syndrome: Syndrome::Ack { credits }, ..aeth }
        }
        _ => aeth,
    }
}

fn count_nak<H>(ctx: &mut Ctx<'_, H>, syndrome: Syndrome) {
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
