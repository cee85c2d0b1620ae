//! A guest with one HCA, in this process: memory, and a driver's way to very many objects.

use device::frontend::Interface as _;
use device::frontend::address::Addresses;
use device::frontend::jingzhao::{JingZhao, Options, Setup};
use device::hca::Hca;
use device::identity::Identity;
use device::memory::Permissions;
use device::vfio::Bar;
use device::vfio::server::{Device as _, Region};
use engine::Instant;
use protocol::hca::jingzhao::cmd::Op;
use protocol::hca::jingzhao::cqc::Cqc;
use protocol::hca::jingzhao::icm::{self, IcmTable, MapEntry};
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::hca::jingzhao::mtt::WriteMtt;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Cqn, IcmAddr, Iova, Lid, Lkey, Pdn, Qpn, Va};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Bytes of guest memory, from bus address 0 on. It has pages where they are touched only.
const MEMORY: u64 = 1 << 30;
const INBOX: u64 = 0x1000;
const OUTBOX: u64 = 0x2000;
pub(crate) const PAGE: u64 = 0x1000;

/// Base of each table in ICM, and where guest memory backs it: as far apart as 2^16 QPs, 2^17 MPT entries, 2^20 MTT
/// entries, and 2^16 CQs need.
const QPC: u64 = 0;
const MPT: u64 = 0x100_0000;
const MTT: u64 = 0x180_0000;
const CQC: u64 = 0x200_0000;
const EQC: u64 = 0x240_0000;
const ICM: u64 = 0x1000_0000;
/// What is free for buffers begins here.
pub(crate) const BUFFERS: u64 = 0x2000_0000;

/// MTT entries of one WRITE_MTT.
const MTT_BATCH: u64 = 508;
pub(crate) const PD: u32 = 3;
/// Bytes of a WQE slot.
pub(crate) const SLOT: u32 = 128;

/// What the public driver programs.
pub(crate) const LOG_QPS: u8 = 16;
pub(crate) const LOG_CQS: u8 = 16;
pub(crate) const LOG_MPTS: u8 = 17;

/// Commands between two turns: a command is eight messages of the VMM, of which a turn serves 64.
const COMMANDS_PER_TURN: u32 = 8;

pub(crate) struct Machine {
    hca: Hca<JingZhao>,
    commands: u32,
}

impl Machine {
    /// An initialised device with LID `lid`, whose default peer is the other of 1 and 2. Its tables have the public
    /// driver's sizes, and pages.
    pub(crate) fn new(lid: u16, options: Options) -> Self {
        let mut machine = Self::powered_on(lid, options);
        machine.init(LOG_QPS, LOG_CQS, LOG_MPTS);
        let mib = |count: u64| count << 20;
        machine.map(IcmTable::Context, QPC, mib(16));
        machine.map(IcmTable::Context, CQC, mib(4));
        machine.map(IcmTable::Context, EQC, PAGE);
        machine.map(IcmTable::Tpt, MPT, mib(8));
        machine.map(IcmTable::Tpt, MTT, mib(8));
        machine
    }

