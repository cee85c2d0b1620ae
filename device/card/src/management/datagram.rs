//! Encoding of MADs as packets on the fabric.
//!
//! # Spec
//! IBTA volume 1, section 13.5.2 and annex A17.

use protocol::Psn;
use protocol::ids::{Lid, Pkey, Qkey, Qpn};
use protocol::mad::{MAD_LEN, Mad};
use protocol::roce::{Bth, Deth, Encap, Ext, FrameWriter, Opcode, Operation, Packet};

use super::QP0;

/// The Q_Key of QP1 (section 10.2.5).
const QP1_QKEY: Qkey = Qkey::new(0x8001_0000);

/// A MAD with its source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// LID of the sender.
    pub source: Lid,
    /// QPN of the sender.
    pub source_qp: Qpn,
    /// LID of the receiver.
    pub destination: Lid,
    /// QPN of the receiver, as in the BTH.
    pub destination_qp: Qpn,
    pub mad: Mad,
}

impl Datagram {
    /// Parses a packet for QP0 or QP1. Returns `None` unless the packet is a UD datagram without immediate data whose
    /// payload has the length of a MAD, and the destination QP accepts its source QP or its Q_Key.
    pub fn of(packet: &Packet<'_>, source: Lid, destination: Lid) -> Option<Self> {
        let Ext::Deth(Deth { qkey, src_qp: source_qp }) = packet.ext else { return None };
        let mad: Mad = packet.payload.try_into().ok()?;
        let destination_qp = packet.bth.dest_qp;
        let is_accepted = match destination_qp {
            // Packets for QP0 use VL15, on which only QP0 can send (section 13.5).
            QP0 => source_qp == QP0,
            // Programs cannot send this Q_Key from their own QPs (section 10.2.5).
            _ => qkey == QP1_QKEY,
        };
        is_accepted.then_some(Self { source, source_qp, destination, destination_qp, mad })
    }

    /// Appends the datagram to `out` as a frame.
    pub fn emit(&self, encap: &Encap, out: &mut Vec<u8>) {
        let bth = Bth {
            opcode: Opcode::ud(Operation::SendOnly),
            solicited: false,
            mig_req: true,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: self.destination_qp,
            ack_req: false,
            psn: Psn::new(0),
        };
        let qkey = if self.destination_qp == QP0 { Qkey::default() } else { QP1_QKEY };
        let ext = Ext::Deth(Deth { qkey, src_qp: self.source_qp });
        let mut writer = FrameWriter::new(out, encap, &bth, &ext, MAD_LEN);
        writer.extend(&self.mad);
        writer.finish();
    }
}
