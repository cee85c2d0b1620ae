use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use engine::PayloadRef;
use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_add_seals, ftruncate, memfd_create, open};

use super::*;
use crate::memory::FileSystems;
use crate::memory::testing::shared_memory;

const RW: Permissions = Permissions { read: true, write: true };
const RO: Permissions = Permissions { read: true, write: false };
const WO: Permissions = Permissions { read: false, write: true };

fn memfd(pages: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, pages * PAGE_LEN).unwrap();
    fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK).unwrap();
    fd
}

fn dup(fd: &OwnedFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

fn file_bytes(fd: &OwnedFd, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    assert_eq!(rustix::io::pread(fd, &mut out, offset).unwrap(), len);
    out
}

fn iova(raw: u64) -> Iova {
    Iova::new(raw)
}

#[test]
fn write_lands_at_file_offset() {
    let fd = memfd(4);
    let mut memory = GuestMemory::default();
    memory.map(iova(0x10_0000), 2 * PAGE_LEN, RW, Some((dup(&fd), PAGE_LEN))).unwrap();
    memory.write(iova(0x10_0ffe), b"abcd").unwrap();
    assert_eq!(file_bytes(&fd, PAGE_LEN + 0xffe, 4), b"abcd");
    let mut back = [0; 4];
    memory.read(iova(0x10_0ffe), &mut back).unwrap();
    assert_eq!(&back, b"abcd");
}

#[test]
fn contiguous_pages_of_one_file_merge() {
    let fd = memfd(512);
    let mut memory = GuestMemory::default();
    // Map even pages first so that each odd page joins two neighbours.
    for page in (0..512).step_by(2).chain((1..512).step_by(2)) {
        memory.map(iova(page * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), page * PAGE_LEN))).unwrap();
    }
    assert_eq!(memory.window_count(), 1);
    assert_eq!(memory.map.tables().file_count(), 1);
    let data: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    memory.write(iova(123), &data).unwrap();
    assert_eq!(file_bytes(&fd, 123, data.len()), data);
}

#[test]
fn noncontiguous_file_ranges_stay_separate() {
    let (low, high) = (memfd(2), memfd(2));
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&low), PAGE_LEN))).unwrap();
    memory.map(iova(PAGE_LEN), PAGE_LEN, RW, Some((dup(&low), 0))).unwrap();
    memory.map(iova(2 * PAGE_LEN), PAGE_LEN, RW, Some((dup(&high), PAGE_LEN))).unwrap();
    assert_eq!(memory.window_count(), 3);

    let data: Vec<u8> = (0..3 * 4096_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    memory.write(iova(0), &data).unwrap();
    assert_eq!(file_bytes(&low, PAGE_LEN, 4096), data[..4096]);
    assert_eq!(file_bytes(&low, 0, 4096), data[4096..8192]);
    assert_eq!(file_bytes(&high, PAGE_LEN, 4096), data[8192..]);
    let mut back = vec![0; data.len()];
    memory.read(iova(0), &mut back).unwrap();
    assert_eq!(back, data);
}

#[test]
fn access_into_hole_has_no_effect() {
    let fd = memfd(3);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(2 * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), 2 * PAGE_LEN))).unwrap();

    let error = memory.write(iova(4000), &[7; 4096]).unwrap_err();
    assert_eq!(error, DmaError { iova: iova(4000), len: 4096, access: "write" });
    assert_eq!(file_bytes(&fd, 0, 3 * 4096), vec![0; 3 * 4096]);

    memory.write(iova(4000), &[7; 96]).unwrap();
    let mut out = [1; 200];
    assert_eq!(memory.read(iova(4000), &mut out).unwrap_err().access, "read");
    assert_eq!(out, [1; 200]);
    assert!(memory.read(iova(PAGE_LEN), &mut out).is_err());
}

#[test]
fn each_window_has_its_own_permissions() {
    let fd = memfd(3);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(PAGE_LEN), PAGE_LEN, RO, Some((dup(&fd), PAGE_LEN))).unwrap();
    memory.map(iova(2 * PAGE_LEN), PAGE_LEN, WO, Some((dup(&fd), 2 * PAGE_LEN))).unwrap();
    assert_eq!(memory.window_count(), 3, "ranges with different permissions do not merge");

    assert!(memory.write(iova(4090), &[1; 10]).is_err());
    assert!(memory.publish(iova(PAGE_LEN), &[1; 8]).is_err());
    assert!(memory.update_u64(iova(PAGE_LEN), |_| Some(1)).is_err());
    assert!(memory.read(iova(4090), &mut [0; 10]).is_ok());
    assert!(memory.write(iova(2 * PAGE_LEN), &[1]).is_ok());
    assert!(memory.read(iova(2 * PAGE_LEN), &mut [0]).is_err());
    assert_eq!(file_bytes(&fd, 0, 4096 * 2), vec![0; 4096 * 2]);
}

