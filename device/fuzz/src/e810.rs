//! Fuzzes an E810 with a malicious driver, alongside an E810 with a well-behaved driver. A local fabric connects
//! both devices to a third station.
//!
//! Whatever the malicious driver does, its device must send only valid Ethernet frames, store no more than its limits
//! permit, and access only mapped memory. The other device must still exchange frames with the station.

mod hostile;
mod rdma;

use card::fabric::local::{LocalFabric, Networks};
use card::fabric::{Fabric, RxBatch, TxBatch};
use card::frontend::Interface as _;
use card::frontend::snapshot::{
    CqRow, EqRow, GroupRow, HandleRow, MrRow, NodeRow, QpRow, QueueRow, RuleRow, VsiRow,
};
use card::frontend::table::{Row as _, TableSpec};
use card::identity::Identity;
use card::memory::Permissions;
use card::net::address::Addresses;
use card::vfio::server::Device as _;
use drivers::e810::Driver;
use e810::{E810, Options, Setup};
use protocol::ids::{Iova, Lid, MacAddr};
use protocol::roce::RoceFrame;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::input::Input;
use super::machine::{Aim, MEMORY, Machine};
use super::{OPERATIONS, TURNS};

/// Permitted frame lengths without the frame check sequence: IEEE 802.3-2022, section 3.2.8, and the E810
/// interface, section 5.6.
const FRAME_LENGTHS: std::ops::RangeInclusive<usize> = 60..=9728 - 4;

/// Maximum number of objects of each kind that the device may store, given its capabilities and the size of its
/// scheduler.
const MAX_VSIS: usize = 768;
const MAX_RULES: usize = 8192;
const MAX_NODES: usize = 9 * 512;
/// Maximum number of objects of each kind that the RDMA half may store, given the size of its context memory.
const MAX_RDMA: [(&TableSpec, usize); 6] = [
    (QpRow::TABLE, 1024),
    (CqRow::TABLE, 2048),
    (EqRow::TABLE, 17),
    (MrRow::TABLE, 1 << 14),
    (HandleRow::TABLE, 4096),
    (GroupRow::TABLE, 1024),
];

/// Number of rounds between checks of the object counts. Counting takes longer than a round.
const COUNT_EVERY: usize = 64;

const ATTACKER: MacAddr = MacAddr([0x02, 0xe8, 0x10, 0, 0, 1]);
const NEIGHBOUR: MacAddr = MacAddr([0x02, 0xe8, 0x10, 0, 0, 2]);
const STATION: MacAddr = MacAddr([0x02, 0xe8, 0x10, 0, 0, 3]);
/// EtherType for local experiments, IEEE 802-2014, section 9.2.3.
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

/// Address of a page that the device may read but not write. The page lies directly after guest memory and maps the
/// middle page of a sealed file.
const SEALED: u64 = MEMORY;
const PAGE: u64 = 0x1000;
const SEAL: u8 = 0x5a;

/// QPs and memory of the attacker's device, as targets for the RoCE frames from its peer.
const AIM: Aim = Aim {
    qpns: &rdma::QPNS,
    key: rdma::KEY,
    va: rdma::DATA,
    ends: [
        Identity { mac: ATTACKER, ..Identity::from_lid(Lid::new(1)) },
        Identity { mac: NEIGHBOUR, ..Identity::from_lid(Lid::new(2)) },
    ],
};

/// A device with its driver and its port on the fabric.
struct Nic {
    driver: Driver<Machine<E810>>,
    port: LocalFabric,
    mac: MacAddr,
}

struct Bench {
    attacker: Nic,
    neighbour: Nic,
    station: LocalFabric,
    sealed: OwnedFd,
    rounds: usize,
}

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut bench = Bench::new(input.byte());
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        bench.round(operation, &mut input);
    }
    bench.check();
    bench.check_new_client();
}

/// Executes `operations` operations. For each one, `fill` writes the bytes that select the operation and its operands.
pub fn endure(operations: usize, mut fill: impl FnMut(&mut [u8])) {
    let mut bench = Bench::new(0);
    let mut bytes = [0; 384];
    for _ in 0..operations {
        fill(&mut bytes);
        let mut input = Input::new(&bytes);
        let operation = input.byte();
        bench.round(operation, &mut input);
    }
    bench.check();
    bench.check_new_client();
}

