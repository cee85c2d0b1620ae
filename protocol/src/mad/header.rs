//! Common MAD header.
//!
//! # Spec
//! IBTA volume 1, section 13.4.

use super::field::{FieldValue, attribute};

/// The management class of a MAD (MgmtClass).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Class(pub u8);

impl Class {
    /// Subnet management with LID-routed SMPs.
    pub const SUBN: Self = Self(0x01);
    /// Subnet administration: queries to the SA.
    pub const SUBN_ADM: Self = Self(0x03);
    /// Performance management (PerfMgt) of ports.
    pub const PERF: Self = Self(0x04);
    /// Subnet management with directed-route SMPs.
    pub const SUBN_DIRECTED: Self = Self(0x81);

    /// Returns whether this is one of the two subnet management classes, the only classes used on QP0.
    pub const fn is_smp(self) -> bool {
        matches!(self, Self::SUBN | Self::SUBN_DIRECTED)
    }
}

/// Method of a MAD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Method(pub u8);

impl Method {
    /// Get: SubnGet, PerformanceGet and so on, depending on the class.
    pub const GET: Self = Self(0x01);
    /// Set: SubnSet, PerformanceSet and so on, depending on the class.
    pub const SET: Self = Self(0x02);
    /// Send, which does not expect a response.
    pub const SEND: Self = Self(0x03);
    /// Trap, sent by an agent to the subnet manager.
    pub const TRAP: Self = Self(0x05);
    /// TrapRepress, the subnet manager's acknowledgement of a Trap.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// SubnAdmGetTable: returns all matching records.
    pub const GET_TABLE: Self = Self(0x12);
    /// SubnAdmDelete: removes a record.
    pub const DELETE: Self = Self(0x15);
    /// GetResp, the response to Get and Set.
    pub const GET_RESP: Self = Self(0x81);

    const RESPONSE: u8 = 0x80;

    /// Returns whether the response bit is set.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }

    /// Returns whether the method expects a response (section 13.4.5).
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Self::SEND | Self::TRAP | Self::TRAP_REPRESS)
    }

    /// Returns the method of the response. Get and Set have the same response method.
    #[must_use]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self(method) => Self(method | Self::RESPONSE),
        }
    }
}

/// Status of a response. The high byte is class-specific.
///
/// # Spec
/// IBTA volume 1, section 13.4.7; section 15.2.4 for subnet administration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadStatus(pub u16);

impl MadStatus {
    /// The request was successful.
    pub const OK: Self = Self(0);
    /// Unsupported base or class version.
    pub const BAD_VERSION: Self = Self(1 << 2);
    /// The method is not supported.
    pub const BAD_METHOD: Self = Self(2 << 2);
    /// Unsupported combination of method and attribute.
    pub const BAD_ATTRIBUTE: Self = Self(3 << 2);
    /// Invalid value in a field or in the attribute modifier.
    pub const BAD_VALUE: Self = Self(7 << 2);
    /// Subnet administration: insufficient resources (ERR_NO_RESOURCES).
    pub const NO_RESOURCES: Self = Self(0x100);
    /// Subnet administration: the request conflicts with existing state (ERR_REQ_INVALID).
    pub const REQUEST_INVALID: Self = Self(0x200);
    /// Subnet administration: no matching record (ERR_NO_RECORDS).
    pub const NO_RECORDS: Self = Self(0x300);
    /// Subnet administration: Get matched more than one record (ERR_TOO_MANY_RECORDS).
    pub const TOO_MANY_RECORDS: Self = Self(0x400);
    /// Subnet administration: the GID does not belong to the requester's port (ERR_REQ_INVALID_GID).
    pub const INVALID_GID: Self = Self(0x500);
    /// Subnet administration: the component mask omits a required component (ERR_REQ_INSUFFICIENT_COMPONENTS).
    pub const INSUFFICIENT_COMPONENTS: Self = Self(0x600);
}

macro_rules! codes {
    ($($name:ident, $int:ty);*) => {$(
        impl FieldValue for $name {
            fn from_bits(bits: u128) -> Self {
                Self(<$int>::from_bits(bits))
            }

            fn to_bits(self) -> u128 {
                self.0.into()
            }
        }
    )*};
}
codes!(Class, u8; Method, u8; MadStatus, u16);

attribute! {
    /// Common MAD header, 24 bytes.
    pub struct Header[24] {
        /// MAD base version, always [`Self::BASE_VERSION`].
        base_version: u8 = 0, 8;
        class: Class = 8, 8;
        class_version: u8 = 16, 8;
        /// Method of the MAD; bit 7 marks a response.
        method: Method = 24, 8;
        /// Status. In directed-route SMPs, bit 15 is the direction bit; see [`super::smp`].
        status: MadStatus = 32, 16;
        class_specific: u16 = 48, 16;
        /// Transaction ID, chosen by the requester and copied to the response.
        tid: u64 = 64, 64;
        attribute: u16 = 128, 16;
        /// Attribute modifier; its meaning depends on the attribute.
        modifier: u32 = 160, 32;
    }
}

impl Header {
    /// MAD base version that this crate supports.
    pub const BASE_VERSION: u8 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first request that ib_mthca sends at registration (mthca interface, section 8.2): a LID-routed Get(PortInfo)
    /// for port 1.
    #[test]
    fn header_round_trips() {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&[1, 1, 1, 1]);
        bytes[8..16].copy_from_slice(&[0, 0, 0, 1, 0x12, 0x34, 0x56, 0x78]);
        bytes[17] = 0x15;
        bytes[23] = 1;
        let header = Header {
            base_version: 1,
            class: Class::SUBN,
            class_version: 1,
            method: Method::GET,
            tid: 0x1_1234_5678,
            attribute: 0x15,
            modifier: 1,
            ..Header::default()
        };
        assert_eq!(Header::parse(&bytes), header);
        assert_eq!(header.emit(), bytes);
    }

    #[test]
    fn get_and_set_share_response_method() {
        assert_eq!(Method::GET.response(), Method::GET_RESP);
        assert_eq!(Method::SET.response(), Method::GET_RESP);
        assert_eq!(Method::GET_TABLE.response(), Method(0x92));
        assert_eq!(Method::DELETE.response(), Method(0x95));
    }
}
