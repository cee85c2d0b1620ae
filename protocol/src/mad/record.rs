//! Subnet administration attributes and the fields that their component masks select.
//!
//! # Spec
//! IBTA volume 1, section 15.2.5.

use super::BitField;
use super::field::attribute;
use crate::ids::{Lid, Pkey, Qkey};

/// Selector that requires exactly the given value.
pub const EXACTLY: u8 = 2;

attribute! {
    /// MCMemberRecord (section 15.2.5.17): properties of a multicast group and the membership of a port.
    pub struct McMemberRecord[52] {
        mgid: [u8; 16] = 0, 128;
        /// GID of the member port.
        port_gid: [u8; 16] = 128, 128;
        qkey: Qkey = 256, 32;
        /// Multicast LID of the group.
        mlid: Lid = 288, 16;
        /// Comparison that applies to `mtu`, for example [`EXACTLY`].
        mtu_selector: u8 = 304, 2;
        /// Path MTU, IBTA encoding.
        mtu: u8 = 306, 6;
        traffic_class: u8 = 312, 8;
        pkey: Pkey = 320, 16;
        /// Comparison that applies to `rate`.
        rate_selector: u8 = 336, 2;
        /// Path rate, IBTA encoding.
        rate: u8 = 338, 6;
        /// Comparison that applies to `life_time`.
        life_time_selector: u8 = 344, 2;
        /// Packet lifetime: 4.096 us * 2^n.
        life_time: u8 = 346, 6;
        sl: u8 = 352, 4;
        flow_label: u32 = 356, 20;
        hop_limit: u8 = 376, 8;
        /// Multicast scope of the group.
        scope: u8 = 384, 4;
        /// Membership types, one bit per type.
        join_state: u8 = 388, 4;
        /// Whether another port joins on behalf of the member port.
        proxy_join: bool = 392, 1;
    }
}

/// Component mask bits of [`McMemberRecord`].
pub mod mc_member {
    #![expect(missing_docs, reason = "named as the fields are")]

    pub const MGID: u64 = 1 << 0;
    pub const PORT_GID: u64 = 1 << 1;
    pub const QKEY: u64 = 1 << 2;
    pub const MLID: u64 = 1 << 3;
    pub const MTU_SELECTOR: u64 = 1 << 4;
    pub const MTU: u64 = 1 << 5;
    pub const TRAFFIC_CLASS: u64 = 1 << 6;
    pub const PKEY: u64 = 1 << 7;
    pub const RATE_SELECTOR: u64 = 1 << 8;
    pub const RATE: u64 = 1 << 9;
    pub const LIFE_TIME_SELECTOR: u64 = 1 << 10;
    pub const LIFE_TIME: u64 = 1 << 11;
    pub const SL: u64 = 1 << 12;
    pub const FLOW_LABEL: u64 = 1 << 13;
    pub const HOP_LIMIT: u64 = 1 << 14;
    pub const SCOPE: u64 = 1 << 15;
    pub const JOIN_STATE: u64 = 1 << 16;
}

attribute! {
    /// PathRecord (section 15.2.5.16): a path from one port to another.
    pub struct PathRecord[64] {
        /// Service that uses the path; 0 for any service.
        service_id: u64 = 0, 64;
        /// GID of the destination.
        dgid: [u8; 16] = 64, 128;
        /// GID of the source.
        sgid: [u8; 16] = 192, 128;
        /// LID of the destination.
        dlid: Lid = 320, 16;
        /// LID of the source.
        slid: Lid = 336, 16;
        /// Whether the path carries raw packets.
        raw_traffic: bool = 352, 1;
        flow_label: u32 = 356, 20;
        /// Hop limit; 0 if packets do not need a GRH.
        hop_limit: u8 = 376, 8;
        traffic_class: u8 = 384, 8;
        /// Whether the path also works in the reverse direction.
        reversible: bool = 392, 1;
        /// Maximum number of paths to return.
        path_count: u8 = 393, 7;
        pkey: Pkey = 400, 16;
        qos_class: u16 = 416, 12;
        sl: u8 = 428, 4;
        /// Comparison that applies to `mtu`, for example [`EXACTLY`].
        mtu_selector: u8 = 432, 2;
        /// Path MTU, IBTA encoding.
        mtu: u8 = 434, 6;
        /// Comparison that applies to `rate`.
        rate_selector: u8 = 440, 2;
        /// Path rate, IBTA encoding.
        rate: u8 = 442, 6;
        /// Comparison that applies to `life_time`.
        life_time_selector: u8 = 448, 2;
        /// Packet lifetime: 4.096 us * 2^n.
        life_time: u8 = 450, 6;
        /// Preference of the path; lower values are better.
        preference: u8 = 456, 8;
    }
}

/// Component mask bits of [`PathRecord`].
pub mod path {
    #![expect(missing_docs, reason = "named as the fields are")]

