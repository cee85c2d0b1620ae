//! Records the devices of test drivers and replays the recordings.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::cell::RefCell;
use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use serde_json::Map;

use crate::frontend::Frontend;
use crate::hca::Hca;
use crate::record::{Counts, Ending, Finish, Header, Reader, Recorder, ReplaySource};
use crate::replay::{Next, Outcome, Report, play};
use crate::telemetry::testing::Written;

thread_local! {
    /// Recordings of the guests that this thread has created in the current call to [`recorded`].
    static RECORDS: RefCell<Option<Vec<Written>>> = const { RefCell::new(None) };
}

/// Time to wait for a recording to be written. Tests read complete recordings, even if a thread is not scheduled for a
/// long time.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns a recorder for a new guest. Returns `None` outside [`recorded`].
pub fn record() -> Option<Recorder> {
    RECORDS.with_borrow_mut(|records| {
        let file = Written::default();
        records.as_mut()?.push(file.clone());
        let header = Header::new("hca1", Map::new());
        let mut recorder = Recorder::to(Box::new(file), Path::new("record"), &header, u64::MAX).unwrap();
        recorder.close_timeout = CLOSE_TIMEOUT;
        Some(recorder)
    })
}

/// Runs drivers and returns the recordings of their devices, in order of creation.
pub fn recorded(drivers: impl FnOnce()) -> Vec<Vec<u8>> {
    RECORDS.set(Some(Vec::new()));
    drivers();
    RECORDS.take().unwrap().iter().map(Written::bytes).collect()
}

pub fn replayed<F: Frontend>(hca: &mut Hca<F>, record: &[u8]) -> Report {
    let reader = Reader::new(Box::new(Cursor::new(record.to_vec()))).unwrap();
    play(hca, ReplaySource::new(reader), |_| Next::Go)
}

/// Asserts that the replay shows no differences and that the recording was closed normally.
#[track_caller]
pub fn assert_same<F: Frontend>(hca: &mut Hca<F>, record: &[u8]) -> Counts {
    let report = replayed(hca, record);
    assert!(matches!(report.outcome, Outcome::Same(Finish::Ended(Ending::Closed))), "{report}");
    report.counts
}
