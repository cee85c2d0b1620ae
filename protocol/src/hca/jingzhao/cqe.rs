//! Completion queue entries.
//!
//! # Spec
//! JingZhao interface, section 7.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::wqe::WqeOpcode;
use crate::describe::{Describe, Field, Hex, Visitor};
pub use crate::hca::syndrome::Syndrome;
use crate::ids::{Lid, Qpn};
use crate::roce::{Imm, Opcode};

/// Bytes of an entry.
pub const LEN: usize = 32;
/// Offset of the byte that says who owns an entry, its last; it is written last.
pub const OWNER: usize = 31;
/// Bit of the owner byte: the device may write the entry. Software sets it when it has read the entry.
pub const HARDWARE_OWNED: u8 = 0x80;

/// Opcode of an error entry of a send queue.
const SEND_ERROR: u8 = 0xff;
/// Opcode of an error entry of a receive queue.
const RECV_ERROR: u8 = 0xfe;

/// `g_mlpath`: a GRH is used.
const HAS_GRH: u8 = 0x80;

/// A work queue of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CqeQueue {
    /// Send queue.
    Send,
    /// Receive queue.
    Recv,
}

/// How the request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Success {
        /// Opcode of the send WQE, or BTH OpCode of a received message's last packet (J-39).
        opcode: u8,
        /// Peer QP.
        remote_qpn: Qpn,
        /// Peer LID, 0 if unknown.
        remote_lid: Lid,
        /// Of a datagram: 40 bytes before the payload are for its GRH.
        grh: bool,
        /// Immediate data received; zero if none.
        imm: Imm,
        /// Bytes of the message.
        byte_len: u32,
    },
    /// Not.
    Error {
        /// Why.
        syndrome: Syndrome,
        /// For diagnostics.
        vendor: u8,
    },
}

/// A completion queue entry that belongs to software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// Local QP, with the high bits software knows it by.
    pub qpn: Qpn,
    /// Its queue.
    pub queue: CqeQueue,
    /// Byte offset of the WQE in its queue.
    pub wqe: u32,
    /// How it ended.
    pub outcome: Outcome,
}

impl Cqe {
    /// Reads an entry, as a driver does; `None` if it still belongs to the device.
    pub fn parse(entry: &[u8; LEN]) -> Option<Self> {
        if entry[OWNER] & HARDWARE_OWNED != 0 {
            return None;
        }
        let raw: Raw = transmute!(*entry);
        let qpn = Qpn::new(raw.my_qpn.get());
        let wqe = raw.wqe.get();
        let [syndrome, vendor, ..] = raw.imm;
        let error = Outcome::Error { syndrome: Syndrome::from_code(syndrome), vendor };
        let (queue, outcome) = match (raw.opcode, raw.is_send) {
            (SEND_ERROR, _) => (CqeQueue::Send, error),
            (RECV_ERROR, _) => (CqeQueue::Recv, error),
            (opcode, is_send) => {
                let queue = if is_send == 0 { CqeQueue::Recv } else { CqeQueue::Send };
                let success = Outcome::Success {
                    opcode,
                    remote_qpn: Qpn::new(raw.remote_qpn.get()),
                    remote_lid: Lid::new(raw.remote_lid.get()),
                    grh: raw.g_mlpath & HAS_GRH != 0,
                    imm: Imm(raw.imm),
                    byte_len: raw.byte_len.get(),
                };
                (queue, success)
            }
        };
        Some(Self { qpn, queue, wqe, outcome })
    }

    /// The entry, handed to software.
    pub fn emit(&self) -> [u8; LEN] {
        let blank = Raw {
            my_qpn: self.qpn.get().into(),
            my_ee: U32::ZERO,
            remote_qpn: U32::ZERO,
            sl_ipok: 0,
            g_mlpath: 0,
            remote_lid: U16::ZERO,
            imm: [0; 4],
            byte_len: U32::ZERO,
            wqe: self.wqe.into(),
            opcode: 0,
            is_send: 0,
            reserved_1e: 0,
            owner: 0,
        };
        let raw = match self.outcome {
            Outcome::Success { opcode, remote_qpn, remote_lid, grh, imm, byte_len } => Raw {
                remote_qpn: remote_qpn.get().into(),
                g_mlpath: if grh { HAS_GRH } else { 0 },
                remote_lid: remote_lid.get().into(),
                imm: imm.0,
                byte_len: byte_len.into(),
                opcode,
                is_send: u8::from(self.queue == CqeQueue::Send),
                ..blank
            },
            Outcome::Error { syndrome, vendor } => Raw {
                imm: [syndrome.code(), vendor, 0, 0],
                opcode: match self.queue {
                    CqeQueue::Send => SEND_ERROR,
                    CqeQueue::Recv => RECV_ERROR,
                },
                ..blank
            },
        };
        transmute!(raw)
    }
}

