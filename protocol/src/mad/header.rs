//! The header all management datagrams begin with.
//!
//! # Spec
//! IBTA volume 1, section 13.4.

use super::field::{FieldValue, attribute};

/// Management class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Class(pub u8);

impl Class {
    /// Subnet management, LID-routed.
    pub const SUBN: Self = Self(0x01);
    /// Subnet administration.
    pub const SUBN_ADM: Self = Self(0x03);
    /// Performance management.
    pub const PERF: Self = Self(0x04);
    /// Subnet management, directed route.
    pub const SUBN_DIRECTED: Self = Self(0x81);

    /// Whether it is subnet management, which has QP0 to itself.
    pub const fn is_smp(self) -> bool {
        matches!(self, Self::SUBN | Self::SUBN_DIRECTED)
    }
}

/// What to do with an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Method(pub u8);

impl Method {
    /// Get.
    pub const GET: Self = Self(0x01);
    /// Set.
    pub const SET: Self = Self(0x02);
    /// Send.
    pub const SEND: Self = Self(0x03);
    /// Trap.
    pub const TRAP: Self = Self(0x05);
    /// TrapRepress.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// GetTable, of subnet administration.
    pub const GET_TABLE: Self = Self(0x12);
    /// Delete, of subnet administration.
    pub const DELETE: Self = Self(0x15);
    /// Answer to Get and to Set.
    pub const GET_RESP: Self = Self(0x81);

    const RESPONSE: u8 = 0x80;

    /// Whether it is an answer.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }

    /// Whether it wants an answer (section 13.4.5).
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self, Self::SEND | Self::TRAP | Self::TRAP_REPRESS)
    }

    /// The method of the answer: of Get and Set the same one.
    #[must_use]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self(method) => Self(method | Self::RESPONSE),
        }
    }
}

/// How a request ended. The upper byte belongs to the class.
///
/// # Spec
/// IBTA volume 1, section 13.4.7; subnet administration 15.2.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadStatus(pub u16);

impl MadStatus {
    /// No error.
    pub const OK: Self = Self(0);
    /// Base or class version not supported.
    pub const BAD_VERSION: Self = Self(1 << 2);
    /// Method not supported.
    pub const BAD_METHOD: Self = Self(2 << 2);
    /// Method not supported for this attribute.
    pub const BAD_ATTRIBUTE: Self = Self(3 << 2);
    /// A field or the attribute modifier has a value that cannot be.
    pub const BAD_VALUE: Self = Self(7 << 2);
    /// Subnet administration: no room for what is asked.
    pub const NO_RESOURCES: Self = Self(0x100);
    /// Subnet administration: the request contradicts what is.
    pub const REQUEST_INVALID: Self = Self(0x200);
    /// Subnet administration: nothing matches.
    pub const NO_RECORDS: Self = Self(0x300);
    /// Subnet administration: Get found more than one record.
    pub const TOO_MANY_RECORDS: Self = Self(0x400);
    /// Subnet administration: the requester's GID is not one of its port.
    pub const INVALID_GID: Self = Self(0x500);
    /// Subnet administration: the component mask leaves out what is needed.
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
    /// The common header.
    pub struct Header[24] {
        /// Version of the format of management datagrams: 1.
        base_version: u8 = 0, 8;
        /// Class.
        class: Class = 8, 8;
        /// Version of the class's format.
        class_version: u8 = 16, 8;
        /// Method.
        method: Method = 24, 8;
        /// Status. The upper bit is the direction in SMPs of a directed route, see [`super::smp`].
        status: MadStatus = 32, 16;
        /// Whatever the class makes of it.
        class_specific: u16 = 48, 16;
        /// Chosen by the requester, returned in the answer.
        tid: u64 = 64, 64;
        /// Attribute.
        attribute: u16 = 128, 16;
        /// Which one of several, or how.
        modifier: u32 = 160, 32;
    }
}

impl Header {
    /// The version of the format.
    pub const BASE_VERSION: u8 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ib_mthca asks at registration (mthca interface, section 8.2): Get of PortInfo of port 1, LID-routed.
    #[test]
    fn the_header_reads_and_writes() {
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
    fn set_is_answered_as_get_is_and_others_by_their_own() {
        assert_eq!(Method::GET.response(), Method::GET_RESP);
        assert_eq!(Method::SET.response(), Method::GET_RESP);
        assert_eq!(Method::GET_TABLE.response(), Method(0x92));
        assert_eq!(Method::DELETE.response(), Method(0x95));
    }
}
