//! Bring-up, commands and tear-down of the HCA.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use anyhow::{Context as _, Result, ensure};

use super::cq::Cq;
use super::eq::Eq;
use super::hcr::{self, Command, Op, Outcome, Registers};
use super::icm::Icm;
use super::layout::{self, DevLim, MAILBOX, MAP_ICM_MAX};
use super::mr::Region;
use super::qp::Qp;
use crate::alloc::Units;
use crate::error::bad_step;
use crate::vfio::{Arena, Bar, Device, PAGE, Signal};
use crate::wire::{
    CloseHca, CommandResult, ContextBytes, ContextTable, CqId, EqId, HcaInfo, HcrBase, Hex, InParam, MrId,
    OpenHca, OutParam, QpId, RawCommand, ReadContext,
};

/// Default size of the arena in MiB.
const ARENA_MIB: u32 = 48;
/// Fill byte for output mailboxes. A byte that still has this value was not written by the device.
const UNWRITTEN: u8 = 0xa5;
/// Fill byte for the part of the input mailbox that the device must not read.
const UNREADABLE: u8 = 0xd7;
/// Length of QUERY_ADAPTER's output mailbox in bytes.
const ADAPTER: usize = 0x20;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Inbox<'a> {
    /// No input; in_param is 0.
    None,
    Value(u64),
    Bytes(&'a [u8]),
}

#[derive(Debug)]
pub(crate) struct Hca {
    // Declared first, so that the PCI function is closed and its DMA stopped before the memory is freed.
    pub(super) device: Device,
    pub(super) arena: Arena,
    address: String,
    opened: OpenHca,
    inbox: usize,
    outbox: usize,
    icm: Option<Icm>,
    pub(super) mtts: Units,
    pub(super) mpts: Units,
    pub(super) cqns: Units,
    pub(super) eqns: Units,
    pub(super) qpns: Units,
    /// Number of keys issued for each MPT index. It forms the upper bits of the next key.
    key_uses: BTreeMap<u32, u32>,
    pub(super) mrs: BTreeMap<MrId, Region>,
    pub(super) cqs: BTreeMap<CqId, Cq>,
    pub(super) eqs: BTreeMap<EqId, Eq>,
    pub(super) qps: BTreeMap<QpId, Qp>,
    pub(super) qpns_in_use: BTreeMap<u32, QpId>,
    /// Interrupt counters, one per vector, while MSI-X is enabled.
    pub(super) interrupts: Vec<Signal>,
    /// Channel that the next traffic step notifies after it has posted its first requests.
    pub(super) posted: Option<Sender<()>>,
    last_id: u32,
}

impl Hca {
    pub(crate) fn open(step: &OpenHca) -> Result<(Self, HcaInfo)> {
        let (device, address) = Device::open(&step.device)?;
        let mib = if step.arena_mib == 0 { ARENA_MIB } else { step.arena_mib };
        let arena = Arena::new(&device, (mib as usize) << 20, step.huge_pages)?;
        Self::bring_up(device, address, arena, step.clone())
    }

    /// Resets the function as a VMM would, and initialises the device again with the same memory. The reset destroys
    /// all objects.
    pub(crate) fn reset(self) -> Result<(Self, HcaInfo)> {
        let Self { device, address, mut arena, opened, .. } = self;
        device.reset()?;
        arena.free_all()?;
        Self::bring_up(device, address, arena, opened)
    }

    fn bring_up(device: Device, address: String, mut arena: Arena, step: OpenHca) -> Result<(Self, HcaInfo)> {
        let inbox = arena.alloc(1, PAGE)?;
        let outbox = arena.alloc(1, PAGE)?;
        let mut hca = Self {
            device,
            arena,
            address,
            opened: step,
            inbox,
            outbox,
            icm: None,
            mtts: Units::new(0..0),
            mpts: Units::new(0..0),
            cqns: Units::new(0..0),
            eqns: Units::new(0..0),
            qpns: Units::new(0..0),
            key_uses: BTreeMap::new(),
            mrs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            eqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            qpns_in_use: BTreeMap::new(),
            interrupts: Vec::new(),
            posted: None,
            last_id: 0,
        };
        let board_id = layout::board_id(&hca.query(Op::QueryAdapter, 0, ADAPTER)?);
        let dev_lim = hca.query(Op::QueryDevLim, 0, DevLim::LEN)?;
        let mut icm_bases = [0; 5];
        if !hca.opened.without_init {
            let lim = DevLim::parse(&dev_lim).context("QUERY_DEV_LIM")?;
            hca.init(&lim)?;
            for (base, table) in icm_bases.iter_mut().zip(hca.icm()?.tables()) {
                *base = table.base;
            }
        }
        let info = HcaInfo {
            address: hca.address.clone(),
            board_id,
            dev_lim: Hex(dev_lim),
            bar0_size: hca.device.size(Bar::Zero),
            bar2_size: hca.device.size(Bar::Two),
            arena_iova: hca.arena.iova(0),
            arena_size: hca.arena.len() as u64,
            map_ns: u64::try_from(hca.arena.map_time().as_nanos())?,
            icm_bases,
        };
        Ok((hca, info))
    }

