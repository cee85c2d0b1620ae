//! A driver's view of the whole device, without QEMU: a guest whose program does what `ib_mthca` does, with the numbers
//! that were seen on a running kernel (sections 13.3 and 14).

mod commands;
mod datagrams;
mod events;
mod hostile;
mod port;
mod probe;
mod regions;
mod shared;
mod states;
mod trace;
mod traffic;
mod user;

use std::os::fd::OwnedFd;

use protocol::hca::status::CmdStatus;
use protocol::ids::Lid;
use rustix::event::{EventfdFlags, eventfd};

use super::device::{Mthca, Setup};
use super::options::Options;
use crate::frontend::Interface as _;
use crate::frontend::address::Addresses;
use crate::frontend::testing::Guest;
use crate::identity::Identity;
use crate::vfio::Bar;
use crate::vfio::server::{Device as _, Region};

/// Bus address of the mailbox the driver fills.
const INBOX: u64 = 0x1000;
/// Bus address of the mailbox the device fills.
const OUTBOX: u64 = 0x2000;
/// Bus address of the page behind ICM address 0; the others follow in the same order.
const ICM: u64 = 0x1_0000_0000;
/// Bytes of all tables (section 4.3).
const ICM_LEN: u64 = 0x2685_4000;

/// ICM address of the MTT (section 4.3).
const MTT: u64 = 0x2000_0000;
/// Bus address of its first entry, as published.
const MTT_BUS: u64 = 0x1234_0000;

/// Bus addresses of the buffers of the completion, async and command EQ.
const EQ_BUFFERS: [u64; 4] = [0, 0x200_0000, 0x300_0000, 0x300_2000];

const HCR: u64 = 0x8_0680;
const EQ_ARM: u64 = 0x8_0a04;
const EQ_SET_CI: u64 = 0x8_0b00;
const RESET: u64 = 0xf_0010;

/// A guest whose program is the driver.
struct Driver {
    guest: Guest<Mthca>,
    /// What the VMM waits for, by MSI-X vector.
    vectors: Vec<OwnedFd>,
    /// Of the next command, once they have events.
    token: Option<u16>,
    /// Entries of the command EQ that the driver has read.
    commands_read: u32,
}

fn setup(lid: u16, options: Options) -> Setup {
    let own = Identity::from_lid(Lid::new(lid));
    let addresses = Addresses { own, peers: Vec::new(), default_peer: None };
    Setup { options, addresses, engine: engine::Config::default() }
}

/// A block of MAP_ICM (section 3.3.3).
fn block(icm: u64, bus: u64, log: u8) -> Vec<u8> {
    [icm.to_be_bytes(), (bus | u64::from(log)).to_be_bytes()].concat()
}

/// An entry of the MPT (section 6.2).
struct Mpt {
    flags: u32,
    log_pages: u32,
    key: u32,
    pd: u32,
    start: u64,
    len: u64,
    mtt: u64,
}

impl Mpt {
    /// The buffer of a queue: local write, no translation of the key.
    fn buffer(slot: u32, len: u64, mtt: u64) -> Self {
        let key = slot | (slot >> 3 & 1) << 23;
        Self { flags: 0xf002_0d00, log_pages: 0, key, pd: 1, start: 0, len, mtt }
    }

    /// What the driver reaches all memory by: the first region there is.
    fn everything() -> Self {
        Self { flags: 0xf002_0f00, log_pages: 0, key: 0x10, pd: 1, start: 0, len: u64::MAX, mtt: 0 }
    }

    fn lkey(&self) -> u32 {
        self.key.rotate_left(8)
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { flags, log_pages, key, pd, start, len, mtt } = *self;
        let mut bytes = [flags, log_pages, key, pd].map(u32::to_be_bytes).concat();
        bytes.extend([start, len].map(u64::to_be_bytes).concat());
        bytes.resize(0x2c, 0);
        bytes.extend(mtt.to_be_bytes());
        bytes.resize(0x40, 0);
        bytes
    }
}

/// An EQ context (section 6.3).
fn eq_context(log_entries: u8, vector: u8, lkey: u32) -> Vec<u8> {
    let mut bytes = [0x0104_0900, 0, 0, u32::from(log_entries) << 24].map(u32::to_be_bytes).concat();
    bytes.extend([0, u32::from(0x80 | vector), 1, lkey].map(u32::to_be_bytes).concat());
    bytes.resize(0x40, 0);
    bytes
}

