//! Subnet management packets (SMPs), LID-routed and directed-route.
//!
//! # Spec
//! IBTA volume 1, sections 14.2.1 and 14.2.2.

use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref};

use super::{Header, Mad};
use crate::ids::Lid;

/// Length in bytes of a subnet management attribute.
pub const DATA_LEN: usize = 64;

/// Maximum number of hops in a directed route.
pub const MAX_HOPS: u8 = 63;

/// Subnet management attribute IDs.
pub mod attribute {
    #![expect(missing_docs, reason = "the names are the specification's (section 14.2.5)")]

    pub const NODE_DESCRIPTION: u16 = 0x10;
    pub const NODE_INFO: u16 = 0x11;
    pub const SWITCH_INFO: u16 = 0x12;
    pub const GUID_INFO: u16 = 0x14;
    pub const PORT_INFO: u16 = 0x15;
    pub const PKEY_TABLE: u16 = 0x16;
    pub const SL_TO_VL: u16 = 0x17;
    pub const VL_ARBITRATION: u16 = 0x18;
    pub const LINEAR_FORWARDING_TABLE: u16 = 0x19;
    pub const MULTICAST_FORWARDING_TABLE: u16 = 0x1b;
    pub const SM_INFO: u16 = 0x20;
}

/// Layout of an SMP. In LID-routed SMPs, the directed-route fields are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Smp {
    header: [u8; 24],
    m_key: U64,
    dr_slid: U16,
    dr_dlid: U16,
    reserved: [u8; 28],
    pub data: [u8; DATA_LEN],
    initial_path: [u8; 64],
    return_path: [u8; 64],
}

const _: () = assert!(std::mem::offset_of!(Smp, data) == 64 && size_of::<Smp>() == super::MAD_LEN);

/// Directed-route fields of an SMP.
///
/// # Spec
/// IBTA volume 1, section 14.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectedRoute {
    /// Direction bit (D), set in the response.
    pub returning: bool,
    /// Current position in the path.
    pub hop_pointer: u8,
    /// Number of hops in the path.
    pub hop_count: u8,
    /// LID where the directed part of the route begins (DrSLID), or the permissive LID.
    pub source: Lid,
    /// LID where the directed part of the route ends (DrDLID), or the permissive LID.
    pub destination: Lid,
}

const RETURNING: u16 = 1 << 15;

impl Smp {
    /// Interprets a MAD as an SMP.
    pub fn of(mad: &Mad) -> &Self {
        transmute_ref!(mad)
    }

    /// Mutable version of [`Smp::of`].
    pub fn of_mut(mad: &mut Mad) -> &mut Self {
        transmute_mut!(mad)
    }

    /// Parses the common header.
    pub fn header(&self) -> Header {
        Header::parse(&self.header)
    }

    /// Replaces the common header.
    pub fn set_header(&mut self, header: &Header) {
        self.header = header.emit();
    }

    /// Returns the packet's M_Key.
    pub fn m_key(&self) -> u64 {
        self.m_key.get()
    }

    /// Sets the packet's M_Key.
    pub fn set_m_key(&mut self, key: u64) {
        self.m_key = key.into();
    }

    /// Returns the directed-route fields. They are meaningful only in directed-route SMPs.
    pub fn route(&self) -> DirectedRoute {
        let header = self.header();
        let [hop_pointer, hop_count] = header.class_specific.to_be_bytes();
        DirectedRoute {
            returning: header.status.0 & RETURNING != 0,
            hop_pointer,
            hop_count,
            source: Lid::new(self.dr_slid.get()),
            destination: Lid::new(self.dr_dlid.get()),
        }
    }

    /// Sets the hop pointer.
    pub fn set_hop_pointer(&mut self, hop: u8) {
        self.header[6] = hop;
    }

    /// Sets the direction bit.
    pub fn set_returning(&mut self, returning: bool) {
        self.header[4] = self.header[4] & 0x7f | u8::from(returning) << 7;
    }

    /// Returns the egress port at hop `hop` of the initial path. Returns 0 beyond the end of the path.
    pub fn initial_port(&self, hop: u8) -> u8 {
        self.initial_path.get(usize::from(hop)).copied().unwrap_or(0)
    }

    /// Returns the ingress port that was recorded at hop `hop`. Returns 0 beyond the end of the path.
    pub fn return_port(&self, hop: u8) -> u8 {
        self.return_path.get(usize::from(hop)).copied().unwrap_or(0)
    }

    /// Records the ingress port at hop `hop`. Has no effect beyond the end of the path.
    pub fn set_return_port(&mut self, hop: u8, port: u8) {
        if let Some(at) = self.return_path.get_mut(usize::from(hop)) {
            *at = port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA volume 1, figure 172 (table 116): D is the high bit of the status. The hop pointer and the hop count follow
    /// the status. The paths are at bytes 128 and 192.
    #[test]
    fn directed_route_matches_ibta_figure_172() {
        let mut mad = [0; 256];
        mad[4..8].copy_from_slice(&[0x80, 0x0c, 2, 3]);
        mad[32..36].copy_from_slice(&[0xff, 0xff, 0x12, 0x34]);
        mad[24..32].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        mad[128 + 2] = 7;
        mad[192 + 3] = 9;
        let smp = Smp::of(&mad);
        let route = DirectedRoute {
            returning: true,
            hop_pointer: 2,
            hop_count: 3,
            source: Lid::new(0xffff),
            destination: Lid::new(0x1234),
        };
        assert_eq!(smp.route(), route);
        assert_eq!((smp.m_key(), smp.initial_port(2), smp.return_port(3)), (0x0102_0304_0506_0708, 7, 9));
        assert_eq!((smp.initial_port(64), smp.return_port(255)), (0, 0));

        let smp = Smp::of_mut(&mut mad);
        smp.set_returning(false);
        smp.set_hop_pointer(4);
        smp.set_return_port(4, 5);
        smp.set_return_port(64, 5);
        assert_eq!((&mad[4..8], mad[196]), (&[0, 0x0c, 4, 3][..], 5));
    }
}
