//! Doorbells in UAR pages and doorbell records in guest memory.
//!
//! # Spec
//! mlx5 interface, section 7.

use super::PAGE;
use crate::ids::{Cqn, Eqn, Qpn};
use crate::layout;

/// Length of a doorbell record in bytes.
pub const RECORD_LEN: usize = 8;
/// Distance in bytes between the send doorbell registers in a page.
pub const SEND_DISTANCE: u64 = 0x200;
/// Length in bytes of a BlueFlame buffer, which is one half of a send doorbell register.
pub const BLUE_FLAME_LEN: u64 = 0x100;

/// A doorbell register in a UAR page. Other offsets read as 0 and ignore writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UarRegister {
    /// 20h: arms a CQ. Drivers write 8 bytes in one access or in two halves. The `bool` is true for a write to the
    /// second half.
    ArmCq(bool),
    /// 40h, 4 bytes: reports the consumer index of an EQ and arms the EQ.
    ArmEq,
    /// 48h, 4 bytes: reports the consumer index of an EQ without arming the EQ.
    UpdateEq,
    /// 800h to FFFh: send doorbells. Drivers alternate between the two halves of each register.
    Send {
        /// Register number, 0 to 3.
        register: u8,
        /// Whether the write is to the second half.
        second: bool,
        /// Offset within the half. The first 8 bytes are the doorbell. Writes at higher offsets carry the rest of a
        /// WQE.
        offset: u16,
    },
}

impl UarRegister {
    /// Offset of the register that arms CQs.
    pub const ARM_CQ: u64 = 0x20;
    /// Offset of the first send doorbell register.
    pub const SEND: u64 = 0x800;

    /// Returns the offsets of all send doorbells: one for each half of each register.
    pub fn sends() -> impl Iterator<Item = u64> {
        const BUFFERS: u64 = (PAGE as u64 - UarRegister::SEND) / BLUE_FLAME_LEN;
        (0..BUFFERS).map(|buffer| Self::SEND + buffer * BLUE_FLAME_LEN)
    }

    /// Decodes the offset of a write to a UAR page.
    pub const fn at(offset: u64) -> Option<Self> {
        match offset {
            Self::ARM_CQ => Some(Self::ArmCq(false)),
            0x24 => Some(Self::ArmCq(true)),
            0x40 => Some(Self::ArmEq),
            0x48 => Some(Self::UpdateEq),
            Self::SEND..0x1000 => {
                let [.., high, low] = (offset - Self::SEND).to_be_bytes();
                let (register, second) = (high >> 1, high & 1 != 0);
                Some(Self::Send { register, second, offset: low as u16 })
            }
            _ => None,
        }
    }
}

layout! {
    /// Doorbell that arms a CQ.
    pub struct ArmCq[8] big_endian {
        /// Number of events that the driver has received for the CQ, modulo 4. Not checked.
        @0x00[29:28]  sequence: u8,
        /// Whether only solicited completions and errors raise an event.
        @0x00[24]     solicited_only: bool,
        /// Consumer index. The driver has read all entries before it.
        @0x00[23:0]   consumer: u32,
        @0x04[23:0]   cqn: Cqn,
    }
}

layout! {
    /// Doorbell that reports the consumer index of an EQ.
    pub struct EqDoorbell[4] big_endian {
        @0x00[31:24]  eqn: Eqn,
        /// Consumer index. The driver has read all entries before it.
        @0x00[23:0]   consumer: u32,
    }
}

layout! {
    /// Send doorbell: the first bytes of the last WQE's control segment. The producer counter is in the doorbell
    /// record.
    pub struct SendDoorbell[8] big_endian {
        @0x04[31:8]  qpn: Qpn,
    }
}

layout! {
    /// Doorbell record of a QP, an SRQ or an RMP. SRQs and RMPs have no send counter.
    pub struct QueueRecord[8] big_endian {
        /// Number of posted receives, modulo 2^16.
        @0x00[15:0]  received: u16,
        /// Number of 64-byte blocks posted to the send queue, modulo 2^16.
        @0x04[15:0]  sent: u16,
    }
}