impl Describe for Cqe {
    fn describe(&self, to: &mut dyn Visitor) {
        let Self { qpn, queue, wqe, outcome } = self;
        qpn.show("qpn", to);
        match queue {
            CqeQueue::Send => "send".show("queue", to),
            CqeQueue::Recv => "recv".show("queue", to),
        }
        Hex(*wqe).show("wqe", to);
        match *outcome {
            Outcome::Success { opcode, remote_qpn, remote_lid, grh, imm, byte_len } => {
                match queue {
                    CqeQueue::Send => WqeOpcode::word(opcode).show("opcode", to),
                    CqeQueue::Recv => format_args!("{}", Opcode::from_byte(opcode)).show("opcode", to),
                }
                byte_len.show("byte_len", to);
                remote_qpn.show("remote_qpn", to);
                remote_lid.show("remote_lid", to);
                grh.show("grh", to);
                imm.show("imm", to);
            }
            Outcome::Error { syndrome, vendor } => {
                syndrome.show("syndrome", to);
                vendor.show("vendor", to);
            }
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    my_qpn: U32,
    my_ee: U32,
    remote_qpn: U32,
    sl_ipok: u8,
    g_mlpath: u8,
    remote_lid: U16,
    /// In an error entry: syndrome, vendor code, and a doorbell count that is 0.
    imm: [u8; 4],
    byte_len: U32,
    wqe: U32,
    opcode: u8,
    is_send: u8,
    reserved_1e: u8,
    owner: u8,
}

const _: () = assert!(std::mem::offset_of!(Raw, owner) == OWNER);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Section 14.9.
    const SEND: [u8; LEN] = [
        0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, 0x0a, 0x01, 0x00, 0x00,
    ];
    const RECV_IMM: [u8; LEN] = [
        0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
        0x00, //
        0x11, 0x22, 0x33, 0x44, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0b, 0x00, 0x00, 0x00,
    ];
    const RECV_FLUSH: [u8; LEN] = [
        0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0xfe, 0x00, 0x00, 0x00,
    ];
    const SEND_ACCESS: [u8; LEN] = [
        0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x13, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, 0xff, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn published_entries_are_read_and_written() {
        let qpn = Qpn::new(5);
        let success = |opcode, imm, byte_len| Outcome::Success {
            opcode,
            remote_qpn: Qpn::new(9),
            remote_lid: Lid::new(2),
            grh: false,
            imm: Imm(imm),
            byte_len,
        };
        let error = |syndrome| Outcome::Error { syndrome, vendor: 0 };
        for (bytes, queue, wqe, outcome) in [
            (SEND, CqeQueue::Send, 0x80, success(0x0a, [0; 4], 64)),
            (RECV_IMM, CqeQueue::Recv, 0, success(0x0b, [0x11, 0x22, 0x33, 0x44], 4096)),
            (RECV_FLUSH, CqeQueue::Recv, 0x100, error(Syndrome::Flushed)),
            (SEND_ACCESS, CqeQueue::Send, 0x80, error(Syndrome::RemoteAccess)),
        ] {
            let cqe = Cqe { qpn, queue, wqe, outcome };
            assert_eq!(Cqe::parse(&bytes), Some(cqe));
            assert_eq!(cqe.emit(), bytes);
        }
    }

    /// Document, table 3-3-2: `g_mlpath` is bits 15:8 of the word at 0Ch, and "has grh" its bit 7.
    #[test]
    fn has_grh_is_bit_7_of_mlpath() {
        let mut entry = RECV_IMM;
        entry[0x0d] = 0x80;
        let cqe = Cqe::parse(&entry).unwrap();
        assert!(matches!(cqe.outcome, Outcome::Success { grh: true, .. }));
        assert_eq!(cqe.emit(), entry);
    }

    #[test]
    fn an_entry_of_the_device_is_not_read() {
        let mut entry = SEND;
        entry[OWNER] = HARDWARE_OWNED;
        assert_eq!(Cqe::parse(&entry), None);
    }

    proptest! {
        #[test]
        fn any_entry_is_read_and_written_back(entry in prop::array::uniform32(any::<u8>())) {
            if let Some(cqe) = Cqe::parse(&entry) {
                prop_assert_eq!(Cqe::parse(&cqe.emit()), Some(cqe));
            }
        }
    }
}
