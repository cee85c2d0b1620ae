//! The tables in ICM (the device's virtual memory) and the arena pages mapped for them.
//!
//! # Spec
//! JingZhao interface, sections 3.3, 3.5 and 5.

use anyhow::{Result, ensure};

use super::layout::{DevLim, IcmRun, InitHca, MTT_ENTRY};
use crate::vfio::{Arena, PAGE};
use crate::wire::{ContextTable, IcmOptions};

/// ICM address space of the context tables.
const CONTEXTS: u8 = 1;
/// ICM address space of the MPT and the MTT.
const TRANSLATION: u8 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) table: ContextTable,
    /// ICM address space of the table, passed as op_modifier of MAP_ICM and UNMAP_ICM.
    pub(crate) name_space: u8,
    /// ICM address of entry 0.
    pub(crate) base: u64,
    /// Log2 of the number of entries.
    pub(crate) log_entries: u8,
    /// Size of an entry in bytes.
    entry: usize,
    /// Arena offset of each page.
    pages: Vec<usize>,
}

impl Table {
    /// Returns the total size of the table's pages in bytes.
    const fn bytes(&self) -> usize {
        (self.entry << self.log_entries).next_multiple_of(PAGE)
    }

    pub(crate) const fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Returns an entry as the device last wrote it.
    pub(crate) fn read(&self, arena: &Arena, index: u32) -> Vec<u8> {
        let index = index as usize & ((1 << self.log_entries) - 1);
        let offset = index * self.entry;
        let mut bytes = vec![0; self.entry];
        arena.read(self.pages[offset / PAGE] + offset % PAGE, &mut bytes);
        bytes
    }

