//! Completion queue entries (CQE).
//!
//! # Spec
//! JingZhao interface, sections 7 and 12 (J-39).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::wqe::WqeOpcode;
use crate::describe::{Describe, Field, Hex, Visitor};
pub use crate::hca::syndrome::Syndrome;
use crate::ids::{Lid, Qpn};
use crate::roce::{Imm, Opcode};

/// Length of a CQE in bytes.
pub const LEN: usize = 32;
/// Offset of the owner byte, the last byte of a CQE. The device writes it last.
pub const OWNER: usize = 31;
/// Bit of the owner byte that is set while the device owns the entry. The driver sets it after reading the CQE.
pub const HARDWARE_OWNED: u8 = 0x80;

/// Opcode of an error CQE for the send queue.
const SEND_ERROR: u8 = 0xff;
/// Opcode of an error CQE for the receive queue.
const RECV_ERROR: u8 = 0xfe;

/// Bit of `g_mlpath` that is set if a GRH is present.
const HAS_GRH: u8 = 0x80;

/// Work queue that a CQE refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CqeQueue {
    /// The send queue of the QP.
    Send,
    /// The receive queue of the QP.
    Recv,
}

/// Result of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The work request succeeded.
    Success {
        /// Opcode of the send WQE, or BTH opcode of a received message's last packet (J-39).
        opcode: u8,
        /// QP number of the peer.
        remote_qpn: Qpn,
        /// LID of the peer, or 0 if unknown.
        remote_lid: Lid,
        /// Whether the 40 bytes before a datagram's payload hold a GRH.
        grh: bool,
        /// Received immediate data; zero if the message has none.
        imm: Imm,
        /// Length of the message in bytes.
        byte_len: u32,
    },
    /// The work request failed.
    Error {
        /// Reason for the failure.
        syndrome: Syndrome,
        /// Vendor-specific syndrome, for diagnosis.
        vendor: u8,
    },
}

/// A CQE owned by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// Local QP number, including the high bits that drivers use as a generation counter.
    pub qpn: Qpn,
    /// Work queue that contains the completed WQE.
    pub queue: CqeQueue,
    /// Byte offset of the WQE in its queue.
    pub wqe: u32,
    /// Result of the work request.
    pub outcome: Outcome,
}

impl Cqe {
    /// Parses a CQE as a driver does. Returns `None` if the device owns it.
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

    /// Returns the CQE in wire format, with the owner bit cleared so that the driver owns it.
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
    /// In an error CQE, these bytes are the syndrome, the vendor syndrome and a doorbell count of 0.
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

    /// Example CQEs from section 14.9.
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
    fn example_cqes_round_trip() {
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

    /// In table 3-3-2 of the specification, `g_mlpath` is bits 15:8 of the word at 0Ch, and "has grh" is bit 7 of
    /// `g_mlpath`.
    #[test]
    fn has_grh_is_bit_7_of_mlpath() {
        let mut entry = RECV_IMM;
        entry[0x0d] = 0x80;
        let cqe = Cqe::parse(&entry).unwrap();
        assert!(matches!(cqe.outcome, Outcome::Success { grh: true, .. }));
        assert_eq!(cqe.emit(), entry);
    }

    #[test]
    fn device_owned_entry_is_not_parsed() {
        let mut entry = SEND;
        entry[OWNER] = HARDWARE_OWNED;
        assert_eq!(Cqe::parse(&entry), None);
    }

    proptest! {
        #[test]
        fn any_cqe_round_trips(entry in prop::array::uniform32(any::<u8>())) {
            if let Some(cqe) = Cqe::parse(&entry) {
                prop_assert_eq!(Cqe::parse(&cqe.emit()), Some(cqe));
            }
        }
    }
}
