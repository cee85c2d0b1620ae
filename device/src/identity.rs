//! Who an HCA is on the fabric, and who its peers are.

use std::net::Ipv4Addr;

use protocol::ids::{Lid, MacAddr};

/// Addresses of one port.
///
/// All three follow from a LID by the default rule, so that ports which know each other only by LID (InfiniBand-link
/// front-ends) and ports which know MAC and IP meet on one fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Ethernet address.
    pub mac: MacAddr,
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Local identifier.
    pub lid: Lid,
}

impl Identity {
    /// The default rule: LID n is MAC 02:00:00:00:hi:lo and IP 10.77.hi.lo.
    pub const fn from_lid(lid: Lid) -> Self {
        let [hi, lo] = lid.get().to_be_bytes();
        Self { mac: MacAddr::from_lid(lid), ipv4: Ipv4Addr::new(10, 77, hi, lo), lid }
    }

    /// The LID that the default rule gives to a MAC, zero for a MAC outside of the rule.
    pub const fn lid_of(mac: MacAddr) -> Lid {
        match mac.0 {
            [2, 0, 0, 0, hi, lo] => Lid::new(u16::from_be_bytes([hi, lo])),
            _ => Lid::new(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lid_rule_goes_both_ways() {
        let identity = Identity::from_lid(Lid::new(0x1fe));
        assert_eq!(identity.ipv4, Ipv4Addr::new(10, 77, 1, 0xfe));
        assert_eq!(Identity::lid_of(identity.mac), identity.lid);
        assert_eq!(Identity::lid_of(MacAddr([0x52, 0x54, 0, 0, 1, 2])), Lid::new(0));
    }
}
