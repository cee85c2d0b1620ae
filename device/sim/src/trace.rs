//! Formats packets as text.

use protocol::roce::{Ext, Opcode, Packet, Syndrome};

/// Formats a packet as `Cnp`, or as its operation, PSN, payload length and header fields. For a RETH, the fields are
/// `va` relative to `base_va`, and the message length. For an AETH, they are the syndrome (omitted for an ACK) and the
/// MSN. `srq` denotes the SRQ of an XRC request. `SE` marks a solicited event, and `?` marks AckReq.
pub fn describe(packet: &Packet<'_>, base_va: u64) -> String {
    let Packet { bth, srqn, ext, payload } = packet;
    if bth.opcode == Opcode::CNP {
        return "Cnp".to_owned();
    }
    let mut text = format!("{:?} {:#x}", bth.opcode.operation, bth.psn.get());
    if let Some(srqn) = srqn {
        text += &format!(" srq{:#x}", srqn.get());
    }
    if !payload.is_empty() {
        text += &format!(" {}B", payload.len());
    }
    match ext {
        Ext::Reth(reth) | Ext::RethImm(reth, _) => {
            text += &format!(" va+{:#x} {}", reth.va.get().wrapping_sub(base_va), reth.dma_len);
        }
        Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => {
            match aeth.syndrome {
                Syndrome::Ack { .. } => {}
                Syndrome::RnrNak { timer } => text += &format!(" RNR{timer}"),
                Syndrome::Nak(code) => text += &format!(" {code:?}"),
                Syndrome::Reserved(byte) => text += &format!(" reserved{byte:#x}"),
            }
            text += &format!(" msn{}", aeth.msn.get());
        }
        _ => {}
    }
    if bth.solicited {
        text += " SE";
    }
    if bth.ack_req {
        text += "?";
    }
    text
}