    pub(crate) fn powered_on(lid: u16, options: Options) -> Self {
        let port = |lid| Identity::from_lid(Lid::new(lid));
        let addresses = Addresses { own: port(lid), peers: Vec::new(), default_peer: Some(port(3 - lid)) };
        let setup = Setup { options, addresses, engine: engine::Config::default() };
        let mut hca = Hca::new(JingZhao::new(setup), port(lid), None);
        // Memory space and bus master.
        hca.region_write(Region::Config, 4, &[6, 0]);
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, MEMORY).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let all = Permissions { read: true, write: true };
        hca.memory().map(Iova::new(0), MEMORY, all, Some((fd, 0))).unwrap();
        Self { hca, commands: 0 }
    }

    pub(crate) fn init(&mut self, log_qps: u8, log_cqs: u8, log_mpts: u8) {
        let table = |base, log_entries| Table { base: IcmAddr::new(base), log_entries };
        let layout = InitHca {
            qpc: table(QPC, log_qps),
            cqc: table(CQC, log_cqs),
            eqc: table(EQC, 5),
            mpt: table(MPT, log_mpts),
            mtt_base: IcmAddr::new(MTT),
        };
        self.ok(Op::InitHca, 0, 0, &layout.emit());
    }

    /// Backs `len` bytes of ICM in chunks of 256 KiB, as the public driver does.
    fn map(&mut self, table: IcmTable, virt: u64, len: u64) {
        const CHUNK: u64 = 64 * PAGE;
        for chunk in 0..len.div_ceil(CHUNK) {
            let done = chunk * CHUNK;
            self.map_chunk(table, virt + done, ICM + virt + done, CHUNK.min(len - done));
        }
    }

    pub(crate) fn map_chunk(&mut self, table: IcmTable, virt: u64, bus: u64, len: u64) {
        let pages = u16::try_from(len / PAGE).unwrap();
        let entry = MapEntry { virt: IcmAddr::new(virt), bus: Iova::new(bus), pages };
        self.ok(Op::MapIcm, table.op_modifier(), 1, &icm::emit(&[entry]));
    }

    /// Points MTT entries at consecutive bus pages.
    pub(crate) fn write_mtt(&mut self, start: u64, count: u64, bus: u64) {
        for batch in 0..count.div_ceil(MTT_BATCH) {
            let done = batch * MTT_BATCH;
            let now = MTT_BATCH.min(count - done);
            let pages = (done..done + now).map(|page| Iova::new(bus + page * PAGE)).collect();
            let inbox = WriteMtt { start: start + done, pages }.emit();
            self.ok(Op::WriteMtt, 0, u32::try_from(now).unwrap(), &inbox);
        }
    }

    /// A region whose first byte is at `start`, in the page of MTT entry `mtt`.
    pub(crate) fn region(&mut self, key: u32, mtt: u64, start: u64, length: u64, flags: MptFlags) {
        let blank = Mpt::parse(&[0; Mpt::LEN]).unwrap();
        let (key, pd, start) = (Lkey::new(key), Pdn::new(PD), Va::new(start));
        let mpt = Mpt { flags, key, pd, start, length, mtt, ..blank };
        self.ok(Op::Sw2HwMpt, 0, key.get() & ((1 << LOG_MPTS) - 1), &mpt.emit());
    }

    pub(crate) fn cq(&mut self, cqn: u32, key: u32, log_entries: u8) {
        let blank = Cqc::parse(&[0; Cqc::LEN], 0).unwrap();
        let cqc = Cqc { log_entries, pd: Pdn::new(PD), lkey: Lkey::new(key), cqn: Cqn::new(cqn), ..blank };
        self.ok(Op::Sw2HwCq, 0, cqn, &cqc.emit());
    }

    /// Moves a QP from RESET to RTS.
    pub(crate) fn connect(&mut self, qpn: u32, qpc: &Qpc) {
        for op in [Op::Rst2Init, Op::Init2Rtr, Op::Rtr2Rts] {
            self.ok(op, 0, qpn, &qpc.emit());
        }
    }

    /// Issues a command as the public driver does: seven words. It must succeed.
    #[track_caller]
    pub(crate) fn ok(&mut self, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) {
        assert_eq!(self.command(op, op_modifier, in_modifier, inbox), 0, "status of {op}");
    }

    /// Issues a command and returns its status.
    pub(crate) fn command(&mut self, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) -> u8 {
        self.poke(INBOX, inbox);
        let go = 1 << 23 | u32::from(op_modifier) << 12 | u32::from(op.spec().code);
        let low = |address: u64| u32::try_from(address).unwrap();
        let words = [0, low(INBOX), in_modifier, 0, low(OUTBOX), 0xffff_0000, go];
        for (offset, word) in (0..).step_by(4).zip(words) {
            self.hca.region_write(Region::Bar(Bar::Bar0), offset, &word.to_le_bytes());
        }
        let mut word = [0; 4];
        self.hca.region_read(Region::Bar(Bar::Bar0), 0x18, &mut word);
        self.commands += 1;
        if self.commands.is_multiple_of(COMMANDS_PER_TURN) {
            self.hca.drain();
        }
        word[3]
    }

    /// Rings for a WQE of `size` granules in a slot of a QP's queue.
    pub(crate) fn ring(&mut self, page: u64, qpn: u32, slot: u32, opcode: u8, size: u32) {
        let position = slot * (SLOT / 16);
        let low = position << 8 | u32::from(opcode);
        let doorbell = [low.to_le_bytes(), (qpn << 8 | size).to_le_bytes()].concat();
        self.hca.region_write(Region::Bar(Bar::Bar2), page * PAGE, &doorbell);
    }

    pub(crate) fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.hca.memory().write(Iova::new(at), bytes).unwrap();
    }

    pub(crate) fn peek<const LEN: usize>(&mut self, at: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.hca.memory().read(Iova::new(at), &mut bytes).unwrap();
        bytes
    }

    /// A word of a QP's context in guest memory.
    pub(crate) fn context_word(&mut self, qpn: u32, offset: u64) -> u32 {
        u32::from_be_bytes(self.peek(ICM + QPC + u64::from(qpn) * 256 + offset))
    }

    /// A frame from the peer.
    pub(crate) fn arrive(&mut self, frame: &[u8]) {
        self.hca.handle_frame(frame);
    }

    /// Ends a turn. The frames that leave, and whether there is more to do.
    pub(crate) fn turn(&mut self) -> (Vec<Vec<u8>>, bool) {
        self.hca.set_now(Instant::ZERO);
        let left = self.hca.drain();
        let frames = self.hca.outbound().iter().map(|(_, frame)| frame.to_vec()).collect();
        self.hca.outbound().clear();
        (frames, left.frames || left.other)
    }
}

/// A connected QP with eight slots of [`SLOT`] bytes each way.
pub(crate) fn rc(remote: u32, cqn: u32, sq: u32, rq: u32) -> Qpc {
    Qpc {
        mtu: 1,
        log_max_msg: 31,
        log_rq_slot: 7,
        log_sq_slot: 7,
        usr_page: 1,
        remote_qpn: Qpn::new(remote),
        port: 1,
        pd: Pdn::new(PD),
        send_cqn: Cqn::new(cqn),
        sq_lkey: Lkey::new(sq),
        sq_len: 0x400,
        recv_cqn: Cqn::new(cqn),
        rq_lkey: Lkey::new(rq),
        rq_len: 0x400,
        ..Qpc::default()
    }
}
