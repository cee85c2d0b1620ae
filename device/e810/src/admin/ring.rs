//! Descriptor rings of the admin queue and the mailbox: registers, command fetching and event posting.
//!
//! # Spec
//! E810 interface, sections 4.1 to 4.3.

use card::memory::{DmaError, GuestMemory};
use protocol::hca::e810::admin::descriptor::{Descriptor, Flags, LARGE_FROM, QueueLength};
use protocol::hca::e810::admin::{Opcode, PARAMETERS_LEN};
use protocol::hca::e810::regs::Register;
use protocol::ids::Iova;

/// Mask for the index in the head and tail registers.
const INDEX: u32 = 0x3ff;

/// Rings of the admin queue and the mailbox.
#[derive(Debug, Default)]
pub struct Rings {
    /// Admin send queue (ATQ): commands.
    pub send: Ring,
    /// Admin receive queue (ARQ): events.
    pub receive: Ring,
    /// Mailbox send queue. There are no virtual functions, so messages have no effect and complete immediately.
    pub mailbox_send: Ring,
    /// Mailbox receive queue. The device never writes to it.
    pub mailbox_receive: Ring,
}

/// Registers of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    base_low: u32,
    base_high: u32,
    length: QueueLength,
    head: u32,
    tail: u32,
}

/// A register of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingRegister {
    /// Low half of the base address.
    BaseLow,
    /// High half of the base address.
    BaseHigh,
    /// Number of entries, with the enable and error bits.
    Length,
    /// Index of the next descriptor that the device will process.
    Head,
    /// Index just past the last descriptor that the driver posted.
    Tail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingName {
    Send,
    Receive,
    MailboxSend,
    MailboxReceive,
}

impl RingRegister {
    /// Returns the ring and the ring register that correspond to a BAR0 register, if any.
    pub fn of(register: Register) -> Option<(RingName, Self)> {
        use {Register as R, RingName as Of};
        Some(match register {
            R::PfFwAtqbal => (Of::Send, Self::BaseLow),
            R::PfFwAtqbah => (Of::Send, Self::BaseHigh),
            R::PfFwAtqlen => (Of::Send, Self::Length),
            R::PfFwAtqh => (Of::Send, Self::Head),
            R::PfFwAtqt => (Of::Send, Self::Tail),
            R::PfFwArqbal => (Of::Receive, Self::BaseLow),
            R::PfFwArqbah => (Of::Receive, Self::BaseHigh),
            R::PfFwArqlen => (Of::Receive, Self::Length),
            R::PfFwArqh => (Of::Receive, Self::Head),
            R::PfFwArqt => (Of::Receive, Self::Tail),
            R::PfMbxAtqbal => (Of::MailboxSend, Self::BaseLow),
            R::PfMbxAtqbah => (Of::MailboxSend, Self::BaseHigh),
            R::PfMbxAtqlen => (Of::MailboxSend, Self::Length),
            R::PfMbxAtqh => (Of::MailboxSend, Self::Head),
            R::PfMbxAtqt => (Of::MailboxSend, Self::Tail),
            R::PfMbxArqbal => (Of::MailboxReceive, Self::BaseLow),
            R::PfMbxArqbah => (Of::MailboxReceive, Self::BaseHigh),
            R::PfMbxArqlen => (Of::MailboxReceive, Self::Length),
            R::PfMbxArqh => (Of::MailboxReceive, Self::Head),
            R::PfMbxArqt => (Of::MailboxReceive, Self::Tail),
            _ => return None,
        })
    }
}

impl Rings {
    pub fn get(&self, name: RingName) -> &Ring {
        match name {
            RingName::Send => &self.send,
            RingName::Receive => &self.receive,
            RingName::MailboxSend => &self.mailbox_send,
            RingName::MailboxReceive => &self.mailbox_receive,
        }
    }

    /// Writes a ring register. If the write posts commands, the caller executes them.
    pub fn write(&mut self, name: RingName, register: RingRegister, value: u32) {
        let ring = match name {
            RingName::Send => &mut self.send,
            RingName::Receive => &mut self.receive,
            RingName::MailboxSend => &mut self.mailbox_send,
            RingName::MailboxReceive => &mut self.mailbox_receive,
        };
        ring.write(register, value);
        if name == RingName::MailboxSend {
            ring.head = ring.tail;
        }
    }
}

