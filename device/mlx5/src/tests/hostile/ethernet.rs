//! Sends random commands for netdev objects and flow tables, interleaved with frames and doorbells.

use protocol::hca::mlx5::flow_entry::{FlowActions, FlowContext, FlowEntrySelector, SetFlowTableEntry};
use protocol::hca::mlx5::flow_group::{CreateFlowGroup, FlowGroupSelector};
use protocol::hca::mlx5::flow_table::{
    CreateFlowTable, FlowTableContext, FlowTableSelector, ModifyFlowTable, SetFlowTableRoot,
};
use protocol::hca::mlx5::input::Bytes;
use protocol::hca::mlx5::mkey::{ANY_QP, CreateMkey, MkeyContext};
use protocol::hca::mlx5::nic_vport::ModifyNicVport;
use protocol::hca::mlx5::resource::{RqNumber, RqtNumber, SqNumber, TirNumber, TisNumber};
use protocol::hca::mlx5::rq::{CreateRq, ModifyRq, RqContext};
use protocol::hca::mlx5::rqt::{CreateRqt, ModifyRqt, RqNumbers, RqtContext};
use protocol::hca::mlx5::sq::{CreateSq, ModifySq, SqContext};
use protocol::hca::mlx5::srq::WorkQueue;
use protocol::hca::mlx5::tir::{CreateTir, ModifyTir, TirContext};
use protocol::hca::mlx5::tis::{CreateTis, TisContext};
use protocol::ids::{FlowGroupId, FlowTableId, Rqn, Rqtn, Sqn, Tirn, Tisn, TransportDomain};

use super::*;
use crate::steering::tests::frames::{C_TAG, OWN, arp, tcp4, udp6};

pub(in super::super) const SQ: u64 = 0x60_0000;
pub(in super::super) const RQ: u64 = 0x61_0000;
pub(in super::super) const SQN: Sqn = Sqn::new(0x4000);
const RQN: Rqn = Rqn::new(0x4001);
const TABLE: FlowTableId = FlowTableId::new(1);
const GROUP: FlowGroupId = FlowGroupId::new(1);
const TIRN: Tirn = Tirn::new(1);
const RQTN: Rqtn = Rqtn::new(1);
/// The first `CREATING` commands returned by [`usual`] create objects. The rest use or destroy them.
pub(in super::super) const CREATING: usize = 14;

/// Returns the inputs of valid commands, in an order in which all of them succeed.
pub(in super::super) fn usual() -> Vec<Vec<u8>> {
    let domain = TransportDomain::new(1);
    let queue = WorkQueue {
        kind: 1,
        pd: Pdn::new(1),
        uar: UarIndex::new(16),
        record: RECORD,
        ..WorkQueue::default()
    };
    let queue = WorkQueue { log_entries: 6, ..queue };
    let cqn = Cqn::new(0x40);
    let sq = SqContext {
        flush_in_error: true,
        cqn,
        tis_count: 1,
        tisn: Tisn::new(1),
        queue: WorkQueue { log_stride: 6, ..queue },
        ..SqContext::default()
    };
    let rq = RqContext {
        flush_in_error: true,
        cqn,
        queue: WorkQueue { log_stride: 4, ..queue },
        ..<_>::default()
    };
    let key =
        MkeyContext { qpn: ANY_QP, local_read: true, local_write: true, length64: true, ..<_>::default() };
    let key = MkeyContext { pd: Pdn::new(1), ..key };
    let tir = TirContext {
        dispatch: 1,
        rqtn: RQTN,
        hash_function: 2,
        domain,
        unicast_loopback: true,
        ..<_>::default()
    };
    let (sq_pages, rq_pages) = (pages(SQ, 1), pages(RQ, 1));
    let queues = RQN.get().to_be_bytes();
    let rqt = RqtContext { max_entries: 4, entries: 1 };
    let table = FlowTableContext { level: 9, log_size: 4, ..FlowTableContext::default() };
    let destination = [2, 0, 0, 1, 0, 0, 0, 0];
    let context =
        FlowContext { group: GROUP, actions: FlowActions::FORWARD, destination_count: 1, ..<_>::default() };
    let entry = SetFlowTableEntry { table: TABLE, index: 3, context, ..SetFlowTableEntry::default() };
    let state = |state| SqContext { state, ..SqContext::default() };
    let rq_state = |state| RqContext { state, ..RqContext::default() };
    let commands = [
        Command::CreateMkey(CreateMkey { context: key, ..CreateMkey::default() }, Bytes::default()),
        Command::AllocTransportDomain(BARE),
        Command::CreateTis(CreateTis { context: TisContext { domain, ..TisContext::default() } }),
        Command::CreateSq(CreateSq { context: sq }, Pages::parse(&sq_pages)),
        Command::ModifySq(ModifySq { sqn: SQN, context: state(1), ..ModifySq::default() }),
        Command::CreateRq(CreateRq { context: rq }, Pages::parse(&rq_pages)),
        Command::ModifyRq(ModifyRq { rqn: RQN, context: rq_state(1), ..ModifyRq::default() }),
        Command::CreateRqt(CreateRqt { context: rqt }, RqNumbers::parse(&queues)),
        Command::CreateTir(CreateTir { context: tir }),
        Command::CreateFlowTable(CreateFlowTable { table_type: 0, context: table }),
        Command::CreateFlowGroup(CreateFlowGroup {
            table: TABLE,
            first: 2,
            last: 7,
            criteria: 1,
            ..<_>::default()
        }),
        Command::SetFlowTableEntry(entry, Bytes::parse(&destination)),
        Command::SetFlowTableRoot(SetFlowTableRoot { table: TABLE, ..SetFlowTableRoot::default() }),
        Command::AllocFlowCounter(<_>::default()),
        Command::ModifyFlowTable(ModifyFlowTable { table: TABLE, ..ModifyFlowTable::default() }),
        Command::ModifyTir(ModifyTir { tirn: TIRN, fields: 4, context: tir }),
        Command::ModifyRqt(
            ModifyRqt { rqtn: RQTN, context: rqt, ..ModifyRqt::default() },
            RqNumbers::parse(&queues),
        ),
        Command::ModifyNicVportContext(ModifyNicVport { fields: 0xc00, ..<_>::default() }, Bytes::default()),
        Command::ModifySq(ModifySq { sqn: SQN, context: state(3), ..ModifySq::default() }),
        Command::ModifyRq(ModifyRq { rqn: RQN, context: rq_state(3), ..ModifyRq::default() }),
        Command::DeleteFlowTableEntry(FlowEntrySelector { table: TABLE, index: 3, ..<_>::default() }),
        Command::DestroyFlowGroup(FlowGroupSelector { table: TABLE, group: GROUP, ..<_>::default() }),
        Command::DestroyFlowTable(FlowTableSelector { table: TABLE, ..<_>::default() }),
        Command::DestroyTir(TirNumber { tirn: TIRN }),
        Command::DestroyRqt(RqtNumber { rqtn: RQTN }),
        Command::DestroyRq(RqNumber { rqn: RQN }),
        Command::DestroySq(SqNumber { sqn: SQN }),
        Command::DestroyTis(TisNumber { tisn: Tisn::new(1) }),
    ];
    commands.iter().map(|command| command.emit(0)).collect()
}

