//! Malicious driver detection (MDET): the offending queue stops, and registers report the queue and the event
//! type.
//!
//! The specification defines the registers but not the event types. Those that [`DriverError::reason`] returns are
//! specific to this device. Linux logs the event type and relies on the transmit watchdog to reset the function.
//!
//! # Spec
//! E810 interface, sections 3.3 (bit 19) and 8.7.

use bitfield_struct::bitfield;
use protocol::hca::e810::regs::Register;
use thiserror::Error;

/// A driver violation that stops a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum DriverError {
    #[error("the tail is outside the ring")]
    TailBeyondRing,
    #[error("the ring is not in mapped memory")]
    RingOutsideMemory,
    #[error("a descriptor has a buffer length of 0")]
    EmptyBuffer,
    #[error("the frame is too short")]
    FrameTooShort,
    #[error("the frame is too long")]
    FrameTooLong,
    #[error("the frame has too many buffers")]
    TooManyBuffers,
    #[error("the descriptor type is unknown or not valid at this position")]
    DescriptorType,
    /// Headers overlap, are shorter than their minimum lengths, or exceed the frame.
    #[error("the header lengths are invalid or exceed the frame")]
    HeaderLengths,
    #[error("the MSS is out of range")]
    SegmentSize,
    #[error("the TSO length does not match the buffers")]
    SegmentedLength,
    #[error("a descriptor's buffer is not in mapped memory")]
    BufferOutsideMemory,
}

/// The hardware unit that detects a violation. Each unit has its own registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detector {
    /// Transmit queue manager (PQM): rings and doorbells.
    TransmitQueues,
    /// Transmit descriptor processing (TCLAN).
    TransmitFrames,
    Receive,
}

impl DriverError {
    /// Returns the unit that detects this violation on a transmit queue.
    pub(super) const fn transmit_detector(self) -> Detector {
        match self {
            Self::TailBeyondRing | Self::RingOutsideMemory => Detector::TransmitQueues,
            _ => Detector::TransmitFrames,
        }
    }

    /// Returns the event type (MAL_TYPE, 5 bits).
    const fn reason(self) -> u8 {
        match self {
            Self::TailBeyondRing => 1,
            Self::RingOutsideMemory => 2,
            Self::EmptyBuffer => 3,
            Self::FrameTooShort => 4,
            Self::FrameTooLong => 5,
            Self::TooManyBuffers => 6,
            Self::DescriptorType => 7,
            Self::HeaderLengths => 8,
            Self::SegmentSize => 9,
            Self::SegmentedLength => 10,
            Self::BufferOutsideMemory => 11,
        }
    }
}

/// Layout of GL_MDET_TX_TCLAN and GL_MDET_RX.
#[bitfield(u32)]
struct QueueEvent {
    #[bits(15)]
    queue: u16,
    vf: u8,
    #[bits(3)]
    function: u8,
    #[bits(5)]
    reason: u8,
    valid: bool,
}

/// Layout of the register GL_MDET_TX_PQM.
#[bitfield(u32)]
struct QueueManagerEvent {
    #[bits(3)]
    function: u8,
    __: bool,
    vf: u8,
    #[bits(14)]
    queue: u16,
    #[bits(5)]
    reason: u8,
    valid: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaliciousDriver {
    transmit_queues: Events,
    transmit_frames: Events,
    receive: Events,
}

#[derive(Clone, Copy, Debug, Default)]
struct Events {
    event: u32,
    function: u32,
}

impl MaliciousDriver {
    /// Records an event. The event is dropped if the driver has not yet cleared an earlier one.
    pub(super) fn record(&mut self, detector: Detector, queue: u16, fault: DriverError) {
        let event = match detector {
            Detector::TransmitQueues => QueueManagerEvent::new()
                .with_queue(queue & 0x3fff)
                .with_reason(fault.reason())
                .with_valid(true)
                .into_bits(),
            Detector::TransmitFrames | Detector::Receive => QueueEvent::new()
                .with_queue(queue & 0x7fff)
                .with_reason(fault.reason())
                .with_valid(true)
                .into_bits(),
        };
        let events = self.events(detector);
        if events.event == 0 {
            events.event = event;
        }
        events.function = 1;
    }

    /// Reads an event register. Returns `None` for other registers.
    pub(super) const fn read(&self, register: Register) -> Option<u32> {
        Some(match register {
            Register::GlMdetTxPqm => self.transmit_queues.event,
            Register::PfMdetTxPqm => self.transmit_queues.function,
            Register::GlMdetTxTclan => self.transmit_frames.event,
            Register::PfMdetTxTclan => self.transmit_frames.function,
            Register::GlMdetRx => self.receive.event,
            Register::PfMdetRx => self.receive.function,
            _ => return None,
        })
    }

    /// Handles a write to an event register. Any value clears the register.
    pub(super) const fn clear(&mut self, register: Register) {
        match register {
            Register::GlMdetTxPqm => self.transmit_queues.event = 0,
            Register::PfMdetTxPqm => self.transmit_queues.function = 0,
            Register::GlMdetTxTclan => self.transmit_frames.event = 0,
            Register::PfMdetTxTclan => self.transmit_frames.function = 0,
            Register::GlMdetRx => self.receive.event = 0,
            Register::PfMdetRx => self.receive.function = 0,
            _ => {}
        }
    }

    const fn events(&mut self, detector: Detector) -> &mut Events {
        match detector {
            Detector::TransmitQueues => &mut self.transmit_queues,
            Detector::TransmitFrames => &mut self.transmit_frames,
            Detector::Receive => &mut self.receive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(registers: &MaliciousDriver, offset: u64) -> u32 {
        registers.read(Register::at(offset).unwrap().0).unwrap()
    }

    #[test]
    fn event_reports_queue_and_type() {
        let mut registers = MaliciousDriver::default();
        registers.record(Detector::TransmitFrames, 5, DriverError::EmptyBuffer);
        assert_eq!(read(&registers, 0xf_c068), 1 << 31 | 3 << 26 | 5);
        assert_eq!(read(&registers, 0xf_c000), 1);
        assert_eq!(read(&registers, 0x2d_2e00), 0);
        registers.record(Detector::TransmitQueues, 6, DriverError::TailBeyondRing);
        assert_eq!(read(&registers, 0x2d_2e00), 1 << 31 | 1 << 26 | 6 << 12);
        assert_eq!(read(&registers, 0x2d_2c80), 1);
        registers.record(Detector::Receive, 7, DriverError::BufferOutsideMemory);
        assert_eq!(read(&registers, 0x29_4c00), 1 << 31 | 11 << 26 | 7);
        assert_eq!(read(&registers, 0x29_4280), 1);
    }

    #[test]
    fn first_event_persists_until_cleared() {
        let mut registers = MaliciousDriver::default();
        registers.record(Detector::Receive, 1, DriverError::BufferOutsideMemory);
        registers.record(Detector::Receive, 2, DriverError::TailBeyondRing);
        assert_eq!(read(&registers, 0x29_4c00) & 0x7fff, 1);
        registers.clear(Register::GlMdetRx);
        registers.clear(Register::PfMdetRx);
        assert_eq!((read(&registers, 0x29_4c00), read(&registers, 0x29_4280)), (0, 0));
        registers.record(Detector::Receive, 2, DriverError::TailBeyondRing);
        assert_eq!(read(&registers, 0x29_4c00) & 0x7fff, 2);
    }
}
