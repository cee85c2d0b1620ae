//! WQEs, doorbells and CQEs, in little-endian byte order.
//!
//! # Spec
//! JingZhao interface, sections 1.6, 6 and 7; test vectors in sections 14.1, 14.8 and 14.9.

use anyhow::Result;

use super::entries::ENTRY;
use crate::error::bad_step;
use crate::wire::{Cqe, Data, Datagram, Hex, SendOp, SendRequest, Service, Sge};

/// WQE positions and sizes are in units of this many bytes.
pub(crate) const UNIT: usize = 16;

/// Maximum size of a send WQE, in units. The size field in a link is six bits wide.
const MAX_UNITS: usize = 63;
/// lkey of the terminating entry in the kernel driver's format.
const INVALID_LKEY: u32 = 0x100;
/// The V bit in the first word of a posted receive slot, used in the user library's format.
pub(crate) const VALID: u32 = 1 << 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendWqe {
    bytes: Vec<u8>,
    opcode: u8,
    fence: bool,
}

impl SendWqe {
    pub(crate) fn new(service: Service, request: &SendRequest) -> Result<Self> {
        const SIGNALLED: u32 = 1 << 3;
        let opcode = opcode(request.op);
        let mut bytes = vec![0; UNIT];
        put32(&mut bytes, 0x08, SIGNALLED | u32::from(request.solicited) << 1);
        bytes[0x0c..0x10].copy_from_slice(&request.imm);
        if let Some(remote) = request.remote {
            bytes.extend(remote.va.to_le_bytes());
            bytes.extend(remote.rkey.to_le_bytes());
            bytes.extend([0; 4]);
        } else if !matches!(request.op, SendOp::Send | SendOp::SendImm | SendOp::Raw(_)) {
            return Err(bad_step(format!("{:?} requires a remote address", request.op)));
        }
        match request.op {
            SendOp::CmpSwap { compare, swap } => {
                bytes.extend(swap.to_le_bytes());
                bytes.extend(compare.to_le_bytes());
            }
            SendOp::FetchAdd { add } => {
                bytes.extend(add.to_le_bytes());
                bytes.extend([0; 8]);
            }
            _ => {}
        }
        match (service, &request.datagram) {
            (Service::Ud, Some(datagram)) => bytes.extend(ud_unit(datagram)?),
            (Service::Ud, None) => return Err(bad_step("a UD message requires a destination")),
            (_, Some(_)) => return Err(bad_step("only a UD message can have its own destination")),
            (_, None) => {}
        }
        match &request.data {
            Data::Sges(sges) => sges.iter().for_each(|sge| push_sge(&mut bytes, sge)),
            Data::Inline(payload) => {
                let len = u32::try_from(payload.len()).map_err(|_| bad_step("inline data is too long"))?;
                bytes.extend((len | 1 << 31).to_le_bytes());
                bytes.extend_from_slice(payload);
                bytes.resize(bytes.len().next_multiple_of(UNIT), 0);
            }
        }
        if bytes.len() > MAX_UNITS * UNIT {
            return Err(bad_step(format!("the send WQE is too long: {} bytes", bytes.len())));
        }
        Ok(Self { bytes, opcode, fence: request.fence })
    }

    /// Returns the bytes of the WQE, without a link to the next WQE.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn set_imm(&mut self, imm: [u8; 4]) {
        self.bytes[0x0c..0x10].copy_from_slice(&imm);
    }

    /// Returns the link to this WQE. The link forms the first bytes of the preceding WQE. `position` is this WQE's
    /// distance from the start of the queue, in units.
    pub(crate) fn link(&self, position: u32) -> [u8; 8] {
        const DBD: u32 = 1 << 7;
        let mut link = [0; 8];
        put32(&mut link, 0x00, position << 6 | u32::from(self.opcode));
        put32(&mut link, 0x04, DBD | u32::from(self.fence) << 6 | u32::from(self.units()));
        link
    }

    /// Returns words 0 and 1 of the doorbell for a chain that starts with this WQE. `head` is in units and does not
    /// wrap at the end of the queue.
    pub(crate) fn doorbell(&self, qpn: u32, head: u32) -> (u32, u32) {
        let word0 = head << 8 | u32::from(self.fence) << 5 | u32::from(self.opcode);
        let word1 = qpn << 8 | u32::from(self.units());
        (word0, word1)
    }

    fn units(&self) -> u8 {
        u8::try_from(self.bytes.len() / UNIT).unwrap_or(u8::MAX)
    }
}

pub(crate) const fn opcode(op: SendOp) -> u8 {
    match op {
        SendOp::Send => 0x0a,
        SendOp::SendImm => 0x0b,
        SendOp::Write => 0x08,
        SendOp::WriteImm => 0x09,
        SendOp::Read => 0x10,
        SendOp::CmpSwap { .. } => 0x11,
        SendOp::FetchAdd { .. } => 0x12,
        SendOp::Raw(code) => code & 0x1f,
    }
}

/// Returns a receive WQE in the user library's format, without its first 10h bytes. [`VALID`] marks the slot as posted.
pub(crate) fn valid_receive(sges: &[Sge], slot: usize) -> Result<Vec<u8>> {
    receive_list(sges, slot, Some([0; UNIT]))
}