impl Ring {
    pub fn read(&self, register: RingRegister) -> u32 {
        match register {
            RingRegister::BaseLow => self.base_low,
            RingRegister::BaseHigh => self.base_high,
            RingRegister::Length => u32::from_le_bytes(self.length.emit()),
            RingRegister::Head => self.head,
            RingRegister::Tail => self.tail,
        }
    }

    fn write(&mut self, register: RingRegister, value: u32) {
        match register {
            RingRegister::BaseLow => self.base_low = value,
            RingRegister::BaseHigh => self.base_high = value,
            RingRegister::Length => self.length = QueueLength::parse(&value.to_le_bytes()),
            RingRegister::Head => self.head = value & INDEX,
            RingRegister::Tail => self.tail = value & INDEX,
        }
    }

    /// Returns whether the driver has enabled the ring. An error does not disable the ring.
    pub fn is_enabled(&self) -> bool {
        self.length.enable
    }

    pub fn entries(&self) -> u16 {
        self.length.entries
    }

    /// Fetches the descriptor at the head. Returns it with its address, or `None` if the ring is empty or stopped. If
    /// the ring is not in mapped memory, or its head or tail is out of range, the ring stops and the "critical error"
    /// bit in its length register is set.
    pub fn next(&mut self, dma: &GuestMemory) -> Option<(Iova, Descriptor)> {
        if !self.length.enable || self.length.critical || self.head == self.tail {
            return None;
        }
        let place = self.place();
        let mut bytes = [0; Descriptor::LEN];
        let read = place.and_then(|place| dma.read(place, &mut bytes).ok().map(|()| place));
        if read.is_none() {
            self.length.critical = true;
        }
        Some((read?, Descriptor::parse(&bytes)))
    }

    /// Writes the descriptor back to `place` and advances the head.
    pub fn complete(&mut self, dma: &GuestMemory, place: Iova, descriptor: &Descriptor) {
        if dma.write(place, &descriptor.emit()).is_err() {
            self.length.critical = true;
            return;
        }
        self.head = (self.head + 1) % u32::from(self.length.entries).max(1);
    }

    /// Posts an event with `data` in its buffer. Returns false if the event was dropped, for example because the next
    /// descriptor's buffer is too small.
    pub fn post(&mut self, dma: &GuestMemory, event: Opcode, parameters: [u8; 8], data: &[u8]) -> bool {
        let Some((place, free)) = self.next(dma) else { return false };
        match self.fill(dma, &free, event, parameters, data) {
            Ok(Some(descriptor)) => {
                self.complete(dma, place, &descriptor);
                !self.length.critical
            }
            Ok(None) | Err(_) => false,
        }
    }

    fn fill(
        &self,
        dma: &GuestMemory,
        free: &Descriptor,
        event: Opcode,
        parameters: [u8; 8],
        data: &[u8],
    ) -> Result<Option<Descriptor>, DmaError> {
        let Some(buffer_len) = u16::try_from(data.len()).ok().filter(|len| *len <= free.buffer_len) else {
            return Ok(None);
        };
        dma.write(free.buffer(), data)?;
        let mut flags = Flags::DONE | Flags::COMPLETE | Flags::BUFFER;
        flags.set(Flags::LARGE, data.len() > LARGE_FROM);
        // Keep the buffer address, which the driver uses to find the buffer.
        let mut all: [u8; PARAMETERS_LEN] = free.parameters;
        all[..8].copy_from_slice(&parameters);
        Ok(Some(Descriptor {
            flags,
            opcode: event.code(),
            buffer_len,
            status: 0,
            cookie: 0,
            parameters: all,
        }))
    }

    fn place(&self) -> Option<Iova> {
        let entries = u32::from(self.length.entries);
        if self.head >= entries || self.tail >= entries {
            return None;
        }
        let base = u64::from(self.base_high) << 32 | u64::from(self.base_low);
        base.checked_add(u64::from(self.head) * Descriptor::LEN as u64).map(Iova::new)
    }
}
