//! RoCEv2 frames: encapsulation, base transport header and its extensions, and invariant CRC.
//!
//! # Spec
//! IBTA volume 1, section 9 (transport) and annex A17 (RoCEv2).

pub mod bth;
pub mod encap;
pub mod ext;
pub mod flow;
pub mod frame;
pub mod icrc;
pub mod offload;
pub mod opcode;
pub mod opcode_name;
pub mod packet;

pub use bth::Bth;
pub use encap::{Encap, IpAddrs};
pub use ext::{Aeth, AtomicEth, Deth, Ext, ExtKind, Imm, NakCode, Reth, Syndrome, XRCETH_LEN};
pub use flow::FlowHeaders;
pub use frame::{
    FrameWriter, MAX_OFFLOADED_PAYLOAD, MAX_PAYLOAD, RoceFrame, RoceHeaders, for_each_frame, seal,
};
pub use offload::{Mtu, Offload};
pub use opcode::{Kind, Opcode, Operation, Position, Transport};
pub use opcode_name::OpcodePattern;
pub use packet::{Packet, PacketPayload, PacketWith, PayloadLen};
