//! Fuzzes the vfio-user messages that a client sends to a JingZhao HCA's socket, and the kinds of file descriptors that
//! accompany them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use card::frontend::Interface as _;
use card::hca::Hca;
use card::identity::Identity;
use card::memory::Limits;
use card::vfio::server::{Connection, Device as _};
use jingzhao::{JingZhao, Options, Setup};
use protocol::ids::Lid;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};

use super::input::Input;

const OPERATIONS: usize = 96;
/// Maximum number of messages served before the client reads replies.
const BUDGET: usize = 8;
/// Maximum number of turns needed to complete all work for one operation.
const TURNS: usize = 1000;

/// Timeout for closing all descriptors. It expires only if one of them is left open.
const CLOSE_LIMIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

const PAGE: u64 = 4096;
const FILE_LEN: u64 = 8 * PAGE;
/// Maximum number of DMA windows and of files. Both are low so that fuzz inputs can reach them.
const LIMITS: (usize, usize) = (8, 3);

const HEADER: usize = 16;
const NO_REPLY: u32 = 0x10;
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const REGION_WRITE_MULTI: u16 = 15;

struct Bench {
    hca: Hca<JingZhao>,
    client: Client,
    sources: Sources,
}

struct Client {
    stream: UnixStream,
    connection: Connection,
    /// ID and command of each message that still needs a reply.
    pending: VecDeque<[u8; 4]>,
    received: Vec<u8>,
    id: u16,
    /// Whether the client has respected the message framing. If so, the connection must stay open.
    keeps_framing: bool,
}

/// Descriptors that the client can send.
struct Sources {
    sealed: OwnedFd,
    unsealed: OwnedFd,
    event: OwnedFd,
    pipe: OwnedFd,
    /// Read end of `pipe`. It reports end of file once all copies of `pipe` are closed.
    reader: OwnedFd,
    socket: UnixStream,
    null: File,
    read_only: File,
}

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut bench = Bench::new();
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        bench.operate(operation, &mut input);
        bench.settle();
        assert!(bench.hca.memory().window_count() <= LIMITS.0);
    }
    bench.check_new_client();
}

impl Bench {
    fn new() -> Self {
        let own = Identity::from_lid(Lid::new(1));
        let setup = Setup { options: Options::default(), mac: own.mac, engine: engine::Config::default() };
        let mut hca = Hca::new(JingZhao::new(setup), own, None);
        hca.set_memory_limits(Limits { windows: LIMITS.0, files: LIMITS.1, ..Limits::default() });
        let mut bench = Self { hca, client: Client::connect(), sources: Sources::new() };
        bench.send_greeting();
        bench
    }

    fn send_greeting(&mut self) {
        self.client.send(VERSION, 0, b"\0\0\x01\0{}\0", &[]);
        // Enable memory space and bus mastering.
        self.client.send(REGION_WRITE, 0, &access(7, 4, 2, &[6, 0]), &[]);
        self.settle();
    }

