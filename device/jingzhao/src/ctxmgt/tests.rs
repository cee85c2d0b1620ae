//! Tests the context manager with guest memory. Section numbers refer to the CtxMgt document unless stated otherwise.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use card::memory::testing::guest_memory;
use engine::State;
use hcr::icm::IcmError;
use protocol::Psn;
use protocol::hca::jingzhao::icm::MapEntry;
use protocol::hca::jingzhao::init::Table;
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::qpc::{self, QpState, Qpc, ServiceType};
use protocol::ids::{Eqn, IcmAddr, Iova, Lid, Lkey, MacAddr, Msn, Pdn, Qkey};

use super::Writer::{ExecutionEngine as Ee, RequesterRecvControl as Rrc, RequesterTransControl as Rtc};
use super::message::{RdCqCst, RdEncap, RdQpNpst, RdQpRst, RdQpSst, RdQpState};
use super::*;

/// Bus address of the first page of QP contexts.
const QPC_BUS: u64 = 0x2000;

#[derive(Default)]
struct Qps(BTreeMap<u32, KeyQpc>);

impl KeyData for Qps {
    fn key(&mut self, index: u32) -> Option<&mut KeyQpc> {
        self.0.get_mut(&index)
    }
}

/// Creates a manager with the QP table at 0, the CQ table at 0x200_0000 and the EQ table at 0x240_0000, as in the
/// public driver.
fn manager() -> CtxMgt {
    let table = |base, log_entries| Table { base: IcmAddr::new(base), log_entries };
    let layout = InitHca {
        qpc: table(0, 16),
        cqc: table(0x200_0000, 16),
        eqc: table(0x240_0000, 5),
        mpt: table(0x100_0000, 17),
        mtt_base: IcmAddr::new(0x180_0000),
    };
    CtxMgt::new(&layout, CtxStats::default())
}

fn map(ctx: &mut CtxMgt, virt: u64, bus: u64, pages: u16) {
    ctx.map_icm_en(&[MapEntry { virt: IcmAddr::new(virt), bus: Iova::new(bus), pages }]).unwrap();
}

/// A manager with the context pages of the first 32 QPs mapped to guest memory.
struct Bench {
    ctx: CtxMgt,
    dma: GuestMemory,
    qps: Qps,
}

impl Bench {
    fn new(indices: &[u32]) -> Self {
        let mut ctx = manager();
        map(&mut ctx, 0, QPC_BUS, 2);
        let mut bench = Self { ctx, dma: guest_memory(0, 8), qps: Qps::default() };
        indices.iter().for_each(|&index| bench.command(index, 0x100));
        bench
    }

    /// Emulates a command that leaves the QP in RTS with all PSNs equal to `psn`.
    fn command(&mut self, index: u32, psn: u32) {
        let psn = Psn::new(psn);
        let mut context = StoredQpc::default();
        context.image = Qpc {
            state: QpState::Rts.code(),
            flags_27_24: 5,
            flags_15_0: 0x1234,
            next_send_psn: psn,
            unacked_psn: psn,
            min_rnr_timer: 0x0c,
            recv_psn: psn,
            ..Qpc::default()
        };
        let key = self.qps.0.entry(index).or_insert_with(|| KeyQpc::new(context));
        key.load(context);
        self.ctx.wr_qp_all(&self.dma, index, key).unwrap();
    }

    /// Passes a state and PSNs from the engine to the manager.
    fn observe(&mut self, index: u32, state: State, send: u32, unacked: u32, recv: u32) {
        let [send_psn, unacked_psn, recv_psn] = [send, unacked, recv].map(Psn::new);
        let live = QpSnapshot { state, draining: false, send_psn, unacked_psn, recv_psn, msn: Msn::new(0) };
        let key = self.qps.0.get_mut(&index).unwrap();
        self.ctx.observe(index, key, &live);
    }

    fn serve(&mut self) -> Option<Served> {
        self.ctx.serve(&self.dma, &mut self.qps)
    }

    fn serve_all(&mut self) -> Vec<(Writer, u32)> {
        let served = std::iter::from_fn(|| self.serve());
        served.map(|Served { writer, index }| (writer, index)).collect()
    }

    /// Reads a word of a QP context in guest memory.
    fn word(&self, index: u32, offset: u64) -> u32 {
        u32::from_be_bytes(self.dma.peek(QPC_BUS + u64::from(index) * 256 + offset))
    }
}

