//! Tests in which the user library and the device access one queue from two threads. No matter where the library is
//! preempted, the device must not fetch a receive before it is complete.
//!
//! Set HCAD_RACE_SECONDS=60 to run each case for a minute.

use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use card::memory::GuestMemory;
use card::memory::keys::KeyTable;
use card::memory::region::{Kind, MemoryRegion, Origin, Rights, Translation};
use card::memory::testing::shared_memory;
use card::memory::translate::{PageTable, RegionAccess};
use engine::Sge;
use protocol::ids::{Iova, Lkey, Pdn, Va};

use super::*;

const PD: Pdn = Pdn::new(3);
const RQ_KEY: Lkey = Lkey::new(0x21);
const DATA_KEY: Lkey = Lkey::new(0x2_0005);
const LOG_SLOT: u8 = 7;
/// Bus address of the queue.
const RING: u64 = 0x1000;

/// An empty page table: the queue's region is physically contiguous.
#[derive(Clone, Copy)]
struct NoPages;

impl PageTable for NoPages {
    fn page(self, _: u64) -> Option<Iova> {
        None
    }
}

/// The receives that a program posts to its queue.
#[derive(Clone, Copy)]
struct Case {
    slots: u64,
    longest: u64,
    /// If set, every receive has `longest` elements; otherwise, the number varies from 0 to `longest`.
    full: bool,
}

impl Case {
    /// Returns the elements of the n-th receive. Addresses are unique.
    fn receive(&self, count: u64) -> Vec<Sge> {
        let elements = if self.full { self.longest } else { scatter(count) % (self.longest + 1) };
        let element = |at: u64| Sge {
            va: Va::new((count << 16) + (at << 8) + 1),
            lkey: DATA_KEY,
            len: 1 + u32::try_from(scatter(count + at) % 4096).unwrap(),
        };
        (0..elements).map(element).collect()
    }

    fn slot(&self, count: u64) -> u64 {
        (count % self.slots) << LOG_SLOT
    }
}

/// Returns a pseudorandom number derived from `number`.
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// The library's accesses to the queue.
struct Library {
    case: Case,
    dma: GuestMemory,
    stores: u64,
}

impl Library {
    /// Performs one store in program order. A pause after some stores emulates a preempted virtual CPU.
    fn store(&mut self, at: u64, bytes: &[u8]) {
        self.dma.poke(RING + at, bytes);
        fence(Ordering::SeqCst);
        self.stores += 1;
        match scatter(self.stores) % 1024 {
            // This pause is longer than all of the device's rereads combined.
            0 => thread::sleep(Duration::from_micros(50)),
            1..16 => (0..scatter(self.stores) >> 12 & 0x3ff).for_each(|_| spin_loop()),
            _ => {}
        }
    }

    /// Posts one receive as `ibv_post_recv` does.
    fn post(&mut self, count: u64) {
        let slot = self.case.slot(count);
        self.store(slot, &[0x20, 0, 0, 0]);
        self.store(slot + 4, &[0; 4]);
        self.store(slot + 8, &[0; 4]);
        let receive = self.case.receive(count);
        let mut unit = slot + 16;
        for Sge { va, lkey, len } in &receive {
            self.store(unit, &len.to_le_bytes());
            self.store(unit + 4, &lkey.get().to_le_bytes());
            self.store(unit + 8, &va.get().to_le_bytes());
            unit += 16;
        }
        if (receive.len() as u64) < self.case.longest {
            self.store(unit, &[0; 4]);
            self.store(unit + 4, &[0; 4]);
            self.store(unit + 8, &[0; 8]);
        }
    }

    /// Updates a slot as `ibv_poll_cq` does.
    fn reap(&self, count: u64) {
        self.dma.poke(RING + self.case.slot(count), &[0; 16]);
    }

    /// Posts a new receive for each receive that the device has fetched, until `stop` is set.
    fn run(&mut self, fetched: &AtomicU64, stop: &AtomicBool) {
        let mut reaped = 0;
        while !stop.load(Ordering::Relaxed) {
            if reaped == fetched.load(Ordering::Acquire) {
                thread::yield_now();
                continue;
            }
            self.reap(reaped);
            reaped += 1;
            self.post(self.case.slots + reaped - 1);
        }
    }
}

