//! A driver for JingZhao that issues commands and maps ICM as the public driver does.
//!
//! # Spec
//! JingZhao interface, sections 1, 2, 3 and 13.

mod contexts;
mod work;

use protocol::hca::jingzhao::cmd::Op;
use protocol::hca::jingzhao::cqc::Cqc;
use protocol::hca::jingzhao::icm::{self, IcmTable, MapEntry};
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::hca::jingzhao::mpt::Mpt;
use protocol::hca::jingzhao::mtt::{MAX_ENTRIES, WriteMtt};
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{IcmAddr, Iova};

pub use contexts::{PD, cqc, eqc, qpc, region};
pub use work::{Queues, SLOT, data_unit, doorbell, remote_unit, signalled};

pub use crate::hcr::{INBOX, OUTBOX};
use crate::{Bus, hcr};

/// ICM addresses of the tables (section 13). They leave room for 2^16 QPs, 2^16 CQs, 2^17 MPT entries and 2^20 MTT
/// entries.
pub const QPC: u64 = 0;
pub const MPT: u64 = 0x100_0000;
pub const MTT: u64 = 0x180_0000;
pub const CQC: u64 = 0x200_0000;
pub const EQC: u64 = 0x240_0000;

/// Table sizes that the public driver requests, as log2 of the number of entries.
pub const LOG_QPS: u8 = 16;
pub const LOG_CQS: u8 = 16;
pub const LOG_EQS: u8 = 5;
pub const LOG_MPTS: u8 = 17;

/// Bus addresses that ICM address 0 maps to. Contexts and the TPT have separate mappings.
pub const ICM_CONTEXT: u64 = 0x1000_0000;
pub const ICM_TPT: u64 = 0x1800_0000;

/// Mapping, ICM address and bus address of each table.
pub const TABLES: [(IcmTable, u64, u64); 5] = [
    (IcmTable::Context, QPC, ICM_CONTEXT + QPC),
    (IcmTable::Context, CQC, ICM_CONTEXT + CQC),
    (IcmTable::Context, EQC, ICM_CONTEXT + EQC),
    (IcmTable::Tpt, MPT, ICM_TPT + MPT),
    (IcmTable::Tpt, MTT, ICM_TPT + MTT),
];

/// Returns the layout from section 13 for the given table sizes, as log2 of the number of entries.
pub fn layout(log_qps: u8, log_cqs: u8, log_mpts: u8) -> InitHca {
    let table = |base, log_entries| Table { base: IcmAddr::new(base), log_entries };
    InitHca {
        qpc: table(QPC, log_qps),
        cqc: table(CQC, log_cqs),
        eqc: table(EQC, LOG_EQS),
        mpt: table(MPT, log_mpts),
        mtt_base: IcmAddr::new(MTT),
    }
}

/// Driver state specific to JingZhao.
pub struct JingZhao {
    /// Offset of the HCR in BAR 0. The public driver uses offset 0 instead of the documented offset.
    pub hcr: u64,
    /// Whether to set unused in_param and out_param fields to 0. If false, they contain the addresses of the inbox and
    /// the outbox.
    pub exact: bool,
}

pub type Driver<B> = crate::Driver<JingZhao, B>;

impl<B: Bus> Driver<B> {
    /// Creates a driver for a device that has just been powered on.
    pub const fn new(bus: B) -> Self {
        Self { bus, interface: JingZhao { hcr: 0, exact: true } }
    }

    pub fn write32(&mut self, bar: u8, offset: u64, value: u32) {
        self.bus.store(bar, offset, &value.to_le_bytes());
    }

    pub fn read32(&mut self, bar: u8, offset: u64) -> u32 {
        u32::from_le_bytes(self.bus.load(bar, offset))
    }

    /// Issues INIT_HCA with the table sizes of the public driver and maps `pages` pages of each table, except for the
    /// EQ table, which needs only one page.
    pub fn initialise(&mut self, pages: u16) {
        self.ok(Op::InitHca, 0, 0, &layout(LOG_QPS, LOG_CQS, LOG_MPTS).emit());
        for (table, virt, bus) in TABLES {
            self.map(table, virt, bus, if virt == EQC { 1 } else { pages });
        }
    }

    pub fn map(&mut self, table: IcmTable, virt: u64, bus: u64, pages: u16) {
        let entry = MapEntry { virt: IcmAddr::new(virt), bus: Iova::new(bus), pages };
        self.ok(Op::MapIcm, table.op_modifier(), 1, &icm::emit(&[entry]));
    }

    /// Writes consecutive MTT entries, beginning with entry `start`.
    pub fn write_mtt(&mut self, start: u64, pages: impl IntoIterator<Item = u64>) {
        let mut pages = pages.into_iter().map(Iova::new);
        for start in (start..).step_by(MAX_ENTRIES) {
            let pages: Vec<_> = pages.by_ref().take(MAX_ENTRIES).collect();
            let Some(count) = u32::try_from(pages.len()).ok().filter(|count| *count > 0) else { return };
            self.ok(Op::WriteMtt, 0, count, &WriteMtt { start, pages }.emit());
        }
    }

    /// Registers a region. The low [`LOG_MPTS`] bits of the key are the region's index in the MPT.
    pub fn register(&mut self, mpt: &Mpt) {
        self.ok(Op::Sw2HwMpt, 0, mpt.key.get() & ((1 << LOG_MPTS) - 1), &mpt.emit());
    }

    pub fn create_cq(&mut self, cqc: &Cqc) {
        self.ok(Op::Sw2HwCq, 0, cqc.cqn.get(), &cqc.emit());
    }

    /// Moves a QP from RESET to RTS, passing the whole context with every command.
    pub fn connect(&mut self, qpn: u32, qpc: &Qpc) {
        for op in [Op::Rst2Init, Op::Init2Rtr, Op::Rtr2Rts] {
            self.ok(op, 0, qpn, &qpc.emit());
        }
    }

    /// Issues a command and asserts that it succeeds.
    #[track_caller]
    pub fn ok(&mut self, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) {
        assert_eq!(self.command(op, op_modifier, in_modifier, inbox), 0, "{op} must succeed");
    }

    /// Issues a command and returns its status. The result is at [`OUTBOX`].
    pub fn command(&mut self, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) -> u8 {
        self.bus.poke(INBOX, inbox);
        let in_param = if self.interface.exact && inbox.is_empty() { 0 } else { INBOX };
        self.command_at(in_param, op, op_modifier, in_modifier)
    }

    /// Like [`Driver::command`], but with the inbox at any address, or with an immediate value as in_param.
    pub fn command_at(&mut self, in_param: u64, op: Op, op_modifier: u8, in_modifier: u32) -> u8 {
        let spec = op.spec();
        let out_param = if self.interface.exact && spec.outbox_len == 0 { 0 } else { OUTBOX };
        self.raw_command(in_param, in_modifier, out_param, hcr::word(spec.code, op_modifier))
    }

    /// Issues a command with arbitrary parameters and returns the status byte.
    pub fn raw_command(&mut self, in_param: u64, in_modifier: u32, out_param: u64, word: u32) -> u8 {
        self.issue(in_param, in_modifier, out_param, word);
        self.read32(0, self.interface.hcr + 0x18).to_le_bytes()[3]
    }

    /// Writes the seven words of a command without reading the status.
    pub fn issue(&mut self, in_param: u64, in_modifier: u32, out_param: u64, word: u32) {
        let words = hcr::words(in_param, in_modifier, out_param, 0xffff, word);
        for (offset, word) in (self.interface.hcr..).step_by(4).zip(words) {
            self.write32(0, offset, word);
        }
    }
}