/// Section 4.2.1 lists the context fields. Sections 3.2 and 5.4.2 define which unit reads each field.
#[test]
fn each_unit_reads_its_documented_fields() {
    let mut entry = [0; qpc::LEN];
    for (offset, word) in [
        (0x08, 0x3000_0000_u32),
        (0x0c, 0x7f07_0900),
        (0x10, 0x0000_0007),
        (0x18, 0x0000_0009),
        (0x1c, 0x0100_0003),
        (0x28, 0x5120_0000),
        (0x3c, 0x0a0b_0c0d),
        (0x40, 0x0200_0001),
        (0x44, 0x0200_0002),
        (0x48, 0x0a4d_0001),
        (0x4c, 0x0a4d_0002),
        (0x5c, 0x0000_0003),
        (0x6c, 0x0065_4321),
        (0x70, 0x0000_0011),
        (0x74, 0x0000_0021),
        (0x78, 0x0000_4000),
        (0x7c, 0x0065_4320),
        (0x84, 0x0c12_3456),
        (0x8c, 0x0000_0012),
        (0x90, 0x0000_0022),
        (0x94, 0x0000_8000),
        (0x98, 0x0000_0055),
    ] {
        entry[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
    }
    let mut context = StoredQpc::default();
    context.image = Qpc::parse(&entry);
    let key = KeyQpc::new(context);

    let sst = RdQpSst {
        service: Some(ServiceType::Rc),
        remote_qpn: Qpn::new(9),
        mtu: 3,
        log_max_msg: 31,
        pkey_index: 3,
        sq_lkey: Lkey::new(0x21),
        pd: Pdn::new(3),
        log_sq_slot: 9,
        sq_len: 0x4000,
        usr_page: 7,
        qkey: Qkey::new(0x55),
    };
    assert_eq!(key.read::<RdQpSst>(), sst, "Doorbell Processing");
    assert_eq!(sst.payload().words(), [0x0009_0000, 0x007f_0003, 0x21, 3, 9, 0x4000, 0, 0]);
    let state = RdQpState { state: Some(QpState::Rts), log_sq_slot: 9, sq_len: 0x4000 };
    assert_eq!(key.read::<RdQpState>(), state, "WQE Parser");
    assert_eq!(state.payload().words(), [0x0300_0009, 0x4000, 0, 0]);
    let written = WrQpNpst { state: QpState::Rts, next_psn: Psn::new(0x65_4321) };
    assert_eq!(written.payload(), [0x6543_2103, 0, 0, 0]);
    let npst = RdQpNpst {
        state: Some(QpState::Rts),
        next_psn: Psn::new(0x65_4321),
        send_cqn: Cqn::new(0x11),
        rlid: Lid::new(0x0a0b),
    };
    assert_eq!(key.read::<RdQpNpst>(), npst, "Requester Trans Control");
    let cst: RdCqCst = key.read();
    assert_eq!(
        (cst.state, cst.next_psn),
        (Some(QpState::Rts), Psn::new(0x65_4321)),
        "Requester Recv Control"
    );
    assert_eq!((cst.unacked_psn, cst.remote_qpn), (Psn::new(0x65_4320), Qpn::new(9)));
    assert_eq!((cst.rlid, cst.pd, cst.send_cqn), (Lid::new(0x0a0b), Pdn::new(3), Cqn::new(0x11)));
    let rst = RdQpRst {
        service: Some(ServiceType::Rc),
        state: Some(QpState::Rts),
        expected_psn: Psn::new(0x12_3456),
        rnr_timer: 0x0c,
        mtu: 3,
        pkey_index: 3,
        log_rq_slot: 7,
        remote_qpn: Qpn::new(9),
        rq_lkey: Lkey::new(0x22),
        pd: Pdn::new(3),
        rq_len: 0x8000,
        recv_cqn: Cqn::new(0x12),
        rlid: Lid::new(0x0a0b),
        usr_page: 7,
        qkey: Qkey::new(0x55),
    };
    assert_eq!(key.read::<RdQpRst>(), rst, "Execution Engine");
    let encap = RdEncap {
        pkey_index: 3,
        service_level: 5,
        port: 1,
        sip: Some(Ipv4Addr::new(10, 77, 0, 1)),
        dip: Some(Ipv4Addr::new(10, 77, 0, 2)),
        smac: Some(MacAddr([2, 0, 0, 1, 0x0c, 0x0d])),
        slid: Lid::new(0x0c0d),
        dmac: Some(MacAddr([2, 0, 0, 2, 0x0a, 0x0b])),
        dlid: Lid::new(0x0a0b),
        remote_gid: [0; 16],
        traffic_class: 0x12,
        hop_limit: 0,
    };
    assert_eq!(key.read::<RdEncap>(), encap, "Frame Encap");
    let words = [0x0003_0051, 0x0a4d_0001, 0x0a4d_0002, 0x0001_0c0d, 0x0a0b_0200, 0x0200_0002, 0, 0];
    assert_eq!(encap.payload().words(), words);
}

/// Section 5.3.3.1: the QPN is shifted left by 8 bits. Bits 21:12 of the result are the RAM address, and the low 12
/// bits are the offset in the page. Tests QPNs that fit in the RAM as well as larger ones.
#[test]
fn qp_number_determines_context_address() {
    let mut ctx = manager();
    map(&mut ctx, 0x23_4000, 0x7000_0000, 1);
    map(&mut ctx, 0xff_f000, 0x8000_0000, 1);
    let at = |ctx: &CtxMgt, qpn| ctx.ctxmdata().locate(ctx.ctxmdata().qpc.entry(ctx.qp_index(Qpn::new(qpn))));
    assert_eq!(at(&ctx, 0x2345), Ok(Iova::new(0x7000_0500)));
    assert_eq!(at(&ctx, 0x9c_2345), Ok(Iova::new(0x7000_0500)), "the high bits of the QPN are ignored");
    assert_eq!(at(&ctx, 0xffff), Ok(Iova::new(0x8000_0f00)), "the 2^16th QP");
    assert_eq!(at(&ctx, 0x2350), Err(IcmError::Unmapped(IcmAddr::new(0x23_5000))));
}

/// Section 5.3.3.2: "the CQN, shifted left by 6 bits".
#[test]
fn cq_number_determines_context_address() {
    let mut ctx = manager();
    map(&mut ctx, 0x200_d000, 0x7000_0000, 1);
    let at = |ctx: &CtxMgt, cqn| ctx.ctxmdata().locate(ctx.ctxmdata().cqc.entry(ctx.cq_index(Cqn::new(cqn))));
    assert_eq!(at(&ctx, 0x0345), Ok(Iova::new(0x7000_0140)));
    assert_eq!(at(&ctx, 0x55_0345), Ok(Iova::new(0x7000_0140)));
    assert_eq!(at(&ctx, 0x0305), Err(IcmError::Unmapped(IcmAddr::new(0x200_c140))));
}

/// Section 5.3.3.3: all 32 EQs are in one page.
#[test]
fn eq_number_determines_offset_in_page() {
    let mut ctx = manager();
    map(&mut ctx, 0x240_0000, 0x7000_0000, 1);
    let at = |eqn| ctx.ctxmdata().locate(ctx.ctxmdata().eqc.entry(eqn));
    assert_eq!([at(0), at(31)], [Ok(Iova::new(0x7000_0000)), Ok(Iova::new(0x7000_07c0))]);
    assert!(ctx.ctxmdata().eqc.contains(31) && !ctx.ctxmdata().eqc.contains(32));
}

/// Section 3.1, table 3.1: MAP_ICM_EN and MAP_ICM_DIS.
#[test]
fn mapping_lasts_until_replaced_or_removed() {
    let mut ctx = manager();
    map(&mut ctx, 0x4_0000, 0x7000_0000, 64);
    map(&mut ctx, 0x4_1000, 0x9000_0000, 1);
    let at = |ctx: &CtxMgt, addr| ctx.ctxmdata().locate(IcmAddr::new(addr)).ok();
    assert_eq!(at(&ctx, 0x4_0ff8), Some(Iova::new(0x7000_0ff8)));
    assert_eq!(at(&ctx, 0x4_1ff8), Some(Iova::new(0x9000_0ff8)));
    ctx.map_icm_dis(0x40..=0x41).unwrap();
    assert_eq!((at(&ctx, 0x4_0ff8), at(&ctx, 0x4_1ff8)), (None, None));
    assert_eq!(at(&ctx, 0x4_2000), Some(Iova::new(0x7000_2000)));
    assert_eq!(ctx.stats().ceu_parser.maps, 3);
}

/// Section 5.1.1: a context is invalidated by writing zeros.
#[test]
fn cq_and_eq_contexts_are_written_and_zeroed() {
    let mut ctx = manager();
    let dma = guest_memory(0, 8);
    map(&mut ctx, 0x200_0000, 0x4000, 1);
    map(&mut ctx, 0x240_0000, 0x5000, 1);
    dma.poke(0x4000, &[0xee; 256]);
    dma.poke(0x5000, &[0xee; 256]);
    ctx.wr_cq_all(&dma, Cqn::new(1), &[0x11; 64]).unwrap();
    ctx.wr_eq_all(&dma, Eqn::new(2), &[0x22; 64]).unwrap();
    // Section 5.1.3: a context is 64 bytes long. In a CQ context, 56 bytes are significant; in an EQ context, 48.
    assert_eq!(dma.peek::<64>(0x4040), [[0x11; 56].as_slice(), &[0xee; 8]].concat()[..]);
    assert_eq!(dma.peek::<64>(0x5080), [[0x22; 48].as_slice(), &[0xee; 16]].concat()[..]);
    ctx.wr_cq_invalid(&dma, Cqn::new(1));
    ctx.wr_eq_invalid(&dma, Eqn::new(2));
    assert_eq!(dma.peek::<64>(0x4040), [[0; 56].as_slice(), &[0xee; 8]].concat()[..]);
    assert_eq!(dma.peek::<64>(0x5080), [[0; 48].as_slice(), &[0xee; 16]].concat()[..]);
    assert_eq!(dma.peek::<64>(0x4000), [0xee; 64], "the context of CQ 0 is unchanged");
    assert_eq!(ctx.stats().ceu_parser.writes, 4);
}

/// Section 5.6.3: WR_QP_NPST, WR_QP_UAPST and WR_QP_EPST each carry the state and one PSN. JingZhao interface, section
/// 4.3 (J-19): other fields in the same words do not change.
#[test]
fn each_unit_writes_state_and_its_own_psn() {
    for (writer, live, changed, psn) in [
        (Rtc, [0x105, 0x100, 0x100], 0x6c, 0x105),
        (Rrc, [0x100, 0x0ff, 0x100], 0x7c, 0x0ff),
        (Ee, [0x100, 0x100, 0x102], 0x84, 0x0c00_0102),
    ] {
        let mut bench = Bench::new(&[3]);
        bench.dma.poke(QPC_BUS + 3 * 256, &[0xaa; 256]);
        let [send, unacked, recv] = live;
        bench.observe(3, State::Err, send, unacked, recv);
        assert_eq!(bench.serve_all(), [(writer, 3)]);
        for offset in (0..256).step_by(4) {
            let expected = match offset {
                0x08 => 0x6500_1234,
                _ if offset == changed => psn,
                _ => 0xaaaa_aaaa,
            };
            assert_eq!(bench.word(3, offset), expected, "{writer:?}, {offset:#x}");
        }
    }
}

#[test]
fn state_only_change_is_written_by_rtc() {
    let mut bench = Bench::new(&[3]);
    bench.observe(3, State::Sqe, 0x100, 0x100, 0x100);
    assert_eq!(bench.serve_all(), [(Rtc, 3)]);
    assert_eq!(bench.word(3, 8) >> 28, 4);
    bench.observe(3, State::Sqe, 0x100, 0x100, 0x100);
    assert_eq!(bench.serve_all(), [], "nothing has changed");
}

/// Section 5.4.4: a write changes the key data immediately but guest memory only later.
#[test]
fn reads_see_writes_before_write_back() {
    let mut bench = Bench::new(&[3]);
    bench.observe(3, State::Rts, 0x105, 0x100, 0x100);
    let RdQpNpst { next_psn, .. } = bench.ctx.read(bench.qps.0.get(&3)).unwrap();
    assert_eq!(next_psn, Psn::new(0x105));
    assert_eq!(bench.word(3, 0x6c), 0x100);
    bench.serve_all();
    assert_eq!(bench.word(3, 0x6c), 0x105);
}

/// Section 5.2.1: channels 3 (RTC), 4 (RRC) and 5 (EE) are served in turn.
#[test]
fn channels_write_back_round_robin() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.observe(1, State::Rts, 0x101, 0x101, 0x101);
    bench.observe(2, State::Rts, 0x101, 0x100, 0x100);
    bench.observe(3, State::Rts, 0x100, 0x100, 0x101);
    assert_eq!(bench.serve_all(), [(Rtc, 1), (Rrc, 1), (Ee, 1), (Rtc, 2), (Ee, 3)]);
    assert!(bench.ctx.is_idle());
}

