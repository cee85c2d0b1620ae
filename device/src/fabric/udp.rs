//! The `udp` fabric: one UDP datagram per Ethernet frame, the whole frame as payload. QEMU's `-netdev dgram` speaks the
//! same.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use protocol::ids::MacAddr;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt;

use super::switch::{Route, Switch};
use super::{Fabric, FabricStats, MAX_FRAME_LEN, RxBatch, Sent, TxBatch};
use crate::config::UdpPeer;

/// Bytes of socket buffer we ask for, each way: some windows of several QPs. The kernel counts about twice the payload.
const SOCKET_BUFFER_LEN: usize = 8 << 20;
/// Bytes one segmented send may have: the longest UDP datagram over IPv4, less than which IPv6 allows too.
const MAX_SEND_LEN: usize = 65_507;
/// An Ethernet header.
const MIN_FRAME_LEN: usize = 14;

/// See the module.
#[derive(Debug)]
pub struct UdpFabric {
    socket: UdpSocket,
    state: UdpSocketState,
    switch: Switch,
    /// Frames that one send may carry; 1 once a run was refused.
    max_run: usize,
    stats: FabricStats,
    meta: [RecvMeta; RxBatch::SLOTS],
}

impl UdpFabric {
    /// Receives on `bind`, sends to `peers`.
    ///
    /// # Errors
    /// The socket cannot be opened or bound.
    pub fn bind(bind: SocketAddr, peers: &[UdpPeer]) -> io::Result<Self> {
        let socket = UdpSocket::bind(bind)?;
        let state = UdpSocketState::new((&socket).into())?;
        allow_fragments(&socket)?;
        let max_run = state.max_gso_segments();
        let (receive, send) = enlarge_buffers(&socket)?;
        tracing::info!(
            bind = %socket.local_addr()?,
            peers = peers.len(),
            receive_buffer = receive,
            send_buffer = send,
            gso_segments = max_run,
            "udp fabric"
        );
        if receive < SOCKET_BUFFER_LEN / 4 {
            tracing::warn!(
                receive_buffer = receive,
                "bursts may be lost and sent again: raise net.core.rmem_max, or run with CAP_NET_ADMIN"
            );
        }
        Ok(Self {
            socket,
            state,
            switch: Switch::new(peers),
            max_run,
            stats: FabricStats::default(),
            meta: [RecvMeta::default(); RxBatch::SLOTS],
        })
    }

