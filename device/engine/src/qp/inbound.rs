//! Executes the SENDs and WRITEs received on a connection, packet by packet, by writing their data to memory. The
//! responder (RC, XRC) or receiver (UC, UD) decides what an error means for the QP.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.4 and 9.8.2.2 (validation of requests), 9.4 (operations).

use protocol::ids::{MacAddr, Qpn, Rkey, Srqn, Va};
use protocol::net::layers::Tci;
use protocol::roce::{Ext, ExtKind, Kind, Opcode, Operation, PacketPayload as _, Position};

use super::attr::Service;
use super::{Core, Ctx, RequestContext};
use crate::gather::{capacity, scatter};
use crate::{
    Access, AccessError, DropReason, Fetch, Host, Queue, ReceivedPacket, RecvDone, RecvRequest, RecvSource,
    Status, Success, XrcError, limits,
};

/// A message whose first packet has been accepted but whose last packet has not arrived yet.
#[derive(Clone, Copy, Debug)]
enum Message {
    Send { received: u64 },
    Write { rkey: Rkey, va: Va, len: u32, received: u32 },
}

/// Source of a message, as reported in the receive completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) qpn: Qpn,
    pub(crate) mac: MacAddr,
    pub(crate) tag: Option<Tci>,
    pub(crate) traffic_class: u8,
    pub(crate) grh: bool,
    pub(crate) pkey_index: u16,
}

/// Reason for not accepting a request packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The packet is malformed or violates the opcode sequence.
    Invalid,
    /// The packet specifies an SRQ that it may not use (XRC).
    Xrceth(Srqn, XrcError),
    /// No receive request is posted.
    NotReady,
    /// The receive request cannot be executed. It has been completed with an error.
    BadReceive,
    /// The receive queue or SRQ cannot be read.
    Broken,
    /// The message is longer than the receive request.
    TooLong,
    /// The receive request's memory cannot be written.
    Scatter(AccessError),
    /// The memory access of a WRITE was denied.
    NoAccess(AccessError),
    /// A SEND with invalidate specified a key that it may not invalidate. The SEND's data has been written.
    Invalidate(AccessError),
}

