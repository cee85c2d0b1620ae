//! Device health, which the driver polls.
//!
//! # Spec
//! mlx5 interface, sections 2.1 and 18.2.

use protocol::hca::mlx5::regs::{FirmwareVersion, Health, NicState};

/// Syndrome that the health buffer reports after an injected failure.
const FIRMWARE_ERROR: u8 = 1;

#[derive(Debug, Default)]
pub struct HealthReport {
    failed: bool,
    /// Whether the driver has read the failure from register 014h.
    failure_read: bool,
    requested: Option<u8>,
    reads: u32,
}

impl HealthReport {
    /// Reports a fatal failure until the driver restarts the device.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Reports a NIC state until the driver restarts the device.
    pub fn request(&mut self, state: u8) {
        self.requested = Some(state);
    }

    /// Stops reporting a failure or a requested state. Must be called when the driver writes the command queue address.
    /// Otherwise, the driver would abandon its recovery. Returns whether the device had failed.
    pub fn restart(&mut self) -> bool {
        let had_failed = self.failed;
        (self.failed, self.failure_read, self.requested) = (false, false, None);
        had_failed
    }

    /// Must be called when the driver reads register 014h. Returns whether this read is the first to report a failure.
    pub fn mark_state_read(&mut self) -> bool {
        let is_first = self.failed && !self.failure_read;
        self.failure_read = self.failed;
        is_first
    }

    /// Returns whether the driver has read the failure from register 014h.
    pub const fn is_failure_read(&self) -> bool {
        self.failure_read
    }

    /// Returns the NIC state reported by register 014h.
    pub fn nic_state(&self) -> u8 {
        match self.failed {
            true => NicState::Disabled.code(),
            false => self.requested.unwrap_or(NicState::Normal.code()),
        }
    }

    /// Returns the word at a byte offset in the health buffer.
    pub fn word(&self, offset: u32) -> u32 {
        let good = Health::good(FirmwareVersion::THIS.registers().0);
        let health = match self.failed {
            true => Health { fatal: true, syndrome: FIRMWARE_ERROR, ..good },
            false => good,
        };
        let bytes = health.emit();
        let word = bytes.as_chunks::<4>().0.get(offset as usize / 4);
        word.map_or(0, |word| u32::from_be_bytes(*word))
    }

    /// Returns the value of the health counter. Section 20, M-10: every read must return a different value.
    pub fn count(&mut self) -> u32 {
        self.reads = self.reads.wrapping_add(1);
        self.reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_failure_is_reported_until_restart() {
        let mut health = HealthReport::default();
        assert_eq!((health.nic_state(), health.word(0x38), health.word(0x3c)), (0, 0, 0));
        assert_eq!((health.word(0x30), health.word(0x34)), (0x0023_0010, 0x20d));
        health.fail();
        assert_eq!((health.nic_state(), health.word(0x38), health.word(0x3c)), (1, 1 << 31, 1 << 16));
        assert!(health.restart());
        health.request(7);
        assert_eq!((health.nic_state(), health.word(0x3c)), (7, 0));
        assert!(!health.restart());
        assert_eq!(health.nic_state(), 0);
    }

    #[test]
    fn only_first_state_read_reports_new_failure() {
        let mut health = HealthReport::default();
        assert!(!health.mark_state_read() && !health.is_failure_read());
        health.fail();
        assert!(!health.is_failure_read());
        assert!(health.mark_state_read() && health.is_failure_read());
        assert!(!health.mark_state_read() && health.is_failure_read());
        health.restart();
        assert!(!health.mark_state_read() && !health.is_failure_read());
    }

    #[test]
    fn health_counter_changes_with_every_read() {
        let mut health = HealthReport { reads: u32::MAX, ..HealthReport::default() };
        assert_eq!([health.count(), health.count()], [0, 1]);
    }
}
