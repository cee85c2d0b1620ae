//! A driver for the E810. It uses the registers, the admin queue and one pair of LAN queues as `ice` does, and the RDMA
//! control queue as `irdma` does.
//!
//! # Spec
//! E810 interface, sections 1.2, 4, 5, 8 and 9.2.

mod admin;
mod nic;
pub mod queue_pair;
mod rdma;

use protocol::hca::e810::regs::Register;

pub use admin::{
    AdminCommand, AdminEvent, AdminReply, BUFFER, BUFFER_LEN, ENTRIES, EVENT_BUFFER_LEN, EVENT_BUFFERS,
    RECEIVE_RING, SEND_RING,
};
pub use nic::{
    LAN_ENTRIES, LAN_RECEIVE_RING, LAN_TRANSMIT_RING, RECEIVE_BUFFERS, Received, STRIDE, TRANSMIT_BUFFERS,
};
pub use rdma::{
    AEQ_ENTRIES, AEQ_RING, AEQ_VECTOR, CCQ_ENTRIES, CCQ_RING, CCQ_SHADOW, CEQ_ENTRIES, CEQ_RING, CEQ_VECTOR,
    CQP_COOKIE, CQP_ENTRIES, CQP_RING, PBLE_SEGMENT, Performed, RDMA_BUFFER, Rdma, segment,
};

use crate::Bus;

/// Offset of the message control word in the MSI-X capability.
const MSIX_CONTROL: u64 = 0x52;

/// Driver state specific to the E810.
#[derive(Debug, Default)]
pub struct E810 {
    /// Tail of the admin send ring.
    send_tail: u16,
    /// Index of the next event in the admin receive ring.
    receive_next: u16,
    /// VSI number of the NIC.
    pub vsi: u16,
    /// Index of the next transmit descriptor.
    pub transmit_next: u16,
    /// Index of the next receive descriptor.
    receive_head: u16,
    /// Queue pairs and completion queues.
    queues: queue_pair::Queues,
    rdma: Rdma,
}

pub type Driver<B> = crate::Driver<E810, B>;

impl<B: Bus> Driver<B> {
    /// Creates a driver for a device that has just been powered on.
    pub fn new(bus: B) -> Self {
        Self { bus, interface: E810::default() }
    }

    /// Writes to a register.
    pub fn write(&mut self, register: Register, value: u32) {
        self.bus.store(0, register.offset().into(), &value.to_le_bytes());
    }

    /// Reads from a register.
    pub fn read(&mut self, register: Register) -> u32 {
        u32::from_le_bytes(self.bus.load(0, register.offset().into()))
    }

    /// Reads a 64-bit counter.
    pub fn counter(&mut self, register: Register) -> u64 {
        u64::from_le_bytes(self.bus.load(0, register.offset().into()))
    }

    /// Enables memory space, bus mastering and MSI-X, as the kernel does when it binds a driver.
    pub fn bind(&mut self) {
        self.bus.enable();
        self.bus.configure(MSIX_CONTROL, &[0, 0x80]);
    }

    /// Resets the function. The reset is complete when the register write returns.
    pub fn reset_function(&mut self) {
        self.write(Register::PfgenCtrl, 1);
    }

    /// Enables an interrupt vector, as the kernel driver does after each interrupt.
    pub fn enable_vector(&mut self, vector: u16) {
        self.write(Register::GlintDynCtl(vector), 0b11 | 0b11 << 3);
    }
}
