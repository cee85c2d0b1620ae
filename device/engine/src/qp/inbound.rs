//! SENDs and WRITEs of a connection on their way into memory, packet by packet. What a fault means for the connection is
//! its service's business.
//!
//! # Spec
//! IBTA volume 1, sections 9.7.4 and 9.8.2.2 (validation of requests), 9.4 (operations).

use protocol::ids::{MacAddr, Qpn, Rkey, Va};
use protocol::net::layers::Tci;
use protocol::roce::{Ext, ExtKind, Kind, Operation, Packet};

use super::attr::Service;
use super::{Core, Ctx};
use crate::gather::{capacity, scatter};
use crate::{
    Access, AccessError, DropReason, Fetch, Host, Queue, RecvDone, RecvRequest, Status, Success, limits,
};

/// Message whose first packet was accepted and whose last was not yet.
#[derive(Clone, Copy, Debug)]
enum Message {
    Send { received: u64 },
    Write { rkey: Rkey, va: Va, len: u32, received: u32 },
}

/// Where a message came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) qpn: Qpn,
    pub(crate) mac: MacAddr,
    pub(crate) tag: Option<Tci>,
    pub(crate) traffic_class: u8,
    pub(crate) grh: bool,
    pub(crate) pkey_index: u16,
}

/// Why a packet was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is no legal packet, or not at this place.
    Invalid,
    /// No receive request is posted.
    NotReady,
    /// The receive request that was posted cannot be executed. It is completed.
    BadReceive,
    /// The receive queue cannot be read.
    Broken,
    /// The message is longer than the receive request.
    TooLong,
    /// The receive request's memory cannot be written.
    Scatter(AccessError),
    /// The key, right or range of a WRITE was refused.
    NoAccess(AccessError),
    /// The key of a SEND with invalidate was refused. Its data is there.
    Invalidate(AccessError),
}

impl Fault {
    /// What it is counted as, and why an access was refused, where one was.
    pub(crate) const fn reason(self, service: Service) -> (DropReason, Option<AccessError>) {
        match self {
            Self::Invalid if matches!(service, Service::Rc) => (DropReason::InvalidRequest, None),
            Self::Invalid => (DropReason::Malformed, None),
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
    /// Taken from the queue and not completed.
    recv: Option<RecvRequest>,
}

impl Inbound {
    /// Whether a message is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.message.is_some()
    }

    /// Bytes of the message under way that are there.
    pub(crate) fn received(&self) -> Option<u64> {
        self.message.map(|message| match message {
            Message::Send { received } => received,
            Message::Write { received, .. } => received.into(),
        })
    }

    /// Gives up the message under way. Its receive request serves the next one.
    pub(crate) fn abandon(&mut self) {
        self.message = None;
    }

    /// A message is under way and `operation` does not go on with it, or the other way round.
    pub(crate) fn is_misplaced(&self, operation: Operation) -> bool {
        let begins = operation.position().begins();
        match self.message {
            None => !begins,
            Some(Message::Send { .. }) => begins || operation.kind() != Kind::Send,
            Some(Message::Write { .. }) => begins || operation.kind() != Kind::Write,
        }
    }

    /// Completes the receive request that was taken, if any.
    pub(crate) fn fail_receive<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>, status: Status) {
        if let Some(recv) = self.recv.take() {
            ctx.complete(core, Queue::Recv, recv.wr_id, Err(status));
        }
    }

    /// A SEND or WRITE packet whose place in the sequence is right. Whether it ended its message; if so, the receive
    /// request that the message took is completed.
    pub(crate) fn accept<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<bool, Fault> {
        let operation = packet.bth.opcode.operation;
        let byte_len = match operation.kind() {
            Kind::Send => self.on_send(core, ctx, packet)?,
            Kind::Write => self.on_write(core, ctx, packet)?,
            _ => return Err(Fault::Invalid),
        };
        let ends = operation.position().ends();
        if ends {
            // Before the receive completes: software takes the key for invalid then.
            if let Ext::Invalidate(rkey) = packet.ext {
                ctx.host.remote_invalidate(core.accessor(), rkey).map_err(Fault::Invalidate)?;
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
                self.deliver(core, ctx, packet, byte_len, from);
            }
        }
        Ok(ends)
    }