    fn operate(&mut self, operation: u8, input: &mut Input<'_>) {
        let flags = if operation & 0x80 == 0 { 0 } else { NO_REPLY };
        match operation % 16 {
            0..=3 => {
                let (rights, offset) = (u32::from(input.byte() % 8), u64::from(input.byte()) * PAGE / 16);
                let (address, size) = (bus(input), u64::from(input.byte() % 24) * PAGE / 2);
                let payload = [words(&[32, rights]), longs(&[offset, address, size])].concat();
                self.send(DMA_MAP, flags, &payload, input);
            }
            4 | 5 => {
                let flags_of = u32::from(input.byte()) % 16 * u32::from(input.byte().is_multiple_of(4));
                let (address, size) = (bus(input), u64::from(input.byte() % 24) * PAGE / 2);
                let payload = [words(&[24, flags_of]), longs(&[address, size])].concat();
                self.send(DMA_UNMAP, flags, &payload, input);
            }
            6 | 7 => {
                let (data, action) = (1 << (input.byte() % 4), 1 << (3 + input.byte() % 4));
                let (index, start, count) = (input.byte() % 8, input.byte() % 80, input.byte() % 24);
                let fields = [20, data | action, u32::from(index), u32::from(start), u32::from(count)];
                let payload = [words(&fields), input.bytes(24).to_vec()].concat();
                self.send(SET_IRQS, flags, &payload, input);
            }
            8 => {
                let region = u32::from(input.byte() % 10);
                let (offset, count) =
                    (u64::from(input.word()) >> (input.byte() % 32), u32::from(input.half()));
                self.send(REGION_READ, flags, &access(region, offset, count, &[]), input);
            }
            9 => {
                let region = u32::from(input.byte() % 10);
                let offset = u64::from(input.word()) >> (input.byte() % 32);
                let data = input.bytes(64);
                let count = data.len() as u32 + u32::from(input.byte() > 250);
                self.send(REGION_WRITE, flags, &access(region, offset, count, data), input);
            }
            10 => {
                let count = u64::from(input.byte() % 6) << (input.byte() % 64);
                let writes = (0..input.byte() % 6)
                    .map(|_| {
                        access(
                            u32::from(input.byte() % 4),
                            u64::from(input.half()),
                            u32::from(input.byte() % 12),
                            &[1; 8],
                        )
                    })
                    .collect::<Vec<_>>();
                let payload = [longs(&[count]), writes.concat()].concat();
                self.send(REGION_WRITE_MULTI, flags, &payload, input);
            }
            11 => {
                let command = u16::from(input.byte() % 20);
                let payload = input.bytes(64).to_vec();
                self.send(command, flags, &payload, input);
            }
            12 => {
                // QUERY_ADAPTER, whose output goes to a mailbox.
                let mailbox = bus(input);
                let [low, high] = [mailbox, mailbox >> 32].map(|half| (half as u32).to_le_bytes());
                for (offset, word) in [(0x0c, high), (0x10, low), (0x18, 0x80_0006_u32.to_le_bytes())] {
                    self.client.send(REGION_WRITE, flags, &access(0, 0x8_0000 + offset, 4, &word), &[]);
                }
            }
            13 => {
                let len = u64::from(input.byte() % 9) * PAGE;
                ftruncate(&self.sources.unsealed, len).expect("an unsealed memfd can be resized");
            }
            14 => {
                let (bytes, kind) = (input.bytes(255), input.byte());
                self.client.keeps_framing &= bytes.is_empty();
                let sources = self.sources.some(kind % 8, usize::from(kind / 8 % 4));
                self.client.put(bytes, &sources);
            }
            _ => match input.byte() % 4 {
                0 => self.replace_client(),
                1 => self.client.send(13, flags, &[], &[]),
                _ => {
                    let payload = [b"\0\0\x01\0", input.bytes(64)].concat();
                    if input.byte().is_multiple_of(2) {
                        self.replace_client_with(&payload);
                    } else {
                        self.client.send(VERSION, flags, &payload, &[]);
                    }
                }
            },
        }
    }

    /// Sends a message in one or two parts, with descriptors that the input selects.
    fn send(&mut self, command: u16, flags: u32, payload: &[u8], input: &mut Input<'_>) {
        let (kind, how) = (input.byte(), input.byte());
        let count = match how {
            // Send as many descriptors as the message requires.
            0..128 if command == DMA_MAP => usize::from(kind % 8 != 7),
            0..128 if command == SET_IRQS => payload.get(16).map_or(0, |count| usize::from(*count % 24)),
            0..224 => 0,
            _ => usize::from(how % 24),
        };
        self.client.keeps_framing &= count <= 16;
        let message = self.client.message(command, flags, payload);
        let cut = if how % 4 == 0 { usize::from(how) % message.len() } else { 0 };
        let (first, rest) = message.split_at(cut);
        self.client.put(first, &[]);
        self.settle_partly();
        self.client.put(rest, &self.sources.some(kind % 8, count));
    }

    fn replace_client(&mut self) {
        self.hca.disconnect();
        self.client = Client::connect();
        self.send_greeting();
    }

    /// Replaces the client with a new one whose VERSION message may be invalid.
    fn replace_client_with(&mut self, payload: &[u8]) {
        self.hca.disconnect();
        self.client = Client::connect();
        self.client.keeps_framing = false;
        self.client.send(VERSION, 0, payload, &[]);
    }

    /// Serves messages until no work is left. If the client must be disconnected, replaces it with a new one.
    fn settle(&mut self) {
        for _ in 0..TURNS {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return assert!(self.client.pending.is_empty() || !self.client.keeps_framing),
                Err(()) => return self.replace_client(),
            }
        }
        panic!("the work of an operation must complete");
    }

    /// Like `settle`, but replies may remain pending, because the last message may be incomplete.
    fn settle_partly(&mut self) {
        while self.turn() == Ok(true) {}
    }

    /// Serves a batch of messages. Returns whether work is left, or `Err` if the client must be disconnected.
    fn turn(&mut self) -> Result<bool, ()> {
        let served = match self.client.connection.serve(&mut self.hca, BUDGET) {
            Ok(served) => served,
            Err(error) => {
                assert!(!self.client.keeps_framing, "a well-framed connection must stay open: {error}");
                return Err(());
            }
        };
        let _ = self.hca.drain();
        self.hca.outbound().clear();
        if self.hca.memory().is_lost() {
            return Err(());
        }
        self.client.connection.reply().map_err(|error| panic!("{error}"))?;
        let read = self.client.read_replies();
        Ok(served.messages > 0 || served.more || read)
    }

    fn check_new_client(mut self) {
        self.replace_client();
        let mut vendor = [0; 4];
        self.client.send(REGION_READ, 0, &access(7, 0, 4, &[]), &[]);
        assert!(self.client.connection.serve(&mut self.hca, BUDGET).is_ok());
        self.client.connection.reply().expect("the client can receive replies");
        self.client.stream.read_exact(&mut [0; HEADER + 16]).expect("a reply arrives");
        self.client.stream.read_exact(&mut vendor).expect("the reply contains the vendor ID");
        assert_eq!(vendor, [0xee, 0x10, 0x28, 0x70]);

        let Self { client, sources, .. } = self;
        drop(client);
        let Sources { reader, pipe, .. } = sources;
        drop(pipe);
        // If another thread is starting a program, the child process holds a copy of `pipe` until it calls exec. Wait
        // until all copies are closed.
        let _ = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&CLOSE_LIMIT));
        assert_eq!(rustix::io::read(&reader, &mut [0]), Ok(0), "all unexpected descriptors must be closed");
    }
}

