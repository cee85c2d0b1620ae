//! Receive side of UC and UD.
//!
//! A message that cannot be delivered whole is dropped whole; a receive request taken for it serves the next message.
//!
//! # Spec
//! IBTA volume 1, sections 9.8.2.2 and 9.8.3.2; JingZhao interface, sections 9.5 and 11.3, J-30 and J-46.

use protocol::Psn;
use protocol::ids::{MacAddr, Msn, Qpn, Rkey, Va};
use protocol::roce::{Deth, Ext, Kind, Operation, Packet, Shell};

use super::grh::grh;
use crate::gather::{capacity, scatter};
use crate::qp::{Core, Ctx, Failure};
use crate::stats::Drops;
use crate::{Access, Fetch, Host, Queue, RecvDone, RecvRequest, Status, Success, limits};

/// Message whose first packet was accepted and whose last was not yet.
#[derive(Clone, Copy, Debug)]
enum Inbound {
    Send { received: u64 },
    Write { rkey: Rkey, va: Va, len: u32, received: u32 },
}

/// Why a message ends early.
enum End {
    Dropped(fn(&mut Drops) -> &mut u64),
    Failed(Failure),
}

const MALFORMED: End = End::Dropped(|drops| &mut drops.malformed);

#[derive(Debug)]
pub(crate) struct Receiver {
    expected: Psn,
    msn: Msn,
    inbound: Option<Inbound>,
    /// Taken from the queue and not completed.
    recv: Option<RecvRequest>,
}

