//! A model of the kernel module, based on `public-driver.md`. It does not use the encoders in `protocol`.

use std::collections::{BTreeMap, BTreeSet};

pub(super) use drivers::jingzhao::{CQC, EQC, MPT, MTT, QPC};

use super::super::Machine;

/// Address of the mailbox, a page that all commands share. It is never cleared.
pub(super) const MAILBOX: u64 = 0x5000;
/// Size of an ICM mapping chunk in bytes.
const CHUNK: u64 = 256 << 10;

/// Values of op_modifier that select the table in MAP_ICM and UNMAP_ICM.
pub(super) const CONTEXT: u32 = 1;
pub(super) const TPT: u32 = 2;

/// Access rights in a region's flags.
pub(super) const LOCAL_WRITE: u32 = 1;
pub(super) const REMOTE_WRITE: u32 = 2;
pub(super) const REMOTE_READ: u32 = 4;

/// Allocator of object numbers. It uses the lowest free index, with high bits that change on every free.
pub(super) struct Numbers {
    log_max: u32,
    mask: u32,
    top: u32,
    /// Lowest index to allocate.
    pub(super) first: u32,
    used: BTreeSet<u32>,
}

impl Numbers {
    /// Creates an allocator as it would be after many allocations and frees.
    fn aged(log_max: u32, mask: u32, top: u32, first: u32) -> Self {
        Self { log_max, mask, top, first, used: BTreeSet::new() }
    }

    pub(super) fn alloc(&mut self) -> u32 {
        let index = (self.first..1 << self.log_max).find(|index| self.used.insert(*index)).unwrap();
        self.top | index
    }

    pub(super) fn free(&mut self, number: u32) {
        assert!(self.used.remove(&self.index(number)));
        self.top = self.top.wrapping_add(1 << self.log_max) & self.mask;
    }

    pub(super) fn index(&self, number: u32) -> u32 {
        number & ((1 << self.log_max) - 1)
    }
}

/// A program's buffer, with the bus addresses of its pages.
pub(super) struct Buffer {
    pub(super) start: u64,
    pub(super) len: u64,
    pages: Vec<u64>,
}

impl Buffer {
    pub(super) fn bus(&self, va: u64) -> u64 {
        let page = usize::try_from((va >> 12) - (self.start >> 12)).unwrap();
        self.pages[page] + (va & 0xfff)
    }
}

pub(super) struct Region {
    pub(super) key: u32,
    pub(super) buffer: Buffer,
}

struct Chunk {
    users: u32,
    /// Bus address and page count of each fragment.
    pieces: Vec<(u64, u64)>,
}

pub(super) struct Driver {
    pub(super) machine: Machine,
    /// Page count of each fragment in a new chunk. If memory is fragmented, a chunk has more than one fragment.
    fragments: Vec<u64>,
    chunks: BTreeMap<(u32, u64), Chunk>,
    free_block: u64,
    free_page: u64,
    pub(super) qpns: Numbers,
    pub(super) cqns: Numbers,
    pub(super) pdns: Numbers,
    pub(super) keys: Numbers,
    next_mtt: u64,
    pub(super) next_uar: u32,
}

impl Driver {
    /// Loads the module and checks every step of its probe.
    pub(super) fn probe(machine: Machine) -> Self {
        Self::probe_fragmented(machine, &[64])
    }

    /// Like [`Driver::probe`], but free memory is split into fragments with the given page counts.
    pub(super) fn probe_fragmented(machine: Machine, fragments: &[u64]) -> Self {
        let mut driver = Self {
            machine,
            fragments: fragments.to_vec(),
            chunks: BTreeMap::new(),
            free_block: 0x1000_0000,
            free_page: 0x3fff_f000,
            qpns: Numbers::aged(16, 0xff_ffff, 0x9c_0000, 0x9c),
            cqns: Numbers::aged(16, 0xff_ffff, 0x21_0000, 1),
            pdns: Numbers::aged(15, 0xff_ffff, 0x45_8000, 1),
            keys: Numbers::aged(17, u32::MAX, 0xc8_0000, 0x65),
            next_mtt: 1,
            next_uar: 1,
        };
        driver.bring_up();
        driver
    }

