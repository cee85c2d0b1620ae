//! Fuzzes operations on a ConnectX HCA.

use card::frontend::Interface as _;
use card::identity::Identity;
use card::net::address::Addresses;
use drivers::Bus as _;
use drivers::mlx5::{ARM_EQ, COMMAND_DOORBELL, Driver, Layout, QUEUE_LOW, SEND};
use mlx5::options::Port;
use mlx5::{Mlx5, Options, Setup};
use protocol::hca::mlx5::cq::{CqContext, CreateCq};
use protocol::hca::mlx5::device::{Function, InitHca, NoArguments};
use protocol::hca::mlx5::eq::{CreateEq, EqContext};
use protocol::hca::mlx5::flow_counter::AllocFlowCounter;
use protocol::hca::mlx5::flow_entry::{FlowActions, FlowContext, FlowEntrySelector, SetFlowTableEntry};
use protocol::hca::mlx5::flow_group::CreateFlowGroup;
use protocol::hca::mlx5::flow_table::{CreateFlowTable, FlowTableContext, SetFlowTableRoot};
use protocol::hca::mlx5::input::{Bytes, Command, Pages};
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, CreateMkey, MkeyContext};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext};
use protocol::hca::mlx5::rq::{CreateRq, ModifyRq, RqContext};
use protocol::hca::mlx5::rqt::{CreateRqt, RqNumbers, RqtContext};
use protocol::hca::mlx5::sq::{CreateSq, ModifySq, SqContext, WorkQueueState};
use protocol::hca::mlx5::srq::WorkQueue;
use protocol::hca::mlx5::strided::{REPEAT_KEY, RepeatBlock, StridedEntry};
use protocol::hca::mlx5::tir::{CreateTir, TirContext};
use protocol::hca::mlx5::tis::{CreateTis, TisContext};
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::hca::mlx5::wqe::{
    ControlSegment, DataItem, DataSegment, Opcode, Operation, SendWqe, Translation, Umr,
};
use protocol::ids::{
    Cqn, Eqn, FlowGroupId, FlowTableId, Iova, Lid, Lkey, Pdn, Qpn, Rqn, Sqn, Tisn, TransportDomain, UarIndex,
    Va,
};

use super::input::Input;
use super::machine::{Aim, LIDS, Machine};
use super::{OPERATIONS, TURNS};

// Numbers that the device assigns to the first objects of each kind.
const UAR: UarIndex = UarIndex::new(0x10);
/// The second UAR page, if doorbells are trapped.
const TRAPPED: UarIndex = UarIndex::new(0x11);
/// The second UAR page, if doorbells are mapped.
const MAPPED: UarIndex = UarIndex::new(0x20);
const EQN: Eqn = Eqn::new(1);
const CQN: Cqn = Cqn::new(0x40);
const PD: Pdn = Pdn::new(1);
/// QPNs of an RC QP that is connected to itself, and of QP1.
const QPNS: [u32; 2] = [0x80, 0x81];
const KEY: u32 = 0x801;
/// An indirect key that UMRs can change.
const INDIRECT_KEY: u32 = 0x900;
const SQN: Sqn = Sqn::new(0x4000);
const RQN: Rqn = Rqn::new(0x4001);
const TABLE: FlowTableId = FlowTableId::new(1);

const AIM: Aim = Aim { qpns: &QPNS, key: KEY, va: 0x3_0000, ends: LIDS };

/// Location of the command queue and mailboxes, in the 1 MiB of guest memory.
const LAYOUT: Layout = Layout { queue: 0x1000, mailboxes: 0x8_0000, blocks: 64 };
const RINGS: u64 = 0x2_0000;
const RECORD: Iova = Iova::new(0x2000);

type Guest = Driver<Machine<Mlx5>>;

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let watched = input.byte();
    // One bit selects the port type, and the next one selects mapped doorbells.
    let port = if watched & 8 == 0 { Port::InfiniBand } else { Port::Ethernet };
    let page = if watched & 16 == 0 { TRAPPED } else { MAPPED };
    let mut guest = start(port, watched & 7 | watched >> 1 & 8, page);
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        if !guest.operate(operation % 29, &mut input) {
            operate(&mut guest, operation % 29, &mut input, page);
        }
        guest.turns(TURNS);
    }
    check_new_client(&mut guest, page);
}

