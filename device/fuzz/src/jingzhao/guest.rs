//! A guest with one device: memory, a driver's way to queue pairs that work, and mailboxes to start from.

use device::frontend::Interface as _;
use device::frontend::address::Addresses;
use device::frontend::jingzhao::options::{QueueOptions, RnrTimerTable, SqAddr, UarPages};
use device::frontend::jingzhao::{JingZhao, Options, Setup};
use device::identity::Identity;
use device::vfio::server::{Device as _, Region};
use protocol::Psn;
use protocol::hca::jingzhao::cmd::Op;
use protocol::hca::jingzhao::cqc::Cqc;
use protocol::hca::jingzhao::eqc::{EqFlags, Eqc};
use protocol::hca::jingzhao::icm::{self, IcmTable, MapEntry};
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::hca::jingzhao::mtt::WriteMtt;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Cqn, Eqn, IcmAddr, Iova, Lid, Lkey, Pdn, Qpn, Va};

use super::super::machine::{Aim, Machine, PSN};

const INBOX: u64 = 0x1000;
const OUTBOX: u64 = 0x2000;
/// Where ICM is backed: a page for each table, from here on.
const ICM: u64 = 0x8000;

/// Bases of tables in ICM.
const QPC: u64 = 0;
const CQC: u64 = 0x10_0000;
const EQC: u64 = 0x20_0000;
const MPT: u64 = 0x30_0000;
const MTT: u64 = 0x40_0000;

/// Buffers, one page each, by bus address.
pub(crate) const CQ: u64 = 0x2_0000;
pub(crate) const SQ: u64 = 0x2_1000;
pub(crate) const RQ: u64 = 0x2_2000;
const EQ: u64 = 0x2_3000;
const DATA: u64 = 0x3_0000;
const DATA_PAGES: u64 = 4;
/// Key and first address of the data region.
const KEY: u32 = 5;
const VA: u64 = 0x7f00_0000_0800;
const PD: u32 = 3;

/// RC to the peer, RC to itself, and UD.
pub(crate) const CONNECTED: u32 = 5;
pub(crate) const LOOPED: u32 = 6;
const DATAGRAM: u32 = 7;
const SERVICE_UD: u8 = 3;

const AIM: Aim = Aim { qpns: &[CONNECTED, LOOPED, DATAGRAM], key: KEY, va: VA };

/// What a guest can ask for.
pub(crate) const COMMANDS: [Op; 30] = [
    Op::QueryDevLim,
    Op::QueryAdapter,
    Op::InitHca,
    Op::CloseHca,
    Op::MapIcm,
    Op::UnmapIcm,
    Op::Sw2HwMpt,
    Op::Hw2SwMpt,
    Op::WriteMtt,
    Op::MapEq,
    Op::Sw2HwEq,
    Op::Hw2SwEq,
    Op::Sw2HwCq,
    Op::Hw2SwCq,
    Op::ResizeCq,
    Op::Rst2Init,
    Op::Init2Init,
    Op::Init2Rtr,
    Op::Rtr2Rts,
    Op::Rts2Rts,
    Op::SqErr2Rts,
    Op::ToErr,
    Op::Rts2Sqd,
    Op::Sqd2Sqd,
    Op::Sqd2Rts,
    Op::ToRst,
    Op::QueryQp,
    Op::ConfSpecialQp,
    Op::MadIfc,
    Op::Nop,
];

pub(crate) type Guest = Machine<JingZhao>;

impl Guest {
    /// A guest whose queue pairs are in RTS, on a device with these options (a bit each) that somebody looks at or not.
    pub(crate) fn new(options: u16, watched: u8) -> Self {
        let [own, peer] = [1, 2].map(|lid| Identity::from_lid(Lid::new(lid)));
        let addresses = Addresses { own, peers: Vec::new(), default_peer: Some(peer) };
        let setup = Setup { options: self::options(options), addresses, engine: engine::Config::default() };
        let mut guest = Self::of(JingZhao::new(setup), watched, AIM);
        guest.bring_up();
        guest
    }

