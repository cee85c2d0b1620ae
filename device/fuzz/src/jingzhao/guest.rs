//! A guest with one device: its memory, the initialisation of its queue pairs, and valid mailboxes.

use card::frontend::Interface as _;
use card::identity::Identity;
use card::net::address::Addresses;
use drivers::jingzhao::{Driver, INBOX, OUTBOX, Queues, cqc, data_unit, eqc, region, remote_unit};
use drivers::{Bus as _, hcr};
use jingzhao::options::{QueueOptions, RnrTimerTable, SqAddr, UarPages};
use jingzhao::{JingZhao, Options, Setup};
use protocol::Psn;
use protocol::hca::jingzhao::cmd::Op;
use protocol::hca::jingzhao::cqc::Cqc;
use protocol::hca::jingzhao::eqc::{EqFlags, Eqc};
use protocol::hca::jingzhao::icm::{self, IcmTable, MapEntry};
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::hca::jingzhao::mpt::MptFlags;
use protocol::hca::jingzhao::mtt::WriteMtt;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Eqn, IcmAddr, Iova, Lid, Qpn};

use super::super::machine::{Aim, LIDS, Machine, PSN};

/// First bus address of the memory that is mapped as ICM, with one page per table.
const ICM: u64 = 0x8000;

/// ICM addresses of the tables.
const QPC: u64 = 0;
const CQC: u64 = 0x10_0000;
const EQC: u64 = 0x20_0000;
const MPT: u64 = 0x30_0000;
const MTT: u64 = 0x40_0000;

/// Bus addresses of the buffers. Each buffer is one page long, except for the data buffer.
pub(crate) const CQ: u64 = 0x2_0000;
const SQ: u64 = 0x2_1000;
pub(crate) const RQ: u64 = 0x2_2000;
const EQ: u64 = 0x2_3000;
const DATA: u64 = 0x3_0000;
const DATA_PAGES: u64 = 4;
/// Key and first address of the data region.
const KEY: u32 = 5;
const VA: u64 = 0x7f00_0000_0800;

/// QP numbers of an RC QP connected to the peer, an RC QP connected to itself, and a UD QP.
pub(crate) const CONNECTED: u32 = 5;
pub(crate) const LOOPED: u32 = 6;
const DATAGRAM: u32 = 7;
const SERVICE_UD: u8 = 3;

const AIM: Aim = Aim { qpns: &[CONNECTED, LOOPED, DATAGRAM], key: KEY, va: VA, ends: LIDS };

pub(crate) type Guest = Driver<Machine<JingZhao>>;

/// Starts a guest whose queue pairs are in RTS. `options` selects the device options. For `watched`, see
/// [`Machine::of`].
pub(crate) fn start(options: u16, watched: u8) -> Guest {
    let [own, peer] = [1, 2].map(|lid| Identity::from_lid(Lid::new(lid)));
    let addresses = Addresses { own, peers: Vec::new(), default_peer: Some(peer) };
    let options = self::options(options);
    let setup = Setup { options, mac: own.mac, engine: engine::Config::default() };
    let mut guest = Driver::new(Machine::of(JingZhao::new(setup), addresses, watched, AIM));
    bring_up(&mut guest);
    guest
}

