//! Repeats a driver's session, each time with one extreme value in one of the driver's writes to guest memory or
//! registers. The writes contain command inputs, contexts, WQEs, descriptors and doorbells. Whatever a guest writes,
//! the device must keep working.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::env;
use std::ops::RangeInclusive;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{Frontend, Guest};
use crate::vfio::server::Device as _;

const BYTES: [u8; 4] = [0x00, 0xff, 0x80, 0x7f];
/// All bits set, and the sign bit in both byte orders.
const WORDS: [[u8; 4]; 3] = [[0xff; 4], [0x80, 0, 0, 0], [0, 0, 0, 0x80]];

/// Lengths of the writes that are replaced. Shorter writes contain payload. Longer writes clear memory or contain lists
/// of pages.
const LENGTHS: RangeInclusive<usize> = 4..=1024;

/// Maximum number of turns in one session. A guest can link WQEs into a cycle.
const MAX_TURNS: usize = 200;

/// Maximum number of consecutive reads of one address. Without this limit, a driver would wait forever if the device
/// has not received its request.
const MAX_POLLS: usize = 20;

/// Maximum CPU time of one session. Sessions take a few milliseconds, so even a slow machine stays far below the limit.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Maximum number of faults to describe.
const MAX_FAULTS: usize = 10;

/// A session to repeat. `D` is the driver of one device, or of two connected devices.
pub struct Session<D, F: Frontend> {
    /// Creates a working device and its driver. Writes during this step have no extreme values.
    pub open: fn() -> D,
    /// Returns the guest whose writes have extreme values.
    pub guest: fn(&mut D) -> &mut Guest<F>,
    /// Passes inputs to the device and uses the objects that they describe. May panic if the device rejects an input.
    pub act: fn(&mut D),
    /// Issues a command that must succeed after any session.
    pub check: fn(&mut D),
    /// Only every `step`-th extreme value is used, unless the environment variable HCAD_ALL_EXTREMES is set.
    pub step: usize,
}

/// Records or changes the writes of a session, and bounds its length.
#[derive(Debug)]
pub(super) struct Tap {
    writes: usize,
    turns: usize,
    /// Last address read, and the number of consecutive reads of it.
    polled: (u64, usize),
    mode: Mode,
}

#[derive(Debug)]
enum Mode {
    Record(Vec<Vec<u8>>),
    Replace(Replacement),
}

/// A value that replaces part of a write.
#[derive(Clone, Copy, Debug)]
struct Replacement {
    write: usize,
    offset: usize,
    value: &'static [u8],
}

impl Tap {
    const fn new(mode: Mode) -> Self {
        Self { writes: 0, turns: 0, polled: (0, 0), mode }
    }

    /// Returns the bytes to write in place of `bytes`.
    pub(super) fn write<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let write = self.writes;
        self.writes += 1;
        match &mut self.mode {
            Mode::Record(writes) => writes.push(bytes.to_vec()),
            Mode::Replace(replacement) if replacement.write == write => {
                let Replacement { offset, value, .. } = *replacement;
                let mut bytes = bytes.to_vec();
                bytes[offset..offset + value.len()].copy_from_slice(value);
                return bytes.into();
            }
            Mode::Replace(_) => {}
        }
        bytes.into()
    }

    /// Counts the consecutive reads of an address of guest memory.
    pub(super) fn read(&mut self, at: u64) {
        let (last, polls) = self.polled;
        self.polled = (at, if at == last { polls + 1 } else { 0 });
        assert!(self.polled.1 < MAX_POLLS, "the driver has waited too long for its device");
    }

    /// Counts a turn. Returns false if the session must end.
    pub(super) fn turn(&mut self) -> bool {
        self.turns += 1;
        self.turns < MAX_TURNS
    }
}

/// A byte is filler, such as the unused part of a mailbox, if it equals this number of bytes on each side.
const FILLER: usize = 64;

/// Returns the extreme values of a byte or an aligned word that change `bytes`, each with its offset. Omits those in
/// filler, and words that change only one byte.
fn replacements(bytes: &[u8]) -> impl Iterator<Item = (usize, &'static [u8])> {
    let is_filler = |offset: usize| {
        let around = offset.saturating_sub(FILLER)..(offset + FILLER).min(bytes.len());
        offset >= FILLER && bytes[around].iter().all(|byte| *byte == bytes[offset])
    };
    let changes = |offset: usize, value: &[u8]| {
        value.iter().zip(&bytes[offset..]).filter(|(new, old)| new != old).count()
    };
    let single = (0..bytes.len())
        .flat_map(|offset| BYTES.iter().map(move |byte| (offset, std::slice::from_ref(byte))));
    let aligned = (0..bytes.len() / 4).flat_map(|word| WORDS.iter().map(move |value| (word * 4, &value[..])));
    single
        .filter(move |(offset, value)| changes(*offset, value) == 1)
        .chain(aligned.filter(move |(offset, value)| changes(*offset, value) > 1))
        .filter(move |(offset, _)| !is_filler(*offset))
}

/// Number of consecutive writes of the same length that are replaced. Longer series contain the entries of a ring.
const SERIES: usize = 8;

