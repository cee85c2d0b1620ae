//! Transport interface send objects (TIS).
//!
//! # Spec
//! mlx5 interface, sections 5.6 and 16.3.

use crate::ids::{Pdn, Tisn, TransportDomain};
use crate::layout;

layout! {
    /// Context of a TIS, as it appears in commands.
    pub struct TisContext[0xa0] big_endian {
        /// Priority of the frames. It has no effect on this device.
        @0x00[19:16]  priority: u8,
        /// Transport domain of the send queues.
        @0x24[23:0]   domain: TransportDomain,
        @0x2c[23:0]   pd: Pdn,
    }
}

layout! {
    /// Input of the CREATE_TIS command.
    pub struct CreateTis[0xc0] big_endian {
        @0x20  context: TisContext,
    }
}

layout! {
    /// Input of the MODIFY_TIS command.
    pub struct ModifyTis[0xc0] big_endian {
        @0x08[23:0]  tisn: Tisn,
        /// Selects fields to change; see [`PRIORITY`].
        @0x10        fields: u64 => Hex,
        /// Context with the new values.
        @0x20        context: TisContext,
    }
}

/// Bit that selects the priority in [`ModifyTis::fields`].
pub const PRIORITY: u64 = 1;

layout! {
    /// Output of the QUERY_TIS command.
    pub struct QueriedTis[0xc0] big_endian {
        @0x20  context: TisContext,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    /// The second TIS in golden trace eth-1.
    #[test]
    fn recorded_tis_context_round_trips() {
        let bytes = words(&[(0x20, 0x0002_0000), (0x44, 1)]);
        let CreateTis { context } = CreateTis::parse(&bytes);
        assert_eq!((context.priority, context.domain), (2, TransportDomain::new(1)));
        assert_eq!(CreateTis { context }.emit(), bytes);
    }
}
