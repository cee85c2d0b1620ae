//! Initialization segment: the registers at the start of BAR0.
//!
//! # Spec
//! mlx5 interface, sections 2.1 and 18.2.

use engine::Instant;
use protocol::hca::mlx5::command::{LOG_STRIDE, SLOTS};
use protocol::hca::mlx5::regs::{FirmwareVersion, QueueWord, Register};
use protocol::ids::Iova;

use super::health::HealthReport;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    /// Execute the commands in the slots selected by this bit mask.
    Commands(u32),
    Reset,
    /// The driver restarts the device after a failure.
    Restart,
}

#[derive(Debug, Default)]
pub struct InitSegment {
    queue_high: u32,
    queue_low: u32,
    pub health: HealthReport,
}

impl InitSegment {
    /// Reads the word at an offset in BAR0.
    pub fn read(&mut self, offset: u64, now: Instant) -> u32 {
        let Some((register, within)) = Register::at(offset) else { return 0 };
        let (version, revision) = FirmwareVersion::THIS.registers();
        let [high, low] = halves(ticks(now));
        match register {
            Register::FirmwareVersion => version,
            Register::CommandRevision => revision,
            Register::QueueAddressHigh => self.queue_high,
            Register::QueueAddressLow => QueueWord::read(self.queue_low, self.health.nic_state()),
            // The doorbell is write-only, and the device initialises immediately, so both read as 0.
            Register::CommandDoorbell | Register::Initializing => 0,
            Register::Health => self.health.word(within),
            Register::TimerHigh => high,
            Register::TimerLow => low,
            Register::HealthCounter => self.health.count(),
        }
    }

    pub fn write(&mut self, register: Register, value: u32) -> Effect {
        match register {
            Register::QueueAddressHigh => self.queue_high = value,
            Register::QueueAddressLow => match QueueWord::parse(value) {
                QueueWord::Address(address) => {
                    self.queue_low = address;
                    if self.health.restart() {
                        return Effect::Restart;
                    }
                }
                QueueWord::Request { state } => {
                    self.health.request(state);
                    return Effect::Reset;
                }
            },
            Register::CommandDoorbell => return Effect::Commands(value),
            // Writes to read-only registers are ignored.
            _ => {}
        }
        Effect::None
    }

    pub fn slot(&self, index: usize) -> Iova {
        let queue = u64::from(self.queue_high) << 32 | u64::from(self.queue_low);
        Iova::new(queue.wrapping_add((index.min(SLOTS - 1) as u64) << LOG_STRIDE))
    }
}

/// Returns the value of the internal timer. The timer runs at 156.25 MHz, which is five ticks per 32 ns.
pub const fn ticks(now: Instant) -> u64 {
    let nanos = now.as_nanos();
    nanos / 32 * 5 + nanos % 32 * 5 / 32
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(segment: &mut InitSegment, offset: u64) -> u32 {
        segment.read(offset, Instant::ZERO)
    }

    /// Section 2.1: the driver checks these values when it loads.
    #[test]
    fn init_segment_passes_driver_load_checks() {
        let mut segment = InitSegment::default();
        assert_eq!([0, 4, 0x14, 0x1fc].map(|at| read(&mut segment, at)), [0x0023_0010, 0x0005_0bbe, 0x56, 0]);
        assert_eq!([0x240, 0x1040, 0x1ffc, u64::MAX - 3].map(|at| read(&mut segment, at)), [0; 4]);
    }

    #[test]
    fn writing_command_queue_address_clears_failure() {
        let mut segment = InitSegment::default();
        segment.health.fail();
        assert_eq!(read(&mut segment, 0x14), 0x156);
        assert_eq!(segment.write(Register::QueueAddressHigh, 1), Effect::None);
        assert_eq!(segment.write(Register::QueueAddressLow, 0x3659_e000), Effect::Restart);
        assert_eq!(segment.write(Register::QueueAddressLow, 0x3659_e000), Effect::None);
        assert_eq!((read(&mut segment, 0x10), read(&mut segment, 0x14)), (1, 0x3659_e056));
        assert_eq!(segment.slot(31), Iova::new(0x1_3659_e7c0));
        assert_eq!(segment.write(Register::QueueAddressLow, 0x700), Effect::Reset);
        assert_eq!(read(&mut segment, 0x14), 0x3659_e756);
        assert_eq!(segment.write(Register::CommandDoorbell, 1 << 31), Effect::Commands(1 << 31));
        assert_eq!(segment.write(Register::FirmwareVersion, 9), Effect::None);
    }

    #[test]
    fn timer_runs_at_advertised_frequency() {
        let second = Instant::from_nanos(1_000_000_000);
        assert_eq!(ticks(second), 156_250_000);
        let mut segment = InitSegment::default();
        let late = Instant::from_nanos(32 << 32);
        assert_eq!([0x1000, 0x1004].map(|at| segment.read(at, late)), [5, 0]);
    }
}
