//! A guest with one device, generic over the device interface, and the operations that the VMM, the operator and the
//! fabric can perform on the device.

use std::path::Path;

use card::fabric::{Arrival, HEADERS_LEN};
use card::frontend::Frontend;
use card::hca::Hca;
use card::identity::Identity;
use card::memory::Permissions;
use card::net::address::Addresses;
use card::telemetry::trace::{Trace, TraceFormat};
use card::vfio::Bar;
use card::vfio::server::{Device, Region};
use device::interfaces;
use drivers::{Bus, syndrome};
use engine::Instant;
use protocol::Psn;
use protocol::ids::{Iova, Lid};
use protocol::roce::{Mtu, Offload, RoceFrame};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::VolatileSlice;

use super::input::Input;
use super::peer_frames;

/// Size in bytes of guest memory, which starts at bus address 0.
pub(crate) const MEMORY: u64 = 1 << 20;

/// First PSN in both directions, close to wrapping.
pub(crate) const PSN: u32 = 0xff_fffe;

/// QPs and memory that the peer's frames target.
#[derive(Clone, Copy)]
pub(crate) struct Aim {
    /// QP numbers in the guest.
    pub(crate) qpns: &'static [u32],
    /// Key and first address of a region that peers may access.
    pub(crate) key: u32,
    pub(crate) va: u64,
    /// Addresses of the guest and of the peer that sends it frames.
    pub(crate) ends: [Identity; 2],
}

/// Identities of the guest and its peer, derived from their LIDs.
pub(crate) const LIDS: [Identity; 2] = [Identity::from_lid(Lid::new(1)), Identity::from_lid(Lid::new(2))];

impl Aim {
    /// Returns the number of one of the guest's QPs or, less often, an arbitrary QP number.
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
    /// PSN of the last packet sent.
    pub(crate) sent: Psn,
    pub(crate) aim: Aim,
}

impl<F: Frontend> Machine<F> {
    /// Creates a device with memory. Bits of `watched` enable strict mode, tracing and mapped doorbells.
    pub(crate) fn of(frontend: F, addresses: Addresses, watched: u8, aim: Aim) -> Self {
        let hca = Hca::new(frontend, addresses, None);
        let mut machine = Self { hca, now: Instant::ZERO, sent: Psn::new(PSN), aim };
        machine.hca.set_strict(watched & 1 != 0);
        if watched & 8 != 0 {
            machine.hca.map_doorbells();
        }
        if watched & 2 != 0 {
            let format = if watched & 4 == 0 { TraceFormat::Text } else { TraceFormat::Json };
            let nowhere = Box::new(std::io::sink());
            machine.hca.set_trace(Some(Trace::new(nowhere, Path::new("nowhere"), format, "hca1")));
        }
        machine.map_memory();
        machine
    }

    /// Maps new zeroed memory for the device.
    pub(crate) fn map_memory(&mut self) {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .expect("a memfd can be created");
        ftruncate(&fd, MEMORY).expect("a memfd can be extended");
        fcntl_add_seals(&fd, SealFlags::SHRINK).expect("the memfd can be sealed");
        let all = Permissions { read: true, write: true };
        let memory = self.hca.memory();
        memory.unmap_all();
        memory.map(Iova::new(0), MEMORY, all, Some((fd, 0))).expect("the bus address space is empty");
    }

