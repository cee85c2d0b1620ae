//! Doorbells in UAR pages and doorbell records in the ICM.
//!
//! # Spec
//! mthca interface, section 5.

use bitfield_struct::bitfield;

use crate::ids::{Cqn, Qpn};

/// Length of a UAR page in bytes.
pub const UAR_PAGE: u64 = super::PAGE as u64;
/// Length of a doorbell record in bytes.
pub const RECORD_LEN: usize = 8;

/// An 8-byte doorbell register in a UAR page. Drivers write it in one access or in two halves. The device ignores
/// writes to other offsets, and the whole page reads as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UarRegister {
    /// 10h: rings the doorbell of a send queue.
    Send,
    /// 20h: arms a CQ.
    ArmCq,
}

impl UarRegister {
    /// Returns the offset of the register in a UAR page.
    pub const fn offset(self) -> u64 {
        match self {
            Self::Send => 0x10,
            Self::ArmCq => 0x20,
        }
    }

    /// Decodes an offset in a UAR page. Returns the register and whether the offset is in its second half.
    pub const fn at(offset: u64) -> Option<(Self, bool)> {
        match offset {
            0x10 => Some((Self::Send, false)),
            0x14 => Some((Self::Send, true)),
            0x20 => Some((Self::ArmCq, false)),
            0x24 => Some((Self::ArmCq, true)),
            _ => None,
        }
    }
}

/// A doorbell for a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDoorbell {
    /// Number of WQEs that this doorbell posts, 1 to 255.
    pub count: u8,
    /// Index of the first posted WQE, modulo 2^16.
    pub first: u16,
    /// Fence bit of the first WQE.
    pub fence: bool,
    /// Opcode of the first WQE, five bits.
    pub opcode: u8,
    /// QP number, with a generation number in the bits above the table size.
    pub qpn: Qpn,
    /// Size of the first WQE in granules, six bits.
    pub size: u8,
}

impl SendDoorbell {
    /// Parses the doorbell from its bytes.
    pub fn parse(bytes: [u8; 8]) -> Self {
        let raw = RawSend::from_bits(u64::from_be_bytes(bytes));
        Self {
            count: raw.count(),
            first: raw.first(),
            fence: raw.fence(),
            opcode: raw.opcode(),
            qpn: Qpn::new(raw.qpn()),
            size: raw.size(),
        }
    }

    /// Returns the doorbell in wire format, as a driver writes it. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; 8] {
        let raw = RawSend::new()
            .with_count(self.count)
            .with_first(self.first)
            .with_fence(self.fence)
            .with_opcode(self.opcode & 0x1f)
            .with_qpn(self.qpn.get())
            .with_size(self.size & 0x3f);
        raw.into_bits().to_be_bytes()
    }

    /// Returns one more than the index of the last posted WQE, modulo 2^16.
    pub const fn producer(&self) -> u16 {
        self.first.wrapping_add(self.count as u16)
    }
}

/// Type of completion that a CQ is armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArmFor {
    /// The next solicited or failed completion raises an event.
    Solicited,
    /// The next completion raises an event.
    Any,
}

impl ArmFor {
    /// Returns the name that appears in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Solicited => "solicited",
            Self::Any => "any",
        }
    }
}

/// The doorbell that arms a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmCq {
    /// Type of completion to arm the CQ for, or `None` for an unknown code.
    pub arm_for: Option<ArmFor>,
    /// CQ number, with a generation number in the bits above the table size.
    pub cqn: Cqn,
    /// The driver's consumer index.
    pub consumer: u32,
    /// One more than the number of events that the driver has received for the CQ, modulo 4. A doorbell has no effect
    /// while the driver has not received the event for its sequence number.
    pub sequence: u8,
}

impl ArmCq {
    /// Parses the doorbell from its bytes.
    pub fn parse(bytes: [u8; 8]) -> Self {
        let raw = RawArm::from_bits(u64::from_be_bytes(bytes));
        let arm_for = match raw.command() {
            1 => Some(ArmFor::Solicited),
            2 => Some(ArmFor::Any),
            _ => None,
        };
        Self { arm_for, cqn: Cqn::new(raw.cqn()), consumer: raw.consumer(), sequence: raw.sequence() }
    }

    /// Parses the last arm request from a doorbell record. Returns `None` if the record is not an arm record, for
    /// example if the driver has not set its kind yet.
    pub fn from_record(bytes: [u8; RECORD_LEN]) -> Option<Self> {
        let raw = RawRecord::from_bits(u64::from_be_bytes(bytes));
        let arm_for = match raw.command() {
            1 => Some(ArmFor::Solicited),
            2 => Some(ArmFor::Any),
            _ => None,
        };
        (RecordKind::from_code(raw.kind()) == Some(RecordKind::Arm)).then(|| Self {
            arm_for,
            cqn: Cqn::new(raw.number()),
            consumer: raw.counter(),
            sequence: raw.sequence(),
        })
    }
}

/// The kind of doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// 1: consumer index of a CQ.
    Consumer,
    /// 2: last arm request for a CQ.
    Arm,
    /// 3: number of WQEs posted to a send queue.
    Send,
    /// 4: number of WQEs posted to a receive queue.
    Receive,
    /// 5: number of WQEs posted to an SRQ.
    Shared,
}

impl RecordKind {
    /// Decodes a kind. Returns `None` for a free record or an unknown code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Consumer,
            2 => Self::Arm,
            3 => Self::Send,
            4 => Self::Receive,
            5 => Self::Shared,
            _ => return None,
        })
    }

    /// Returns the name that appears in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Arm => "arm",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Shared => "shared",
        }
    }
}

