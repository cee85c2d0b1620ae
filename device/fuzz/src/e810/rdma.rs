//! Valid and invalid operations on the RDMA half of the NIC.

use card::frontend::snapshot::ControlRow;
use card::hca::Hca;
use card::memory::Permissions;
use card::vfio::server::Device as _;
use drivers::Bus as _;
use drivers::e810::queue_pair::{fragment, gather};
use drivers::e810::{CCQ_RING, CQP_RING, Driver, PBLE_SEGMENT, RDMA_BUFFER};
use e810::E810;
use protocol::Psn;
use protocol::hca::e810::rdma::WQE_LEN;
use protocol::hca::e810::rdma::index::{AhIndex, ArpIndex};
use protocol::hca::e810::rdma::number::MacNumber;
use protocol::hca::e810::rdma::operation::{Opcode, Operation};
use protocol::hca::e810::rdma::path::AddressHandleCommand;
use protocol::hca::e810::rdma::qp_context::QpContext;
use protocol::hca::e810::rdma::queue_pair::{QpKind, QpState};
use protocol::hca::e810::rdma::region::{RegisterMr, StagRights};
use protocol::hca::e810::regs::Register;
use protocol::ids::{Cqn, Iova, Pdn, Pkey, Qkey, Qpn, Va};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::super::input::Input;
use super::super::machine::{Machine, PSN};
use super::super::peer_frames;
use super::{AIM, ATTACKER, NEIGHBOUR, PAGE, SEALED};

type Guest = Driver<Machine<E810>>;

/// Numbers of three queue pairs: one connected to a peer whose frames the fuzzer generates, one connected to itself,
/// and one for datagrams.
pub(super) const QPNS: [u32; 3] = [PEER.get(), LOOPED.get(), DATAGRAM.get()];
const PEER: Qpn = Qpn::new(3);
const LOOPED: Qpn = Qpn::new(4);
const DATAGRAM: Qpn = Qpn::new(5);
const SEND_CQ: Cqn = Cqn::new(3);
const RECV_CQ: Cqn = Cqn::new(4);
const PD: Pdn = Pdn::new(6);
/// Key of the region that peers may access.
pub(super) const KEY: u32 = 0x0012_3401;
/// Guest address of the message data.
pub(super) const DATA: u64 = 0x1f0_0000;
const DATA_LEN: u64 = 0x1_0000;
/// Bus addresses of the RDMA half's memory, which starts after the read-only page.
const RANGE: std::ops::Range<u64> = 0x11_0000..0x200_0000;
/// Bus address of contexts and shadow areas.
const CONTEXTS: u64 = 0x11_0000;
const HOST_CONTEXT: u64 = 0x40_0000;

/// Number of entries in the control queue.
const CQP_ENTRIES: u32 = 2048;
/// Maximum number of ARP table entries. Snapshots do not list them, but [`ControlRow`] reports their number.
const MAX_NEIGHBOURS: usize = 4096;
/// Maximum number of work scheduler nodes. Snapshots do not list them, but [`ControlRow`] reports their number.
const MAX_NODES: usize = 512;

