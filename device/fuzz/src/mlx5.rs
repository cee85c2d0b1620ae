//! Fuzzes operations on the HCA used by `mlx5_core` and `mlx5_ib`.

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
use protocol::hca::mlx5::input::{Bytes, Command, Pages};
use protocol::hca::mlx5::mkey::{ANY_QP, CreateMkey, MkeyContext};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext};
use protocol::ids::{Cqn, Eqn, Iova, Lid, Pdn, Qpn, UarIndex};

use super::input::Input;
use super::machine::{Aim, LIDS, Machine};
use super::{OPERATIONS, TURNS};

/// Numbers of the first objects that a device creates.
const UAR: UarIndex = UarIndex::new(0x10);
const EQN: Eqn = Eqn::new(1);
const CQN: Cqn = Cqn::new(0x40);
const PD: Pdn = Pdn::new(1);
/// Numbers of an RC QP connected to itself, and of QP1.
const QPNS: [u32; 2] = [0x80, 0x81];
const KEY: u32 = 0x801;

const AIM: Aim = Aim { qpns: &QPNS, key: KEY, va: 0x3_0000, ends: LIDS };

/// Location of the command queue and mailboxes, in the 1 MiB of guest memory.
const LAYOUT: Layout = Layout { queue: 0x1000, mailboxes: 0x8_0000, blocks: 64 };
const RINGS: u64 = 0x2_0000;
const RECORD: Iova = Iova::new(0x2000);

type Guest = Driver<Machine<Mlx5>>;

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut guest = start(input.byte());
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        if !guest.operate(operation % 28, &mut input) {
            operate(&mut guest, operation % 28, &mut input);
        }
        guest.turns(TURNS);
    }
    check_new_client(&mut guest);
}

fn start(watched: u8) -> Guest {
    let [own, peer] = [1, 2].map(|lid| Identity::from_lid(Lid::new(lid)));
    let addresses = Addresses { own, peers: Vec::new(), default_peer: Some(peer) };
    // This interface always traps doorbells, so the bit that would map them selects the type of the port.
    let port = if watched & 8 == 0 { Port::InfiniBand } else { Port::Ethernet };
    let options = Options { port, ..Options::default() };
    let setup = Setup { options, mac: own.mac, engine: engine::Config::default() };
    let mut guest = Driver::new(Machine::of(Mlx5::new(setup), addresses, watched & !8, AIM), LAYOUT);
    bring_up(&mut guest);
    guest
}

/// Initialises the device as a driver does after the bus scan. Ignores errors, because memory may be unmapped.
fn bring_up(guest: &mut Guest) {
    guest.enable();
    guest.start();
    let list = RINGS.to_be_bytes();
    for command in usual(&list) {
        guest.command(&command);
    }
}

/// Returns the commands that a well-behaved driver uses to create connected QPs.
fn usual(list: &[u8]) -> Vec<Command<'_>> {
    let none = NoArguments::default();
    let pages = Pages::parse(list);
    let eq = EqContext { log_entries: 6, uar: UAR, ..EqContext::default() };
    let cq = CqContext { log_entries: 6, uar: UAR, eqn: EQN, record: RECORD, ..CqContext::default() };
    let key = MkeyContext { qpn: ANY_QP, key: 1, pd: PD, length64: true, ..MkeyContext::default() };
    let key = MkeyContext { local_write: true, remote_write: true, remote_read: true, atomic: true, ..key };
    let qp = |service| QpContext {
        service,
        pd: PD,
        uar: UAR,
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
        Command::CreateCq(CreateCq { context: cq, ..CreateCq::default() }, pages),
        Command::AllocPd(none),
        Command::CreateMkey(CreateMkey { context: key, ..CreateMkey::default() }, Bytes::default()),
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
    commands
}

fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation {
        2 | 3 | 5..=7 => command(guest, input),
        14 => {
            if guest.reset_or_disconnect(input) {
                bring_up(guest);
            }
        }
        16 | 17 => {
            let page = if input.byte() < 192 { UAR } else { UarIndex::new(input.half().into()) };
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
        25 => {
            // Overwrite part of a mailbox block. The block is then rarely valid.
            let block = usize::from(input.byte() % 4);
            guest.post(0, &[0; 0x400], 0x400);
            guest.poke(LAYOUT.input(0, block) + 0x230, input.bytes(16));
            guest.submit(1);
        }
        _ => guest.hca.fail(),
    }
}

/// Executes a well-behaved driver's command, or a command without arguments, with some bytes changed.
fn command(guest: &mut Guest, input: &mut Input<'_>) {
    let list = RINGS.to_be_bytes();
    let usual = usual(&list);
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

fn check_new_client(guest: &mut Guest) {
    guest.hca.disconnect();
    guest.hca.set_link(true);
    guest.map_memory();
    bring_up(guest);
    let (header, _) = guest.command(&Command::Nop(NoArguments::default()));
    assert_eq!(header.status, 0);
    let (header, _) = guest.command(&Command::AllocPd(NoArguments::default()));
    assert_eq!((header.status, header.syndrome), (0, 0), "the device is initialised");
}
