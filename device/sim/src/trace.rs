//! Formats packets as text.

use protocol::roce::{Ext, Opcode, Packet, Syndrome};

/// Formats a packet on one line: operation, PSN, SRQ (XRC only), payload length, and RETH or AETH fields.
///
/// A RETH is shown as its address (relative to `base_va`) and its length. An AETH is shown as its syndrome (omitted for
/// an ACK) and its MSN. `SE` marks a solicited event, and `?` marks AckReq. A CNP is shown as `Cnp`.
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
