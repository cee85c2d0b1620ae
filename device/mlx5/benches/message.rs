//! Measures the cost of a 64-byte message in the sender's and the receiver's device.
//!
//! Two devices in this process exchange messages on RC QPs. All of the sender device's work happens in [`sender`], and
//! all of the receiver device's work happens in [`receiver`]. Callgrind counts the instructions executed in each
//! function. The counts do not depend on the machine's load. To collect the count for the sender, run:
//!
//! ```text
//! cargo bench -p mlx5 --bench message --no-run
//! valgrind --tool=callgrind --toggle-collect='message::sender' target/release/deps/message-<hash> write 16
//! ```
//!
//! The arguments are the operation (`write` or `send`) and the number of QPs (1 to 64). To obtain the instructions per
//! message, divide the collected count by the number of messages that the benchmark prints.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark panics on failure and prints its result"
)]

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use card::fabric::Arrival;
use card::frontend::Interface as _;
use card::frontend::testing::Guest;
use card::identity::Identity;
use card::vfio::Bar;
use drivers::mlx5::{Driver, Layout, SEND};
use mlx5::options::Port;
use mlx5::{Mlx5, Options, Setup};
use protocol::Psn;
use protocol::hca::mlx5::PAGE;
use protocol::hca::mlx5::command::OutputHeader;
use protocol::hca::mlx5::cq::{CqContext, CreateCq};
use protocol::hca::mlx5::device::{Function, InitHca, NoArguments};
use protocol::hca::mlx5::eq::{CreateEq, EqContext};
use protocol::hca::mlx5::input::{Bytes, Command, Pages};
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, CreateMkey, MkeyContext};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, Service};
use protocol::hca::mlx5::resource::{CqNumber, EqNumber, MkeyNumber, PdNumber, QpNumber, UarNumber};
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::hca::mlx5::wqe::{
    BLOCK, ControlSegment, DataItem, DataSegment, Opcode, Operation, RecvWqe, RemoteSegment, SendWqe,
};
use protocol::ids::{Cqn, Iova, Lid, Lkey, Pdn, Qpn, Rkey, UarIndex, Va};
use protocol::roce::Offload;
use smallvec::smallvec;

/// Bus addresses. The command queue and its mailboxes are at [`Layout::LARGE`].
const CQ_RECORD: u64 = 0x30_0000;
const QP_RECORDS: u64 = 0x30_1000;
const EVENTS: u64 = 0x40_0000;
const CQ: u64 = 0x44_0000;
/// Each QP's queues: one page of receives and one page of send queue blocks.
const QUEUES: u64 = 0x50_0000;
const DATA: u64 = 0x60_0000;
/// Number of pages in the data region, which all messages share.
const DATA_PAGES: u64 = 256;
const DATA_VA: u64 = 0x7f00_0000_0000;

const LOG_CQ: u8 = 11;
/// Log2 of the number of receives per QP, which equals the number of send queue blocks.
const LOG_QUEUE: u8 = 6;
const QUEUE: u16 = 1 << LOG_QUEUE;
const MAX_QPS: usize = (1 << LOG_CQ) / BATCH as usize;

/// Number of messages posted to a QP with one doorbell.
const BATCH: u16 = 32;
const ROUNDS: u32 = 16;
const MESSAGE: u32 = 64;
/// Simulated time between two inputs to a device.
const TURN: Duration = Duration::from_micros(5);

struct QueuePair {
    qpn: Qpn,
    posted_sends: u16,
    posted_receives: u16,
}

/// A device and its driver.
struct Node {
    driver: Driver<Guest<Mlx5>>,
    uar: UarIndex,
    pd: Pdn,
    cqn: Cqn,
    key: u32,
    qps: Vec<QueuePair>,
    /// Number of completions that the driver has consumed.
    completed: u32,
    /// Time spent in the device.
    spent: Duration,
}

fn page_list(first: u64, count: u64) -> Vec<u8> {
    (0..count).flat_map(|page| (first + page * PAGE as u64).to_be_bytes()).collect()
}

fn output<const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    *bytes.first_chunk().unwrap()
}

impl Node {
    fn new(lid: u16) -> Self {
        let identity = Identity::from_lid(Lid::new(lid));
        let options = Options { port: Port::InfiniBand, ..Options::default() };
        let setup = Setup { options, mac: identity.mac, engine: engine::Config::default() };
        let mut guest = Guest::new(Mlx5::new(setup), identity);
        guest.hca = guest.hca.with_icrc_needed(false);
        let mut node = Self {
            driver: Driver::new(guest, Layout::LARGE),
            uar: UarIndex::new(0),
            pd: Pdn::new(0),
            cqn: Cqn::new(0),
            key: 0,
            qps: Vec::new(),
            completed: 0,
            spent: Duration::ZERO,
        };
        node.driver.start();
        node.execute(&Command::EnableHca(Function { function: 0 }));
        node.execute(&Command::InitHca(InitHca::default()));
        let none = NoArguments { op_mod: 0 };
        node.uar = UarNumber::parse(&output(&node.execute(&Command::AllocUar(none)))).uar;
        node.pd = PdNumber::parse(&output(&node.execute(&Command::AllocPd(none)))).pd;
        node.create_cq();
        node.create_region();
        node
    }

