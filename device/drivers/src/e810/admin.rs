//! The E810's admin queues: commands and events.

use protocol::hca::e810::admin::descriptor::{Flags, LARGE_FROM};
use protocol::hca::e810::admin::{Descriptor, Opcode, PARAMETERS_LEN};
use protocol::hca::e810::regs::Register;

use super::Driver;
use crate::Bus;

/// Number of entries in each admin ring.
pub const ENTRIES: u16 = 192;
/// Bus address of the admin send ring.
pub const SEND_RING: u64 = 0x1_0000;
/// Bus address of the admin receive ring.
pub const RECEIVE_RING: u64 = 0x1_2000;
/// Bus address of the buffer shared by all commands.
pub const BUFFER: u64 = 0x1_4000;
/// Size of the command buffer, in bytes.
pub const BUFFER_LEN: u16 = 4096;
/// Bus address of the first event buffer. The other event buffers follow it.
pub const EVENT_BUFFERS: u64 = 0x2_0000;
/// Size of an event buffer, in bytes.
pub const EVENT_BUFFER_LEN: u16 = 512;

/// Enable bit in the length register of a ring.
const ENABLE: u32 = 1 << 31;
/// Enable bit of an interrupt cause. With all other bits clear, the cause raises vector 0.
const CAUSE_ENABLE: u32 = 1 << 30;

/// A command for the admin queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminCommand {
    pub opcode: u16,
    pub parameters: [u8; PARAMETERS_LEN],
    pub flags: Flags,
    /// Contents of the buffer. Empty if the command has no buffer.
    pub buffer: Vec<u8>,
}

/// The completion of an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminReply {
    pub status: u16,
    pub parameters: [u8; PARAMETERS_LEN],
    /// Contents of the buffer, truncated to the length in the completion.
    pub buffer: Vec<u8>,
}

/// An event from the admin receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminEvent {
    pub opcode: u16,
    pub parameters: [u8; 8],
    pub data: Vec<u8>,
}

impl AdminCommand {
    /// Returns a command without a buffer.
    pub fn direct(opcode: Opcode, parameters: [u8; PARAMETERS_LEN]) -> Self {
        Self { opcode: opcode.code(), parameters, flags: Flags::INTERRUPT, buffer: Vec::new() }
    }

    /// Returns a command with a buffer that the device reads and may overwrite with its response.
    pub fn with_input(opcode: Opcode, parameters: [u8; PARAMETERS_LEN], buffer: &[u8]) -> Self {
        let flags = Flags::INTERRUPT | Flags::BUFFER | Flags::READ;
        Self { opcode: opcode.code(), parameters, flags: sized(flags, buffer), buffer: buffer.to_vec() }
    }

    /// Returns a command with a buffer that the device fills.
    pub fn with_output(opcode: Opcode, parameters: [u8; PARAMETERS_LEN], len: usize) -> Self {
        let buffer = vec![0; len];
        let flags = Flags::INTERRUPT | Flags::BUFFER;
        Self { opcode: opcode.code(), parameters, flags: sized(flags, &buffer), buffer }
    }
}

fn sized(mut flags: Flags, buffer: &[u8]) -> Flags {
    flags.set(Flags::LARGE, buffer.len() > LARGE_FROM);
    flags
}

