//! Who is where on the fabric, in the words of a path, an address vector or headers that software made.
//!
//! # Spec
//! mthca interface, sections 6.5, 6.8 and 8.3.

use protocol::hca::mthca::path::Address;
use protocol::ids::{Lid, Qpn};
use protocol::roce::Shell;

use crate::frontend::address::{Addresses, Class, Peer};

/// The way to a destination. A packet to one that does not exist is sent all the same, and lost.
pub fn path(addresses: &Addresses, to: &Address, local: Qpn, remote: Qpn) -> Shell {
    lid_path(addresses, to.dlid, local, remote)
}

/// Likewise of a management datagram.
pub fn management(addresses: &Addresses, dlid: Lid, local: Qpn, remote: Qpn) -> Shell {
    lid_path(addresses, dlid, local, remote)
}

fn lid_path(addresses: &Addresses, lid: Lid, local: Qpn, remote: Qpn) -> Shell {
    let peer = Peer { lid, ..Peer::default() };
    addresses.path(&peer, &Class::default(), local, remote).unwrap_or_else(|| addresses.nowhere())
}