impl Client {
    fn connect() -> Self {
        let (server, stream) = UnixStream::pair().expect("a socket pair can be created");
        stream.set_nonblocking(true).expect("a socket can be non-blocking");
        Self {
            stream,
            connection: Connection::new(server).expect("a socket can be non-blocking"),
            pending: VecDeque::new(),
            received: Vec::new(),
            id: 0,
            keeps_framing: true,
        }
    }

    fn message(&mut self, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let head = [self.id.to_ne_bytes(), command.to_ne_bytes()].concat();
        if flags & NO_REPLY == 0 {
            self.pending.extend(head.as_chunks().0);
        }
        let size = (HEADER + payload.len()) as u32;
        [head, words(&[size, flags, 0]), payload.to_vec()].concat()
    }

    fn send(&mut self, command: u16, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let message = self.message(command, flags, payload);
        self.put(&message, fds);
    }

    /// Sends bytes. Sending may fail if the connection has been closed.
    fn put(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(
            fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)),
            "the control buffer has room for the descriptors"
        );
        if !bytes.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags);
            self.keeps_framing &= sent == Ok(bytes.len());
        }
    }

    /// Receives bytes and checks all complete replies. Returns whether any bytes arrived.
    fn read_replies(&mut self) -> bool {
        let before = self.received.len();
        let mut part = [0; 1 << 16];
        while let Ok(len @ 1..) = self.stream.read(&mut part) {
            self.received.extend_from_slice(&part[..len]);
        }
        let arrived = self.received.len() > before;
        while let Some(header) = self.received.first_chunk::<HEADER>() {
            let size = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]) as usize;
            assert!(size >= HEADER, "a reply of {size} bytes is shorter than its header");
            if self.received.len() < size {
                break;
            }
            let flags = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
            let error = u32::from_ne_bytes([header[12], header[13], header[14], header[15]]);
            assert_eq!(flags, if error == 0 { 1 } else { 0x21 });
            assert!(error == 0 || size == HEADER, "an error reply must not have a payload");
            if self.keeps_framing {
                assert_eq!(
                    self.pending.pop_front().as_ref(),
                    header.first_chunk(),
                    "replies must arrive in the order of their requests"
                );
            }
            self.received.drain(..size);
        }
        arrived
    }
}

impl Sources {
    fn new() -> Self {
        let memfd = || {
            let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .expect("a memfd can be created");
            ftruncate(&fd, FILE_LEN).expect("a memfd can be extended");
            fd
        };
        let sealed = memfd();
        fcntl_add_seals(&sealed, SealFlags::SHRINK | SealFlags::GROW).expect("the memfd can be sealed");
        let (reader, pipe) =
            pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("a pipe can be created");
        let (socket, _) = UnixStream::pair().expect("a socket pair can be created");
        Self {
            sealed,
            unsealed: memfd(),
            event: eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd can be created"),
            pipe,
            reader,
            socket,
            null: File::options().write(true).open("/dev/null").expect("/dev/null can be opened"),
            read_only: rustix::fs::open("/proc/self/exe", OFlags::RDONLY | OFlags::CLOEXEC, 0.into())
                .expect("the program file can be read")
                .into(),
        }
    }

    fn some(&self, kind: u8, count: usize) -> Vec<BorrowedFd<'_>> {
        let one = match kind {
            0 | 1 => self.sealed.as_fd(),
            2 => self.unsealed.as_fd(),
            3 => self.event.as_fd(),
            4 => self.pipe.as_fd(),
            5 => self.socket.as_fd(),
            6 => self.null.as_fd(),
            _ => self.read_only.as_fd(),
        };
        vec![one; count]
    }
}

/// Returns an address near either end of the bus address space.
fn bus(input: &mut Input<'_>) -> u64 {
    let near = u64::from(input.byte() % 32) * PAGE / 2;
    if input.byte() < 192 { near } else { near.wrapping_neg() }
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [longs(&[offset]), words(&[region, count]), data.to_vec()].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}
