//! What a driver does that no driver should: the queue it does it with stops, and registers say which and why.
//!
//! The specification gives the registers but not the numbers of the reasons; those of [`Fault::reason`] are ours. Linux
//! prints the number and leaves it to the transmit watchdog to reset the function.
//!
//! # Spec
//! E810 interface, sections 3.3 (bit 19) and 8.7.

use bitfield_struct::bitfield;
use protocol::hca::e810::regs::Register;
use thiserror::Error;

/// What a driver did wrong with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Fault {
    /// A doorbell names a descriptor that the ring does not have.
    #[error("the tail is outside the ring")]
    TailBeyondRing,
    /// The ring is not in guest memory that the device may use.
    #[error("the ring is not in mapped memory")]
    RingOutsideMemory,
    /// A buffer has no bytes.
    #[error("a descriptor has buffer length 0")]
    EmptyBuffer,
    /// A frame has fewer bytes than the device takes.
    #[error("the frame is too short")]
    FrameTooShort,
    /// A frame has more bytes than the wire takes.
    #[error("the frame is too long")]
    FrameTooLong,
    /// A frame is in more buffers than the device takes.
    #[error("the frame has too many buffers")]
    TooManyBuffers,
    /// A descriptor of no known type, or one where it cannot be.
    #[error("invalid descriptor type")]
    DescriptorType,
    /// Headers overlap, do not fit what they are said to be, or pass the end of the frame.
    #[error("invalid header lengths")]
    HeaderLengths,
    /// The size of pieces is out of bounds.
    #[error("invalid maximum segment size (MSS)")]
    SegmentSize,
    /// The bytes to be cut are not those that the buffers have.
    #[error("invalid segmentation length (TSO length)")]
    SegmentedLength,
    /// A buffer is not in guest memory that the device may use.
    #[error("a descriptor buffer is not in mapped memory")]
    BufferOutsideMemory,
}

/// Who notices a fault, each with registers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detector {
    /// The manager of transmit queues: rings and doorbells.
    TransmitQueues,
    /// The unit that handles transmit descriptors.
    TransmitFrames,
    /// The receive side.
    Receive,
}

impl Fault {
    /// Of a transmit queue.
    pub(super) const fn transmit_detector(self) -> Detector {
        match self {
            Self::TailBeyondRing | Self::RingOutsideMemory => Detector::TransmitQueues,
            _ => Detector::TransmitFrames,
        }
    }

    /// Type of the event, 5 bits.
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

/// Of GL_MDET_TX_TCLAN and GL_MDET_RX.
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

/// Of GL_MDET_TX_PQM, whose fields are elsewhere.
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

/// The registers of events.
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
    /// Keeps an event of a queue, if none is kept that nobody has read.
    pub(super) fn record(&mut self, detector: Detector, queue: u16, fault: Fault) {
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

    /// Value of a register, if it is one of these.
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

    /// Software has seen what a register tells and clears it, whatever it writes.
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

    /// What is read at an offset in BAR 0.
    fn read(registers: &MaliciousDriver, offset: u64) -> u32 {
        registers.read(Register::at(offset).unwrap().0).unwrap()
    }

    #[test]
    fn an_event_says_its_queue_and_reason_where_drivers_look() {
        let mut registers = MaliciousDriver::default();
        registers.record(Detector::TransmitFrames, 5, Fault::EmptyBuffer);
        assert_eq!(read(&registers, 0xf_c068), 1 << 31 | 3 << 26 | 5);
        assert_eq!(read(&registers, 0xf_c000), 1);
        assert_eq!(read(&registers, 0x2d_2e00), 0);
        registers.record(Detector::TransmitQueues, 6, Fault::TailBeyondRing);
        assert_eq!(read(&registers, 0x2d_2e00), 1 << 31 | 1 << 26 | 6 << 12);
        assert_eq!(read(&registers, 0x2d_2c80), 1);
        registers.record(Detector::Receive, 7, Fault::BufferOutsideMemory);
        assert_eq!(read(&registers, 0x29_4c00), 1 << 31 | 11 << 26 | 7);
        assert_eq!(read(&registers, 0x29_4280), 1);
    }

    #[test]
    fn the_first_event_stays_until_software_has_taken_it() {
        let mut registers = MaliciousDriver::default();
        registers.record(Detector::Receive, 1, Fault::BufferOutsideMemory);
        registers.record(Detector::Receive, 2, Fault::TailBeyondRing);
        assert_eq!(read(&registers, 0x29_4c00) & 0x7fff, 1);
        registers.clear(Register::GlMdetRx);
        registers.clear(Register::PfMdetRx);
        assert_eq!((read(&registers, 0x29_4c00), read(&registers, 0x29_4280)), (0, 0));
        registers.record(Detector::Receive, 2, Fault::TailBeyondRing);
        assert_eq!(read(&registers, 0x29_4c00) & 0x7fff, 2);
    }
}