/// Maps zeroed memory for the RDMA half.
pub(super) fn map_memory(machine: &mut Machine<E810>) {
    let len = RANGE.end - RANGE.start;
    let fd = memfd_create("rdma", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .expect("a memfd can be created");
    ftruncate(&fd, len).expect("a memfd can be extended");
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("the memfd can be sealed");
    let all = Permissions { read: true, write: true };
    let mapped = machine.hca.memory().map(Iova::new(RANGE.start), len, all, Some((fd, 0)));
    mapped.expect("the RDMA memory range is free");
}

/// Initialises the RDMA half of a working NIC, including queue pairs in RTS.
pub(super) fn open(guest: &mut Guest) {
    guest.open_rdma(ATTACKER);
    guest.set_neighbour(2, NEIGHBOUR);
    for cqn in [SEND_CQ, RECV_CQ] {
        guest.create_cq(cqn, 64);
    }
    guest.perform_well(&Operation::RegisterMr(region()));
    guest.perform_well(&Operation::CreateAddressHandle(handle()));
    for (qpn, kind) in [(PEER, QpKind::Rc), (LOOPED, QpKind::Rc), (DATAGRAM, QpKind::Ud)] {
        let context = context(qpn);
        guest.create_qp(qpn, kind, &context);
        for state in [QpState::Idle, QpState::Rtr, QpState::Rts] {
            assert_eq!(guest.modify_qp(qpn, kind, state, &context).error, None, "{state:?}");
        }
    }
}

fn region() -> RegisterMr {
    RegisterMr {
        start: Va::new(DATA),
        len: DATA_LEN,
        pd: PD,
        stag: KEY,
        region: true,
        rights: StagRights::all(),
        remote: true,
        virtual_address: true,
        address: Iova::new(DATA),
        ..RegisterMr::default()
    }
}

fn handle() -> AddressHandleCommand {
    let [own, peer] = AIM.ends.map(|end| std::net::IpAddr::V4(end.ipv4).into());
    AddressHandleCommand {
        source_mac: MacNumber(ATTACKER),
        pd_low: 6,
        hop_limit: 64,
        arp: ArpIndex::new(2),
        index: AhIndex::new(1),
        ipv4: true,
        destination: peer,
        source: own,
        ..AddressHandleCommand::default()
    }
}

fn context(qpn: Qpn) -> QpContext {
    let [own, peer] = AIM.ends.map(|end| std::net::IpAddr::V4(end.ipv4).into());
    let looped = qpn == LOOPED;
    QpContext {
        ipv4: true,
        log_receive_quanta: 1,
        hop_limit: 64,
        receive_size: 4,
        send_size: 4,
        source_port: 0xc000,
        destination_ip: if looped { own } else { peer },
        local_ip: own,
        mtu: 256,
        arp_index: ArpIndex::new(if looped { 1 } else { 2 }),
        pkey: Pkey::DEFAULT,
        pd_low: 6,
        remote_qpn: qpn,
        qkey: Qkey::new(0x1111_1111),
        send_psn: Psn::new(PSN),
        recv_psn: Psn::new(PSN),
        retry_count: 7,
        rnr_retry: 7,
        send_cqn: SEND_CQ,
        recv_cqn: RECV_CQ,
        source_mac: MacNumber(ATTACKER),
        ord: 4,
        remote_write: true,
        remote_read: true,
        bind: true,
        fast_register: true,
        privileged: qpn == LOOPED,
        completion_context: u64::from(qpn.get()) << 32,
        ..QpContext::default()
    }
}

/// Posts a message from the loopback queue pair to itself.
pub(super) fn post_looped(guest: &mut Guest) {
    const SEND_SIGNALED: u64 = 0x03 << 32 | 1 << 62;
    guest.poke(DATA, &[0x77; 300]);
    guest.poke(DATA + 0x1000, &[0; 300]);
    guest.post_receive(LOOPED, &[fragment(DATA + 0x1000, KEY, 300)]);
    guest.post_send(LOOPED, &gather(SEND_SIGNALED, 0, None, &[fragment(DATA, KEY, 300)]));
}

pub(super) fn assert_looped(guest: &mut Guest) {
    for cqn in [SEND_CQ, RECV_CQ] {
        let polled = guest.poll_cq(cqn).expect("the message completes");
        assert!(!polled.cqe.error && polled.cqe.qpn == LOOPED, "{polled:?}");
    }
    assert_eq!(guest.peek(DATA + 0x1000, 300), [0x77; 300]);
}

/// Checks the limits on ARP table entries and work scheduler nodes.
pub(super) fn check(hca: &Hca<E810>) {
    for row in hca.rows::<ControlRow>(0) {
        assert!(row.neighbours <= MAX_NEIGHBOURS && row.nodes <= MAX_NODES, "{row:?}");
    }
}

/// Performs an operation as the driver, as one of its user processes, or as a peer.
pub(super) fn operate(guest: &mut Guest, operation: u8, input: &mut Input<'_>) {
    match operation % 20 {
        0..5 => control(guest, input),
        5..8 => send(guest, input),
        8 => {
            let (qpn, count) = (qpn(input), input.byte() % 5);
            let list: Vec<_> = (0..count).map(|_| piece(input)).collect();
            if QPNS.contains(&qpn.get()) {
                guest.post_receive(qpn, &list);
            }
        }
        9 | 10 => ring(guest, input),
        11 => scribble(guest, input),
        12 => modify(guest, input),
        13 => many(guest, input),
        14 => {
            // Start or stop the control queue, with the correct context address or a different one.
            let context = [HOST_CONTEXT, 0, address(input, HOST_CONTEXT)][usize::from(input.byte() % 3)];
            guest.write(Register::PfpeCcqphigh, u32::try_from(context >> 32).unwrap_or_default());
            guest.write(Register::PfpeCcqplow, u32::try_from(context & 0xffff_ffff).unwrap_or_default());
        }
        15 => {
            let frame = peer_frames::request(&AIM, input);
            guest.hca.handle_frame(&frame);
        }
        _ => send(guest, input),
    }
}

/// Executes a WQE on the control queue.
fn execute(guest: &mut Guest, wqe: &[u8; WQE_LEN]) {
    let index = guest.read(Register::PfpeCqptail) % CQP_ENTRIES;
    guest.poke(CQP_RING + u64::from(index) * WQE_LEN as u64, wqe);
    guest.write(Register::PfpeCqpdb, (index + 1) % CQP_ENTRIES);
}

/// Executes a control queue operation that is valid except for a few changed bytes, or one that consists of arbitrary
/// bytes.
fn control(guest: &mut Guest, input: &mut Input<'_>) {
    let choice = usize::from(input.byte());
    let mut wqe = match Opcode::ALL.get(choice % (Opcode::ALL.len() + 2)) {
        Some(opcode) => sensible(*opcode, input),
        None => {
            let mut wqe = [0; WQE_LEN];
            let given = input.bytes(64);
            wqe.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
            wqe
        }
    };
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte()) % WQE_LEN;
        if let Some(byte) = wqe.get_mut(at) {
            *byte = input.byte();
        }
    }
    execute(guest, &wqe);
}

