//! A minimal NIC: one VSI with one transmit queue and one receive queue. The VSI receives broadcast frames and frames
//! addressed to its own MAC address.

use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::queue::{AddQueue, QueueGroup};
use protocol::hca::e810::admin::scheduler::{ElementData, Teid};
use protocol::hca::e810::admin::vsi::{SwitchSection, VlanSection, VsiContext};
use protocol::hca::e810::regs::Register;
use protocol::hca::e810::ring_address::RingAddress;
use protocol::hca::e810::tx_context::TxContext;
use protocol::ids::{Iova, MacAddr};

use super::{AdminCommand, Driver};
use crate::Bus;

/// Number of descriptors per ring.
pub const LAN_ENTRIES: u16 = 64;
/// Bus address of the transmit ring.
pub const LAN_TRANSMIT_RING: u64 = 0x4_0000;
/// Bus address of the receive ring.
pub const LAN_RECEIVE_RING: u64 = 0x4_1000;
/// Bus address of the first transmit buffer. The other transmit buffers follow it.
pub const TRANSMIT_BUFFERS: u64 = 0x5_0000;
/// Bus address of the first receive buffer. The other receive buffers follow it.
pub const RECEIVE_BUFFERS: u64 = 0x8_0000;
/// Buffer size in bytes.
pub const STRIDE: u64 = 2048;

/// Parent of the leaf in the default scheduler tree. Queues can be added directly below it.
const PARENT: Teid = Teid::new(8);
/// MSI-X vector of both queues.
const VECTOR: u16 = 1;
/// Value of an interrupt cause register that enables the cause and routes it to [`VECTOR`].
const ROUTE: u32 = 1 << 30 | VECTOR as u32;

/// Command bits of a data descriptor: "end of packet" and "report status".
const LAST_AND_REPORT: u64 = 0b11 << 4;
/// Status bits of a written-back descriptor: "descriptor done" and "end of frame".
const DONE: u16 = 1 << 0;
const END_OF_FRAME: u16 = 1 << 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub frame: Vec<u8>,
    /// Status from the last descriptor of the frame.
    pub status: u16,
    /// VLAN tag stripped from the frame. Valid only if the status reports a VLAN tag.
    pub tag: u16,
    /// RSS hash of the frame. Valid only if the status reports an RSS hash.
    pub hash: u32,
}

/// Returns the "Add transmit queue" command for a queue that belongs to a VSI.
fn add_queue(queue: u16, vsi: u16) -> AdminCommand {
    let context = TxContext {
        ring: RingAddress::new(Iova::new(LAN_TRANSMIT_RING)),
        vsi,
        ring_len: LAN_ENTRIES,
        segmentation: true,
        ..TxContext::default()
    };
    let element = ElementData { generic_valid: true, ..ElementData::default() };
    let record = AddQueue { queue, teid: Teid::NONE, context, element };
    let group = QueueGroup { parent: PARENT, count: 1 };
    AdminCommand::with_input(Opcode::AddTxQueues, one(), &[&group.emit()[..], &record.emit()].concat())
}

/// Returns the parameters of a command with one element in its buffer.
const fn one() -> [u8; 16] {
    let mut parameters = [0; 16];
    parameters[0] = 1;
    parameters
}

/// Returns the command that adds a switch rule for frames to `mac`, encoded as in section 16.3.
fn mac_rule(vsi: u16, mac: MacAddr) -> AdminCommand {
    let action: u32 = 0x2_000c | u32::from(vsi) << 4;
    let [low, high] = vsi.to_le_bytes();
    let rule = [
        &[1, 0, 0, 0, 1, 0, low, high][..],
        &action.to_le_bytes(),
        &[0, 0, 16, 0],
        &mac.0,
        &[2, 0, 0, 0, 0, 0, 0x81, 0, 0, 0],
    ];
    AdminCommand::with_input(Opcode::AddRules, one(), &rule.concat())
}

impl<B: Bus> Driver<B> {
    /// Brings up the NIC with the MAC address `own`, from any device state. Responses to commands are not checked,
    /// because guest memory may be unmapped. Only the VSI number is read from a response.
    pub fn bring_up(&mut self, own: MacAddr) {
        self.bind();
        self.reset_function();
        self.open_admin_queue();
        let context = VsiContext {
            switch: SwitchSection { lan: true, allow_loopback: true, ..SwitchSection::default() },
            vlan: VlanSection { transmit: 3, ..VlanSection::default() },
            ..VsiContext::default()
        };
        let mut physical_function = [0; 16];
        physical_function[6] = 2;
        let at = self.issue(&AdminCommand::with_input(Opcode::AddVsi, physical_function, &context.emit()));
        let number = self.bus.peek(at + 16, 2);
        self.interface.vsi = number.first_chunk().map_or(0, |number| u16::from_le_bytes(*number));
        for mac in [own, MacAddr::BROADCAST] {
            self.issue(&mac_rule(self.interface.vsi, mac));
        }
        self.open_queues();
    }