    /// What a driver does from the bus scan on. Outcomes are not looked at: memory may be gone.
    pub(crate) fn bring_up(&mut self) {
        self.hca.region_write(Region::Config, 4, &[6, 0]);
        for (op, modifier, in_modifier) in [(Op::CloseHca, 0, 0), (Op::InitHca, 0, 0)] {
            self.command(op, modifier, in_modifier, &mailbox(op, in_modifier));
        }
        for (n, base) in (0..).zip([QPC, CQC, EQC, MPT, MTT]) {
            let table = if n < 3 { IcmTable::Context } else { IcmTable::Tpt };
            let entry = MapEntry { virt: IcmAddr::new(base), bus: Iova::new(ICM + n * 0x1000), pages: 1 };
            self.command(Op::MapIcm, table.op_modifier(), 1, &icm::emit(&[entry]));
        }
        self.poke(CQ, &[0x80; 0x1000]);
        self.poke(EQ, &[0x80; 0x1000]);
        self.poke(RQ, &[0; 0x1000]);
        let steps = [(Op::WriteMtt, 8), (Op::Sw2HwMpt, 1), (Op::Sw2HwMpt, 2), (Op::Sw2HwMpt, 3)];
        let more = [(Op::Sw2HwMpt, 4), (Op::Sw2HwMpt, KEY), (Op::Sw2HwEq, 1), (Op::Sw2HwCq, 1)];
        for (op, in_modifier) in steps.into_iter().chain(more) {
            self.command(op, 0, in_modifier, &mailbox(op, in_modifier));
        }
        self.command_at(u64::MAX, Op::MapEq, 0, 1);
        for qpn in [CONNECTED, LOOPED, DATAGRAM] {
            for op in [Op::Rst2Init, Op::Init2Rtr, Op::Rtr2Rts] {
                self.command(op, 0, qpn, &mailbox(op, qpn));
            }
        }
    }

    pub(crate) fn command(&mut self, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) {
        self.poke(INBOX, inbox);
        self.command_at(INBOX, op, op_modifier, in_modifier);
    }

    fn command_at(&mut self, in_param: u64, op: Op, op_modifier: u8, in_modifier: u32) {
        let word = 1 << 23 | u32::from(op_modifier) << 12 | u32::from(op.spec().code);
        self.command_words(0, in_param, OUTBOX, [in_modifier, 0xffff_0000, word], false);
    }

    /// Posts a receive request into the data region. All QPs share the queue's memory.
    pub(crate) fn post_receive(&mut self, slot: u8, len: u32) {
        let mut wqe = vec![0x20];
        wqe.resize(16, 0);
        wqe.extend(data_unit(len));
        wqe.resize(48, 0);
        self.poke(RQ + u64::from(slot) * 128, &wqe);
    }
}

/// Each bit departs from a default.
fn options(bits: u16) -> Options {
    let bit = |n: u16| bits >> n & 1 != 0;
    let sq_addr = match bits & 3 {
        0 | 3 => SqAddr::Unit,
        1 => SqAddr::Index,
        _ => SqAddr::Auto,
    };
    let queues = QueueOptions {
        sq_addr,
        late_link: bit(2),
        queue_len_from_region: !bit(3),
        clear_links: !bit(4),
        rq_clear: !bit(5),
        rq_valid_bit: bit(6),
        honour_c: bit(7),
        ud_addresses: !bit(8),
    };
    let timers = if bit(13) { RnrTimerTable::QueryQpNotes } else { RnrTimerTable::Ibta };
    Options {
        extended_status: bit(9),
        uar_pages: if bit(10) { UarPages::Driver } else { UarPages::Documented },
        uar_check: bit(11),
        qpn_check: bit(12),
        rnr_timer_table: timers,
        rnr_timer_zero: if bit(13) { 12.try_into().unwrap_or_default() } else { Default::default() },
        mad_ifc: bit(14),
        ud_grh: bit(15),
        queues,
        ..Options::default()
    }
}

/// A WQE that is well-formed but for what `flags` damages: an operation on the data region, and a link to another slot.
pub(crate) fn wqe(opcode: u8, qpn: u32, link: u8, len: u32, flags: u8) -> Vec<u8> {
    let mut wqe = vec![0; 16];
    if flags & 1 != 0 {
        let next = u32::from(link % 32) * 8;
        wqe[..4].copy_from_slice(&((next << 6) | (u32::from(link >> 5) + 8)).to_le_bytes());
        wqe[4] = 0x80 | (link % 5);
    }
    wqe[8] = flags & 0x0a;
    if qpn == DATAGRAM {
        let mut unit = [0; 48];
        unit[6] = if flags & 4 == 0 { 1 } else { 2 };
        unit[0x20] = DATAGRAM.to_le_bytes()[0];
        wqe.extend(unit);
    } else if !matches!(opcode, 0x00 | 0x0a | 0x0b) {
        let rkey = if flags & 0x10 == 0 { KEY } else { KEY ^ 0x100 };
        wqe.extend([&VA.to_le_bytes()[..], &rkey.to_le_bytes(), &[0; 4]].concat());
    }
    if matches!(opcode, 0x11 | 0x12) {
        wqe.extend([link; 16]);
    }
    if flags & 0x20 == 0 {
        wqe.extend(data_unit(len));
    } else {
        wqe.extend(((1 << 31) | (len % 64)).to_le_bytes());
        wqe.resize(wqe.len() + (len % 64) as usize, link);
        wqe.resize(wqe.len().next_multiple_of(16), 0);
    }
    wqe
}

