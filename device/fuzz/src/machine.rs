//! A guest with one device of any interface, and what its client, its operator and its wire may do to it.

use std::path::Path;

use device::frontend::Frontend;
use device::frontend::snapshot::Table;
use device::hca::Hca;
use device::identity::Identity;
use device::memory::Permissions;
use device::telemetry::trace::{Trace, TraceFormat};
use device::vfio::Bar;
use device::vfio::server::{Device, Region};
use engine::Instant;
use protocol::Psn;
use protocol::ids::{Iova, Lid};
use protocol::roce::RoceFrame;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::input::Input;
use super::wire;

/// Bytes of guest memory, from bus address 0 on.
pub(crate) const MEMORY: u64 = 1 << 20;

/// Where PSNs begin, both ways: about to wrap.
pub(crate) const PSN: u32 = 0xff_fffe;

/// What frames of the peer aim at.
#[derive(Clone, Copy)]
pub(crate) struct Aim {
    /// QPs of the guest.
    pub(crate) qpns: &'static [u32],
    /// Key and first address of a region that a peer may use.
    pub(crate) key: u32,
    pub(crate) va: u64,
}

impl Aim {
    /// One of the guest's QPs, or any.
    pub(crate) fn qpn(&self, input: &mut Input<'_>) -> u32 {
        match usize::from(input.byte() % 8) {
            choice @ 0..5 => self.qpns[choice % self.qpns.len()],
            _ => input.word() & 0xff_ffff,
        }
    }
}

pub(crate) struct Machine<F: Frontend> {
    pub(crate) hca: Hca<F>,
    pub(crate) now: Instant,
    /// PSN of the packet that left last.
    pub(crate) sent: Psn,
    pub(crate) aim: Aim,
}

impl<F: Frontend> Machine<F> {
    /// LID 1 with memory, which somebody looks at or not.
    pub(crate) fn of(frontend: F, watched: u8, aim: Aim) -> Self {
        let hca = Hca::new(frontend, Identity::from_lid(Lid::new(1)), None);
        let mut machine = Self { hca, now: Instant::ZERO, sent: Psn::new(PSN), aim };
        machine.hca.set_strict(watched & 1 != 0);
        if watched & 2 != 0 {
            let format = if watched & 4 == 0 { TraceFormat::Text } else { TraceFormat::Json };
            let nowhere = Box::new(std::io::sink());
            machine.hca.set_trace(Some(Trace::new(nowhere, Path::new("nowhere"), format, "hca1")));
        }
        machine.lend();
        machine
    }

