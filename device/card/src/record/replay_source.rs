//! Replays a device's recorded inputs and compares its outputs with the recorded ones.

use std::fmt;
use std::time::Duration;

use super::entry::{Content, Ending, Entry, Input, Update};
use super::reader::{ReadError, Reader};
use crate::sanitize;

#[derive(Debug)]
pub struct ReplaySource {
    reader: Reader,
    counts: Counts,
    /// The device's clock in nanoseconds.
    now: u64,
    began: Option<u64>,
    input: Option<Input<'static>>,
    stop: Option<Stop>,
    /// Outputs of the device and changes to the memory mapping, as text, if requested.
    log: Option<Vec<String>>,
}

/// Counters of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    /// Number of guest memory reads by the device.
    pub reads: u64,
    /// Number of guest memory writes by the device.
    pub writes: u64,
    /// Number of interrupts that reached the client.
    pub interrupts: u64,
    /// Number of frames sent by the device.
    pub frames: u64,
    /// Time that has passed on the device's clock.
    pub span: Duration,
}

/// The first difference between a device's outputs and the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Step number, counting from 1.
    pub step: u64,
    /// Device time since the first step.
    pub at: Duration,
    /// Description of the step.
    pub input: String,
    pub recorded: String,
    pub found: String,
}

/// How a recording ends.
#[derive(Debug)]
pub enum Finish {
    /// The recording has an end entry, which gives the reason.
    Ended(Ending),
    /// The recording has no end entry, because it is still being written, the writer was killed, or the file is
    /// truncated.
    Stopped {
        /// Whether the last chunk is incomplete.
        cut_off: bool,
    },
    /// The file is unreadable from this point on.
    Unreadable(ReadError),
}

#[derive(Debug)]
enum Stop {
    Finish(Finish),
    Differs(Difference),
}

impl ReplaySource {
    /// Creates a source positioned before the first step.
    pub fn new(reader: Reader) -> Self {
        Self { reader, counts: Counts::default(), now: 0, began: None, input: None, stop: None, log: None }
    }

    /// Starts logging, as text, the device's outputs and the memory that the client maps and unmaps; see
    /// [`ReplaySource::take_log`].
    pub fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// Returns the text logged since the last call.
    pub fn take_log(&mut self) -> Vec<String> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub fn counts(&self) -> Counts {
        let span = Duration::from_nanos(self.now.saturating_sub(self.began.unwrap_or(self.now)));
        Counts { span, ..self.counts }
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the time of the current step, as a duration since 1970. If the recording lacks the origin of the
    /// device's clock, returns the time since that origin instead.
    pub fn since_1970(&self) -> Duration {
        Duration::from_nanos(self.reader.header().clock_origin_ns) + Duration::from_nanos(self.now)
    }

    /// If the replay has stopped, returns the reason: the end of the recording, or the first difference.
    pub fn take_stop(&mut self) -> Option<Result<Finish, Difference>> {
        Some(match self.stop.take()? {
            Stop::Finish(finish) => Ok(finish),
            Stop::Differs(difference) => Err(difference),
        })
    }

    /// Returns the input of the next step. Returns `None` if the replay has stopped: the recording has ended, or the
    /// outputs of the current step differ from the recorded ones or are incomplete.
    pub fn next_input(&mut self) -> Option<Input<'static>> {
        let input = loop {
            if self.stop.is_some() {
                return None;
            }
            match self.reader.peek() {
                Ok(Some(Entry::Time { passed })) => {
                    self.now = self.now.wrapping_add(passed);
                    self.reader.advance();
                }
                Ok(Some(entry @ (Entry::Map { .. } | Entry::Unmap { .. } | Entry::UnmapAll))) => {
                    if let Some(log) = &mut self.log {
                        log.push(entry.to_string());
                    }
                    self.reader.advance();
                }
                Ok(Some(Entry::Input(input))) => break input.into_owned(),
                Ok(Some(Entry::End(ending))) => self.finish_with(Finish::Ended(ending)),
                Ok(Some(other)) => {
                    let recorded = other.to_string();
                    self.differ(recorded, "nothing more".to_owned());
                }
                Ok(None) => {
                    let cut_off = self.reader.is_cut_off();
                    self.finish_with(Finish::Stopped { cut_off });
                }
                Err(error) => self.finish_with(Finish::Unreadable(error)),
            }
        };
        self.reader.advance();
        self.began.get_or_insert(self.now);
        self.counts.steps += 1;
        self.input = Some(input.clone());
        Some(input)
    }

    /// Replays a read of guest memory. Passes the bytes to `give`. Returns false if the read was denied or does not
    /// match the recording.
    pub(super) fn read(&mut self, iova: u64, len: usize, give: impl FnOnce(&[u8])) -> bool {
        let found = || format!("read {len} bytes of guest memory at {iova:#x}");
        self.counts.reads += 1;
        self.exchange(found, |entry| match entry {
            Entry::Read { iova: at, len: wanted, bytes } if *at == iova && *wanted == len => {
                bytes.map(give);
                Some(bytes.is_some())
            }
            _ => None,
        })
        .unwrap_or(false)
    }