/// Returns whether the last write contains fields that the device may interpret.
fn has_fields(writes: &[Vec<u8>]) -> bool {
    let Some((bytes, earlier)) = writes.split_last() else { return false };
    let is_uniform = bytes.len() > 64 && bytes.iter().all(|byte| *byte == bytes[0]);
    let series = earlier.iter().rev().take_while(|write| write.len() == bytes.len()).count();
    LENGTHS.contains(&bytes.len()) && !is_uniform && series < SERIES
}

impl<D, F: Frontend> Session<D, F> {
    /// Repeats the session with each extreme value, with strict mode off and on. Returns the number of repetitions.
    ///
    /// # Panics
    /// Panics if the device panics, takes too long, or does not work afterwards, in any repetition.
    #[track_caller]
    pub fn repeat(&self) -> usize {
        let step = if env::var_os("HCAD_ALL_EXTREMES").is_some() { 1 } else { self.step };
        let mut faults = Vec::new();
        let mut count = 0;
        for is_strict in [false, true] {
            let writes = self.record(is_strict);
            let fields = (0..writes.len()).filter(|write| has_fields(&writes[..=*write]));
            let all = fields.flat_map(|write| {
                replacements(&writes[write]).map(move |(offset, value)| Replacement { write, offset, value })
            });
            // If `step` exceeds 1, strict mode is tested with different values.
            for replacement in all.skip(usize::from(is_strict)).step_by(step) {
                count += 1;
                if let Some(fault) = self.attempt(is_strict, replacement) {
                    let len = writes[replacement.write].len();
                    faults.push(format!("strict {is_strict}, {len} bytes, {replacement:02x?}: {fault}"));
                }
            }
        }
        let number = faults.len();
        faults.truncate(MAX_FAULTS);
        assert_eq!(number, 0, "faults in {count} sessions, beginning with {faults:#?}");
        count
    }

    /// Runs the session without extreme values and returns its writes.
    fn record(&self, is_strict: bool) -> Vec<Vec<u8>> {
        let mut driver = self.start(is_strict, Mode::Record(Vec::new()));
        (self.act)(&mut driver);
        match (self.guest)(&mut driver).tap.take() {
            Some(Tap { mode: Mode::Record(writes), .. }) => writes,
            _ => Vec::new(),
        }
    }

    fn start(&self, is_strict: bool, mode: Mode) -> D {
        let mut driver = (self.open)();
        let guest = (self.guest)(&mut driver);
        guest.hca.set_strict(is_strict);
        guest.tap = Some(Tap::new(mode));
        driver
    }

    /// Runs the session with a replaced value and returns the device's fault, if any.
    fn attempt(&self, is_strict: bool, replacement: Replacement) -> Option<String> {
        let began = cpu_time();
        let mut driver = self.start(is_strict, Mode::Replace(replacement));
        // The driver panics if the device rejects its request, which is not a fault.
        let acted = catch_panic(|| (self.act)(&mut driver)).filter(|panic| !panic.in_driver);
        let checked = catch_panic(|| {
            (self.guest)(&mut driver).tap = None;
            (self.check)(&mut driver);
            (self.guest)(&mut driver).hca.reset();
            drop(driver);
        });
        let spent = cpu_time() - began;
        let slow = (spent > MAX_TIME).then(|| format!("took {spent:?}"));
        acted.or(checked).map(|panic| panic.message).or(slow)
    }
}

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A panic that [`catch_panic`] has caught.
#[derive(Debug)]
struct Caught {
    /// Whether the driver or the test panicked, rather than the device.
    in_driver: bool,
    message: String,
}

thread_local! {
    static IS_CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<Caught>> = const { RefCell::new(None) };
}

/// Runs `work` and returns its panic, if any, without printing it.
fn catch_panic(work: impl FnOnce()) -> Option<Caught> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(
            move |info| if IS_CATCHING.get() { save_panic(info) } else { previous(info) },
        ));
    });
    IS_CATCHING.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    IS_CATCHING.set(false);
    result.err().and_then(|_| CAUGHT.take())
}

fn save_panic(info: &PanicHookInfo<'_>) {
    let file = info.location().map_or("", |location| location.file());
    let in_driver = file.contains("/drivers/") || file.contains("/tests") || file.ends_with("testing.rs");
    let in_driver = in_driver || file.contains("/testing/");
    let caught = Caught { in_driver, message: info.to_string() };
    CAUGHT.set(Some(caught));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_and_word_has_extreme_values() {
        let found: Vec<_> = replacements(&[0, 0xff, 1, 2]).collect();
        let bytes =
            |offset, values: &[u8]| values.iter().map(|value| (offset, vec![*value])).collect::<Vec<_>>();
        let expected = [
            bytes(0, &[0xff, 0x80, 0x7f]),
            bytes(1, &[0, 0x80, 0x7f]),
            bytes(2, &BYTES),
            bytes(3, &BYTES),
            WORDS.iter().map(|word| (0, word.to_vec())).collect(),
        ];
        assert_eq!(
            found.into_iter().map(|(at, value)| (at, value.to_vec())).collect::<Vec<_>>(),
            expected.concat()
        );
    }
}
