//! The `udp` fabric: each UDP datagram carries one Ethernet frame. This format is compatible with QEMU's
//! `-netdev dgram`.

mod agreement;
mod losses;
mod peer;
mod run_limit;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::Ipv6DontFrag};
use protocol::ids::MacAddr;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt;
use socket2::{MsgHdr, SockRef};

pub(super) use self::agreement::Agreement;
pub use self::agreement::Message;
use self::losses::Losses;
pub use self::peer::UdpPeer;
pub(super) use self::run_limit::RunLimit;
use super::padding::{MAX_PADDING, trim};
use super::rx_batch::RxFrame;
use super::switch::{AdmitError, Route, Switch};
use super::tx_batch::{Padding, Run};
use super::{Fabric, FabricStats, MAX_FRAME_LEN, MIN_FRAME_LEN, Origin, RxBatch, Sent, TxBatch};
use crate::log_line;

/// Size of the socket buffer requested for each direction, in bytes. This is enough for a few windows of several QPs,
/// although the kernel charges about twice the payload.
const SOCKET_BUFFER_LEN: usize = 8 << 20;
/// Maximum length of one segmented send in bytes: the longest UDP payload over IPv4. The limit over IPv6 is higher.
const MAX_SEND_LEN: usize = 65_507;
/// Size of a control message header: its length, level and type (linux/socket.h, `struct cmsghdr`).
const CONTROL_HEADER_LEN: usize = size_of::<usize>() + 2 * size_of::<i32>();

/// A UDP socket and its peers.
#[derive(Debug)]
pub struct UdpFabric {
    /// MAC address of the HCA.
    own: MacAddr,
    socket: UdpSocket,
    state: UdpSocketState,
    switch: Switch,
    /// Time zero of the clock used for rate limits and address ageing.
    started: Instant,
    /// [`Instant::elapsed`], unless a test stops the clock.
    elapsed: fn(&Instant) -> Duration,
    losses: Losses,
    /// Maximum number of frames per send. If the kernel rejects a run of frames, [`RunLimit`] limits the runs to the
    /// same peer.
    max_run: usize,
    /// Source of random numbers for padding requests, and the number of such requests sent so far.
    random: RandomState,
    requests: u64,
    stats: FabricStats,
    meta: [RecvMeta; RxBatch::SLOTS],
}

impl UdpFabric {
    /// Binds a socket to `bind` for the HCA with the MAC `own` and adds `peers`.
    ///
    /// # Errors
    /// Fails if the socket cannot be opened or bound, or if a peer is duplicated or has an address of a
    /// different IP version.
    pub fn bind(bind: SocketAddr, own: MacAddr, peers: &[UdpPeer]) -> io::Result<Self> {
        let socket = UdpSocket::bind(bind)?;
        let state = UdpSocketState::new((&socket).into())?;
        allow_fragments(&socket)?;
        let max_run = state.max_gso_segments();
        let (receive, send) = enlarge_buffers(&socket)?;
        let bound = socket.local_addr()?;
        log_line!(info, bind = %bound,
            peers = peers.len(),
            receive_buffer = receive,
            send_buffer = send,
            gso_segments = max_run,
            "listening for frames on the UDP fabric"
        );
        if receive < SOCKET_BUFFER_LEN / 4 {
            log_line!(
                warn,
                receive_buffer = receive,
                "UDP receive buffer is too small for bursts of frames, so frames may be lost; raise net.core.rmem_max or run hcad with CAP_NET_ADMIN"
            );
        }
        Ok(Self {
            own,
            socket,
            state,
            switch: Switch::new(bind.is_ipv4(), peers).map_err(io::Error::other)?.with_bound(bound),
            started: Instant::now(),
            elapsed: Instant::elapsed,
            losses: Losses::default(),
            max_run,
            random: RandomState::new(),
            requests: 0,
            stats: FabricStats::default(),
            meta: [RecvMeta::default(); RxBatch::SLOTS],
        })
    }

