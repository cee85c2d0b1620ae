//! Tests that a guest can create as many objects as the public driver's default profile allows, and measures the memory
//! that they use.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for --nocapture")]

mod connected;
mod hostile;
mod machine;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use card::memory::{GuestMemory, Permissions};
use drivers::Bus as _;
use drivers::jingzhao::{LOG_CQS, LOG_MPTS, LOG_QPS, cqc, doorbell, layout, region};
use jingzhao::Options;
use machine::{BUFFERS, PAGE, initialised, pages, powered_on, rc};
use protocol::hca::jingzhao::cmd::Op;
use protocol::hca::jingzhao::icm::IcmTable;
use protocol::hca::jingzhao::mpt::MptFlags;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::Iova;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::time::{ClockId, clock_gettime};

/// Serialises the tests, which measure the memory use of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns this process's memory use in bytes, including swapped memory but excluding guest memory.
fn own_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    (kib("RssAnon:") + kib("VmSwap:")) << 10
}

/// Returns this thread's CPU time, which is independent of other load.
fn work_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Creates `count` objects, prints the time per command and the memory per object, and checks the memory against a
/// limit.
fn measured(what: &str, count: u64, commands: u64, bytes_each: u64, make: impl FnOnce()) {
    let (memory, began) = (own_memory(), work_time());
    make();
    let (took, grown) = (work_time() - began, own_memory().saturating_sub(memory));
    let ns = took.as_nanos() / u128::from(commands);
    println!("{what}: {count} in {took:.2?}, {ns} ns a command; {} bytes each", grown / count);
    // The allocator requests memory in large units, so allow an extra 1 MiB.
    assert!(grown <= count * bytes_each + (1 << 20), "{what}: {count} objects use {grown} bytes");
}

/// JingZhao interface, sections 3.3 and 12 (row J-09). All QPs are in RTS at the same time and are then reset and used
/// again.
#[test]
fn default_profile_allows_all_qps() {
    const QPS: u32 = 1 << LOG_QPS;
    let _alone = alone();
    let mut machine = initialised(1, Options::default());
    measured("QPs in RTS", QPS.into(), 3 * u64::from(QPS), 1536, || {
        (0..QPS).for_each(|qpn| machine.connect(qpn, &rc(qpn, 0, 1, 2)));
    });
    for qpn in [0, 1, QPS / 2, QPS - 1] {
        assert_eq!(machine.context_word(qpn, 0x08) >> 28, 3, "QP {qpn:#x} is in RTS in ICM");
        assert_eq!(machine.context_word(qpn, 0x18), qpn, "ICM has the remote QPN of QP {qpn:#x}");
    }
    (0..QPS).for_each(|qpn| machine.ok(Op::ToRst, 3, qpn, &[]));
    measured("the same QPs again", QPS.into(), u64::from(QPS), 256, || {
        (0..QPS).for_each(|qpn| machine.ok(Op::Rst2Init, 0, qpn, &rc(qpn, 0, 1, 2).emit()));
    });
}

#[test]
fn default_profile_allows_all_cqs() {
    const CQS: u32 = 1 << LOG_CQS;
    let _alone = alone();
    let mut machine = initialised(1, Options::default());
    machine.write_mtt(0, pages(BUFFERS, 1));
    machine.register(&region(1, 0, 0, PAGE, MptFlags::LOCAL_WRITE));
    measured("CQs", CQS.into(), CQS.into(), 128, || {
        (0..CQS).for_each(|cqn| machine.create_cq(&cqc(cqn, 1, 7)))
    });
    assert_ne!(machine.command(Op::Sw2HwCq, 0, CQS, &[0; 64]), 0, "a CQ number beyond the table is rejected");
    (0..CQS).for_each(|cqn| machine.ok(Op::Hw2SwCq, 0, cqn, &[]));
    machine.create_cq(&cqc(CQS, 1, 7));
}

/// JingZhao interface, section 7: when a CQ is created, the device checks that all its entries are marked as owned by
/// hardware.
#[test]
fn largest_cq_is_created_in_one_command() {
    const LOG_CQES: u8 = 16;
    const PAGES: u64 = (32 << LOG_CQES) / PAGE;
    const TIMES: u32 = 16;
    let _alone = alone();
    let mut machine = initialised(1, Options::default());
    machine.write_mtt(0, pages(BUFFERS, PAGES));
    machine.register(&region(1, 0, 0, PAGES * PAGE, MptFlags::LOCAL_WRITE));
    let prepared = [0x80; 4096];
    (0..PAGES).for_each(|page| machine.poke(BUFFERS + page * PAGE, &prepared));
    measured("CQs of 2^16 entries", TIMES.into(), TIMES.into(), 128, || {
        (0..TIMES).for_each(|cqn| machine.create_cq(&cqc(cqn, 1, LOG_CQES)));
    });
}

#[test]
fn default_profile_allows_all_regions() {
    const MPTS: u32 = 1 << LOG_MPTS;
    let _alone = alone();
    let mut machine = initialised(1, Options::default());
    measured("MPT entries", MPTS.into(), MPTS.into(), 128, || {
        for index in 0..MPTS {
            machine.register(&region(0x5_0000 << 12 | index, index.into(), 0, PAGE, MptFlags::LOCAL_WRITE));
        }
    });
    (0..MPTS).for_each(|index| machine.ok(Op::Hw2SwMpt, 0, index, &[]));
    assert_ne!(machine.command(Op::Hw2SwMpt, 0, 0, &[]), 0, "a region cannot be destroyed twice");
}