#[test]
fn range_without_descriptor_is_inaccessible() {
    let mut memory = GuestMemory::default();
    memory.map(iova(0xc_0000), PAGE_LEN, RO, None).unwrap();
    assert!(memory.read(iova(0xc_0000), &mut [0; 4]).is_err());
    assert!(matches!(
        memory.map(iova(0xc_0000), PAGE_LEN, RW, Some((memfd(1), 0))),
        Err(MapError::Overlap { .. })
    ));
}

#[test]
fn overlapping_range_is_rejected() {
    let fd = memfd(8);
    let mut memory = GuestMemory::default();
    memory.map(iova(2 * PAGE_LEN), 2 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    for (first, pages) in [(2, 2), (1, 2), (3, 1), (0, 8), (2, 1)] {
        let result = memory.map(iova(first * PAGE_LEN), pages * PAGE_LEN, RW, Some((memfd(8), 0)));
        assert!(matches!(result, Err(MapError::Overlap { .. })), "{first} {pages}");
    }
    assert_eq!((memory.window_count(), memory.map.tables().file_count()), (1, 1));
    memory.map(iova(0), 2 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(4 * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
}

#[test]
fn unmap_splits_merged_range() {
    let fd = memfd(8);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 8 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.unmap(iova(3 * PAGE_LEN), 2 * PAGE_LEN).unwrap();
    assert_eq!(memory.window_count(), 2);
    assert!(memory.write(iova(3 * PAGE_LEN - 1), &[1, 1]).is_err());
    assert!(memory.write(iova(5 * PAGE_LEN - 1), &[1]).is_err());
    memory.write(iova(3 * PAGE_LEN - 1), &[5]).unwrap();
    memory.write(iova(5 * PAGE_LEN), &[6]).unwrap();
    assert_eq!(file_bytes(&fd, 3 * PAGE_LEN - 1, 1), [5]);
    assert_eq!(file_bytes(&fd, 5 * PAGE_LEN, 1), [6]);

    memory.map(iova(3 * PAGE_LEN), 2 * PAGE_LEN, RW, Some((dup(&fd), 3 * PAGE_LEN))).unwrap();
    assert_eq!(memory.window_count(), 1);
}

#[test]
fn unmap_covers_windows_and_holes() {
    let fd = memfd(8);
    let mut memory = GuestMemory::default();
    for page in [0, 2, 4, 6] {
        memory.map(iova(page * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), page * PAGE_LEN))).unwrap();
    }
    memory.unmap(iova(PAGE_LEN), 4 * PAGE_LEN).unwrap();
    assert_eq!(memory.map.tables().addresses(), [0, 6 * PAGE_LEN]);
    memory.unmap(iova(0x7fff_0000_0000), 0x1_0000).unwrap();
    assert_eq!(memory.window_count(), 2);
    memory.unmap(iova(0), u64::MAX).unwrap();
    assert_eq!((memory.window_count(), memory.map.tables().file_count()), (0, 0));
}

#[test]
fn last_page_of_address_space_is_usable() {
    let fd = memfd(2);
    let top = u64::MAX - PAGE_LEN + 1;
    let mut memory = GuestMemory::default();
    memory.map(iova(top), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(top - PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), PAGE_LEN))).unwrap();
    memory.write(iova(u64::MAX), &[9]).unwrap();
    assert_eq!(file_bytes(&fd, 4095, 1), [9]);
    memory.write(iova(top - 2), &[1, 2, 3, 4]).unwrap();
    assert!(memory.write(iova(u64::MAX), &[9, 9]).is_err(), "an access does not wrap to address 0");
    assert!(memory.read(iova(u64::MAX - 3), &mut [0; 4096]).is_err());
    assert!(matches!(memory.map(iova(top), 2 * PAGE_LEN, RW, None), Err(MapError::Invalid { .. })));
    // QEMU sends this request when the device is attached.
    memory.unmap(iova(1 << 63), 1 << 63).unwrap();
    assert_eq!(memory.window_count(), 0);
    memory.unmap(iova(top), u64::MAX).unwrap();
}

