//! Runs a hostile driver that performs random operations on its own queues, keys and paths. The device and another
//! connection must keep working.

use std::ops::Range;
use std::time::Duration;

use card::frontend::testing::MEMORY;
use drivers::e810::PBLE_SEGMENT;
use drivers::e810::queue_pair::{gather, inline};
use protocol::hca::e810::rdma::completion_queue::{CqCommand, DestroyCq};
use protocol::hca::e810::rdma::group::GroupCommand;
use protocol::hca::e810::rdma::index::PbleIndex;
use protocol::hca::e810::rdma::page_list::ListLevel;
use protocol::hca::e810::rdma::path::{DestroyAddressHandle, ManageArp};
use protocol::hca::e810::rdma::queue_pair::{DestroyQp, FlushQp, QpCommand, SuspendQp};
use protocol::hca::e810::rdma::region::{AllocateStag, DeallocateStag};
use protocol::hca::e810::regs::Register;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Numbers of the hostile driver's objects. A well-behaved connection, the bystander, uses the queue pairs, CQs and
/// neighbours of [`Pair`].
const QPNS: Range<u32> = 16..20;
const CQNS: Range<u32> = 8..12;
const KEYS: Range<u32> = 0x40..0x48;
const HANDLES: Range<u16> = 10..14;
/// CQ of the peer's queue pairs, which are connected to the hostile driver's.
const PEERS_CQ: Cqn = Cqn::new(8);
/// Guest memory that the device may write on behalf of the hostile driver.
const ARENA: Range<u64> = 0x1000_0000..0x1400_0000;
/// Range of start addresses for rings and regions.
const STARTS: Range<u64> = ARENA.start..0x1200_0000;
/// Maximum length of regions in bytes.
const MAX_LEN: u64 = 1 << 20;
/// Size code of both rings, as stored in the QP context.
const RING_CODE: u8 = 3;
const RING_QUANTA: u64 = 4 << RING_CODE;

struct Hostile {
    pair: Pair,
    dice: ChaCha8Rng,
    /// Number of message exchanges on the bystander's connection, modulo 256.
    round: u8,
    /// Number of the hostile driver's operations that succeeded.
    done: usize,
    /// Number of the hostile driver's operations that were rejected.
    refused: usize,
    /// Number of asynchronous events on both devices.
    events: usize,
    /// Number of frames that device `a` has sent.
    frames: usize,
}

impl Hostile {
    fn new(seed: u64) -> Self {
        let mut pair = Pair::connected();
        pair.b.create_cq(PEERS_CQ, 256);
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        // Each PBLE refers to a page in the arena or in unmapped memory.
        let pages: Vec<u8> = (0..1 << 18)
            .flat_map(|_| {
                match dice.random_range(0..1000) {
                    0 => dice.next_u64() | MEMORY,
                    _ => dice.random_range(STARTS) & !0xfff,
                }
                .to_le_bytes()
            })
            .collect();
        pair.a.poke(PBLE_SEGMENT, &pages);
        Self { pair, dice, round: 0, done: 0, refused: 0, events: 0, frames: 0 }
    }

    fn flip(&mut self, odds: u32) -> bool {
        self.dice.random_range(0..odds) == 0
    }

    /// Returns a number in the range or, with a probability of 1/50, a number past its end.
    fn number(&mut self, of: Range<u32>) -> u32 {
        if self.flip(50) { self.dice.random_range(of.end..1 << 18) } else { self.dice.random_range(of) }
    }

    /// Returns an address in the arena, at the end of memory, or in unmapped memory.
    fn address(&mut self) -> u64 {
        match self.dice.random_range(0..30) {
            0 => self.dice.next_u64() | MEMORY,
            1 => MEMORY - self.dice.random_range(0..64),
            2 => self.dice.random_range(STARTS),
            _ => self.dice.random_range(STARTS) & !0xfff,
        }
    }

    fn stag(&mut self) -> u32 {
        self.number(KEYS) << 8 | u32::from(self.flip(4))
    }

    fn rights(&mut self) -> StagRights {
        if self.flip(2) { StagRights::all() } else { StagRights::from_bits_truncate(self.dice.random()) }
    }

    fn level(&mut self) -> ListLevel {
        ListLevel::from(self.dice.random_range(0..4))
    }

    fn perform(&mut self, operation: &Operation) -> bool {
        let done = self.pair.a.perform(operation).error.is_none();
        *if done { &mut self.done } else { &mut self.refused } += 1;
        done
    }

