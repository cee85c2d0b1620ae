use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use card::fabric::impair::{Rule, RuleEntry};
use card::fabric::{FabricStats, TxBatch};
use card::hca::testing::Stub;
use card::identity::Identity;
use protocol::ids::Lid;
use tempfile::TempDir;
use vfio_user::Client;

use super::*;
use crate::control::call;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A fabric that accepts frames only while its socket buffer has space.
struct Narrow {
    gate: UnixStream,
    sent: mpsc::Sender<usize>,
    stats: FabricStats,
}

impl Fabric for Narrow {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        if self.gate.write(&[0]).is_err() {
            return Sent::Blocked;
        }
        self.sent.send(batch.len()).unwrap();
        batch.clear();
        Sent::All
    }

    fn recv(&mut self, _: &mut RxBatch) -> io::Result<()> {
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.gate.as_fd()
    }

    fn stats(&mut self) -> FabricStats {
        self.stats
    }
}

/// Encodes a REGION_WRITE message that requests no reply.
fn write(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    let mut message =
        [[0_u16, 10].map(u16::to_ne_bytes).concat(), (32 + len).to_ne_bytes().to_vec()].concat();
    message.extend_from_slice(&[0x10_u32, 0].map(u32::to_ne_bytes).concat());
    message.extend_from_slice(&offset.to_ne_bytes());
    message.extend_from_slice(&[region, len].map(u32::to_ne_bytes).concat());
    message.extend_from_slice(data);
    message
}

/// Encodes a VERSION message.
fn version() -> Vec<u8> {
    [[0, 0, 1, 0, 20, 0, 0, 0].as_slice(), &[0; 8], &[0; 4]].concat()
}

/// Negotiates the version and makes the stub send a frame.
fn send_a_frame(client: &mut UnixStream) {
    client.write_all(&version()).unwrap();
    let mut header = [0; 16];
    client.read_exact(&mut header).unwrap();
    let len = u32::from_ne_bytes(header[4..8].try_into().unwrap());
    client.read_exact(&mut vec![0; len as usize - header.len()]).unwrap();
    client.write_all(&write(7, 4, &[6, 0])).unwrap();
    client.write_all(&write(0, 8, &[1])).unwrap();
}

#[test]
fn blocked_frame_is_sent_when_fabric_unblocks() {
    let (gate, mut other_end) = UnixStream::pair().unwrap();
    gate.set_nonblocking(true).unwrap();
    let mut filled = 0;
    while let Ok(len) = (&gate).write(&[0; 4096]) {
        filled += len;
    }
    let (sent, arrived) = mpsc::channel();
    let fabric = Narrow { gate, sent, stats: FabricStats::default() };

    // The stub's QPs send to LID 1, so the frame from an HCA with LID 9 goes to the fabric.
    let hca = Hca::new(Stub::default(), Identity::from_lid(Lid::new(9)), None);
    let (server, mut client) = UnixStream::pair().unwrap();
    let worker = Worker::new(Source::Client(server), hca, fabric).unwrap();
    let (_handle, mut mailbox) = call::mailbox().unwrap();
    let thread = std::thread::spawn(move || worker.run(&mut mailbox));

    send_a_frame(&mut client);
    // The worker replies at the end of a turn, after it has tried to send.
    let read =
        [[0_u16, 9].map(u16::to_ne_bytes).concat(), [32_u32, 0, 0].map(u32::to_ne_bytes).concat()].concat();
    let access =
        [0_u64.to_ne_bytes(), [7_u32, 4].map(u32::to_ne_bytes).concat().try_into().unwrap()].concat();
    client.write_all(&[read, access].concat()).unwrap();
    client.read_exact(&mut [0; 36]).unwrap();
    assert!(arrived.try_recv().is_err(), "nothing is sent while the fabric is full");

    other_end.read_exact(&mut vec![0; filled]).unwrap();
    assert_eq!(arrived.recv_timeout(TIMEOUT), Ok(1));
    drop(client);
    assert_eq!(thread.join().unwrap().unwrap(), Ended::ClientGone);
}

/// A fabric that blocks the first send and never reports that it is writable again.
struct Silent {
    never_ready: OwnedFd,
    was_full: bool,
    sent: mpsc::Sender<usize>,
}

impl Fabric for Silent {
    fn send(&mut self, batch: &mut TxBatch) -> Sent {
        if !std::mem::replace(&mut self.was_full, true) {
            return Sent::Blocked;
        }
        self.sent.send(batch.len()).unwrap();
        batch.clear();
        Sent::All
    }

    fn recv(&mut self, _: &mut RxBatch) -> io::Result<()> {
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.never_ready.as_fd()
    }

    fn retry_after(&self) -> Option<Duration> {
        Some(Duration::from_millis(10))
    }

    fn stats(&mut self) -> FabricStats {
        FabricStats::default()
    }
}

