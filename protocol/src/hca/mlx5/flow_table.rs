//! Commands that create, modify, query and destroy flow tables, and the command that selects the root table.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use bitflags::bitflags;

use super::code::codes;
use crate::describe::{Field, Visitor, show_flags};
use crate::ids::FlowTableId;
use crate::layout;

codes! {
    /// Flow table type. Drivers use other types only if the device's capabilities advertise them.
    pub enum TableType(u8) {
        /// Frames that the port receives.
        NicReceive = 0 "nic_receive",
    }
}

codes! {
    /// What happens to a frame that matches no entry in a table.
    pub enum MissAction(u8) {
        /// The table type determines the action. Frames that miss in a receive table are dropped.
        Default = 0 "default",
        /// Evaluation continues in the miss table.
        Table = 1 "table",
    }
}

layout! {
    /// Context of a flow table.
    pub struct FlowTableContext[40] big_endian {
        /// A value of [`MissAction`].
        @0x00[27:24]  miss_action: u8 => MissAction::word,
        /// Level of the table. A table can forward frames only to tables at higher levels.
        @0x00[23:16]  level: u8,
        /// Log2 of the number of entries.
        @0x00[7:0]    log_size: u8,
        /// Table for [`MissAction::Table`], 24 bits.
        @0x04[23:0]   miss_table: FlowTableId,
    }
}

layout! {
    /// Input of the CREATE_FLOW_TABLE command.
    pub struct CreateFlowTable[64] big_endian {
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        @0x18         context: FlowTableContext,
    }
}

layout! {
    /// Output of the CREATE_FLOW_TABLE command.
    pub struct FlowTableNumber[16] big_endian {
        @0x08[23:0]  table: FlowTableId,
    }
}

layout! {
    /// Input of DESTROY_FLOW_TABLE and QUERY_FLOW_TABLE.
    pub struct FlowTableSelector[64] big_endian {
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        @0x14[23:0]   table: FlowTableId,
    }
}

layout! {
    /// Output of the QUERY_FLOW_TABLE command.
    pub struct QueriedFlowTable[64] big_endian {
        @0x18  context: FlowTableContext,
    }
}

bitflags! {
    /// Fields that MODIFY_FLOW_TABLE copies from the context.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct FlowTableFields: u16 {
        /// Miss action and miss table.
        const MISS = 1 << 0;
        const _ = !0;
    }
}

impl From<u16> for FlowTableFields {
    fn from(bits: u16) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<FlowTableFields> for u16 {
    fn from(fields: FlowTableFields) -> Self {
        fields.bits()
    }
}

impl Field for FlowTableFields {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

layout! {
    /// Input of the MODIFY_FLOW_TABLE command.
    pub struct ModifyFlowTable[64] big_endian {
        /// Fields to copy from `context`.
        @0x0e         fields: FlowTableFields as u16,
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        @0x14[23:0]   table: FlowTableId,
        /// Context with the new values.
        @0x18         context: FlowTableContext,
    }
}

codes! {
    /// Change that SET_FLOW_TABLE_ROOT makes, given by its op_mod.
    pub enum RootChange(u16) {
        /// The table becomes the root.
        Set = 0 "set",
        /// The table type has no root, as after INIT_HCA.
        Reset = 1 "reset",
    }
}

layout! {
    /// Input of the SET_FLOW_TABLE_ROOT command.
    pub struct SetFlowTableRoot[64] big_endian {
        /// A value of [`RootChange`].
        @0x06         change: u16 => RootChange::word,
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        /// Table where the evaluation of each frame starts.
        @0x14[23:0]   table: FlowTableId,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn flow_table_fields_are_at_specified_offsets() {
        let context =
            FlowTableContext { miss_action: 1, level: 59, log_size: 16, miss_table: FlowTableId::new(1) };
        let create = CreateFlowTable { table_type: 0, context };
        assert_eq!(create.emit(), words(&[(0x18, 0x013b_0010), (0x1c, 1)]));
        let modify = ModifyFlowTable {
            fields: FlowTableFields::MISS,
            table: FlowTableId::new(7),
            context,
            ..ModifyFlowTable::default()
        };
        let expected = [(0x0c, 1), (0x14, 7), (0x18, 0x013b_0010), (0x1c, 1)];
        assert_eq!(modify.emit(), words(&expected));
        let root = SetFlowTableRoot { change: 1, table_type: 2, table: FlowTableId::new(9) };
        assert_eq!(root.emit(), words(&[(4, 1), (0x10, 2 << 24), (0x14, 9)]));
    }
}