/// Returns how many receives were fetched and how many of them differ from the posted ones. With `keep_data_units`, the
/// test restores the data units that the device overwrites, and the first difference ends the race.
fn race(case: Case, time: Duration, keep_data_units: bool) -> (u64, u64) {
    /// Runs the cases one at a time, so that the two threads of a case can run in parallel.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    /// Number of failed polls before yielding, for machines with a single processor.
    const MAX_FAILED_POLLS: u32 = 256;
    let _guard = ONE_AT_A_TIME.lock();
    let bytes = case.slots << LOG_SLOT;
    let [dma, software] = shared_memory(0, 16);
    let mut keys = KeyTable::new(17);
    let region = MemoryRegion {
        key: RQ_KEY,
        pd: PD,
        start: Va::new(RING),
        len: bytes,
        origin: Origin::Zero,
        rights: Rights::empty(),
        translation: Translation::Contiguous { bus: Iova::new(RING) },
        kind: Kind::Registered,
    };
    keys.insert(region).unwrap();
    let mem = RegionAccess { keys: &keys, pages: NoPages, dma: &dma };
    let rst = RdQpRst {
        pd: PD,
        rq_lkey: RQ_KEY,
        rq_len: u32::try_from(bytes).unwrap(),
        log_rq_slot: LOG_SLOT,
        usr_page: 1,
        service: Some(ServiceType::Rc),
        ..RdQpRst::default()
    };
    let mut queue = RecvQueue::new(QueueOptions { rq_valid_bit: true, ..QueueOptions::default() });
    queue.configure(&rst, &mem);
    queue.prepare(&mem);

    let mut library = Library { case, dma: software, stores: 0 };
    // A program posts its first receives before its peer may send.
    (0..case.slots).for_each(|count| library.post(count));
    queue.configure(&RdQpRst { state: Some(QpState::Rtr), ..rst }, &mem);
    let (fetched, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut misplaced = 0;
    thread::scope(|scope| {
        let (fetched, stop) = (&fetched, &stop);
        scope.spawn(move || library.run(fetched, stop));
        let start = std::time::Instant::now();
        let (mut count, mut failed_polls) = (0, 0);
        while start.elapsed() < time && !(keep_data_units && misplaced > 0) {
            let units = dma.peek::<112>(RING + case.slot(count) + 16);
            let now = engine::Instant::ZERO + start.elapsed();
            match queue.next(now, &mem) {
                Fetch::Ready(RecvRequest { wr_id, sges }) => {
                    let posted = case.receive(count);
                    misplaced += u64::from(wr_id != case.slot(count) || sges.as_slice() != posted);
                    if keep_data_units {
                        dma.poke(RING + case.slot(count) + 16, &units);
                    }
                    count += 1;
                    fetched.store(count, Ordering::Release);
                }
                Fetch::Empty if failed_polls < MAX_FAILED_POLLS => failed_polls += 1,
                Fetch::Empty => {
                    failed_polls = 0;
                    thread::yield_now();
                }
                other => panic!("{other:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    (fetched.into_inner(), misplaced)
}

fn time() -> Duration {
    let seconds = std::env::var("HCAD_RACE_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map_or(Duration::from_millis(1500), Duration::from_secs)
}

fn never_misplaced(case: Case) {
    let (fetched, misplaced) = race(case, time(), false);
    println!("{fetched} receives fetched, {misplaced} misplaced");
    assert_eq!(misplaced, 0, "misplaced receives, of {fetched} fetched");
    assert!(fetched > 100, "only {fetched} receives were fetched");
}

#[test]
fn single_sge_receives_are_never_fetched_half_written() {
    never_misplaced(Case { slots: 4, longest: 1, full: true });
}

#[test]
fn multi_sge_receives_are_never_fetched_half_written() {
    never_misplaced(Case { slots: 4, longest: 5, full: true });
}

#[test]
fn receives_of_varying_length_are_never_fetched_half_written() {
    never_misplaced(Case { slots: 2, longest: 7, full: false });
}

/// Shows that these tests detect the race. If the data units of consumed slots are not overwritten, the device fetches
/// half-written receives.
#[test]
fn race_occurs_if_consumed_slots_are_not_overwritten() {
    for (longest, full) in [(1, true), (5, true)] {
        let (fetched, misplaced) = race(Case { slots: 4, longest, full }, Duration::from_secs(30), true);
        assert_ne!(misplaced, 0, "misplaced receives, of {fetched} fetched");
    }
}