impl Bench {
    /// Creates two devices and initialises them through their drivers. `watched` enables tracing and strict mode for
    /// the attacker's device.
    fn new(watched: u8) -> Self {
        let network = Networks::default().network("bench");
        let join = |mac: MacAddr| {
            let identity = Identity { mac, ..Identity::from_lid(Lid::new(mac.0[5].into())) };
            network.join(&identity).expect("a file descriptor is free")
        };
        let mut bench = Self {
            attacker: Nic::new(ATTACKER, watched, true, join(ATTACKER)),
            neighbour: Nic::new(NEIGHBOUR, 0, false, join(NEIGHBOUR)),
            station: join(STATION),
            sealed: sealed_pages(),
            rounds: 0,
        };
        bench.map_memory();
        for nic in [&mut bench.attacker, &mut bench.neighbour] {
            nic.port.set_promiscuous();
            nic.driver.bring_up(nic.mac);
        }
        rdma::open(&mut bench.attacker.driver);
        bench
    }

    fn map_memory(&mut self) {
        let machine = &mut self.attacker.driver.bus;
        machine.map_memory();
        let read = Permissions { read: true, write: false };
        let fd = self.sealed.try_clone().expect("a file descriptor is free");
        let mapped = machine.hca.memory().map(Iova::new(SEALED), PAGE, read, Some((fd, PAGE)));
        mapped.expect("the addresses after guest memory are free");
        rdma::map_memory(machine);
    }

    /// Executes an operation on the attacker's device, then runs one turn of every device.
    fn round(&mut self, operation: u8, input: &mut Input<'_>) {
        /// Number of operations outside the RDMA half.
        const OPERATIONS: u8 = 48;
        /// First operation of the RDMA half.
        const RDMA: u8 = 176;
        let kind = operation;
        let operation = operation % OPERATIONS;
        match operation {
            _ if kind >= RDMA => rdma::operate(&mut self.attacker.driver, kind - RDMA, input),
            // Most operations have no effect without memory, so usually keep it mapped.
            12 if input.byte() >= 64 => {}
            13 => self.map_memory(),
            30 | 31 if input.byte() < 192 => self.restart_driver(),
            _ if self.attacker.driver.operate(operation, input) => {}
            _ => hostile::operate(&mut self.attacker.driver, operation, input),
        }
        self.turn();
        self.rounds += 1;
        if self.rounds.is_multiple_of(COUNT_EVERY) {
            self.check();
        }
    }

    /// Starts a new driver without any state and initialises the device with it.
    fn restart_driver(&mut self) {
        self.attacker.driver.hca.set_link(true);
        self.map_memory();
        self.attacker.driver.bring_up(ATTACKER);
        rdma::open(&mut self.attacker.driver);
    }

    fn turn(&mut self) {
        self.attacker.turn();
        self.neighbour.turn();
        while self.neighbour.driver.receive().is_some() {}
        let _ = received(&mut self.station);
    }

    /// Checks that the attacker's device stores no more than its limits permit and has not written to read-only memory,
    /// and that the neighbour still works.
    fn check(&mut self) {
        let hca = &self.attacker.driver.hca;
        let count = |table| {
            let (mut count, mut from) = (0, Some(0));
            while let Some(place) = from {
                let page = hca.page(table, place);
                count += page.rows.len();
                from = page.next;
            }
            count
        };
        let queues = usize::from(2 * Options::default().queues.get());
        let of_nic = [
            (VsiRow::TABLE, MAX_VSIS),
            (RuleRow::TABLE, MAX_RULES),
            (NodeRow::TABLE, MAX_NODES),
            (QueueRow::TABLE, queues),
        ];
        for (table, most) in of_nic.into_iter().chain(MAX_RDMA) {
            let kept = count(table);
            assert!(kept <= most, "the device stores {kept} {}, but the maximum is {most}", table.name);
        }
        rdma::check(hca);
        let mut pages = [0; 3 * PAGE as usize];
        rustix::io::pread(&self.sealed, &mut pages, 0).expect("a memfd can be read");
        assert!(pages.iter().all(|byte| *byte == SEAL), "the device must not write to read-only memory");
        self.check_neighbour();
    }