    /// Tears everything down, in the same order as the public driver (`ib_hgrnic`).
    pub(crate) fn close(mut self, step: CloseHca) -> Result<()> {
        if step.abrupt {
            return Ok(());
        }
        for qp in self.qps.keys().copied().collect::<Vec<_>>() {
            self.destroy_qp(qp)?;
        }
        for cq in self.cqs.keys().copied().collect::<Vec<_>>() {
            self.destroy_cq(cq)?;
        }
        for eq in self.eqs.keys().copied().collect::<Vec<_>>() {
            self.destroy_eq(eq)?;
        }
        if !self.interrupts.is_empty() {
            self.disable_interrupts()?;
        }
        for mr in self.mrs.keys().copied().collect::<Vec<_>>() {
            self.destroy_mr(mr)?;
        }
        if let Some(icm) = self.icm.take() {
            for table in icm.tables().iter().rev() {
                let pages = u32::try_from(table.page_count())?;
                self.command(Op::UnmapIcm, table.name_space, pages, Inbox::Value(table.base))?;
            }
        }
        self.command(Op::CloseHca, 0, 0, Inbox::None)
    }

    /// Issues a command without output. Any status except OK is an error.
    pub(crate) fn command(
        &mut self,
        op: Op,
        op_modifier: u8,
        in_modifier: u32,
        input: Inbox<'_>,
    ) -> Result<()> {
        let in_param = match input {
            Inbox::None => 0,
            Inbox::Value(value) => value,
            Inbox::Bytes(bytes) => self.fill_inbox(bytes, UNREADABLE)?,
        };
        let command = Command { op: op as u16, op_modifier, in_modifier, in_param, ..Command::default() };
        hcr::check(&command, self.execute(self.opened.hcr, &command)?).with_context(|| format!("{op:?}"))
    }

    /// Issues a command and returns `len` bytes of output.
    pub(crate) fn query(&mut self, op: Op, in_modifier: u32, len: usize) -> Result<Vec<u8>> {
        let out_param = self.fill_outbox();
        let command = Command { op: op as u16, in_modifier, out_param, ..Command::default() };
        hcr::check(&command, self.execute(self.opened.hcr, &command)?).with_context(|| format!("{op:?}"))?;
        let mut mailbox = vec![0; MAILBOX];
        self.arena.read(self.outbox, &mut mailbox);
        let beyond = mailbox.split_off(len);
        ensure!(
            beyond.iter().all(|&byte| byte == UNWRITTEN),
            "{op:?} wrote beyond the {len:#x} bytes of its output mailbox"
        );
        Ok(mailbox)
    }

    pub(crate) fn raw_command(&mut self, step: &RawCommand) -> Result<CommandResult> {
        let in_param = match &step.input {
            InParam::None => 0,
            InParam::Immediate(value) => *value,
            InParam::Mailbox(bytes) => self.fill_inbox(bytes, 0)?,
        };
        let out_param = match step.output {
            OutParam::None => 0,
            OutParam::Immediate(value) => value,
            OutParam::Mailbox => self.fill_outbox(),
        };
        let command = Command {
            op: step.op,
            op_modifier: step.op_modifier,
            in_modifier: step.in_modifier,
            in_param,
            out_param,
            event: step.event,
        };
        let Outcome { status, word, busy_polls } =
            self.execute(step.hcr.unwrap_or(self.opened.hcr), &command)?;
        let mut outbox = Vec::new();
        if step.output == OutParam::Mailbox {
            outbox.resize(MAILBOX, 0);
            self.arena.read(self.outbox, &mut outbox);
            let written = outbox.iter().rposition(|&byte| byte != UNWRITTEN).map_or(0, |last| last + 1);
            outbox.truncate(written);
        }
        Ok(CommandResult { status, word, busy_polls, outbox: Hex(outbox) })
    }