fn start(port: Port, watched: u8, page: UarIndex) -> Guest {
    let [own, peer] = [1, 2].map(|lid| Identity::from_lid(Lid::new(lid)));
    let addresses = Addresses { own, peers: Vec::new(), default_peer: Some(peer) };
    let options = Options { port, ..Options::default() };
    let setup = Setup { options, mac: own.mac, engine: engine::Config::default() };
    let mut guest = Driver::new(Machine::of(Mlx5::new(setup), addresses, watched, AIM), LAYOUT);
    bring_up(&mut guest, page);
    guest
}

/// Initialises the device as a driver does after the bus scan. Ignores errors, because memory may be unmapped.
fn bring_up(guest: &mut Guest, page: UarIndex) {
    guest.enable();
    guest.start();
    let list = RINGS.to_be_bytes();
    for command in usual(&list, page) {
        guest.command(&command);
    }
}

/// Returns a well-behaved driver's commands that create connected QPs. Their doorbells are in UAR page `page`.
fn usual(list: &[u8], page: UarIndex) -> Vec<Command<'_>> {
    let none = NoArguments::default();
    let pages = Pages::parse(list);
    let eq = EqContext { log_entries: 6, uar: UAR, ..EqContext::default() };
    let cq = CqContext { log_entries: 6, uar: page, eqn: EQN, record: RECORD, ..CqContext::default() };
    let key = MkeyContext { qpn: ANY_QP, key: 1, pd: PD, length64: true, ..MkeyContext::default() };
    let key = MkeyContext { local_write: true, remote_write: true, remote_read: true, atomic: true, ..key };
    let indirect = MkeyContext {
        qpn: ANY_QP,
        pd: PD,
        free: true,
        umr_enabled: true,
        translation_units: 4,
        ..<_>::default()
    }
    .with_access_mode(AccessMode::Ranges);
    let qp = |service| QpContext {
        service,
        pd: PD,
        uar: page,
        log_rq_entries: 4,
        log_sq_blocks: 4,
        send_cqn: CQN,
        recv_cqn: CQN,
        record: RECORD,
        ..QpContext::default()
    };
    let create_qp =
        |service| Command::CreateQp(CreateQp { context: qp(service), ..CreateQp::default() }, pages);
    let mut commands = vec![
        Command::EnableHca(Function::default()),
        Command::InitHca(InitHca::default()),
        Command::AllocUar(none),
        Command::CreateEq(CreateEq { context: eq, events: [0x1f_06be, 0, 0, 0] }, pages),
        Command::AllocUar(none),
        Command::CreateCq(CreateCq { context: cq, ..CreateCq::default() }, pages),
        Command::AllocPd(none),
        Command::CreateMkey(CreateMkey { context: key, ..CreateMkey::default() }, Bytes::default()),
        Command::CreateMkey(CreateMkey { context: indirect, ..CreateMkey::default() }, Bytes::default()),
        create_qp(0),
        create_qp(8),
    ];
    for (qpn, service) in QPNS.into_iter().zip([0, 8]) {
        let qpn = Qpn::new(qpn);
        let path = Path { lid: Lid::new(1), port: 1, ..Path::default() };
        let context =
            QpContext { mtu: 3, log_max_message: 30, remote_qpn: qpn, primary: path, ..qp(service) };
        let modify = ModifyQp { qpn, context, ..ModifyQp::default() };
        commands.extend([
            Command::Rst2InitQp(modify),
            Command::Init2RtrQp(modify),
            Command::Rtr2RtsQp(modify),
        ]);
    }
    commands.extend(netdev(list));
    commands
}