/// Returns a WQE for an operation that is valid or nearly valid.
fn sensible(opcode: Opcode, input: &mut Input<'_>) -> [u8; WQE_LEN] {
    let number = u64::from(if input.byte() < 224 { u16::from(input.byte() % 8) } else { input.half() });
    let small = u64::from(input.byte());
    let mut words = [0_u64; WQE_LEN / 8];
    words[3] = 1 << 63 | u64::from(opcode.code()) << 32 | number;
    match opcode {
        Opcode::RegisterMr => {
            return Operation::RegisterMr(RegisterMr {
                stag: u32::try_from(number << 8 | small).unwrap_or_default(),
                address: Iova::new(address(input, DATA)),
                ..region()
            })
            .emit(true);
        }
        Opcode::CreateAddressHandle | Opcode::ModifyAddressHandle => {
            let command = AddressHandleCommand {
                index: AhIndex::new(u32::try_from(number).unwrap_or_default()),
                arp: ArpIndex::new(u16::from(input.byte() % 4)),
                ..handle()
            };
            return if opcode == Opcode::CreateAddressHandle {
                Operation::CreateAddressHandle(command).emit(true)
            } else {
                Operation::ModifyAddressHandle(command).emit(true)
            };
        }
        Opcode::CreateQp | Opcode::ModifyQp => {
            words[2] = address(input, CONTEXTS + number * 256);
            words[5] = address(input, CONTEXTS + 0x1_0000 + number * 64);
            words[3] |= (3 + small % 2) << 48 | (small >> 1 & 7) << 60 | small >> 7 << 45;
        }
        Opcode::CreateCq | Opcode::ModifyCq => {
            words[0] = 1 + small;
            words[3] |= (u64::from(input.byte()) % 4) << 44 | 1 << 49 | 1 << 46 | (small % 8) << 47 | 1 << 43;
            words[4] = address(input, 0x20_0000 + number * 0x1_0000);
            words[5] = address(input, CONTEXTS + 0x2_0000 + number * 64);
            words[6] = small;
        }
        Opcode::CreateCeq | Opcode::CreateAeq => {
            words[2] = 1 + small;
            words[4] = address(input, 0x48_0000 + number * 0x1000);
        }
        Opcode::AllocateStag => {
            words[1] = 6 << 46 | 0x1_0000;
            words[2] = number << 8;
            words[3] |= (small & 3) << 42;
        }
        Opcode::DeallocateStag => words[2] = number << 8,
        Opcode::ManageArp => {
            words[2] = 0x02e8_1000_0000 | small;
            words[3] |= (small & 1) << 42;
        }
        Opcode::UpdateSegments => {
            words[0] = 0x8000_8000 | (number % 64);
            words[1] = address(input, PBLE_SEGMENT) & !0xfff | 3 << 2 | small & 3;
            words[2] = address(input, RDMA_BUFFER);
            words[3] = 1 << 63 | u64::from(opcode.code()) << 32 | small & 0x8f;
        }
        Opcode::QueryFpm | Opcode::CommitFpm | Opcode::QueryFeatures | Opcode::GatherStatistics => {
            words[3] = 1 << 63 | u64::from(opcode.code()) << 32 | if small < 200 { 0xd0 } else { small };
            words[4] = address(input, RDMA_BUFFER);
        }
        Opcode::CreateGroup | Opcode::ModifyGroup | Opcode::DestroyGroup => {
            words[3] |= 1 << 60;
            words[4] = address(input, CONTEXTS + 0x3_0000);
            words[6] = 0xef01_0200 | small;
        }
        Opcode::ManageNode => words[3] |= (small & 3) << 52 | (small >> 2 & 7) << 16 | small >> 7 << 61,
        Opcode::FlushQp => {
            words[1] = u64::from(input.half());
            words[2] = 0x0001_0001_0001_0001;
            words[3] |= (small & 15) << 59;
        }
        _ => words[4] = address(input, RDMA_BUFFER),
    }
    words[3] = words[3] & !0x3f_0000_0000 | u64::from(opcode.code()) << 32;
    *words.map(u64::to_le_bytes).as_flattened().first_chunk().expect("eight words")
}