    /// Checks that the neighbour and the station can exchange frames.
    fn check_neighbour(&mut self) {
        self.turn();
        let content: Vec<u8> = self.rounds.to_le_bytes().into_iter().cycle().take(1000).collect();
        let frame = |to: MacAddr, from: MacAddr| [&to.0[..], &from.0, &EXPERIMENTAL, &content].concat();
        let question = frame(NEIGHBOUR, STATION);
        let mut batch = TxBatch::default();
        batch.buffer().extend_from_slice(&question);
        batch.commit_nic();
        self.station.send(&mut batch);
        self.neighbour.turn();
        assert_eq!(self.neighbour.take_frames(), [question], "the neighbour receives the station's frame");
        let answer = frame(STATION, NEIGHBOUR);
        self.neighbour.driver.send(&answer, 0);
        self.neighbour.turn();
        assert_eq!(received(&mut self.station), [answer], "the station receives the neighbour's frame");
    }

    /// Checks that a new client with a new driver can exchange frames.
    fn check_new_client(&mut self) {
        self.attacker.driver.hca.disconnect();
        self.restart_driver();
        self.turn();
        let there = [&NEIGHBOUR.0[..], &ATTACKER.0, &EXPERIMENTAL, &[7; 100]].concat();
        self.attacker.driver.send(&there, 0);
        self.attacker.turn();
        self.neighbour.turn();
        assert_eq!(self.neighbour.take_frames(), [there], "the new client can send a frame");
        let back = [&ATTACKER.0[..], &NEIGHBOUR.0, &EXPERIMENTAL, &[8; 100]].concat();
        self.neighbour.driver.send(&back, 0);
        self.neighbour.turn();
        self.attacker.turn();
        assert_eq!(self.attacker.take_frames(), [back], "the new client can receive a frame");
        rdma::post_looped(&mut self.attacker.driver);
        for _ in 0..8 {
            self.turn();
        }
        rdma::assert_looped(&mut self.attacker.driver);
    }
}

impl Nic {
    /// Creates a device in its power-on state.
    fn new(mac: MacAddr, watched: u8, rdma: bool, port: LocalFabric) -> Self {
        let own = Identity { mac, ..Identity::from_lid(Lid::new(1)) };
        let addresses = Addresses { own, peers: Vec::new(), default_peer: None };
        let options = Options { rdma, ..Options::default() };
        let setup = Setup { options, mac, engine: engine::Config::default() };
        let machine = Machine::of(E810::new(setup), addresses, watched, AIM);
        Self { driver: Driver::new(machine), port, mac }
    }

    fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.driver.receive()).map(|received| received.frame).collect()
    }

    /// Receives and transmits frames until no work is left or the maximum number of turns is reached.
    fn turn(&mut self) {
        let machine = &mut self.driver.bus;
        for frame in received(&mut self.port) {
            machine.hca.handle_frame(&frame);
        }
        for _ in 0..TURNS {
            machine.hca.set_now(machine.now);
            if machine.hca.next_deadline().is_some_and(|at| at <= machine.now) {
                machine.hca.handle_deadline();
            }
            let left = machine.hca.drain();
            for (_, frame) in machine.hca.outbound().iter() {
                let fits = FRAME_LENGTHS.contains(&frame.len()) || RoceFrame::parse(frame).is_ok();
                assert!(fits, "the device sent an invalid frame of {} bytes", frame.len());
            }
            self.port.send(machine.hca.outbound());
            if !left.frames && !left.other {
                return;
            }
        }
    }
}

/// Returns all frames that are waiting for a member of the fabric.
fn received(port: &mut LocalFabric) -> Vec<Vec<u8>> {
    let (mut batch, mut frames) = (RxBatch::new(), Vec::new());
    loop {
        port.recv(&mut batch).expect("a local fabric cannot fail");
        let before = frames.len();
        frames.extend(batch.iter().map(|arrival| arrival.contents().to_vec()));
        if frames.len() == before {
            return frames;
        }
    }
}

fn sealed_pages() -> OwnedFd {
    let fd = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .expect("a memfd can be created");
    ftruncate(&fd, 3 * PAGE).expect("a memfd can be extended");
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("the memfd can be sealed");
    rustix::io::pwrite(&fd, &[SEAL; 3 * PAGE as usize], 0).expect("a memfd can be written");
    fd
}
