//! A driver's view of the whole device, without QEMU: a machine whose memory is a memfd, and whose program writes the
//! registers as the public driver does.

mod bringup;
mod commands;
mod contexts;
mod ctxmgt;
mod hgrnic;
mod registers;
mod strict;
mod trace;
mod traffic;

use std::ops::{Deref, DerefMut};

use engine::Instant;
use protocol::hca::jingzhao::cmd::{CmdStatus, Op};
use protocol::hca::jingzhao::icm::{self, IcmTable, MapEntry};
use protocol::hca::jingzhao::init::{InitHca, Table};
use protocol::ids::{IcmAddr, Iova, Lid};

use super::device::{JingZhao, Setup};
use super::options::Options;
use crate::frontend::Interface as _;
use crate::frontend::address::Addresses;
use crate::frontend::testing::{Guest, MEMORY, dump, exchange};
use crate::identity::Identity;
use crate::vfio::Bar;
use crate::vfio::server::{Device, Region};

/// Bus address of the mailbox the machine fills.
const INBOX: u64 = 0x1000;
/// Bus address of the mailbox the device fills.
const OUTBOX: u64 = 0x2000;
/// Bus addresses nobody lent to the device.
const NOWHERE: u64 = 0x4000_0000_0000;

/// Base of each table in ICM: the layout of section 13.
const QPC: u64 = 0;
const MPT: u64 = 0x100_0000;
const MTT: u64 = 0x180_0000;
const CQC: u64 = 0x200_0000;
const EQC: u64 = 0x240_0000;

/// Where [`Machine::initialised`] backs them, all of them from ICM address 0 on.
const ICM_CONTEXT: u64 = 0x1000_0000;
const ICM_TPT: u64 = 0x1800_0000;

/// The INIT_HCA inbox of section 14.2.
const INIT: &str = "
    00: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 10
    10: 00 00 00 00 02 00 00 10 00 00 00 00 02 40 00 05
    30: 00 00 00 00 01 00 00 11 00 00 00 00 01 80 00 00";

/// An HCA with this LID, whose default peer is the other of 1 and 2.
fn setup(lid: u16, options: Options) -> Setup {
    let port = |lid| Identity::from_lid(Lid::new(lid));
    let addresses = Addresses { own: port(lid), peers: Vec::new(), default_peer: Some(port(3 - lid)) };
    Setup { options, addresses, engine: engine::Config::default() }
}

/// A guest with one HCA.
struct Machine {
    guest: Guest<JingZhao>,
    /// First address of the HCR the program uses.
    hcr: u64,
}

impl Deref for Machine {
    type Target = Guest<JingZhao>;

    fn deref(&self) -> &Self::Target {
        &self.guest
    }
}

impl DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guest
    }
}

impl Machine {
    /// A machine after power-on; see [`setup`].
    fn new(lid: u16, options: Options) -> Self {
        Self::with(setup(lid, options))
    }

    fn with(setup: Setup) -> Self {
        let own = setup.addresses.own;
        Self { guest: Guest::new(JingZhao::new(setup), own), hcr: 0 }
    }

    /// With INIT_HCA done and the tables of section 13 mapped.
    fn initialised(options: Options) -> Self {
        Self::initialised_as(1, options)
    }

    fn initialised_as(lid: u16, options: Options) -> Self {
        Self::initialised_with(setup(lid, options))
    }

    fn initialised_with(setup: Setup) -> Self {
        let mut machine = Self::with(setup);
        machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
        // 4095 pages are 16 MiB less a page.
        for (table, base, bus) in [
            (IcmTable::Context, QPC, ICM_CONTEXT),
            (IcmTable::Context, CQC, ICM_CONTEXT + CQC),
            (IcmTable::Context, EQC, ICM_CONTEXT + EQC),
            (IcmTable::Tpt, MPT, ICM_TPT + MPT),
            (IcmTable::Tpt, MTT, ICM_TPT + MTT),
        ] {
            let pages = if base == EQC { 1 } else { 1024 };
            machine.map(table, base, bus, pages);
        }
        machine
    }

    fn map(&mut self, table: IcmTable, virt: u64, bus: u64, pages: u16) {
        let entry = MapEntry { virt: IcmAddr::new(virt), bus: Iova::new(bus), pages };
        self.ok(Op::MapIcm, table.op_modifier(), 1, &icm::emit(&[entry]));
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.store(bar, offset, &value.to_le_bytes());
    }

    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        u32::from_le_bytes(self.load(bar, offset))
    }

    /// Writes the seven words as the public driver does and returns the status byte.
    fn raw_command(&mut self, in_param: u64, in_modifier: u32, out_param: u64, word: u32) -> u8 {
        let halves = |value: u64| [value >> 32, value & 0xffff_ffff].map(|half| u32::try_from(half).unwrap());
        let ([in_high, in_low], [out_high, out_low]) = (halves(in_param), halves(out_param));
        let words = [in_high, in_low, in_modifier, out_high, out_low, 0xffff_0000, word];
        for (offset, value) in (0..).step_by(4).zip(words) {
            self.write32(Bar::Bar0, self.hcr + offset, value);
        }
        let [.., status] = self.read32(Bar::Bar0, self.hcr + 0x18).to_le_bytes();
        status
    }

    /// Issues a command with both mailboxes where they belong; what it wrote is at [`OUTBOX`].
    fn command(&mut self, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) -> u8 {
        self.poke(INBOX, inbox);
        self.command_at(INBOX, op, op_modifier, in_modifier)
    }

    fn command_at(&mut self, in_param: u64, op: Op, op_modifier: u8, in_modifier: u32) -> u8 {
        let word = 1 << 23 | u32::from(op_modifier) << 12 | u32::from(op.spec().code);
        self.raw_command(in_param, in_modifier, OUTBOX, word)
    }

    /// Issues a command that must succeed.
    #[track_caller]
    fn ok(&mut self, op: Op, op_modifier: u8, in_modifier: u32, inbox: &[u8]) {
        let status = self.command(op, op_modifier, in_modifier, inbox);
        assert_eq!(status, CmdStatus::Ok.code(), "status of {op}");
    }
}

/// The layout of section 13 with other counts.
fn layout(log_qps: u8, log_mpts: u8) -> InitHca {
    let table = |base, log_entries| Table { base: IcmAddr::new(base), log_entries };
    InitHca {
        qpc: table(QPC, log_qps),
        cqc: table(CQC, 16),
        eqc: table(EQC, 5),
        mpt: table(MPT, log_mpts),
        mtt_base: IcmAddr::new(MTT),
    }
}