impl RequestError {
    /// Returns the drop reason to count, and the denied access, if any.
    pub(crate) const fn reason(self, service: Service) -> (DropReason, Option<AccessError>) {
        match self {
            Self::Invalid if service.is_reliable() => (DropReason::InvalidRequest, None),
            Self::Invalid => (DropReason::Malformed, None),
            Self::Xrceth(..) => (DropReason::InvalidRequest, None),
            Self::NotReady if matches!(service, Service::Smi) => (DropReason::Vl15Dropped, None),
            Self::NotReady => (DropReason::NoReceive, None),
            Self::BadReceive => (DropReason::BadReceive, None),
            Self::Broken => (DropReason::BrokenQueue, None),
            Self::TooLong => (DropReason::TooLong, None),
            Self::Scatter(cause) => (DropReason::BadReceive, Some(cause)),
            Self::NoAccess(cause) | Self::Invalidate(cause) => (DropReason::NoAccess, Some(cause)),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Inbound {
    message: Option<Message>,
    /// Receive request that has been fetched for the current message but not yet completed.
    recv: Option<RecvRequest>,
    /// SRQ of the current message (XRC).
    srqn: Option<Srqn>,
}

impl Inbound {
    /// Returns whether a message is in progress.
    pub(crate) fn is_open(&self) -> bool {
        self.message.is_some()
    }

    /// Returns whether a message for an SRQ other than `srqn` is in progress.
    pub(crate) fn is_for_other_srq(&self, srqn: Option<Srqn>) -> bool {
        self.is_open() && self.srqn != srqn
    }

    /// Returns the number of bytes received so far for the message in progress, if any.
    pub(crate) fn received(&self) -> Option<u64> {
        self.message.map(|message| match message {
            Message::Send { received } => received,
            Message::Write { received, .. } => received.into(),
        })
    }

    /// Abandons the incomplete message. Its receive request is reused for the next message.
    pub(crate) fn abandon(&mut self) {
        self.message = None;
    }

    /// Returns whether `operation` violates the opcode sequence (IBTA volume 1, section 9.7.4.1). An operation must
    /// continue the message in progress or, if there is none, begin a message.
    pub(crate) fn breaks_opcode_sequence(&self, operation: Operation) -> bool {
        let begins = operation.position().begins();
        match self.message {
            None => !begins,
            Some(Message::Send { .. }) => begins || operation.kind() != Kind::Send,
            Some(Message::Write { .. }) => begins || operation.kind() != Kind::Write,
        }
    }

    /// Completes the fetched receive request, if any, with an error.
    pub(crate) fn fail_receive<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, status: Status) {
        if let Some(recv) = self.recv.take() {
            ctx.complete_from(core, (Queue::Recv, self.srqn), recv.wr_id, Err(status));
        }
    }

    /// Executes a SEND or WRITE packet permitted by the opcode sequence. If `packets` is greater than 1, `packet` holds
    /// the combined payload of that many consecutive packets. Returns whether the message has ended. If it has, any
    /// receive request that the message consumed has been completed.
    pub(crate) fn accept<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        on: RequestContext,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<bool, RequestError> {
        let operation = packet.bth.opcode.operation;
        self.srqn = on.source.srqn();
        let byte_len = match operation.kind() {
            Kind::Send => self.on_send(core, ctx, on, packet)?,
            Kind::Write => self.on_write(core, ctx, on, packet)?,
            _ => return Err(RequestError::Invalid),
        };
        let ends = operation.position().ends();
        if ends {
            // Invalidate the key first, because it must be invalid by the time software can read the completion.
            if let Ext::Invalidate(rkey) = packet.ext {
                ctx.host.remote_invalidate(on.initiator, rkey).map_err(RequestError::Invalidate)?;
            }
            self.message = None;
            if operation.kind() == Kind::Send || operation.has_imm() {
                let attrs = &core.attrs;
                let from = Origin {
                    qpn: attrs.remote_qpn,
                    mac: attrs.path.dst_mac,
                    tag: attrs.path.tag,
                    traffic_class: attrs.path.traffic_class,
                    grh: false,
                    pkey_index: attrs.pkey_index,
                };
                // Receive completions report the last packet's opcode.
                let position = Position::of(operation.position().begins() && packets == 1, true);
                let opcode = Opcode { operation: operation.at(position), ..packet.bth.opcode };
                self.deliver(core, ctx, (packet, opcode), byte_len, from);
            }
        }
        Ok(ends)
    }

    /// Executes a SEND packet. Returns the number of message bytes received so far.
    fn on_send<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        on: RequestContext,
        packet: &ReceivedPacket<'_>,
    ) -> Result<u32, RequestError> {
        let attrs = &core.attrs;
        // IBTA 9.4: SEND with invalidate exists on reliable connections only.
        let may_invalidate = attrs.remote.invalidate && attrs.service.is_reliable();
        if packet.ext.kind() == ExtKind::Invalidate && !may_invalidate {
            return Err(RequestError::Invalid);
        }
        let before = match self.message {
            Some(Message::Send { received }) => received,
            _ => 0,
        };
        let received = before + packet.payload.len() as u64;
        let sges = &self.take_receive(core, ctx, on.source)?.sges;
        if received > capacity(sges).min(u64::from(limits::MAX_RDMA_LEN)) {
            return Err(RequestError::TooLong);
        }
        let offset = usize::try_from(before).map_err(|_| RequestError::TooLong)?;
        scatter(ctx.host, on.initiator, sges, offset, packet.payload).map_err(RequestError::Scatter)?;
        self.message = Some(Message::Send { received });
        u32::try_from(received).map_err(|_| RequestError::TooLong)
    }

    /// Executes a WRITE packet. Returns the length of the message.
    fn on_write<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        on: RequestContext,
        packet: &ReceivedPacket<'_>,
    ) -> Result<u32, RequestError> {
        let operation = packet.bth.opcode.operation;
        let (begins, ends) = (operation.position().begins(), operation.position().ends());
        let (rkey, va, len, before) = match (packet.ext, self.message) {
            (Ext::Reth(reth) | Ext::RethImm(reth, _), _) => (reth.rkey, reth.va, reth.dma_len, 0),
            (_, Some(Message::Write { rkey, va, len, received })) => (rkey, va, len, received),
            _ => return Err(RequestError::Invalid),
        };
        let here = u32::try_from(packet.payload.len()).map_err(|_| RequestError::Invalid)?;
        let fits = if ends { here == len - before } else { here <= len - before };
        if len > limits::MAX_RDMA_LEN || !fits {
            return Err(RequestError::Invalid);
        }
        let (initiator, key) = (on.initiator, rkey.as_lkey());
        // Check the whole range at the first packet, so that an invalid WRITE does not change memory. The host also
        // checks the range of each packet when it writes the data. That check is enough for a single-packet
        // message without immediate data. An invalid message with immediate data must be rejected before a receive
        // request is fetched.
        if begins && len > 0 && (!ends || operation.has_imm()) {
            ctx.host
                .check(initiator, key, va, u64::from(len), Access::RemoteWrite)
                .map_err(RequestError::NoAccess)?;
        }
        // Fetch the receive request before writing data, so that a packet refused with an RNR NAK has no effect.
        if operation.has_imm() {
            self.take_receive(core, ctx, on.source)?;
        }
        if here > 0 {
            let at = Va::new(va.get().wrapping_add(u64::from(before)));
            let written = ctx.host.write(initiator, key, at, packet.payload, Access::RemoteWrite);
            written.map_err(RequestError::NoAccess)?;
        }
        self.message = Some(Message::Write { rkey, va, len, received: before + here });
        Ok(len)
    }

