//! State of the InfiniBand port, as reported by QUERY_HCA_VPORT_CONTEXT, and the P_Key table of an Ethernet port.
//!
//! # Spec
//! mlx5 interface, sections 14.2 and 15.3.

use crate::ids::{Lid, Pkey};
use crate::layout;

layout! {
    /// Context of an InfiniBand port.
    pub struct VportContext[0x200] big_endian {
        /// Whether the port has a subnet management interface.
        @0x20[30]     has_smi: bool,
        /// Whether packets require a GRH.
        @0x20[28]     grh_required: bool,
        /// Physical state of the port; 5 means link up.
        @0x20[15:12]  physical_state: u8,
        /// State of the virtual port; 4 means active.
        @0x20[7:4]    vport_state: u8,
        /// State of the port; 4 means active.
        @0x20[3:0]    port_state: u8,
        @0x28         system_guid: u64 => Hex,
        @0x30         port_guid: u64 => Hex,
        @0x38         node_guid: u64 => Hex,
        /// Capability mask of the port, as in PortInfo.
        @0x40         capability_mask: u32 => Hex,
        @0x60[31:16]  lid: Lid,
        /// LID mask control (LMC) of the port.
        @0x60[7:5]    lmc: u8,
        /// Subnet timeout, IBTA encoding.
        @0x60[4:0]    subnet_timeout: u8,
        /// LID of the subnet manager.
        @0x64[31:16]  sm_lid: Lid,
        /// Service level for packets to the subnet manager.
        @0x64[15:12]  sm_service_level: u8,
    }
}

layout! {
    /// Input of the QUERY_HCA_VPORT_PKEY command.
    pub struct QueryVportPkey[16] big_endian {
        /// Index in the P_Key table, or [`QueryVportPkey::ALL`].
        @0x0e  index: u16,
    }
}

impl QueryVportPkey {
    /// Index that selects all entries.
    pub const ALL: u16 = 0xffff;
}

layout! {
    /// Output of the QUERY_HCA_VPORT_PKEY command for one entry.
    pub struct QueriedVportPkey[20] big_endian {
        @0x10[15:0]  pkey: Pkey,
    }
}

layout! {
    /// Output of the QUERY_HCA_VPORT_CONTEXT command.
    pub struct QueriedVport[528] big_endian {
        @0x10  context: VportContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn vport_context_fields_are_at_specified_offsets() {
        let context = VportContext {
            has_smi: true,
            grh_required: true,
            physical_state: 5,
            vport_state: 1,
            port_state: 4,
            system_guid: 1 << 32 | 2,
            port_guid: 3 << 32 | 4,
            node_guid: 5 << 32 | 6,
            capability_mask: 0x0251_0a68,
            lid: Lid::new(0x11),
            lmc: 5,
            subnet_timeout: 18,
            sm_lid: Lid::new(0x12),
            sm_service_level: 3,
        };
        let expected = words(&[
            (0x20, 0x5000_5014),
            (0x28, 1),
            (0x2c, 2),
            (0x30, 3),
            (0x34, 4),
            (0x38, 5),
            (0x3c, 6),
            (0x40, 0x0251_0a68),
            (0x60, 0x0011_00b2),
            (0x64, 0x0012_3000),
        ]);
        assert_eq!(context.emit(), expected);
        assert_eq!(VportContext::parse(&expected), context);
    }
}