impl Receiver {
    pub(crate) fn new(psn: Psn) -> Self {
        Self { expected: psn, msn: Msn::default(), inbound: None, recv: None }
    }

    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.expected = psn;
    }

    pub(crate) fn psn(&self) -> Psn {
        self.expected
    }

    pub(crate) fn msn(&self) -> Msn {
        self.msn
    }

    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        self.inbound = None;
        if let Some(recv) = self.recv.take() {
            ctx.complete(core, Queue::Recv, recv.wr_id, Err(Status::Flushed));
        }
    }

    /// A packet of a connection. Whether it was taken.
    pub(crate) fn handle_connected<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<bool, Failure> {
        let result = self.connected(core, ctx, packet);
        self.end(ctx, result)
    }

    /// A datagram. Whether it was taken.
    pub(crate) fn handle_datagram<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        shell: &Shell,
        packet: &Packet<'_>,
    ) -> Result<bool, Failure> {
        let result = self.datagram(core, ctx, shell, packet);
        self.end(ctx, result)
    }

    fn end<H: Host>(&mut self, ctx: &mut Ctx<'_, H>, result: Result<(), End>) -> Result<bool, Failure> {
        match result {
            Ok(()) => Ok(true),
            Err(End::Dropped(counter)) => {
                *counter(&mut ctx.stats.drops) += 1;
                self.inbound = None;
                Ok(false)
            }
            Err(End::Failed(failure)) => Err(failure),
        }
    }

    fn connected<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), End> {
        let operation = packet.bth.opcode.operation;
        let position = operation.position();
        let (psn, len) = (packet.bth.psn, packet.payload.len());
        if position.begins() {
            // Also the way back into step after a loss; an unfinished message is lost.
            self.inbound = None;
        } else if psn != self.expected || self.inbound.is_none() {
            return Err(End::Dropped(|drops| &mut drops.out_of_sequence));
        }
        self.expected = psn.advance(1);
        let full = match (position.begins(), position.ends()) {
            (_, false) => len == core.mtu(),
            (false, true) => (1..=core.mtu()).contains(&len),
            (true, true) => len <= core.mtu(),
        };
        match (operation.kind(), self.inbound) {
            (Kind::Send, None | Some(Inbound::Send { .. })) if full => self.on_send(core, ctx, packet),
            (Kind::Write, None | Some(Inbound::Write { .. })) if full => self.on_write(core, ctx, packet),
            _ => Err(MALFORMED),
        }
    }

    fn on_send<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), End> {
        let before = match self.inbound {
            Some(Inbound::Send { received }) => received,
            _ => 0,
        };
        let received = before + packet.payload.len() as u64;
        let sges = &self.take_recv(core, ctx)?.sges;
        if received > capacity(sges).min(u64::from(limits::MAX_RDMA_LEN)) {
            return Err(End::Dropped(|drops| &mut drops.too_long));
        }
        let offset = usize::try_from(before).map_err(|_| MALFORMED)?;
        if scatter(ctx.host, core.attrs.pd, sges, offset, packet.payload).is_err() {
            return Err(self.fail(core, ctx));
        }
        if packet.bth.opcode.operation.position().ends() {
            let byte_len = u32::try_from(received).map_err(|_| MALFORMED)?;
            self.deliver(core, ctx, packet, byte_len, core.attrs.remote_qpn, core.attrs.path.dst_mac);
        } else {
            self.inbound = Some(Inbound::Send { received });
        }
        Ok(())
    }

    fn on_write<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), End> {
        let operation = packet.bth.opcode.operation;
        let position = operation.position();
        let (rkey, va, len, before) = match (packet.ext, self.inbound) {
            (Ext::Reth(reth) | Ext::RethImm(reth, _), _) => (reth.rkey, reth.va, reth.dma_len, 0),
            (_, Some(Inbound::Write { rkey, va, len, received })) => (rkey, va, len, received),
            _ => return Err(MALFORMED),
        };
        let here = u32::try_from(packet.payload.len()).map_err(|_| MALFORMED)?;
        let fits = if position.ends() { here == len - before } else { here <= len - before };
        if len > limits::MAX_RDMA_LEN || !fits {
            return Err(MALFORMED);
        }
        let no_access = |_| End::Dropped(|drops| &mut drops.no_access);
        let (pd, key) = (core.attrs.pd, rkey.as_lkey());
        if position.begins() && len > 0 {
            ctx.host.check(pd, key, va, u64::from(len), Access::RemoteWrite).map_err(no_access)?;
        }
        if operation.has_imm() {
            self.take_recv(core, ctx)?;
        }
        if here > 0 {
            let at = Va::new(va.get().wrapping_add(u64::from(before)));
            ctx.host.write(pd, key, at, packet.payload, Access::RemoteWrite).map_err(no_access)?;
        }
        if !position.ends() {
            self.inbound = Some(Inbound::Write { rkey, va, len, received: before + here });
        } else if operation.has_imm() {
            self.deliver(core, ctx, packet, len, core.attrs.remote_qpn, core.attrs.path.dst_mac);
        } else {
            self.inbound = None;
            self.msn = self.msn.next();
        }
        Ok(())
    }

    fn datagram<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        shell: &Shell,
        packet: &Packet<'_>,
    ) -> Result<(), End> {
        let (Operation::SendOnly | Operation::SendOnlyImm, Ext::Deth(deth) | Ext::DethImm(deth, _)) =
            (packet.bth.opcode.operation, packet.ext)
        else {
            return Err(MALFORMED);
        };
        let Deth { qkey, src_qp } = deth;
        if core.attrs.qkey.get() != 0 && qkey != core.attrs.qkey {
            return Err(End::Dropped(|drops| &mut drops.wrong_qkey));
        }
        if packet.payload.len() > core.mtu() {
            return Err(MALFORMED);
        }
        self.expected = packet.bth.psn.advance(1);
        let head = if core.attrs.ud_grh { limits::GRH_BYTES } else { 0 };
        let byte_len = head + packet.payload.len();
        let sges = &self.take_recv(core, ctx)?.sges;
        if byte_len as u64 > capacity(sges) {
            return Err(End::Dropped(|drops| &mut drops.too_long));
        }
        let area = grh(shell, udp_len(packet));
        let placed = scatter(ctx.host, core.attrs.pd, sges, 0, area.get(..head).unwrap_or_default())
            .and_then(|()| scatter(ctx.host, core.attrs.pd, sges, head, packet.payload));
        if placed.is_err() {
            return Err(self.fail(core, ctx));
        }
        let byte_len = u32::try_from(byte_len).map_err(|_| MALFORMED)?;
        self.deliver(core, ctx, packet, byte_len, src_qp, shell.src_mac);
        Ok(())
    }

    fn take_recv<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) -> Result<&RecvRequest, End> {
        if self.recv.is_none() {
            match ctx.host.next_recv(core.qpn) {
                Fetch::Ready(recv) => self.recv = Some(recv),
                Fetch::Empty => return Err(End::Dropped(|drops| &mut drops.no_receive)),
                Fetch::Refused { wr_id, status } => {
                    ctx.complete(core, Queue::Recv, wr_id, Err(status));
                    return Err(End::Failed(Failure::Recv));
                }
                Fetch::Broken => return Err(End::Failed(Failure::Queue(Queue::Recv))),
            }
        }
        self.recv.as_ref().ok_or(MALFORMED)
    }

    /// The receive request could not be written to.
    fn fail<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) -> End {
        if let Some(recv) = self.recv.take() {
            ctx.complete(core, Queue::Recv, recv.wr_id, Err(Status::LocalProtection));
        }
        End::Failed(Failure::Recv)
    }

    /// The message is whole: its receive request completes.
    fn deliver<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
        byte_len: u32,
        remote_qpn: Qpn,
        remote_mac: MacAddr,
    ) {
        self.inbound = None;
        self.msn = self.msn.next();
        let Some(recv) = self.recv.take() else { return };
        let done = RecvDone {
            opcode: packet.bth.opcode,
            byte_len,
            imm: packet.ext.imm(),
            remote_qpn,
            remote_mac,
            solicited: packet.bth.solicited,
        };
        ctx.complete(core, Queue::Recv, recv.wr_id, Ok(Success::Recv(done)));
    }
}

/// Length of the UDP datagram `packet` came in.
fn udp_len(packet: &Packet<'_>) -> u16 {
    const UDP_BTH_ICRC: usize = 8 + 12 + 4;
    let padded = packet.payload.len().next_multiple_of(4);
    u16::try_from(UDP_BTH_ICRC + packet.ext.kind().len_bytes() + padded).unwrap_or(u16::MAX)
}
