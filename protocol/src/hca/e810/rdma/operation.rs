//! Operations of the control queue, each of which is a WQE of 64 bytes.
//!
//! # Spec
//! E810 interface, section 10.3.

use super::completion_queue::{CqCommand, DestroyCq};
use super::event_queue::{CreateAeq, CreateCeq, DestroyCeq};
use super::features::QueryFeatures;
use super::group::GroupCommand;
use super::hmc::{FpmCommand, UpdateSegments};
use super::node::NodeCommand;
use super::path::{AddressHandleCommand, DestroyAddressHandle, ManageArp};
use super::queue_pair::{DestroyQp, FlushQp, QpCommand, SuspendQp};
use super::region::{AllocateStag, DeallocateStag, RegisterMr};
use super::statistics::GatherStatistics;
use crate::describe::{Describe, Visitor};
use crate::layout;

/// Bytes of a WQE.
pub const WQE_LEN: usize = 64;

/// Name of an operation that nobody knows.
pub const UNKNOWN: &str = "unknown_operation";

layout! {
    /// What all operations have.
    pub struct Header[64] {
        /// Which one; see [`Opcode`].
        @24[37:32]  opcode: u8 => Hex,
        /// The polarity of the ring's current round.
        @24[63]     valid: bool,
    }
}

layout! {
    /// An operation of which the device has nothing to do.
    pub struct Acknowledged[64] {
        /// What it is about.
        @24[31:0]  operand: u32 => Hex,
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($layout:ident) = $code:literal $word:literal;)*) => {
        /// Which operation a WQE is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $code,)*
        }

        impl Opcode {
            /// Every operation.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The operation with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its code.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// Its name in traces and counters.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }

        /// An operation with its fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $($(#[$doc])* $name($layout),)*
        }

        impl Operation {
            /// Reads a WQE; `None` if nobody knows its operation.
            pub fn parse(wqe: &[u8; WQE_LEN]) -> Option<Self> {
                Some(match Opcode::from_code(Header::parse(wqe).opcode)? {
                    $(Opcode::$name => Self::$name($layout::parse(wqe)),)*
                })
            }

            /// Which one it is.
            pub const fn opcode(&self) -> Opcode {
                match self {
                    $(Self::$name(_) => Opcode::$name,)*
                }
            }

            /// Its WQE, for the round in which `valid` is new.
            pub fn emit(&self, valid: bool) -> [u8; WQE_LEN] {
                let mut wqe = match self {
                    $(Self::$name(fields) => fields.emit(),)*
                };
                let header = Header { opcode: self.opcode().code(), valid }.emit();
                wqe.iter_mut().zip(header).for_each(|(byte, bits)| *byte |= bits);
                wqe
            }
        }

        impl Describe for Operation {
            fn describe(&self, to: &mut dyn Visitor) {
                match self {
                    $(Self::$name(fields) => fields.describe(to),)*
                }
            }
        }
    };
}

operations! {
    /// Makes a queue pair.
    CreateQp(QpCommand) = 0x00 "create_qp";
    /// Changes it.
    ModifyQp(QpCommand) = 0x01 "modify_qp";
    /// Removes it.
    DestroyQp(DestroyQp) = 0x02 "destroy_qp";
    /// Makes a completion queue.
    CreateCq(CqCommand) = 0x03 "create_cq";
    /// Changes it.
    ModifyCq(CqCommand) = 0x04 "modify_cq";
    /// Removes it.
    DestroyCq(DestroyCq) = 0x05 "destroy_cq";
    /// Reserves a key.
    AllocateStag(AllocateStag) = 0x09 "allocate_stag";
    /// Registers a memory region.
    RegisterMr(RegisterMr) = 0x0a "register_mr";
    /// Gives a key back.
    DeallocateStag(DeallocateStag) = 0x0d "deallocate_stag";
    /// Changes the ARP table.
    ManageArp(ManageArp) = 0x0f "manage_arp";
    /// Asks for a page to push WQEs to, which the device has not.
    ManagePushPages(Acknowledged) = 0x11 "manage_push_pages";
    /// Asks what the device is.
    QueryFeatures(QueryFeatures) = 0x12 "query_features";
    /// Makes a completion event queue.
    CreateCeq(CreateCeq) = 0x16 "create_ceq";
    /// Removes it.
    DestroyCeq(DestroyCeq) = 0x18 "destroy_ceq";
    /// Makes the asynchronous event queue.
    CreateAeq(CreateAeq) = 0x19 "create_aeq";
    /// Removes it.
    DestroyAeq(Acknowledged) = 0x1b "destroy_aeq";
    /// Makes an address handle.
    CreateAddressHandle(AddressHandleCommand) = 0x1c "create_ah";
    /// Changes it.
    ModifyAddressHandle(AddressHandleCommand) = 0x1d "modify_ah";
    /// Removes it.
    DestroyAddressHandle(DestroyAddressHandle) = 0x1e "destroy_ah";
    /// Tells where context memory is.
    UpdateSegments(UpdateSegments) = 0x1f "update_sds";
    /// Asks how much of it there can be.
    QueryFpm(FpmCommand) = 0x20 "query_fpm";
    /// Says how much of it there is to be.
    CommitFpm(FpmCommand) = 0x21 "commit_fpm";
    /// Completes what a queue pair has left.
    FlushQp(FlushQp) = 0x22 "flush_wqes";
    /// Nothing.
    Nop(Acknowledged) = 0x24 "nop";
    /// Hash table of connections, of iWARP.
    ManageQuadHash(Acknowledged) = 0x25 "manage_quad_hash";
    /// Makes a multicast group.
    CreateGroup(GroupCommand) = 0x26 "create_group";
    /// Changes it.
    ModifyGroup(GroupCommand) = 0x27 "modify_group";
    /// Removes it.
    DestroyGroup(GroupCommand) = 0x28 "destroy_group";
    /// Stops a send queue.
    SuspendQp(SuspendQp) = 0x29 "suspend_qp";
    /// Lets it go on.
    ResumeQp(SuspendQp) = 0x2a "resume_qp";
    /// Pages of context memory that the firmware itself needs are there.
    StaticPagesAllocated(Acknowledged) = 0x2b "static_pages_allocated";
    /// Changes the scheduler's tree of the RDMA half.
    ManageNode(NodeCommand) = 0x2c "manage_node";
    /// Changes instances of statistics, of which there is one.
    ManageStatistics(Acknowledged) = 0x2d "manage_statistics";
    /// Reads counters.
    GatherStatistics(GatherStatistics) = 0x2e "gather_statistics";
    /// Sets traffic classes of priorities.
    MapPriorities(Acknowledged) = 0x2f "map_priorities";
}

#[cfg(test)]
mod tests;
