//! Tests `hcad` with an independent vfio-user client and with misbehaving clients.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{Daemon, TIMEOUT, assert_idle, until};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_ROM_REGION_INDEX,
};
use vfio_user::Client;

const CONFIG: u32 = VFIO_PCI_CONFIG_REGION_INDEX;
const BAR0: u32 = VFIO_PCI_BAR0_REGION_INDEX;

/// Bus address of the mailbox and its offset in the memory file.
const MAILBOX: u64 = 0x40_0000;
const MAILBOX_OFFSET: u64 = 0x2000;

fn config_read<const N: usize>(client: &mut Client, offset: u64) -> [u8; N] {
    let mut bytes = [0; N];
    client.region_read(CONFIG, offset, &mut bytes).unwrap();
    bytes
}

fn config_u32(client: &mut Client, offset: u64) -> u32 {
    u32::from_le_bytes(config_read(client, offset))
}

fn register(client: &mut Client, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    client.region_read(BAR0, offset, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

fn set_register(client: &mut Client, offset: u64, value: u32) {
    client.region_write(BAR0, offset, &value.to_le_bytes()).unwrap();
}

/// Enables memory space and bus mastering.
fn enable(client: &mut Client) {
    client.region_write(CONFIG, 4, &[6, 0]).unwrap();
}

fn memory() -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 0x4000).unwrap();
    fd
}

fn map_mailbox(client: &mut Client, memory: &OwnedFd) {
    client.dma_map(MAILBOX_OFFSET, MAILBOX, 0x1000, memory.as_raw_fd()).unwrap();
}

/// Executes QUERY_ADAPTER, which writes its output to the mailbox, and returns the command's status.
///
/// JingZhao interface, sections 1.2 and 3.2.
fn query_adapter(client: &mut Client) -> u32 {
    const GO: u32 = 1 << 23;
    const QUERY_ADAPTER: u32 = 6;
    let hcr = 0x8_0000;
    for (offset, value) in [(0x0c, 0), (0x10, u32::try_from(MAILBOX).unwrap()), (0x18, GO | QUERY_ADAPTER)] {
        set_register(client, hcr + offset, value);
    }
    let word = register(client, hcr + 0x18);
    assert_eq!(word & GO, 0, "the command must complete before the write is acknowledged");
    word >> 24
}

#[test]
fn vfio_client_can_enumerate_regions_and_capabilities() {
    let daemon = Daemon::start();
    let mut client = Client::new(&daemon.socket).unwrap();
    let size = |client: &Client, index| client.region(index).unwrap().size;
    assert_eq!(size(&client, BAR0), 1 << 20);
    assert_eq!(size(&client, VFIO_PCI_BAR2_REGION_INDEX), 8 << 20);
    assert_eq!(size(&client, VFIO_PCI_ROM_REGION_INDEX), 0);
    assert_eq!(size(&client, CONFIG), 4096);
    assert!(
        (0..9).all(|index| client.region(index).unwrap().file_offset.is_none()),
        "the client must not be able to map any region"
    );
    assert_eq!(client.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).unwrap().count, 64);

    assert_eq!(config_u32(&mut client, 0), 0x7028_10ee);
    assert_eq!(config_u32(&mut client, 8), 0x0207_0001);
    for (bar, len) in [(0x10, 1_u32 << 20), (0x18, 8 << 20)] {
        client.region_write(CONFIG, bar, &[0xff; 8]).unwrap();
        assert_eq!(config_u32(&mut client, bar), len.wrapping_neg() | 0b100);
        assert_eq!(config_u32(&mut client, bar + 4), u32::MAX);
    }

    // The list must terminate and must contain power management, MSI-X and PCI Express.
    let mut capabilities = Vec::new();
    let [mut at] = config_read(&mut client, 0x34);
    while at != 0 && capabilities.len() < 10 {
        let [id, next] = config_read(&mut client, at.into());
        capabilities.push(id);
        at = next;
    }
    assert_eq!(capabilities, [0x01, 0x11, 0x10]);
}

