//! CQP operations, each encoded as a 64-byte WQE.
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

/// Length of a CQP WQE in bytes.
pub const WQE_LEN: usize = 64;

/// Name used for unknown operations.
pub const UNKNOWN: &str = "unknown_operation";

layout! {
    /// Common fields of all operations.
    pub struct Header[64] {
        /// Opcode of the operation; see [`Opcode`].
        @24[37:32]  opcode: u8 => Hex,
        /// Polarity, which toggles on each pass through the ring.
        @24[63]     valid: bool,
    }
}

layout! {
    /// An operation that this device completes without doing anything.
    pub struct Acknowledged[64] {
        /// Object that the operation applies to.
        @24[31:0]  operand: u32 => Hex,
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($layout:ident) = $code:literal $word:literal;)*) => {
        /// Opcode of a CQP operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* #[allow(missing_docs)] $name = $code,)*
        }

        impl Opcode {
            /// All opcodes in ascending order.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Looks up an opcode by code. Returns `None` for an unknown code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the code used in WQEs.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// Returns the name used in traces and counters.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }

        /// A CQP operation with its fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $($(#[$doc])* #[allow(missing_docs)] $name($layout),)*
        }

        impl Operation {
            /// Parses a WQE. Returns `None` if its opcode is unknown.
            pub fn parse(wqe: &[u8; WQE_LEN]) -> Option<Self> {
                Some(match Opcode::from_code(Header::parse(wqe).opcode)? {
                    $(Opcode::$name => Self::$name($layout::parse(wqe)),)*
                })
            }

            /// Returns the opcode of the operation.
            pub const fn opcode(&self) -> Opcode {
                match self {
                    $(Self::$name(_) => Opcode::$name,)*
                }
            }

            /// Encodes the operation as a WQE with polarity `valid`.
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
    CreateQp(QpCommand) = 0x00 "create_qp";
    ModifyQp(QpCommand) = 0x01 "modify_qp";
    DestroyQp(DestroyQp) = 0x02 "destroy_qp";
    CreateCq(CqCommand) = 0x03 "create_cq";
    ModifyCq(CqCommand) = 0x04 "modify_cq";
    DestroyCq(DestroyCq) = 0x05 "destroy_cq";
    AllocateStag(AllocateStag) = 0x09 "allocate_stag";
    RegisterMr(RegisterMr) = 0x0a "register_mr";
    DeallocateStag(DeallocateStag) = 0x0d "deallocate_stag";
    ManageArp(ManageArp) = 0x0f "manage_arp";
    /// Allocates a push page. This device has no push pages.
    ManagePushPages(Acknowledged) = 0x11 "manage_push_pages";
    QueryFeatures(QueryFeatures) = 0x12 "query_features";
    CreateCeq(CreateCeq) = 0x16 "create_ceq";
    DestroyCeq(DestroyCeq) = 0x18 "destroy_ceq";
    CreateAeq(CreateAeq) = 0x19 "create_aeq";
    DestroyAeq(Acknowledged) = 0x1b "destroy_aeq";
    CreateAddressHandle(AddressHandleCommand) = 0x1c "create_ah";
    ModifyAddressHandle(AddressHandleCommand) = 0x1d "modify_ah";
    DestroyAddressHandle(DestroyAddressHandle) = 0x1e "destroy_ah";
    UpdateSegments(UpdateSegments) = 0x1f "update_sds";
    /// Queries the HMC object limits.
    QueryFpm(FpmCommand) = 0x20 "query_fpm";
    /// Commits the HMC object counts.
    CommitFpm(FpmCommand) = 0x21 "commit_fpm";
    FlushQp(FlushQp) = 0x22 "flush_wqes";
    Nop(Acknowledged) = 0x24 "nop";
    /// Manages the hash table of iWARP connections.
    ManageQuadHash(Acknowledged) = 0x25 "manage_quad_hash";
    /// Creates a multicast group.
    CreateGroup(GroupCommand) = 0x26 "create_group";
    /// Modifies a multicast group.
    ModifyGroup(GroupCommand) = 0x27 "modify_group";
    /// Destroys a multicast group.
    DestroyGroup(GroupCommand) = 0x28 "destroy_group";
    /// Suspends the send queue of a QP.
    SuspendQp(SuspendQp) = 0x29 "suspend_qp";
    /// Resumes the send queue of a QP.
    ResumeQp(SuspendQp) = 0x2a "resume_qp";
    /// Reports that the static HMC pages are allocated.
    StaticPagesAllocated(Acknowledged) = 0x2b "static_pages_allocated";
    /// Manages a scheduler node.
    ManageNode(NodeCommand) = 0x2c "manage_node";
    /// Manages statistics instances. This device has only one instance.
    ManageStatistics(Acknowledged) = 0x2d "manage_statistics";
    GatherStatistics(GatherStatistics) = 0x2e "gather_statistics";
    /// Maps user priorities to traffic classes.
    MapPriorities(Acknowledged) = 0x2f "map_priorities";
}

#[cfg(test)]
mod tests;