#[test]
fn partial_pages_are_rejected() {
    let mut memory = GuestMemory::default();
    for (at, len, offset) in [(1, PAGE_LEN, 0), (0, 0, 0), (0, 100, 0), (0, PAGE_LEN, 8)] {
        let result = memory.map(iova(at), len, RW, Some((memfd(1), offset)));
        assert!(matches!(result, Err(MapError::Invalid { .. })), "{at:#x} {len:#x} {offset:#x}");
    }
    let nothing = Permissions { read: false, write: false };
    assert!(matches!(memory.map(iova(0), PAGE_LEN, nothing, None), Err(MapError::Invalid { .. })));
}

#[test]
fn range_beyond_file_end_is_rejected() {
    let mut memory = GuestMemory::default();
    for (offset, len) in [(0, 3), (2, 1), (1, 2), (u64::MAX / PAGE_LEN, 1)] {
        let backing = Some((memfd(2), offset * PAGE_LEN));
        let result = memory.map(iova(0), len * PAGE_LEN, RW, backing);
        assert!(matches!(result, Err(MapError::OutsideFile { .. })), "{offset} {len}");
    }
    assert_eq!(memory.map.tables().file_count(), 0);
}

#[test]
fn grown_file_is_remapped() {
    let fd = memfd(1);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    ftruncate(&fd, 2 * PAGE_LEN).unwrap();
    memory.map(iova(PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), PAGE_LEN))).unwrap();
    memory.write(iova(PAGE_LEN - 1), &[1, 2]).unwrap();
    assert_eq!(file_bytes(&fd, PAGE_LEN - 1, 2), [1, 2]);
}

#[test]
fn read_only_descriptor_permits_only_reads() {
    let writable = memfd(1);
    let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
    let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut memory = GuestMemory::default();
    assert!(matches!(
        memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))),
        Err(MapError::File(error)) if error.raw_os_error() == Some(libc::EACCES)
    ));
    memory.map(iova(0), PAGE_LEN, RO, Some((fd, 0))).unwrap();
    memory.read(iova(0), &mut [0; 16]).unwrap();
    assert!(memory.write(iova(0), &[0]).is_err());
}

#[test]
fn non_file_descriptor_is_rejected() {
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let mut memory = GuestMemory::default();
    assert!(matches!(memory.map(iova(0), PAGE_LEN, RO, Some((pipe, 0))), Err(MapError::File(_))));
}