    /// Executes `operation` if it is common to all interfaces. Otherwise, does nothing and returns false.
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
                // If the address is not mapped, this has no effect.
                self.poke(at, data);
            }
            8 | 9 => {
                let frame = peer_frames::request(&self.aim, input);
                self.hca.handle_frame(&frame);
            }
            10 => match input.byte() {
                0..128 => self.hca.handle_arrival(Arrival::new(input.bytes(255), Offload::None)),
                128..192 => self.hca.handle_arrival(Arrival::new(input.bytes(255), Offload::Icrc)),
                choice => {
                    let mtu = Mtu::ALL[usize::from(choice) % Mtu::ALL.len()];
                    let mut frame = peer_frames::request(&self.aim, input);
                    let offload = Offload::Segmentation(mtu);
                    if choice < 224 {
                        self.hca.handle_arrival(Arrival::new(&frame, offload));
                    } else {
                        // The sender has changed or shortened the frame since its headers were copied.
                        let head = frame.get(..HEADERS_LEN).unwrap_or(&frame).to_vec();
                        frame.truncate(frame.len() - usize::from(input.byte()).min(frame.len()));
                        frame.fill(choice);
                        let memory = VolatileSlice::from(&mut frame[..]);
                        self.hca.handle_arrival(Arrival::in_shared_memory(&head, memory, offload));
                    }
                }
            },
            11 => {
                let step = u64::from(input.word()) << (input.byte() % 16);
                self.now = Instant::from_nanos(self.now.as_nanos().saturating_add(step));
            }
            12 => {
                let (at, len) = (u64::from(input.word()) % MEMORY, u64::from(input.word()));
                let _ = self.hca.memory().unmap(Iova::new(at), len);
            }
            13 => self.map_memory(),
            15 => self.interrupts(input),
            19 => self.hca.set_link(input.byte() < 192),
            20 => self.query_tables(input),
            22 => {
                let frame = peer_frames::response(&self.aim, self.sent, input);
                self.hca.handle_frame(&frame);
            }
            23 => self.now = self.hca.next_deadline().unwrap_or(self.now).max(self.now),
            _ => return false,
        }
        true
    }

    /// Depending on the input, resets the device, disconnects its client, or does nothing. Returns true if it did
    /// nothing, in which case the caller initialises the device, even if the device is already running.
    pub(crate) fn reset_or_disconnect(&mut self, input: &mut Input<'_>) -> bool {
        match input.byte() % 4 {
            0 => self.hca.reset(),
            1 => self.hca.disconnect(),
            // Request a function-level reset.
            2 => self.configure(0x69, &[0x80]),
            _ => return true,
        }
        false
    }

    fn interrupts(&mut self, input: &mut Input<'_>) {
        let vector = usize::from(input.byte() % 65);
        let fd = eventfd(0, EventfdFlags::CLOEXEC).ok();
        match input.byte() % 4 {
            0 => self.hca.interrupts().set_eventfd(vector, fd),
            1 => self.hca.interrupts().set_masked(vector, true),
            2 => self.hca.interrupts().trigger(vector),
            _ => self.configure(0x52, &[0, 0x80]),
        }
    }

    /// Queries all tables and counters, as an operator would.
    fn query_tables(&mut self, input: &mut Input<'_>) {
        let from = if input.byte() < 128 { 0 } else { u64::from(input.word()) };
        for table in interfaces::tables() {
            let page = self.hca.page(table, from);
            let _ = (page.rows.cells(), serde_json::to_string(&page.rows));
        }
        let _ = self.hca.frontend_counters();
        self.hca.flush();
    }

    fn place(&self, input: &mut Input<'_>) -> (Region, u64) {
        let bars = Bar::ALL.into_iter().map(Region::Bar);
        let regions = bars.chain([Region::Config]).filter(|region| self.hca.region_len(*region) > 0);
        // Devices have three regions: two BARs and configuration space.
        let region = regions.into_iter().nth(usize::from(input.byte() % 3)).unwrap_or(Region::Config);
        (region, u64::from(input.word()) % self.hca.region_len(region))
    }

    /// Runs the device until no work is left. Stops after `most` turns, because a guest can link work requests into a
    /// cycle. Returns whether work may be left.
    pub(crate) fn turns(&mut self, most: usize) -> bool {
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
                assert!(!is_roce || packet.is_ok(), "the device sent an invalid frame: {frame:02x?}");
                sent = packet.map_or(sent, |packet| packet.packet.bth.psn);
            }
            self.sent = sent;
            self.hca.outbound().clear();
            if !left.frames && !left.other {
                return false;
            }
        }
        true
    }

    /// Returns the syndromes of the completions in a 32-entry queue, up to the first entry that the device owns. The
    /// syndrome of a successful request is 0.
    pub(crate) fn syndromes(&mut self, queue: u64) -> Vec<u8> {
        let entries = self.peek(queue, 0x400);
        entries.chunks_exact(32).take_while(|entry| entry[31] & 0x80 == 0).map(syndrome).collect()
    }
}

/// Accesses outside registers and memory are ignored.
impl<F: Frontend> Bus for Machine<F> {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.hca.region_write(Region::Config, offset, bytes);
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        let region = Region::Bar(Bar::ALL[usize::from(bar)]);
        if offset < self.hca.region_len(region) {
            self.hca.region_write(region, offset, bytes);
        }
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        let (region, mut bytes) = (Region::Bar(Bar::ALL[usize::from(bar)]), [0; LEN]);
        if offset < self.hca.region_len(region) {
            self.hca.region_read(region, offset, &mut bytes);
        }
        bytes
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        let _ = self.hca.memory().write(Iova::new(at), bytes);
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let _ = self.hca.memory().read(Iova::new(at), &mut bytes);
        bytes
    }

    /// Runs one turn. A device without work left never completes a command that it has not completed by then.
    fn wait(&mut self) -> bool {
        self.turns(1)
    }
}

fn clamp(region_len: u64, offset: u64, len: usize) -> usize {
    len.min(usize::try_from(region_len - offset).unwrap_or(len))
}