/// A SEND of 16 bytes, with a completion.
pub(crate) fn send_wqe() -> Vec<u8> {
    let mut wqe = vec![0; 16];
    wqe[8] = 8;
    wqe.extend(data_unit(16));
    wqe
}

/// The inbox a well-behaved guest gives with a command.
pub(crate) fn mailbox(op: Op, in_modifier: u32) -> Vec<u8> {
    match op {
        Op::InitHca => {
            let table = |base, log_entries| Table { base: IcmAddr::new(base), log_entries };
            let (qpc, cqc, eqc, mpt) = (table(QPC, 4), table(CQC, 4), table(EQC, 3), table(MPT, 6));
            InitHca { qpc, cqc, eqc, mpt, mtt_base: IcmAddr::new(MTT) }.emit().to_vec()
        }
        Op::MapIcm => {
            let entry = MapEntry { virt: IcmAddr::new(QPC), bus: Iova::new(ICM), pages: 1 };
            icm::emit(&[entry])
        }
        Op::WriteMtt => {
            let data = (0..DATA_PAGES).map(|page| DATA + page * 0x1000);
            let pages = [CQ, SQ, RQ, EQ].into_iter().chain(data).map(Iova::new).collect();
            WriteMtt { start: 0, pages }.emit()
        }
        Op::Sw2HwMpt => region(in_modifier).to_vec(),
        Op::Sw2HwCq => {
            let blank = Cqc::parse(&[0; Cqc::LEN], 0).expect("zeros are a CQ");
            let buffer = Lkey::new(1);
            Cqc {
                log_entries: 5,
                comp_eqn: Eqn::new(1),
                pd: Pdn::new(PD),
                lkey: buffer,
                cqn: Cqn::new(1),
                ..blank
            }
            .emit()
            .to_vec()
        }
        Op::Sw2HwEq => {
            let blank = Eqc::parse(&[0; Eqc::LEN]).expect("zeros are an EQ");
            let flags = EqFlags::new().with_armed(true);
            Eqc { flags, log_entries: 5, msix_vector: 1, pd: Pdn::new(PD), lkey: Lkey::new(4), ..blank }
                .emit()
                .to_vec()
        }
        _ => qpc(in_modifier).emit().to_vec(),
    }
}

fn region(key: u32) -> [u8; Mpt::LEN] {
    let blank = Mpt::parse(&[0; Mpt::LEN]).expect("zeros are a region");
    let queue = |page| (0, 0x1000, page, MptFlags::LOCAL_WRITE);
    let (start, length, mtt, flags) = match key {
        1 => queue(0),
        2 => queue(1),
        3 => queue(2),
        4 => queue(3),
        _ => {
            let remote = MptFlags::REMOTE_WRITE | MptFlags::REMOTE_READ | MptFlags::REMOTE_ATOMIC;
            (VA, DATA_PAGES * 0x1000 - 0x800, 4, MptFlags::LOCAL_WRITE | remote)
        }
    };
    Mpt { flags, key: Lkey::new(key), pd: Pdn::new(PD), start: Va::new(start), length, mtt, ..blank }.emit()
}

fn qpc(qpn: u32) -> Qpc {
    let qpc = Qpc {
        mtu: 1,
        log_max_msg: 31,
        log_rq_slot: 7,
        log_sq_slot: 7,
        usr_page: 1,
        local_qpn: Qpn::new(qpn),
        remote_qpn: Qpn::new(qpn),
        port: 1,
        pd: Pdn::new(PD),
        next_send_psn: Psn::new(PSN),
        send_cqn: Cqn::new(1),
        sq_lkey: Lkey::new(2),
        sq_len: 0x1000,
        recv_psn: Psn::new(PSN),
        recv_cqn: Cqn::new(1),
        rq_lkey: Lkey::new(3),
        rq_len: 0x1000,
        dlid: Lid::new(if qpn == LOOPED { 1 } else { 2 }),
        ..Qpc::default()
    };
    if qpn == DATAGRAM { Qpc { service: SERVICE_UD, ..qpc } } else { qpc }
}

fn data_unit(len: u32) -> Vec<u8> {
    [&len.to_le_bytes()[..], &KEY.to_le_bytes(), &VA.to_le_bytes()].concat()
}