#[test]
fn command_writes_mailbox_in_client_memory() {
    let daemon = Daemon::start();
    let mut client = Client::new(&daemon.socket).unwrap();
    enable(&mut client);
    let memory = memory();
    map_mailbox(&mut client, &memory);
    rustix::io::pwrite(&memory, &[0xa5; 0x40], MAILBOX_OFFSET).unwrap();

    assert_eq!(query_adapter(&mut client), 0);
    let mut mailbox = [0; 0x28];
    rustix::io::pread(&memory, &mut mailbox, MAILBOX_OFFSET).unwrap();
    assert_eq!(mailbox[..0x18], [0; 0x18]);
    assert_eq!(mailbox[0x18..0x20], 0x0123_4567_89ab_cdef_u64.to_be_bytes());
    assert_eq!(mailbox[0x20..], [0xa5; 8], "the bytes after the outbox must stay unchanged");
}

#[test]
fn command_fails_while_mailbox_is_inaccessible() {
    const INTERNAL_ERR: u32 = 1;
    let daemon = Daemon::start();
    let mut client = Client::new(&daemon.socket).unwrap();
    enable(&mut client);
    assert_eq!(query_adapter(&mut client), INTERNAL_ERR, "the mailbox is not mapped yet");

    let memory = memory();
    map_mailbox(&mut client, &memory);
    assert_eq!(query_adapter(&mut client), 0);

    client.region_write(CONFIG, 4, &[2, 0]).unwrap();
    assert_eq!(query_adapter(&mut client), INTERNAL_ERR, "bus mastering is disabled");
    enable(&mut client);
    assert_eq!(query_adapter(&mut client), 0);

    client.dma_unmap(MAILBOX, 0x1000).unwrap();
    rustix::io::pwrite(&memory, &[0xa5; 0x20], MAILBOX_OFFSET).unwrap();
    assert_eq!(query_adapter(&mut client), INTERNAL_ERR, "the mailbox has been unmapped");
    let mut mailbox = [0; 0x20];
    rustix::io::pread(&memory, &mut mailbox, MAILBOX_OFFSET).unwrap();
    assert_eq!(mailbox, [0xa5; 0x20]);
}

#[test]
fn adjacent_pages_share_one_mapping() {
    let daemon = Daemon::start();
    let mut client = Client::new(&daemon.socket).unwrap();
    enable(&mut client);
    let before = descriptors(&daemon);
    let memory = memory_of(512);
    for page in 0..512 {
        client
            .dma_map(page * 0x1000, MAILBOX - 0x10_0000 + page * 0x1000, 0x1000, memory.as_raw_fd())
            .unwrap();
    }
    assert_eq!(query_adapter(&mut client), 0);
    assert_eq!(descriptors(&daemon), before, "the daemon must not keep a descriptor per range");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.child.id())).unwrap();
    assert_eq!(maps.matches("memfd:guest").count(), 1);
}

#[test]
fn eventfds_are_signalled_and_closed() {
    let daemon = Daemon::start();
    let mut client = Client::new(&daemon.socket).unwrap();
    let before = descriptors(&daemon);
    let fds: Vec<_> = (0..3).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let assign = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, assign, 61, 3, &raw).unwrap();
    let trigger = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, trigger, 62, 2, &[]).unwrap();
    let signals: Vec<_> = fds.iter().map(|fd| rustix::io::read(fd, &mut [0; 8]).is_ok()).collect();
    assert_eq!(signals, [false, true, true]);
    drop(client);
    let _next = Client::new(&daemon.socket).unwrap();
    has_descriptors(&daemon, before);
}

#[test]
fn reset_clears_registers_and_configuration_space() {
    let daemon = Daemon::start();
    let mut client = Client::new(&daemon.socket).unwrap();
    enable(&mut client);
    set_register(&mut client, 0x8_0008, 0x1234);
    assert_eq!(register(&mut client, 8), 0x1234, "both addresses select the same register");
    client.reset().unwrap();
    assert_eq!(config_u32(&mut client, 4) & 6, 0);
    enable(&mut client);
    assert_eq!(register(&mut client, 8), 0);

    set_register(&mut client, 8, 0x1234);
    let [low, high] = config_read(&mut client, 0x68);
    client.region_write(CONFIG, 0x68, &[low, high | 0x80]).unwrap();
    enable(&mut client);
    assert_eq!(register(&mut client, 8), 0, "a function-level reset clears the register");
}