layout! {
    /// Doorbell record of a CQ.
    pub struct CqRecord[8] big_endian {
        /// Consumer index. The driver has read all entries before it.
        @0x00[23:0]   consumer: u32,
        /// Whether the driver has never armed the CQ. The device sets this bit when it creates a CQ whose doorbells it
        /// polls (specific to this device). Drivers never set it.
        @0x04[31]     never_armed: bool,
        /// Number of events that the driver has received, as in [`ArmCq`].
        @0x04[29:28]  sequence: u8,
        /// Whether only solicited completions and errors raise an event.
        @0x04[24]     solicited_only: bool,
        /// Consumer index of the last arm request.
        @0x04[23:0]   armed_at: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doorbells from golden trace ib-3.
    #[test]
    fn doorbells_match_traces() {
        let arm = ArmCq { sequence: 2, solicited_only: false, consumer: 2, cqn: Cqn::new(0x43) };
        assert_eq!(arm.emit(), 0x2000_0002_0000_0043_u64.to_be_bytes());
        assert_eq!(ArmCq::parse(&arm.emit()), arm);
        let eq = EqDoorbell::parse(&0x0100_00af_u32.to_be_bytes());
        assert_eq!((eq.eqn, eq.consumer), (Eqn::new(1), 0xaf));
        let send = SendDoorbell::parse(&0x0000_0325_0000_8209_u64.to_be_bytes());
        assert_eq!(send.qpn, Qpn::new(0x82));
    }

    #[test]
    fn parses_solicited_only_arm_doorbell() {
        assert!(ArmCq::parse(&[0x31, 0, 0, 1, 0, 0, 0, 0x43]).solicited_only);
    }

    #[test]
    fn each_send_register_has_two_buffers() {
        let send = |register, second, offset| Some(UarRegister::Send { register, second, offset });
        assert_eq!(UarRegister::at(0x800), send(0, false, 0));
        assert_eq!(UarRegister::at(0x908), send(0, true, 8));
        assert_eq!(UarRegister::at(0xc00), send(2, false, 0));
        assert_eq!(UarRegister::at(0xd00), send(2, true, 0));
        assert_eq!(UarRegister::at(0xfff), send(3, true, 0xff));
        assert_eq!(UarRegister::at(0x20), Some(UarRegister::ArmCq(false)));
        assert_eq!(UarRegister::at(0x24), Some(UarRegister::ArmCq(true)));
        assert_eq!(UarRegister::at(0x40), Some(UarRegister::ArmEq));
        assert_eq!(UarRegister::at(0x48), Some(UarRegister::UpdateEq));
        for offset in [0, 0x28, 0x44, 0x4c, 0x7f8, 0x1000, u64::MAX] {
            assert_eq!(UarRegister::at(offset), None, "{offset:#x}");
        }
    }

    #[test]
    fn parses_doorbell_records() {
        let record = QueueRecord::parse(&[0xff, 0xff, 0, 3, 0, 0, 1, 2]);
        assert_eq!((record.received, record.sent), (3, 0x102));
        let record = CqRecord::parse(&[0, 0, 0, 5, 0x31, 0, 0, 4]);
        assert_eq!((record.consumer, record.armed_at, record.sequence), (5, 4, 3));
        assert!(record.solicited_only && !record.never_armed);
        let fresh = CqRecord { never_armed: true, ..CqRecord::default() };
        assert_eq!(fresh.emit(), [0, 0, 0, 0, 0x80, 0, 0, 0]);
    }

    #[test]
    fn every_send_doorbell_is_at_start_of_a_buffer() {
        let all: Vec<u64> = UarRegister::sends().collect();
        assert_eq!(all, [0x800, 0x900, 0xa00, 0xb00, 0xc00, 0xd00, 0xe00, 0xf00]);
        assert!(
            all.iter().all(|at| matches!(UarRegister::at(*at), Some(UarRegister::Send { offset: 0, .. })))
        );
    }
}