/// Posts a work request with an arbitrary opcode and with fragments inside or outside the data region.
fn send(guest: &mut Guest, input: &mut Input<'_>) {
    let (qpn, choice, flags) = (qpn(input), input.byte(), input.byte());
    let opcode = if choice < 240 { u64::from(choice % 14) } else { u64::from(choice) & 0x3f };
    let key = match opcode {
        _ if qpn == DATAGRAM => 1,
        _ if flags & 1 != 0 => u64::from(input.word()),
        _ => u64::from(KEY),
    };
    let bits = u64::from(flags) << 60 & 0x7 << 60 | u64::from(input.byte() & 0x7f) << 48;
    let remote = match qpn {
        DATAGRAM => 0x0000_0005_1111_1111,
        _ => DATA + u64::from(input.half()),
    };
    let list: Vec<_> = (0..input.byte() % 4).map(|_| piece(input)).collect();
    let mut wqe = gather(opcode << 32 | key | bits, remote, (flags & 8 != 0).then_some(7), &list);
    if flags & 16 != 0 {
        let given = input.bytes(64);
        wqe.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
    }
    if !QPNS.contains(&qpn.get()) {
        return guest.ring_send(qpn);
    }
    guest.put_send(qpn, &wqe);
    if flags & 32 == 0 {
        guest.ring_send(qpn);
    }
}

fn piece(input: &mut Input<'_>) -> [u8; 16] {
    let flags = input.byte();
    let key = if flags & 3 != 0 { KEY } else { input.word() & 0xffff };
    let len = if flags & 12 != 0 { u32::from(input.half() % 2048) } else { input.word() & 0x7fff_ffff };
    fragment(address(input, DATA + u64::from(flags) * 8), key, len)
}

/// Writes to a doorbell of the kernel or of a user process, or to CCQPSTATUS.
fn ring(guest: &mut Guest, input: &mut Input<'_>) {
    let registers = [
        Register::UserWqealloc,
        Register::PfpeWqealloc,
        Register::UserCqarm,
        Register::PfpeCqarm,
        Register::PfpeAeqalloc,
        Register::PfpeCqack,
        Register::PfpeCqpdb,
        Register::PfpeCcqpstatus,
    ];
    let register = registers[usize::from(input.byte()) % registers.len()];
    let number = if input.byte() < 192 { u32::from(input.byte() % 8) } else { input.word() };
    // Write an arm word as software would.
    let arm = u64::from(input.byte()) << 10;
    guest.poke(CONTEXTS + 0x2_0000 + u64::from(number % 8) * 64 + 32, &arm.to_le_bytes());
    guest.write(register, number);
}

/// Overwrites memory that the device reads.
fn scribble(guest: &mut Guest, input: &mut Input<'_>) {
    const PLACES: [u64; 9] = [
        CONTEXTS,
        CONTEXTS + 0x1_0000,
        CONTEXTS + 0x2_0000,
        CONTEXTS + 0x3_0000,
        HOST_CONTEXT,
        PBLE_SEGMENT,
        RDMA_BUFFER,
        CCQ_RING,
        0x100_0000 + 3 * 0x2_0000,
    ];
    let place = PLACES[usize::from(input.byte()) % PLACES.len()];
    let at = place + u64::from(input.half() % 0x800);
    guest.poke(at, input.bytes(64));
}

