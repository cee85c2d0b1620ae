//! Receive side of UC and UD.
//!
//! A message that cannot be delivered whole is dropped whole; a receive request taken for it serves the next message.
//!
//! # Spec
//! IBTA volume 1, sections 9.8.2.2 and 9.8.3.2; JingZhao interface, sections 9.5 and 11.3, J-30 and J-46.

use protocol::Psn;
use protocol::ids::{Msn, Qkey};
use protocol::roce::{Deth, Encap, Ext, Kind, Operation, Packet};

use super::grh;
use crate::gather::{capacity, scatter};
use crate::qp::attr::{GrhArea, Service};
use crate::qp::inbound::{Fault, Inbound, Origin, has_right_length};
use crate::qp::{Core, Ctx, Failure};
use crate::{AccessError, DropReason, Dropped, Expecting, Host, Queue, Status};

/// Queue key of general management.
///
/// # Spec
/// IBTA volume 1, section 13.5.
const GSI_QKEY: Qkey = Qkey::new(0x8001_0000);

/// Why a message ends early.
enum End {
    Dropped(DropReason),
    Fault(Fault),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

const MALFORMED: End = End::Fault(Fault::Invalid);

#[derive(Debug)]
pub(crate) struct Receiver {
    expected: Psn,
    msn: Msn,
    inbound: Inbound,
}

impl Receiver {
    pub(crate) fn new(psn: Psn) -> Self {
        Self { expected: psn, msn: Msn::default(), inbound: Inbound::default() }
    }

    pub(crate) fn set_psn(&mut self, psn: Psn) {
        self.expected = psn;
    }

    pub(crate) fn psn(&self) -> Psn {
        self.expected
    }

    pub(crate) fn expecting(&self) -> Expecting {
        Expecting::message(self.expected, self.inbound.received())
    }

    pub(crate) fn msn(&self) -> Msn {
        self.msn
    }

    pub(crate) fn flush<H: Host>(&mut self, core: &Core, ctx: &mut Ctx<'_, H>) {
        self.inbound.abandon();
        self.inbound.fail_receive(core, ctx, Status::Flushed);
    }

    /// A packet of a connection. Whether it was taken.
    pub(crate) fn handle_connected<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<bool, Failure> {
        let result = self.connected(core, ctx, packet);
        self.end(core, ctx, packet, result)
    }

    /// A datagram. Whether it was taken.
    pub(crate) fn handle_datagram<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        encap: &Encap,
        pkey_index: u16,
        packet: &Packet<'_>,
    ) -> Result<bool, Failure> {
        let result = self.datagram(core, ctx, encap, pkey_index, packet);
        self.end(core, ctx, packet, result)
    }

    /// What is broken is dropped, and its receive request serves the next message; only a receive request that cannot be
    /// used is a failure.
    fn end<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
        result: Result<(), End>,
    ) -> Result<bool, Failure> {
        let (reason, cause) = match &result {
            Ok(()) => return Ok(true),
            Err(End::Dropped(reason)) => (*reason, None),
            Err(End::Fault(fault)) => fault.reason(core.attrs.service),
        };
        ctx.drop(&Dropped { cause, ..Dropped::new(core.qpn, packet, reason) });
        match result {
            Err(End::Fault(Fault::BadReceive)) => Err(Failure::Recv(reason, cause)),
            Err(End::Fault(Fault::Broken)) => Err(Failure::Queue(Queue::Recv)),
            Err(End::Fault(Fault::Scatter(refused))) => {
                self.inbound.fail_receive(core, ctx, Status::LocalProtection(refused));
                Err(Failure::Recv(reason, cause))
            }
            _ => {
                self.inbound.abandon();
                Ok(false)
            }
        }
    }

    fn connected<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), End> {
        let operation = packet.bth.opcode.operation;
        if operation.position().begins() {
            // Also the way back into step after a loss; an unfinished message is lost.
            self.inbound.abandon();
        } else if packet.bth.psn != self.expected || !self.inbound.is_open() {
            return Err(End::Dropped(DropReason::OutOfSequence));
        }
        self.expected = packet.bth.psn.advance(1);
        let right_length = has_right_length(operation, packet.payload.len(), core.mtu());
        if self.inbound.is_misplaced(operation) || !right_length {
            return Err(MALFORMED);
        }
        if !core.attrs.remote.allows(operation.kind()) {
            return Err(Fault::NoAccess(AccessError::Right).into());
        }
        if self.inbound.accept(core, ctx, packet)? {
            self.msn = self.msn.next();
            ctx.stats.executed.count(operation.kind());
        }
        Ok(())
    }

    fn datagram<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        encap: &Encap,
        pkey_index: u16,
        packet: &Packet<'_>,
    ) -> Result<(), End> {
        let (Operation::SendOnly | Operation::SendOnlyImm, Ext::Deth(deth) | Ext::DethImm(deth, _)) =
            (packet.bth.opcode.operation, packet.ext)
        else {
            return Err(MALFORMED);
        };
        let Deth { qkey, src_qp } = deth;
        let allowed = match core.attrs.service {
            Service::Smi => true,
            Service::Gsi => qkey == GSI_QKEY,
            _ => core.attrs.any_qkey || qkey == core.attrs.qkey,
        };
        if !allowed {
            return Err(End::Dropped(DropReason::WrongQkey));
        }
        if packet.payload.len() > core.mtu() {
            return Err(MALFORMED);
        }
        self.expected = packet.bth.psn.advance(1);
        let head = core.attrs.grh_area.len_bytes();
        let byte_len = head + packet.payload.len();
        let sges = &self.inbound.take_receive(core, ctx)?.sges;
        if byte_len as u64 > capacity(sges) {
            return Err(Fault::TooLong.into());
        }
        let (infiniband, roce) = (grh::infiniband(encap, udp_len(packet)), grh::roce(encap, udp_len(packet)));
        let area = match core.attrs.grh_area {
            GrhArea::None => &[][..],
            GrhArea::Roce => &roce,
            GrhArea::InfiniBand => infiniband.as_ref().map_or(&[][..], |area| area),
        };
        scatter(ctx.host, core.accessor(), sges, 0, area)
            .and_then(|()| scatter(ctx.host, core.accessor(), sges, head, packet.payload))
            .map_err(Fault::Scatter)?;
        let byte_len = u32::try_from(byte_len).map_err(|_| MALFORMED)?;
        self.msn = self.msn.next();
        ctx.stats.executed.count(Kind::Send);
        let from = Origin {
            qpn: src_qp,
            mac: encap.src_mac,
            tag: encap.tag,
            traffic_class: encap.traffic_class,
            grh: infiniband.is_some(),
            pkey_index,
        };
        self.inbound.deliver(core, ctx, packet, byte_len, from);
        Ok(())
    }
}

/// Length of the UDP datagram `packet` came in.
pub(crate) fn udp_len(packet: &Packet<'_>) -> u16 {
    const UDP_BTH_ICRC: usize = 8 + 12 + 4;
    let padded = packet.payload.len().next_multiple_of(4);
    u16::try_from(UDP_BTH_ICRC + packet.ext.kind().len_bytes() + padded).unwrap_or(u16::MAX)
}
