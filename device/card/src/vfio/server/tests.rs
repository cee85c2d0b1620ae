//! Tests [`Connection`] with a hand-written client on a socket pair.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use protocol::ids::Iova;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::*;
use crate::vfio::Bar;
use crate::vfio::msix::Gate;

const NO_REPLY: u32 = 0x10;

/// A device that logs all calls. Its BAR 0 is 4 KiB long and stores the bytes written to it.
struct Stub {
    bar0: Vec<u8>,
    log: Vec<String>,
    memory: GuestMemory,
    interrupts: Interrupts,
    /// File that backs BAR 2.
    file: Option<RegionFile>,
}

impl Device for Stub {
    fn region_len(&self, region: Region) -> u64 {
        match region {
            Region::Bar(Bar::Bar0) => self.bar0.len() as u64,
            Region::Bar(Bar::Bar2) => 4 << 20,
            Region::Bar(_) => 0,
            Region::Config => 256,
        }
    }

    fn region_file(&mut self, region: Region) -> Option<RegionFile> {
        self.file.clone().filter(|_| region == Region::Bar(Bar::Bar2))
    }

    fn region_read(&mut self, region: Region, offset: u64, out: &mut [u8]) {
        self.log.push(format!("read {region:?} {offset:#x} {}", out.len()));
        if region == Region::Bar(Bar::Bar0) {
            let offset = usize::try_from(offset).unwrap();
            out.copy_from_slice(&self.bar0[offset..offset + out.len()]);
        }
    }

    fn region_write(&mut self, region: Region, offset: u64, data: &[u8]) {
        self.log.push(format!("write {region:?} {offset:#x} {data:02x?}"));
        if region == Region::Bar(Bar::Bar0) {
            let offset = usize::try_from(offset).unwrap();
            self.bar0[offset..offset + data.len()].copy_from_slice(data);
        }
    }

    fn memory(&mut self) -> &mut GuestMemory {
        &mut self.memory
    }

    fn interrupts(&mut self) -> &mut Interrupts {
        &mut self.interrupts
    }

    fn reset(&mut self) {
        self.log.push("reset".to_owned());
    }
}

struct Bench {
    device: Stub,
    connection: Connection,
    client: UnixStream,
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    id: u16,
    command: u16,
    flags: u32,
    error: u32,
    payload: Vec<u8>,
}

impl Bench {
    fn unversioned() -> Self {
        let (server, client) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        let device = Stub {
            bar0: vec![0; 4096],
            log: Vec::new(),
            memory: GuestMemory::default(),
            interrupts: Interrupts::new(4),
            file: None,
        };
        Self { device, connection: Connection::new(server).unwrap(), client }
    }

    fn new() -> Self {
        let mut bench = Self::unversioned();
        let answer = bench.call(1, &[&[0, 0, 1, 0], b"{}\0".as_slice()].concat());
        assert_eq!(answer.error, 0);
        bench
    }

    fn serve(&mut self) -> Result<Served, ConnectionError> {
        let served = self.connection.serve(&mut self.device, 1000)?;
        self.connection.reply()?;
        Ok(served)
    }

    fn send(&mut self, message: &[u8]) {
        self.client.write_all(message).unwrap();
    }

    fn send_fds(&mut self, message: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = sendmsg(&self.client, &[IoSlice::new(message)], &mut control, SendFlags::empty());
        assert_eq!(sent.unwrap(), message.len());
    }

    fn answer(&mut self) -> Option<Answer> {
        let mut header = [0; 16];
        self.client.read_exact(&mut header).ok()?;
        let size = u32::from_ne_bytes(header[4..8].try_into().unwrap());
        let mut payload = vec![0; usize::try_from(size).unwrap() - 16];
        self.client.read_exact(&mut payload).unwrap();
        Some(Answer {
            id: u16::from_ne_bytes([header[0], header[1]]),
            command: u16::from_ne_bytes([header[2], header[3]]),
            flags: u32::from_ne_bytes(header[8..12].try_into().unwrap()),
            error: u32::from_ne_bytes(header[12..16].try_into().unwrap()),
            payload,
        })
    }