    /// Loads the module again. The device and guest memory keep the state in which the previous driver left them.
    pub(super) fn probe_again(self) -> Self {
        Self::probe(self.machine)
    }

    fn bring_up(&mut self) {
        self.machine.poke(MAILBOX, &[0xff; 16]);
        assert_eq!(self.command(0x06, 0, 0, 0, MAILBOX), 0, "QUERY_ADAPTER");
        assert_eq!(self.machine.peek(MAILBOX + 0x18, 8), 0x0123_4567_89ab_cdef_u64.to_be_bytes());
        assert_eq!(self.command(0x03, 0, 0, 0, MAILBOX), 0, "QUERY_DEV_LIM");
        self.check_limits();

        let mut profile = [0; 0x40];
        for (at, base, log_entries) in
            [(0x08, QPC, 16), (0x10, CQC, 16), (0x18, EQC, 5), (0x30, MPT, 17), (0x38, MTT, 0)]
        {
            put64(&mut profile, at, base | log_entries);
        }
        self.with_inbox(&profile);
        assert_eq!(self.command(0x07, 0, MAILBOX, 0, 0), 0, "INIT_HCA");
        self.map_chunk(CONTEXT, EQC, &[1]);
        for (table, base) in [(CONTEXT, QPC), (CONTEXT, CQC), (TPT, MTT), (TPT, MPT)] {
            self.use_chunk(table, base);
        }
        let page = self.take_page();
        self.write_mtt(0, &[page]);
        let cq0 = Buffer { start: 0, len: 0x400, pages: vec![page] };
        self.sw2hw_mpt(0, 0, &cq0, LOCAL_WRITE, 0);
        self.sw2hw_cq(0, 5, 0, 0);
    }

    /// Checks the limits as the module's probe does.
    fn check_limits(&mut self) {
        let limits = self.machine.peek(MAILBOX, 0x40);
        let short = |at: usize| u16::from_be_bytes([limits[at], limits[at + 1]]);
        assert!(limits[0x25] <= 12, "log2 of the smallest page size");
        assert_eq!(limits[0x23] & 0x0f, 1, "number of ports");
        assert_eq!(limits[0x15], 8, "MTT entry size");
        assert!([0x18, 0x1a, 0x1c, 0x1e].into_iter().all(|at| short(at).is_power_of_two()), "entry sizes");
        assert!(short(0x08) < 31 && short(0x0a) < 31, "log2 of queue lengths");
        assert!(short(0x2a) >= 320 && short(0x2e) >= 320, "room for WQEs of 16 data units");
        let icm = u64::from_be_bytes(limits[0x30..0x38].try_into().unwrap());
        assert!(icm >= 0x240_1000, "ICM");
        assert_eq!(limits[..8], [1, 0, 0, 0, 0, 0, 0, 0], "the first 8 bytes must be written");
    }

    /// Unloads the module. CQ 0 and MPT entry 0 are not deleted first.
    pub(super) fn remove(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let of = |table, base: u64| {
            let end = if base == MTT { MTT + (8 << 20) } else { base + (8 << 20) };
            chunks.keys().copied().filter(move |(t, virt)| *t == table && (base..end).contains(virt))
        };
        let order = of(TPT, MPT).chain(of(TPT, MTT)).chain(of(CONTEXT, CQC)).chain(of(CONTEXT, QPC));
        for (table, virt) in order.filter(|(_, virt)| *virt != EQC) {
            assert_eq!(self.command(0xff9, table, virt, 0x40, 0), 0, "UNMAP_ICM");
        }
        assert_eq!(self.command(0xff9, CONTEXT, EQC, 1, 0), 0, "UNMAP_ICM");
        assert_eq!(self.command(0x08, 0, 0, 0, 0), 0, "CLOSE_HCA");
    }