#[test]
fn file_is_unmapped_with_last_range() {
    let fd = memfd(4);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(8 * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.unmap(iova(0), PAGE_LEN).unwrap();
    assert_eq!(memory.map.tables().file_count(), 1);
    memory.unmap(iova(8 * PAGE_LEN), PAGE_LEN).unwrap();
    assert_eq!(memory.map.tables().file_count(), 0);
}

#[test]
fn mappings_survive_blocked_dma() {
    let fd = memfd(1);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.set_blocked(true);
    assert!(memory.read(iova(0), &mut [0]).is_err());
    assert!(memory.write(iova(0), &[1]).is_err());
    assert!(memory.publish(iova(0), &[1]).is_err());
    assert!(memory.update_u64(iova(0), |_| Some(1)).is_err());
    memory.set_blocked(false);
    memory.write(iova(0), &[1]).unwrap();
}

#[test]
fn publish_writes_whole_entry() {
    let fd = memfd(2);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 2 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.publish(iova(4096 - 32), &[0xa5; 32]).unwrap();
    memory.publish(iova(4096), &[0x5a]).unwrap();
    assert_eq!(file_bytes(&fd, 4096 - 32, 33), [[0xa5; 32].as_slice(), &[0x5a]].concat());
    assert!(memory.publish(iova(0), &[]).is_err());
}

#[test]
fn writes_of_any_length_stay_in_bounds() {
    let fd = memfd(1);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    for (len, at) in (0..600).zip((8..24).cycle()) {
        let data: Vec<u8> = (1..=251).cycle().take(len).collect();
        memory.write(iova(0), &[0; 700]).unwrap();
        memory.write(iova(at), &data).unwrap();
        let at = usize::try_from(at).unwrap();
        let found = file_bytes(&fd, 0, 700);
        assert_eq!(found[at..at + len], data, "{len} bytes at {at}");
        assert!(found[..at].iter().chain(&found[at + len..]).all(|byte| *byte == 0), "{len} bytes at {at}");
    }
}

#[test]
fn shared_bytes_are_copied_like_private_ones() {
    let fd = memfd(2);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 2 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    for (len, at) in (0..600).chain([4096, 5000]).zip((8..24).cycle()) {
        let mut data: Vec<u8> = (1..=251).cycle().take(len).collect();
        memory.write(iova(0), &[0; 6000]).unwrap();
        memory.write_shared(iova(at), VolatileSlice::from(&mut data[..])).unwrap();
        let at = usize::try_from(at).unwrap();
        let found = file_bytes(&fd, 0, 6000);
        assert_eq!(found[at..at + len], data, "{len} bytes at {at}");
        assert!(found[..at].iter().chain(&found[at + len..]).all(|byte| *byte == 0), "{len} bytes at {at}");
    }
}

#[test]
fn located_ranges_cover_windows_and_show_later_writes() {
    let fd = memfd(3);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 2 * PAGE_LEN))).unwrap();
    memory.map(iova(PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    let mut ranges = Vec::new();
    assert_eq!(memory.locate(iova(4000), 200, &mut ranges), Ok(true));
    memory.write(iova(4000), &[7; 200]).unwrap();
    let bytes = |range: &GuestRange| PayloadRef::Shared(range.bytes().unwrap()).to_vec();
    assert_eq!(ranges.iter().map(bytes).collect::<Vec<_>>(), [vec![7; 96], vec![7; 104]]);
    assert!(memory.locate(iova(2 * PAGE_LEN - 1), 2, &mut ranges).is_err());
    memory.set_blocked(true);
    assert!(memory.locate(iova(0), 1, &mut ranges).is_err(), "bus mastering is disabled");
}

/// Reads a word that software changes concurrently. `read` copies `len` bytes at bus address 64 to offset `shift` of an
/// aligned buffer, and returns the buffer.
#[track_caller]
fn assert_words_are_read_whole(read: impl Fn(&GuestMemory, usize, usize) -> Vec<u8>) {
    let [device, software] = shared_memory(0, 1);
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let software = software;
            while !stopped.load(Ordering::Relaxed) {
                software.update_u64(iova(64), |word| Some(!word)).unwrap();
            }
        });
        // Limit the loop to half a second. With only one CPU, 100,000 changes would take too long, since the word
        // changes only when the scheduler switches threads.
        let begun = Instant::now();
        let (mut torn, mut changes, mut before) = (None, 0, 0);
        while torn.is_none() && changes < 100_000 && begun.elapsed() < Duration::from_millis(500) {
            for (shift, len) in (0..8).flat_map(|shift| [2, 4, 8].map(|len| (shift, len))) {
                let buffer = read(&device, shift, len);
                let word = &buffer[shift..shift + len];
                changes += u32::from(word[0] != before);
                before = word[0];
                let is_whole = word.iter().all(|byte| *byte == word[0]);
                torn = torn.or((!is_whole).then_some((buffer, shift, len)));
            }
        }
        stopped.store(true, Ordering::Relaxed);
        assert_eq!(torn, None);
    });
}

#[test]
fn aligned_words_are_read_atomically() {
    assert_words_are_read_whole(|device, shift, len| {
        let mut buffer = vec![0; 16];
        device.read(iova(64), &mut buffer[shift..shift + len]).unwrap();
        buffer
    });
}

/// The payload of a READ response follows headers of any length.
#[test]
fn aligned_words_are_appended_atomically() {
    assert_words_are_read_whole(|device, shift, len| {
        let mut buffer = Vec::with_capacity(16);
        buffer.resize(shift, 0);
        device.append(iova(64), len, &mut buffer).unwrap();
        buffer
    });
}

/// Software polls the last word of a WRITE, whose source in a received packet is not aligned.
#[test]
fn last_aligned_word_is_written_atomically() {
    for (len, word) in [(2, 2), (4, 4), (8, 8), (12, 4), (20, 4), (24, 8)] {
        let [device, software] = shared_memory(0, 1);
        let stopped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let device = device;
                let packets = [0, 0xff].map(|byte| vec![byte; 32]);
                for packet in packets.iter().cycle().take_while(|_| !stopped.load(Ordering::Relaxed)) {
                    device.write(iova(64), &packet[1..=len]).unwrap();
                }
            });
            // Limit the loop to half a second, as above.
            let begun = Instant::now();
            let (mut torn, mut changes, mut before) = (None, 0, 0);
            while torn.is_none() && changes < 100_000 && begun.elapsed() < Duration::from_millis(500) {
                let mut buffer = [0; 8];
                let last = &mut buffer[..word];
                software.read(iova(64 + (len - word) as u64), last).unwrap();
                changes += u32::from(last[0] != before);
                before = last[0];
                let is_whole = last.iter().all(|byte| *byte == last[0]);
                torn = (!is_whole).then_some(buffer);
            }
            stopped.store(true, Ordering::Relaxed);
            assert_eq!(torn, None, "{len} bytes");
        });
    }
}

