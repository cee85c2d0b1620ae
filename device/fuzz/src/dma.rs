//! Fuzzes DMA maps, unmaps and accesses, and compares the results with a model that tracks the backing of every page.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use card::memory::{GuestMemory, Limits, MapError, Permissions};
use protocol::ids::Iova;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::input::Input;

/// Maximum number of operations in one run.
const OPERATIONS: usize = 256;

const PAGE: u64 = 4096;
/// Number of bus pages used at each end of the address space.
const SIDE: u64 = 8;
/// Number of files, and number of pages in each file.
const FILES: usize = 3;
const FILE_PAGES: u64 = 8;
const FILE_LEN: u64 = FILE_PAGES * PAGE;

/// Limits of the guest memory, low enough for inputs to reach them.
const MAX_WINDOWS: usize = 3;
const MAX_FILES: usize = 2;

/// Backing of a bus page.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Page {
    /// Index of the file, and page number in the file. `None` if the page is mapped without a file and therefore
    /// inaccessible.
    place: Option<(usize, u64)>,
    read: bool,
    write: bool,
}

struct Model {
    /// Pages at the bottom of the address space, followed by those at the top.
    pages: Vec<Option<Page>>,
    files: Vec<Vec<u8>>,
}

struct Bench {
    memory: GuestMemory,
    model: Model,
    fds: Vec<OwnedFd>,
}

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let limits = Limits { windows: MAX_WINDOWS, files: MAX_FILES, ..Limits::default() };
    let fd = || {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd can be created");
        ftruncate(&fd, FILE_LEN).expect("a memfd can be extended");
        fd
    };
    let mut bench = Bench {
        memory: GuestMemory::new(limits),
        model: Model { pages: vec![None; 2 * SIDE as usize], files: vec![vec![0; FILE_LEN as usize]; FILES] },
        fds: (0..FILES).map(|_| fd()).collect(),
    };
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        bench.operate(operation, &mut input);
        assert!(bench.memory.window_count() <= MAX_WINDOWS, "{} windows exist", bench.memory.window_count());
        assert_eq!(
            bench.memory.window_count(),
            bench.model.windows(),
            "the memory has as many windows as the model"
        );
    }
    bench.files_are_as_written();
}

/// Returns the first address of a page in the model.
fn address(page: u64) -> u64 {
    if page < SIDE { page * PAGE } else { page.wrapping_sub(2 * SIDE).wrapping_mul(PAGE) }
}

impl Bench {
    fn operate(&mut self, operation: u8, input: &mut Input<'_>) {
        match operation % 16 {
            0..=4 => self.map(input),
            5..=8 => self.unmap(input),
            9 | 10 => self.write(input),
            11 | 12 => self.read(input),
            13 => self.exchange(input),
            // This operation is rare because it unmaps all ranges.
            14 if input.byte() < 32 => self.truncate_file(input),
            14 => {}
            _ => {
                let blocked = input.byte().is_multiple_of(4);
                self.memory.set_blocked(blocked);
                assert!(!blocked || self.memory.read(Iova::new(0), &mut [0]).is_err());
                self.memory.set_blocked(false);
            }
        }
    }

    fn map(&mut self, input: &mut Input<'_>) {
        let (first, count) = (u64::from(input.byte()) % (2 * SIDE), u64::from(input.byte() % 8));
        let (file, offset, bits) =
            (usize::from(input.byte() % 4), u64::from(input.byte() % 10), input.byte());
        let (read, write) = match bits % 4 {
            _ if bits == 255 => (false, false),
            0 => (true, true),
            1 => (false, true),
            _ => (true, false),
        };
        // Some ranges are not page-aligned.
        let skew = u64::from(bits >> 2 == 1) * 8;
        let (skewed_address, skewed_len, skewed_offset) = match bits & 3 {
            0 => (skew, 0, 0),
            1 => (0, skew, 0),
            _ => (0, 0, skew),
        };
        let place = |at: u64| (file < FILES).then(|| (file, offset + at));
        let new = |at: u64| Page { place: place(at), read, write };

        let mut after = self.model.pages.clone();
        let end = first + count;
        let side_end = if first < SIDE { SIDE } else { 2 * SIDE };
        let is_free = end <= side_end && after[first as usize..end as usize].iter().all(Option::is_none);
        let is_whole = skew == 0 || file >= FILES && skewed_offset != 0;
        let fits = file >= FILES || offset + count <= FILE_PAGES;
        let mut allowed = is_free && is_whole && fits && count > 0 && (read || write);
        if allowed {
            for at in 0..count {
                after[(first + at) as usize] = Some(new(at));
            }
            allowed = windows(&after) <= MAX_WINDOWS && files(&after) <= MAX_FILES;
        }
        // The model does not cover the addresses between the two ends, so a range that crosses them is skipped.
        if end > side_end && first < SIDE {
            return;
        }
        let backing = (file < FILES).then(|| {
            let fd = self.fds[file].as_fd().try_clone_to_owned().expect("a file descriptor is free");
            (fd, offset * PAGE + skewed_offset)
        });
        let permissions = Permissions { read, write };
        let address = Iova::new(address(first) + skewed_address);
        let result = self.memory.map(address, count * PAGE + skewed_len, permissions, backing);
        assert_eq!(result.is_ok(), allowed, "{result:?}");
        if allowed {
            self.model.pages = after;
        }
    }