/// Initialises the device as a driver would. Memory may be unmapped, so results are ignored.
pub(crate) fn bring_up(guest: &mut Guest) {
    guest.enable();
    usual(guest, [(Op::CloseHca, 0), (Op::InitHca, 0)]);
    for (n, base) in (0..).zip([QPC, CQC, EQC, MPT, MTT]) {
        let table = if n < 3 { IcmTable::Context } else { IcmTable::Tpt };
        let entry = MapEntry { virt: IcmAddr::new(base), bus: Iova::new(ICM + n * 0x1000), pages: 1 };
        command(guest, Op::MapIcm, table.op_modifier(), 1, &icm::emit(&[entry]));
    }
    guest.poke(CQ, &[0x80; 0x1000]);
    guest.poke(EQ, &[0x80; 0x1000]);
    guest.poke(RQ, &[0; 0x1000]);
    usual(guest, [(Op::WriteMtt, 8)]);
    usual(guest, (1..=KEY).map(|key| (Op::Sw2HwMpt, key)));
    usual(guest, [(Op::Sw2HwEq, 1), (Op::Sw2HwCq, 1)]);
    guest.issue(u64::MAX, 1, OUTBOX, hcr::word(Op::MapEq.spec().code, 0));
    for qpn in [CONNECTED, LOOPED, DATAGRAM] {
        usual(guest, [Op::Rst2Init, Op::Init2Rtr, Op::Rtr2Rts].map(|op| (op, qpn)));
    }
}

/// Issues commands with the input mailboxes that a well-behaved guest would pass.
fn usual(guest: &mut Guest, commands: impl IntoIterator<Item = (Op, u32)>) {
    for (op, in_modifier) in commands {
        command(guest, op, 0, in_modifier, &mailbox(op, in_modifier));
    }
}

/// Issues a command with both mailboxes.
pub(crate) fn command(guest: &mut Guest, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) {
    guest.poke(INBOX, inbox);
    guest.issue(INBOX, in_modifier, OUTBOX, hcr::word(op.spec().code, op_modifier));
}

/// Returns the locations of a QP's queues and doorbells. All QPs share the same queue memory and UAR page.
pub(crate) fn queues(qpn: u32) -> Queues {
    Queues { qpn, page: 1, sq: SQ, rq: RQ }
}

/// Returns the device options selected by `bits`.
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

/// Returns a WQE with an operation on the data region and a link to another slot. It is well-formed except for the
/// defects selected by `flags`.
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
        wqe.extend(remote_unit(rkey, VA));
    }
    if matches!(opcode, 0x11 | 0x12) {
        wqe.extend([link; 16]);
    }
    if flags & 0x20 == 0 {
        wqe.extend(data(len));
    } else {
        wqe.extend(((1 << 31) | (len % 64)).to_le_bytes());
        wqe.resize(wqe.len() + (len % 64) as usize, link);
        wqe.resize(wqe.len().next_multiple_of(16), 0);
    }
    wqe
}

/// Returns a data unit for the data region.
pub(crate) fn data(len: u32) -> Vec<u8> {
    data_unit(KEY, VA, len)
}

/// Returns the input mailbox that a well-behaved guest would pass to a command.
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
        Op::Sw2HwMpt => {
            let remote = MptFlags::REMOTE_WRITE | MptFlags::REMOTE_READ | MptFlags::REMOTE_ATOMIC;
            let (start, length, mtt, flags) = match in_modifier {
                1..5 => (0, 0x1000, u64::from(in_modifier) - 1, MptFlags::empty()),
                _ => (VA, DATA_PAGES * 0x1000 - 0x800, 4, remote),
            };
            region(in_modifier, mtt, start, length, MptFlags::LOCAL_WRITE | flags).emit().to_vec()
        }
        Op::Sw2HwCq => Cqc { comp_eqn: Eqn::new(1), ..cqc(1, 1, 5) }.emit().to_vec(),
        Op::Sw2HwEq => Eqc { flags: EqFlags::new().with_armed(true), ..eqc(1, 4, 5) }.emit().to_vec(),
        _ => qpc(in_modifier).emit().to_vec(),
    }
}

fn qpc(qpn: u32) -> Qpc {
    Qpc {
        service: if qpn == DATAGRAM { SERVICE_UD } else { 0 },
        local_qpn: Qpn::new(qpn),
        remote_qpn: Qpn::new(qpn),
        next_send_psn: Psn::new(PSN),
        recv_psn: Psn::new(PSN),
        dlid: Lid::new(if qpn == LOOPED { 1 } else { 2 }),
        ..drivers::jingzhao::qpc(1, [2, 3], 0x1000)
    }
}
