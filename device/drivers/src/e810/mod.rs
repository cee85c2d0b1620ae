//! A driver for an E810: what `ice` does with registers, the admin queue and a pair of queues, and `irdma` with the control
//! queue.
//!
//! # Spec
//! E810 interface, sections 1.2, 4, 5, 8 and 9.2.

mod admin;
mod nic;
pub mod queue_pair;
mod rdma;

use protocol::hca::e810::regs::Register;

pub use admin::{
    Ask, BUFFER, BUFFER_LEN, ENTRIES, EVENT_BUFFER_LEN, EVENT_BUFFERS, Heard, RECEIVE_RING, SEND_RING, Told,
};
pub use nic::{
    LAN_ENTRIES, LAN_RECEIVE_RING, LAN_TRANSMIT_RING, RECEIVE_BUFFERS, Received, STRIDE, TRANSMIT_BUFFERS,
};
pub use rdma::{
    AEQ_ENTRIES, AEQ_RING, AEQ_VECTOR, CCQ_ENTRIES, CCQ_RING, CCQ_SHADOW, CEQ_ENTRIES, CEQ_RING, CEQ_VECTOR,
    CQP_COOKIE, CQP_ENTRIES, CQP_RING, PBLE_SEGMENT, Performed, RDMA_BUFFER, Rdma, segment,
};

use crate::Bus;

/// Config space: control of the MSI-X capability.
const MSIX_CONTROL: u64 = 0x52;

/// What the driver remembers.
#[derive(Debug, Default)]
pub struct E810 {
    /// Tail of the admin send ring.
    send_tail: u16,
    /// Where the next event will be.
    receive_next: u16,
    /// The VSI of the NIC.
    pub vsi: u16,
    /// Where the next frame goes in the transmit ring.
    pub transmit_next: u16,
    /// Where the next frame will be in the receive ring.
    receive_head: u16,
    /// Queue pairs and completion queues.
    queues: queue_pair::Queues,
    /// The RDMA half.
    rdma: Rdma,
}

pub type Driver<B> = crate::Driver<E810, B>;

impl<B: Bus> Driver<B> {
    /// Of a device that nothing was done to.
    pub fn new(bus: B) -> Self {
        Self { bus, interface: E810::default() }
    }

    /// Stores to a register.
    pub fn write(&mut self, register: Register, value: u32) {
        self.bus.store(0, register.offset().into(), &value.to_le_bytes());
    }

    /// Loads from a register.
    pub fn read(&mut self, register: Register) -> u32 {
        u32::from_le_bytes(self.bus.load(0, register.offset().into()))
    }

    /// Loads a counter of 64 bits.
    pub fn counter(&mut self, register: Register) -> u64 {
        u64::from_le_bytes(self.bus.load(0, register.offset().into()))
    }

    /// What the kernel does when a driver binds: memory, bus mastering and MSI-X.
    pub fn bind(&mut self) {
        self.bus.enable();
        self.bus.configure(MSIX_CONTROL, &[0, 0x80]);
    }

    /// Resets the function, which is done when the store is.
    pub fn reset_function(&mut self) {
        self.write(Register::PfgenCtrl, 1);
    }

    /// Enables a vector, as after an interrupt was looked after.
    pub fn enable_vector(&mut self, vector: u16) {
        self.write(Register::GlintDynCtl(vector), 0b11 | 0b11 << 3);
    }
}
