//! UAR pages: the doorbells in BAR2.
//!
//! # Spec
//! JingZhao interface, section 1.6.

use card::frontend::reason::{NO_REGISTER, WIDTH};
use card::telemetry::monitor::Monitor;
use card::telemetry::reason::IgnoreReason;
use hcr::doorbell::SplitDoorbells;
use protocol::describe::Field as _;
use protocol::hca::jingzhao::doorbell::{SendDoorbell, UAR_PAGE, UarRegister, arm_cq, arm_eq};
use protocol::ids::{Cqn, Eqn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    Send {
        page: u32,
        doorbell: SendDoorbell,
    },
    /// Arm a CQ for one event.
    ArmCq(Cqn),
    /// Arm an EQ for one interrupt.
    ArmEq(Eqn),
}

impl Doorbell {
    /// Records that the doorbell was ignored.
    pub fn ignore(&self, monitor: &mut Monitor, reason: IgnoreReason) {
        match self {
            Self::Send { page, doorbell: SendDoorbell { qpn, .. } } => {
                monitor.ignored(reason, Some(*qpn), format_args!("UAR[{page}].sq_doorbell"), |_| {});
            }
            Self::ArmCq(cqn) => {
                monitor.ignored(reason, None, format_args!("UAR.arm_cq"), |to| cqn.show("cqn", to));
            }
            Self::ArmEq(eqn) => {
                monitor.ignored(reason, None, format_args!("UAR.arm_eq"), |to| eqn.show("eqn", to));
            }
        }
    }
}

/// All UAR pages. They are write-only; reads return 0.
#[derive(Debug)]
pub struct Doorbells {
    /// First halves of send doorbells, which 32-bit software writes with two stores.
    split: SplitDoorbells<1>,
}

impl Doorbells {
    pub fn new(bar_len: u64) -> Self {
        Self { split: SplitDoorbells::new(bar_len / UAR_PAGE) }
    }

    /// Discards the stored first halves, as a device reset requires.
    pub fn reset(&mut self) {
        self.split.reset();
    }

    /// Returns the most recent first half of a page's send doorbell.
    pub fn first_half(&self, page: u64) -> u32 {
        u32::try_from(page).map_or(0, |page| u32::from_le_bytes(self.split.first_half(page, 0)))
    }

    /// Handles a store to BAR2. Returns `None` for the first half of a doorbell.
    ///
    /// # Errors
    /// The store is ignored if the register does not exist or does not support this width.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<Option<Doorbell>, IgnoreReason> {
        let page = u32::try_from(offset / UAR_PAGE).ok().filter(|page| self.split.has_page(*page));
        let page = page.ok_or(NO_REGISTER)?;
        let number = |data: &[u8]| match data {
            [a, b, c, d] | [a, b, c, d, _, _, _, _] => Ok(u32::from_le_bytes([*a, *b, *c, *d])),
            _ => Err(WIDTH),
        };
        let register = UarRegister::at(offset % UAR_PAGE).ok_or(NO_REGISTER)?;
        Ok(match register {
            half @ (UarRegister::SendLow | UarRegister::SendHigh) => {
                let whole = self.split.store(page, 0, half == UarRegister::SendHigh, data)?;
                let Some([a, b, c, d, e, f, g, h]) = whole else { return Ok(None) };
                let doorbell =
                    SendDoorbell::parse(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
                Some(Doorbell::Send { page, doorbell })
            }
            UarRegister::ArmCq => Some(Doorbell::ArmCq(arm_cq(number(data)?))),
            UarRegister::ArmEq => Some(Doorbell::ArmEq(arm_eq(number(data)?))),
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::Qpn;

    use super::*;

    /// The second doorbell of the example in section 14.1.
    const BYTES: [u8; 8] = [0x0a, 0x08, 0x00, 0x00, 0x02, 0x05, 0x00, 0x00];
    const SEND: SendDoorbell =
        SendDoorbell { head: 8, fence: false, opcode: 0x0a, qpn: Qpn::new(5), size: 2 };

    fn doorbells() -> Doorbells {
        Doorbells::new(8 << 20)
    }

    #[test]
    fn eight_byte_store_completes_doorbell() {
        assert_eq!(doorbells().write(0x3000, &BYTES), Ok(Some(Doorbell::Send { page: 3, doorbell: SEND })));
    }

    #[test]
    fn second_half_completes_doorbell() {
        let mut doorbells = doorbells();
        assert_eq!(doorbells.write(0x1000, &BYTES[..4]), Ok(None));
        assert_eq!(
            doorbells.write(0x1004, &BYTES[4..]),
            Ok(Some(Doorbell::Send { page: 1, doorbell: SEND }))
        );
    }

    #[test]
    fn first_half_of_doorbell_is_kept_per_uar_page() {
        let mut doorbells = doorbells();
        assert_eq!(doorbells.write(0x1000, &BYTES[..4]), Ok(None));
        assert_eq!(doorbells.write(0x2000, &[0xff; 4]), Ok(None));
        assert!(matches!(doorbells.write(0x1000, &[0xff; 8]), Ok(Some(_))));
        assert_eq!(
            doorbells.write(0x1004, &BYTES[4..]),
            Ok(Some(Doorbell::Send { page: 1, doorbell: SEND }))
        );
    }

    #[test]
    fn arm_doorbell_offset_distinguishes_cq_and_eq() {
        let mut doorbells = doorbells();
        assert_eq!(doorbells.write(0x10, &[5, 0, 0, 0]), Ok(Some(Doorbell::ArmCq(Cqn::new(5)))));
        assert_eq!(doorbells.write(0x20, &[7, 0, 0, 0]), Ok(Some(Doorbell::ArmEq(Eqn::new(7)))));
    }

    #[test]
    fn stores_with_wrong_width_or_offset_are_ignored() {
        let mut doorbells = doorbells();
        for (offset, len, reason) in [
            (0x18, 4, NO_REGISTER),
            (0x08, 8, NO_REGISTER),
            (0x00, 1, WIDTH),
            (0x00, 2, WIDTH),
            (0x10, 2, WIDTH),
            (0x02, 4, NO_REGISTER),
            (0xffc, 4, NO_REGISTER),
            (8 << 20, 8, NO_REGISTER),
        ] {
            assert_eq!(doorbells.write(offset, &BYTES[..len]), Err(reason), "{len} bytes at {offset:#x}");
        }
        assert_eq!(doorbells.write(u64::MAX, &BYTES), Err(NO_REGISTER));
        assert!(matches!(doorbells.write((8 << 20) - 4096, &BYTES), Ok(Some(_))));
    }
}