    /// Where this fabric receives; tells the port when the configured one is 0.
    ///
    /// # Errors
    /// The socket does not know.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends one datagram or a run of equal ones.
    fn transmit(
        &mut self,
        destination: SocketAddr,
        contents: &[u8],
        segment: usize,
        frames: usize,
    ) -> Transmitted {
        let transmit = Transmit {
            destination,
            ecn: None,
            contents,
            segment_size: (frames > 1).then_some(segment),
            src_ip: None,
        };
        self.stats.tx_calls += 1;
        match self.state.try_send((&self.socket).into(), &transmit) {
            Ok(()) => self.stats.tx_frames += frames as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Transmitted::Blocked,
            Err(error) if frames > 1 && refuses_runs(&error) => {
                // The usual reasons: frames above the path's MTU, which go alone, in fragments; an interface that
                // cannot segment. Neither passes with time.
                self.max_run = 1;
                tracing::warn!(%destination, %error, segment, "runs of frames are refused: one by one from now on");
                return Transmitted::RunRefused;
            }
            Err(error) => {
                self.stats.tx_refused += frames as u64;
                // A peer that is not up yet answers with ICMP, which the next send reports: no news.
                if error.kind() != io::ErrorKind::ConnectionRefused {
                    crate::limited!(warn, %destination, %error, frames, "the network refuses frames");
                }
            }
        }
        Transmitted::Done
    }
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transmitted {
    /// Taken by the network, or refused for good and counted.
    Done,
    /// The socket buffer is full.
    Blocked,
    /// Nothing was sent; the frames may go one by one.
    RunRefused,
}

impl Fabric for UdpFabric {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        while let Some(first) = batch.front() {
            let run = match self.switch.route(first.dst) {
                Route::Peer(addr) => {
                    let run = batch.run(self.max_run, MAX_SEND_LEN);
                    match self.transmit(addr, batch.bytes(run.bytes.clone()), run.segment, run.frames) {
                        Transmitted::Done => run,
                        Transmitted::Blocked => return Sent::Blocked,
                        Transmitted::RunRefused => continue,
                    }
                }
                Route::Flood => {
                    let run = batch.run(1, MAX_SEND_LEN);
                    if self.switch.peers().is_empty() {
                        self.stats.tx_no_peer += 1;
                    }
                    for index in 0..self.switch.peers().len() {
                        let addr = self.switch.peers()[index];
                        // A full buffer loses a flooded frame for the remaining peers: trying again would repeat it
                        // to the first ones.
                        let sent = self.transmit(addr, batch.bytes(run.bytes.clone()), run.segment, 1);
                        if sent == Transmitted::Blocked {
                            self.stats.tx_refused += 1;
                        }
                    }
                    run
                }
            };
            batch.advance(run.frames);
        }
        Sent::All
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        batch.frames.clear();
        let mut slots: [IoSliceMut<'_>; RxBatch::SLOTS] = {
            let mut chunks = batch.storage.chunks_exact_mut(RxBatch::SLOT_LEN);
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()))
        };
        let count = match self.state.recv((&self.socket).into(), &mut slots, &mut self.meta) {
            Ok(count) => count,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for (slot, meta) in self.meta[..count].iter().enumerate() {
            let base = slot * RxBatch::SLOT_LEN;
            let mut offset = 0;
            while offset < meta.len {
                let end = (offset + meta.stride.max(1)).min(meta.len);
                let range = base + offset..base + end;
                offset = end;
                let frame = &batch.storage[range.clone()];
                if !(MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&frame.len()) {
                    self.stats.rx_bad_length += 1;
                    continue;
                }
                if !self.switch.learn(source(frame), meta.addr) {
                    self.stats.rx_stranger += 1;
                    crate::limited!(warn, from = %meta.addr, "frames of a stranger are dropped");
                    continue;
                }
                self.stats.rx_frames += 1;
                batch.frames.push(range);
            }
        }
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn stats(&self) -> &FabricStats {
        &self.stats
    }
}

fn source(frame: &[u8]) -> MacAddr {
    let mut mac = [0; 6];
    mac.copy_from_slice(&frame[6..12]);
    MacAddr(mac)
}

/// Whether the network refuses a run of frames for being one. The frames alone may still go.
fn refuses_runs(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MSGSIZE | Errno::INVAL | Errno::IO | Errno::OPNOTSUPP | Errno::NOPROTOOPT)
    )
}

/// Lets the network cut datagrams: a RoCE packet of the largest MTU is longer than an ordinary Ethernet frame, and its
/// sender does not know what carries it. `UdpSocketState` forbids it, as QUIC wants. (Over IPv6 it stays forbidden: no
/// safe interface takes IPV6_DONTFRAG back.)
fn allow_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::DONT)?;
    }
    Ok(())
}

