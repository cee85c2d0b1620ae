//! Who can have sent a frame.

use std::net::IpAddr;

use protocol::ids::MacAddr;

use super::Port;
use crate::net::DropReason;

impl Port {
    /// Whether a frame from `mac` can come from `ip`. Frames of this HCA to itself pass no fabric and are not asked.
    pub(super) fn check_source(&self, mac: MacAddr, ip: IpAddr) -> Result<(), DropReason> {
        if !is_a_stations(ip) || self.identity.owns(ip) {
            return Err(DropReason::BadSource);
        }
        if self.neighbours.has_fixed() && self.neighbours.is_anothers(ip, mac) {
            return Err(DropReason::ForeignSource);
        }
        Ok(())
    }
}

/// Whether a station can have an address and send from it over a wire: RFC 1122, section 3.2.1.3, and RFC 4291, sections
/// 2.5.2, 2.5.3 and 2.7.
fn is_a_stations(ip: IpAddr) -> bool {
    let of_no_network = matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 0 || ip.is_broadcast());
    !(of_no_network || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}
