//! Control requests that query or change a device's peers.

use std::net::SocketAddr;

use card::fabric::Fabric;
use card::fabric::ring::MemberRow;
use card::fabric::switch::{PeerError, PeerRow, ResolvedPeer};
use card::fabric::udp::UdpPeer;
use card::frontend::Frontend;
use card::hca::Hca;
use control_api::peer::NO_PEER_LIST;
use protocol::ids::MacAddr;
use thiserror::Error;
use tokio::sync::oneshot;

/// A request to list or change a device's peers, with a channel for the reply. The device's thread executes it.
#[derive(Debug)]
pub enum PeerCall {
    /// Lists the peers and their counters.
    List(oneshot::Sender<Result<PeerList, PeersError>>),
    Add(UdpPeer, oneshot::Sender<Result<(), PeersError>>),
    Remove(SocketAddr, oneshot::Sender<Result<(), PeersError>>),
    /// Replaces the peers found through DNS. Returns an error for each peer that was left out.
    Resolve(Vec<ResolvedPeer>, oneshot::Sender<Result<Vec<PeerError>, PeersError>>),
}

/// The peers of a UDP fabric, or the members of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerList {
    Peers(Vec<PeerRow>),
    /// Members of a ring. They discover each other.
    Members(Vec<MemberRow>),
}

/// Why a peer request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeersError {
    /// The fabric has no list of peers.
    #[error("{NO_PEER_LIST}")]
    NoList,
    /// The fabric is a ring. Its members join and leave on their own.
    #[error("ring members cannot be added or removed; every device that uses the ring directory is a member")]
    Ring,
    /// The peer has this device's MAC.
    #[error("mac: {0} is this device's own MAC")]
    OwnMac(MacAddr),
    /// The fabric rejects the change.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

impl PeerCall {
    /// Returns whether the caller has stopped waiting.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::List(answer) => answer.is_closed(),
            Self::Add(_, answer) => answer.is_closed(),
            Self::Remove(_, answer) => answer.is_closed(),
            Self::Resolve(_, answer) => answer.is_closed(),
        }
    }

    /// Executes the request and sends the reply. If the request adds or removes a peer with a configured MAC, the
    /// peer's static neighbour entries are added to or removed from the port. Errors from `send` are ignored, since the
    /// caller may have disconnected.
    pub fn answer<F: Frontend>(self, hca: &mut Hca<F>, fabric: &mut impl Fabric) {
        let members = fabric.members();
        let switch = fabric.switch().ok_or(match members {
            Some(_) => PeersError::Ring,
            None => PeersError::NoList,
        });
        match self {
            Self::List(answer) => {
                let _ = answer.send(match members {
                    Some(members) => Ok(PeerList::Members(members)),
                    None => switch.map(|switch| PeerList::Peers(switch.rows())),
                });
            }
            Self::Add(peer, answer) => {
                let added = match peer.mac.filter(|mac| *mac == hca.mac()) {
                    Some(mac) => Err(PeersError::OwnMac(mac)),
                    None => switch.and_then(|switch| Ok(switch.add(peer)?)),
                };
                if let (Ok(()), Some(mac)) = (added, peer.mac) {
                    hca.add_static_neighbour(mac);
                }
                let _ = answer.send(added);
            }
            Self::Remove(addr, answer) => {
                let removed = switch.and_then(|switch| Ok(switch.remove(addr)?));
                if let Some(mac) = removed.ok().and_then(|peer| peer.mac) {
                    hca.remove_static_neighbour(mac);
                }
                let _ = answer.send(removed.map(drop));
            }
            // Only the fabric changes, because the port already has static neighbour entries for the MACs of peers
            // that are configured by host name.
            Self::Resolve(peers, answer) => {
                let _ = answer.send(switch.map(|switch| switch.set_resolved(&peers)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use card::fabric::udp::UdpFabric;
    use card::hca::testing::Stub;
    use card::identity::Identity;
    use card::net::DropReason;
    use protocol::ids::Lid;

    use super::*;

    fn mac(lid: u16) -> MacAddr {
        MacAddr::from_lid(Lid::new(lid))
    }

    /// Returns an ARP request (RFC 826) for 10.77.0.1, sent by 10.77.0.3 from `mac`.
    fn request_from(mac: MacAddr) -> Vec<u8> {
        let head = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
        [&[0xff; 6][..], &mac.0, &head, &mac.0, &[10, 77, 0, 3], &[0; 6], &[10, 77, 0, 1]].concat()
    }

    #[test]
    fn frames_spoofing_peer_ip_are_dropped() {
        let mut hca = Hca::new(Stub::default(), Identity::from_lid(Lid::new(1)), None);
        let mut fabric = UdpFabric::bind(([127, 0, 0, 1], 0).into(), mac(1), &[]).unwrap();
        let addr = SocketAddr::from(([127, 0, 0, 1], 9));
        let answered = |hca: &mut Hca<Stub>, from| {
            hca.outbound().clear();
            hca.handle_frame(&request_from(mac(from)));
            !hca.outbound().is_empty()
        };
        assert!(answered(&mut hca, 4));

        let mut add = |hca: &mut Hca<Stub>, lid| {
            let (answer, mut added) = oneshot::channel();
            PeerCall::Add(UdpPeer { mac: Some(mac(lid)), ..UdpPeer::at(addr) }, answer)
                .answer(hca, &mut fabric);
            added.try_recv().unwrap()
        };
        assert_eq!(add(&mut hca, 1), Err(PeersError::OwnMac(mac(1))));
        assert_eq!(add(&mut hca, 3), Ok(()));
        assert_eq!((answered(&mut hca, 3), answered(&mut hca, 4)), (true, false));
        assert_eq!(hca.port_stats().dropped(DropReason::ForeignSource), 1);

        let (answer, mut removed) = oneshot::channel();
        PeerCall::Remove(addr, answer).answer(&mut hca, &mut fabric);
        assert_eq!(removed.try_recv(), Ok(Ok(())));
        assert!(answered(&mut hca, 4));
    }
}