    /// Gives the device memory of zeros in place of what it had.
    pub(crate) fn lend(&mut self) {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&fd, MEMORY).expect("a file in memory grows");
        fcntl_add_seals(&fd, SealFlags::SHRINK).expect("the file allows it");
        let all = Permissions { read: true, write: true };
        let memory = self.hca.memory();
        memory.unmap_all();
        memory.map(Iova::new(0), MEMORY, all, Some((fd, 0))).expect("nothing is mapped");
    }

    /// Writes guest memory, as far as it is there.
    pub(crate) fn poke(&mut self, at: u64, bytes: &[u8]) {
        let _ = self.hca.memory().write(Iova::new(at), bytes);
    }

    /// Stores to a register, if the region reaches so far.
    pub(crate) fn store(&mut self, bar: Bar, offset: u64, bytes: &[u8]) {
        if offset < self.hca.region_len(Region::Bar(bar)) {
            self.hca.region_write(Region::Bar(bar), offset, bytes);
        }
    }

    /// Seven words of a command, by an interface's order of bytes.
    pub(crate) fn command_words(
        &mut self,
        hcr: u64,
        in_param: u64,
        out_param: u64,
        rest: [u32; 3],
        be: bool,
    ) {
        let [in_modifier, token, command] = rest;
        let halves = |value: u64| [value >> 32, value & 0xffff_ffff].map(|half| half as u32);
        let ([in_high, in_low], [out_high, out_low]) = (halves(in_param), halves(out_param));
        let words = [in_high, in_low, in_modifier, out_high, out_low, token, command];
        for (offset, word) in (hcr..).step_by(4).zip(words) {
            let bytes = if be { word.to_be_bytes() } else { word.to_le_bytes() };
            self.store(Bar::Bar0, offset, &bytes);
        }
    }

    /// What has nothing to do with the interface. Whether the operation is such a one.
    pub(crate) fn operate(&mut self, operation: u8, input: &mut Input<'_>) -> bool {
        match operation {
            0 => {
                let (region, offset) = self.place(input);
                let data = input.bytes(16);
                let len = clamp(self.hca.region_len(region), offset, data.len());
                self.hca.region_write(region, offset, &data[..len]);
            }
            1 => {
                let (region, offset) = self.place(input);
                let mut out = [0; 16];
                let len = clamp(self.hca.region_len(region), offset, usize::from(input.byte() % 17));
                self.hca.region_read(region, offset, &mut out[..len]);
            }
            4 => {
                let at = u64::from(input.word()) % MEMORY;
                let data = input.bytes(64);
                // Where the guest's memory ends, or was taken back, there is nothing to scribble on.
                self.poke(at, data);
            }
            8 | 9 => {
                let frame = wire::request(&self.aim, input);
                self.hca.handle_frame(&frame);
            }
            10 => self.hca.handle_frame(input.bytes(255)),
            11 => {
                let step = u64::from(input.word()) << (input.byte() % 16);
                self.now = Instant::from_nanos(self.now.as_nanos().saturating_add(step));
            }
            12 => {
                let (at, len) = (u64::from(input.word()) % MEMORY, u64::from(input.word()));
                let _ = self.hca.memory().unmap(Iova::new(at), len);
            }
            13 => self.lend(),
            15 => self.interrupts(input),
            19 => self.hca.set_link(input.byte() < 192),
            20 => self.look(input),
            22 => {
                let frame = wire::response(&self.aim, self.sent, input);
                self.hca.handle_frame(&frame);
            }
            23 => self.now = self.hca.next_deadline().unwrap_or(self.now).max(self.now),
            _ => return false,
        }
        true
    }

    /// Ends of the device that are not the end of its client, and the end of that.
    pub(crate) fn begin_again(&mut self, input: &mut Input<'_>, bring_up: impl FnOnce(&mut Self)) {
        match input.byte() % 4 {
            0 => self.hca.reset(),
            1 => self.hca.disconnect(),
            // A function level reset, then what a driver does first.
            2 => self.hca.region_write(Region::Config, 0x69, &[0x80]),
            _ => bring_up(self),
        }
    }

    fn interrupts(&mut self, input: &mut Input<'_>) {
        let vector = usize::from(input.byte() % 65);
        let fd = eventfd(0, EventfdFlags::CLOEXEC).ok();
        match input.byte() % 4 {
            0 => self.hca.interrupts().set_eventfd(vector, fd),
            1 => self.hca.interrupts().set_masked(vector, true),
            2 => self.hca.interrupts().trigger(vector),
            _ => self.hca.region_write(Region::Config, 0x52, &[0, 0x80]),
        }
    }

    /// What an operator asks.
    fn look(&mut self, input: &mut Input<'_>) {
        const TABLES: [Table; 5] = [Table::Qps, Table::Cqs, Table::Eqs, Table::Mrs, Table::Icm];
        let from = if input.byte() < 128 { 0 } else { u64::from(input.word()) };
        for table in TABLES {
            let _ = self.hca.snapshot(table, from);
        }
        let _ = self.hca.frontend_counters();
        self.hca.flush();
    }

    /// A byte of a region.
    fn place(&self, input: &mut Input<'_>) -> (Region, u64) {
        let region = match input.byte() % 3 {
            0 => Region::Bar(Bar::Bar0),
            1 => Region::Bar(Bar::Bar2),
            _ => Region::Config,
        };
        (region, u64::from(input.word()) % self.hca.region_len(region))
    }

    /// Ends turns until nothing is left to do, or so many are over: a guest may link work requests in a circle.
    pub(crate) fn turns(&mut self, most: usize) {
        for _ in 0..most {
            self.hca.set_now(self.now);
            if self.hca.next_deadline().is_some_and(|at| at <= self.now) {
                self.hca.handle_deadline();
            }
            let left = self.hca.drain();
            let mut sent = self.sent;
            for (_, frame) in self.hca.outbound().iter() {
                let is_roce =
                    frame.get(36..38) == Some(&4791_u16.to_be_bytes()[..]) && frame[12..14] == [8, 0];
                let packet = RoceFrame::parse(frame);
                assert!(!is_roce || packet.is_ok(), "sent a frame nobody takes: {frame:02x?}");
                sent = packet.map_or(sent, |packet| packet.packet.bth.psn);
            }
            self.sent = sent;
            self.hca.outbound().clear();
            if !left.frames && !left.other {
                return;
            }
        }
    }

    /// Syndromes of the completions in a queue, 0 for success: both interfaces have them in the same bytes.
    pub(crate) fn completions(&mut self, queue: u64) -> Vec<u8> {
        let mut entries = [0; 0x400];
        self.hca.memory().read(Iova::new(queue), &mut entries).expect("memory was lent");
        entries
            .chunks_exact(32)
            .take_while(|entry| entry[31] & 0x80 == 0)
            .map(|entry| if entry[0x1c] >= 0xfe { entry[0x10] } else { 0 })
            .collect()
    }
}

fn clamp(region_len: u64, offset: u64, len: usize) -> usize {
    len.min(usize::try_from(region_len - offset).unwrap_or(len))
}
