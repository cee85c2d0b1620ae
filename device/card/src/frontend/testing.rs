//! A simulated guest for unit tests. Its memory is a memfd, and the test accesses registers as a driver does.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod extremes;

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use drivers::Bus;
use engine::Instant;
use protocol::ids::{Lid, MacAddr};
use rustix::event::{EventfdFlags, eventfd};
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};

pub use self::extremes::Session;

use super::Frontend;
use crate::fabric::impair::{Rule, RuleEntry};
use crate::hca::Hca;
use crate::identity::Identity;
use crate::net::address::Addresses;
use crate::record::Recorder;
use crate::replay::testing as session;
use crate::telemetry::testing::Written;
use crate::vfio::server::{Device as _, Region, RegionFile};
use crate::vfio::{Bar, BarRange};

/// Length of guest memory in bytes. Guest memory starts at bus address 0.
pub const MEMORY: u64 = 1 << 30;

/// A peer with an entry in the configuration.
pub const OTHER: Identity = Identity {
    mac: MacAddr([0x52, 0x54, 0, 1, 0, 2]),
    ipv4: Ipv4Addr::new(192, 168, 7, 9),
    ipv6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9)),
    ..Identity::from_lid(Lid::new(0x900))
};
/// Destination of packets to unknown peers.
pub const DEFAULT: Identity = Identity {
    mac: MacAddr([0x52, 0x54, 0, 9, 9, 9]),
    ipv4: Ipv4Addr::new(10, 1, 1, 1),
    ..Identity::from_lid(Lid::new(0x901))
};

/// Returns the addresses of a device with LID 1 and its two peers, [`OTHER`] and [`DEFAULT`].
pub fn addresses() -> Addresses {
    Addresses { own: Identity::from_lid(Lid::new(1)), peers: vec![OTHER], default_peer: Some(DEFAULT) }
}

/// Parses a hex dump in the format of the interface specifications: each line has an offset, a colon and sixteen bytes.
/// Omitted lines are zero.
pub fn dump(text: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (offset, values) = line.split_once(':').expect("a line contains an offset and a colon");
        let offset = usize::from_str_radix(offset, 16).expect("the offset is hexadecimal");
        let values = values
            .split_whitespace()
            .map(|value| u8::from_str_radix(value, 16).expect("each value is a hexadecimal byte"));
        for (byte, value) in bytes[offset..].iter_mut().zip(values) {
            *byte = value;
        }
    }
    bytes
}

/// Runs `work` and returns the resulting log lines.
pub fn logged(work: impl FnOnce() + Send) -> String {
    let written = Written::default();
    let to = written.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || to.clone()).finish();
    // Log lines are rate-limited per thread. Use a new thread for each call.
    std::thread::scope(|scope| {
        scope
            .spawn(|| tracing::subscriber::with_default(subscriber, work))
            .join()
            .expect("`work` does not panic");
    });
    written.text()
}

/// Compares text with a golden file or updates the file if HCAD_UPDATE_GOLDEN is set.
#[track_caller]
pub fn assert_golden(file: &str, text: &str) {
    if std::env::var_os("HCAD_UPDATE_GOLDEN").is_some() {
        std::fs::write(file, text).unwrap();
    }
    let recorded = std::fs::read_to_string(file).unwrap_or_default();
    for (line, expected) in text.lines().zip(recorded.lines()) {
        assert_eq!(line, expected, "{file}");
    }
    assert_eq!(text.lines().count(), recorded.lines().count(), "{file}");
}

/// A guest with one HCA.
pub struct Guest<F: Frontend> {
    pub hca: Hca<F>,
    pub now: Instant,
    /// Eventfds, indexed by MSI-X vector.
    vectors: Vec<OwnedFd>,
    /// A BAR that is partly mapped into the guest so that stores to the mapped part do not trap.
    pages: Option<(BarRange, MmapRegion)>,
    /// Keeps the session's recording open.
    _record: Option<Recorder>,
    /// Records or replaces writes while a [`Session`] is repeated.
    tap: Option<extremes::Tap>,
}

impl<F: Frontend> Guest<F> {
    /// Creates a guest whose device is in its power-on state, except that memory space and bus mastering are
    /// enabled.
    pub fn new(frontend: F, addresses: impl Into<Addresses>) -> Self {
        let mut hca = Hca::new(frontend, addresses, None);
        let record = session::record();
        if let Some(record) = &record {
            hca.set_record_sink(record.sink());
        }
        let mut guest =
            Self { hca, now: Instant::ZERO, vectors: Vec::new(), pages: None, _record: record, tap: None };
        guest.enable();
        guest.map_memory(0, MEMORY);
        guest
    }

    /// Maps zeroed memory for DMA.
    pub fn map_memory(&mut self, iova: u64, len: u64) {
        self.hca.memory().map_zeros(iova, len);
    }

    pub fn poke(&mut self, at: u64, bytes: &[u8]) {
        let bytes = self.tap.as_mut().map_or(bytes.into(), |tap| tap.write(bytes));
        self.hca.memory().poke(at, &bytes);
    }