/// A peer grants credits to an rsocket by WRITE, and software modifies the credits in place. If the device stored a
/// byte twice, the second store could undo the modification.
#[test]
fn write_stores_each_byte_once() {
    const ARRIVED: u64 = u64::from_le_bytes(*b"arrived ");
    const TAKEN: u64 = u64::from_le_bytes(*b"taken   ");
    let end = 1024;
    for len in [16, 24, 32, 40, 64, 512] {
        let [device, software] = shared_memory(0, 1);
        let last = iova(end - 8);
        let mut message = vec![0; usize::try_from(len - 8).unwrap()];
        message.extend(ARRIVED.to_le_bytes());
        let (taken, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let software = software;
                while !stopped.load(Ordering::Relaxed) {
                    let before =
                        software.update_u64(last, |word| (word == ARRIVED).then_some(TAKEN)).unwrap();
                    taken.fetch_add(u64::from(before == ARRIVED), Ordering::Release);
                }
            });
            // Limit the loop to half a second. With only one CPU, 200,000 rounds would take too long, since each lasts
            // until the scheduler switches threads.
            let begun = Instant::now();
            let mut rounds = 0;
            while rounds < 200_000 && begun.elapsed() < Duration::from_millis(500) {
                device.write(iova(end - len), &message).unwrap();
                rounds += 1;
                while taken.load(Ordering::Acquire) < rounds {
                    std::hint::spin_loop();
                }
                let now = device.update_u64(last, |_| None).unwrap();
                if now != TAKEN {
                    stopped.store(true, Ordering::Relaxed);
                }
                assert_eq!(now, TAKEN, "{len} bytes, round {rounds}");
            }
            stopped.store(true, Ordering::Relaxed);
            assert_eq!(taken.load(Ordering::Acquire), rounds, "{len} bytes");
        });
    }
}

#[test]
fn update_returns_old_word() {
    let fd = memfd(1);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.write(iova(8), &41_u64.to_ne_bytes()).unwrap();
    assert_eq!(memory.update_u64(iova(8), |word| Some(word + 1)).unwrap(), 41);
    assert_eq!(memory.update_u64(iova(8), |_| None).unwrap(), 42);
    assert_eq!(file_bytes(&fd, 8, 8), 42_u64.to_ne_bytes());
    assert!(memory.update_u64(iova(4), |_| Some(0)).is_err(), "the address must be aligned");
}

#[test]
fn empty_accesses_succeed_anywhere() {
    let memory = GuestMemory::default();
    memory.read(iova(0x1234), &mut []).unwrap();
    memory.write(iova(0x1234), &[]).unwrap();
}

#[test]
fn one_file_may_back_distant_addresses() {
    let fd = memfd(4);
    let top = u64::MAX - PAGE_LEN + 1;
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), PAGE_LEN))).unwrap();
    memory.map(iova(top), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    assert_eq!(memory.window_count(), 2);
    memory.write(iova(top), b"top").unwrap();
    memory.write(iova(0), b"low").unwrap();
    assert_eq!(file_bytes(&fd, 0, 3), b"top");
    assert_eq!(file_bytes(&fd, PAGE_LEN, 3), b"low");
}

#[test]
fn unmap_beyond_range_limit_is_rejected() {
    let fd = memfd(16);
    let mut memory = GuestMemory::new(Limits { windows: 3, ..Limits::default() });
    memory.map(iova(0), 16 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.unmap(iova(2 * PAGE_LEN), PAGE_LEN).unwrap();
    memory.unmap(iova(4 * PAGE_LEN), PAGE_LEN).unwrap();
    assert_eq!(memory.window_count(), 3);
    assert!(matches!(memory.unmap(iova(6 * PAGE_LEN), PAGE_LEN), Err(MapError::TooManyRanges(3))));
    assert_eq!(memory.window_count(), 3);
    memory.write(iova(6 * PAGE_LEN), b"still mapped").unwrap();
    // Unmapping the first or last page of a range, or an entire range, does not increase the number of ranges.
    memory.unmap(iova(15 * PAGE_LEN), PAGE_LEN).unwrap();
    memory.unmap(iova(0), PAGE_LEN).unwrap();
    memory.unmap(iova(3 * PAGE_LEN), PAGE_LEN).unwrap();
    assert_eq!(memory.window_count(), 2);
    memory.unmap(iova(6 * PAGE_LEN), PAGE_LEN).unwrap();
}

#[test]
fn unbacked_ranges_count_towards_range_limit() {
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 1 << 48, RO, None).unwrap();
    let refused = (0..100_000).find(|hole| memory.unmap(iova((2 * hole + 1) * PAGE_LEN), PAGE_LEN).is_err());
    assert_eq!(refused, Some(65_534));
    assert_eq!(memory.window_count(), 65_535);
    memory.unmap_all();
    assert_eq!((memory.window_count(), memory.map.tables().addresses().len()), (0, 0));
    memory.map(iova(0), PAGE_LEN, RO, None).unwrap();
}