/// To use the last MTT entry, the test moves a CQ to that entry's page and makes the device write a CQE.
#[test]
fn default_profile_mtt_entries_are_usable() {
    const MTTS: u64 = 1 << 20;
    let _alone = alone();
    let mut machine = initialised(1, Options::default());
    measured("MTT entries", MTTS, MTTS.div_ceil(508), 9, || machine.write_mtt(0, pages(0, MTTS)));
    // MTT entry n refers to bus page n.
    let page = BUFFERS / PAGE;
    machine.register(&region(1, page, 0, PAGE, MptFlags::LOCAL_WRITE));
    machine.register(&region(2, page + 1, 0, PAGE, MptFlags::empty()));
    machine.create_cq(&cqc(1, 1, 5));
    machine.connect(5, &rc(5, 1, 2, 2));
    machine.write_mtt(MTTS - 1, pages(BUFFERS + 2 * PAGE, 1));
    machine.register(&region(3, MTTS - 1, 0, PAGE, MptFlags::LOCAL_WRITE));
    machine.ok(Op::ResizeCq, 1, 1, &[5, 0, 0, 0, 0, 0, 0, 3]);
    machine.ring_doorbell(1, doorbell(5, 0, 0x00, 1));
    machine.turn();
    assert_eq!(machine.word(BUFFERS + 2 * PAGE), 5, "the NOP's CQE contains the QPN");
}

/// JingZhao interface, sections 1.6 and 12 (row J-02): each QP uses its own doorbell page.
#[test]
fn every_uar_page_accepts_doorbells() {
    const PAGES: u32 = 4096;
    let _alone = alone();
    let options: Options = serde_json::from_str(r#"{"uar_pages": 4096, "uar_check": true}"#).unwrap();
    let mut machine = initialised(1, options);
    machine.write_mtt(0, pages(BUFFERS, 33));
    machine.register(&region(1, 0, 0, 32 * PAGE, MptFlags::LOCAL_WRITE));
    machine.register(&region(2, 32, 0, PAGE, MptFlags::empty()));
    machine.create_cq(&cqc(1, 1, 12));
    for page in 0..PAGES {
        machine.connect(page, &Qpc { usr_page: page, ..rc(page, 1, 2, 2) });
    }
    for page in 0..PAGES {
        // Doorbells in another QP's page are ignored.
        machine.ring_doorbell(u64::from(page + 1) % 4096, doorbell(page, 0, 0x00, 1));
        machine.ring_doorbell(page.into(), doorbell(page, 0, 0x00, 1));
    }
    while machine.turn().1 {}
    let mut rung: Vec<u32> = (0..PAGES).map(|slot| machine.word(BUFFERS + u64::from(slot) * 32)).collect();
    rung.sort_unstable();
    assert!(rung.into_iter().eq(0..PAGES), "each QP has one completion");
}

/// With an emulated IOMMU, the VMM maps and unmaps each page as a separate range.
#[test]
fn maximum_number_of_dma_ranges_can_be_mapped() {
    const RANGES: u64 = 65_535;
    let _alone = alone();
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, RANGES * PAGE).unwrap();
    let mut memory = GuestMemory::default();
    let all = Permissions { read: true, write: true };
    measured("DMA ranges", RANGES, RANGES, 256, || {
        for n in 0..RANGES {
            // The ranges are in reverse order in the file, so that they cannot be merged.
            let backing = (file.try_clone().unwrap(), (RANGES - 1 - n) * PAGE);
            memory.map(Iova::new(n * PAGE), PAGE, all, Some(backing)).unwrap();
        }
    });
    measured("DMA ranges, unmapped and mapped again", RANGES, 2 * RANGES, 256, || {
        for n in 0..RANGES {
            memory.unmap(Iova::new(n * PAGE), PAGE).unwrap();
            let backing = (file.try_clone().unwrap(), (RANGES - 1 - n) * PAGE);
            memory.map(Iova::new(n * PAGE), PAGE, all, Some(backing)).unwrap();
        }
    });
    assert_eq!(memory.window_count() as u64, RANGES);
}

/// JingZhao interface, section 3.3. The tables have their maximum sizes, but only a few entries are in use.
#[test]
fn unused_table_entries_do_not_use_memory() {
    let _alone = alone();
    let mut machine = powered_on(1, Options::default());
    measured("largest tables, empty", 1, 1, 1 << 20, || {
        machine.ok(Op::InitHca, 0, 0, &layout(24, 24, 32).emit())
    });
    // Contexts are 256 bytes long, so the contexts of these QPs are in 64 ICM pages that are far apart.
    measured("QPs far apart", 64, 64, 16 << 10, || {
        for n in 0..64 {
            let qpn = n << 18;
            let (virt, bus) = (u64::from(qpn) * 256, BUFFERS + u64::from(n) * PAGE);
            machine.map(IcmTable::Context, virt, bus, 1);
            machine.ok(Op::Rst2Init, 0, qpn, &rc(qpn, 0, 1, 2).emit());
        }
    });
}