    /// Returns a random context, which is often valid or nearly so. The queue pair is never privileged, so it cannot
    /// access memory by bus address.
    fn context(&mut self, qpn: Qpn) -> QpContext {
        let near = QpContext {
            send_ring: self.address(),
            receive_ring: self.address(),
            send_size: RING_CODE,
            receive_size: RING_CODE,
            log_receive_quanta: 1,
            remote_qpn: qpn,
            rnr_retry: self.dice.random_range(0..8),
            send_cqn: Cqn::new(self.number(CQNS)),
            recv_cqn: Cqn::new(self.number(CQNS)),
            privileged: false,
            ..context(1)
        };
        if !self.flip(6) {
            return near;
        }
        let mut bytes = near.emit();
        for _ in 0..self.dice.random_range(1..6) {
            let at = self.dice.random_range(0..bytes.len());
            bytes[at] = self.dice.random();
        }
        // The ring addresses may be random, because the device only reads these rings.
        QpContext {
            privileged: false,
            remote_qpn: Qpn::new(self.number(QPNS)),
            send_cqn: near.send_cqn,
            recv_cqn: near.recv_cqn,
            arp_index: ArpIndex::new(2),
            ..QpContext::parse(&bytes)
        }
    }

    fn command(&mut self, qpn: Qpn, kind: QpKind, state: QpState, context: &QpContext) -> QpCommand {
        let at = ARENA.end - (1 + u64::from(qpn.get() % 64)) * 0x1000;
        self.pair.a.poke(at, &context.emit());
        QpCommand {
            context: Iova::new(if self.flip(100) { self.address() } else { at }),
            qpn,
            kind,
            state,
            shadow: Iova::new(at + 0x800),
            in_pages: self.flip(6),
            ..QpCommand::default()
        }
    }

    /// Recreates one of the hostile driver's queue pairs and the peer's queue pair connected to it.
    fn recreate_qp(&mut self) {
        let qpn = Qpn::new(self.dice.random_range(QPNS));
        let kind = if self.flip(4) { QpKind::Ud } else { QpKind::Rc };
        let _ = self.pair.b.perform(&Operation::DestroyQp(DestroyQp { qpn, ..DestroyQp::default() }));
        let peer = QpContext { remote_qpn: qpn, send_cqn: PEERS_CQ, recv_cqn: PEERS_CQ, ..super::context(2) };
        start(&mut self.pair.b, qpn, kind, &peer);
        for _ in 0..8 {
            self.pair.b.post_receive(qpn, &[fragment(TARGET + 0x1000, 0, 4096)]);
        }
        let context = self.context(qpn);
        for ring in [context.send_ring, context.receive_ring] {
            self.fill(ring);
        }
        self.perform(&Operation::DestroyQp(DestroyQp { qpn, ..DestroyQp::default() }));
        for cqn in [context.send_cqn, context.recv_cqn] {
            if self.flip(2) {
                self.perform(&Operation::DestroyCq(DestroyCq { cqn }));
            }
            let command = self.pair.a.cq_command(cqn, 64);
            self.perform(&Operation::CreateCq(command));
        }
        let command = self.command(qpn, kind, QpState::Idle, &context);
        self.perform(&Operation::CreateQp(command));
        for state in [QpState::Rtr, QpState::Rts] {
            self.perform(&Operation::ModifyQp(QpCommand { state, ..command }));
        }
    }

    /// Returns a random WQE, which is often valid or nearly so.
    fn work(&mut self) -> Vec<u8> {
        let control = self.dice.random_range(0..16_u64) << 32
            | if self.flip(2) { SIGNALED } else { 0 }
            | if self.flip(8) { self.dice.next_u64() & 0x7fff_0000_0000_0000 } else { 0 }
            | u64::from(self.stag());
        let remote = self.address();
        match self.dice.random_range(0..6) {
            // Build a bind, fast-register or invalidate WQE.
            0 => {
                let operation = self.dice.random_range(0x08..0x0b_u64) << 32;
                let key = u64::from(self.stag());
                let (len, rights) =
                    (self.dice.random_range(0..MAX_LEN), u64::from(self.rights().bits()) << 48);
                let words = [
                    self.address(),
                    self.dice.random_range(STARTS) & !0xfff | key,
                    len,
                    SIGNALED | operation | rights | u64::from(self.flip(2)) << 53 | key,
                ];
                words.into_iter().flat_map(u64::to_le_bytes).collect()
            }
            1 | 2 => {
                let data = vec![7; self.dice.random_range(0..100)];
                let control = if self.flip(3) { control } else { SIGNALED | SEND };
                inline(control, remote, None, &data)
            }
            _ => {
                let list: Vec<_> = (0..self.dice.random_range(0..13))
                    .map(|_| {
                        let len = if self.flip(9) {
                            self.dice.next_u32() >> 1
                        } else {
                            self.dice.random_range(0..3000)
                        };
                        fragment(self.address(), self.stag(), len)
                    })
                    .collect();
                let imm = self.flip(3).then_some(5);
                gather(control, remote, imm, &list)
            }
        }
    }

