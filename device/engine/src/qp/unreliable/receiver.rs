//! Receive side of UC and UD QPs, including QP0 and QP1.
//!
//! A message that cannot be delivered in full is dropped, and its receive request is reused for the next message.
//!
//! # Spec
//! IBTA volume 1, sections 9.8.2.2 and 9.8.3.2; JingZhao interface, sections 9.5 and 11.3, and decisions J-30 and J-46.

use protocol::Psn;
use protocol::ids::{Msn, Qkey, Qpn};
use protocol::roce::{Deth, Encap, Ext, Kind, Operation, PacketPayload, PacketWith, XRCETH_LEN};

use super::grh;
use crate::gather::{capacity, scatter};
use crate::qp::attr::{GrhArea, Service};
use crate::qp::inbound::{Inbound, Origin, RequestError, has_valid_length};
use crate::qp::{Core, Ctx, FatalError};
use crate::{AccessError, DropReason, Dropped, Expecting, Host, Queue, ReceivedPacket, RecvSource, Status};

/// Q_Key of QP1.
///
/// # Spec
/// IBTA volume 1, section 13.5.
const GSI_QKEY: Qkey = Qkey::new(0x8001_0000);

/// Number of QP0 on the wire.
const SMI_QPN: Qpn = Qpn::new(0);

enum ReceiveError {
    Dropped(DropReason),
    Request(RequestError),
}

impl From<RequestError> for ReceiveError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

const MALFORMED: ReceiveError = ReceiveError::Request(RequestError::Invalid);

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

    /// Handles a packet received on a connected QP (UC). If `packets` is greater than 1, `packet` holds the combined
    /// payload of that many consecutive packets. Returns whether the packets were accepted.
    pub(crate) fn handle_connected<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<bool, FatalError> {
        let result = self.connected(core, ctx, packet, packets);
        self.finish(core, ctx, packet, result)
    }

    /// Handles a datagram. Returns whether it was accepted.
    pub(crate) fn handle_datagram<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        encap: &Encap,
        pkey_index: u16,
        packet: &ReceivedPacket<'_>,
    ) -> Result<bool, FatalError> {
        let result = self.datagram(core, ctx, encap, pkey_index, packet);
        self.finish(core, ctx, packet, result)
    }

    /// Finishes handling a packet. A bad packet is dropped, and its receive request is reused for the next message.
    /// Only an unusable receive request or queue is fatal.
    fn finish<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        packet: &ReceivedPacket<'_>,
        result: Result<(), ReceiveError>,
    ) -> Result<bool, FatalError> {
        let (reason, cause) = match &result {
            Ok(()) => return Ok(true),
            Err(ReceiveError::Dropped(reason)) => (*reason, None),
            Err(ReceiveError::Request(error)) => error.reason(core.attrs.service),
        };
        ctx.drop_packet(&Dropped { cause, ..Dropped::new(core.qpn, packet, reason) });
        match result {
            Err(ReceiveError::Request(RequestError::BadReceive)) => Err(FatalError::Recv(reason, cause)),
            Err(ReceiveError::Request(RequestError::Broken)) => Err(FatalError::Queue(Queue::Recv)),
            Err(ReceiveError::Request(RequestError::Scatter(denied))) => {
                self.inbound.fail_receive(core, ctx, Status::LocalProtection(denied));
                Err(FatalError::Recv(reason, cause))
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
        packet: &ReceivedPacket<'_>,
        packets: u32,
    ) -> Result<(), ReceiveError> {
        let operation = packet.bth.opcode.operation;
        if operation.position().begins() {
            // IBTA 9.8.2.2: a FIRST or ONLY packet resynchronises after a loss. The incomplete message is lost.
            self.inbound.abandon();
        } else if packet.bth.psn != self.expected || !self.inbound.is_open() {
            return Err(ReceiveError::Dropped(DropReason::OutOfSequence));
        }
        self.expected = packet.bth.psn.advance(packets);
        let valid_length = has_valid_length(operation, packet.payload.len(), core.mtu(), packets);
        if self.inbound.breaks_opcode_sequence(operation) || !valid_length {
            return Err(MALFORMED);
        }
        // Unreliable services have no NAKs, so the message is dropped silently.
        if !core.attrs.remote.allows(operation.kind()) {
            return Err(RequestError::NoAccess(AccessError::Right).into());
        }
        if self.inbound.accept(core, ctx, core.request_context(), packet, packets)? {
            self.msn = self.msn.next();
            ctx.count_executed(core, operation.kind());
        }
        Ok(())
    }

    fn datagram<H: Host>(
        &mut self,
        core: &Core,
        ctx: &mut Ctx<'_, H>,
        encap: &Encap,
        pkey_index: u16,
        packet: &ReceivedPacket<'_>,
    ) -> Result<(), ReceiveError> {
        let (Operation::SendOnly | Operation::SendOnlyImm, Ext::Deth(deth) | Ext::DethImm(deth, _)) =
            (packet.bth.opcode.operation, packet.ext)
        else {
            return Err(MALFORMED);
        };
        let Deth { qkey, src_qp } = deth;
        // IBTA 13.5: packets for QP0 use VL15, on which only QP0 can send. Without virtual lanes, this check keeps
        // programs from sending subnet management packets through their own QPs.
        if core.attrs.service == Service::Smi && src_qp != SMI_QPN {
            return Err(ReceiveError::Dropped(DropReason::WrongSource));
        }
        // IBTA 10.2.5: a datagram must carry the QP's Q_Key. QP0 accepts any Q_Key, and QP1 has a fixed Q_Key (IBTA
        // 13.5).
        let allowed = match core.attrs.service {
            Service::Smi => true,
            Service::Gsi => qkey == GSI_QKEY,
            _ => core.attrs.any_qkey || qkey == core.attrs.qkey,
        };
        if !allowed {
            return Err(ReceiveError::Dropped(DropReason::WrongQkey));
        }
        if packet.payload.len() > core.mtu() {
            return Err(MALFORMED);
        }
        self.expected = packet.bth.psn.advance(1);
        let head = core.attrs.grh_area.len_bytes();
        let byte_len = head + packet.payload.len();
        let sges = &self.inbound.take_receive(core, ctx, RecvSource::Qp(core.qpn))?.sges;
        if byte_len as u64 > capacity(sges) {
            return Err(RequestError::TooLong.into());
        }
        let (infiniband, roce) = (grh::infiniband(encap, udp_len(packet)), grh::roce(encap, udp_len(packet)));
        let area = match core.attrs.grh_area {
            GrhArea::None => &[][..],
            GrhArea::Roce => &roce,
            GrhArea::InfiniBand => infiniband.as_ref().map_or(&[][..], |area| area),
        };
        scatter(ctx.host, core.initiator(), sges, 0, area.into())
            .and_then(|()| scatter(ctx.host, core.initiator(), sges, head, packet.payload))
            .map_err(RequestError::Scatter)?;
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
        self.inbound.deliver(core, ctx, (packet, packet.bth.opcode), byte_len, from);
        Ok(())
    }
}

/// Returns the length of the UDP datagram that carried `packet`.
pub(crate) fn udp_len<P: PacketPayload>(packet: &PacketWith<P>) -> u16 {
    const UDP_BTH_ICRC: usize = 8 + 12 + 4;
    let padded = packet.payload.len().next_multiple_of(4);
    let ext_len = packet.ext.kind().len_bytes() + packet.srqn.map_or(0, |_| XRCETH_LEN);
    u16::try_from(UDP_BTH_ICRC + ext_len + padded).unwrap_or(u16::MAX)
}
