//! Completion queue entries (CQE).
//!
//! # Spec
//! mthca interface, section 7.6.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::hca::syndrome::Syndrome;
use crate::ids::{Lid, Qpn};
use crate::roce::Imm;

/// Length of a CQE in bytes.
pub const LEN: usize = 32;

/// Result of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A send request has completed.
    Sent {
        /// Opcode of the send WQE.
        opcode: u8,
        /// Number of bytes received by a READ or atomic.
        byte_len: u32,
    },
    /// A receive request has completed.
    Received(Received),
    /// The work request has failed.
    Failed {
        /// Whether the request was in the send queue.
        send: bool,
        /// Reason for the failure.
        syndrome: Syndrome,
        /// Vendor-specific syndrome, 0 if there is none.
        vendor: u8,
    },
}

/// Properties of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Received {
    /// QP number of the sender.
    pub remote_qpn: Qpn,
    /// LID of the sender's port.
    pub remote_lid: Lid,
    /// Service level, four bits.
    pub service_level: u8,
    /// Whether the message had a GRH.
    pub grh: bool,
    /// Low bits of the destination LID.
    pub path_bits: u8,
    /// Immediate data or P_Key index.
    pub imm_or_pkey: ImmOrPkey,
    /// BTH opcode of the last packet.
    pub opcode: u8,
    /// Length in bytes. For a datagram, this includes 40 bytes for the GRH.
    pub byte_len: u32,
}

/// Immediate data or P_Key index, which share one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ImmOrPkey {
    Imm(Imm),
    /// P_Key index, in a message without immediate data.
    PkeyIndex(u16),
}

impl Default for ImmOrPkey {
    fn default() -> Self {
        Self::PkeyIndex(0)
    }
}

/// A CQE owned by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// Local QP number, with a generation number in the bits above the table size. QP0 and QP1 are reported by their
    /// internal numbers (section 8.1).
    pub qpn: Qpn,
    /// Byte offset of the WQE within its region, a multiple of 64.
    pub wqe: u32,
    /// Result of the work request.
    pub outcome: Outcome,
}

impl Cqe {
    /// Returns the CQE in wire format, with the owner bit cleared so that the driver owns it.
    pub fn emit(&self) -> [u8; LEN] {
        const SEND_ERROR: u8 = 0xff;
        const RECV_ERROR: u8 = 0xfe;
        const SENT: u8 = 0x80;
        let blank = Raw { my_qpn: self.qpn.get().into(), wqe: self.wqe.into(), ..Raw::default() };
        let raw = match self.outcome {
            Outcome::Sent { opcode, byte_len } => {
                Raw { opcode, byte_len: byte_len.into(), is_send: SENT, ..blank }
            }
            Outcome::Received(received) => Raw {
                remote_qpn: received.remote_qpn.get().into(),
                service_level: received.service_level << 4,
                path: PathByte::new().with_grh(received.grh).with_path_bits(received.path_bits & 0x7f),
                remote_lid: received.remote_lid.get().into(),
                imm: match received.imm_or_pkey {
                    ImmOrPkey::Imm(imm) => imm.0,
                    ImmOrPkey::PkeyIndex(index) => {
                        let [high, low] = index.to_be_bytes();
                        [high, low, 0, 0]
                    }
                },
                byte_len: received.byte_len.into(),
                opcode: received.opcode,
                ..blank
            },
            Outcome::Failed { send, syndrome, vendor } => Raw {
                imm: [syndrome.code(), vendor, 0, 0],
                opcode: if send { SEND_ERROR } else { RECV_ERROR },
                ..blank
            },
        };
        transmute!(raw)
    }
}

#[bitfield(u8)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct PathByte {
    #[bits(7)]
    path_bits: u8,
    grh: bool,
}

#[derive(Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    my_qpn: U32,
    my_ee: U32,
    remote_qpn: U32,
    service_level: u8,
    path: PathByte,
    remote_lid: U16,
    /// In an error CQE, these bytes are the syndrome, the vendor syndrome and a doorbell count of 0.
    imm: [u8; 4],
    byte_len: U32,
    wqe: U32,
    opcode: u8,
    is_send: u8,
    reserved_1e: u8,
    owner: u8,
}

const _: () = assert!(size_of::<Raw>() == LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn emit(outcome: Outcome) -> [u8; LEN] {
        Cqe { qpn: Qpn::new(0x1_0014), wqe: 0x440, outcome }.emit()
    }

    #[test]
    fn send_cqe_contains_opcode_and_direction() {
        let mut expected = [0; LEN];
        expected[..4].copy_from_slice(&[0, 1, 0, 0x14]);
        expected[0x14..].copy_from_slice(&[0, 0, 0, 8, 0, 0, 0x04, 0x40, 0x12, 0x80, 0, 0]);
        assert_eq!(emit(Outcome::Sent { opcode: 0x12, byte_len: 8 }), expected);
    }

    #[test]
    fn receive_cqe_identifies_sender() {
        let received = Received {
            remote_qpn: Qpn::new(0x15),
            remote_lid: Lid::new(0x102),
            service_level: 3,
            grh: true,
            path_bits: 1,
            imm_or_pkey: ImmOrPkey::PkeyIndex(2),
            opcode: 0x64,
            byte_len: 296,
        };
        let expected = [
            0x00, 0x01, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x15, 0x30, 0x81, 0x01,
            0x02, //
            0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x28, 0x00, 0x00, 0x04, 0x40, 0x64, 0x00, 0x00, 0x00,
        ];
        assert_eq!(emit(Outcome::Received(received)), expected);
        let imm_or_pkey = ImmOrPkey::Imm(Imm([1, 2, 3, 4]));
        let entry = emit(Outcome::Received(Received { imm_or_pkey, ..received }));
        assert_eq!(entry[0x10..0x14], [1, 2, 3, 4]);
    }

    #[test]
    fn error_opcode_identifies_queue() {
        for (send, opcode) in [(true, 0xff), (false, 0xfe)] {
            let mut expected = [0; LEN];
            expected[..4].copy_from_slice(&[0, 1, 0, 0x14]);
            expected[0x10..0x12].copy_from_slice(&[0x05, 0x07]);
            expected[0x1a..0x1d].copy_from_slice(&[0x04, 0x40, opcode]);
            assert_eq!(emit(Outcome::Failed { send, syndrome: Syndrome::Flushed, vendor: 7 }), expected);
        }
    }
}