/// A doorbell record. The device uses only the counter, because drivers can create the queue before they set the other
/// fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of WQEs posted or CQEs consumed.
    pub counter: u32,
    /// The record's kind; `None` if it is free.
    pub kind: Option<RecordKind>,
    /// Queue number, with a generation number in the bits above the table size.
    pub number: u32,
}

impl Record {
    /// Parses the record from its bytes.
    pub fn parse(bytes: [u8; RECORD_LEN]) -> Self {
        let raw = RawRecord::from_bits(u64::from_be_bytes(bytes));
        Self { counter: raw.counter(), kind: RecordKind::from_code(raw.kind()), number: raw.number() }
    }

    /// Returns the number of WQEs posted, modulo 2^16.
    pub const fn posted(&self) -> u16 {
        (self.counter & 0xffff) as u16
    }
}

#[bitfield(u64)]
struct RawSend {
    #[bits(6)]
    size: u8,
    #[bits(2)]
    __: u8,
    #[bits(24)]
    qpn: u32,
    #[bits(5)]
    opcode: u8,
    fence: bool,
    #[bits(2)]
    __: u8,
    first: u16,
    count: u8,
}

#[bitfield(u64)]
struct RawRecord {
    // `command` and `sequence` are used only in arm records.
    #[bits(3)]
    command: u8,
    #[bits(2)]
    sequence: u8,
    #[bits(3)]
    kind: u8,
    #[bits(24)]
    number: u32,
    counter: u32,
}

#[bitfield(u64)]
struct RawArm {
    consumer: u32,
    #[bits(24)]
    cqn: u32,
    #[bits(4)]
    command: u8,
    #[bits(2)]
    sequence: u8,
    #[bits(2)]
    __: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_send_doorbells_round_trip() {
        let send =
            SendDoorbell { count: 1, first: 0, fence: false, opcode: 0x0a, qpn: Qpn::new(0x14), size: 2 };
        let write = SendDoorbell { count: 3, first: 1, opcode: 0x08, size: 4, ..send };
        for (bytes, doorbell, producer) in [
            ([0x01, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x14, 0x02], send, 1),
            ([0x03, 0x00, 0x01, 0x08, 0x00, 0x00, 0x14, 0x04], write, 4),
        ] {
            assert_eq!(SendDoorbell::parse(bytes), doorbell);
            assert_eq!(doorbell.emit(), bytes);
            assert_eq!(doorbell.producer(), producer);
        }
        let fenced = SendDoorbell { fence: true, first: 0xffff, ..send };
        assert_eq!(fenced.emit(), [0x01, 0xff, 0xff, 0x2a, 0x00, 0x00, 0x14, 0x02]);
        assert_eq!(SendDoorbell::parse(fenced.emit()), fenced);
        assert_eq!(fenced.producer(), 0);
    }

    #[test]
    fn parses_arm_doorbell_from_specification() {
        let expected = ArmCq { arm_for: Some(ArmFor::Any), cqn: Cqn::new(0x11), consumer: 5, sequence: 1 };
        assert_eq!(ArmCq::parse([0x12, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x05]), expected);
        let solicited = ArmCq::parse([0x31, 0x00, 0x00, 0x11, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!((solicited.arm_for, solicited.consumer), (Some(ArmFor::Solicited), u32::MAX));
        assert_eq!(solicited.sequence, 3);
        assert_eq!(ArmCq::parse([0x13, 0, 0, 0x11, 0, 0, 0, 0]).arm_for, None);
    }

    /// Section 5.4 specifies the layout.
    #[test]
    fn doorbell_record_contains_kind_and_queue_number() {
        let arm = Record { counter: 5, kind: Some(RecordKind::Arm), number: 0x11 };
        assert_eq!(Record::parse([0, 0, 0, 5, 0x00, 0x00, 0x11, 0x4a]), arm);
        let send = Record { counter: 0xffff, kind: Some(RecordKind::Send), number: 0x1_0014 };
        assert_eq!(Record::parse([0, 0, 0xff, 0xff, 0x01, 0x00, 0x14, 0x60]), send);
        for code in [0, 6, 7] {
            assert_eq!(
                Record::parse([0, 0, 0, 0, 0, 0, 0, code << 5]).kind,
                None,
                "free records and separators have no kind"
            );
        }
    }

    /// The bytes are an example from section 13.3.
    #[test]
    fn arm_record_matches_doorbell() {
        let record = [0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x11, 0x4a];
        let doorbell = [0x12, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x05];
        assert_eq!(ArmCq::from_record(record), Some(ArmCq::parse(doorbell)));
        let created = [0, 0, 0, 0, 0x00, 0x00, 0x11, 0x40];
        assert_eq!(ArmCq::from_record(created).unwrap().arm_for, None);
        for other in [[0; 8], [0, 0, 0, 1, 0x00, 0x00, 0x14, 0x60]] {
            assert_eq!(ArmCq::from_record(other), None);
        }
    }

    #[test]
    fn uar_offsets_map_to_registers() {
        for register in [UarRegister::Send, UarRegister::ArmCq] {
            assert_eq!(UarRegister::at(register.offset()), Some((register, false)));
        }
        assert_eq!(UarRegister::at(0x10), Some((UarRegister::Send, false)));
        assert_eq!(UarRegister::at(0x24), Some((UarRegister::ArmCq, true)));
        for offset in [0x00, 0x08, 0x12, 0x18, 0x1c, 0x28, 0x30, 0xff8] {
            assert_eq!(UarRegister::at(offset), None);
        }
    }
}
