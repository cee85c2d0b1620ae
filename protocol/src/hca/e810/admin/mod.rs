//! The admin queue: descriptors, commands, and the objects in their parameters and buffers.
//!
//! Parameter types are named after their commands. The response overwrites the command's 16 bytes of parameters.
//!
//! # Spec
//! E810 interface, sections 4 and 5.

pub mod capability;
pub mod control;
pub mod describe;
pub mod descriptor;
pub mod link;
pub mod lldp;
pub mod mac;
pub mod nvm;
pub mod opcode;
pub mod queue;
pub mod resource;
pub mod rss;
pub mod scheduler;
pub mod status;
pub mod switch;
pub mod vsi;

pub use descriptor::{Descriptor, Flags, PARAMETERS_LEN};
pub use opcode::Opcode;
pub use status::{AdminError, AdminStatus};