    /// Replays a write to guest memory. Returns false if the write was denied or does not match the recording.
    pub(super) fn write(&mut self, iova: u64, data: Content<'_>) -> bool {
        let found = || format!("write guest memory at {iova:#x}: {data}");
        self.counts.writes += 1;
        self.exchange(found, |entry| match entry {
            Entry::Write { iova: at, data: wanted, done } if *at == iova && *wanted == data => Some(*done),
            _ => None,
        })
        .unwrap_or(false)
    }

    /// Replays a compare-and-swap. Returns the old value, or `None` if the access was denied or its result differs
    /// from the recorded one.
    pub(super) fn update(&mut self, iova: u64, mut update: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let mut now = None;
        let recorded = self.exchange(
            || format!("compare and swap guest memory at {iova:#x}"),
            |entry| match entry {
                Entry::Update { iova: at, outcome } if *at == iova => {
                    let before = match *outcome {
                        Update::Replaced { before, .. } | Update::Kept(before) => before,
                        Update::Refused => return Some(Ok(None)),
                    };
                    now = update(before);
                    let same = match *outcome {
                        Update::Replaced { after, .. } => now == Some(after),
                        _ => now.is_none(),
                    };
                    Some(if same { Ok(Some(before)) } else { Err((before, entry.to_string())) })
                }
                _ => None,
            },
        );
        self.counts.reads += 1;
        self.counts.writes += 1;
        match recorded? {
            Ok(before) => before,
            Err((before, recorded)) => {
                let outcome = now.map_or(Update::Kept(before), |after| Update::Replaced { before, after });
                self.differ(recorded, Entry::Update { iova, outcome }.to_string());
                None
            }
        }
    }

    pub(super) fn output(&mut self, output: &Entry<'_>) {
        match output {
            Entry::Interrupt { .. } => self.counts.interrupts += 1,
            Entry::Frame(_) => self.counts.frames += 1,
            _ => {}
        }
        self.exchange(|| output.to_string(), |entry| (entry == output).then_some(()));
    }

    /// Compares an output with the next entry. Returns `None` if they differ or the recording has ended.
    fn exchange<T>(
        &mut self,
        found: impl Fn() -> String,
        compare: impl FnOnce(&Entry<'_>) -> Option<T>,
    ) -> Option<T> {
        let mut compare = Some(compare);
        loop {
            if self.stop.is_some() {
                return None;
            }
            let recorded = match self.reader.peek() {
                Ok(Some(entry @ (Entry::Map { .. } | Entry::Unmap { .. } | Entry::UnmapAll))) => {
                    if let Some(log) = &mut self.log {
                        log.push(entry.to_string());
                    }
                    self.reader.advance();
                    continue;
                }
                Ok(Some(Entry::End(ending))) => {
                    self.finish_with(Finish::Ended(ending));
                    return None;
                }
                Ok(Some(Entry::Input(_) | Entry::Time { .. })) => "nothing more".to_owned(),
                Ok(Some(entry)) => {
                    if let Some(matched) = compare.take().and_then(|compare| compare(&entry)) {
                        if let Some(log) = &mut self.log {
                            log.push(entry.to_string());
                        }
                        self.reader.advance();
                        return Some(matched);
                    }
                    entry.to_string()
                }
                Ok(None) => {
                    let cut_off = self.reader.is_cut_off();
                    self.finish_with(Finish::Stopped { cut_off });
                    return None;
                }
                Err(error) => {
                    self.finish_with(Finish::Unreadable(error));
                    return None;
                }
            };
            self.differ(recorded, found());
        }
    }

    fn finish_with(&mut self, finish: Finish) {
        self.stop.get_or_insert(Stop::Finish(finish));
    }

    fn differ(&mut self, recorded: String, found: String) {
        let Counts { steps: step, span: at, .. } = self.counts();
        let input = self.input.as_ref().map(ToString::to_string).unwrap_or_default();
        self.stop.get_or_insert(Stop::Differs(Difference { step, at, input, recorded, found }));
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, at, input, recorded, found } = self;
        let [input, recorded, found] = [input, recorded, found].map(|text| sanitize::text(text));
        writeln!(f, "step {step}, after {:.6} s: {input}", at.as_secs_f64())?;
        writeln!(f, "  recorded: {recorded}")?;
        write!(f, "  now:      {found}")
    }
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(ending) => write!(f, "recording ended: {ending}"),
            // A recording has no end entry while it is being written, or if hcad was killed.
            Self::Stopped { cut_off: false } => f.write_str(
                "recording is incomplete: hcad was killed or is still recording, so the last steps may be \
                 missing",
            ),
            Self::Stopped { cut_off: true } => {
                f.write_str("recording is incomplete: the file is truncated, so the last steps are missing")
            }
            Self::Unreadable(error) => write!(f, "recording ended: {}", sanitize::text(&error.to_string())),
        }
    }
}