    /// Returns the runs of consecutive pages that MAP_ICM maps for the table.
    pub(crate) fn runs(&self, arena: &Arena) -> Vec<IcmRun> {
        let mut runs: Vec<IcmRun> = Vec::new();
        for (i, &page) in self.pages.iter().enumerate() {
            let (virt, bus) = (self.base + (i * PAGE) as u64, arena.iova(page));
            match runs.last_mut() {
                Some(run) if run.bus + u64::from(run.pages) * PAGE as u64 == bus && run.pages < 0xfff => {
                    run.pages += 1;
                }
                _ => runs.push(IcmRun { virt, bus, pages: 1 }),
            }
        }
        runs
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Icm {
    tables: [Table; 5],
}

impl Icm {
    /// Places the tables in order of descending size and allocates their pages from the arena.
    pub(crate) fn new(arena: &mut Arena, lim: &DevLim, options: &IcmOptions) -> Result<Self> {
        for (name, log, most) in [
            ("QPs", options.log_qps, 24),
            ("CQs", options.log_cqs, 24),
            ("EQs", options.log_eqs, 8),
            ("MPTs", options.log_mpts, 24),
            ("MTTs", options.log_mtts, 24),
        ] {
            ensure!(
                log <= most,
                crate::error::bad_step(format!("too many {name}: 2^{log} (maximum 2^{most})"))
            );
        }
        let table = |table, name_space, log_entries, entry| Table {
            table,
            name_space,
            base: 0,
            log_entries,
            entry,
            pages: Vec::new(),
        };
        let mut tables = [
            table(ContextTable::Qpc, CONTEXTS, options.log_qps, lim.qpc_entry.into()),
            table(ContextTable::Cqc, CONTEXTS, options.log_cqs, lim.cqc_entry.into()),
            table(ContextTable::Eqc, CONTEXTS, options.log_eqs, lim.eqc_entry.into()),
            table(ContextTable::Mpt, TRANSLATION, options.log_mpts, lim.mpt_entry.into()),
            table(ContextTable::Mtt, TRANSLATION, options.log_mtts, MTT_ENTRY),
        ];
        let mut order = [0, 1, 2, 3, 4];
        order.sort_by_key(|&i| std::cmp::Reverse(tables[i].bytes()));
        let mut next = options.base;
        for table in order {
            let table = &mut tables[table];
            table.base = next;
            next += table.bytes() as u64;
            let count = table.bytes() / PAGE;
            let first = arena.alloc(count, PAGE)?;
            table.pages = map_order(count, options.scattered).map(|i| first + i * PAGE).collect();
        }
        let total = next - options.base;
        ensure!(total <= lim.max_icm, "the ICM tables need {total:#x} bytes (maximum {:#x})", lim.max_icm);
        Ok(Self { tables })
    }

    pub(crate) fn init(&self) -> InitHca {
        let [qpc, cqc, eqc, mpt, mtt] = &self.tables;
        let place = |table: &Table| (table.base, table.log_entries);
        InitHca { qpc: place(qpc), cqc: place(cqc), eqc: place(eqc), mpt: place(mpt), mtt_base: mtt.base }
    }

    pub(crate) fn table(&self, table: ContextTable) -> &Table {
        let [qpc, cqc, eqc, mpt, mtt] = &self.tables;
        match table {
            ContextTable::Qpc => qpc,
            ContextTable::Cqc => cqc,
            ContextTable::Eqc => eqc,
            ContextTable::Mpt => mpt,
            ContextTable::Mtt => mtt,
        }
    }

    /// Returns all tables, in the order QPC, CQC, EQC, MPT, MTT.
    pub(crate) const fn tables(&self) -> &[Table; 5] {
        &self.tables
    }
}

/// Returns the arena page behind each of `count` ICM pages, in ICM order. If `scattered` is not set, the arena pages
/// are in ascending order. Otherwise, runs of 1, 2, 4 and 3 pages are taken in turn from the end of the remaining
/// range.
fn map_order(count: usize, scattered: bool) -> impl Iterator<Item = usize> {
    let runs = [1, 2, 4, 3].into_iter().cycle();
    let mut end = count;
    let mut order = Vec::with_capacity(count);
    for run in runs {
        if end == 0 {
            break;
        }
        let run = if scattered { run.min(end) } else { end };
        end -= run;
        order.extend(end..end + run);
    }
    order.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIM: DevLim = DevLim {
        log_reserved: [1, 0, 0],
        qpc_entry: 256,
        cqc_entry: 64,
        eqc_entry: 64,
        mpt_entry: 64,
        max_icm: 1 << 40,
    };

    #[test]
    fn default_profile_layout_matches_reference_trace() {
        let mut arena = Arena::detached(48 << 20);
        let options = IcmOptions {
            log_qps: 16,
            log_cqs: 16,
            log_eqs: 5,
            log_mpts: 17,
            log_mtts: 20,
            base: 0,
            scattered: false,
        };
        let init = Icm::new(&mut arena, &LIM, &options).unwrap().init();
        assert_eq!(init.qpc, (0, 16));
        assert_eq!(init.mpt, (0x100_0000, 17));
        assert_eq!(init.mtt_base, 0x180_0000);
        assert_eq!(init.cqc, (0x200_0000, 16));
        assert_eq!(init.eqc, (0x240_0000, 5));
    }

    #[test]
    fn each_scattered_page_is_mapped_once() {
        let mut arena = Arena::detached(4 << 20);
        let icm = Icm::new(&mut arena, &LIM, &IcmOptions::default()).unwrap();
        let qpc = icm.table(ContextTable::Qpc);
        let runs = qpc.runs(&arena);
        assert_eq!(runs.iter().map(|run| usize::from(run.pages)).sum::<usize>(), qpc.page_count());
        assert!(runs.len() > 16, "{runs:x?}");
        // Entry 17 is the second entry of ICM page 1, and the second run starts with that page.
        let bus = runs[1].bus + 256;
        let offset = usize::try_from(bus - arena.iova(0)).unwrap();
        arena.write(offset, &[0xab; 4]);
        assert_eq!(qpc.read(&arena, 17)[..5], [0xab, 0xab, 0xab, 0xab, 0]);
        assert_eq!(
            qpc.read(&arena, 17 + (1 << 10))[..4],
            [0xab; 4],
            "bits above the index mask must be ignored"
        );
    }
}
