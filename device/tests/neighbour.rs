//! Tests that sixteen hostile clients, each with its own device, do not disturb their neighbour: a pair of devices, in
//! the same process, that exchange data.
//!
//! The hostile clients run at the lowest priority, so that the test measures the load that they cause in the daemon,
//! not their own. The neighbour's rate and latency are always printed. They depend on the machine, so they are checked
//! only if HCAD_DAILY is set.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod long_lists;

use std::fs;
use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use self::long_lists::LongLists;
use crate::common::{Daemon, hcad};
use drivers::Bus;
use drivers::jingzhao::{Driver, Queues, cqc, data_unit, qpc, region, remote_unit, signalled};
use protocol::Psn;
use protocol::hca::e810::rdma::Operation;
use protocol::hca::e810::rdma::control::HostContext;
use protocol::hca::e810::rdma::hmc::FpmCommand;
use protocol::hca::e810::regs::Register;
use protocol::hca::jingzhao::mpt::MptFlags;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Iova, Lid, Qpn};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Resource, Rlimit, prlimit, setpriority_process};
use serde_json::{Value, json};
use vfio_user::Client;

/// IDs of the neighbour's devices. Higher IDs belong to the hostile clients.
const NEIGHBOUR: [u16; 2] = [1, 2];
const FIRST_HOSTILE: u16 = 3;
const HOSTILE: u16 = 16;
/// Index of the hostile client with long key lists.
const LONG_LISTS: u16 = HOSTILE - 1;

/// Maximum number of the daemon's memory mappings. Without attacks, the daemon has about 300. The kernel's default
/// limit, `vm.max_map_count`, is 65,530.
const MAX_MAPPINGS: usize = 1000;

/// The neighbour's minimum rate, relative to its rate without attacks. Checked only if HCAD_DAILY is set.
const MIN_RELATIVE_RATE: f64 = 0.8;
/// Maximum latency of a reply to the neighbour. Checked only if HCAD_DAILY is set.
const MAX_REPLY_LATENCY: Duration = Duration::from_millis(100);

/// Timeout for each wait. Only a bug makes a wait take this long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout for the attackers. It is longer because they run at the lowest priority and share the CPUs with other tests.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns the duration of the attacks. The measurement without attacks takes half as long.
fn attack_duration() -> Duration {
    Duration::from_secs(if is_daily() { 60 } else { 6 })
}

fn is_daily() -> bool {
    std::env::var_os("HCAD_DAILY").is_some_and(|daily| !daily.is_empty())
}

fn socket(folder: &Path, id: u16) -> PathBuf {
    folder.join(format!("{id}.sock"))
}

fn start() -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let device = |id: u16, frontend: Value, peer: u16| {
        json!({
            "id": id,
            "socket_path": socket(folder.path(), id),
            "frontend": frontend,
            "default_peer": { "id": peer },
            "fabric": { "local": {} },
        })
    };
    let neighbours = [(1, 2), (2, 1)].map(|(id, peer)| device(id, json!({ "jingzhao": {} }), peer));
    let hostile = (0..HOSTILE).map(|n| {
        let id = FIRST_HOSTILE + n;
        let frontend = match n {
            LONG_LISTS => json!({ "connectx": { "port": "infiniband" } }),
            _ if n % 2 == 0 => json!({ "e810": {} }),
            _ => json!({ "mthca": {} }),
        };
        let mut device = device(id, frontend, 1);
        if n % 2 == 0 {
            device.as_object_mut().unwrap().remove("default_peer");
        }
        device
    });
    let devices: Vec<Value> = neighbours.into_iter().chain(hostile).collect();
    let config = folder.path().join("hcad.json");
    fs::write(&config, json!({ "devices": devices }).to_string()).unwrap();
    let mut command = hcad();
    // Suppress informational log lines about hostile clients. The tests do not read these lines.
    command.arg("--config").arg(config).env("RUST_LOG", "warn,device::daemon=info");
    Daemon::ready(command, folder, PathBuf::new())
}

// The neighbour's guest memory.