    fn unmap(&mut self, input: &mut Input<'_>) {
        let (first, count, bits) =
            (u64::from(input.byte()) % (2 * SIDE), u64::from(input.byte()), input.byte());
        if bits > 250 {
            self.memory.unmap_all();
            self.model.pages.fill(None);
            return;
        }
        let mut after = self.model.pages.clone();
        // Keep most ranges short, so that pages at both ends stay mapped.
        let len = match (bits % 32, count) {
            (0, 255) => u64::MAX,
            (0, _) => count * PAGE,
            _ => (1 + count % 3) * PAGE,
        };
        let start = address(first);
        // A page is unmapped completely if any part of it is in the range.
        let (start, len) =
            if bits & 0x40 == 0 { (start, len) } else { (start + 7, len.min(u64::MAX - 9) / 2) };
        if len > 0 {
            let last = start.saturating_add(len - 1);
            for (page, kept) in (0..).zip(&mut after) {
                if address(page) <= last && address(page) + (PAGE - 1) >= start {
                    *kept = None;
                }
            }
        }
        let allowed = windows(&after) <= MAX_WINDOWS;
        let result = self.memory.unmap(Iova::new(start), len);
        assert_eq!(result.is_ok(), allowed, "{result:?}");
        assert!(allowed || matches!(result, Err(MapError::TooManyRanges(MAX_WINDOWS))));
        if allowed {
            self.model.pages = after;
        }
    }

    fn write(&mut self, input: &mut Input<'_>) {
        let (at, data) = (self.at(input), input.bytes(255));
        // Repeat the data so that it is long enough to cross page boundaries.
        let data = data.repeat(usize::from(1 + input.byte() % 40));
        let places = self.model.places(at, data.len(), |page| page.write);
        let result = self.memory.write(Iova::new(at), &data);
        assert_eq!(result.is_ok(), places.is_some());
        for ((file, offset), byte) in places.into_iter().flatten().zip(&data) {
            self.model.files[file][offset] = *byte;
        }
    }

    fn read(&mut self, input: &mut Input<'_>) {
        let (at, len) = (self.at(input), usize::from(input.half()) % 9000);
        let places = self.model.places(at, len, |page| page.read);
        let expected: Option<Vec<u8>> = places
            .map(|places| places.iter().map(|(file, offset)| self.model.files[*file][*offset]).collect());
        let mut out = vec![0xa5; len];
        assert_eq!(self.memory.read(Iova::new(at), &mut out).is_ok(), expected.is_some());
        let mut appended = vec![1, 2];
        assert_eq!(self.memory.append(Iova::new(at), len, &mut appended).is_ok(), expected.is_some());
        match expected {
            Some(expected) => assert!(out == expected && appended[2..] == expected),
            None => assert!(out.iter().all(|byte| *byte == 0xa5) && appended == [1, 2]),
        }
    }

    fn exchange(&mut self, input: &mut Input<'_>) {
        let (at, value) = (self.at(input), u64::from(input.word()));
        let places = self.model.places(at, 8, |page| page.write).filter(|_| at.is_multiple_of(8));
        let result = self.memory.update_u64(Iova::new(at), |_| Some(value));
        assert_eq!(result.is_ok(), places.is_some());
        let mut before = [0; 8];
        for (byte, ((file, offset), new)) in
            before.iter_mut().zip(places.into_iter().flatten().zip(value.to_ne_bytes()))
        {
            *byte = std::mem::replace(&mut self.model.files[file][offset], new);
        }
        assert!(result.is_err() || result == Ok(u64::from_ne_bytes(before)));

        let (at, entry) = (self.at(input), input.bytes(64));
        let in_a_page = !entry.is_empty() && at % PAGE + entry.len() as u64 <= PAGE;
        let places = self.model.places(at, entry.len(), |page| page.write).filter(|_| in_a_page);
        let result = self.memory.publish(Iova::new(at), entry);
        // An entry that crosses a page boundary may or may not be accepted. The model predicts the result only for an
        // entry inside one page.
        if in_a_page {
            assert_eq!(result.is_ok(), places.is_some());
        }
        let written = if in_a_page { places } else { self.model.places(at, entry.len(), |page| page.write) };
        if result.is_ok() {
            for ((file, offset), byte) in written.into_iter().flatten().zip(entry) {
                self.model.files[file][offset] = *byte;
            }
        }
    }