/// Modifies a queue pair with a partly changed context. May destroy and recreate the queue pair first.
fn modify(guest: &mut Guest, input: &mut Input<'_>) {
    let (qpn, flags) = (qpn(input), input.byte());
    let mut bytes = context(qpn).emit();
    let ring = 0x100_0000 + u64::from(qpn.get() % 16) * 0x2_0000;
    bytes[8..16].copy_from_slice(&ring.to_le_bytes());
    bytes[16..24].copy_from_slice(&(ring + 0x1_0000).to_le_bytes());
    for _ in 0..flags % 4 {
        let at = usize::from(input.byte());
        if let Some(byte) = bytes.get_mut(at) {
            *byte = input.byte();
        }
    }
    let at = CONTEXTS + u64::from(qpn.get() % 256) * 256;
    guest.poke(at, &bytes);
    let kind = u64::from(flags & 4 == 0) ^ 1 | if qpn == DATAGRAM { 4 } else { 3 };
    let wqe = |opcode: Opcode, state: u64| {
        let mut words = [0_u64; WQE_LEN / 8];
        words[2] = at;
        words[3] = 1 << 63 | u64::from(opcode.code()) << 32 | u64::from(qpn.get()) | kind << 48 | state << 60;
        words[5] = CONTEXTS + 0x1_0000 + u64::from(qpn.get() % 256) * 64;
        *words.map(u64::to_le_bytes).as_flattened().first_chunk().expect("eight words")
    };
    if flags & 8 != 0 {
        execute(guest, &wqe(Opcode::DestroyQp, 0));
        execute(guest, &wqe(Opcode::CreateQp, 1));
    }
    for state in [1, 4, 2].into_iter().take(usize::from(flags >> 4 & 3)) {
        execute(guest, &wqe(Opcode::ModifyQp, state));
    }
    if flags & 0x40 != 0 {
        execute(guest, &wqe(Opcode::ModifyQp, u64::from(input.byte() % 8)));
    }
}

/// Posts many control queue operations of one kind and rings the doorbell once.
fn many(guest: &mut Guest, input: &mut Input<'_>) {
    const AT_ONCE: u32 = 200;
    const KINDS: [Opcode; 8] = [
        Opcode::CreateQp,
        Opcode::CreateCq,
        Opcode::AllocateStag,
        Opcode::CreateAddressHandle,
        Opcode::ManageArp,
        Opcode::CreateGroup,
        Opcode::ManageNode,
        Opcode::CreateCeq,
    ];
    let kind = KINDS[usize::from(input.byte()) % KINDS.len()];
    let first = u64::from(input.half() % 0x1000);
    let index = guest.read(Register::PfpeCqptail) % CQP_ENTRIES;
    for nth in 0..AT_ONCE {
        let number = first + u64::from(nth);
        let mut words = [0_u64; WQE_LEN / 8];
        words[0] = 4;
        words[2] = match kind {
            Opcode::AllocateStag => number << 8,
            Opcode::CreateQp => CONTEXTS + 3 * 256,
            _ => 0x40,
        };
        words[3] = 1 << 63 | number | u64::from(kind.code()) << 32;
        words[3] |= match kind {
            Opcode::CreateQp => 3 << 48 | 1 << 60,
            Opcode::ManageNode => 1 << 61,
            Opcode::AllocateStag => 1 << 43,
            Opcode::ManageArp => 1 << 42,
            _ => 0,
        };
        words[4] = 0x48_0000;
        words[5] = CONTEXTS + 0x1_0000;
        let wqe: [u8; WQE_LEN] =
            *words.map(u64::to_le_bytes).as_flattened().first_chunk().expect("eight words");
        guest.poke(CQP_RING + u64::from((index + nth) % CQP_ENTRIES) * WQE_LEN as u64, &wqe);
    }
    guest.write(Register::PfpeCqpdb, (index + AT_ONCE) % CQP_ENTRIES);
}

fn qpn(input: &mut Input<'_>) -> Qpn {
    Qpn::new(AIM.qpn(input))
}

/// Returns a bus address: the correct one, a read-only one, one at the end of a range, or an arbitrary one.
fn address(input: &mut Input<'_>, right: u64) -> u64 {
    match input.byte() {
        0..208 => right,
        208..216 => SEALED + u64::from(input.byte()) * 8,
        216..220 => SEALED + PAGE - u64::from(input.byte()),
        220..228 => RANGE.end - u64::from(input.byte()),
        228..236 => u64::MAX - u64::from(input.byte()),
        236..248 => u64::from(input.word()) % RANGE.end,
        _ => u64::from(input.word()) << 32 | u64::from(input.word()),
    }
}