    pub const DGID: u64 = 1 << 2;
    pub const SGID: u64 = 1 << 3;
    pub const DLID: u64 = 1 << 4;
    pub const SLID: u64 = 1 << 5;
    pub const PATH_COUNT: u64 = 1 << 12;
    pub const PKEY: u64 = 1 << 13;
    pub const SL: u64 = 1 << 15;
    pub const MTU_SELECTOR: u64 = 1 << 16;
    pub const MTU: u64 = 1 << 17;
    pub const RATE_SELECTOR: u64 = 1 << 18;
    pub const RATE: u64 = 1 << 19;
}

/// Layout of a record, for queries with a component mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Length of a record in bytes.
    pub len: usize,
    /// Components, in mask-bit order.
    pub components: &'static [BitField],
}

impl RecordLayout {
    /// Returns the distance in bytes between the records of a table: `len` rounded up to a multiple of 8.
    pub const fn stride(&self) -> usize {
        self.len.next_multiple_of(8)
    }

    /// Returns whether `record` equals `wanted` in all components selected by `mask`. Mask bits without a component are
    /// ignored.
    pub fn matches(&self, record: &[u8], wanted: &[u8], mask: u64) -> bool {
        self.components
            .iter()
            .enumerate()
            .filter(|(bit, _)| mask >> bit & 1 != 0)
            .all(|(_, component)| component.equal(record, wanted))
    }
}

/// Defines a layout from the bit lengths of its consecutive components.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident, $len:expr, [$($bits:expr),* $(,)?]) => {
        $(#[$doc])*
        pub const $name: RecordLayout = {
            const LENGTHS: &[usize] = &[$($bits),*];
            const COMPONENTS: [BitField; LENGTHS.len()] = {
                let mut fields = [BitField { offset: 0, len: 0 }; LENGTHS.len()];
                let mut offset = 0;
                let mut at = 0;
                while at < LENGTHS.len() {
                    fields[at] = BitField { offset, len: LENGTHS[at] };
                    offset += LENGTHS[at];
                    at += 1;
                }
                assert!(offset <= 8 * $len);
                fields
            };
            RecordLayout { len: $len, components: &COMPONENTS }
        };
    };
}

