//! Doorbells without traps: somebody else's vfio-user client maps the pages, stores, and sends nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use crate::common::{Daemon, hcad, rests, until};
use device::frontend::list;
use drivers::Bus;
use drivers::mthca::{Cq, Driver, Mpt, eq_context};
use protocol::hca::mthca::icm::Block;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::table::Table;
use protocol::ids::{IcmAddr, Iova};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_get_seals, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use serde_json::{Value, json};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
};
use vfio_user::Client;
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};

/// Bytes of guest memory, from bus address 0 on.
const MEMORY: u64 = 1 << 20;

/// Bus addresses: doorbell records, page table, buffers of a CQ and of an EQ.
const RECORDS: u64 = 0xa000;
const MTT_BUS: u64 = 0x8000;
const CQ_BUFFER: u64 = 0x2_0000;
const EQ_BUFFER: u64 = 0x2_1000;
/// ICM address of the page table; the records of UAR page 2 are in the third page.
const MTT: u64 = 0x10_0000;
const CQN: u32 = 1;
const LAYOUT: InitHca = InitHca {
    qpc: Table { base: IcmAddr::new(0), log_entries: 5 },
    srqc: Table { base: IcmAddr::new(0), log_entries: 4 },
    cqc: Table { base: IcmAddr::new(0), log_entries: 4 },
    eqc: Table { base: IcmAddr::new(0), log_entries: 3 },
    mpt: Table { base: IcmAddr::new(0), log_entries: 6 },
    group_buckets: 8,
    log_groups: 4,
    log_uarc: 12,
    uarc_base: IcmAddr::new(0),
};

/// A device whose VMM has mapped BAR 2.
struct Vmm {
    client: Client,
    memory: OwnedFd,
    pages: MmapRegion,
}

impl Vmm {
    fn attach(daemon: &Daemon) -> Self {
        let mut client = Client::new(&daemon.socket).unwrap();
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, MEMORY).unwrap();
        client.dma_map(0, 0, MEMORY, memory.as_raw_fd()).unwrap();
        let region = client.region(VFIO_PCI_BAR2_REGION_INDEX).unwrap();
        assert!(region.sparse_areas.is_empty(), "all of it may be mapped");
        let file = region.file_offset.as_ref().expect("a file");
        assert_eq!(file.start(), 0);
        let file = file.file().try_clone().unwrap();
        let len = usize::try_from(region.size).unwrap();
        let pages = MmapRegion::from_file(FileOffset::new(file, 0), len).unwrap();
        Self { client, memory, pages }
    }
}

impl Bus for Vmm {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, offset, bytes).unwrap();
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        if bar == 2 {
            let word = u64::from_ne_bytes(bytes.try_into().unwrap());
            let at = usize::try_from(offset).unwrap();
            self.pages.as_volatile_slice().write_obj(word, at).unwrap();
        } else {
            self.client.region_write(bar.into(), offset, bytes).unwrap();
        }
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.client.region_read(bar.into(), offset, &mut bytes).unwrap();
        bytes
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.memory, bytes, at).unwrap(), bytes.len());
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(pread(&self.memory, &mut bytes, at).unwrap(), len);
        bytes
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

/// A driver of a device that has a CQ and the EQ of its events.
fn with_cq(daemon: &Daemon) -> Driver<Vmm> {
    let mut driver = Driver::new(Vmm::attach(daemon));
    driver.enable();
    let block = |start, bus| Block { start: IcmAddr::new(start), bus: Iova::new(bus), length: 4096 };
    let blocks = [block(MTT, MTT_BUS), block(2 * 4096, RECORDS)];
    driver.ok(0xffa, &blocks.iter().flat_map(Block::emit).collect::<Vec<u8>>(), 2);
    driver.ok(0x007, &LAYOUT.emit(), 0);
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

/// Arms the CQ for an entry that is there, if software has read up to `consumer`: there is none, so that any other number
/// asks for an event at once.
fn arm(driver: &mut Driver<Vmm>, sequence: u8, consumer: u32) {
    let record = CQN << 8 | 2 << 5 | u32::from(sequence & 3) << 3 | 2;
    let record = [consumer.to_be_bytes(), record.to_be_bytes()].concat();
    driver.poke(RECORDS, &record);
    let doorbell = (u32::from(sequence & 3) << 28 | 2 << 24 | CQN).to_be_bytes();
    driver.store(2, 2 * 4096 + 0x20, &[doorbell, consumer.to_be_bytes()].concat());
}

/// Waits for the event with this number.
fn wait_for_event(driver: &mut Driver<Vmm>, number: u64) {
    let at = EQ_BUFFER + 32 * number;
    let entry = until("an event", || Some(driver.peek(at, 32)).filter(|entry| entry[31] == 0));
    assert_eq!((entry[1], &entry[4..8]), (0, &CQN.to_be_bytes()[..]));
}

#[test]
fn a_doorbell_is_found_without_a_message_whatever_the_silence_before_it() {
    let daemon = start(&[]);
    let mut driver = with_cq(&daemon);
    for (number, pause) in [0, 0, 3, 30, 300, 1200].into_iter().enumerate() {
        thread::sleep(Duration::from_millis(pause));
        arm(&mut driver, u8::try_from(number).unwrap() + 1, 7);
        wait_for_event(&mut driver, number.try_into().unwrap());
    }
}

#[test]
fn the_file_cannot_be_cut_short_and_the_next_client_has_another() {
    let daemon = start(&[]);
    let first = with_cq(&daemon);
    let file = |vmm: &Vmm| -> File {
        let region = vmm.client.region(VFIO_PCI_BAR2_REGION_INDEX).unwrap();
        region.file_offset.as_ref().unwrap().file().try_clone().unwrap()
    };
    let old = file(&first.bus);
    assert!(fcntl_get_seals(&old).unwrap().contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(ftruncate(&old, 0).is_err());
    assert!(first.bus.client.region(VFIO_PCI_BAR0_REGION_INDEX).unwrap().file_offset.is_none());
    first.bus.client.shutdown().unwrap();
    let Vmm { pages, .. } = first.bus;

    let mut second = with_cq(&daemon);
    let inode = |file: &File| rustix::fs::fstat(file).unwrap().st_ino;
    assert_ne!(inode(&old), inode(&file(&second.bus)));
    pages.as_volatile_slice().write_obj(u64::MAX, 2 * 4096 + 0x20).unwrap();
    arm(&mut second, 1, 7);
    wait_for_event(&mut second, 0);
}

#[test]
fn a_record_has_doorbells_that_made_no_message() {
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

#[test]
fn interfaces_whose_doorbells_have_to_trap_say_so() {
    let trapped: Vec<_> = list::ALL.iter().filter(|interface| interface.needs_traps.is_some()).collect();
    assert_eq!(trapped.len() + 1, list::ALL.len(), "all but mthca");
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

/// A device whose guest is silent wakes up a hundred times a second. This is a bound for a host that is busy with other
/// tests; `device/book/src/inside/doorbells.md` has the figure of a quiet one.
#[test]
fn an_idle_device_takes_hardly_any_of_a_processor() {
    let daemon = start(&[]);
    let mut driver = with_cq(&daemon);
    arm(&mut driver, 1, 7);
    wait_for_event(&mut driver, 0);
    rests(&daemon, Duration::from_secs(3), 6);
}
