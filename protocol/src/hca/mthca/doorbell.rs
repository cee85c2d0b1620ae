//! Doorbells in UAR pages, and doorbell records in ICM.
//!
//! # Spec
//! mthca interface, section 5.

use bitfield_struct::bitfield;

use crate::ids::{Cqn, Qpn};

/// Bytes of a UAR page.
pub const UAR_PAGE: u64 = super::PAGE as u64;
/// Bytes of a doorbell record. Only the first four count.
pub const RECORD_LEN: usize = 8;

/// A doorbell of a UAR page, eight bytes written at once or one half after the other. All other offsets ignore writes,
/// and the whole page reads 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UarRegister {
    /// 10h
    Send,
    /// 20h
    ArmCq,
}

impl UarRegister {
    /// Where it is in its page.
    pub const fn offset(self) -> u64 {
        match self {
            Self::Send => 0x10,
            Self::ArmCq => 0x20,
        }
    }

    /// The register whose first or second half is at an offset of a page, and whether it is the second.
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

/// A send doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDoorbell {
    /// WQEs posted, 1 to 255.
    pub count: u8,
    /// Number of the first, counted on for ever.
    pub first: u16,
    /// Fence of the first.
    pub fence: bool,
    /// Opcode of the first, five bits.
    pub opcode: u8,
    /// The QP, the whole number.
    pub qpn: Qpn,
    /// Size of the first in granules, six bits.
    pub size: u8,
}

impl SendDoorbell {
    /// Reads the doorbell.
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

    /// The doorbell, as software writes it. Values wider than their field lose their high bits.
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

    /// Number of the WQE behind the last one posted.
    pub const fn producer(&self) -> u16 {
        self.first.wrapping_add(self.count as u16)
    }
}

/// What arms a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArmFor {
    /// The next solicited entry, or the next of a failed request.
    Solicited,
    /// The next entry.
    Any,
}

impl ArmFor {
    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Solicited => "solicited",
            Self::Any => "any",
        }
    }
}

/// A doorbell that arms a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmCq {
    /// What for; `None` is a code software does not use.
    pub arm_for: Option<ArmFor>,
    /// The CQ, the whole number.
    pub cqn: Cqn,
    /// Software has read the entries in front of this one.
    pub consumer: u32,
    /// Events of the CQ that software has seen, and one, modulo 4. It would let the device discard stale doorbells, which
    /// cost no more than a needless event.
    pub sequence: u8,
}

impl ArmCq {
    /// Reads the doorbell.
    pub fn parse(bytes: [u8; 8]) -> Self {
        let raw = RawArm::from_bits(u64::from_be_bytes(bytes));
        let arm_for = match raw.command() {
            1 => Some(ArmFor::Solicited),
            2 => Some(ArmFor::Any),
            _ => None,
        };
        Self { arm_for, cqn: Cqn::new(raw.cqn()), consumer: raw.consumer(), sequence: raw.sequence() }
    }

    /// Reads what a doorbell record says of how a CQ was armed last; `None` if it is the record of something else, as it is
    /// until the CQ was armed for the first time.
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

/// What a doorbell record is about: a field of its second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// 1: how far software has read a CQ.
    Consumer,
    /// 2: how a CQ was armed last.
    Arm,
    /// 3: requests posted to a send queue.
    Send,
    /// 4: requests posted to a receive queue.
    Receive,
    /// 5: requests posted to a shared receive queue.
    Shared,
}

impl RecordKind {
    /// The kind with this code; `None` also for a free record.
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

    /// Its word.
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

/// A doorbell record. The device goes by the counter alone: software fills the rest later than it creates the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Requests posted, or entries read.
    pub counter: u32,
    /// What it is about; `None` of a free record.
    pub kind: Option<RecordKind>,
    /// The queue, the whole number.
    pub number: u32,
}

impl Record {
    /// Reads a record.
    pub fn parse(bytes: [u8; RECORD_LEN]) -> Self {
        let raw = RawRecord::from_bits(u64::from_be_bytes(bytes));
        Self { counter: raw.counter(), kind: RecordKind::from_code(raw.kind()), number: raw.number() }
    }

    /// The counter of requests posted, which has 16 bits.
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
    /// Of an armed CQ, as the next.
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
    fn published_send_doorbells_are_read_and_written() {
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
    fn published_arm_doorbell_is_read() {
        let expected = ArmCq { arm_for: Some(ArmFor::Any), cqn: Cqn::new(0x11), consumer: 5, sequence: 1 };
        assert_eq!(ArmCq::parse([0x12, 0x00, 0x00, 0x11, 0x00, 0x00, 0x00, 0x05]), expected);
        let solicited = ArmCq::parse([0x31, 0x00, 0x00, 0x11, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!((solicited.arm_for, solicited.consumer), (Some(ArmFor::Solicited), u32::MAX));
        assert_eq!(solicited.sequence, 3);
        assert_eq!(ArmCq::parse([0x13, 0, 0, 0x11, 0, 0, 0, 0]).arm_for, None);
    }

    /// Section 5.4.
    #[test]
    fn a_record_says_what_it_is_about() {
        let arm = Record { counter: 5, kind: Some(RecordKind::Arm), number: 0x11 };
        assert_eq!(Record::parse([0, 0, 0, 5, 0x00, 0x00, 0x11, 0x4a]), arm);
        let send = Record { counter: 0xffff, kind: Some(RecordKind::Send), number: 0x1_0014 };
        assert_eq!(Record::parse([0, 0, 0xff, 0xff, 0x01, 0x00, 0x14, 0x60]), send);
        for code in [0, 6, 7] {
            assert_eq!(Record::parse([0, 0, 0, 0, 0, 0, 0, code << 5]).kind, None, "free, or a separator");
        }
    }

    /// Section 13.3.
    #[test]
    fn the_record_of_an_armed_cq_says_what_its_doorbell_does() {
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
    fn a_page_has_two_registers() {
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