#[test]
fn rejected_range_leaves_its_file_unmapped() {
    let limits = Limits { windows: 1, files: 2, ..Limits::default() };
    let mut memory = GuestMemory::new(limits);
    let fd = memfd(2);
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    for _ in 0..3 {
        let refused = memory.map(iova(1 << 20), PAGE_LEN, RW, Some((memfd(1), 0))).unwrap_err();
        assert!(matches!(refused, MapError::TooManyRanges(1)), "{refused}");
    }
    assert_eq!((memory.window_count(), memory.map.tables().file_count()), (1, 1));
    // The file of an existing range stays mapped.
    let refused = memory.map(iova(1 << 20), PAGE_LEN, RW, Some((dup(&fd), PAGE_LEN))).unwrap_err();
    assert!(matches!(refused, MapError::TooManyRanges(1)), "{refused}");
    memory.write(iova(0), b"mapped").unwrap();
    assert_eq!(file_bytes(&fd, 0, 6), b"mapped");
}

#[test]
fn file_count_and_total_length_are_limited() {
    let limits = Limits { files: 3, bytes: 10 * PAGE_LEN, ..Limits::default() };
    let mut memory = GuestMemory::new(limits);
    let large = memfd(8);
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&large), 0))).unwrap();
    let refused = memory.map(iova(1 << 20), PAGE_LEN, RW, Some((memfd(3), 0))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a file of 0x3000 bytes, with 0x8000 bytes already mapped, exceeds the limit of 0xa000 bytes; raise `guest_memory.max_gib`"
    );
    memory.map(iova(PAGE_LEN), PAGE_LEN, RW, Some((dup(&large), PAGE_LEN))).unwrap();
    memory.map(iova(1 << 20), PAGE_LEN, RW, Some((memfd(1), 0))).unwrap();
    memory.map(iova(2 << 20), PAGE_LEN, RW, Some((memfd(1), 0))).unwrap();
    let refused = memory.map(iova(3 << 20), PAGE_LEN, RW, Some((memfd(1), 0))).unwrap_err();
    assert!(matches!(refused, MapError::TooManyFiles(3)), "{refused}");
    assert_eq!((memory.window_count(), memory.map.tables().file_count()), (3, 3));

    memory.unmap(iova(0), 2 * PAGE_LEN).unwrap();
    memory.map(iova(0), PAGE_LEN, RW, Some((memfd(8), 0))).unwrap();
}

#[test]
fn full_length_of_sparse_file_counts_towards_limit() {
    let sparse = || {
        let fd = memfd_create("sparse", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 1600 << 30).unwrap();
        fd
    };
    let mut memory = GuestMemory::default();
    for n in 0..80 {
        let refused = memory.map(iova(n * PAGE_LEN), PAGE_LEN, RW, Some((sparse(), 0))).unwrap_err();
        assert!(matches!(refused, MapError::TooManyBytes { .. }), "{refused}");
    }
    let guest_of_512_gib = memfd(1 << 27);
    memory.map(iova(0), 512 << 30, RW, Some((guest_of_512_gib, 0))).unwrap();
    memory.write(iova((512 << 30) - 1), &[1]).unwrap();
}

#[test]
fn mapping_does_not_keep_descriptor_open() {
    let name = "costs-no-descriptor";
    let open_descriptors = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().contains(name)).count()
    };
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, PAGE_LEN).unwrap();
    assert_eq!(open_descriptors(), 1);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((fd, 0))).unwrap();
    assert_eq!(open_descriptors(), 0);
    memory.write(iova(0), &[1]).unwrap();
}

