//! Subnet administration (SA): MAD layout and attribute IDs. The attributes are in [`record`](super::record).
//!
//! # Spec
//! IBTA volume 1, section 15.2.

use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::Mad;
use super::rmpp::Rmpp;

/// Length in bytes of the attribute data in one MAD or RMPP segment.
pub const DATA_LEN: usize = 200;

/// Length in bytes of the SA header, between the RMPP header and the data. Every segment has one, and RMPP counts it as
/// payload.
pub const SA_HEADER_LEN: usize = 20;

/// Class version that this crate supports.
pub const CLASS_VERSION: u8 = 2;

/// Subnet administration attribute IDs.
pub mod attribute {
    #![expect(missing_docs, reason = "the names are the specification's (section 15.2.5)")]

    pub const INFORM_INFO: u16 = 0x03;
    pub const NODE_RECORD: u16 = 0x11;
    pub const PORT_INFO_RECORD: u16 = 0x12;
    pub const SWITCH_INFO_RECORD: u16 = 0x14;
    pub const SM_INFO_RECORD: u16 = 0x18;
    pub const LINK_RECORD: u16 = 0x20;
    pub const GUID_INFO_RECORD: u16 = 0x30;
    pub const SERVICE_RECORD: u16 = 0x31;
    pub const PKEY_TABLE_RECORD: u16 = 0x33;
    pub const PATH_RECORD: u16 = 0x35;
    pub const MC_MEMBER_RECORD: u16 = 0x38;
}

/// Layout of a subnet administration MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SaMad {
    header: [u8; 24],
    rmpp: [u8; Rmpp::LEN],
    sm_key: U64,
    attribute_offset: U16,
    reserved: [u8; 2],
    component_mask: U64,
    /// The attribute, or one segment of a table.
    pub data: [u8; DATA_LEN],
}

const _: () = assert!(std::mem::offset_of!(SaMad, data) == 56 && size_of::<SaMad>() == super::MAD_LEN);

impl SaMad {
    /// Interprets a MAD as a subnet administration MAD.
    pub fn of(mad: &Mad) -> &Self {
        transmute_ref!(mad)
    }

    /// Mutable version of [`SaMad::of`].
    pub fn of_mut(mad: &mut Mad) -> &mut Self {
        transmute_mut!(mad)
    }

    /// Parses the RMPP header.
    pub fn rmpp(&self) -> Rmpp {
        Rmpp::parse(&self.rmpp)
    }

    /// Replaces the RMPP header.
    pub fn set_rmpp(&mut self, rmpp: &Rmpp) {
        self.rmpp = rmpp.emit();
    }

    /// Returns the component mask. Bit n is set if component n of the attribute is valid.
    pub fn component_mask(&self) -> u64 {
        self.component_mask.get()
    }

    /// Sets the component mask.
    pub fn set_component_mask(&mut self, mask: u64) {
        self.component_mask = mask.into();
    }

    /// Returns the distance between the records of a table, in units of 8 bytes.
    pub fn attribute_offset(&self) -> u16 {
        self.attribute_offset.get()
    }

    /// Sets the distance between the records of a table, in units of 8 bytes.
    pub fn set_attribute_offset(&mut self, words: u16) {
        self.attribute_offset = words.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 9.1 of the mthca interface lists the offsets.
    #[test]
    fn sa_mad_fields_are_at_specified_offsets() {
        let mut mad = [0; 256];
        let sa = SaMad::of_mut(&mut mad);
        sa.set_attribute_offset(0x0d);
        sa.set_component_mask(0x1_0083);
        sa.set_rmpp(&Rmpp { version: 1, ..Rmpp::default() });
        sa.data[0] = 0xff;
        assert_eq!((mad[24], mad[45], mad[53..56].to_vec(), mad[56]), (1, 0x0d, vec![1, 0, 0x83], 0xff));
        let sa = SaMad::of(&mad);
        assert_eq!((sa.attribute_offset(), sa.component_mask()), (0x0d, 0x1_0083));
    }
}