    /// Executes a command that must succeed.
    fn execute(&mut self, command: &Command<'_>) -> Vec<u8> {
        let (header, output) = self.driver.command(command);
        assert_eq!(header, OutputHeader::default(), "{}", command.opcode().name());
        output
    }

    fn create_cq(&mut self) {
        let context = EqContext { log_entries: 8, uar: self.uar, ..EqContext::default() };
        let list = page_list(EVENTS, 4);
        let created = self
            .execute(&Command::CreateEq(CreateEq { context, ..CreateEq::default() }, Pages::parse(&list)));
        let eqn = EqNumber::parse(&output(&created)).eqn;
        let record = Iova::new(CQ_RECORD);
        let context = CqContext { log_entries: LOG_CQ, uar: self.uar, eqn, record, ..CqContext::default() };
        let list = page_list(CQ, (64 << LOG_CQ) / PAGE as u64);
        let created = self
            .execute(&Command::CreateCq(CreateCq { context, ..CreateCq::default() }, Pages::parse(&list)));
        self.cqn = CqNumber::parse(&output(&created)).cqn;
    }

    fn create_region(&mut self) {
        let list = page_list(DATA | 3, DATA_PAGES);
        let context = MkeyContext {
            qpn: ANY_QP,
            key: 1,
            pd: self.pd,
            start: Va::new(DATA_VA),
            length: DATA_PAGES * PAGE as u64,
            log_page: 12,
            remote_write: true,
            local_write: true,
            local_read: true,
            ..MkeyContext::default()
        };
        let context = context.with_access_mode(AccessMode::Pages);
        let translation_units = u32::try_from(list.len() / 16).unwrap();
        let create = CreateMkey { context, translation_units, ..CreateMkey::default() };
        let created = self.execute(&Command::CreateMkey(create, Bytes::parse(&list)));
        self.key = MkeyNumber::parse(&output(&created)).index.key(context.key);
    }

    /// Creates a QP and connects it to the QP with the same number on the device with LID `peer`.
    fn connect(&mut self, peer: u16) {
        let number = self.qps.len() as u64;
        let context = QpContext {
            service: Service::Rc.code(),
            pd: self.pd,
            log_rq_entries: LOG_QUEUE,
            log_rq_stride: 2,
            log_sq_blocks: LOG_QUEUE,
            uar: self.uar,
            send_cqn: self.cqn,
            recv_cqn: self.cqn,
            record: Iova::new(QP_RECORDS + number * 64),
            ..QpContext::default()
        };
        let list = page_list(QUEUES + number * 2 * PAGE as u64, 2);
        let create = CreateQp { context, ..CreateQp::default() };
        let created = self.execute(&Command::CreateQp(create, Pages::parse(&list)));
        let qpn = QpNumber::parse(&output(&created)).qpn;
        let modify = |context| ModifyQp { qpn, optional: QpAttributes::RIGHTS, context };
        let primary = Path { port: 1, ..Path::default() };
        self.execute(&Command::Rst2InitQp(modify(QpContext { primary, ..context })));
        let rtr = QpContext {
            mtu: 5,
            log_max_message: 30,
            remote_qpn: qpn,
            recv_psn: Psn::new(5),
            min_rnr_timer: 12,
            remote_write: true,
            primary: Path { lid: Lid::new(peer), ..Path::default() },
            ..QpContext::default()
        };
        self.execute(&Command::Init2RtrQp(modify(rtr)));
        let rts = QpContext {
            next_send_psn: Psn::new(5),
            retry_count: 7,
            rnr_retry: 7,
            primary: Path { ack_timeout: 14, ..Path::default() },
            ..QpContext::default()
        };
        self.execute(&Command::Rtr2RtsQp(ModifyQp { optional: QpAttributes::empty(), ..modify(rts) }));
        self.qps.push(QueuePair { qpn, posted_sends: 0, posted_receives: 0 });
    }

    fn data(&self) -> DataSegment {
        DataSegment { byte_count: MESSAGE, lkey: Lkey::new(self.key), va: Va::new(DATA_VA) }
    }

    /// Posts a batch of requests. Returns the doorbell.
    fn post_sends(&mut self, number: usize, opcode: Opcode) -> [u8; 8] {
        let data = smallvec![DataItem::Pointer(self.data())];
        // Both devices use the same keys, so this device's key is also the key of the peer's region.
        let remote = RemoteSegment { va: Va::new(DATA_VA + 0x1000), rkey: Rkey::new(self.key) };
        let operation = if opcode == Opcode::Write { Operation::Write(remote) } else { Operation::Send };
        let qp = &mut self.qps[number];
        let control = ControlSegment { qpn: qp.qpn, completion: 2, ..ControlSegment::default() };
        let mut wqe = SendWqe { control, opcode, xrc_srqn: None, operation, data };
        let mut doorbell = [0; 8];
        let queue = QUEUES + (number as u64 * 2 + 1) * PAGE as u64;
        for _ in 0..BATCH {
            wqe.control.index = qp.posted_sends;
            let bytes = wqe.emit();
            assert!(bytes.len() <= BLOCK);
            doorbell = output(&bytes);
            self.driver.poke(queue + u64::from(qp.posted_sends % QUEUE) * BLOCK as u64, &bytes);
            qp.posted_sends = qp.posted_sends.wrapping_add(1);
        }
        self.driver.poke(QP_RECORDS + number as u64 * 64 + 6, &qp.posted_sends.to_be_bytes());
        doorbell
    }

