//! Tests mapped doorbells. An independent vfio-user client maps the doorbell pages and writes to them instead of
//! sending messages.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Daemon, Guest, assert_idle, hcad, until};
use device::interfaces;
use drivers::Bus;
use drivers::mthca::{Cq, Driver, Mpt, SMALL_LAYOUT, eq_context};
use protocol::hca::mthca::icm::Block;
use protocol::ids::{IcmAddr, Iova};
use rustix::fs::{SealFlags, fcntl_get_seals, ftruncate};
use serde_json::{Value, json};
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX};
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};

/// Size of guest memory in bytes. Guest memory starts at bus address 0.
const MEMORY: u64 = 1 << 20;

/// Bus addresses of the doorbell records, the page table, and the buffers of a CQ and an EQ.
const RECORDS: u64 = 0xa000;
const MTT_BUS: u64 = 0x8000;
const CQ_BUFFER: u64 = 0x2_0000;
const EQ_BUFFER: u64 = 0x2_1000;
/// ICM address of the page table.
const MTT: u64 = 0x10_0000;
const CQN: u32 = 1;

/// A device whose VMM has mapped BAR 2.
struct Vmm {
    guest: Guest,
    pages: MmapRegion,
}

impl Vmm {
    fn attach(daemon: &Daemon) -> Self {
        let guest = Guest::attach(&daemon.socket, MEMORY);
        let region = guest.client.region(VFIO_PCI_BAR2_REGION_INDEX).unwrap();
        assert!(region.sparse_areas.is_empty(), "the whole region must be mappable");
        let file = region.file_offset.as_ref().expect("the region has a file");
        assert_eq!(file.start(), 0);
        let file = file.file().try_clone().unwrap();
        let len = usize::try_from(region.size).unwrap();
        let pages = MmapRegion::from_file(FileOffset::new(file, 0), len).unwrap();
        Self { guest, pages }
    }
}

impl Bus for Vmm {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.guest.configure(offset, bytes);
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        if bar == 2 {
            let word = u64::from_ne_bytes(bytes.try_into().unwrap());
            let at = usize::try_from(offset).unwrap();
            self.pages.as_volatile_slice().write_obj(word, at).unwrap();
        } else {
            self.guest.store(bar, offset, bytes);
        }
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        self.guest.load(bar, offset)
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.guest.poke(at, bytes);
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        self.guest.peek(at, len)
    }
}

