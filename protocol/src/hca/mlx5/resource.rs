//! Commands that take or return only an object number, and multicast attach and detach.
//!
//! # Spec
//! mlx5 interface, sections 5.2 and 5.4.

use crate::ids::{CounterSet, Cqn, Eqn, MkeyIndex, Pdn, Qpn, Srqn, TransportDomain, UarIndex, XrcDomain};
use crate::ids::{Rqn, Rqtn, Sqn, Tirn, Tisn};
use crate::layout;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident { $field:ident: $type:ident[$bits:literal] })*) => {$(
        layout! {
            $(#[$doc])*
            pub struct $name[16] big_endian {
                @0x08[$bits:0]  $field: $type,
            }
        }
    )*};
}

numbers! {
    /// Protection domain number, 24 bits.
    PdNumber { pd: Pdn[23] }
    /// UAR page number, 24 bits.
    UarNumber { uar: UarIndex[23] }
    /// XRC domain number, 24 bits.
    XrcDomainNumber { xrcd: XrcDomain[23] }
    /// Transport domain number, 24 bits.
    TransportDomainNumber { domain: TransportDomain[23] }
    /// Q counter set number, 8 bits. Set 0 does not exist.
    CounterSetNumber { set: CounterSet[7] }
    /// EQ number, 8 bits.
    EqNumber { eqn: Eqn[7] }
    /// CQ number, 24 bits.
    CqNumber { cqn: Cqn[23] }
    /// Memory key index, 24 bits.
    MkeyNumber { index: MkeyIndex[23] }
    /// QP number, 24 bits.
    QpNumber { qpn: Qpn[23] }
    /// RMP, XRC SRQ or SRQ number, 24 bits. All three share one number space.
    SrqNumber { srqn: Srqn[23] }

    /// TIR number, 24 bits.
    TirNumber { tirn: Tirn[23] }
    /// TIS number, 24 bits.
    TisNumber { tisn: Tisn[23] }
    /// RQT number, 24 bits.
    RqtNumber { rqtn: Rqtn[23] }
    /// RQ number, 24 bits. RQs, SQs and QPs share one number space.
    RqNumber { rqn: Rqn[23] }
    /// SQ number, 24 bits. RQs, SQs and QPs share one number space.
    SqNumber { sqn: Sqn[23] }
}

layout! {
    /// Input of ATTACH_TO_MCG and DETACH_FROM_MCG.
    pub struct Multicast[32] big_endian {
        /// QP that joins or leaves the group.
        @0x08[23:0]  qpn: Qpn,
        /// GID of the group.
        @0x10        gid: [u8; 16],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_numbers_ignore_reserved_bits() {
        let bytes = [0xff; 16];
        assert_eq!(PdNumber::parse(&bytes).pd, Pdn::new(0xff_ffff));
        assert_eq!(EqNumber::parse(&bytes).eqn, Eqn::new(0xff));
        assert_eq!(CounterSetNumber { set: CounterSet::new(3) }.emit()[8..12], [0, 0, 0, 3]);
        assert_eq!(QpNumber { qpn: Qpn::new(0x01_0203) }.emit()[8..12], [0, 1, 2, 3]);
    }

    #[test]
    fn multicast_input_contains_qpn_and_gid() {
        let gid = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let multicast = Multicast { qpn: Qpn::new(0x85), gid };
        let bytes = multicast.emit();
        assert_eq!((bytes[11], &bytes[16..]), (0x85, &gid[..]));
        assert_eq!(Multicast::parse(&bytes), multicast);
    }
}