    /// Fills a ring with WQEs for the first pass over the ring. About half of the rings contain only valid sends. The
    /// others contain random WQEs.
    fn fill(&mut self, ring: u64) {
        let tame = self.flip(2);
        let mut at = ring;
        while at < ring + RING_QUANTA * 32 && STARTS.contains(&at) {
            let mut wqe = if tame { inline(SIGNALED | SEND, 0, None, &[7; 8]) } else { self.work() };
            for quantum in wqe.chunks_mut(32) {
                let last = quantum.len() - 1;
                quantum[last] |= if tame || !self.flip(20) { 0x80 } else { 0 };
            }
            if !tame && self.flip(10) {
                let byte = self.dice.random_range(24..32);
                wqe[byte] = self.dice.random();
            }
            self.pair.a.poke(at, &wqe);
            at += wqe.len() as u64;
        }
    }

    fn ring(&mut self) {
        let number = if self.flip(20) { self.dice.next_u32() } else { self.number(QPNS) };
        let doorbells = [Register::UserWqealloc, Register::PfpeWqealloc];
        let which = self.dice.random_range(0..2);
        self.pair.a.write(doorbells[which], number);
    }

    fn cq(&mut self) {
        let cqn = Cqn::new(self.number(CQNS));
        let near = self.pair.a.cq_command(cqn, 64);
        let command = CqCommand {
            entries: if self.flip(10) { self.dice.next_u32() >> 11 } else { self.dice.random_range(1..200) },
            ring: Iova::new(self.address()),
            shadow: Iova::new(if self.flip(2) { self.address() } else { near.shadow.get() }),
            level: self.level(),
            in_pages: self.flip(4),
            first_page: PbleIndex::new(self.dice.next_u32() >> 13),
            ceq: u16::from(self.flip(5)),
            resize: self.flip(2),
            ..near
        };
        let operation = match self.dice.random_range(0..4) {
            0 => Operation::DestroyCq(DestroyCq { cqn }),
            1 => Operation::ModifyCq(command),
            _ => Operation::CreateCq(command),
        };
        self.perform(&operation);
        let word = self.dice.next_u64();
        self.pair.a.arm_cq(cqn, word);
    }

    fn key(&mut self) {
        let index = self.number(KEYS);
        let (page, level, rights) = (self.dice.random_range(0..4_u8), self.level(), self.rights());
        let operation = match self.dice.random_range(0..5) {
            0 => {
                let (region, wide) = (!self.flip(3), self.flip(2));
                let len = self.dice.random_range(0..MAX_LEN);
                Operation::AllocateStag(AllocateStag {
                    index,
                    region,
                    wide,
                    len,
                    pd: PD,
                    ..AllocateStag::default()
                })
            }
            1 => {
                let region = self.flip(2);
                Operation::DeallocateStag(DeallocateStag { pd: PD, index, region })
            }
            _ => Operation::RegisterMr(RegisterMr {
                start: Va::new(self.address()),
                // Exclude length 0, which means all memory.
                len: self.dice.random_range(1..MAX_LEN),
                pd: PD,
                stag: index << 8,
                level,
                page: if self.flip(4) { page } else { 0 }.into(),
                rights,
                virtual_address: self.flip(2),
                address: Iova::new(self.dice.random_range(STARTS) & !0xfff),
                first_page: PbleIndex::new(self.dice.next_u32() >> 13),
                ..RegisterMr::default()
            }),
        };
        self.perform(&operation);
    }

    fn path(&mut self) {
        let index = self.dice.random_range(HANDLES);
        let handle = AddressHandleCommand {
            index: AhIndex::new(index.into()),
            arp: ArpIndex::new(self.dice.random_range(2..20)),
            pd_low: if self.flip(3) { 7 } else { 6 },
            insert_vlan: self.flip(4),
            loopback: self.flip(4),
            ..handle(1)
        };
        let group = GroupCommand {
            group: index,
            ipv4: true,
            members: Iova::new(self.address()),
            address: ip(self.dice.random()),
            ..GroupCommand::default()
        };
        let operation = match self.dice.random_range(0..7) {
            0 => Operation::CreateAddressHandle(handle),
            1 => Operation::ModifyAddressHandle(handle),
            2 => Operation::DestroyAddressHandle(DestroyAddressHandle { index: handle.index }),
            3 => Operation::CreateGroup(group),
            4 => Operation::ModifyGroup(group),
            5 => Operation::DestroyGroup(group),
            _ => Operation::ManageArp(ManageArp {
                mac: MacNumber(mac(self.dice.random_range(0..4))),
                index: ArpIndex::new(index),
                valid: !self.flip(4),
                permanent: self.flip(2),
            }),
        };
        self.perform(&operation);
    }