    /// Creates and enables the queues, as the kernel driver does when the network interface comes up.
    pub fn open_queues(&mut self) {
        self.interface.transmit_next = 0;
        self.interface.receive_head = 0;
        self.issue(&add_queue(0, self.interface.vsi));
        for (index, word) in (0..).zip(receive_context()) {
            self.write(Register::QrxContext(index, 0), word);
        }
        self.write(Register::QrxflxpCntxt(0), 0x302);
        self.write(Register::QrxTail(0), 0);
        self.write(Register::QintTqctl(0), ROUTE);
        self.write(Register::QintRqctl(0), ROUTE);
        self.write(Register::QrxCtrl(0), 1);
        for entry in 0..LAN_ENTRIES {
            self.offer_buffer(entry);
        }
        self.write(Register::QrxTail(0), u32::from(LAN_ENTRIES) - 8);
        self.enable_vector(VECTOR);
    }

    fn offer_buffer(&mut self, entry: u16) {
        let buffer = RECEIVE_BUFFERS + u64::from(entry) * STRIDE;
        let words = [buffer, 0, 0, 0].map(u64::to_le_bytes);
        self.bus.poke(LAN_RECEIVE_RING + u64::from(entry) * 32, words.as_flattened());
    }

    /// Writes a transmit descriptor.
    pub fn put_descriptor(&mut self, first: u64, second: u64) {
        let at = LAN_TRANSMIT_RING + u64::from(self.interface.transmit_next) * 16;
        self.bus.poke(at, [first.to_le_bytes(), second.to_le_bytes()].as_flattened());
        self.interface.transmit_next = (self.interface.transmit_next + 1) % LAN_ENTRIES;
    }

    /// Rings the doorbell of the transmit ring.
    pub fn ring_doorbell(&mut self) {
        self.write(Register::QtxCommDbell(0), self.interface.transmit_next.into());
    }

    /// Sends a frame in one buffer. `word` contains additional bits for the descriptor's second word.
    pub fn send(&mut self, frame: &[u8], word: u64) {
        let buffer = TRANSMIT_BUFFERS + u64::from(self.interface.transmit_next) * STRIDE;
        self.bus.poke(buffer, frame);
        self.put_descriptor(buffer, word | LAST_AND_REPORT | (frame.len() as u64) << 34);
        self.ring_doorbell();
    }

    /// Returns the next frame from the receive ring, if any, and reposts its buffers.
    pub fn receive(&mut self) -> Option<Received> {
        let mut frame = Vec::new();
        for _ in 0..LAN_ENTRIES {
            let entry = self.interface.receive_head;
            let done = self.bus.peek(LAN_RECEIVE_RING + u64::from(entry) * 32, 32);
            let half = |at| u16::from_le_bytes([done[at], done[at + 1]]);
            let status = half(8);
            if status & DONE == 0 {
                return None;
            }
            let buffer = RECEIVE_BUFFERS + u64::from(entry) * STRIDE;
            frame.extend(self.bus.peek(buffer, usize::from(half(4) & 0x3fff)));
            let hash = u32::from(half(12)) | u32::from(half(14)) << 16;
            let tag = half(10);
            self.offer_buffer(entry);
            self.write(Register::QrxTail(0), entry.into());
            self.interface.receive_head = (entry + 1) % LAN_ENTRIES;
            if status & END_OF_FRAME != 0 {
                return Some(Received { frame, status, tag, hash });
            }
        }
        None
    }
}

/// Returns the receive queue context: the location and length of the ring, a buffer size of [`STRIDE`] bytes, and a
/// maximum frame length of 9728 bytes.
fn receive_context() -> [u32; 8] {
    let low = u128::from(LAN_RECEIVE_RING >> 7) << 32
        | u128::from(LAN_ENTRIES) << 89
        | u128::from(STRIDE >> 7) << 102
        | 1 << 116
        | 1 << 117
        | 1 << 119;
    let high: u128 = 9728 << 46;
    let mut words = [0; 8];
    let bytes = [low.to_le_bytes(), high.to_le_bytes()];
    for (word, bytes) in words.iter_mut().zip(bytes.as_flattened().as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}
