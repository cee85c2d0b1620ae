//! Commands that create, query and destroy flow groups.
//!
//! # Spec
//! mlx5 interface, section 16.4.

use super::flow_table::TableType;
use super::match_parameters::MatchParameters;
use crate::ids::{FlowGroupId, FlowTableId};
use crate::layout;

layout! {
    /// Input of the CREATE_FLOW_GROUP command. A group is a range of entries with the same mask.
    pub struct CreateFlowGroup[1024] big_endian {
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        @0x14[23:0]   table: FlowTableId,
        /// Index of the first entry.
        @0x1c         first: u32,
        /// Index of the last entry, inclusive.
        @0x24         last: u32,
        /// Bit mask of the match parameter sets that the entries compare; see
        /// [`Criteria`](super::match_parameters::Criteria).
        @0x3c[7:0]    criteria: u8 => Hex,
        /// Mask of the header bits that the entries compare.
        @0x40         mask: MatchParameters,
    }
}

layout! {
    /// Output of the CREATE_FLOW_GROUP command.
    pub struct FlowGroupNumber[16] big_endian {
        @0x08[23:0]  group: FlowGroupId,
    }
}

layout! {
    /// Input of DESTROY_FLOW_GROUP and QUERY_FLOW_GROUP.
    pub struct FlowGroupSelector[64] big_endian {
        /// A value of [`TableType`].
        @0x10[31:24]  table_type: u8 => TableType::word,
        @0x14[23:0]   table: FlowTableId,
        @0x18         group: FlowGroupId,
    }
}

layout! {
    /// Output of the QUERY_FLOW_GROUP command.
    pub struct QueriedFlowGroup[1024] big_endian {
        /// Index of the first entry.
        @0x1c       first: u32,
        /// Index of the last entry, inclusive.
        @0x24       last: u32,
        /// Bit mask of the match parameter sets that the entries compare.
        @0x3c[7:0]  criteria: u8 => Hex,
        /// Mask of the header bits that the entries compare.
        @0x40       mask: MatchParameters,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn flow_group_fields_are_at_specified_offsets() {
        let mut mask = MatchParameters::default();
        mask.outer.ip_version = 0xf;
        let (first, last, criteria) = (14, 16, 1);
        let create = CreateFlowGroup {
            table: FlowTableId::new(6),
            first,
            last,
            criteria,
            mask,
            ..CreateFlowGroup::default()
        };
        let expected = [(0x14, 6), (0x1c, 14), (0x24, 16), (0x3c, 1), (0x50, 0x1e00)];
        assert_eq!(create.emit(), words(&expected));
        let queried = QueriedFlowGroup { first, last, criteria, mask };
        assert_eq!(queried.emit(), words(&expected[1..]));
        let selector = FlowGroupSelector {
            table: FlowTableId::new(6),
            group: FlowGroupId::new(0xb),
            ..FlowGroupSelector::default()
        };
        assert_eq!(selector.emit(), words(&[(0x14, 6), (0x18, 0xb)]));
    }
}