const PAGE: u64 = 0x1000;
/// Bus addresses of the neighbour's queues and buffers.
const SQ: u64 = 0x20_0000;
const RQ: u64 = SQ + PAGE;
const CQ: u64 = SQ + 2 * PAGE;
const DATA: u64 = SQ + 3 * PAGE;
const SLOTS: u32 = 32;
const LOG_CQES: u8 = 7;
const DATA_KEY: u32 = 4;
const QUEUES: Queues = Queues { qpn: 5, page: 1, sq: SQ, rq: RQ };
const WRITE: u8 = 0x08;
const LEN: u32 = 0x1000;
const WINDOW: u32 = 16;

/// One of the neighbour's VMMs. It measures the latency of replies.
struct Vmm {
    client: Client,
    memory: OwnedFd,
    longest: Duration,
}

impl Vmm {
    fn attach(path: &Path) -> Self {
        let mut client = Client::new(path).unwrap();
        let memory = memfd_create("neighbour", MemfdFlags::CLOEXEC).unwrap();
        // The driver maps contexts up to this bus address.
        ftruncate(&memory, 0x2000_0000).unwrap();
        client.dma_map(0, 0, 0x2000_0000, memory.as_raw_fd()).unwrap();
        Self { client, memory, longest: Duration::ZERO }
    }

    fn timed<T>(&mut self, ask: impl FnOnce(&mut Client) -> T) -> T {
        let asked = Instant::now();
        let answer = ask(&mut self.client);
        self.longest = self.longest.max(asked.elapsed());
        answer
    }
}

impl Bus for Vmm {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.timed(|client| client.region_write(7, offset, bytes)).unwrap();
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.timed(|client| client.region_write(bar.into(), offset, bytes)).unwrap();
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.timed(|client| client.region_read(bar.into(), offset, &mut bytes)).unwrap();
        bytes
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.memory, bytes, at).unwrap(), bytes.len());
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(pread(&self.memory, &mut bytes, at).unwrap(), len);
        bytes
    }
}

/// Returns a driver with a QP in RTS, connected to the neighbour's other device.
fn connected(path: &Path) -> Driver<Vmm> {
    let mut driver = Driver::new(Vmm::attach(path));
    driver.enable();
    driver.initialise(16);
    driver.write_mtt(0, (0..3 + 2 * u64::from(SLOTS)).map(|page| SQ + page * PAGE));
    driver.poke(CQ, &[0x80; 32 << LOG_CQES]);
    let (none, write) = (MptFlags::empty(), MptFlags::LOCAL_WRITE);
    for (key, mtt, flags) in [(1, 0, none), (2, 1, none), (3, 2, write)] {
        driver.register(&region(key, mtt, 0, PAGE, flags));
    }
    let all = 2 * u64::from(SLOTS) * PAGE;
    driver.register(&region(DATA_KEY, 3, 0, all, MptFlags::LOCAL_WRITE | MptFlags::REMOTE_WRITE));
    driver.create_cq(&cqc(1, 3, LOG_CQES));
    let (qpn, psn) = (Qpn::new(QUEUES.qpn), Psn::new(0));
    let mut context = Qpc {
        // Code 5 is 4096 bytes, so each message is a single packet.
        mtu: 5,
        // 8.6 s. With seven retries, a QP fails only if its peer does not run for more than a minute.
        ack_timeout: 21,
        rnr_retry: 7,
        local_qpn: qpn,
        remote_qpn: qpn,
        recv_psn: psn,
        ..qpc(1, [1, 2], u32::try_from(PAGE).unwrap())
    };
    context.set_retry_count(7);
    driver.connect(QUEUES.qpn, &context);
    driver
}

/// Returns the address of a slot's source buffer in the data region.
fn source(slot: u32) -> u64 {
    u64::from(slot) * PAGE
}

fn target(slot: u32) -> u64 {
    u64::from(SLOTS + slot) * PAGE
}

/// The message stream from one of the neighbour's devices to the other.
struct Traffic {
    sender: Driver<Vmm>,
    receiver: Driver<Vmm>,
    posted: u32,
    completed: u32,
}

impl Traffic {
    /// Until `stop` is set, writes messages with up to [`WINDOW`] outstanding, and verifies each one. Increments `done`
    /// for each message. Returns the maximum reply latency.
    fn run(&mut self, done: &AtomicU64, stop: &AtomicBool) -> Duration {
        self.sender.bus.longest = Duration::ZERO;
        let mut last = Instant::now();
        while self.completed != self.posted || !stop.load(Ordering::Relaxed) {
            let waiting = self.posted - self.completed;
            if waiting < WINDOW && !stop.load(Ordering::Relaxed) {
                self.post();
            }
            if self.poll() {
                done.fetch_add(1, Ordering::Relaxed);
                last = Instant::now();
            } else if waiting == WINDOW {
                assert!(last.elapsed() < TIMEOUT, "message {} has no completion", self.completed);
                thread::yield_now();
            }
        }
        self.sender.bus.longest
    }