    /// Truncates a file and accesses all mapped pages. Then, as if a new client had connected, unmaps all ranges and
    /// restores the length of the file.
    fn truncate_file(&mut self, input: &mut Input<'_>) {
        let (file, left) = (usize::from(input.byte()) % FILES, u64::from(input.byte()) % FILE_PAGES);
        ftruncate(&self.fds[file], left * PAGE).expect("an unsealed memfd can be truncated");
        for (page, known) in (0..).zip(&self.model.pages) {
            let Some(Page { place: Some((of, at)), read: true, .. }) = known else { continue };
            let result = self.memory.read(Iova::new(address(page)), &mut [0; 16]);
            let is_truncated = *of == file && *at >= left;
            assert!(!is_truncated || result.is_err() && self.memory.is_lost(), "page {page} was truncated");
            assert!(*of == file || result.is_ok(), "page {page} belongs to a different file");
        }
        self.memory.unmap_all();
        self.model.pages.fill(None);
        ftruncate(&self.fds[file], FILE_LEN).expect("an unsealed memfd can be extended");
        self.model.files[file][(left * PAGE) as usize..].fill(0);
    }

    /// Returns an address near the start or the end of a page in the model.
    fn at(&self, input: &mut Input<'_>) -> u64 {
        let page = u64::from(input.byte()) % (2 * SIDE);
        let within = match input.byte() {
            low @ 0..128 => u64::from(low),
            high => PAGE - 1 - u64::from(high - 128),
        };
        address(page) + within
    }

    fn files_are_as_written(&self) {
        for (fd, expected) in self.fds.iter().zip(&self.model.files) {
            let file = File::from(fd.as_fd().try_clone_to_owned().expect("a file descriptor is free"));
            let mut bytes = vec![0; expected.len()];
            file.read_exact_at(&mut bytes, 0).expect("the file still has its original length");
            assert!(bytes == *expected);
        }
    }
}

impl Model {
    fn windows(&self) -> usize {
        windows(&self.pages)
    }

    /// Returns the file and offset of each byte, or `None` if any byte is inaccessible.
    fn places(&self, at: u64, len: usize, allowed: impl Fn(&Page) -> bool) -> Option<Vec<(usize, usize)>> {
        let place = |nth: usize| {
            let byte = at.checked_add(nth as u64)?;
            let page = if byte / PAGE < SIDE { byte / PAGE } else { (byte / PAGE).checked_sub(TOP)? + SIDE };
            let known = self.pages.get(page as usize)?.as_ref().filter(|page| allowed(page))?;
            let (file, of_file) = known.place?;
            Some((file, (of_file * PAGE + byte % PAGE) as usize))
        };
        (0..len).map(place).collect()
    }
}

/// Number of the first page at the upper end of the address space.
const TOP: u64 = u64::MAX / PAGE + 1 - SIDE;

/// Returns the number of windows. A window is a run of pages that are contiguous on the bus and in their file, with the
/// same permissions.
fn windows(pages: &[Option<Page>]) -> usize {
    let (low, high) = pages.split_at(SIDE as usize);
    [low, high]
        .into_iter()
        .flat_map(|side| side.iter().enumerate().map(move |(at, page)| begins(side, at, page)))
        .sum()
}

fn begins(side: &[Option<Page>], at: usize, page: &Option<Page>) -> usize {
    let Some(page) = page else { return 0 };
    let before = at.checked_sub(1).and_then(|before| side[before]);
    let continued =
        Page { place: page.place.map(|(file, of_file)| (file, of_file.wrapping_sub(1))), ..*page };
    usize::from(before != Some(continued))
}

/// Returns the number of files that back at least one page.
fn files(pages: &[Option<Page>]) -> usize {
    (0..FILES)
        .filter(|file| pages.iter().flatten().any(|page| page.place.is_some_and(|(of, _)| of == *file)))
        .count()
}
