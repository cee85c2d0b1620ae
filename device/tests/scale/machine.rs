//! An in-process guest with an HCA, and a driver that can create large numbers of objects.

use std::iter;

use card::frontend::Interface as _;
use card::hca::Hca;
use card::identity::Identity;
use card::memory::Permissions;
use card::net::address::Addresses;
use card::vfio::Bar;
use card::vfio::server::{Device as _, Region};
use drivers::Bus;
use drivers::jingzhao::{
    self as driver, Driver, ICM_CONTEXT, LOG_CQS, LOG_MPTS, LOG_QPS, QPC, TABLES, layout,
};
use engine::Instant;
use jingzhao::{JingZhao, Options, Setup};
use protocol::hca::jingzhao::cmd::Op;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Iova, Lid, Qpn};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Size of guest memory in bytes. Guest memory starts at bus address 0. Pages are allocated on first use.
const MEMORY: u64 = 1 << 30;
pub(crate) const PAGE: u64 = 0x1000;
/// First free address for buffers.
pub(crate) const BUFFERS: u64 = 0x2000_0000;

/// Number of commands per turn. A command takes eight VMM messages, and one turn handles 64 messages.
const COMMANDS_PER_TURN: u32 = 8;

pub(crate) type Machine = Driver<Guest>;

pub(crate) struct Guest {
    hca: Hca<JingZhao>,
    /// Number of commands executed so far.
    commands: u32,
}

/// Returns an initialised device with LID `lid` (1 or 2). Its default peer has the other LID. As with the public
/// driver, the device's tables have the default sizes and are mapped in 256 KiB chunks.
pub(crate) fn initialised(lid: u16, options: Options) -> Machine {
    const CHUNK: u16 = 64;
    /// Number of pages in each of the [`TABLES`].
    const PAGES: [u16; 5] = [4096, 1024, 1, 2048, 2048];
    let mut machine = powered_on(lid, options);
    machine.ok(Op::InitHca, 0, 0, &layout(LOG_QPS, LOG_CQS, LOG_MPTS).emit());
    for ((table, virt, bus), pages) in iter::zip(TABLES, PAGES) {
        for first in (0..pages).step_by(CHUNK.into()) {
            let offset = u64::from(first) * PAGE;
            machine.map(table, virt + offset, bus + offset, CHUNK.min(pages - first));
        }
    }
    machine
}

/// Returns a device before INIT_HCA. Bus mastering is enabled, and guest memory is mapped.
pub(crate) fn powered_on(lid: u16, options: Options) -> Machine {
    let port = |lid| Identity::from_lid(Lid::new(lid));
    let addresses = Addresses { own: port(lid), peers: Vec::new(), default_peer: Some(port(3 - lid)) };
    let setup = Setup { options, mac: port(lid).mac, engine: engine::Config::default() };
    let mut guest = Guest { hca: Hca::new(JingZhao::new(setup), addresses, None), commands: 0 };
    guest.enable();
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, MEMORY).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let all = Permissions { read: true, write: true };
    guest.hca.memory().map(Iova::new(0), MEMORY, all, Some((fd, 0))).unwrap();
    Driver::new(guest)
}

pub(crate) fn pages(bus: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |page| bus + page * PAGE)
}

impl Bus for Guest {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.hca.region_write(Region::Config, offset, bytes);
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.hca.region_write(Region::Bar(Bar::ALL[usize::from(bar)]), offset, bytes);
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.hca.region_read(Region::Bar(Bar::ALL[usize::from(bar)]), offset, &mut bytes);
        self.commands += 1;
        if self.commands.is_multiple_of(COMMANDS_PER_TURN) {
            self.hca.drain();
        }
        bytes
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.hca.memory().write(Iova::new(at), bytes).unwrap();
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.hca.memory().read(Iova::new(at), &mut bytes).unwrap();
        bytes
    }
}

impl Guest {
    /// Reads a little-endian word from guest memory.
    pub(crate) fn word(&mut self, at: u64) -> u32 {
        u32::from_le_bytes(self.peek(at, 4).try_into().unwrap())
    }

    /// Reads a word from a QP's context in guest memory.
    pub(crate) fn context_word(&mut self, qpn: u32, offset: u64) -> u32 {
        self.word(ICM_CONTEXT + QPC + u64::from(qpn) * 256 + offset).swap_bytes()
    }

    /// Delivers a frame from the peer.
    pub(crate) fn arrive(&mut self, frame: &[u8]) {
        self.hca.handle_frame(frame);
    }

    /// Ends a turn. Returns the frames to transmit and whether work is left.
    pub(crate) fn turn(&mut self) -> (Vec<Vec<u8>>, bool) {
        self.hca.set_now(Instant::ZERO);
        let left = self.hca.drain();
        let frames = self.hca.outbound().iter().map(|(_, frame)| frame.to_vec()).collect();
        self.hca.outbound().clear();
        (frames, left.frames || left.other)
    }
}

/// Returns the context of a connected QP with eight slots in each queue.
pub(crate) fn rc(remote: u32, cqn: u32, sq: u32, rq: u32) -> Qpc {
    Qpc { remote_qpn: Qpn::new(remote), ..driver::qpc(cqn, [sq, rq], 0x400) }
}