    /// Issues a command with 32-bit accesses. The document puts the go bit at bit 23, but the driver polls bit 15.
    pub(super) fn command(
        &mut self,
        op: u32,
        op_modifier: u32,
        input: u64,
        modifier: u32,
        output: u64,
    ) -> u8 {
        const BUSY: u32 = 1 << 15;
        assert_eq!(self.machine.read32(0, 0x18) & BUSY, 0, "busy before command {op:#x}");
        let command = 1 << 23 | op_modifier << 12 | op;
        self.machine.issue(input, modifier, output, command);
        // The command must be complete at the first read, since the driver would mistake a busy command for a completed
        // one.
        assert_eq!(self.machine.read32(0, 0x18) & BUSY, 0, "busy after command {op:#x}");
        assert_eq!(self.machine.read32(0, 0x18) & BUSY, 0);
        let [.., status] = self.machine.read32(0, 0x18).to_le_bytes();
        status
    }

    /// Writes an inbox. The rest of the mailbox keeps the bytes of earlier commands.
    pub(super) fn with_inbox(&mut self, bytes: &[u8]) {
        self.machine.poke(MAILBOX, bytes);
    }

    /// Returns the bus address of an ICM address.
    pub(super) fn icm(&self, table: u32, at: u64) -> u64 {
        let base = at / CHUNK * CHUNK;
        let mut offset = at - base;
        for (bus, pages) in &self.chunks[&(table, base)].pieces {
            if offset < pages << 12 {
                return bus + offset;
            }
            offset -= pages << 12;
        }
        panic!("{at:#x} is past the end of its chunk");
    }

    /// Takes a reference to the chunk that contains an object.
    pub(super) fn use_chunk(&mut self, table: u32, at: u64) {
        let base = at / CHUNK * CHUNK;
        if !self.chunks.contains_key(&(table, base)) {
            let fragments = self.fragments.clone();
            self.map_chunk(table, base, &fragments);
        }
        self.chunks.get_mut(&(table, base)).unwrap().users += 1;
    }

    /// Drops a reference to the chunk that contains an object.
    pub(super) fn release_chunk(&mut self, table: u32, at: u64) {
        let base = at / CHUNK * CHUNK;
        let chunk = self.chunks.get_mut(&(table, base)).unwrap();
        chunk.users -= 1;
        if chunk.users == 0 {
            self.chunks.remove(&(table, base));
            assert_eq!(self.command(0xff9, table, base, 0x40, 0), 0, "UNMAP_ICM");
        }
    }

    fn map_chunk(&mut self, table: u32, base: u64, fragments: &[u64]) {
        let mut pieces = Vec::new();
        let mut inbox = vec![0; fragments.len().div_ceil(2) * 32];
        let mut virt = base;
        for (index, pages) in fragments.iter().enumerate() {
            let bus = self.free_block;
            // Blocks are aligned to their size, but not contiguous.
            self.free_block += CHUNK;
            let at = 16 * (index ^ 1);
            put64(&mut inbox, at, virt);
            put64(&mut inbox, at + 8, bus | pages);
            pieces.push((bus, *pages));
            virt += pages << 12;
        }
        self.with_inbox(&inbox);
        let count = u32::try_from(fragments.len()).unwrap();
        assert_eq!(self.command(0xffa, table, MAILBOX, count, 0), 0, "MAP_ICM");
        self.chunks.insert((table, base), Chunk { users: 0, pieces });
    }

    /// Allocates a page for a program. A program's pages are not contiguous.
    fn take_page(&mut self) -> u64 {
        self.free_page -= 0x2000;
        self.free_page
    }

    pub(super) fn buffer(&mut self, start: u64, len: u64) -> Buffer {
        let pages = (start + len).div_ceil(0x1000) - (start >> 12);
        Buffer { start, len, pages: (0..pages).map(|_| self.take_page()).collect() }
    }