/// Returns the lower and upper halves of a bus address.
pub(super) fn halves(address: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = address.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

impl<B: Bus> Driver<B> {
    /// Sets up both rings in the order given in section 4.1 of the E810 interface, with event interrupts on vector 0.
    pub fn open_admin_queue(&mut self) {
        let length = ENABLE | u32::from(ENTRIES);
        let ([send_low, send_high], [receive_low, receive_high]) = (halves(SEND_RING), halves(RECEIVE_RING));
        for (register, value) in [
            (Register::PfFwAtqh, 0),
            (Register::PfFwAtqt, 0),
            (Register::PfFwAtqlen, length),
            (Register::PfFwAtqbal, send_low),
            (Register::PfFwAtqbah, send_high),
            (Register::PfFwArqh, 0),
            (Register::PfFwArqt, 0),
            (Register::PfFwArqlen, length),
            (Register::PfFwArqbal, receive_low),
            (Register::PfFwArqbah, receive_high),
        ] {
            self.write(register, value);
        }
        for slot in 0..ENTRIES {
            self.offer(slot);
        }
        self.write(Register::PfFwArqt, u32::from(ENTRIES) - 1);
        self.write(Register::PfintFwCtl, CAUSE_ENABLE);
        self.enable_vector(0);
        self.interface.send_tail = 0;
        self.interface.receive_next = 0;
    }

    /// Posts the event buffer of a slot to the receive ring.
    fn offer(&mut self, slot: u16) {
        let address = EVENT_BUFFERS + u64::from(slot) * u64::from(EVENT_BUFFER_LEN);
        let free = Descriptor {
            flags: Flags::BUFFER,
            buffer_len: EVENT_BUFFER_LEN,
            parameters: addressed([0; PARAMETERS_LEN], address),
            ..Descriptor::default()
        };
        self.bus.poke(RECEIVE_RING + u64::from(slot) * Descriptor::LEN as u64, &free.emit());
    }

    /// Starts a command without waiting for its completion. Returns the bus address of its descriptor.
    pub fn issue(&mut self, command: &AdminCommand) -> u64 {
        let at = SEND_RING + u64::from(self.interface.send_tail) * Descriptor::LEN as u64;
        let mut parameters = command.parameters;
        if command.flags.contains(Flags::BUFFER) {
            parameters = addressed(parameters, BUFFER);
            self.bus.poke(BUFFER, &command.buffer);
        }
        let descriptor = Descriptor {
            flags: command.flags,
            opcode: command.opcode,
            buffer_len: u16::try_from(command.buffer.len()).unwrap_or(u16::MAX),
            parameters,
            ..Descriptor::default()
        };
        self.bus.poke(at, &descriptor.emit());
        self.interface.send_tail = (self.interface.send_tail + 1) % ENTRIES;
        self.write(Register::PfFwAtqt, self.interface.send_tail.into());
        at
    }

    /// Executes a command and returns its completion.
    ///
    /// # Panics
    /// Panics if the device has not completed the command or if the completion is malformed.
    #[track_caller]
    pub fn execute(&mut self, command: &AdminCommand) -> AdminReply {
        let at = self.issue(command);
        assert_eq!(
            self.read(Register::PfFwAtqh),
            u32::from(self.interface.send_tail),
            "the command must complete before the doorbell write returns"
        );
        let bytes = self.bus.peek(at, Descriptor::LEN);
        let completion =
            Descriptor::parse(bytes.first_chunk().expect("`peek` returns the requested number of bytes"));
        assert!(completion.flags.contains(command.flags | Flags::DONE | Flags::COMPLETE), "{completion:?}");
        assert_eq!(completion.flags.contains(Flags::ERROR), completion.status != 0, "{completion:?}");
        assert!(usize::from(completion.buffer_len) <= command.buffer.len(), "{completion:?}");
        let buffer = match command.flags.contains(Flags::BUFFER) {
            true => self.bus.peek(BUFFER, completion.buffer_len.into()),
            false => Vec::new(),
        };
        AdminReply { status: completion.status, parameters: completion.parameters, buffer }
    }

    /// Executes a command that must succeed.
    ///
    /// # Panics
    /// Panics if the command fails.
    #[track_caller]
    pub fn succeed(&mut self, command: &AdminCommand) -> AdminReply {
        let reply = self.execute(command);
        assert_eq!(reply.status, 0, "{command:?}");
        reply
    }

    /// Returns the next event from the receive ring, if any, and reposts its buffer.
    ///
    /// # Panics
    /// Panics if the event is malformed.
    pub fn event(&mut self) -> Option<AdminEvent> {
        let slot = self.interface.receive_next;
        if self.read(Register::PfFwArqh) == u32::from(slot) {
            return None;
        }
        let bytes = self.bus.peek(RECEIVE_RING + u64::from(slot) * Descriptor::LEN as u64, Descriptor::LEN);
        let event = Descriptor::parse(bytes.first_chunk()?);
        assert!(event.flags.contains(Flags::DONE | Flags::COMPLETE | Flags::BUFFER), "{event:?}");
        let data = self.bus.peek(event.buffer().get(), event.buffer_len.into());
        self.offer(slot);
        self.write(Register::PfFwArqt, slot.into());
        self.interface.receive_next = (slot + 1) % ENTRIES;
        Some(AdminEvent { opcode: event.opcode, parameters: *event.parameters.first_chunk()?, data })
    }
}

/// Stores a buffer address in the second half of `parameters`, upper word first, and returns the result.
fn addressed(mut parameters: [u8; PARAMETERS_LEN], address: u64) -> [u8; PARAMETERS_LEN] {
    let [low, high] = halves(address);
    parameters[8..12].copy_from_slice(&high.to_le_bytes());
    parameters[12..].copy_from_slice(&low.to_le_bytes());
    parameters
}