    fn call(&mut self, command: u16, payload: &[u8]) -> Answer {
        self.call_fds(command, payload, &[])
    }

    fn call_fds(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        let message = message(0x77, command, 0, payload);
        if fds.is_empty() {
            self.send(&message)
        } else {
            self.send_fds(&message, fds)
        }
        self.serve().unwrap();
        let answer = self.answer().expect("the server replies");
        assert_eq!((answer.id, answer.command), (0x77, command));
        assert_eq!(answer.flags, if answer.error == 0 { 1 } else { 0x21 });
        assert!(answer.error == 0 || answer.payload.is_empty());
        answer
    }
}

fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + payload.len()).unwrap();
    [
        id.to_ne_bytes().as_slice(),
        &command.to_ne_bytes(),
        &size.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &[0; 4],
        payload,
    ]
    .concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [longs(&[offset]), words(&[region, count]), data.to_vec()].concat()
}

fn dma_map(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    [words(&[32, flags]), longs(&[offset, address, size])].concat()
}

fn memfd(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

fn errno(value: i32) -> u32 {
    value.unsigned_abs()
}

#[test]
fn version_reply_contains_only_requested_capabilities() {
    let mut bench = Bench::unversioned();
    let json = br#"{"capabilities":{"max_msg_fds":16,"pgsizes":4096,"write_multiple":true,"migration":{"pgsize":1}}}"#;
    let answer = bench.call(1, &[&[0, 0, 9, 0], json.as_slice(), &[0]].concat());
    assert_eq!(
        answer.payload[..4],
        [0, 0, 1, 0],
        "the major version is 0, and the minor version is at most the server's"
    );
    assert_eq!(
        std::str::from_utf8(&answer.payload[4..]).unwrap(),
        "{\"capabilities\":{\"max_msg_fds\":16,\"pgsizes\":4096,\"write_multiple\":true}}\0"
    );
}

#[test]
fn version_without_data_is_accepted() {
    let mut bench = Bench::unversioned();
    assert_eq!(bench.call(1, &[0, 0, 0, 0]).payload[..4], [0, 0, 0, 0]);
    assert_eq!(bench.call(13, &[]).error, 0);
}

#[test]
fn malformed_version_is_rejected() {
    let cases: [&[u8]; 8] = [
        b"",
        b"\0\0\x01",
        b"\x01\0\0\0{}\0",
        b"\0\0\x01\0{}",
        b"\0\0\x01\0{\0",
        b"\0\0\x01\0\xff\xfe\0",
        b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":\"many\"}}\0",
        b"\0\0\x01\0{\"capabilities\":{\"max_dma_maps\":-1}}\0",
    ];
    for case in cases {
        let mut bench = Bench::unversioned();
        assert_eq!(bench.call(1, case).error, errno(libc::EINVAL), "{case:?}");
        bench.send(&message(1, 13, 0, &[]));
        assert!(matches!(
            bench.serve(),
            Err(ConnectionError::Violation(ProtocolError::NoVersion { command: 13 }))
        ));
        assert!(bench.device.log.is_empty());
    }
}

#[test]
fn second_version_message_is_rejected() {
    assert_eq!(Bench::new().call(1, b"\0\0\x01\0{}\0").error, errno(libc::EINVAL));
}

#[test]
fn info_replies_describe_regions_and_interrupts() {
    let mut bench = Bench::new();
    assert_eq!(bench.call(4, &words(&[16, 0, 0, 0])).payload, words(&[16, 3, 9, 5]));
    assert_eq!(bench.call(4, &words(&[15, 0, 0, 0])).error, errno(libc::EINVAL));
    for (index, size) in [(0, 4096), (1, 0), (2, 4 << 20), (6, 0), (7, 256), (8, 0)] {
        let request = [words(&[32, 0, index, 0]), longs(&[0, 0])].concat();
        let flags = if size == 0 { 0 } else { 3 };
        let expected = [words(&[32, flags, index, 0]), longs(&[size, 0])].concat();
        assert_eq!(bench.call(5, &request).payload, expected, "region {index}");
    }
    let beyond = [words(&[32, 0, 9, 0]), longs(&[0, 0])].concat();
    assert_eq!(bench.call(5, &beyond).error, errno(libc::EINVAL));
    assert_eq!(bench.call(7, &words(&[16, 0, 2, 0])).payload, words(&[16, 3, 2, 4]));
    assert_eq!(bench.call(7, &words(&[16, 0, 0, 0])).payload, words(&[16, 0, 0, 0]), "INTx has no vectors");
    assert_eq!(
        bench.call(7, &words(&[16, 0, 3, 0])).payload,
        words(&[16, 1, 3, 1]),
        "the error interrupt has one vector"
    );
    assert_eq!(bench.call(7, &words(&[16, 0, 5, 0])).error, errno(libc::EINVAL));
}

/// QEMU reads one header at a time, and accepts a descriptor only if it arrives together with the header of its reply.
#[test]
fn region_file_is_sent_with_its_reply() {
    let mut bench = Bench::new();
    let file = Arc::new(memfd(4 << 20));
    bench.device.file = Some(RegionFile { file: file.clone(), offsets: 0..4 << 20 });
    let request = |id, index: u32, flags| {
        let payload = [words(&[32, 0, index, 0]), longs(&[0, 0])].concat();
        message(id, 5, flags, &payload)
    };
    let order = [0, 2, 2, 7, 2];
    for (id, index) in (0..).zip(order) {
        bench.send(&request(id, index, 0));
        bench.send(&request(99, 2, NO_REPLY));
    }
    bench.serve().unwrap();
    for (id, index) in (0..).zip(order) {
        let mut header = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let received = recvmsg(&bench.client, &mut parts, &mut control, RecvFlags::empty()).unwrap();
        assert_eq!(received.bytes, 16);
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(u16::from_ne_bytes([header[0], header[1]]), id);
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        let expected = if index == 2 { vec![inode(&file)] } else { Vec::new() };
        assert_eq!(fds.iter().map(inode).collect::<Vec<_>>(), expected, "reply {id}");
        let mut payload = [0; 32];
        bench.client.read_exact(&mut payload).unwrap();
        assert_eq!(payload[4], if index == 2 { 7 } else { 3 }, "flags of region {index}");
    }
    assert_eq!(bench.answer(), None);
}

/// A client whose argsz leaves no room for the capability must not be misled into mapping the whole region.
#[test]
fn sparse_area_describes_mappable_part() {
    let mut bench = Bench::new();
    bench.device.file = Some(RegionFile { file: Arc::new(memfd(4 << 20)), offsets: 0x4000..4 << 20 });
    let request = |argsz| [words(&[argsz, 0, 2, 0]), longs(&[0, 0])].concat();
    let short = [words(&[64, 3, 2, 0]), longs(&[4 << 20, 0])].concat();
    for argsz in [32, 63] {
        assert_eq!(bench.call(5, &request(argsz)).payload, short, "{argsz}");
    }
    let area = [words(&[1 << 16 | 1, 0, 1, 0]), longs(&[0x4000, (4 << 20) - 0x4000])].concat();
    let whole = [words(&[64, 0xf, 2, 32]), longs(&[4 << 20, 0]), area].concat();
    assert_eq!(bench.call(5, &request(64)).payload, whole);
}

#[test]
fn unsupported_commands_return_enotsup() {
    let mut bench = Bench::new();
    for command in [0, 6, 11, 12, 14, 16, 17, 18, 0xffff] {
        assert_eq!(bench.call(command, &[0; 32]).error, errno(libc::ENOTSUP), "{command}");
    }
}

#[test]
fn region_accesses_reach_device() {
    let mut bench = Bench::new();
    let answer = bench.call(10, &access(0, 0x18, 4, &[1, 2, 3, 4]));
    assert_eq!(answer.payload, access(0, 0x18, 4, &[]));
    let answer = bench.call(9, &access(0, 0x16, 8, &[]));
    assert_eq!(answer.payload, access(0, 0x16, 8, &[0, 0, 1, 2, 3, 4, 0, 0]));
    assert_eq!(bench.device.log, ["write Bar(Bar0) 0x18 [01, 02, 03, 04]", "read Bar(Bar0) 0x16 8"]);
}

#[test]
fn out_of_range_accesses_are_rejected() {
    let mut bench = Bench::new();
    for (region, offset, count) in [
        (0, 4093, 4),
        (0, 4097, 0),
        (0, u64::MAX, 4),
        (0, u64::MAX - 3, 4),
        (1, 0, 4),
        (6, 0, 4),
        (8, 0, 4),
        (u32::MAX, 0, 4),
        (0, 0, u32::MAX),
        (2, 0, (1 << 20) + 1),
    ] {
        let read = bench.call(9, &access(region, offset, count, &[]));
        assert_eq!(read.error, errno(libc::EINVAL), "{region} {offset:#x} {count}");
        let write = bench.call(10, &access(region, offset, count, &[0; 4]));
        assert_eq!(write.error, errno(libc::EINVAL), "{region} {offset:#x} {count}");
    }
    assert_eq!(
        bench.call(10, &access(0, 0, 8, &[0; 7])).error,
        errno(libc::EINVAL),
        "a write with missing data is rejected"
    );
    assert!(bench.device.log.is_empty());
}

#[test]
fn posted_write_precedes_later_read() {
    let mut bench = Bench::new();
    let write = message(1, 10, NO_REPLY, &access(0, 0, 2, &[7, 8]));
    let bad = message(2, 10, NO_REPLY, &access(0, 5000, 2, &[7, 8]));
    bench.send(&[write, bad, message(3, 9, 0, &access(0, 0, 2, &[]))].concat());
    assert_eq!(bench.serve().unwrap(), Served { messages: 3, more: false });
    let answer = bench.answer().unwrap();
    assert_eq!((answer.id, answer.payload), (3, access(0, 0, 2, &[7, 8])));
    assert!(bench.answer().is_none());
}

#[test]
fn multi_write_stops_at_first_error() {
    let mut bench = Bench::new();
    let writes = [
        longs(&[3]),
        access(0, 0, 4, &[1, 2, 3, 4, 0, 0, 0, 0]),
        access(0, 8, 9, &[9; 8]),
        access(0, 16, 1, &[5; 8]),
    ]
    .concat();
    assert_eq!(bench.call(15, &writes).payload, longs(&[1]));
    assert_eq!(bench.device.log.len(), 1);
    assert_eq!(bench.call(15, &longs(&[u64::MAX])).error, errno(libc::EINVAL));
    assert_eq!(bench.call(15, &[longs(&[2]), writes[8..32].to_vec()].concat()).error, errno(libc::EINVAL));
}

#[test]
fn budget_limits_messages_per_call() {
    let mut bench = Bench::new();
    let posted: Vec<u8> =
        (0..10).flat_map(|n| message(n, 10, NO_REPLY, &access(0, n.into(), 1, &[1]))).collect();
    bench.send(&posted);
    for expected in [4, 4, 2] {
        let served = bench.connection.serve(&mut bench.device, 4).unwrap();
        assert_eq!(served, Served { messages: expected, more: expected == 4 });
    }
    assert_eq!(bench.device.bar0[..10], [1; 10]);
}

#[test]
fn message_may_arrive_byte_by_byte() {
    let mut bench = Bench::new();
    let data: Vec<u8> = (0..=255).collect();
    for byte in message(5, 10, 0, &access(0, 0x100, 256, &data)) {
        assert!(bench.answer().is_none());
        bench.send(&[byte]);
        bench.serve().unwrap();
    }
    assert_eq!(bench.answer().unwrap().error, 0);
    assert_eq!(bench.device.bar0[0x100..0x200], data);
}

#[test]
fn longest_message_is_accepted() {
    let mut bench = Bench::new();
    let longest = message(5, 10, 0, &access(2, 0, 1 << 20, &vec![1; 1 << 20]));
    let mut rest = longest.as_slice();
    while !rest.is_empty() {
        if let Ok(sent) = bench.client.write(rest) {
            rest = &rest[sent..];
        }
        bench.serve().unwrap();
    }
    assert_eq!(bench.answer().unwrap().error, 0);
    assert_eq!(bench.device.log.len(), 1);
    assert_eq!(bench.call(13, &[]).error, 0);
}

#[test]
fn server_stops_reading_until_replies_are_read() {
    let mut bench = Bench::new();
    let request = message(1, 9, 0, &access(2, 0, 1 << 16, &[]));
    let mut sent = 0;
    for _ in 0..200 {
        bench.send(&request);
        sent += 1;
        bench.serve().unwrap();
    }
    let served = bench.device.log.len();
    assert!(bench.connection.wants_to_send());
    assert!(served < 20, "{served} requests were served although the client reads no replies");
    let mut answered = 0;
    while answered < sent {
        bench.client.set_nonblocking(false).unwrap();
        // At least one complete reply is pending. Reading it makes room for another one.
        let answer = bench.answer().unwrap();
        assert_eq!(answer.payload.len(), 16 + (1 << 16));
        answered += 1;
        bench.serve().unwrap();
    }
    assert!(!bench.connection.wants_to_send());
}

/// The client reads its replies so slowly that some of them are always unsent.
#[test]
fn slow_client_does_not_grow_reply_buffer() {
    let mut bench = Bench::new();
    let request = message(1, 9, 0, &access(2, 0, 1 << 16, &[]));
    let (mut longest, mut read) = (0, 0);
    let mut part = vec![0; 1 << 16];
    for _ in 0..500 {
        for _ in 0..2 {
            // Once the server stops reading, the socket is full.
            let _ = bench.client.write(&request);
        }
        bench.serve().unwrap();
        longest = longest.max(bench.connection.reply_buffer_len());
        read += bench.client.read(&mut part).unwrap();
    }
    assert!(read > 16 << 20 && longest < 1 << 20, "{longest} bytes of replies after {read} bytes were read");
}

#[test]
fn invalid_sizes_end_connection() {
    for size in [0, 15, (1 << 20) + 33, u32::MAX] {
        let mut bench = Bench::new();
        let mut bytes = message(1, 9, 0, &[]);
        bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        bench.send(&bytes);
        assert!(
            matches!(bench.serve(), Err(ConnectionError::Violation(ProtocolError::Size { size: seen })) if seen == size)
        );
    }
}

#[test]
fn unexpected_replies_end_connection() {
    let mut bench = Bench::new();
    bench.send(&message(1, 11, 1, &[]));
    assert!(matches!(
        bench.serve(),
        Err(ConnectionError::Violation(ProtocolError::NotACommand { flags: 1 }))
    ));
}

#[test]
fn disconnect_mid_message_is_reported() {
    let mut bench = Bench::new();
    bench.send(&message(1, 9, 0, &access(0, 0, 4, &[]))[..20]);
    bench.client.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(bench.serve().unwrap(), Served { messages: 0, more: false });
    assert!(matches!(bench.serve(), Err(ConnectionError::Closed)));
}

#[test]
fn short_payloads_are_rejected() {
    let mut bench = Bench::new();
    for (command, need) in [(2, 32), (3, 24), (4, 16), (5, 32), (7, 16), (8, 20), (9, 16), (10, 16), (15, 8)]
    {
        assert_eq!(bench.call(command, &vec![0; need - 1]).error, errno(libc::EINVAL), "{command}");
        assert_eq!(bench.call(command, &[]).error, errno(libc::EINVAL), "{command}");
    }
}

#[test]
fn each_range_gets_its_own_descriptor() {
    let mut bench = Bench::new();
    let files = [memfd(0x2000), memfd(0x2000)];
    rustix::io::pwrite(&files[0], b"first", 0x1000).unwrap();
    rustix::io::pwrite(&files[1], b"other", 0).unwrap();
    // All messages are in the socket before the server reads. The first and last messages do not carry descriptors.
    bench.send(&message(1, 9, 0, &access(0, 0, 4, &[])));
    bench.send_fds(&message(2, 2, 0, &dma_map(3, 0x1000, 0x10_0000, 0x1000)), &[files[0].as_fd()]);
    bench.send_fds(&message(3, 2, 0, &dma_map(1, 0, 0x20_0000, 0x2000)), &[files[1].as_fd()]);
    bench.send(&message(4, 2, 0, &dma_map(1, 0, 0xc_0000, 0x1000)));
    bench.serve().unwrap();
    for id in 1..=4 {
        let answer = bench.answer().unwrap();
        assert_eq!((answer.id, answer.error), (id, 0));
    }
    let mut text = [0; 5];
    bench.device.memory.read(Iova::new(0x10_0000), &mut text).unwrap();
    assert_eq!(&text, b"first");
    bench.device.memory.read(Iova::new(0x20_0000), &mut text).unwrap();
    assert_eq!(&text, b"other");
    assert!(bench.device.memory.read(Iova::new(0xc_0000), &mut text).is_err());
}

#[test]
fn descriptor_may_arrive_mid_message() {
    let mut bench = Bench::new();
    let file = memfd(0x1000);
    let bytes = message(9, 2, 0, &dma_map(3, 0, 0, 0x1000));
    bench.send(&bytes[..10]);
    bench.serve().unwrap();
    bench.send_fds(&bytes[10..40], &[file.as_fd()]);
    bench.serve().unwrap();
    bench.send(&[&bytes[40..], &message(10, 13, 0, &[])].concat());
    bench.serve().unwrap();
    assert_eq!(bench.answer().unwrap().error, 0);
    assert_eq!(bench.answer().unwrap().id, 10);
    bench.device.memory.write(Iova::new(0), &[1]).unwrap();
}

#[test]
fn map_errors_return_specified_errnos() {
    let mut bench = Bench::new();
    let file = memfd(0x2000);
    let map = |bench: &mut Bench, payload: &[u8]| bench.call_fds(2, payload, &[file.as_fd()]).error;
    assert_eq!(map(&mut bench, &dma_map(3, 0, 0x1000, 0x1000)), 0);
    assert_eq!(map(&mut bench, &dma_map(3, 0, 0, 0x2000)), errno(libc::EEXIST));
    assert_eq!(map(&mut bench, &dma_map(3, 0x1000, 0x10_0000, 0x2000)), errno(libc::EINVAL));
    assert_eq!(map(&mut bench, &dma_map(0, 0, 0x10_0000, 0x1000)), errno(libc::EINVAL));
    assert_eq!(map(&mut bench, &dma_map(7, 0, 0x10_0000, 0x1000)), errno(libc::EINVAL));
    assert_eq!(map(&mut bench, &dma_map(3, 0, u64::MAX - 0xfff, 0x2000)), errno(libc::EINVAL));
    let twice = [file.as_fd(), file.as_fd()];
    let answer = bench.call_fds(2, &dma_map(3, 0, 0x10_0000, 0x1000), &twice);
    assert_eq!(answer.error, errno(libc::EINVAL));
    assert_eq!(bench.device.memory.window_count(), 1);
}

#[test]
fn unmap_accepts_unmapped_ranges() {
    let mut bench = Bench::new();
    let file = memfd(0x4000);
    bench.call_fds(2, &dma_map(3, 0, 0, 0x4000), &[file.as_fd()]);
    for (address, size) in [(0x1000, 0x1000), (1 << 40, 0x1000), (0x8000, u64::MAX), (1 << 63, 1 << 63)] {
        let request = [words(&[24, 0]), longs(&[address, size])].concat();
        let answer = bench.call(3, &request);
        assert_eq!((answer.error, answer.payload), (0, request));
    }
    assert_eq!(bench.device.memory.window_count(), 2);
    assert!(bench.device.memory.write(Iova::new(0x1800), &[1]).is_err());
    for flags in [2, 4] {
        bench.call_fds(2, &dma_map(3, 0, 1 << 32, 0x1000), &[file.as_fd()]);
        assert_eq!(bench.call(3, &[words(&[24, flags]), longs(&[0, 0])].concat()).error, 0);
        assert_eq!(bench.device.memory.window_count(), 0);
    }
    for (flags, address, size) in [(0, 0, 0), (2, 0, 0x1000), (8, 0, 0)] {
        let request = [words(&[24, flags]), longs(&[address, size])].concat();
        assert_eq!(bench.call(3, &request).error, errno(libc::EINVAL));
    }
}

#[test]
fn set_irqs_handles_eventfds_masking_and_triggers() {
    const EVENTFD_TRIGGER: u32 = 1 << 2 | 1 << 5;
    const NONE_TRIGGER: u32 = 1 | 1 << 5;
    const NONE_MASK: u32 = 1 | 1 << 3;
    const BOOL_UNMASK: u32 = 1 << 1 | 1 << 4;
    const BOOL_TRIGGER: u32 = 1 << 1 | 1 << 5;
    let mut bench = Bench::new();
    bench.device.interrupts.set_gate(Gate { enabled: true, function_masked: false, bus_master: true });
    let fds: Vec<_> = (0..3).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
    let counts = || -> Vec<u64> {
        let count = |fd: &OwnedFd| {
            let mut bytes = [0; 8];
            rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
        };
        fds.iter().map(count).collect()
    };
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let irqs = |flags, start, count| words(&[20, flags, 2, start, count]);

    assert_eq!(bench.call_fds(8, &irqs(EVENTFD_TRIGGER, 1, 3), &borrowed).error, 0);
    (0..4).for_each(|vector| _ = bench.device.interrupts.raise(vector));
    assert_eq!(counts(), [1, 1, 1]);

    assert_eq!(bench.call(8, &irqs(NONE_TRIGGER, 2, 2)).error, 0);
    assert_eq!(counts(), [0, 1, 1]);
    assert_eq!(bench.call(8, &[irqs(BOOL_TRIGGER, 1, 3), vec![1, 0, 1]].concat()).error, 0);
    assert_eq!(counts(), [1, 0, 1]);

    assert_eq!(bench.call(8, &irqs(NONE_MASK, 1, 3)).error, 0);
    (1..4).for_each(|vector| _ = bench.device.interrupts.raise(vector));
    assert_eq!(counts(), [0, 0, 0]);
    assert_eq!(bench.call(8, &[irqs(BOOL_UNMASK, 1, 3), vec![0, 1, 0]].concat()).error, 0);
    assert_eq!(counts(), [0, 1, 0]);

    assert_eq!(
        bench.call(8, &irqs(EVENTFD_TRIGGER, 2, 1)).error,
        0,
        "a request without a descriptor removes the eventfd"
    );
    bench.device.interrupts.raise(2);
    assert_eq!(counts(), [0, 0, 0]);
    assert_eq!(bench.call(8, &irqs(NONE_TRIGGER, 0, 0)).error, 0);
    (0..4).for_each(|vector| _ = bench.device.interrupts.raise(vector));
    assert_eq!(counts(), [0, 0, 0]);
}

#[test]
fn invalid_irq_requests_are_rejected() {
    let mut bench = Bench::new();
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let one = [fd.as_fd()];
    let cases: [(&[u32], &[BorrowedFd<'_>], i32); 14] = [
        (&[20, 0x24, 2, 4, 1], &one, libc::EINVAL),
        (&[20, 0x24, 2, 5, 0], &[], libc::EINVAL),
        (&[20, 0x24, 2, u32::MAX, 1], &one, libc::EINVAL),
        (&[20, 0x24, 2, 1, u32::MAX], &one, libc::EINVAL),
        (&[20, 0x24, 2, 0, 2], &one, libc::EINVAL),
        (&[20, 0x24, 0, 0, 1], &one, libc::EINVAL),
        (&[20, 0x24, 5, 0, 1], &one, libc::EINVAL),
        (&[20, 0x26, 2, 0, 1], &one, libc::EINVAL),
        (&[20, 0x04, 2, 0, 1], &one, libc::EINVAL),
        (&[20, 0x20, 2, 0, 1], &[], libc::EINVAL),
        (&[20, 0x39, 2, 0, 1], &[], libc::EINVAL),
        (&[20, 0x0c, 2, 0, 1], &one, libc::ENOTSUP),
        (&[20, 0x22, 2, 0, 2], &[], libc::EINVAL),
        (&[20, 0x121, 2, 0, 1], &[], libc::EINVAL),
    ];
    for (request, fds, expected) in cases {
        assert_eq!(bench.call_fds(8, &words(request), fds).error, errno(expected), "{request:x?}");
    }
    assert_eq!(bench.call(8, &words(&[20, 0x21, 0, 0, 0])).error, 0, "a client may disable INTx");
}

#[test]
fn only_eventfds_are_accepted_for_vectors() {
    let mut bench = Bench::new();
    let (_reader, pipe) = rustix::pipe::pipe().unwrap();
    let file = memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
    let (socket, _peer) = UnixStream::pair().unwrap();
    for fd in [pipe.as_fd(), file.as_fd(), socket.as_fd()] {
        assert_eq!(bench.call_fds(8, &words(&[20, 0x24, 2, 0, 1]), &[fd]).error, errno(libc::EINVAL));
    }
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    assert_eq!(bench.call_fds(8, &words(&[20, 0x24, 2, 0, 1]), &[fd.as_fd()]).error, 0);
}

#[test]
fn too_many_small_writes_are_rejected() {
    let mut bench = Bench::new();
    let writes = |count: u64| {
        let write = [access(0, 0, 8, &[]), vec![0; 8]].concat();
        [count.to_ne_bytes().to_vec(), write.repeat(usize::try_from(count).unwrap())].concat()
    };
    assert_eq!(bench.call(15, &writes(257)).error, errno(libc::EINVAL));
    assert_eq!(bench.call(15, &writes(256)).payload, 256_u64.to_ne_bytes());
}

#[test]
fn error_eventfd_is_accepted() {
    let mut bench = Bench::new();
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    assert_eq!(bench.call_fds(8, &words(&[20, 0x24, 3, 0, 1]), &[fd.as_fd()]).error, 0);
    assert_eq!(bench.call(8, &words(&[20, 0x24, 3, 0, 1])).error, 0);
    assert_eq!(bench.call(8, &words(&[20, 0x24, 3, 1, 1])).error, errno(libc::EINVAL));
}

#[test]
fn unused_descriptors_are_closed() {
    let mut bench = Bench::new();
    let (kept, given) = rustix::pipe::pipe().unwrap();
    bench.send_fds(&message(1, 13, 0, &[]), &[given.as_fd()]);
    drop(given);
    bench.serve().unwrap();
    let mut byte = [0];
    assert_eq!(
        rustix::io::read(&kept, &mut byte).unwrap(),
        0,
        "the server closes descriptors that it does not need"
    );
}

#[test]
fn too_many_descriptors_end_connection() {
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let mut bench = Bench::new();
    bench.send_fds(&message(1, 13, 0, &[]), &[fd.as_fd(); 17]);
    assert!(matches!(bench.serve(), Err(ConnectionError::Violation(ProtocolError::Descriptors))));

    let mut bench = Bench::new();
    let bytes = message(1, 10, 0, &access(2, 0, 100, &[0; 100]));
    let result = bytes.iter().try_for_each(|byte| {
        bench.send_fds(&[*byte], &[fd.as_fd()]);
        bench.serve().map(|_| ())
    });
    assert!(matches!(result, Err(ConnectionError::Violation(ProtocolError::Descriptors))));
}

#[test]
fn random_bytes_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..3000 {
        let mut bench = Bench::new();
        let words: Vec<u8> = (0..8).flat_map(|_| (random() >> (random() % 64)).to_ne_bytes()).collect();
        let command = u16::try_from(random() % 20).unwrap();
        bench.send(&message(1, command, 0, &words[..usize::try_from(random() % 65).unwrap()]));
        let _ = bench.serve();
        bench.send(&words);
        let _ = bench.serve();
    }
}
