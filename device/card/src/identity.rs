//! Addresses of an HCA and its peers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use protocol::ids::{Lid, MacAddr};
use protocol::roce::IpAddrs;

/// Addresses of one port.
///
/// The LID rule, which applies by default, derives the MAC and the IPv4 address from the LID. Ports that
/// address each other by LID (on front-ends with InfiniBand links) can therefore share a fabric with ports that
/// use MAC and IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub mac: MacAddr,
    pub ipv4: Ipv4Addr,
    /// IPv6 address in addition to [`Identity::link_local`].
    pub ipv6: Option<Ipv6Addr>,
    pub lid: Lid,
    /// Whether the port is reached over IPv6 when addressed by MAC or LID.
    pub prefer_ipv6: bool,
}

impl Identity {
    /// Applies the LID rule: LID n has MAC 02:00:00:00:hi:lo and IP address 10.77.hi.lo, where hi and lo are the bytes
    /// of n.
    pub const fn from_lid(lid: Lid) -> Self {
        let [hi, lo] = lid.get().to_be_bytes();
        Self {
            mac: MacAddr::from_lid(lid),
            ipv4: Ipv4Addr::new(10, 77, hi, lo),
            ipv6: None,
            lid,
            prefer_ipv6: false,
        }
    }

    /// Returns the LID of a MAC according to the LID rule, or zero if the rule does not apply.
    pub const fn lid_of(mac: MacAddr) -> Lid {
        match mac.0 {
            [2, 0, 0, 0, hi, lo] => Lid::new(u16::from_be_bytes([hi, lo])),
            _ => Lid::new(0),
        }
    }

    /// Returns the port that has the given MAC according to the LID rule, if any.
    pub fn of_mac(mac: MacAddr) -> Option<Self> {
        Some(Self::lid_of(mac)).filter(|lid| lid.get() != 0).map(Self::from_lid)
    }

    /// Returns the link-local IPv6 address, which every port has. Like the default GID of a RoCE port, it is
    /// derived from the MAC (RFC 4291, appendix A).
    pub const fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac.0;
        let word = u16::from_be_bytes;
        Ipv6Addr::new(0xfe80, 0, 0, 0, word([a ^ 2, b]), word([c, 0xff]), word([0xfe, d]), word([e, f]))
    }

    /// Returns the port's GUID, which is the EUI-64 of its MAC.
    pub const fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac.0;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns the port's only GID, which consists of the default prefix and the GUID. It equals
    /// [`Identity::link_local`].
    pub const fn gid(&self) -> [u8; 16] {
        self.link_local().octets()
    }

    /// Returns the MAC that a link-local address is derived from, if any.
    pub fn mac_of_link_local(ip: Ipv6Addr) -> Option<MacAddr> {
        match ip.octets() {
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => {
                Some(MacAddr([a ^ 2, b, c, d, e, f])).filter(|mac| !mac.is_multicast())
            }
            _ => None,
        }
    }

    /// Returns all IP addresses of the port.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        [self.ipv4.into(), self.link_local().into()].into_iter().chain(self.ipv6.map(IpAddr::from))
    }

    /// Returns whether an address belongs to this port.
    pub fn owns(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip == self.ipv4,
            IpAddr::V6(ip) => self.ipv6 == Some(ip) || ip == self.link_local(),
        }
    }

    /// Returns the IP address used when the port is addressed by MAC or LID.
    pub fn ip(&self) -> IpAddr {
        if self.prefer_ipv6 { self.own_ipv6().into() } else { self.ipv4.into() }
    }

    /// Returns the configured IPv6 address, or else the link-local address.
    pub fn own_ipv6(&self) -> Ipv6Addr {
        self.ipv6.unwrap_or(self.link_local())
    }

    /// Returns the source and destination addresses for packets to `dst`. A link-local destination gets a
    /// link-local source.
    pub fn towards(&self, dst: IpAddr) -> IpAddrs {
        match dst {
            IpAddr::V4(dst) => IpAddrs::V4 { src: self.ipv4, dst },
            IpAddr::V6(dst) if dst.is_unicast_link_local() => IpAddrs::V6 { src: self.link_local(), dst },
            IpAddr::V6(dst) => IpAddrs::V6 { src: self.own_ipv6(), dst },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lid_rule_converts_between_lid_and_addresses() {
        let identity = Identity::from_lid(Lid::new(0x1fe));
        assert_eq!(identity.ipv4, Ipv4Addr::new(10, 77, 1, 0xfe));
        assert_eq!(Identity::lid_of(identity.mac), identity.lid);
        assert_eq!(Identity::lid_of(MacAddr([0x52, 0x54, 0, 0, 1, 2])), Lid::new(0));
    }

    #[test]
    fn link_local_address_is_derived_from_mac() {
        // The example in RFC 4291, appendix A: 34-56-78-9A-BC-DE becomes the interface identifier
        // 36-56-78-FF-FE-9A-BC-DE.
        let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        let identity = Identity { mac, ..Identity::from_lid(Lid::new(1)) };
        let ip: Ipv6Addr = "fe80::3656:78ff:fe9a:bcde".parse().unwrap();
        assert_eq!(identity.link_local(), ip);
        assert_eq!(Identity::mac_of_link_local(ip), Some(mac));
        assert_eq!(Identity::mac_of_link_local("fe80::1".parse().unwrap()), None);
        assert_eq!(Identity::mac_of_link_local("2001:db8::3656:78ff:fe9a:bcde".parse().unwrap()), None);
    }

    #[test]
    fn link_local_destination_gets_link_local_source() {
        let global: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let identity = Identity { ipv6: Some(global), ..Identity::from_lid(Lid::new(1)) };
        let source = |dst: &str| match identity.towards(dst.parse().unwrap()) {
            IpAddrs::V6 { src, .. } => src,
            other => panic!("{other:?}"),
        };
        assert_eq!(source("fe80::2"), identity.link_local());
        assert_eq!(source("2001:db8::2"), global);
        assert!(identity.owns(global.into()) && identity.owns(identity.link_local().into()));
        assert!(!identity.owns("fe80::2".parse().unwrap()));
    }
}
