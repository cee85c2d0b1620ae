//! Transport interface receive (TIR) objects.
//!
//! # Spec
//! mlx5 interface, section 16.3.

use super::code::codes;
use crate::ids::{Rqn, Rqtn, Tirn, TransportDomain};
use crate::layout;

codes! {
    /// How a TIR selects the receive queue for a frame.
    pub enum Dispatch(u8) {
        /// All frames go to one RQ.
        Direct = 0 "direct",
        /// The hash selects an RQ from an RQT.
        Indirect = 1 "indirect",
    }
}

codes! {
    /// Hash function of a TIR.
    pub enum HashFunction(u8) {
        /// The hash is 0 for every frame.
        None = 0 "none",
        /// XOR of the bytes of the selected fields.
        Xor = 1 "xor",
        /// Toeplitz hash of the selected fields.
        Toeplitz = 2 "toeplitz",
    }
}

layout! {
    /// Packet fields covered by a hash.
    pub struct HashFields[4] big_endian {
        /// Whether the addresses are IPv6 addresses rather than IPv4 addresses.
        @0x00[31]  ipv6: bool,
        /// Whether the ports are UDP ports rather than TCP ports.
        @0x00[30]  udp: bool,
        /// Whether the security parameter index (SPI) of IPsec is selected.
        @0x00[4]   spi: bool,
        @0x00[3]   destination_port: bool,
        @0x00[2]   source_port: bool,
        @0x00[1]   destination_ip: bool,
        @0x00[0]   source_ip: bool,
    }
}

layout! {
    /// Context of a TIR, as it appears in commands.
    pub struct TirContext[0xf0] big_endian {
        /// A value of [`Dispatch`].
        @0x04[31:28]  dispatch: u8 => Dispatch::word,
        /// Large receive offload (LRO) settings. Not supported.
        @0x10         lro: u32 => Hex,
        /// RQ of a direct TIR.
        @0x1c[23:0]   rqn: Rqn,
        /// Whether both directions of a flow have the same hash.
        @0x20[31]     symmetric: bool,
        /// RQT of an indirect TIR.
        @0x20[23:0]   rqtn: Rqtn,
        /// A value of [`HashFunction`].
        @0x24[31:28]  hash_function: u8 => HashFunction::word,
        /// Whether the TIR receives multicast frames from its own transport domain.
        @0x24[25]     multicast_loopback: bool,
        /// Whether the TIR receives unicast frames from its own transport domain.
        @0x24[24]     unicast_loopback: bool,
        @0x24[23:0]   domain: TransportDomain,
        /// Key for the Toeplitz hash function.
        @0x28         key: [u8; 40] => _,
        /// Fields to hash in the outermost headers.
        @0x50         fields: HashFields,
    }
}

layout! {
    /// Input of the CREATE_TIR command.
    pub struct CreateTir[0x110] big_endian {
        @0x20  context: TirContext,
    }
}

/// Bits in MODIFY_TIR that select the fields to change.
pub mod tir_fields {
    /// Large receive offload settings.
    pub const LRO: u64 = 1 << 0;
    /// Hash function, key and fields.
    pub const HASH: u64 = 1 << 2;
    /// Multicast and unicast loopback bits.
    pub const LOOPBACK: u64 = 1 << 4;
}

layout! {
    /// Input of the MODIFY_TIR command.
    pub struct ModifyTir[0x110] big_endian {
        @0x08[23:0]  tirn: Tirn,
        /// Selects the fields to change; see [`tir_fields`].
        @0x10        fields: u64 => Hex,
        /// Context with the new field values.
        @0x20        context: TirContext,
    }
}

layout! {
    /// Output of the QUERY_TIR command.
    pub struct QueriedTir[0x110] big_endian {
        @0x20  context: TirContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The TIR in this test is the fourth one in golden trace eth-1, without its key.
    #[test]
    fn recorded_tir_context_round_trips() {
        let bytes =
            words(&[(0x24, 0x1000_0000), (0x40, 0x8000_0001), (0x44, 0x2000_0001), (0x70, 0xc000_000f)]);
        let CreateTir { context } = CreateTir::parse(&bytes);
        assert_eq!(Dispatch::from_code(context.dispatch), Some(Dispatch::Indirect));
        assert_eq!(HashFunction::from_code(context.hash_function), Some(HashFunction::Toeplitz));
        assert!(context.symmetric && !context.unicast_loopback);
        assert_eq!((context.rqtn, context.domain), (Rqtn::new(1), TransportDomain::new(1)));
        let HashFields { ipv6, udp, spi, destination_port, .. } = context.fields;
        assert_eq!((ipv6, udp, spi, destination_port), (true, true, false, true));
        assert_eq!(CreateTir { context }.emit(), bytes);
    }

    /// The names of the loopback bits in the driver's headers suggest that setting them blocks loopback (section 20,
    /// M-26).
    #[test]
    fn setting_loopback_bits_allows_loopback_frames() {
        let context = TirContext { unicast_loopback: true, ..TirContext::default() };
        assert_eq!(context.emit()[0x24], 1);
        let context = TirContext { multicast_loopback: true, ..TirContext::default() };
        assert_eq!(context.emit()[0x24], 2);
    }
}