pub(in super::super) fn populated_ethernet(commands: &[Vec<u8>]) -> Driver {
    let mut driver = initialised_with_ethernet();
    let uar = driver.alloc_uar();
    let eqn = driver.create_eq(uar, 0, EventMask::COMMAND, 0x40_0000);
    driver.alloc_pd();
    driver.create_cq(uar, eqn, 0x41_0000);
    for (number, command) in commands.iter().take(CREATING).enumerate() {
        assert_eq!(driver.execute(command, 16)[..8], [0; 8], "command {number}");
    }
    driver
}

/// Replaces a few words at random. Most of the new values are small numbers, single bits or the numbers of
/// other objects.
fn mutate(random: &mut Random, input: &mut [u8]) {
    for _ in 0..random.below(4) {
        let at = 8 + random.below(input.len() - 8) / 4 * 4;
        let Some(word) = input.get_mut(at..at + 4) else { continue };
        let number = random.next();
        let value = match number % 4 {
            0 => u32::try_from(number >> 32).unwrap(),
            1 => 0x4000 + u32::try_from(number >> 61).unwrap(),
            2 => 1 << (number >> 59),
            _ => u32::try_from(number >> 62).unwrap(),
        };
        word.copy_from_slice(&value.to_be_bytes());
    }
}

/// Writes a random send WQE, a receive WQE and random doorbell records, and rings an SQ doorbell.
fn work(random: &mut Random, driver: &mut Driver) {
    let mut wqe = [0; 64];
    random.fill(&mut wqe);
    wqe[3] = [0x0a, 0x0e, 0, wqe[3]][random.below(4)];
    wqe[4..7].copy_from_slice(&[0, 0x40, 0]);
    wqe[7] %= 8;
    wqe[28..30].fill(0);
    driver.poke(SQ + 64 * (random.next() % 64), &wqe);
    driver.poke(RQ + 16 * (random.next() % 64), &[0, 0, 5, 0xf2, 0, 0, 8, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    let mut record = [0; 8];
    random.fill(&mut record);
    (record[2], record[6]) = (0, 0);
    driver.poke(RECORD.get(), &record);
    let sqn = SQN.get() + u32::try_from(random.next() % 4).unwrap();
    driver.ring(UarIndex::new(16), driver::SEND, &(u64::from(sqn) << 8).to_be_bytes());
}

#[test]
fn random_ethernet_commands_complete() {
    let (mut random, commands) = (Random(0x7f4a_7c15_9e37_79b9), usual());
    let frames = [arp(OWN), tcp4(OWN, &[C_TAG]), udp6(OWN, &[]), vec![0xff; 13], vec![0xff; 1500]];
    let mut driver = populated_ethernet(&commands);
    for round in 0..20_000 {
        if round % 200 == 0 {
            driver = populated_ethernet(&commands);
        }
        let mut input = commands[random.below(commands.len())].clone();
        mutate(&mut random, &mut input);
        driver.post(0, &input, random.below(600));
        driver.submit(1);
        assert_eq!(driver.owner_byte(0) & 1, 0, "round {round}");
        work(&mut random, &mut driver);
        let frame = &frames[random.below(frames.len())];
        driver.hca.handle_frame(frame);
        // A random LSO request can produce more frames than the device sends in one turn.
        driver.hca.drain();
        driver.hca.outbound().clear();
        if let Some(deadline) = driver.hca.next_deadline().filter(|_| round % 16 == 0) {
            driver.advance(deadline);
        }
    }
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
}