    pub(crate) const fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Reads a table entry from ICM memory.
    pub(crate) fn read_context(&self, step: &ReadContext) -> Result<ContextBytes> {
        let bytes = self.icm()?.table(step.table).read(&self.arena, step.index);
        Ok(ContextBytes { bytes: Hex(bytes) })
    }

    pub(super) fn cqn(&self, cq: CqId) -> Result<u32> {
        Ok(self.cqs.get(&cq).ok_or_else(|| bad_step(format!("unknown {cq:?}")))?.cqn)
    }

    pub(super) const fn next_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns a key for an MPT index, different from all earlier keys for that index.
    pub(super) fn new_key(&mut self, index: u32) -> u32 {
        let uses = self.key_uses.entry(index).or_default();
        let key = uses.wrapping_shl(self.icm.as_ref().map_or(0, |icm| log(icm, ContextTable::Mpt))) | index;
        *uses = uses.wrapping_add(1);
        key
    }

    pub(super) fn mpt_index(&self, key: u32) -> u32 {
        key & ((1 << self.icm.as_ref().map_or(0, |icm| log(icm, ContextTable::Mpt))) - 1)
    }

    pub(super) fn log_qps(&self) -> u32 {
        self.icm.as_ref().map_or(0, |icm| log(icm, ContextTable::Qpc))
    }

    pub(super) fn log_cqs(&self) -> u32 {
        self.icm.as_ref().map_or(0, |icm| log(icm, ContextTable::Cqc))
    }

    /// Returns a 24-bit object number whose bits above the table's index mask are set to `high_bits`.
    pub(super) const fn full_number(&self, log_entries: u32, index: u32, high_bits: u32) -> u32 {
        (high_bits.wrapping_shl(log_entries) | index) & 0xff_ffff
    }

    fn init(&mut self, lim: &DevLim) -> Result<()> {
        let icm = Icm::new(&mut self.arena, lim, &self.opened.icm)?;
        self.command(Op::InitHca, 0, 0, Inbox::Bytes(&icm.init().emit()))?;
        for table in icm.tables() {
            for runs in table.runs(&self.arena).chunks(MAP_ICM_MAX) {
                let count = u32::try_from(runs.len())?;
                let inbox = layout::map_icm(runs);
                self.command(Op::MapIcm, table.name_space, count, Inbox::Bytes(&inbox))
                    .with_context(|| format!("cannot map the ICM of the {:?} table", table.table))?;
            }
        }
        let all = |table| 1u32 << log(&icm, table);
        let [reserved_qps, reserved_cqs, reserved_eqs] = lim.log_reserved.map(|log| 1u32 << log);
        self.mtts = Units::new(0..all(ContextTable::Mtt));
        self.mpts = Units::new(0..all(ContextTable::Mpt));
        let free = |table, reserved: u32| Units::new(reserved.min(all(table) - 1)..all(table));
        self.cqns = free(ContextTable::Cqc, reserved_cqs);
        self.eqns = free(ContextTable::Eqc, reserved_eqs);
        self.qpns = free(ContextTable::Qpc, reserved_qps);
        self.icm = Some(icm);
        Ok(())
    }

    fn icm(&self) -> Result<&Icm> {
        self.icm.as_ref().ok_or_else(|| bad_step("the HCA was opened without INIT_HCA"))
    }

    fn execute(&self, place: HcrBase, command: &Command) -> Result<Outcome> {
        hcr::execute(&self.device, hcr::base(place), command)
    }

    fn fill_inbox(&self, bytes: &[u8], rest: u8) -> Result<u64> {
        ensure!(
            bytes.len() <= MAILBOX,
            bad_step(format!("{} bytes do not fit into a mailbox of {MAILBOX} bytes", bytes.len()))
        );
        self.arena.set(self.inbox, rest, MAILBOX);
        self.arena.write(self.inbox, bytes);
        Ok(self.arena.iova(self.inbox))
    }

    fn fill_outbox(&self) -> u64 {
        self.arena.set(self.outbox, UNWRITTEN, MAILBOX);
        self.arena.iova(self.outbox)
    }
}

impl Registers for Device {
    fn read(&self, offset: u64) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read(Bar::Zero, offset, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn write(&self, offset: u64, value: u32) -> Result<()> {
        self.write(Bar::Zero, offset, &value.to_le_bytes())
    }
}

fn log(icm: &Icm, table: ContextTable) -> u32 {
    icm.table(table).log_entries.into()
}