#[test]
fn blocked_frame_is_resent_after_timeout() {
    let (sent, arrived) = mpsc::channel();
    let never_ready = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let fabric = Silent { never_ready, was_full: false, sent };
    let hca = Hca::new(Stub::default(), Identity::from_lid(Lid::new(9)), None);
    let (server, mut client) = UnixStream::pair().unwrap();
    let worker = Worker::new(Source::Client(server), hca, fabric).unwrap();
    let (_handle, mut mailbox) = call::mailbox().unwrap();
    let thread = std::thread::spawn(move || worker.run(&mut mailbox));
    send_a_frame(&mut client);
    assert_eq!(arrived.recv_timeout(TIMEOUT), Ok(1));
    drop(client);
    assert_eq!(thread.join().unwrap().unwrap(), Ended::ClientGone);
}

#[test]
fn worker_wakes_at_deadline() {
    let (gate, _other_end) = UnixStream::pair().unwrap();
    let (sent, arrived) = mpsc::channel();
    let fabric = Narrow { gate, sent, stats: FabricStats::default() };
    let mut hca = Hca::new(Stub::default(), Identity::from_lid(Lid::new(9)), None);
    let late = r#"{"direction": "tx", "action": {"delay": {"us": 50000}}}"#;
    let late: RuleEntry = serde_json::from_str(late).unwrap();
    hca.impair(Rule::try_from(late).unwrap()).unwrap();
    let (server, mut client) = UnixStream::pair().unwrap();
    let worker = Worker::new(Source::Client(server), hca, fabric).unwrap();
    let (_handle, mut mailbox) = call::mailbox().unwrap();
    let thread = std::thread::spawn(move || worker.run(&mut mailbox));

    let start = std::time::Instant::now();
    send_a_frame(&mut client);
    assert_eq!(arrived.recv_timeout(TIMEOUT), Ok(1));
    assert!(start.elapsed() >= Duration::from_millis(50));
    drop(client);
    assert_eq!(thread.join().unwrap().unwrap(), Ended::ClientGone);
}

#[test]
fn stop_request_ends_sleeping_worker() {
    let (gate, _other_end) = UnixStream::pair().unwrap();
    let (sent, _arrived) = mpsc::channel();
    let fabric = Narrow { gate, sent, stats: FabricStats::default() };
    let hca = Hca::new(Stub::default(), Identity::from_lid(Lid::new(1)), None);
    let folder = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&folder.path().join("s")).unwrap();
    let worker = Worker::new(Source::Listener(listener.into()), hca, fabric).unwrap();
    let (handle, mut mailbox) = call::mailbox().unwrap();
    let thread = std::thread::spawn(move || worker.run(&mut mailbox));
    handle.stop();
    assert_eq!(thread.join().unwrap().unwrap(), Ended::Shutdown);
    assert!(!folder.path().join("s").exists());
}

/// Starts a worker whose second client waits for the first one for an hour. Returns the path of its socket.
fn listening(folder: &TempDir) -> (PathBuf, call::Handle, JoinHandle<io::Result<Ended>>) {
    let never_ready = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let fabric = Silent { never_ready, was_full: true, sent: mpsc::channel().0 };
    let hca = Hca::new(Stub::default(), Identity::from_lid(Lid::new(1)), None);
    let path = folder.path().join("s");
    let listener = Listener::bind(&path).unwrap();
    let mut worker = Worker::new(Source::Listener(listener.into()), hca, fabric).unwrap();
    worker.successor_timeout = Duration::from_secs(3600);
    let (handle, mut mailbox) = call::mailbox().unwrap();
    (path, handle, std::thread::spawn(move || worker.run(&mut mailbox)))
}

#[test]
fn early_client_waits_for_previous_client() {
    let folder = tempfile::tempdir().unwrap();
    let (path, handle, thread) = listening(&folder);
    let mut first = Client::new(&path).unwrap();
    for _ in 0..100 {
        let mut next = UnixStream::connect(&path).unwrap();
        next.write_all(&version()).unwrap();
        // The reply arrives only after the first client has disconnected.
        drop(first);
        next.set_read_timeout(Some(TIMEOUT)).unwrap();
        next.read_exact(&mut [0; 16]).unwrap();
        drop(next);
        first = Client::new(&path).unwrap();
        first.region_read(7, 0, &mut [0; 4]).unwrap();
    }
    handle.stop();
    assert_eq!(thread.join().unwrap().unwrap(), Ended::Shutdown);
}

/// On a busy host, the kernel may take a while to close the descriptors of a killed QEMU, so the next QEMU can connect
/// before the old connection is closed.
#[test]
fn next_client_waits_for_slow_disconnect() {
    let folder = tempfile::tempdir().unwrap();
    let (path, handle, thread) = listening(&folder);
    let mut first = Client::new(&path).unwrap();
    let mut next = UnixStream::connect(&path).unwrap();
    next.write_all(&version()).unwrap();
    // The turns that serve these reads also accept the next client.
    for _ in 0..2 {
        first.region_read(7, 0, &mut [0; 4]).unwrap();
    }
    drop(first);
    next.set_read_timeout(Some(TIMEOUT)).unwrap();
    next.read_exact(&mut [0; 16]).unwrap();
    handle.stop();
    assert_eq!(thread.join().unwrap().unwrap(), Ended::Shutdown);
}