impl Driver {
    /// After power-on, with MSI-X enabled and an eventfd for each of three vectors.
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        Self::of_lid(1, options)
    }

    fn of_lid(lid: u16, options: Options) -> Self {
        let setup = setup(lid, options);
        let own = setup.addresses.own;
        let mut guest = Guest::new(Mthca::new(setup), own);
        guest.lend(ICM, ICM_LEN);
        guest.hca.region_write(Region::Config, 0x52, &[0, 0x80]);
        let vectors: Vec<_> = (0..3).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        for (vector, fd) in vectors.iter().enumerate() {
            guest.hca.interrupts().set_eventfd(vector, Some(fd.try_clone().unwrap()));
        }
        Self { guest, vectors, token: None, commands_read: 0 }
    }

    /// Up to INIT_HCA and the regions and queues of events, as in section 14.3.
    fn initialised() -> Self {
        let mut driver = Self::new();
        driver.replay(probe::BRING_UP);
        driver
    }

    /// Likewise, with the port open, and no event of it so far.
    fn with_port() -> Self {
        let mut driver = Self::initialised();
        driver.open_port();
        driver
    }

    /// INIT_IB, with nothing of it left over.
    fn open_port(&mut self) {
        const PORT_CHANGE: u64 = 1 << 9;
        const UNMAP: u32 = 1 << 31;
        assert_eq!(self.command(0x012, PORT_CHANGE, UNMAP | 2).0, 0);
        self.ok(0x009, &[0; 56], 1);
        assert_eq!(self.command(0x012, PORT_CHANGE, 2).0, 0);
        self.guest.settle();
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.guest.store(Bar::Bar0, offset, &value.to_be_bytes());
    }

    fn read(&mut self, offset: u64) -> u32 {
        u32::from_be_bytes(self.guest.load(Bar::Bar0, offset))
    }

    /// Interrupts since the last look, by vector.
    fn interrupts(&mut self, vector: usize) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.vectors[vector], &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    /// Entry `number` of an EQ.
    fn eqe(&mut self, eqn: usize, number: u64) -> Vec<u8> {
        self.guest.peek(EQ_BUFFERS[eqn] + 32 * number, 32)
    }

    /// Writes the seven words; returns the status of a command whose event bit is clear.
    fn raw(&mut self, in_param: u64, in_modifier: u32, out_param: u64, token: u16, word: u32) -> u8 {
        let halves = |value: u64| [value >> 32, value & 0xffff_ffff].map(|half| u32::try_from(half).unwrap());
        let ([in_high, in_low], [out_high, out_low]) = (halves(in_param), halves(out_param));
        let token = u32::from(token) << 16;
        let words = [in_high, in_low, in_modifier, out_high, out_low, token, word];
        for (offset, value) in (HCR..).step_by(4).zip(words) {
            self.write(offset, value);
        }
        let [status, state, ..] = self.read(HCR + 0x18).to_be_bytes();
        assert_eq!(state & 0x80, 0, "go is clear when the store is done");
        status
    }

    /// Issues a command and returns its status and what it answered in out_param.
    fn command(&mut self, op: u32, in_param: u64, in_modifier: u32) -> (u8, u64) {
        const GO: u32 = 1 << 23;
        const EVENT: u32 = 1 << 22;
        let word = GO | (op & 0xf000) | (op & 0xfff);
        let Some(token) = self.token else {
            let status = self.raw(in_param, in_modifier, OUTBOX, 0xffff, word);
            let out = [self.read(HCR + 0xc), self.read(HCR + 0x10)].map(u32::to_be_bytes).concat();
            return (status, u64::from_be_bytes(out.try_into().unwrap()));
        };
        self.raw(in_param, in_modifier, OUTBOX, token, word | EVENT);
        // The interrupt handler.
        assert_eq!(self.interrupts(2), 1, "interrupts of a command");
        let entry = self.eqe(3, u64::from(self.commands_read % 256));
        assert_eq!((entry[1], &entry[6..8], entry[0x1f]), (0x0a, &token.to_be_bytes()[..], 0));
        self.guest.poke(EQ_BUFFERS[3] + 32 * u64::from(self.commands_read % 256) + 31, &[0x80]);
        self.commands_read += 1;
        self.write(EQ_SET_CI + 8 * 3, self.commands_read);
        self.write(EQ_ARM, 1 << 3);
        // Slots count on by as many as there are (section 2.2).
        self.token = Some(token.wrapping_add(0x20));
        (entry[0x0f], u64::from_be_bytes(entry[0x10..0x18].try_into().unwrap()))
    }

    /// Issues a command with an inbox; what it wrote is at [`OUTBOX`]. The modifier is in bits 15:12 of `op`.
    fn with_inbox(&mut self, op: u32, inbox: &[u8], in_modifier: u32) -> u8 {
        self.guest.poke(INBOX, inbox);
        self.command(op, INBOX, in_modifier).0
    }

    /// Issues a command that must succeed.
    #[track_caller]
    fn ok(&mut self, op: u32, inbox: &[u8], in_modifier: u32) {
        assert_eq!(self.with_inbox(op, inbox, in_modifier), CmdStatus::Ok.code(), "status of {op:03x}");
    }

    /// Writes page table entries as the CPU does, into the memory that is lent for them.
    fn write_mtt(&mut self, offset: u64, pages: &[u64]) {
        let entries: Vec<u8> = pages.iter().flat_map(|page| (page | 1).to_be_bytes()).collect();
        self.guest.poke(MTT_BUS + offset, &entries);
    }
}