    /// Returns the local address, with the actual port if 0 was configured.
    ///
    /// # Errors
    /// Fails if the socket's address cannot be queried.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn now(&self) -> engine::Instant {
        engine::Instant::ZERO + (self.elapsed)(&self.started)
    }

    /// Counts the datagrams that the kernel has dropped since the last call.
    fn count_losses(&mut self, now: engine::Instant) {
        let lost = self.losses.poll(now, &self.socket);
        if lost > 0 {
            self.stats.rx_overflow += u64::from(lost);
            crate::limited!(
                warn,
                lost,
                "UDP socket receive buffer overflowed and frames were lost; raise net.core.rmem_max"
            );
        }
    }

    /// Sends the run of frames at the front of the batch to a peer.
    fn transmit_run(&mut self, peer: usize, batch: &TxBatch, run: &Run) -> Transmitted {
        let Some(destination) = self.switch.addr(peer) else { return Transmitted::Done };
        let result = match batch.contiguous(run) {
            Some(contents) => self.send_bytes(destination, contents, (run.frames > 1).then_some(run.segment)),
            None => self.send_padded(destination, batch, run),
        };
        self.handle_result(peer, destination, run, result)
    }

    /// Sends one of several copies of a frame. If the buffer is full, the copy is lost, since a retry would send the
    /// frame again to peers that already have it.
    fn transmit_now(&mut self, peer: usize, frame: &[u8]) {
        let Some(destination) = self.switch.addr(peer) else { return };
        let result = self.send_bytes(destination, frame, None);
        let run = Run { frames: 1, segment: frame.len(), padding: 0, is_paddable: false };
        if self.handle_result(peer, destination, &run, result) == Transmitted::Blocked {
            self.stats.tx_refused += 1;
        }
    }

    /// Sends one datagram, or several of `segment_size` bytes each.
    fn send_bytes(
        &self,
        destination: SocketAddr,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Sends a run with padding. This bypasses `quinn_udp`, which can only send contiguous frames.
    fn send_padded(&self, destination: SocketAddr, batch: &TxBatch, run: &Run) -> io::Result<()> {
        let slices = batch.padded(run, &[0; MAX_PADDING]);
        let segment = u16::try_from(run.segment).map_err(|_| io::ErrorKind::InvalidInput)?;
        let control = segment_size(segment);
        let destination = destination.into();
        let message = MsgHdr::new().with_addr(&destination).with_buffers(&slices).with_control(&control);
        loop {
            match SockRef::from(&self.socket).sendmsg(&message, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    /// Counts the frames of a run as sent or refused, and logs unexpected errors.
    fn handle_result(
        &mut self,
        peer: usize,
        destination: SocketAddr,
        run: &Run,
        result: io::Result<()>,
    ) -> Transmitted {
        let Run { frames, segment, .. } = *run;
        self.stats.tx_calls += 1;
        match result {
            Ok(()) => {
                self.stats.tx_frames += frames as u64;
                self.switch.count_sent(peer, frames);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Transmitted::Blocked,
            Err(error) if frames > 1 && refuses_runs(&error) => {
                // Either the frames exceed the path's MTU and can only be sent one by one, in fragments, or the route's
                // interface does not support segmentation. Both depend on the peer, and a route can change.
                let now = self.now();
                if let Some(limit) = self.switch.run_limit(peer)
                    && limit.refuse(now, refused_len(&error, segment))
                {
                    log_line!(warn, %destination, %error, segment, "UDP segmentation offload failed; sending frames to this peer one at a time and retrying every minute");
                }
                return Transmitted::RunRefused;
            }
            Err(error) => {
                self.stats.tx_refused += frames as u64;
                // After an ICMP error, the next send fails with that error. Such errors are expected while a peer is
                // down.
                if error.kind() != io::ErrorKind::ConnectionRefused {
                    crate::limited!(warn, %destination, %error, frames, "cannot send frames to the peer");
                }
            }
        }
        Transmitted::Done
    }

    /// Returns the run at the front of the batch for a peer, with padding if the peer accepts it. Requests the peer's
    /// agreement if padding would lengthen the run.
    fn run_for(&mut self, now: engine::Instant, peer: usize, batch: &TxBatch) -> Run {
        let limit = self.switch.run_limit(peer).copied().unwrap_or_default();
        let agreement = self.switch.agreement(peer);
        let padding = match &agreement {
            Some(agreement) if agreement.is_current(now) => Padding::Accepted,
            _ => Padding::Refused,
        };
        let is_limited = batch.front().is_some_and(|first| !limit.permits(now, first.len()));
        let mut run = batch.run(if is_limited { 1 } else { self.max_run }, MAX_SEND_LEN, padding);
        if run.frames > 1 && !limit.permits(now, run.segment) {
            run = batch.run(1, MAX_SEND_LEN, padding);
        }
        if run.is_paddable && agreement.is_some_and(|agreement| agreement.is_due(now)) {
            self.requests += 1;
            let number = self.random.hash_one(self.requests);
            if self.send_message(peer, Message::Request(number)).is_ok()
                && let Some(agreement) = self.switch.agreement(peer)
            {
                agreement.request(now, number);
            }
        }
        run
    }

    /// Sends a message about padding. The receiver counts it towards this HCA's rate limit and `PeerRow::rx_frames`.
    /// The fabric's counters of sent and received frames exclude it.
    fn send_message(&self, peer: usize, message: Message) -> io::Result<()> {
        let destination = self.switch.addr(peer).ok_or(io::ErrorKind::NotFound)?;
        self.send_bytes(destination, &message.frame(self.own), None)
    }

    fn handle_message(&mut self, now: engine::Instant, peer: usize, message: Message) {
        match message {
            // No state is kept, as padding is removed from every received frame. If the acceptance is lost, the peer
            // sends another request.
            Message::Request(number) => {
                let _ = self.send_message(peer, Message::Accept(number));
            }
            Message::Accept(number) => {
                if let Some(agreement) = self.switch.agreement(peer) {
                    agreement.accept(now, number);
                }
            }
        }
    }

    /// Forwards a peer's frame to the peers that the sender reaches only through this HCA. Returns whether
    /// the frame may also be for the HCA itself.
    fn pass_on(&mut self, now: engine::Instant, from: usize, frame: &[u8]) -> bool {
        let dst = address(frame, 0);
        if dst == self.own {
            return true;
        }
        match self.switch.route(now, dst) {
            Route::Own => true,
            Route::Absent => {
                self.stats.tx_no_peer += 1;
                false
            }
            Route::Peer(to) if !self.switch.passes(from, to) => true,
            Route::Peer(to) => {
                self.stats.passed_on += 1;
                self.transmit_now(to, frame);
                false
            }
            Route::Flood => {
                for to in 0..self.switch.peer_count() {
                    if self.switch.passes(from, to) {
                        self.stats.passed_on += 1;
                        self.transmit_now(to, frame);
                    }
                }
                true
            }
        }
    }
}

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transmitted {
    /// The frames were accepted by the network or rejected and counted.
    Done,
    /// The socket buffer is full.
    Blocked,
    /// The run was rejected, but its frames can be sent one by one.
    RunRefused,
}

impl Fabric for UdpFabric {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        let now = self.now();
        while let Some(first) = batch.front() {
            if let Some(source) = batch.chosen_mac(&first)
                && source != self.own
                && !self.switch.admit_own(now, source)
            {
                self.stats.tx_foreign_mac += 1;
                batch.advance(1);
                continue;
            }
            let frames = match self.switch.route(now, first.dst) {
                Route::Peer(peer) => {
                    let run = self.run_for(now, peer, batch);
                    match self.transmit_run(peer, batch, &run) {
                        Transmitted::Done => run.frames,
                        Transmitted::Blocked => {
                            batch.reclaim();
                            return Sent::Blocked;
                        }
                        Transmitted::RunRefused => continue,
                    }
                }
                // Drop a reply instead of flooding it, since it must reach only the requester.
                Route::Flood if first.origin == Origin::Answer => {
                    self.stats.tx_no_peer += 1;
                    1
                }
                Route::Own | Route::Absent => {
                    self.stats.tx_no_peer += 1;
                    1
                }
                Route::Flood => {
                    if self.switch.peer_count() == 0 {
                        self.stats.tx_no_peer += 1;
                    }
                    for peer in 0..self.switch.peer_count() {
                        self.transmit_now(peer, batch.slice(first.start..first.end));
                    }
                    1
                }
            };
            batch.advance(frames);
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
        let now = self.now();
        if self.losses.is_due(now) {
            self.count_losses(now);
        }
        // Consecutive requests from one peer get a single reply per call. This is enough, because a peer sends at most
        // one request per second.
        let mut answered = None;
        for slot in 0..count {
            let meta = self.meta[slot];
            let base = slot * RxBatch::SLOT_LEN;
            let mut offset = 0;
            while offset < meta.len {
                let end = (offset + meta.stride.max(1)).min(meta.len);
                let start = base + offset;
                let frame = &batch.storage[start..base + end];
                offset = end;
                if !(MIN_FRAME_LEN..=MAX_FRAME_LEN).contains(&frame.len()) {
                    self.stats.rx_bad_length += 1;
                    continue;
                }
                let frame = trim(frame);
                match self.switch.admit(now, address(frame, 6), meta.addr) {
                    Ok(peer) => {
                        if let Some(message) = Message::parse(frame) {
                            let is_request = matches!(message, Message::Request(_));
                            if !is_request || answered.replace(peer) != Some(peer) {
                                self.handle_message(now, peer, message);
                            }
                            continue;
                        }
                        self.stats.rx_frames += 1;
                        if !self.switch.may_pass(peer) || self.pass_on(now, peer, frame) {
                            batch.frames.push(RxFrame::whole(start..start + frame.len()));
                        }
                    }
                    Err(AdmitError::Stranger) => {
                        self.stats.rx_stranger += 1;
                        crate::limited!(warn, from = %meta.addr, "dropped frames from an address that is not in the peer list");
                    }
                    Err(AdmitError::ForeignMac) => {
                        self.stats.rx_foreign_mac += 1;
                        crate::limited!(warn, from = %meta.addr, mac = %address(frame, 6), "dropped a frame whose source MAC belongs to another peer");
                    }
                    Err(AdmitError::OverRate) => {
                        self.stats.rx_over_rate += 1;
                        crate::limited!(warn, from = %meta.addr, "dropped frames from a peer that exceeded its rate limit");
                    }
                }
            }
        }
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn stats(&mut self) -> FabricStats {
        self.count_losses(self.now());
        self.stats
    }

    fn switch(&mut self) -> Option<&mut Switch> {
        Some(&mut self.switch)
    }
}

fn address(frame: &[u8], at: usize) -> MacAddr {
    frame.get(at..).and_then(|bytes| bytes.first_chunk()).map_or_else(MacAddr::default, |mac| MacAddr(*mac))
}

/// Returns whether an error means that the kernel rejected a run of frames, which must then be sent one by one.
fn refuses_runs(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MSGSIZE | Errno::INVAL | Errno::IO | Errno::OPNOTSUPP | Errno::NOPROTOOPT)
    )
}

/// Returns the minimum length of the frames that the kernel would probably reject again in runs. If the cause is the
/// path's MTU, shorter frames can still be sent in runs.
fn refused_len(error: &io::Error, segment: usize) -> usize {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::MSGSIZE | Errno::INVAL) => segment,
        _ => 0,
    }
}

/// Returns the control message that makes the kernel split a send into datagrams of `segment` bytes (udp(7),
/// `UDP_SEGMENT`).
fn segment_size(segment: u16) -> [u8; CONTROL_HEADER_LEN + size_of::<usize>()] {
    let mut control = [0; CONTROL_HEADER_LEN + size_of::<usize>()];
    let len = CONTROL_HEADER_LEN + size_of::<u16>();
    let fields = [
        &len.to_ne_bytes()[..],
        &libc::SOL_UDP.to_ne_bytes(),
        &libc::UDP_SEGMENT.to_ne_bytes(),
        &segment.to_ne_bytes(),
    ];
    for (byte, value) in control.iter_mut().zip(fields.into_iter().flatten()) {
        *byte = *value;
    }
    control
}

/// Permits IP fragmentation. A RoCE packet with the largest path MTU is longer than an ordinary Ethernet frame, and the
/// guest driver cannot discover the MTU of this network. `UdpSocketState` forbids fragmentation, as QUIC requires.
fn allow_fragments(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        return Ok(sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::DONT)?);
    }
    sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::DONT)?;
    Ok(setsockopt(socket, Ipv6DontFrag, &false)?)
}

/// Requests large buffers and returns their actual sizes (receive, send). If the process has permission, the receive
/// buffer may exceed the system's limit.
fn enlarge_buffers(socket: &UdpSocket) -> io::Result<(usize, usize)> {
    if sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_LEN).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_LEN)?;
    }
    sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_LEN)?;
    Ok((sockopt::socket_recv_buffer_size(socket)?, sockopt::socket_send_buffer_size(socket)?))
}