/// Asks for large buffers, beyond the system's limit if we may, and returns what we got (receive, send).
fn enlarge_buffers(socket: &UdpSocket) -> io::Result<(usize, usize)> {
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_LEN).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_LEN)?;
    }
    sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_LEN)?;
    Ok((sockopt::socket_recv_buffer_size(socket)?, sockopt::socket_send_buffer_size(socket)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn localhost() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    /// Fabrics that are all peers of each other.
    fn mesh<const N: usize>() -> [UdpFabric; N] {
        // The ports must be known before the first fabric is made, so that each can be told of the others.
        let held: [UdpSocket; N] = std::array::from_fn(|_| UdpSocket::bind(localhost()).unwrap());
        let addrs: Vec<_> = held.iter().map(|socket| socket.local_addr().unwrap()).collect();
        drop(held);
        std::array::from_fn(|own| {
            let others = addrs.iter().enumerate().filter(|(n, _)| *n != own);
            let peers: Vec<_> = others.map(|(_, addr)| UdpPeer { addr: *addr, mac: None }).collect();
            UdpFabric::bind(addrs[own], &peers).unwrap()
        })
    }

    fn push(batch: &mut TxBatch, dst: MacAddr, src: MacAddr, len: usize, tag: u8) {
        let buffer = batch.buffer();
        buffer.extend(dst.0);
        buffer.extend(src.0);
        buffer.extend(std::iter::repeat_n(tag, len - 12));
        batch.commit(dst);
    }

    /// Frames that are already in the socket: loopback delivers before `send` returns.
    fn received(fabric: &mut UdpFabric) -> Vec<Vec<u8>> {
        let (mut batch, mut all) = (RxBatch::new(), Vec::new());
        loop {
            fabric.recv(&mut batch).unwrap();
            if batch.is_empty() {
                return all;
            }
            all.extend(batch.iter().map(<[u8]>::to_vec));
        }
    }

    #[test]
    fn a_burst_arrives_whole_and_in_order() {
        let [mut a, mut b] = mesh();
        let mut batch = TxBatch::default();
        let lengths: Vec<usize> = std::iter::once(4174).chain([4158; 20]).chain([77, 62]).collect();
        for (tag, len) in lengths.iter().enumerate() {
            push(&mut batch, B, A, *len, u8::try_from(tag).unwrap());
        }
        assert_eq!(a.send(&mut batch), Sent::All);
        assert!(batch.is_empty());

        let frames = received(&mut b);
        assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        assert!(
            frames.iter().enumerate().all(|(tag, frame)| frame[12..].iter().all(|b| usize::from(*b) == tag))
        );
        assert_eq!(a.stats().tx_frames, 23);
        assert!(a.stats().tx_calls < 23 || a.max_run == 1, "equal frames share a system call");
    }

    #[test]
    fn a_run_the_kernel_refuses_goes_frame_by_frame() {
        let [mut a, mut b] = mesh();
        // More segments than any kernel takes in one send.
        a.max_run = 300;
        let mut batch = TxBatch::default();
        for _ in 0..300 {
            push(&mut batch, B, A, 62, 1);
        }
        assert_eq!(a.send(&mut batch), Sent::All);
        assert_eq!(received(&mut b).len(), 300);
        assert_eq!((a.max_run, a.stats().tx_frames, a.stats().tx_refused), (1, 300, 0));
    }

    #[test]
    fn three_fabrics_make_a_learning_switch() {
        let [mut a, mut b, mut c] = mesh();
        let mut batch = TxBatch::default();
        push(&mut batch, B, A, 64, 1);
        a.send(&mut batch);
        assert_eq!(
            (received(&mut b).len(), received(&mut c).len()),
            (1, 1),
            "an unknown destination is flooded"
        );

        push(&mut batch, A, B, 64, 2);
        b.send(&mut batch);
        assert_eq!((received(&mut a).len(), received(&mut c).len()), (1, 0), "A was learned from its frame");

        push(&mut batch, MacAddr::BROADCAST, A, 64, 3);
        a.send(&mut batch);
        assert_eq!((received(&mut b).len(), received(&mut c).len()), (1, 1));
    }

    #[test]
    fn frames_of_strangers_and_of_odd_length_are_counted_and_dropped() {
        let [a, mut b] = mesh();
        let stranger = UdpSocket::bind(localhost()).unwrap();
        stranger.send_to(&[0; 64], b.local_addr().unwrap()).unwrap();
        a.socket.send_to(&[0; 13], b.local_addr().unwrap()).unwrap();
        a.socket.send_to(&[0; MAX_FRAME_LEN + 1], b.local_addr().unwrap()).unwrap();
        assert_eq!(received(&mut b).len(), 0);
        assert_eq!((b.stats().rx_stranger, b.stats().rx_bad_length), (1, 2));
    }

    #[test]
    fn a_peer_that_is_not_up_costs_frames_and_nothing_else() {
        let [mut a, b] = mesh();
        let addr = b.local_addr().unwrap();
        drop(b);
        let mut batch = TxBatch::default();
        for tag in 0..3 {
            push(&mut batch, B, A, 64, tag);
            assert_eq!(a.send(&mut batch), Sent::All);
        }
        assert_eq!(received(&mut a).len(), 0);

        let mut b = UdpFabric::bind(addr, &[UdpPeer { addr: a.local_addr().unwrap(), mac: None }]).unwrap();
        push(&mut batch, B, A, 64, 9);
        push(&mut batch, B, A, 64, 9);
        a.send(&mut batch);
        assert!(!received(&mut b).is_empty());
    }
}