    fn post_receives(&mut self, number: usize) {
        let entry = RecvWqe { scatter: smallvec![self.data()] }.emit(64);
        let qp = &mut self.qps[number];
        let queue = QUEUES + number as u64 * 2 * PAGE as u64;
        for _ in 0..BATCH {
            self.driver.poke(queue + u64::from(qp.posted_receives % QUEUE) * 64, &entry);
            qp.posted_receives = qp.posted_receives.wrapping_add(1);
        }
        self.driver.poke(QP_RECORDS + number as u64 * 64 + 2, &qp.posted_receives.to_be_bytes());
    }

    /// Gives the CQ entries of `count` completions back to the device.
    fn consume(&mut self, count: u32) {
        self.completed += count;
        self.driver.poke(CQ_RECORD, &(self.completed & 0xff_ffff).to_be_bytes());
    }

    /// Passes an input to a device. Returns the frames that the device sends, and whether it has more work.
    fn run(&mut self, device: Device, input: &Input<'_>) -> (Vec<Vec<u8>>, bool) {
        let guest = &mut self.driver.bus;
        guest.now = guest.now + TURN;
        guest.hca.set_now(guest.now);
        let started = Clock::now();
        let more = device(guest, input);
        self.spent += started.elapsed();
        let frames = guest.hca.outbound().iter().map(|(_, frame)| frame.to_vec()).collect();
        guest.hca.outbound().clear();
        (frames, more)
    }
}

enum Input<'a> {
    /// A doorbell at an offset in BAR 0.
    Doorbell(u64, [u8; 8]),
    /// An iteration of the event loop that receives these frames.
    Turn(&'a [Vec<u8>]),
}

type Device = fn(&mut Guest<Mlx5>, &Input<'_>) -> bool;

#[inline(never)]
fn sender(guest: &mut Guest<Mlx5>, input: &Input<'_>) -> bool {
    // Different constants keep the compiler from merging the two functions.
    black_box(1);
    serve(guest, input)
}

#[inline(never)]
fn receiver(guest: &mut Guest<Mlx5>, input: &Input<'_>) -> bool {
    black_box(2);
    serve(guest, input)
}

/// Returns whether the device has more work.
fn serve(guest: &mut Guest<Mlx5>, input: &Input<'_>) -> bool {
    match input {
        Input::Doorbell(offset, bytes) => {
            guest.store(Bar::Bar0, *offset, bytes);
            true
        }
        Input::Turn(frames) => {
            frames.iter().for_each(|frame| guest.hca.handle_arrival(Arrival::new(frame, Offload::Icrc)));
            let left = guest.hca.drain();
            left.frames || left.other
        }
    }
}

/// Runs both devices until they are idle.
fn exchange(near: &mut Node, far: &mut Node) {
    let mut to_near = Vec::new();
    loop {
        let (to_far, near_has_more) = near.run(sender, &Input::Turn(&to_near));
        let far_has_more;
        (to_near, far_has_more) = far.run(receiver, &Input::Turn(&to_far));
        if !near_has_more && !far_has_more && to_near.is_empty() {
            return;
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let opcode = match arguments.next().as_deref() {
        None | Some("write") => Opcode::Write,
        Some("send") => Opcode::Send,
        Some(other) => panic!("unknown operation {other}"),
    };
    let qps = arguments.next().map_or(16, |count| count.parse().unwrap());
    assert!((1..=MAX_QPS).contains(&qps), "1 to {MAX_QPS} QPs");
    let (mut near, mut far) = (Node::new(1), Node::new(2));
    for _ in 0..qps {
        near.connect(2);
        far.connect(1);
    }
    let round = u32::try_from(qps).unwrap() * u32::from(BATCH);
    for _ in 0..ROUNDS {
        for number in 0..qps {
            if opcode == Opcode::Send {
                far.post_receives(number);
            }
            let doorbell = near.post_sends(number, opcode);
            let offset = u64::from(near.uar.get()) * PAGE as u64 + SEND;
            near.run(sender, &Input::Doorbell(offset, doorbell));
        }
        exchange(&mut near, &mut far);
        near.consume(round);
        if opcode == Opcode::Send {
            far.consume(round);
        }
    }
    let messages = u64::from(round) * u64::from(ROUNDS);
    assert_eq!(near.driver.bus.hca.engine_stats().requested.total(), messages);
    let nanos = |node: &Node| node.spent.as_nanos() / u128::from(messages);
    println!("{messages} messages; sender {} ns, receiver {} ns each", nanos(&near), nanos(&far));
}