#[test]
fn truncated_file_leaves_other_files_usable() {
    let (cut, whole) = (memfd_create("cut", MemfdFlags::CLOEXEC).unwrap(), memfd(4));
    ftruncate(&cut, 4 * PAGE_LEN).unwrap();
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 4 * PAGE_LEN, RW, Some((dup(&cut), 0))).unwrap();
    memory.map(iova(4 * PAGE_LEN), 4 * PAGE_LEN, RW, Some((dup(&whole), 0))).unwrap();
    memory.write(iova(0), &[7; 16 << 10]).unwrap();

    ftruncate(&cut, PAGE_LEN).unwrap();
    assert!(!memory.is_lost());
    memory.read(iova(0), &mut [0; 4096]).unwrap();
    let last = iova(3 * PAGE_LEN);
    assert_eq!(memory.read(last, &mut [0; 4]).unwrap_err().access, "read");
    assert!(memory.is_lost());
    let mut out = vec![1, 2, 3];
    assert!(memory.append(iova(PAGE_LEN), 5000, &mut out).is_err());
    assert_eq!(out, [1, 2, 3]);
    assert!(memory.write(iova(PAGE_LEN), &[1; 8192]).is_err());
    assert!(memory.publish(last, &[1; 32]).is_err());
    assert!(memory.update_u64(last, |word| Some(word + 1)).is_err());
    assert_eq!(rustix::fs::fstat(&cut).unwrap().st_size, 4096);
    memory.write(iova(4 * PAGE_LEN), b"whole").unwrap();
    assert_eq!(file_bytes(&whole, 0, 5), b"whole");

    memory.unmap_all();
    assert!(!memory.is_lost());
    memory.map(iova(0), PAGE_LEN, RW, Some((cut, 0))).unwrap();
    memory.write(iova(0), &[1]).unwrap();
}

/// Replacing each lost page separately would add two mappings per page. Linux permits 65,530 mappings per process.
#[test]
fn truncated_file_gets_single_replacement_mapping() {
    const PAGES: u64 = 40_000;
    let cut = memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&cut, 2 * PAGES * PAGE_LEN).unwrap();
    let mut memory = GuestMemory::default();
    // Use every second page of the file so that no two lost pages are adjacent.
    for page in 0..PAGES {
        memory.map(iova(page * PAGE_LEN), PAGE_LEN, RW, Some((dup(&cut), 2 * page * PAGE_LEN))).unwrap();
    }
    ftruncate(&cut, 0).unwrap();
    let mut out = vec![7; usize::try_from(PAGES * PAGE_LEN).unwrap()];
    assert!(memory.read(iova(0), &mut out).is_err());
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(mappings < 10_000, "{mappings}");
}

#[test]
fn truncated_file_is_inaccessible_after_first_fault() {
    let cut = memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&cut, 4 * PAGE_LEN).unwrap();
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 4 * PAGE_LEN, RW, Some((dup(&cut), 0))).unwrap();
    ftruncate(&cut, PAGE_LEN).unwrap();
    let mut out = [7; 4];
    assert!(memory.read(iova(3 * PAGE_LEN), &mut out).is_err());
    assert_eq!(out, [0; 4], "the access that detects the loss reads zeros");
    let mut out = [7; 4];
    for page in 0..4 {
        assert!(memory.read(iova(page * PAGE_LEN), &mut out).is_err());
    }
    assert_eq!(out, [7; 4], "later accesses fail without changing the buffer");
}

#[test]
fn access_to_missing_huge_page_fails() {
    // A kernel without huge pages cannot create a file that consists of them.
    let Ok(fd) = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) else { return };
    ftruncate(&fd, 1 << 30).unwrap();
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 1 << 30, RW, Some((fd, 0))).unwrap();
    // The file consists of 512 huge pages of 2 MiB each, usually more than the host can provide. If the host has
    // enough, every write succeeds.
    let written: Vec<_> = (0..512).map(|page| memory.write(iova((page << 21) + 4096), &[1; 4096])).collect();
    assert_eq!(written.iter().any(Result::is_err), memory.is_lost());
}

#[test]
fn file_outside_tmpfs_is_rejected_by_default() {
    let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let sysfs = std::fs::File::open("/sys/kernel/uevent_seqnum").unwrap();
    let mut memory = GuestMemory::default();
    let refused = memory.map(iova(0), PAGE_LEN, RO, Some((sysfs.into(), 0))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the guest memory file must be on tmpfs or hugetlbfs, not on a file system of type 0x62656572"
    );

    let mut memory = GuestMemory::new(Limits { file_systems: FileSystems::Any, ..Limits::default() });
    memory.map(iova(0), PAGE_LEN, RO, Some((program.into(), 0))).unwrap();
    let mut start = [0; 4];
    memory.read(iova(0), &mut start).unwrap();
    assert_eq!(&start, b"\x7fELF");
}