    fn content(message: u32) -> Vec<u8> {
        (0..LEN / 8).flat_map(|at| (u64::from(message) << 32 | u64::from(at)).to_le_bytes()).collect()
    }

    fn post(&mut self) {
        let slot = self.posted % SLOTS;
        self.sender.poke(DATA + source(slot), &Self::content(self.posted));
        let units = [remote_unit(DATA_KEY, target(slot)), data_unit(DATA_KEY, source(slot), LEN)];
        self.sender.post_send(&QUEUES, slot, WRITE, &signalled(&units.concat()));
        self.posted += 1;
    }

    /// Polls for the next message's completion and verifies the message. Returns whether it has completed.
    fn poll(&mut self) -> bool {
        let (slot, message) = (self.completed % SLOTS, self.completed);
        let entry = CQ + 32 * u64::from(self.completed % (1 << LOG_CQES));
        let cqe = self.sender.peek(entry, 32);
        if cqe[31] != 0 {
            return false;
        }
        assert_eq!((cqe[0x1c], cqe[0x1d]), (WRITE, 1), "message {message}: {cqe:02x?}");
        let received = self.receiver.peek(DATA + target(slot), LEN as usize);
        assert!(received == Self::content(message), "message {message} must arrive intact");
        self.sender.poke(entry + 31, &[0x80]);
        self.completed += 1;
        true
    }
}

// Hostile clients and their attacks.

/// A client that sends arbitrary messages.
struct Hostile {
    stream: UnixStream,
}

fn message(command: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + payload.len()).unwrap();
    let mut bytes = vec![0, 0];
    bytes.extend(command.to_ne_bytes());
    bytes.extend(size.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(payload);
    bytes
}

fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
    [&offset.to_ne_bytes()[..], &region.to_ne_bytes(), &count.to_ne_bytes()].concat()
}

fn write(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let count = u32::try_from(data.len()).unwrap();
    message(10, &[access(region, offset, count), data.to_vec()].concat())
}

/// Returns a REGION_WRITE_MULTI message that writes to BAR 0.
fn multi(writes: &[(u64, u32)], order: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let mut payload = (writes.len() as u64).to_ne_bytes().to_vec();
    for (offset, value) in writes {
        payload.extend(access(0, *offset, 4));
        payload.extend(order(*value));
        payload.extend([0; 4]);
    }
    message(15, &payload)
}

fn dma_map(address: u64, len: u64, offset: u64) -> Vec<u8> {
    let words = [offset, address, len].map(u64::to_ne_bytes).concat();
    message(2, &[&32_u32.to_ne_bytes()[..], &3_u32.to_ne_bytes(), &words].concat())
}

fn dma_unmap(address: u64, len: u64) -> Vec<u8> {
    let words = [address, len].map(u64::to_ne_bytes).concat();
    message(3, &[&24_u32.to_ne_bytes()[..], &0_u32.to_ne_bytes(), &words].concat())
}

impl Hostile {
    /// Connects and enables bus mastering.
    fn attach(path: &Path) -> Option<Self> {
        let stream = UnixStream::connect(path).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        let client = Self { stream };
        client.send(&message(1, b"\0\0\x01\0{}\0"), None)?;
        client.send(&write(7, 4, &[6, 0]), None)?;
        Some(client)
    }

    /// Sends a message. Returns `None` if the connection is closed.
    fn send(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> Option<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).ok()?;
        let mut rest = &bytes[sent..];
        while !rest.is_empty() {
            rest = &rest[rustix::net::send(&self.stream, rest, SendFlags::NOSIGNAL).ok()?..];
        }
        Some(())
    }

    fn replies(&mut self, count: usize) -> Option<()> {
        for _ in 0..count {
            let mut header = [0; 16];
            self.stream.read_exact(&mut header).ok()?;
            let size = u32::from_ne_bytes(header[4..8].try_into().unwrap());
            self.stream.read_exact(&mut vec![0; size as usize - 16]).ok()?;
        }
        Some(())
    }

    /// Waits until the connection is closed.
    fn end(mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.read_to_end(&mut Vec::new());
    }
}