/// Returns the commands that create the netdev's queues and steer all frames to them. A device with an InfiniBand port
/// rejects them.
fn netdev(list: &[u8]) -> [Command<'_>; 15] {
    let none = NoArguments::default();
    let pages = Pages::parse(list);
    let domain = TransportDomain::new(1);
    let queue =
        WorkQueue { kind: 1, pd: PD, uar: UAR, record: RECORD, log_entries: 6, ..WorkQueue::default() };
    let sq = SqContext {
        flush_in_error: true,
        cqn: CQN,
        tis_count: 1,
        tisn: Tisn::new(1),
        queue: WorkQueue { log_stride: 6, ..queue },
        ..SqContext::default()
    };
    let queue = WorkQueue { log_stride: 5, ..queue };
    let rq = RqContext { flush_in_error: true, cqn: CQN, queue, ..RqContext::default() };
    let tir = TirContext { rqn: RQN, domain, unicast_loopback: true, ..TirContext::default() };
    let table = FlowTableContext { level: 9, log_size: 8, ..FlowTableContext::default() };
    let group =
        CreateFlowGroup { table: TABLE, first: 2, last: 99, criteria: 1, ..CreateFlowGroup::default() };
    let context = FlowContext {
        group: FlowGroupId::new(1),
        actions: FlowActions::FORWARD | FlowActions::COUNT,
        destination_count: 1,
        counter_count: 1,
        ..FlowContext::default()
    };
    let entry = SetFlowTableEntry { table: TABLE, index: 3, context, ..SetFlowTableEntry::default() };
    let ready = WorkQueueState::Ready.code();
    [
        Command::AllocTransportDomain(none),
        Command::CreateTis(CreateTis { context: TisContext { domain, ..TisContext::default() } }),
        Command::CreateSq(CreateSq { context: sq }, pages),
        Command::ModifySq(ModifySq {
            sqn: SQN,
            context: SqContext { state: ready, ..SqContext::default() },
            ..ModifySq::default()
        }),
        Command::CreateRq(CreateRq { context: rq }, pages),
        Command::ModifyRq(ModifyRq {
            rqn: RQN,
            context: RqContext { state: ready, ..RqContext::default() },
            ..ModifyRq::default()
        }),
        Command::CreateRqt(
            CreateRqt { context: RqtContext { max_entries: 4, entries: 1 } },
            RqNumbers::parse(&[0, 0, 0x40, 1]),
        ),
        Command::CreateTir(CreateTir { context: tir }),
        Command::AllocFlowCounter(AllocFlowCounter::default()),
        Command::CreateFlowTable(CreateFlowTable { table_type: 0, context: table }),
        Command::CreateFlowGroup(group),
        // One TIR and one flow counter.
        Command::SetFlowTableEntry(entry, Bytes::parse(&[2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])),
        Command::SetFlowTableRoot(SetFlowTableRoot { table: TABLE, ..SetFlowTableRoot::default() }),
        Command::DeleteFlowTableEntry(FlowEntrySelector { table: TABLE, index: 3, ..<_>::default() }),
        Command::SetFlowTableEntry(entry, Bytes::parse(&[2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])),
    ]
}

fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>, page: UarIndex) {
    match operation {
        2 | 3 | 5..=7 => command(guest, input, page),
        14 => {
            if guest.reset_or_disconnect(input) {
                bring_up(guest, page);
            }
        }
        16 | 17 => {
            let page = match input.byte() {
                0..128 => page,
                128..192 => UAR,
                _ => UarIndex::new(input.half().into()),
            };
            let offset =
                if input.byte() < 192 { [0x20, ARM_EQ, 0x48, SEND] } else { [0x24, 0x804, 0x900, 0xff8] };
            let offset = offset[usize::from(input.byte() % 4)];
            guest.ring(page, offset, input.bytes(8));
        }
        18 | 21 => {
            let value = if input.byte() < 128 { LAYOUT.queue } else { input.word() };
            guest.write(QUEUE_LOW, value);
        }
        24 => guest.write(COMMAND_DOORBELL, input.word()),
        28 => change_key(guest, input, page),
        26 => {
            // Write a send or receive WQE and ring the SQ's doorbell. The queues share their memory.
            let at = RINGS + 64 * u64::from(input.byte() % 64);
            guest.poke(
                at,
                &[0, 0, 0, [0x0a, 0x0e][usize::from(input.byte() % 2)], 0, 0x40, 0, input.byte() % 8],
            );
            guest.poke(at + 8, input.bytes(56));
            guest.poke(RECORD.get(), &[0, 0, 0, input.byte(), 0, 0, 0, input.byte()]);
            guest.ring(UAR, SEND, &(u64::from(SQN.get()) << 8).to_be_bytes());
        }
        25 => {
            // Overwrite part of a mailbox block. The block is rarely valid afterwards.
            let block = usize::from(input.byte() % 4);
            guest.post(0, &[0; 0x400], 0x400);
            guest.poke(LAYOUT.input(0, block) + 0x230, input.bytes(16));
            guest.submit(1);
        }
        _ => guest.hca.fail(),
    }
}

