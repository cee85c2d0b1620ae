use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_add_seals, ftruncate, memfd_create, open};

use super::*;

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
fn bytes_land_at_the_offset_in_the_file() {
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
fn pages_of_one_file_with_a_descriptor_each_become_one_window_and_one_mapping() {
    let fd = memfd(512);
    let mut memory = GuestMemory::default();
    // Even pages first, so that odd ones join two neighbours.
    for page in (0..512).step_by(2).chain((1..512).step_by(2)) {
        memory.map(iova(page * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), page * PAGE_LEN))).unwrap();
    }
    assert_eq!(memory.window_count(), 1);
    assert_eq!(memory.files.len(), 1);
    let data: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    memory.write(iova(123), &data).unwrap();
    assert_eq!(file_bytes(&fd, 123, data.len()), data);
}

#[test]
fn windows_that_adjoin_only_on_the_bus_stay_apart_and_are_crossed_by_copies() {
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
fn an_access_that_meets_a_hole_has_no_partial_effect() {
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
fn permissions_are_those_of_each_window() {
    let fd = memfd(3);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(PAGE_LEN), PAGE_LEN, RO, Some((dup(&fd), PAGE_LEN))).unwrap();
    memory.map(iova(2 * PAGE_LEN), PAGE_LEN, WO, Some((dup(&fd), 2 * PAGE_LEN))).unwrap();
    assert_eq!(memory.window_count(), 3, "differing permissions do not merge");

    assert!(memory.write(iova(4090), &[1; 10]).is_err());
    assert!(memory.publish(iova(PAGE_LEN), &[1; 8]).is_err());
    assert!(memory.update_u64(iova(PAGE_LEN), |_| Some(1)).is_err());
    assert!(memory.read(iova(4090), &mut [0; 10]).is_ok());
    assert!(memory.write(iova(2 * PAGE_LEN), &[1]).is_ok());
    assert!(memory.read(iova(2 * PAGE_LEN), &mut [0]).is_err());
    assert_eq!(file_bytes(&fd, 0, 4096 * 2), vec![0; 4096 * 2]);
}

#[test]
fn a_range_without_a_descriptor_is_known_but_out_of_reach() {
    let mut memory = GuestMemory::default();
    memory.map(iova(0xc_0000), PAGE_LEN, RO, None).unwrap();
    assert!(memory.read(iova(0xc_0000), &mut [0; 4]).is_err());
    assert!(matches!(
        memory.map(iova(0xc_0000), PAGE_LEN, RW, Some((memfd(1), 0))),
        Err(MapError::Overlap { .. })
    ));
}

#[test]
fn a_range_over_another_is_refused_and_changes_nothing() {
    let fd = memfd(8);
    let mut memory = GuestMemory::default();
    memory.map(iova(2 * PAGE_LEN), 2 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    for (first, pages) in [(2, 2), (1, 2), (3, 1), (0, 8), (2, 1)] {
        let result = memory.map(iova(first * PAGE_LEN), pages * PAGE_LEN, RW, Some((memfd(8), 0)));
        assert!(matches!(result, Err(MapError::Overlap { .. })), "{first} {pages}");
    }
    assert_eq!((memory.window_count(), memory.files.len()), (1, 1));
    memory.map(iova(0), 2 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(4 * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
}

#[test]
fn unmap_inside_a_merged_range_leaves_both_sides() {
    let fd = memfd(8);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 8 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.unmap(iova(3 * PAGE_LEN), 2 * PAGE_LEN);
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
fn unmap_covers_several_windows_and_what_was_never_mapped() {
    let fd = memfd(8);
    let mut memory = GuestMemory::default();
    for page in [0, 2, 4, 6] {
        memory.map(iova(page * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), page * PAGE_LEN))).unwrap();
    }
    memory.unmap(iova(PAGE_LEN), 4 * PAGE_LEN);
    assert_eq!(memory.windows.keys().copied().collect::<Vec<_>>(), [0, 6 * PAGE_LEN]);
    memory.unmap(iova(0x7fff_0000_0000), 0x1_0000);
    assert_eq!(memory.window_count(), 2);
    memory.unmap(iova(0), u64::MAX);
    assert_eq!((memory.window_count(), memory.files.len()), (0, 0));
}

#[test]
fn the_last_page_of_the_address_space_is_a_page_like_others() {
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
    // As QEMU sends at attach.
    memory.unmap(iova(1 << 63), 1 << 63);
    assert_eq!(memory.window_count(), 0);
    memory.unmap(iova(top), u64::MAX);
}

#[test]
fn ranges_that_are_not_whole_pages_are_refused() {
    let mut memory = GuestMemory::default();
    for (at, len, offset) in [(1, PAGE_LEN, 0), (0, 0, 0), (0, 100, 0), (0, PAGE_LEN, 8)] {
        let result = memory.map(iova(at), len, RW, Some((memfd(1), offset)));
        assert!(matches!(result, Err(MapError::Invalid { .. })), "{at:#x} {len:#x} {offset:#x}");
    }
    let nothing = Permissions { read: false, write: false };
    assert!(matches!(memory.map(iova(0), PAGE_LEN, nothing, None), Err(MapError::Invalid { .. })));
}

#[test]
fn a_range_beyond_the_end_of_its_file_is_refused() {
    let mut memory = GuestMemory::default();
    for (offset, len) in [(0, 3), (2, 1), (1, 2), (u64::MAX / PAGE_LEN, 1)] {
        let backing = Some((memfd(2), offset * PAGE_LEN));
        let result = memory.map(iova(0), len * PAGE_LEN, RW, backing);
        assert!(matches!(result, Err(MapError::OutsideFile { .. })), "{offset} {len}");
    }
    assert!(memory.files.is_empty());
}

#[test]
fn a_file_that_grew_is_mapped_again_and_old_windows_stay() {
    let fd = memfd(1);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    ftruncate(&fd, 2 * PAGE_LEN).unwrap();
    memory.map(iova(PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), PAGE_LEN))).unwrap();
    memory.write(iova(PAGE_LEN - 1), &[1, 2]).unwrap();
    assert_eq!(file_bytes(&fd, PAGE_LEN - 1, 2), [1, 2]);
}

#[test]
fn a_read_only_descriptor_serves_read_only_ranges() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGE_LEN).unwrap();
    let fd = open(file.path(), OFlags::RDONLY, Mode::empty()).unwrap();
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
fn a_descriptor_that_is_no_file_is_refused() {
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let mut memory = GuestMemory::default();
    assert!(matches!(memory.map(iova(0), PAGE_LEN, RO, Some((pipe, 0))), Err(MapError::File(_))));
}