/// Section 5.2.1: "the command unit has the highest priority". JingZhao interface, section 5.4: a write-back that races
/// with MODIFY_QP does not overwrite newer fields.
#[test]
fn command_precedes_and_supersedes_write_backs() {
    let mut bench = Bench::new(&[1, 2]);
    bench.observe(1, State::Rts, 0x105, 0x105, 0x105);
    bench.observe(2, State::Rts, 0x105, 0x100, 0x100);
    bench.command(2, 0x200);
    assert_eq!(bench.word(2, 0x6c), 0x200, "the command writes before older write-backs");
    assert_eq!(bench.word(1, 0x6c), 0x100);
    assert_eq!(bench.serve_all(), [(Rtc, 1), (Rrc, 1), (Ee, 1)], "QP 2 has no write-backs left");
    assert_eq!((bench.word(1, 0x6c), bench.word(2, 0x6c)), (0x105, 0x200));
}

/// Section 3.1 (RD_QP_ALL) and JingZhao interface, section 4.3: write-backs are complete before QUERY_QP returns.
#[test]
fn query_flushes_write_backs_of_its_qp() {
    let mut bench = Bench::new(&[1, 2]);
    bench.observe(1, State::Rts, 0x105, 0x100, 0x107);
    bench.observe(2, State::Rts, 0x105, 0x100, 0x100);
    let key = bench.qps.0.get_mut(&2).unwrap();
    let answer = bench.ctx.rd_qp_all(&bench.dma, 2, key).query();
    assert_eq!(answer.next_send_psn, Psn::new(0x105));
    assert_eq!((bench.word(2, 0x6c), bench.word(1, 0x6c)), (0x105, 0x100));
    assert_eq!(bench.serve_all(), [(Rtc, 1), (Ee, 1)]);
}