    fn state(&mut self) {
        let qpn = Qpn::new(self.number(QPNS));
        let kind = QpKind::from(self.dice.random_range(2..6));
        let state = QpState::from(self.dice.random_range(0..8));
        let context = self.context(qpn);
        let command = self.command(qpn, kind, state, &context);
        let suspend = SuspendQp { qpn, ..SuspendQp::default() };
        let operation = match self.dice.random_range(0..8) {
            0 => Operation::CreateQp(command),
            1 => Operation::SuspendQp(suspend),
            2 => Operation::ResumeQp(suspend),
            3 => Operation::DestroyQp(DestroyQp { qpn, ..DestroyQp::default() }),
            4 => Operation::FlushQp(FlushQp {
                qpn,
                sq: self.flip(2),
                rq: self.flip(2),
                codes_valid: self.flip(2),
                sq_minor: self.dice.random(),
                ..FlushQp::default()
            }),
            _ => Operation::ModifyQp(command),
        };
        self.perform(&operation);
    }

    fn act(&mut self) {
        match self.dice.random_range(0..16) {
            0..4 => self.recreate_qp(),
            4..8 => self.ring(),
            8 => self.cq(),
            9..12 => self.key(),
            12 => self.path(),
            13 | 14 => self.state(),
            _ => {
                // Execute an undefined operation with random content.
                let mut wqe = [0; 64];
                self.dice.fill_bytes(&mut wqe);
                wqe[28] = wqe[28] & 0xc0 | 0x38 | wqe[28] & 7;
                assert!(self.pair.a.perform_raw(&wqe).error.is_some());
            }
        }
    }

    /// Forwards frames between the devices until none are left, and reads the events of both devices.
    fn settle(&mut self) {
        loop {
            let Pair { a, b } = &mut self.pair;
            let (from_a, from_b) = (a.bus.settle(), b.bus.settle());
            if from_a.is_empty() && from_b.is_empty() {
                break;
            }
            self.frames += from_a.len();
            from_a.iter().for_each(|frame| b.bus.hca.handle_frame(frame));
            from_b.iter().for_each(|frame| a.bus.hca.handle_frame(frame));
        }
        while self.pair.b.poll_cq(PEERS_CQ).is_some() {}
        for driver in [&mut self.pair.a, &mut self.pair.b] {
            while let Some(event) = driver.next_async_event() {
                assert_ne!(
                    event.number_low,
                    QPN.get(),
                    "the bystander's queue pair must not fail: {event:?}"
                );
                self.events += 1;
            }
            while driver.next_completion_event().is_some() {}
        }
    }

    fn later(&mut self) {
        let later = self.pair.a.bus.now + Duration::from_millis(self.dice.random_range(0..200));
        self.pair.a.bus.advance(later);
        self.pair.b.bus.advance(later);
    }

    /// Sends a message in each direction on the bystander's connection.
    #[track_caller]
    fn bystander(&mut self) {
        self.settle();
        self.round = self.round.wrapping_add(1);
        for b_sends in [false, true] {
            let content = vec![self.round ^ u8::from(b_sends); 2000];
            let Pair { a, b } = &mut self.pair;
            let (from, to) = if b_sends { (b, a) } else { (a, b) };
            from.poke(SOURCE, &content);
            to.post_receive(QPN, &[fragment(TARGET, 0, 2000)]);
            from.post_send(QPN, &gather(SIGNALED | SEND, 0, None, &[fragment(SOURCE, 0, 2000)]));
            self.settle();
            let Pair { a, b } = &mut self.pair;
            let (from, to) = if b_sends { (b, a) } else { (a, b) };
            assert!(!only(from, SEND_CQ).cqe.error);
            let received = only(to, RECV_CQ).cqe;
            assert_eq!((received.error, received.len), (false, 2000));
            assert_eq!(to.peek(TARGET, 2000), content);
        }
    }
}

#[test]
fn hostile_driver_harms_only_its_own_queues() {
    for seed in 0..4 {
        println!("seed {seed}");
        let mut hostile = Hostile::new(seed);
        for step in 0..3000 {
            hostile.act();
            if step % 4 == 0 {
                hostile.settle();
            }
            if step % 50 == 0 {
                hostile.later();
                hostile.bystander();
            }
        }
        let Hostile { done, refused, events, frames, .. } = hostile;
        println!("{done} operations done, {refused} refused, {events} events, {frames} frames");
        assert!(
            done > 1000 && refused > 1000 && events > 100 && frames > 100,
            "the run must exercise success, rejection, events and traffic"
        );
    }
}
