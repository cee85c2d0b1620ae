//! Peers of a device's fabric, asked for through the control socket.

use std::net::SocketAddr;

use thiserror::Error;
use tokio::sync::oneshot;

use crate::config::UdpPeer;
use crate::fabric::Fabric;
use crate::fabric::switch::{PeerError, PeerRow};

/// What a device's thread is asked about its peers, with the way back.
#[derive(Debug)]
pub enum PeerCall {
    /// Which there are and what they did.
    List(oneshot::Sender<Result<Vec<PeerRow>, PeersError>>),
    /// One more.
    Add(UdpPeer, oneshot::Sender<Result<(), PeersError>>),
    /// One less.
    Remove(SocketAddr, oneshot::Sender<Result<(), PeersError>>),
}

/// Why nothing was answered or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeersError {
    /// Who is on a network is not for the device to say.
    #[error("the device's fabric has no list of peers")]
    NoList,
    /// See there.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

impl PeerCall {
    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::List(answer) => answer.is_closed(),
            Self::Add(_, answer) => answer.is_closed(),
            Self::Remove(_, answer) => answer.is_closed(),
        }
    }

    /// Answers. An asker that is gone wants no answer.
    pub fn answer(self, fabric: &mut impl Fabric) {
        let switch = fabric.switch().ok_or(PeersError::NoList);
        match self {
            Self::List(answer) => {
                let _ = answer.send(switch.map(|switch| switch.rows()));
            }
            Self::Add(peer, answer) => {
                let _ = answer.send(switch.and_then(|switch| Ok(switch.add(peer)?)));
            }
            Self::Remove(addr, answer) => {
                let _ = answer.send(switch.and_then(|switch| Ok(switch.remove(addr)?)));
            }
        }
    }
}