/// Length and bus address of the lost file, whose pages become inaccessible. The queues are in another file, at bus
/// address 0.
const LOST_LEN: u64 = 256 << 20;
const LOST: u64 = 1 << 30;
const QUEUES_LEN: u64 = 16 << 20;
const ROUNDS: u64 = 16;

fn file(len: u64) -> OwnedFd {
    let memory = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, len).unwrap();
    memory
}

/// E810 control queues, started one after another. Each queue contains 2,047 operations, whose buffers are in
/// different, nonadjacent pages of the lost file.
struct ControlQueues {
    memory: OwnedFd,
    /// Register writes that start each queue in turn.
    stores: Vec<u8>,
}

impl ControlQueues {
    fn new() -> Self {
        let memory = file(QUEUES_LEN);
        let mut stores = Vec::new();
        for n in 0..ROUNDS {
            let (at, ring) = ((n + 1) * PAGE, 0x10_0000 + n * 0x2_0000);
            let context = HostContext {
                size: 10,
                protocol: 2,
                ring: Iova::new(ring),
                profile: 1,
                hardware_major: 1,
                ..HostContext::default()
            };
            pwrite(&memory, &context.emit(), at).unwrap();
            let operations = (0..2047).flat_map(|operation| {
                let buffer = Iova::new(LOST + 2 * (n * 2047 + operation) * PAGE);
                Operation::QueryFpm(FpmCommand { len: 0xd0, buffer, ..FpmCommand::default() }).emit(true)
            });
            pwrite(&memory, &operations.collect::<Vec<u8>>(), ring).unwrap();
            let at = u32::try_from(at).unwrap();
            for (register, value) in
                [(Register::PfpeCcqphigh, 0), (Register::PfpeCcqplow, at), (Register::PfpeCqpdb, 2047)]
            {
                stores.extend(write(0, register.offset().into(), &value.to_le_bytes()));
            }
        }
        Self { memory, stores }
    }
}

/// Returns mthca commands whose mailboxes are in pages of the lost file.
fn commands(round: u32) -> Vec<u8> {
    let words = (0..28).flat_map(|n: u32| {
        let page = 2 * u64::from(round * 28 + n) % (LOST_LEN / PAGE);
        let mailbox = u32::try_from(LOST + page * PAGE).unwrap();
        // QUERY_DEV_LIM or QUERY_FW, without an event.
        let word = 1 << 23 | if n.is_multiple_of(2) { 0x003 } else { 0x004 };
        let words = [0, mailbox, 0, 0, mailbox, 0, word];
        (0..).step_by(4).map(|at: u64| 0x8_0680 + at).zip(words)
    });
    multi(&words.collect::<Vec<_>>(), u32::to_be_bytes)
}

/// Resources that an attacker keeps between connections.
struct AttackerState {
    queues: ControlQueues,
    /// A file with pages that the host cannot provide.
    sparse: OwnedFd,
}

/// Maps a file, truncates it if `cut` is set, and makes the device access pages throughout it. Sends register writes
/// for both the E810 and the mthca interface. Each device ignores the writes for the other interface.
fn access_lost_file(path: &Path, state: &AttackerState, memory: &OwnedFd, cut: bool) -> Option<()> {
    ftruncate(memory, LOST_LEN).unwrap();
    let mut client = Hostile::attach(path)?;
    client.send(&dma_map(0, QUEUES_LEN, 0), Some(&state.queues.memory))?;
    client.send(&dma_map(LOST, LOST_LEN, 0), Some(memory))?;
    client.replies(4)?;
    if cut {
        ftruncate(memory, 0).unwrap();
    }
    client.send(&state.queues.stores, None)?;
    client.send(&(0..64).flat_map(commands).collect::<Vec<u8>>(), None)?;
    client.end();
    Some(())
}