/// Returns a receive WQE in the user library's format for a list of `max_recv_sge` elements, without its first 10h
/// bytes. The user library does not write a terminator after such a list, even if the slot has room for one.
pub(crate) fn unterminated_receive(sges: &[Sge], slot: usize) -> Result<Vec<u8>> {
    receive_list(sges, slot, None)
}

/// Returns a receive WQE in the kernel driver's format, without its first 10h bytes. Those bytes are the
/// link that [`kernel_slot`] has written to the slot.
pub(crate) fn terminated_receive(sges: &[Sge], slot: usize) -> Result<Vec<u8>> {
    receive_list(sges, slot, Some(kernel_terminator()))
}

/// Returns a free receive slot in the kernel driver's format: a link to the next slot, followed by terminators.
pub(crate) fn kernel_slot(next_offset: u32, slot: usize) -> Vec<u8> {
    let mut bytes = vec![0; UNIT];
    put32(&mut bytes, 0x00, next_offset);
    put32(&mut bytes, 0x04, u32::try_from(slot / UNIT).unwrap_or(0).min(63));
    while bytes.len() < slot {
        bytes.extend(kernel_terminator());
    }
    bytes
}

fn receive_list(sges: &[Sge], slot: usize, terminator: Option<[u8; UNIT]>) -> Result<Vec<u8>> {
    let room = slot - UNIT;
    let mut bytes = Vec::with_capacity(room);
    sges.iter().for_each(|sge| push_sge(&mut bytes, sge));
    if bytes.len() > room {
        return Err(bad_step(format!("{} elements do not fit into a slot of {slot} bytes", sges.len())));
    }
    if bytes.len() < room {
        bytes.extend(terminator.iter().flatten());
    }
    Ok(bytes)
}

fn kernel_terminator() -> [u8; UNIT] {
    let mut unit = [0; UNIT];
    put32(&mut unit, 4, INVALID_LKEY);
    unit
}

fn push_sge(bytes: &mut Vec<u8>, sge: &Sge) {
    bytes.extend((sge.len & 0x7fff_ffff).to_le_bytes());
    bytes.extend(sge.lkey.to_le_bytes());
    bytes.extend(sge.addr.to_le_bytes());
}

fn ud_unit(datagram: &Datagram) -> Result<[u8; 48]> {
    let path = &datagram.path;
    // For a LID, returns the LID and 0. For a MAC address, returns its last two bytes and its first four bytes.
    let address = |lid: Option<u16>, mac: Option<[u8; 6]>| match (lid, mac) {
        (Some(_), Some(_)) => Err(bad_step("a LID and a MAC share a field")),
        (lid, None) => Ok((lid.unwrap_or(0), 0)),
        (None, Some([a, b, c, d, e, f])) => {
            Ok((u16::from_be_bytes([e, f]), u32::from_be_bytes([a, b, c, d])))
        }
    };
    let (source, smac) = address(path.slid, path.smac)?;
    let (destination, dmac) = address(path.dlid, path.dmac)?;
    let mut unit = [0; 48];
    put32(&mut unit, 0x00, 1);
    unit[0x04..0x06].copy_from_slice(&source.to_le_bytes());
    unit[0x06..0x08].copy_from_slice(&destination.to_le_bytes());
    put32(&mut unit, 0x08, smac);
    put32(&mut unit, 0x0c, dmac);
    put32(&mut unit, 0x10, path.sip.map_or(0, u32::from));
    put32(&mut unit, 0x14, path.dip.map_or(0, u32::from));
    put32(&mut unit, 0x20, datagram.qpn);
    put32(&mut unit, 0x24, datagram.qkey);
    Ok(unit)
}

pub(crate) fn parse_cqe(raw: &[u8; ENTRY]) -> Cqe {
    const SEND_ERROR: u8 = 0xff;
    const RECEIVE_ERROR: u8 = 0xfe;
    let opcode = raw[0x1c];
    let error = matches!(opcode, SEND_ERROR | RECEIVE_ERROR);
    let is_send = if error { opcode == SEND_ERROR } else { raw[0x1d] != 0 };
    let success = |value: u32| if error { 0 } else { value };
    Cqe {
        qpn: get32(raw, 0x00),
        remote_qpn: success(get32(raw, 0x08)),
        remote_lid: if error { 0 } else { u16::from_le_bytes([raw[0x0e], raw[0x0f]]) },
        imm: if error { [0; 4] } else { [raw[0x10], raw[0x11], raw[0x12], raw[0x13]] },
        byte_count: success(get32(raw, 0x14)),
        wqe: get32(raw, 0x18),
        opcode,
        is_send,
        syndrome: error.then_some(raw[0x10]),
        vendor_error: if error { raw[0x11] } else { 0 },
        raw: Hex(*raw),
    }
}

fn put32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

fn get32(raw: &[u8; ENTRY], offset: usize) -> u32 {
    u32::from_le_bytes([raw[offset], raw[offset + 1], raw[offset + 2], raw[offset + 3]])
}

#[cfg(test)]
mod tests;
