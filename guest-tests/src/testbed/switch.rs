//! The Ethernet network between guests: a learning switch for NICs that send their frames over UDP.
//!
//! Tests use this network for out-of-band communication, and soft-RoCE runs on it. The switch has a socket for each
//! guest, and the receiving socket identifies the sender.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::net::UdpSocket;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const LARGEST: usize = 65_536;
/// Length of an Ethernet header, which contains two addresses and a type.
const HEADER: usize = 14;
/// Maximum number of learned addresses. Frames to unknown addresses are flooded.
const MOST_ADDRESSES: usize = 1024;

type Mac = [u8; 6];

/// A switch that stops on drop.
#[derive(Debug)]
pub(super) struct Switch {
    ends: Vec<SocketAddr>,
    _tasks: JoinSet<()>,
}

impl Switch {
    /// Starts a switch for the NICs that receive frames at the UDP addresses `nics`.
    ///
    /// # Errors
    /// Fails if no ports are free.
    pub(super) async fn start(nics: &[SocketAddr]) -> Result<Self> {
        let mut sockets = Vec::new();
        for &nic in nics {
            let socket =
                UdpSocket::bind((nic.ip(), 0)).await.context("cannot bind a UDP port for the switch")?;
            socket
                .connect(nic)
                .await
                .with_context(|| format!("cannot connect the switch to the NIC at {nic}"))?;
            sockets.push(Arc::new(socket));
        }
        let ends = sockets.iter().map(|socket| socket.local_addr()).collect::<Result<_, _>>()?;
        let table = Arc::new(Mutex::new(Table::default()));
        let mut tasks = JoinSet::new();
        for port in 0..sockets.len() {
            tasks.spawn(forward(port, sockets.clone(), Arc::clone(&table)));
        }
        Ok(Self { ends, _tasks: tasks })
    }

    /// Returns the UDP addresses that the NICs must send their frames to, in the order of the NICs.
    pub(super) fn ends(&self) -> &[SocketAddr] {
        &self.ends
    }
}

async fn forward(port: usize, sockets: Vec<Arc<UdpSocket>>, table: Arc<Mutex<Table>>) {
    let mut frame = vec![0; LARGEST];
    let Some(socket) = sockets.get(port).cloned() else { return };
    loop {
        // While a NIC is down, each frame sent to it causes an error in a later receive on its socket.
        let Ok(len) = socket.recv(&mut frame).await else { continue };
        let Some(frame) = frame.get(..len) else { continue };
        let target = table.lock().await.target(port, frame);
        for (other, socket) in sockets.iter().enumerate() {
            if target.reaches(port, other) {
                // A frame that does not fit into the socket buffer is lost, as on any network.
                let _ = socket.try_send(frame);
            }
        }
    }
}

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Drop,
    Port(usize),
    Flood,
}

impl Target {
    fn reaches(self, from: usize, port: usize) -> bool {
        match self {
            Self::Drop => false,
            Self::Port(target) => target == port,
            Self::Flood => from != port,
        }
    }
}

/// Learned MAC addresses and their ports.
#[derive(Debug, Default)]
struct Table(HashMap<Mac, usize>);

impl Table {
    /// Learns a received frame's source address and returns its destination.
    fn target(&mut self, from: usize, frame: &[u8]) -> Target {
        let addresses = frame.get(..HEADER).and_then(|header| header.first_chunk::<12>());
        let Some(&[d0, d1, d2, d3, d4, d5, source @ ..]) = addresses else { return Target::Drop };
        let to_group = |address: &Mac| address[0] & 1 != 0;
        if !to_group(&source) && (self.0.contains_key(&source) || self.0.len() < MOST_ADDRESSES) {
            self.0.insert(source, from);
        }
        let destination = [d0, d1, d2, d3, d4, d5];
        match self.0.get(&destination) {
            Some(&port) if port == from => Target::Drop,
            Some(&port) => Target::Port(port),
            None => Target::Flood,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: u8, from: u8) -> Vec<u8> {
        [[to, 0, 0, 0, 0, 1], [from, 0, 0, 0, 0, 1]].concat().into_iter().chain([8, 0, 1, 2, 3]).collect()
    }

    #[test]
    fn switch_learns_addresses_and_floods_unknown_ones() {
        let mut table = Table::default();
        assert_eq!(table.target(0, &frame(4, 2)), Target::Flood);
        assert_eq!(table.target(1, &frame(2, 4)), Target::Port(0));
        assert_eq!(table.target(0, &frame(4, 2)), Target::Port(1));
        assert_eq!(table.target(2, &frame(0xff, 6)), Target::Flood);
        assert_eq!(table.target(0, &frame(2, 2)), Target::Drop);
        assert_eq!(table.target(0, &[0; 13]), Target::Drop);
        // The source is a group address, which the switch does not learn.
        table.target(2, &frame(2, 5));
        assert_eq!(table.target(0, &frame(5, 2)), Target::Flood);
    }

    #[tokio::test]
    async fn frame_is_not_returned_to_its_sender() {
        let mut nics = Vec::new();
        for _ in 0..3 {
            nics.push(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses: Vec<_> = nics.iter().map(|nic| nic.local_addr().unwrap()).collect();
        let switch = Switch::start(&addresses).await.unwrap();
        for (nic, end) in nics.iter().zip(switch.ends()) {
            nic.connect(end).await.unwrap();
        }
        nics[0].send(&frame(4, 2)).await.unwrap();
        let mut buffer = [0; 64];
        for nic in &nics[1..] {
            let len = nic.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..len], frame(4, 2));
        }
        nics[1].send(&frame(2, 4)).await.unwrap();
        let len = nics[0].recv(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..len], frame(2, 4));
        assert!(nics[2].try_recv(&mut buffer).is_err());
    }
}
