//! Base transport header.

use super::Opcode;
use crate::Psn;
use crate::ids::{Pkey, Qpn};

/// Base transport header, parsed. The pad count belongs to the payload and is handled with it.
///
/// # Spec
/// IBTA volume 1, section 9.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Service and operation.
    pub opcode: Opcode,
    /// The receiver should raise a solicited event.
    pub solicited: bool,
    /// Migration request (1 = migrated).
    pub mig_req: bool,
    /// Partition.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination QP.
    pub dest_qp: Qpn,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}