#[test]
fn device_is_reset_between_clients() {
    let mut daemon = Daemon::start();
    let memory = memory();
    for _ in 0..3 {
        let mut client = Client::new(&daemon.socket).unwrap();
        assert_eq!(config_u32(&mut client, 4) & 6, 0);
        enable(&mut client);
        assert_eq!(register(&mut client, 8), 0);
        assert_ne!(query_adapter(&mut client), 0, "the memory of the previous client is unmapped");
        set_register(&mut client, 8, 0x1234);
        map_mailbox(&mut client, &memory);
        assert_eq!(query_adapter(&mut client), 0);
        drop(client);
        daemon.wait_for_line("client disconnected");
    }
}

#[test]
fn second_client_is_rejected() {
    let daemon = Daemon::start();
    let mut first = Client::new(&daemon.socket).unwrap();
    assert!(Client::new(&daemon.socket).is_err());
    assert_eq!(config_u32(&mut first, 0), 0x7028_10ee);
}

/// Encodes a message in host byte order.
fn message(command: u16, size: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header = [0_u16.to_ne_bytes(), command.to_ne_bytes()].concat();
    [header, size.to_ne_bytes().to_vec(), flags.to_ne_bytes().to_vec(), vec![0; 4], payload.to_vec()].concat()
}

fn whole(command: u16, payload: &[u8]) -> Vec<u8> {
    message(command, u32::try_from(16 + payload.len()).unwrap(), 0, payload)
}

#[test]
fn daemon_serves_next_client_after_malformed_messages() {
    let daemon = Daemon::start();
    let version = whole(1, b"\0\0\x01\0{\"capabilities\":{}}\0");
    let after = |bytes: &[u8]| [version.as_slice(), bytes].concat();
    let cases = [
        ("nothing", Vec::new()),
        ("half a header", version[..7].to_vec()),
        ("half a message", version[..20].to_vec()),
        ("size 0", message(1, 0, 0, &[])),
        ("size smaller than a header", message(1, 15, 0, &[])),
        ("huge size", message(1, u32::MAX, 0, &[])),
        ("size beyond the transfer limit", message(1, (1 << 20) + 33, 0, &[])),
        ("version without NUL", whole(1, b"\0\0\x01\0{}")),
        ("version with NUL inside", whole(1, b"\0\0\x01\0{\0}\0")),
        ("version that is not text", whole(1, b"\0\0\x01\0\xff\xff\0")),
        ("version that is not JSON", whole(1, b"\0\0\x01\0{{{\0")),
        ("deeply nested version", whole(1, &[b"\0\0\x01\0", [b'['; 100_000].as_slice(), b"\0"].concat())),
        ("different major version", whole(1, b"\x07\0\x01\0{}\0")),
        ("command before version", whole(9, &[0; 16])),
        ("unknown command", after(&whole(0x7777, &[]))),
        ("reply", after(&message(9, 32, 1, &[0; 16]))),
        ("unknown flags", after(&message(9, 32, 0xffff_ffff, &[0; 16]))),
        ("empty payloads", after(&(2..20).flat_map(|command| whole(command, &[])).collect::<Vec<_>>())),
        (
            "payloads of ones",
            after(&(2..20).flat_map(|command| whole(command, &[0xff; 40])).collect::<Vec<_>>()),
        ),
    ];
    for (name, bytes) in cases {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        // The write fails if the daemon has already closed the connection.
        let _ = stream.write_all(&bytes);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut replies = Vec::new();
        match stream.read_to_end(&mut replies) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{name}"),
        }
        let mut client = Client::new(&daemon.socket).unwrap_or_else(|error| panic!("after {name}: {error}"));
        assert_eq!(config_u32(&mut client, 0), 0x7028_10ee, "after {name}");
        drop(client);
    }
}