    pub(super) fn put(&mut self, buffer: &Buffer, va: u64, bytes: &[u8]) {
        let mut va = va;
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = usize::try_from(0x1000 - (va & 0xfff)).unwrap().min(rest.len());
            let (now, later) = rest.split_at(room);
            self.machine.poke(buffer.bus(va), now);
            rest = later;
            va += room as u64;
        }
    }

    pub(super) fn get(&mut self, buffer: &Buffer, va: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = va + bytes.len() as u64;
            let room = usize::try_from(0x1000 - (at & 0xfff)).unwrap().min(len - bytes.len());
            bytes.extend(self.machine.peek(buffer.bus(at), room));
        }
        bytes
    }

    /// Registers memory by writing its pages to the MTT and its entry to the MPT.
    pub(super) fn register(&mut self, pd: u32, start: u64, len: u64, access: u32) -> Region {
        let buffer = self.buffer(start, len);
        let count = buffer.pages.len() as u64;
        let key = self.keys.alloc();
        let first = self.next_mtt.next_multiple_of(count.next_power_of_two());
        self.next_mtt = first + count.next_power_of_two();
        self.use_chunk(TPT, MTT + first * 8);
        self.use_chunk(TPT, MPT + u64::from(self.keys.index(key)) * 64);
        self.write_mtt(first, &buffer.pages);
        self.sw2hw_mpt(key, pd, &buffer, access, first);
        Region { key, buffer }
    }

    pub(super) fn deregister(&mut self, region: &Region) {
        let index = self.keys.index(region.key);
        assert_eq!(self.command(0x0f, 0, 0, index, 0), 0, "HW2SW_MPT");
        self.release_chunk(TPT, MPT + u64::from(index) * 64);
        self.keys.free(region.key);
    }

    /// Writes MTT entries in batches of 512. A mailbox holds 508, so a second command writes the rest of a full batch.
    /// The count in each command includes all remaining entries of the batch (J-11).
    pub(super) fn write_mtt(&mut self, first: u64, pages: &[u64]) {
        let mut start = first;
        for lot in pages.chunks(512) {
            let mut left = lot;
            while !left.is_empty() {
                let (now, later) = left.split_at(left.len().min(508));
                let mut inbox = vec![0; 0x20 + now.len().div_ceil(4) * 32];
                put64(&mut inbox, 0x18, start);
                for (index, page) in now.iter().enumerate() {
                    put64(&mut inbox, 0x20 + 8 * (index ^ 3), *page);
                }
                self.with_inbox(&inbox);
                let count = u32::try_from(left.len()).unwrap();
                assert_eq!(self.command(0x11, 0, MAILBOX, count, 0), 0, "WRITE_MTT of {count} entries");
                start += now.len() as u64;
                left = later;
            }
        }
    }

    fn sw2hw_mpt(&mut self, key: u32, pd: u32, buffer: &Buffer, access: u32, first: u64) {
        let mut entry = [0; 0x40];
        put32(&mut entry, 0x00, 0xf002_0180 | access);
        put32(&mut entry, 0x04, 0x1000);
        put32(&mut entry, 0x08, key);
        put32(&mut entry, 0x0c, pd);
        put64(&mut entry, 0x10, buffer.start);
        put64(&mut entry, 0x18, buffer.len);
        put64(&mut entry, 0x2c, first);
        self.with_inbox(&entry);
        let index = self.keys.index(key);
        assert_eq!(self.command(0x0d, 0, MAILBOX, index, 0), 0, "SW2HW_MPT");
        let stored = self.icm(TPT, MPT + u64::from(index) * 64);
        assert_eq!(self.machine.peek(stored, 0x40), entry, "MPT entry in ICM");
    }

    pub(super) fn sw2hw_cq(&mut self, cqn: u32, log_entries: u32, pd: u32, lkey: u32) {
        let mut context = [0; 0x40];
        put32(&mut context, 0x00, 0x0004_0000);
        put32(&mut context, 0x0c, log_entries << 24);
        put32(&mut context, 0x14, pd);
        put32(&mut context, 0x18, lkey);
        put32(&mut context, 0x2c, cqn);
        self.with_inbox(&context);
        assert_eq!(self.command(0x16, 0, MAILBOX, cqn, 0), 0, "SW2HW_CQ");
    }
}

pub(super) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

pub(super) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
