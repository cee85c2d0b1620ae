//! Reference measurement: UDP over loopback between two threads on this machine, without hcad.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt;

use crate::processors;

/// Size of the socket receive buffer in bytes, the same as in hcad.
const BUFFER_LEN: usize = 8 << 20;
/// Once the sender has stopped, the receiver stops if no datagram arrives for this long.
const SILENCE: Duration = Duration::from_millis(200);

/// Sends datagrams of `datagram_len` bytes as fast as possible for `time`. Returns the receive rate in bytes per
/// second.
pub(crate) fn bandwidth(datagram_len: usize, gso: bool, time: Duration) -> io::Result<f64> {
    let (sender, receiver) = connected()?;
    let [near_cpu, far_cpu] = processors::two()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let state = UdpSocketState::new((&sender).into())?;
        let segments = if gso { state.max_gso_segments().min(65_507 / datagram_len).max(1) } else { 1 };
        let contents = vec![0x5a; datagram_len * segments];
        let transmit = Transmit {
            destination: receiver.local_addr()?,
            ecn: None,
            contents: &contents,
            segment_size: (segments > 1).then_some(datagram_len),
            src_ip: None,
        };
        let counting = scope.spawn(|| {
            processors::bind(&far_cpu)?;
            count(&receiver, &stop)
        });
        let sent = processors::bound(&near_cpu, || -> io::Result<()> {
            let begun = Instant::now();
            while begun.elapsed() < time {
                match state.try_send((&sender).into(), &transmit) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                    other => other?,
                }
            }
            Ok(())
        });
        // The scope waits for the other thread, so set `stop` before checking for errors.
        stop.store(true, Ordering::Relaxed);
        sent??;
        counting.join().expect("the counting thread does not panic")
    })
}

/// Returns the sorted one-way latencies of `len`-byte datagrams. Each latency is half the round-trip time between two
/// blocking threads.
pub(crate) fn latencies(len: usize, rounds: usize) -> io::Result<Vec<Duration>> {
    let (near, far) = connected()?;
    let [near_cpu, far_cpu] = processors::two()?;
    let mut taken = thread::scope(|scope| -> io::Result<Vec<Duration>> {
        scope.spawn(move || -> io::Result<()> {
            processors::bind(&far_cpu)?;
            let mut buffer = vec![0; len];
            for _ in 0..rounds {
                far.recv(&mut buffer)?;
                far.send(&buffer)?;
            }
            Ok(())
        });
        let ping = scope.spawn(move || {
            processors::bind(&near_cpu)?;
            let mut buffer = vec![0x5a; len];
            let round_trip = |_| {
                let begun = Instant::now();
                near.send(&buffer)?;
                near.recv(&mut buffer)?;
                Ok(begun.elapsed() / 2)
            };
            (0..rounds).map(round_trip).collect()
        });
        ping.join().expect("the thread does not panic")
    })?;
    taken.sort_unstable();
    Ok(taken)
}

fn connected() -> io::Result<(UdpSocket, UdpSocket)> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (a, b) = (UdpSocket::bind(any)?, UdpSocket::bind(any)?);
    a.connect(b.local_addr()?)?;
    b.connect(a.local_addr()?)?;
    for socket in [&a, &b] {
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        if sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_LEN).is_err() {
            sockopt::set_socket_recv_buffer_size(socket, BUFFER_LEN)?;
        }
    }
    Ok((a, b))
}

/// Receives until `stop` is set and datagrams stop arriving. Returns the rate in bytes per second between the first and
/// the last datagram.
fn count(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<f64> {
    let state = UdpSocketState::new(socket.into())?;
    let mut storage = vec![0; BATCH_SIZE << 16];
    let mut meta = [RecvMeta::default(); BATCH_SIZE];
    let (mut bytes, mut first, mut last) = (0, None, Instant::now());
    loop {
        let mut slots: Vec<_> = storage.chunks_exact_mut(1 << 16).map(IoSliceMut::new).collect();
        match state.recv(socket.into(), &mut slots, &mut meta) {
            Ok(count) => {
                last = Instant::now();
                first.get_or_insert(last);
                bytes += meta[..count].iter().map(|meta| meta.len).sum::<usize>();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) && last.elapsed() > SILENCE {
                    break;
                }
                thread::yield_now();
            }
            Err(error) => return Err(error),
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "the rate need not be exact")]
    Ok(bytes as f64 / last.duration_since(first.unwrap_or(last)).as_secs_f64())
}