    /// Returns the current message's receive request, fetching one if necessary.
    #[inline]
    pub(crate) fn take_receive<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        source: RecvSource,
    ) -> Result<&RecvRequest, RequestError> {
        if self.recv.is_none() {
            match ctx.host.next_recv(source) {
                Fetch::Ready(recv) => self.recv = Some(recv),
                Fetch::Empty => return Err(RequestError::NotReady),
                Fetch::Refused { wr_id, status } => {
                    ctx.complete_from(core, (Queue::Recv, source.srqn()), wr_id, Err(status));
                    return Err(RequestError::BadReceive);
                }
                Fetch::Broken => return Err(RequestError::Broken),
            }
        }
        self.recv.as_ref().ok_or(RequestError::NotReady)
    }

    /// Completes the receive request of the current message, which is `byte_len` bytes long.
    #[inline]
    pub(crate) fn deliver<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        (packet, opcode): (&ReceivedPacket<'_>, Opcode),
        byte_len: u32,
        from: Origin,
    ) {
        let Some(wr_id) = self.recv.as_ref().map(|recv| recv.wr_id) else { return };
        self.recv = None;
        let done = RecvDone {
            opcode,
            byte_len,
            imm: packet.ext.imm(),
            remote_qpn: from.qpn,
            remote_mac: from.mac,
            solicited: packet.bth.solicited,
            tag: from.tag,
            traffic_class: from.traffic_class,
            grh: from.grh,
            pkey_index: from.pkey_index,
            invalidated: match packet.ext {
                Ext::Invalidate(rkey) => Some(rkey),
                _ => None,
            },
        };
        ctx.complete_from(core, (Queue::Recv, self.srqn), wr_id, Ok(Success::Recv(done)));
    }
}

/// Checks the payload length against the opcode (IBTA volume 1, section 9.7.4.1). FIRST and MIDDLE packets carry
/// exactly one MTU, LAST packets 1 to MTU bytes, and ONLY packets 0 to MTU bytes. READ and atomic requests have no
/// payload. `len` is the combined payload length of `packets` consecutive packets.
pub(crate) fn has_valid_length(operation: Operation, len: usize, mtu: usize, packets: u32) -> bool {
    if matches!(operation.kind(), Kind::Read | Kind::Atomic) {
        return len == 0;
    }
    let most = mtu * packets as usize;
    match (operation.position().begins(), operation.position().ends()) {
        (_, false) => len == most,
        (true, true) if packets == 1 => len <= most,
        (_, true) => (most - mtu + 1..=most).contains(&len),
    }
}