/// Uses a UMR to give the indirect key a four-unit layout, which is usually strided, and sends through that key.
fn change_key(guest: &mut Guest, input: &mut Input<'_>, page: UarIndex) {
    let [qpn, _] = QPNS;
    // The send queue has 16 blocks and follows a 256-byte receive queue.
    let first = input.byte() % 16;
    let header = RepeatBlock {
        byte_count: u32::from(input.byte()),
        key: if input.byte() < 224 { REPEAT_KEY } else { KEY },
        repetitions: u32::from(input.byte()),
        entries: u16::from(input.byte() % 5),
    };
    let mut list = header.emit().to_vec();
    for _ in 0..3 {
        let key = if input.byte() < 224 { KEY } else { INDIRECT_KEY };
        let (stride, byte_count) = (input.half() % 0x400, u16::from(input.byte()));
        list.extend(StridedEntry { stride, byte_count, key, va: Va::new(AIM.va) }.emit());
    }
    let control = UmrControl {
        inline: true,
        check_qpn: input.byte() < 64,
        units: 4,
        mask: MkeyMask::FREE | MkeyMask::LENGTH | MkeyMask::LOCAL_WRITE,
        ..UmrControl::default()
    };
    let mkey = MkeyContext {
        free: input.byte() < 32,
        length: u64::from(input.half()),
        local_write: true,
        ..MkeyContext::default()
    };
    let umr = Operation::Umr(Umr { control, mkey, translation: Translation::Inline(&list) });
    let data = DataSegment {
        byte_count: u32::from(input.half() % 0x1000),
        lkey: Lkey::new(INDIRECT_KEY),
        va: Va::new(input.byte().into()),
    };
    let wqe = |opcode, operation, data: &[DataItem<'static>]| {
        let control = ControlSegment {
            qpn: Qpn::new(qpn),
            immediate: INDIRECT_KEY.to_be_bytes(),
            ..ControlSegment::default()
        };
        SendWqe { control, opcode, xrc_srqn: None, operation, data: data.iter().copied().collect() }.emit()
    };
    let mut blocks = wqe(Opcode::Umr, umr, &[]);
    blocks.extend(wqe(Opcode::Send, Operation::Send, &[DataItem::Pointer(data)]));
    blocks.resize(256, 0);
    for (block, bytes) in (u64::from(first)..).zip(blocks.chunks(64)) {
        guest.poke(RINGS + 256 + 64 * (block % 16), bytes);
    }
    guest.poke(RECORD.get() + 4, &u32::from(first + 4).to_be_bytes());
    guest.ring(page, SEND, &(u64::from(qpn) << 8).to_be_bytes());
}

/// Executes a well-behaved driver's command, or a command without arguments, with some bytes changed.
fn command(guest: &mut Guest, input: &mut Input<'_>, page: UarIndex) {
    let list = RINGS.to_be_bytes();
    let usual = usual(&list, page);
    let choice = usize::from(input.byte());
    let mut bytes = match usual.get(choice) {
        Some(command) => command.emit(0),
        None => {
            let opcode = Command::OPCODES[choice % Command::OPCODES.len()].code();
            let mut bytes = vec![0; 0x110];
            bytes[..2].copy_from_slice(&opcode.to_be_bytes());
            bytes[8..12].copy_from_slice(&u32::from(input.byte()).to_be_bytes());
            bytes
        }
    };
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.half()) % bytes.len();
        bytes[at] = input.byte();
    }
    let len = match input.byte() {
        short @ 0..64 => short.into(),
        _ => 0x240,
    };
    guest.execute(&bytes, len);
}

fn check_new_client(guest: &mut Guest, page: UarIndex) {
    guest.hca.disconnect();
    guest.hca.set_link(true);
    guest.map_memory();
    bring_up(guest, page);
    let (header, _) = guest.command(&Command::Nop(NoArguments::default()));
    assert_eq!(header.status, 0);
    let (header, _) = guest.command(&Command::AllocPd(NoArguments::default()));
    assert_eq!(
        (header.status, header.syndrome),
        (0, 0),
        "the new client must be able to initialise the device"
    );
}