#[test]
fn files_are_unmapped_with_their_last_range() {
    let fd = memfd(4);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.map(iova(8 * PAGE_LEN), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.unmap(iova(0), PAGE_LEN);
    assert_eq!(memory.files.len(), 1);
    memory.unmap(iova(8 * PAGE_LEN), PAGE_LEN);
    assert!(memory.files.is_empty());
}

#[test]
fn a_blocked_function_reaches_nothing_and_keeps_its_map() {
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
fn publish_writes_the_whole_entry() {
    let fd = memfd(2);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), 2 * PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.publish(iova(4096 - 32), &[0xa5; 32]).unwrap();
    memory.publish(iova(4096), &[0x5a]).unwrap();
    assert_eq!(file_bytes(&fd, 4096 - 32, 33), [[0xa5; 32].as_slice(), &[0x5a]].concat());
    assert!(memory.publish(iova(0), &[]).is_err());
}

#[test]
fn update_returns_the_old_word_and_stores_the_new_one_or_none() {
    let fd = memfd(1);
    let mut memory = GuestMemory::default();
    memory.map(iova(0), PAGE_LEN, RW, Some((dup(&fd), 0))).unwrap();
    memory.write(iova(8), &41_u64.to_ne_bytes()).unwrap();
    assert_eq!(memory.update_u64(iova(8), |word| Some(word + 1)).unwrap(), 41);
    assert_eq!(memory.update_u64(iova(8), |_| None).unwrap(), 42);
    assert_eq!(file_bytes(&fd, 8, 8), 42_u64.to_ne_bytes());
    assert!(memory.update_u64(iova(4), |_| Some(0)).is_err(), "not aligned");
}

#[test]
fn empty_accesses_succeed_anywhere() {
    let memory = GuestMemory::default();
    memory.read(iova(0x1234), &mut []).unwrap();
    memory.write(iova(0x1234), &[]).unwrap();
}
