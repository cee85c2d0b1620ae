//! A hostile ConnectX driver. Each of its requests reads as many key list entries as the limit on a single access
//! permits.
//!
//! The requests use a key whose entries (the outer list) refer to a second key, which has its own entries (the inner
//! list). The entries of the outer list refer alternately to the last and the first byte that the inner list maps.
//! Resolving the last byte requires a search of the whole inner list.

use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use drivers::Bus as _;
use drivers::mlx5::{Driver, Layout, SEND};
use protocol::hca::mlx5::command::OutputHeader;
use protocol::hca::mlx5::cq::{CqContext, CreateCq};
use protocol::hca::mlx5::cqe::{Cqe, INITIAL_OWNER_BYTE};
use protocol::hca::mlx5::device::{Function, InitHca, NoArguments};
use protocol::hca::mlx5::eq::{CreateEq, EqContext};
use protocol::hca::mlx5::input::{Bytes, Command, Pages};
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, CreateMkey, Klm, MkeyContext};
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, ReceiveKind, Service};
use protocol::hca::mlx5::resource::{CqNumber, EqNumber, MkeyNumber, PdNumber, QpNumber, UarNumber};
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::hca::mlx5::wqe::{
    ControlSegment, DataItem, DataSegment, Opcode, Operation, RemoteSegment, SendWqe, Translation, Umr,
};
use protocol::ids::{Iova, Lid, Lkey, Pdn, Qpn, Rkey, UarIndex, Va};
use smallvec::smallvec;

use super::{ATTACK_TIMEOUT, Vmm};

/// Bus addresses of the rings, the doorbell records and the data page.
const EQ: u64 = 0x40_0000;
const CQ: u64 = 0x41_0000;
const SQ: u64 = 0x42_0000;
const CQ_RECORD: Iova = Iova::new(0x43_0000);
const QP_RECORD: Iova = Iova::new(0x43_0040);
const DATA: u64 = 0x44_0000;
const DATA_LEN: u64 = 0x1_0000;
const LOG_CQES: u8 = 6;
const LOG_BLOCKS: u8 = 5;

const NONE: NoArguments = NoArguments { op_mod: 0 };
/// Number of entries in the inner list. Each entry covers one byte of the data page.
const INNER: u32 = 2048;
/// Length of a request and number of entries in the outer list. A request searches the inner list once for every two
/// bytes, which stays within the limit on a single access.
const LEN: u32 = 1000;
/// Number of requests in a batch.
const REQUESTS: u32 = 4;

fn mkey(pd: Pdn, mode: AccessMode) -> MkeyContext {
    let context = MkeyContext { qpn: ANY_QP, key: 1, pd, local_read: true, ..MkeyContext::default() };
    context.with_access_mode(mode)
}