    pub fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        self.tap.iter_mut().for_each(|tap| tap.read(at));
        let mut bytes = vec![0; len];
        self.hca.memory().look(at, &mut bytes);
        bytes
    }

    /// Maps the doorbell pages into the guest, as a VMM does.
    pub fn map_doorbells(&mut self) {
        self.hca.map_doorbells();
        self.pages = Bar::ALL.into_iter().find_map(|bar| {
            let region = Region::Bar(bar);
            let RegionFile { file, offsets } = self.hca.region_file(region)?;
            let file = File::from(file.try_clone().unwrap());
            let len = usize::try_from(self.hca.region_len(region)).unwrap();
            let pages = MmapRegion::from_file(FileOffset::new(file, 0), len).unwrap();
            Some((BarRange { bar, offsets }, pages))
        });
    }

    pub fn store(&mut self, bar: Bar, offset: u64, bytes: &[u8]) {
        let bytes = &*self.tap.as_mut().map_or(bytes.into(), |tap| tap.write(bytes));
        let is_mapped = |range: &BarRange| range.bar == bar && range.offsets.contains(&offset);
        if let Some((_, pages)) = self.pages.as_ref().filter(|(range, _)| is_mapped(range)) {
            let at = usize::try_from(offset).unwrap();
            return pages.as_volatile_slice().write_slice(bytes, at).unwrap();
        }
        self.hca.region_write(Region::Bar(bar), offset, bytes);
    }

    pub fn load<const N: usize>(&mut self, bar: Bar, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.hca.region_read(Region::Bar(bar), offset, &mut bytes);
        bytes
    }

    /// Creates eventfds for the first `vectors` vectors. The driver still has to enable the vectors.
    pub fn listen(&mut self, vectors: usize) {
        self.vectors = (0..vectors).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        self.wire();
    }

    /// Passes the eventfds to the device, as a VMM does. Call this again after they have been removed.
    pub fn wire(&mut self) {
        for (vector, fd) in self.vectors.iter().enumerate() {
            self.hca.interrupts().set_eventfd(vector, Some(fd.try_clone().unwrap()));
        }
    }

    /// Adds an impairment rule, written as in a configuration.
    pub fn impair(&mut self, rule: &str) {
        let entry: RuleEntry = serde_json::from_str(rule).unwrap();
        self.hca.impair(Rule::try_from(entry).unwrap()).unwrap();
    }

    /// Advances the clock to `to`, unless it has already passed that time, and handles the expired deadlines.
    pub fn advance(&mut self, to: Instant) {
        self.now = to.max(self.now);
        self.hca.set_now(self.now);
        self.hca.handle_deadline();
    }

    /// Runs turns until the device is idle. Returns the frames sent.
    pub fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            self.hca.set_now(self.now);
            self.hca.poll_doorbells();
            let left = self.hca.drain();
            frames.extend(self.hca.outbound().iter().map(|(_, frame)| frame.to_vec()));
            self.hca.outbound().clear();
            let is_over = self.tap.as_mut().is_some_and(|tap| !tap.turn());
            if is_over || !left.frames && !left.other {
                return frames;
            }
        }
    }
}

impl<F: Frontend> Bus for Guest<F> {
    fn configure(&mut self, offset: u64, bytes: &[u8]) {
        self.hca.region_write(Region::Config, offset, bytes);
    }

    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.store(Bar::ALL[usize::from(bar)], offset, bytes);
    }

    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN] {
        self.load(Bar::ALL[usize::from(bar)], offset)
    }

    fn poke(&mut self, at: u64, bytes: &[u8]) {
        self.poke(at, bytes);
    }

    fn peek(&mut self, at: u64, len: usize) -> Vec<u8> {
        self.peek(at, len)
    }

    fn interrupts(&mut self, vector: usize) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.vectors[vector], &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }
}

/// Exchanges frames between two guests until both are idle.
pub fn exchange<A: Frontend, B: Frontend>(a: &mut Guest<A>, b: &mut Guest<B>) {
    loop {
        let (from_a, from_b) = (a.settle(), b.settle());
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        from_a.iter().for_each(|frame| b.hca.handle_frame(frame));
        from_b.iter().for_each(|frame| a.hca.handle_frame(frame));
    }
}

/// Exchanges frames and advances the clock until no deadline is left within one minute of the start.
pub fn wait<A: Frontend, B: Frontend>(a: &mut Guest<A>, b: &mut Guest<B>) {
    let limit = a.now + std::time::Duration::from_secs(60);
    loop {
        exchange(a, b);
        let next = [a.hca.next_deadline(), b.hca.next_deadline()];
        let Some(now) = next.into_iter().flatten().filter(|deadline| *deadline < limit).min() else { return };
        a.advance(now);
        b.advance(now);
    }
}

/// Returns pseudorandom bytes that depend on the seed.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut next = seed;
    let step = || {
        next = next.wrapping_mul(5).wrapping_add(113);
        next
    };
    std::iter::repeat_with(step).take(len).collect()
}