    /// Returns the bytes of the message so far.
    fn on_send<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<u32, Fault> {
        let attrs = &core.attrs;
        // IBTA volume 1, section 9.4: of the services here only the reliable connection has it.
        let may_invalidate = attrs.remote.invalidate && attrs.service == Service::Rc;
        if packet.ext.kind() == ExtKind::Invalidate && !may_invalidate {
            return Err(Fault::Invalid);
        }
        let before = match self.message {
            Some(Message::Send { received }) => received,
            _ => 0,
        };
        let received = before + packet.payload.len() as u64;
        let sges = &self.take_receive(core, ctx)?.sges;
        if received > capacity(sges).min(u64::from(limits::MAX_RDMA_LEN)) {
            return Err(Fault::TooLong);
        }
        let offset = usize::try_from(before).map_err(|_| Fault::TooLong)?;
        scatter(ctx.host, core.accessor(), sges, offset, packet.payload).map_err(Fault::Scatter)?;
        self.message = Some(Message::Send { received });
        u32::try_from(received).map_err(|_| Fault::TooLong)
    }

    /// Returns the length of the message.
    fn on_write<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<u32, Fault> {
        let operation = packet.bth.opcode.operation;
        let (begins, ends) = (operation.position().begins(), operation.position().ends());
        let (rkey, va, len, before) = match (packet.ext, self.message) {
            (Ext::Reth(reth) | Ext::RethImm(reth, _), _) => (reth.rkey, reth.va, reth.dma_len, 0),
            (_, Some(Message::Write { rkey, va, len, received })) => (rkey, va, len, received),
            _ => return Err(Fault::Invalid),
        };
        let here = u32::try_from(packet.payload.len()).map_err(|_| Fault::Invalid)?;
        let fits = if ends { here == len - before } else { here <= len - before };
        if len > limits::MAX_RDMA_LEN || !fits {
            return Err(Fault::Invalid);
        }
        let (who, key) = (core.accessor(), rkey.as_lkey());
        if begins && len > 0 {
            // The whole range, once; the host checks each packet's part again.
            ctx.host.check(who, key, va, u64::from(len), Access::RemoteWrite).map_err(Fault::NoAccess)?;
        }
        // Before the data, so that a packet the receiver is not ready for has no effect.
        if operation.has_imm() {
            self.take_receive(core, ctx)?;
        }
        if here > 0 {
            let at = Va::new(va.get().wrapping_add(u64::from(before)));
            let written = ctx.host.write(who, key, at, packet.payload, Access::RemoteWrite);
            written.map_err(Fault::NoAccess)?;
        }
        self.message = Some(Message::Write { rkey, va, len, received: before + here });
        Ok(len)
    }

    /// The receive request for the message under way.
    pub(crate) fn take_receive<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
    ) -> Result<&RecvRequest, Fault> {
        if self.recv.is_none() {
            match ctx.host.next_recv(core.qpn) {
                Fetch::Ready(recv) => self.recv = Some(recv),
                Fetch::Empty => return Err(Fault::NotReady),
                Fetch::Refused { wr_id, status } => {
                    ctx.complete(core, Queue::Recv, wr_id, Err(status));
                    return Err(Fault::BadReceive);
                }
                Fetch::Broken => return Err(Fault::Broken),
            }
        }
        self.recv.as_ref().ok_or(Fault::NotReady)
    }

    /// A message of `byte_len` bytes is whole: its receive request completes.
    pub(crate) fn deliver<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
        byte_len: u32,
        from: Origin,
    ) {
        let Some(recv) = self.recv.take() else { return };
        let done = RecvDone {
            opcode: packet.bth.opcode,
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
        ctx.complete(core, Queue::Recv, recv.wr_id, Ok(Success::Recv(done)));
    }
}

/// FIRST and MIDDLE are full, LAST is not empty, ONLY may be; nothing exceeds the path MTU. READ and atomic requests
/// have no payload.
pub(crate) fn has_right_length(operation: Operation, len: usize, mtu: usize) -> bool {
    if matches!(operation.kind(), Kind::Read | Kind::Atomic) {
        return len == 0;
    }
    match (operation.position().begins(), operation.position().ends()) {
        (_, false) => len == mtu,
        (false, true) => (1..=mtu).contains(&len),
        (true, true) => len <= mtu,
    }
}