fn daemon(frontend: &Value, more: &[(&str, Value)]) -> (tempfile::TempDir, std::process::Command) {
    let folder = tempfile::tempdir().unwrap();
    let mut device = json!({
        "id": 1,
        "socket_path": folder.path().join("hca.sock"),
        "frontend": frontend,
        "fabric": { "udp": { "bind": "127.0.0.1:0", "peers": [] } },
        "doorbells": "mapped",
    });
    for (key, value) in more {
        device[*key] = value.clone();
    }
    let config = folder.path().join("hcad.json");
    fs::write(&config, json!({ "devices": [device] }).to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(config);
    (folder, command)
}

fn start(more: &[(&str, Value)]) -> Daemon {
    let (folder, command) = daemon(&json!({ "mthca": {} }), more);
    let socket = folder.path().join("hca.sock");
    Daemon::ready(command, folder, socket)
}

/// Returns a driver with a CQ and an EQ for the CQ's events.
fn with_cq(daemon: &Daemon) -> Driver<Vmm> {
    let mut driver = Driver::new(Vmm::attach(daemon));
    driver.enable();
    let block = |start, bus| Block { start: IcmAddr::new(start), bus: Iova::new(bus), length: 4096 };
    // The third page of ICM contains the doorbell records of UAR page 2.
    let blocks = [block(MTT, MTT_BUS), block(2 * 4096, RECORDS)];
    driver.ok(0xffa, &blocks.iter().flat_map(Block::emit).collect::<Vec<u8>>(), 2);
    driver.ok(0x007, &SMALL_LAYOUT.emit(), 0);
    for (place, buffer) in (0..).zip([CQ_BUFFER, EQ_BUFFER]) {
        driver.poke(buffer, &[0x80; 0x1000]);
        driver.write_mtt(MTT_BUS + 8 * place, [buffer]);
        let key = 2 + u32::try_from(place).unwrap();
        let region =
            Mpt { flags: Mpt::LOCAL, log_pages: 0, key, pd: 1, start: 0, len: 0x1000, mtt: MTT + 8 * place };
        driver.ok(0x00d, &region.bytes(), key);
    }
    driver.ok(0x013, &eq_context(7, 0, 1, 3_u32.rotate_left(8)), 1);
    let lkey = 2_u32.rotate_left(8);
    let cq = Cq { cqn: CQN, log_entries: 5, pd: 1, lkey, record: 100, arm_record: 0 };
    driver.ok(0x016, &cq.bytes(), CQN);
    driver
}

/// Arms the CQ with consumer index `consumer`. The producer index of the empty CQ is 0. With any other consumer index,
/// the CQ appears to have unread entries, and the event is raised immediately.
fn arm(driver: &mut Driver<Vmm>, sequence: u8, consumer: u32) {
    let record = CQN << 8 | 2 << 5 | u32::from(sequence & 3) << 3 | 2;
    let record = [consumer.to_be_bytes(), record.to_be_bytes()].concat();
    driver.poke(RECORDS, &record);
    let doorbell = (u32::from(sequence & 3) << 28 | 2 << 24 | CQN).to_be_bytes();
    driver.store(2, 2 * 4096 + 0x20, &[doorbell, consumer.to_be_bytes()].concat());
}

/// Waits for the event numbered `number`.
fn wait_for_event(driver: &mut Driver<Vmm>, number: u64) {
    let at = EQ_BUFFER + 32 * number;
    let entry = until("an event", || Some(driver.peek(at, 32)).filter(|entry| entry[31] == 0));
    assert_eq!((entry[1], &entry[4..8]), (0, &CQN.to_be_bytes()[..]));
}

#[test]
fn idle_device_detects_write_to_mapped_doorbell() {
    let daemon = start(&[]);
    let mut driver = with_cq(&daemon);
    for (number, pause) in [0, 0, 3, 30, 300, 1200].into_iter().enumerate() {
        thread::sleep(Duration::from_millis(pause));
        arm(&mut driver, u8::try_from(number).unwrap() + 1, 7);
        wait_for_event(&mut driver, number.try_into().unwrap());
    }
}

#[test]
fn each_client_gets_its_own_doorbell_file() {
    let daemon = start(&[]);
    let first = with_cq(&daemon);
    let file = |vmm: &Vmm| -> File {
        let region = vmm.guest.client.region(VFIO_PCI_BAR2_REGION_INDEX).unwrap();
        region.file_offset.as_ref().unwrap().file().try_clone().unwrap()
    };
    let old = file(&first.bus);
    assert!(fcntl_get_seals(&old).unwrap().contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(ftruncate(&old, 0).is_err());
    assert!(first.bus.guest.client.region(VFIO_PCI_BAR0_REGION_INDEX).unwrap().file_offset.is_none());
    first.bus.guest.client.shutdown().unwrap();
    let Vmm { pages, .. } = first.bus;

    let mut second = with_cq(&daemon);
    let inode = |file: &File| rustix::fs::fstat(file).unwrap().st_ino;
    assert_ne!(inode(&old), inode(&file(&second.bus)));
    pages.as_volatile_slice().write_obj(u64::MAX, 2 * 4096 + 0x20).unwrap();
    arm(&mut second, 1, 7);
    wait_for_event(&mut second, 0);
}

#[test]
fn recording_with_mapped_doorbells_can_be_replayed() {
    let record = tempfile::tempdir().unwrap();
    let path = record.path().join("hca.record");
    {
        let mut daemon = start(&[("record", json!(path))]);
        let mut driver = with_cq(&daemon);
        arm(&mut driver, 1, 7);
        wait_for_event(&mut driver, 0);
        drop(driver);
        daemon.wait_for_line("device reset");
        let pid = rustix::process::Pid::from_child(&daemon.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(daemon.child.wait().unwrap().success());
    }
    let replay = hcad().arg("replay").arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&replay.stdout);
    assert!(replay.status.success() && text.contains("no differences"), "{text}");
}

/// The start of the BAR holds the registers, the MSI-X structures and the UAR pages of EQs. Accesses to it must trap.
#[test]
fn connectx_maps_only_part_of_its_bar() {
    let (folder, command) = daemon(&json!({ "connectx": {} }), &[]);
    let socket = folder.path().join("hca.sock");
    let daemon = Daemon::ready(command, folder, socket);
    let guest = Guest::attach(&daemon.socket, MEMORY);
    let region = guest.client.region(VFIO_PCI_BAR0_REGION_INDEX).unwrap();
    let areas: Vec<_> = region.sparse_areas.iter().map(|area| (area.offset, area.size)).collect();
    assert_eq!(areas, [(0x2_0000, region.size - 0x2_0000)]);
    assert_eq!(region.file_offset.as_ref().expect("the region has a file").start(), 0);
}

#[test]
fn interfaces_needing_traps_reject_mapped_doorbells() {
    let trapped: Vec<_> =
        interfaces::ALL.iter().filter(|interface| interface.needs_traps.is_some()).collect();
    assert_eq!(
        trapped.len() + 2,
        interfaces::ALL.len(),
        "the test must cover all interfaces except mthca and connectx"
    );
    for interface in trapped {
        let name = interface.key;
        let (_folder, mut command) = daemon(&json!({ name: {} }), &[]);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        let wanted = format!("devices[0].doorbells: {name} requires \"trapped\": its doorbells ");
        assert!(error.contains(&wanted), "{error}");
    }
}

/// While its guest is idle, the device wakes up about a hundred times per second. The main check counts wake-ups,
/// because CPU time depends on other load. `device/book/src/inside/doorbells.md` states the CPU time on an idle
/// host.
#[test]
fn idle_device_wakes_up_rarely() {
    let daemon = start(&[]);
    let mut driver = with_cq(&daemon);
    arm(&mut driver, 1, 7);
    wait_for_event(&mut driver, 0);
    until("a period with few wake-ups", || {
        let (before, start) = (wake_ups(&daemon), Instant::now());
        thread::sleep(Duration::from_secs(3));
        let count = wake_ups(&daemon) - before;
        // On a loaded host, the period may be much longer than 3 s.
        (count <= 400 * start.elapsed().as_secs() / 3).then_some(())
    });
    // A thread that never blocks never wakes up either, so also check the CPU time, with a generous limit.
    assert_idle(&daemon, Duration::from_secs(3), 30);
}

/// Returns how many times the daemon's threads have blocked.
fn wake_ups(daemon: &Daemon) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.child.id())).unwrap();
    let of_thread = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.map_or(0, |count| count.trim().parse().unwrap())
    };
    threads.map(|thread| of_thread(thread.unwrap().path())).sum()
}