layout! {
    /// NodeRecord (section 15.2.5.2): LID, reserved, NodeInfo, NodeDescription.
    NODE, 108, [16, 16, 8, 8, 8, 8, 64, 64, 64, 16, 16, 32, 8, 24, 512]
}
layout! {
    /// PortInfoRecord (section 15.2.5.3): LID, port, options, PortInfo. Only the PortInfo fields up to the capability
    /// mask can be selected.
    PORT_INFO, 68, [16, 8, 8, 64, 64, 16, 16, 32]
}
layout! {
    /// SwitchInfoRecord (section 15.2.5.6): LID, reserved, SwitchInfo.
    SWITCH_INFO, 24, [16, 16, 16, 16, 16, 16, 8, 8, 8, 5, 1, 2, 16, 16]
}
layout! {
    /// SMInfoRecord (section 15.2.5.12): LID, reserved, SMInfo.
    SM_INFO, 28, [16, 16, 64, 64, 32, 4, 4]
}
layout! {
    /// LinkRecord (section 15.2.5.13): LID and port of one end, then port and LID of the other end.
    LINK, 6, [16, 8, 8, 16]
}
layout! {
    /// GuidInfoRecord (section 15.2.5.18): LID, block, reserved, reserved, eight GUIDs.
    GUID_INFO, 72, [16, 8, 8, 32, 64, 64, 64, 64, 64, 64, 64, 64]
}
layout! {
    /// P_KeyTableRecord (section 15.2.5.11): LID, block, port, reserved, 32 P_Keys.
    PKEY_TABLE, 72, [16, 16, 8, 24, 512]
}
layout! {
    /// ServiceRecord (section 15.2.5.14): ServiceID, GID, P_Key, reserved, lease, key, name, and data in units of 8,
    /// 16, 32 and 64 bits.
    SERVICE, 176, [
        64, 128, 16, 16, 32, 128, 512, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 16, 16,
        16, 16, 32, 32, 32, 32, 64, 64,
    ]
}
layout! {
    /// PathRecord (section 15.2.5.16). The first two components are the two halves of the service ID.
    PATH, PathRecord::LEN, [
        32, 32, 128, 128, 16, 16, 1, 3, 20, 8, 8, 1, 7, 16, 12, 4, 2, 6, 2, 6, 2, 6, 8,
    ]
}
layout! {
    /// Layout of MCMemberRecord (section 15.2.5.17).
    MC_MEMBER, McMemberRecord::LEN, [
        128, 128, 32, 16, 2, 6, 8, 16, 2, 6, 2, 6, 4, 20, 8, 4, 4, 1,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 9.3 of the mthca interface lists the offsets. The record is the response to a request to join a
    /// broadcast group.
    #[test]
    fn mc_member_record_matches_specified_layout() {
        let mut bytes = [0; 52];
        bytes[..16]
            .copy_from_slice(&[0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        bytes[16..32].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
        bytes[32..36].copy_from_slice(&[0, 0, 0x0b, 0x1b]);
        bytes[36..44].copy_from_slice(&[0xc0, 0, 0x84, 0x12, 0xff, 0xff, 0x86, 0x92]);
        bytes[44..49].copy_from_slice(&[0x3a, 0xbc, 0xde, 0x40, 0x21]);
        bytes[49] = 0x80;
        let record = McMemberRecord {
            mgid: bytes[..16].try_into().unwrap(),
            port_gid: bytes[16..32].try_into().unwrap(),
            qkey: Qkey::new(0x0b1b),
            mlid: Lid::new(0xc000),
            mtu_selector: EXACTLY,
            mtu: 4,
            traffic_class: 0x12,
            pkey: Pkey::DEFAULT,
            rate_selector: EXACTLY,
            rate: 6,
            life_time_selector: EXACTLY,
            life_time: 18,
            sl: 3,
            flow_label: 0xabcde,
            hop_limit: 0x40,
            scope: 2,
            join_state: 1,
            proxy_join: true,
        };
        assert_eq!(record.emit(), bytes);
        assert_eq!(McMemberRecord::parse(&bytes), record);
    }

    /// Section 9.4 of the mthca interface lists the offsets.
    #[test]
    fn path_record_matches_specified_layout() {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        bytes[8..24].fill(0x11);
        bytes[24..40].fill(0x22);
        bytes[40..44].copy_from_slice(&[0, 2, 0, 1]);
        bytes[44..48].copy_from_slice(&[0x8a, 0xbc, 0xde, 0x3f]);
        bytes[48..58].copy_from_slice(&[0x12, 0x81, 0xff, 0xff, 0x12, 0x34, 0x84, 0x86, 0x92, 5]);
        let record = PathRecord {
            service_id: 0x0102_0304_0506_0708,
            dgid: [0x11; 16],
            sgid: [0x22; 16],
            dlid: Lid::new(2),
            slid: Lid::new(1),
            raw_traffic: true,
            flow_label: 0xabcde,
            hop_limit: 0x3f,
            traffic_class: 0x12,
            reversible: true,
            path_count: 1,
            pkey: Pkey::DEFAULT,
            qos_class: 0x123,
            sl: 4,
            mtu_selector: EXACTLY,
            mtu: 4,
            rate_selector: EXACTLY,
            rate: 6,
            life_time_selector: EXACTLY,
            life_time: 18,
            preference: 5,
        };
        assert_eq!(record.emit(), bytes);
        assert_eq!(PathRecord::parse(&bytes), record);
    }

    /// Section 9.3 of the mthca interface contains the component masks that the kernel uses.
    #[test]
    fn component_masks_match_kernel_and_layout() {
        use mc_member::{JOIN_STATE, MGID, PKEY, PORT_GID, QKEY};
        assert_eq!(MGID | PORT_GID | PKEY | JOIN_STATE, 0x1_0083);
        let at = |layout: &RecordLayout, bit: u64| {
            let field = layout.components[usize::try_from(bit.trailing_zeros()).unwrap()];
            (field.offset, field.len)
        };
        assert_eq!(at(&MC_MEMBER, QKEY), (256, 32));
        assert_eq!(at(&MC_MEMBER, mc_member::RATE), (338, 6));
        assert_eq!(at(&MC_MEMBER, JOIN_STATE), (388, 4));
        assert_eq!(at(&PATH, path::DGID), (64, 128));
        assert_eq!(at(&PATH, path::SLID), (336, 16));
        assert_eq!(at(&PATH, path::PKEY), (400, 16));
        assert_eq!(at(&PATH, path::SL), (428, 4));
        assert_eq!(at(&PATH, path::RATE), (442, 6));
        assert_eq!(NODE.components.last(), Some(&BitField { offset: 44 * 8, len: 512 }));
        assert_eq!(SERVICE.components.last().map(BitField::end), Some(176 * 8));
    }

    #[test]
    fn matches_only_masked_components() {
        let (mut record, mut wanted) = ([0; 6], [0; 6]);
        record[..2].copy_from_slice(&[0, 7]);
        wanted[..3].copy_from_slice(&[0, 7, 9]);
        assert!(LINK.matches(&record, &wanted, 0b0001));
        assert!(!LINK.matches(&record, &wanted, 0b0010));
        assert!(LINK.matches(&record, &wanted, 1 << 63), "mask bits without a component are ignored");
        assert_eq!(LINK.stride(), 8);
        assert_eq!(MC_MEMBER.stride(), 56);
    }
}