#[test]
fn excess_descriptors_from_client_are_closed() {
    let daemon = Daemon::start();
    let mut client = Client::new(&daemon.socket).unwrap();
    let before = descriptors(&daemon);
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    for count in [1, 16, 17, 200] {
        drop(client);
        let stream = UnixStream::connect(&daemon.socket).unwrap();
        let bytes = whole(1, b"\0\0\x01\0{}\0");
        for byte in bytes {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = vec![fd.as_fd(); count];
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let part = [std::io::IoSlice::new(std::slice::from_ref(&byte))];
            if sendmsg(&stream, &part, &mut control, SendFlags::NOSIGNAL).is_err() {
                break;
            }
        }
        drop(stream);
        client = Client::new(&daemon.socket).unwrap();
        has_descriptors(&daemon, before);
    }
}

#[test]
fn descriptor_exhaustion_is_reported_to_client() {
    let daemon = Daemon::start();
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer_to = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        let part = [std::io::IoSlice::new(bytes)];
        assert_eq!(sendmsg(&stream, &part, &mut control, SendFlags::NOSIGNAL).unwrap(), bytes.len());
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap();
        let size = u32::from_ne_bytes(header[4..8].try_into().unwrap());
        stream.read_exact(&mut vec![0; usize::try_from(size).unwrap() - 16]).unwrap();
        u32::from_ne_bytes(header[12..].try_into().unwrap())
    };
    assert_eq!(answer_to(&whole(1, b"\0\0\x01\0{}\0"), &[]), 0);

    let memory = memory();
    let map = |page: u64| {
        let words: Vec<u8> = [32_u32, 3].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let longs: Vec<u8> = [0, page << 12, 0x1000].iter().flat_map(|long| long.to_ne_bytes()).collect();
        whole(2, &[words, longs].concat())
    };
    let limit_to = |current| {
        let pid = Pid::from_raw(i32::try_from(daemon.child.id()).unwrap());
        let limit = Rlimit { current, ..getrlimit(Resource::Nofile) };
        prlimit(pid, Resource::Nofile, limit).unwrap().current
    };
    let before = limit_to(Some(3));
    assert_eq!(answer_to(&map(0), &[memory.as_fd()]), libc::EMFILE.unsigned_abs());
    limit_to(before);
    assert_eq!(answer_to(&map(0), &[memory.as_fd()]), 0);
}

#[test]
fn truncated_memory_disconnects_only_its_client() {
    let mut daemon = Daemon::start();
    let memory = memory();
    let mut client = Client::new(&daemon.socket).unwrap();
    enable(&mut client);
    map_mailbox(&mut client, &memory);
    assert_eq!(query_adapter(&mut client), 0);
    ftruncate(&memory, 0x1000).unwrap();
    // The mailbox is now past the end of the file, so the device cannot write to it.
    let mailbox = u32::try_from(MAILBOX).unwrap();
    set_register(&mut client, 0x8_0010, mailbox);
    let _ = client.region_write(BAR0, 0x8_0018, &0x80_0006_u32.to_le_bytes());
    daemon.wait_for_line("guest memory is not accessible");
    assert!(client.region_read(BAR0, 0, &mut [0; 4]).is_err(), "the connection is closed");

    let mut next = Client::new(&daemon.socket).unwrap();
    enable(&mut next);
    map_mailbox(&mut next, &memory_of(4));
    assert_eq!(query_adapter(&mut next), 0);
}

#[test]
fn idle_daemon_does_not_wake_up() {
    let daemon = Daemon::start();
    let _client = Client::new(&daemon.socket).unwrap();
    assert_idle(&daemon, Duration::from_millis(500), 5);
}

fn memory_of(pages: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, pages * 0x1000).unwrap();
    fd
}

/// Returns the number of descriptors that the daemon has open. Call this only while a client is connected, because the
/// daemon has then closed the previous client's descriptors.
fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count()
}

#[track_caller]
fn has_descriptors(daemon: &Daemon, before: usize) {
    until("the previous number of descriptors", || (descriptors(daemon) == before).then_some(()));
}