/// Repeatedly sends invalid messages, then maps and unmaps memory, until `stop` is set.
fn flood(path: &Path, rounds: &AtomicU32, stop: &AtomicBool) -> Option<()> {
    let mut client = Hostile::attach(path)?;
    client.send(&dma_map(0, QUEUES_LEN, 0), Some(&file(QUEUES_LEN)))?;
    client.replies(3)?;
    let refused = [dma_map(0, PAGE, 0), dma_map(1, 5, 7), message(9, &access(77, 0, 4)), message(99, &[])];
    let reads = (0..16).map(|n| message(9, &access(0, 4 * n, 4)));
    let many: Vec<(u64, u32)> = (0..200).map(|n| (8 * n, 0)).collect();
    let batch: Vec<u8> =
        refused.into_iter().chain(reads).chain([multi(&many, u32::to_be_bytes)]).flatten().collect();
    while !stop.load(Ordering::Relaxed) {
        client.send(&batch, None)?;
        client.replies(21)?;
        client.send(&dma_map(LOST, LOST_LEN, 0), Some(&file(LOST_LEN)))?;
        client.send(&dma_unmap(LOST, LOST_LEN), None)?;
        client.replies(2)?;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    Some(())
}

/// Continuously executes commands that access mapped memory.
fn repeat_commands(path: &Path, state: &AttackerState, rounds: &AtomicU32, stop: &AtomicBool) -> Option<()> {
    let mut client = Hostile::attach(path)?;
    client.send(&dma_map(0, QUEUES_LEN, 0), Some(&state.queues.memory))?;
    client.send(&dma_map(LOST, LOST_LEN, 0), Some(&file(LOST_LEN)))?;
    client.replies(4)?;
    while !stop.load(Ordering::Relaxed) {
        client.send(&state.queues.stores, None)?;
        client.send(&(0..64).flat_map(commands).collect::<Vec<u8>>(), None)?;
        client.replies(3 * 16 + 64)?;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    Some(())
}

/// Violates the protocol and waits until the connection is closed.
fn violate_protocol(path: &Path) -> Option<()> {
    let client = Hostile::attach(path)?;
    client.send(&[0xff; 4096], None)?;
    client.end();
    Some(())
}

/// Returns a file on a full tmpfs. If the process cannot mount one, returns a file backed by huge pages, which the host
/// probably does not have. If the kernel does not support huge pages, returns an ordinary file.
fn file_without_pages() -> OwnedFd {
    let folder = tempfile::tempdir().unwrap();
    let mount = |command: &str, arguments: &[&str]| {
        let status = Command::new(command).args(arguments).arg(folder.path()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !mount("mount", &["-t", "tmpfs", "-o", "size=64k", "none"]) {
        let huge = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB);
        return huge.unwrap_or_else(|_| file(LOST_LEN));
    }
    let _ = fs::write(folder.path().join("filler"), vec![1; 128 << 10]);
    let memory =
        fs::OpenOptions::new().read(true).write(true).create_new(true).open(folder.path().join("memory"));
    // The open file keeps the mount alive.
    assert!(mount("umount", &["-l"]));
    memory.unwrap().into()
}

/// Attacks a device with one hostile client after another until `stop` is set. Counts the attacks in `rounds`.
fn attack(n: u16, path: &Path, rounds: &AtomicU32, stop: &AtomicBool) {
    let state = AttackerState { queues: ControlQueues::new(), sparse: file_without_pages() };
    let memory = file(LOST_LEN);
    // On Linux, this changes only the priority of the calling thread.
    setpriority_process(None, 19).unwrap();
    if n == LONG_LISTS {
        return LongLists::new(path, Lid::new(FIRST_HOSTILE + n)).run(rounds, stop);
    }
    while !stop.load(Ordering::Relaxed) {
        let result = match n / 2 % 5 {
            0 => access_lost_file(path, &state, &memory, true),
            1 => access_lost_file(path, &state, &state.sparse, false),
            2 => flood(path, rounds, stop),
            3 => repeat_commands(path, &state, rounds, stop),
            _ => violate_protocol(path),
        };
        // A lost connection is the expected result.
        let _ = result;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

fn mappings(daemon: &Daemon) -> usize {
    fs::read_to_string(format!("/proc/{}/maps", daemon.child.id())).unwrap().lines().count()
}

#[test]
fn hostile_clients_do_not_disturb_neighbour() {
    let mut daemon = start();
    let folder = daemon.folder.path().to_owned();
    let [sender, receiver] = NEIGHBOUR.map(|id| connected(&socket(&folder, id)));
    let mut traffic = Traffic { sender, receiver, posted: 0, completed: 0 };
    let (done, stop, quiet) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let rounds = [const { AtomicU32::new(0) }; HOSTILE as usize];
    let (over, is_over) = mpsc::channel();
    thread::scope(|scope| {
        // Stop the other threads even if an assertion fails.
        let _end = Defer(|| {
            stop.store(true, Ordering::Relaxed);
            quiet.store(true, Ordering::Relaxed);
        });
        let neighbour = scope.spawn(|| {
            let _over = over;
            [&quiet, &stop].map(|stop| traffic.run(&done, stop))
        });
        // Measures for at least `least` and until every attacker has completed two rounds.
        let measured = |least: Duration, rounds: &[AtomicU32]| {
            let (start_time, before) = (Instant::now(), done.load(Ordering::Relaxed));
            let mut most = 0;
            while start_time.elapsed() < least
                || rounds.iter().any(|rounds| rounds.load(Ordering::Relaxed) < 2)
            {
                assert!(
                    start_time.elapsed() < least + ATTACK_TIMEOUT,
                    "not every attacker completed two rounds within {ATTACK_TIMEOUT:?}: {rounds:?}"
                );
                if neighbour.is_finished() {
                    break;
                }
                most = most.max(mappings(&daemon));
                thread::sleep(Duration::from_millis(20));
            }
            let moved = done.load(Ordering::Relaxed) - before;
            (moved as f64 / start_time.elapsed().as_secs_f64(), most)
        };
        let (calm, _) = measured(attack_duration() / 2, &[]);
        quiet.store(true, Ordering::Relaxed);
        for (n, rounds) in (0..).zip(&rounds) {
            let (path, stop) = (socket(&folder, FIRST_HOSTILE + n), &stop);
            scope.spawn(move || attack(n, &path, rounds, stop));
        }
        let (rate, most) = measured(attack_duration(), &rounds);
        stop.store(true, Ordering::Relaxed);
        // The neighbour's thread drops the sender `_over` when it ends, even if it panics. The channel is then
        // disconnected, and `join` returns immediately.
        assert_eq!(
            is_over.recv_timeout(TIMEOUT),
            Err::<(), _>(mpsc::RecvTimeoutError::Disconnected),
            "the neighbour did not receive a reply or a completion in time"
        );
        let longest = neighbour.join().unwrap();
        let attacks: u32 = rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed)).sum();
        let kept = rate / calm;
        println!(
            "{calm:.0} messages/s in calm, {rate:.0} beside {HOSTILE} hostile clients ({attacks} attacks): {kept:.2}; \
             longest reply {:?} in calm, {:?}; at most {most} mappings",
            longest[0], longest[1]
        );
        assert!(most < MAX_MAPPINGS, "the daemon had {most} mappings");
        if is_daily() {
            assert!(kept >= MIN_RELATIVE_RATE, "the neighbour kept only {kept:.2} of its rate");
            assert!(longest[1] < MAX_REPLY_LATENCY, "a reply took {:?}", longest[1]);
        }
    });
    assert!(daemon.child.try_wait().unwrap().is_none(), "the daemon must keep running");
}

/// With a data size limit of [`LOST_LEN`], the daemon cannot replace the truncated file with private memory of the same
/// size.
#[test]
fn daemon_survives_truncated_client_memory_under_data_limit() {
    let mut daemon = start();
    let folder = daemon.folder.path().to_owned();
    let pid = Pid::from_child(&daemon.child);
    let limit = Some(LOST_LEN);
    prlimit(Some(pid), Resource::Data, Rlimit { current: limit, maximum: limit }).unwrap();
    let state = AttackerState { queues: ControlQueues::new(), sparse: file(LOST_LEN) };
    for id in [FIRST_HOSTILE, FIRST_HOSTILE + 1] {
        // The daemon may close the connection at any message.
        let _ = access_lost_file(&socket(&folder, id), &state, &file(LOST_LEN), true);
        daemon.wait_for_line("memory is not accessible");
        Client::new(&socket(&folder, id)).unwrap();
    }
}

/// Calls a function on drop.
struct Defer<F: Fn()>(F);

impl<F: Fn()> Drop for Defer<F> {
    fn drop(&mut self) {
        self.0();
    }
}