#[test]
fn repeated_changes_merge_into_one_write_back() {
    let mut bench = Bench::new(&[1]);
    (0x101..0x110).for_each(|psn| bench.observe(1, State::Rts, psn, 0x100, 0x100));
    assert_eq!(bench.serve_all(), [(Rtc, 1)]);
    assert_eq!(bench.word(1, 0x6c), 0x10f);
    let stats = bench.ctx.stats().requester_trans_control;
    assert_eq!((stats.writes, stats.write_backs), (15, 1));
}

#[test]
fn write_backs_of_destroyed_qp_are_dropped() {
    let mut bench = Bench::new(&[1, 2]);
    bench.observe(1, State::Rts, 0x105, 0x100, 0x100);
    bench.observe(2, State::Rts, 0x106, 0x100, 0x100);
    bench.qps.0.remove(&1);
    bench.qps.0.remove(&2);
    bench.command(2, 0x300);
    assert_eq!(bench.serve_all(), []);
    assert_eq!(bench.word(2, 0x6c), 0x300);
}

/// JingZhao interface, section 5.2: write-backs to an unmapped page are skipped without an error.
#[test]
fn write_back_to_unmapped_icm_page_is_counted() {
    let mut bench = Bench::new(&[1]);
    bench.ctx.map_icm_dis(0..=0).unwrap();
    bench.observe(1, State::Rts, 0x105, 0x100, 0x100);
    assert_eq!(bench.serve_all(), [(Rtc, 1)]);
    assert_eq!(bench.word(1, 0x6c), 0x100);
    let stats = bench.ctx.stats().requester_trans_control;
    assert_eq!((stats.writes, stats.write_backs, stats.unmapped), (1, 0, 1));
}

/// Section 5.4.2: each request comes from exactly one unit.
#[test]
fn hits_and_misses_are_counted_per_unit() {
    let mut bench = Bench::new(&[1]);
    let Bench { ctx, qps, .. } = &mut bench;
    let key = qps.0.get(&1);
    assert!(ctx.read::<RdQpSst>(key).is_some() && ctx.read::<RdQpSst>(None).is_none());
    assert!(ctx.read::<RdQpState>(key).is_some());
    assert!(ctx.read::<RdQpNpst>(key).is_some() && ctx.read::<RdQpNpst>(key).is_some());
    assert!(ctx.read::<RdCqCst>(None).is_none());
    assert!(ctx.read::<RdQpRst>(key).is_some());
    assert!(ctx.read::<RdEncap>(key).is_some());
    let stats = ctx.stats();
    let counted = [
        stats.doorbell_processing,
        stats.wqe_parser,
        stats.requester_trans_control.reads,
        stats.requester_recv_control.reads,
        stats.execution_engine.reads,
        stats.frame_encap,
    ];
    let expected = [(1, 1), (1, 0), (2, 0), (0, 1), (1, 0), (1, 0)];
    assert_eq!(counted.map(|reads| (reads.hits, reads.misses)), expected);
}
