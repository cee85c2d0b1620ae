//! QP paths and address vectors for datagrams. Both contain an [`Address`].
//!
//! # Spec
//! mthca interface, sections 6.5 (path) and 6.8 (address vector).

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::describe::{Hex, describe};
use crate::ids::{Lid, Pdn};

/// Length in bytes of a path or an address vector.
pub const LEN: usize = 32;

/// Address of an InfiniBand destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Address {
    /// Whether packets have a GRH.
    pub grh: bool,
    /// Low seven bits of the source LID.
    pub path_bits: u8,
    pub dlid: Lid,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: u8,
    /// Hop limit of the GRH.
    pub hop_limit: u8,
    /// Service level, four bits.
    pub service_level: u8,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Flow label of the GRH, 20 bits.
    pub flow_label: u32,
    pub dgid: [u8; 16],
}

/// Path of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Path {
    /// Physical port, starting at 1.
    pub port: u8,
    /// P_Key index, seven bits.
    pub pkey_index: u8,
    /// RNR retry count; 7 means no limit.
    pub rnr_retry: u8,
    /// ACK timeout code, five bits.
    pub ack_timeout: u8,
    /// Static rate. The device ignores it, but QUERY_QP reports it.
    pub static_rate: u8,
    /// Address of the peer.
    pub address: Address,
}

/// Address vector for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AddressVector {
    /// Physical port, starting at 1.
    pub port: u8,
    /// Protection domain of the address handle.
    pub pd: Pdn,
    /// Address of the receiver.
    pub address: Address,
}

describe!(Address {
    grh,
    path_bits,
    dlid,
    sgid_index,
    hop_limit,
    service_level,
    traffic_class as Hex,
    flow_label as Hex,
    dgid,
});
describe!(Path { port, pkey_index, rnr_retry, ack_timeout, static_rate, address });

impl Path {
    /// Parses the path from its bytes.
    pub fn parse(path: &[u8; LEN]) -> Self {
        let raw: Raw = transmute!(*path);
        let head = PathHead::from_bits(raw.head);
        Self {
            port: head.port(),
            pkey_index: head.pkey_index(),
            rnr_retry: raw.rnr >> 5,
            ack_timeout: raw.timeout >> 3,
            static_rate: raw.rate,
            address: raw.address(),
        }
    }

    /// Returns the path in wire format. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; LEN] {
        let head = PathHead::new().with_port(self.port & 0x3).with_pkey_index(self.pkey_index & 0x7f);
        transmute!(Raw {
            rnr: self.rnr_retry << 5,
            timeout: self.ack_timeout << 3,
            rate: self.static_rate,
            ..Raw::new(head.into_bits(), &self.address)
        })
    }
}

impl AddressVector {
    /// Parses an address vector. Ignores the rate byte, because libmthca can write a rate that exceeds its field.
    pub fn parse(vector: &[u8; LEN]) -> Self {
        let raw: Raw = transmute!(*vector);
        let [port, pd @ ..] = raw.head.to_bytes();
        let [a, b, c] = pd;
        Self { port, pd: Pdn::new(u32::from_be_bytes([0, a, b, c])), address: raw.address() }
    }

    /// Returns the address vector in wire format, as a driver builds it.
    pub fn emit(&self) -> [u8; LEN] {
        let head = u32::from(self.port) << 24 | self.pd.get() & 0xff_ffff;
        transmute!(Raw::new(head.into(), &self.address))
    }
}

impl Raw {
    fn new(head: U32, address: &Address) -> Self {
        let grh = if address.grh { GRH } else { 0 };
        let class = Class::new()
            .with_service_level(address.service_level & 0xf)
            .with_traffic_class(address.traffic_class)
            .with_flow_label(address.flow_label & 0xf_ffff);
        Self {
            head,
            rnr: 0,
            source: address.path_bits & !GRH | grh,
            dlid: address.dlid.get().into(),
            timeout: 0,
            sgid_index: address.sgid_index,
            rate: 0,
            hop_limit: address.hop_limit,
            class,
            dgid: address.dgid,
        }
    }

    fn address(&self) -> Address {
        Address {
            grh: self.source & GRH != 0,
            path_bits: self.source & !GRH,
            dlid: Lid::new(self.dlid.get()),
            sgid_index: self.sgid_index,
            hop_limit: self.hop_limit,
            service_level: self.class.service_level(),
            traffic_class: self.class.traffic_class(),
            flow_label: self.class.flow_label(),
            dgid: self.dgid,
        }
    }
}

/// GRH bit of `Raw::source`.
const GRH: u8 = 1 << 7;

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
struct PathHead {
    #[bits(7)]
    pkey_index: u8,
    #[bits(17)]
    __: u32,
    #[bits(2)]
    port: u8,
    #[bits(6)]
    __: u8,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Class {
    #[bits(20)]
    flow_label: u32,
    traffic_class: u8,
    #[bits(4)]
    service_level: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    /// In a path, the port and P_Key index. In an address vector, the port and protection domain.
    head: U32,
    /// RNR retry count, in a path only.
    rnr: u8,
    source: u8,
    dlid: U16,
    /// ACK timeout, in a path only.
    timeout: u8,
    sgid_index: u8,
    rate: u8,
    hop_limit: u8,
    class: Class,
    dgid: [u8; 16],
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address {
        grh: true,
        path_bits: 3,
        dlid: Lid::new(0x1234),
        sgid_index: 5,
        hop_limit: 0x40,
        service_level: 6,
        traffic_class: 0x78,
        flow_label: 0x9_abcd,
        dgid: *b"GID of the peer!",
    };

    #[test]
    fn path_fields_are_at_specified_offsets() {
        #[rustfmt::skip]
        let bytes = [
            0x01, 0x00, 0x00, 0x02, 0xe0, 0x83, 0x12, 0x34, 0x70, 0x05, 0x03, 0x40, 0x67, 0x89, 0xab, 0xcd,
            b'G', b'I', b'D', b' ', b'o', b'f', b' ', b't', b'h', b'e', b' ', b'p', b'e', b'e', b'r', b'!',
        ];
        let path =
            Path { port: 1, pkey_index: 2, rnr_retry: 7, ack_timeout: 14, static_rate: 3, address: ADDRESS };
        assert_eq!(Path::parse(&bytes), path);
        assert_eq!(path.emit(), bytes);
    }

    #[test]
    fn address_vector_begins_with_port_and_pd() {
        let vector = AddressVector { port: 1, pd: Pdn::new(0x2345), address: ADDRESS };
        let mut bytes = vector.emit();
        assert_eq!(bytes[..12], [0x01, 0x00, 0x23, 0x45, 0, 0x83, 0x12, 0x34, 0, 0x05, 0, 0x40]);
        bytes[0x0a] = 0xff;
        assert_eq!(AddressVector::parse(&bytes), vector);
    }
}