fn wqe(opcode: Opcode, operation: Operation<'_>) -> SendWqe<'_> {
    let control = ControlSegment { completion: 2, ..ControlSegment::default() };
    SendWqe { control, opcode, xrc_srqn: None, operation, data: smallvec![] }
}

/// A driver whose QP is connected to itself.
pub(super) struct LongLists {
    driver: Driver<Vmm>,
    uar: UarIndex,
    qpn: Qpn,
    pd: Pdn,
    /// Key of the data region.
    key: u32,
    /// The key that requests use.
    outer: u32,
    posted: u16,
    reaped: u32,
}

fn pages(first: u64, count: u64) -> Vec<u8> {
    (0..count).flat_map(|page| (first + (page << 12)).to_be_bytes()).collect()
}

fn ok<const LEN: usize>(driver: &mut Driver<Vmm>, command: &Command<'_>) -> [u8; LEN] {
    let (header, output) = driver.command(command);
    assert_eq!(header, OutputHeader::default(), "{}", command.opcode().name());
    *output.first_chunk().unwrap()
}

fn create_mkey(driver: &mut Driver<Vmm>, create: CreateMkey, list: &[u8]) -> u32 {
    let number = MkeyNumber::parse(&ok(driver, &Command::CreateMkey(create, Bytes::parse(list))));
    number.index.key(create.context.key)
}

impl LongLists {
    pub(super) fn new(path: &FilePath, lid: Lid) -> Self {
        let mut driver = Driver::new(Vmm::attach(path), Layout::LARGE);
        driver.enable();
        driver.start();
        ok::<8>(&mut driver, &Command::EnableHca(Function { function: 0 }));
        ok::<8>(&mut driver, &Command::InitHca(InitHca::default()));
        let uar = UarNumber::parse(&ok(&mut driver, &Command::AllocUar(NONE))).uar;
        let eq = EqContext { log_entries: 8, uar, ..EqContext::default() };
        let list = pages(EQ, 4);
        let create = Command::CreateEq(CreateEq { context: eq, events: [0; 4] }, Pages::parse(&list));
        let eqn = EqNumber::parse(&ok(&mut driver, &create)).eqn;
        let pd = PdNumber::parse(&ok(&mut driver, &Command::AllocPd(NONE))).pd;
        let cq = CqContext { log_entries: LOG_CQES, uar, eqn, record: CQ_RECORD, ..CqContext::default() };
        let list = pages(CQ, 1);
        let create = Command::CreateCq(CreateCq { context: cq, ..CreateCq::default() }, Pages::parse(&list));
        let cqn = CqNumber::parse(&ok(&mut driver, &create)).cqn;
        for entry in 0..1 << LOG_CQES {
            driver.poke(CQ + entry * 64 + 63, &[INITIAL_OWNER_BYTE]);
        }
        let list = pages(DATA, DATA_LEN >> 12);
        let units = u32::try_from(list.len() / 16).unwrap();
        let region = MkeyContext {
            length: DATA_LEN,
            log_page: 12,
            local_write: true,
            remote_write: true,
            translation_units: units,
            ..mkey(pd, AccessMode::Pages)
        };
        let create = CreateMkey { context: region, translation_units: units, ..CreateMkey::default() };
        let key = create_mkey(&mut driver, create, &list);
        let context = QpContext {
            service: Service::Rc.code(),
            pd,
            receive_kind: ReceiveKind::None.code(),
            log_sq_blocks: LOG_BLOCKS,
            uar,
            send_cqn: cqn,
            recv_cqn: cqn,
            record: QP_RECORD,
            ..QpContext::default()
        };
        let list = pages(SQ, 1);
        let create = Command::CreateQp(CreateQp { context, ..CreateQp::default() }, Pages::parse(&list));
        let qpn = QpNumber::parse(&ok(&mut driver, &create)).qpn;
        connect(&mut driver, context, qpn, lid);
        let mut hostile = Self { driver, uar, qpn, pd, key, outer: 0, posted: 0, reaped: 0 };
        let inner = hostile.create_list(key, (0..INNER).map(u64::from));
        let last = u64::from(INNER - 1);
        hostile.outer =
            hostile.create_list(inner, (0..LEN).map(|byte| if byte.is_multiple_of(2) { last } else { 0 }));
        hostile
    }

    /// Creates a key whose list entries each refer to one byte of the region of another key.
    fn create_list(&mut self, target: u32, bytes: impl Iterator<Item = u64>) -> u32 {
        let klm = |va| Klm { byte_count: 1, key: target, va: Va::new(va) }.emit();
        let list: Vec<u8> = bytes.flat_map(klm).collect();
        let units = u32::try_from(list.len() / 16).unwrap();
        self.driver.poke(DATA, &list);
        let free = MkeyContext {
            free: true,
            umr_enabled: true,
            translation_units: units,
            ..mkey(self.pd, AccessMode::Ranges)
        };
        let create = CreateMkey { context: free, ..CreateMkey::default() };
        let key = create_mkey(&mut self.driver, create, &[]);
        let control = UmrControl {
            check_free: true,
            units: u16::try_from(units).unwrap(),
            // The fields that a fast registration sets (mlx5 interface, section 13.3).
            mask: MkeyMask::from_bits_retain(0x209e_2143),
            ..UmrControl::default()
        };
        let registered = MkeyContext { free: false, length: units.into(), ..free };
        let place = DataSegment { byte_count: units * 16, lkey: Lkey::new(self.key), va: Va::new(0) };
        let mut umr = wqe(
            Opcode::Umr,
            Operation::Umr(Umr { control, mkey: registered, translation: Translation::Pointer(place) }),
        );
        umr.control.immediate = key.to_be_bytes();
        self.post(umr);
        self.reap();
        key
    }

    fn post(&mut self, mut wqe: SendWqe<'_>) {
        (wqe.control.qpn, wqe.control.index) = (self.qpn, self.posted);
        let bytes = wqe.emit();
        for block in bytes.chunks(64) {
            let at = SQ + u64::from(self.posted % (1 << LOG_BLOCKS)) * 64;
            self.driver.poke(at, block);
            self.posted = self.posted.wrapping_add(1);
        }
        self.driver.poke(QP_RECORD.get() + 6, &self.posted.to_be_bytes());
        self.driver.ring(self.uar, SEND, &bytes[..8]);
    }

    /// Executes requests until `stop` is set. Counts the batches in `rounds`.
    pub(super) fn run(&mut self, rounds: &AtomicU32, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.execute();
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Posts a batch of requests and waits for all completions.
    fn execute(&mut self) {
        for _ in 0..REQUESTS {
            let target = RemoteSegment { va: Va::new(DATA_LEN / 2), rkey: Rkey::new(self.key) };
            let source = DataSegment { byte_count: LEN, lkey: Lkey::new(self.outer), va: Va::new(0) };
            self.post(SendWqe {
                data: smallvec![DataItem::Pointer(source)],
                ..wqe(Opcode::Write, Operation::Write(target))
            });
        }
        for _ in 0..REQUESTS {
            self.reap();
        }
    }

    fn reap(&mut self) {
        let entries = 1 << LOG_CQES;
        let at = CQ + u64::from(self.reaped % entries) * 64;
        let expected = self.reaped / entries % 2 == 1;
        let start = Instant::now();
        let cqe = loop {
            let bytes = self.driver.peek(at, 64);
            match Cqe::parse(bytes.first_chunk().unwrap()) {
                Ok((cqe, owner)) if owner == expected => break cqe,
                _ => assert!(start.elapsed() < ATTACK_TIMEOUT, "request {} has no completion", self.reaped),
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(cqe, Cqe::Sent(_)), "{cqe:?}");
        self.reaped = self.reaped.wrapping_add(1);
        self.driver.poke(CQ_RECORD.get(), &self.reaped.to_be_bytes());
    }
}

/// Connects the QP to itself.
fn connect(driver: &mut Driver<Vmm>, context: QpContext, qpn: Qpn, lid: Lid) {
    let modify = |context| ModifyQp { qpn, optional: QpAttributes::empty(), context };
    let init = QpContext { primary: Path { port: 1, ..Path::default() }, remote_write: true, ..context };
    let rtr = QpContext {
        mtu: 3,
        log_max_message: 30,
        remote_qpn: qpn,
        min_rnr_timer: 12,
        remote_write: true,
        primary: Path { lid, ..Path::default() },
        ..QpContext::default()
    };
    let rts = QpContext {
        retry_count: 7,
        rnr_retry: 7,
        primary: Path { ack_timeout: 18, ..Path::default() },
        ..QpContext::default()
    };
    ok::<8>(driver, &Command::Rst2InitQp(modify(init)));
    ok::<8>(driver, &Command::Init2RtrQp(modify(rtr)));
    ok::<8>(driver, &Command::Rtr2RtsQp(modify(rts)));
}