/// Tests of the window cache. Each test begins with an access that populates the cache.
mod cached_windows {
    use super::*;

    fn byte_at(memory: &GuestMemory, at: u64) -> Option<u8> {
        let mut byte = [0];
        memory.read(iova(at), &mut byte).ok().map(|()| byte[0])
    }

    fn numbered(pages: u8, first: u8) -> OwnedFd {
        let fd = memfd(pages.into());
        for page in 0..pages {
            rustix::io::pwrite(&fd, &[first + page; 4096], u64::from(page) * PAGE_LEN).unwrap();
        }
        fd
    }

    #[test]
    fn unmap_invalidates_cached_window() {
        let fd = numbered(4, 1);
        let mut memory = GuestMemory::default();
        memory.map(iova(0), 4 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
        assert_eq!(byte_at(&memory, 2 * PAGE_LEN), Some(3));
        memory.unmap(iova(2 * PAGE_LEN), PAGE_LEN).unwrap();
        let bytes: Vec<_> = (0..4).map(|page| byte_at(&memory, page * PAGE_LEN)).collect();
        assert_eq!(bytes, [Some(1), Some(2), None, Some(4)]);
        memory.unmap_all();
        assert!((0..4).all(|page| byte_at(&memory, page * PAGE_LEN).is_none()));
    }

    #[test]
    fn remap_replaces_cached_window() {
        let (old, new) = (numbered(2, 1), numbered(2, 11));
        let mut memory = GuestMemory::default();
        memory.map(iova(0), 2 * PAGE_LEN, RW, Some((dup(&old), 0))).unwrap();
        assert_eq!((byte_at(&memory, 0), byte_at(&memory, PAGE_LEN)), (Some(1), Some(2)));
        memory.unmap(iova(PAGE_LEN), PAGE_LEN).unwrap();
        memory.map(iova(PAGE_LEN), PAGE_LEN, RO, Some((dup(&new), 0))).unwrap();
        assert_eq!((byte_at(&memory, 0), byte_at(&memory, PAGE_LEN)), (Some(1), Some(11)));
        assert!(memory.write(iova(PAGE_LEN), &[9]).is_err(), "the new permissions apply");

        // This unmap removes the first file from the list of files, and the second file takes its index.
        memory.unmap(iova(0), PAGE_LEN).unwrap();
        assert_eq!((byte_at(&memory, 0), byte_at(&memory, PAGE_LEN)), (None, Some(11)));
    }

    #[test]
    fn cached_window_grows_with_merged_range() {
        let fd = numbered(3, 1);
        let mut memory = GuestMemory::default();
        memory.map(iova(PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), PAGE_LEN))).unwrap();
        assert_eq!((byte_at(&memory, PAGE_LEN), byte_at(&memory, 2 * PAGE_LEN)), (Some(2), None));
        memory.map(iova(2 * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), 2 * PAGE_LEN))).unwrap();
        memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
        let mut all = [0; 3 * 4096];
        memory.read(iova(0), &mut all).unwrap();
        assert_eq!([all[4095], all[4096], all[8192]], [1, 2, 3]);
    }

    #[test]
    fn blocked_dma_ignores_cached_windows() {
        let mut memory = GuestMemory::default();
        memory.map(iova(0), PAGE_LEN, RW, Some((numbered(1, 5), 0))).unwrap();
        assert_eq!(byte_at(&memory, 0), Some(5));
        memory.set_blocked(true);
        assert_eq!((byte_at(&memory, 0), memory.write(iova(0), &[1]).is_err()), (None, true));
        memory.set_blocked(false);
        assert_eq!(byte_at(&memory, 0), Some(5));
    }

    #[test]
    fn evicted_windows_are_found_again() {
        const WINDOWS: u64 = 40;
        let fd = numbered(40, 1);
        let mut memory = GuestMemory::default();
        // Map the pages in descending file order so that adjacent pages do not merge into one range.
        for page in 0..WINDOWS {
            let backing = (dup(&fd), (WINDOWS - 1 - page) * PAGE_LEN);
            memory.map(iova(page * PAGE_LEN), PAGE_LEN, RW, Some(backing)).unwrap();
        }
        for _ in 0..2 {
            for page in 0..WINDOWS {
                assert_eq!(byte_at(&memory, page * PAGE_LEN).map(u64::from), Some(WINDOWS - page));
            }
        }
    }
}
