//! Impairments: rules that drop, duplicate, reorder, delay, corrupt and ECN-mark frames.
//!
//! They are applied between an HCA and its fabric. This module does no I/O and does not read the clock. The caller
//! passes in frames and the time, and gets frames back either immediately or at [`Impairments::next_deadline`]. All
//! randomness comes from the rules' seeds, so the same input always produces the same output.

mod alter;
mod held;
mod rule;
mod summary;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::time::Duration;

use engine::Instant;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

pub use self::held::Frame;
use self::held::HoldQueue;
use self::rule::When;
pub use self::rule::{Action, Direction, Probability, Rule, RuleEntry, RuleError};
use self::summary::FrameSummary;
use super::Origin;
use crate::log_line;
use crate::telemetry::log::Site;

/// Maximum number of rules per device. Every frame is checked against every rule.
pub const MAX_RULES: usize = 64;

/// Result of applying the rules to one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule applied. Pass the frame unchanged.
    Pass,
    /// At least one rule applied.
    Modified {
        /// Description of the effect, for captures and logs.
        note: String,
        /// Frames to pass immediately in place of the original, in order.
        frames: SmallVec<[Vec<u8>; 2]>,
    },
}

/// The device already has [`MAX_RULES`] rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many impairments (maximum {MAX_RULES}); remove one first")]
pub struct TooManyRulesError;

/// An active rule and its counters, as listed by `hcactl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImpairmentRow {
    /// Rule ID. IDs count from 1, in the order the rules were added.
    pub id: u32,
    /// The rule as it was added.
    pub rule: RuleEntry,
    /// Number of frames that matched the rule's selectors.
    pub matched: u64,
    /// Number of frames that the rule was applied to.
    pub hits: u64,
}

/// The rules of one device and the frames that they hold back.
#[derive(Debug, Default)]
pub struct Impairments {
    rules: Vec<ActiveRule>,
    /// Number of rules added since the list was last empty.
    numbered: u32,
    tx: HoldQueue,
    rx: HoldQueue,
}

#[derive(Debug)]
struct ActiveRule {
    id: u32,
    rule: Rule,
    matched: u64,
    hits: u64,
    rng: ChaCha8Rng,
    /// Log limit of this rule. Each rule has its own so that one cannot suppress another's log lines.
    site: Site,
}

/// Combined effect of all rules that apply to a frame.
#[derive(Default)]
struct Effects {
    note: String,
    dropped: bool,
    delay: Duration,
    /// Number of frames that must overtake this one, and the maximum time to wait for them.
    overtakers: Option<(u32, Duration)>,
    copies: SmallVec<[Duration; 2]>,
}

impl Impairments {
    /// Returns whether there are no rules and no held frames.
    pub fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.tx.is_empty() && self.rx.is_empty()
    }

    /// Adds a rule after the existing ones and returns its ID.
    ///
    /// # Errors
    /// Fails with [`TooManyRulesError`] if there are already [`MAX_RULES`] rules.
    pub fn add(&mut self, rule: Rule) -> Result<u32, TooManyRulesError> {
        if self.rules.len() >= MAX_RULES {
            return Err(TooManyRulesError);
        }
        self.numbered = self.numbered.wrapping_add(1);
        let id = self.numbered;
        let mut rng = ChaCha8Rng::seed_from_u64(rule.seed());
        // Each action and direction has its own random stream so that rules with the same seed do not all
        // select the same frames.
        rng.set_stream(rule.stream());
        self.rules.push(ActiveRule { id, rule, matched: 0, hits: 0, rng, site: Site::new() });
        Ok(id)
    }

    /// Removes one rule or all rules. Held frames are still released when due. Returns false if the rule does
    /// not exist.
    pub fn clear(&mut self, id: Option<u32>) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| id.is_some_and(|id| id != rule.id));
        if self.rules.is_empty() {
            self.numbered = 0;
        }
        id.is_none() || self.rules.len() < before
    }

    /// Returns the rules in the order they were added.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|active| &active.rule)
    }

    /// Returns the rules with their counters.
    pub fn rows(&self) -> Vec<ImpairmentRow> {
        let row = |rule: &ActiveRule| ImpairmentRow {
            id: rule.id,
            rule: rule.rule.entry().clone(),
            matched: rule.matched,
            hits: rule.hits,
        };
        self.rules.iter().map(row).collect()
    }

    /// Applies the rules to a frame. `origin` becomes [`Frame::origin`] if the frame is held. Call
    /// [`Impairments::release`] afterwards, since held frames that this one has overtaken may now be due.
    pub fn apply_rules(
        &mut self,
        now: Instant,
        direction: Direction,
        frame: &[u8],
        origin: Origin,
    ) -> Verdict {
        let summary = FrameSummary::of(frame);
        let mut effects = Effects::default();
        let mut altered = None;
        for rule in self.rules.iter_mut().filter(|rule| rule.rule.direction() == direction) {
            rule.apply(&summary, frame, &mut altered, &mut effects);
        }
        let held = match direction {
            Direction::Tx => &mut self.tx,
            Direction::Rx => &mut self.rx,
        };
        if effects.note.is_empty() {
            held.overtake();
            return Verdict::Pass;
        }

        let mut frames = SmallVec::new();
        if !effects.dropped {
            let frame = Frame { bytes: altered.unwrap_or_else(|| frame.to_vec()), origin };
            let mut kept = true;
            for after in &effects.copies {
                kept &= held.delay(now, effects.delay + *after, frame.clone());
            }
            match effects.overtakers {
                Some((by, within)) => kept &= held.hold(now + effects.delay + within, by, frame),
                None if effects.delay.is_zero() => frames.push(frame.bytes),
                None => kept &= held.delay(now, effects.delay, frame),
            }
            if !frames.is_empty() {
                held.overtake();
            }
            if !kept {
                effects.note += "; lost: too many frames are held";
            }
        }
        Verdict::Modified { note: effects.note, frames }
    }

    /// Returns the next held frame that is due.
    pub fn release(&mut self, now: Instant, direction: Direction) -> Option<Frame> {
        match direction {
            Direction::Tx => self.tx.release(now),
            Direction::Rx => self.rx.release(now),
        }
    }

    /// Returns the time at which [`Impairments::release`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.tx.next_deadline().into_iter().chain(self.rx.next_deadline()).min()
    }
}

impl ActiveRule {
    fn apply(
        &mut self,
        summary: &FrameSummary,
        frame: &[u8],
        altered: &mut Option<Vec<u8>>,
        effects: &mut Effects,
    ) {
        if !self.rule.selects(summary) {
            return;
        }
        self.matched += 1;
        let hit = match self.rule.when() {
            When::Always => true,
            When::Nth { first, count } => self.matched >= first && self.matched - first < count,
            When::Chance(probability) => self.rng.random_bool(probability.get()),
        };
        if !hit {
            return;
        }
        self.hits += 1;
        let what = self.act(summary, frame, altered, effects);
        let separator = if effects.note.is_empty() { "" } else { "; " };
        let _ = write!(effects.note, "{separator}impairment {}: {what}", self.id);

        if let Some(suppressed) = self.site.admit() {
            let (rule, direction, hits) = (self.id, self.rule.direction(), self.hits);
            log_line!(info, rule, ?direction, %summary, what, hits, suppressed, "impairment");
        }
    }

    fn act(
        &mut self,
        summary: &FrameSummary,
        frame: &[u8],
        altered: &mut Option<Vec<u8>>,
        effects: &mut Effects,
    ) -> String {
        let micros = |us: u64| Duration::from_micros(us);
        match self.rule.action() {
            Action::Drop => {
                effects.dropped = true;
                "dropped".to_owned()
            }
            Action::Duplicate { after_us } => {
                effects.copies.push(micros(after_us));
                format!("duplicated after {after_us} us")
            }
            Action::Delay { us, jitter_us } => {
                let us = us + if jitter_us == 0 { 0 } else { self.rng.random_range(0..=jitter_us) };
                effects.delay += micros(us);
                format!("delayed by {us} us")
            }
            Action::Reorder { by, within_us } => {
                effects.overtakers = Some((by, micros(within_us)));
                format!("held until {by} frames have overtaken it")
            }
            Action::Corrupt => {
                let frame = altered.get_or_insert_with(|| frame.to_vec());
                match alter::corrupt(frame, summary, &mut self.rng) {
                    Some(byte) => format!("one bit of byte {byte} inverted"),
                    None => "not corrupted: frame is too short".to_owned(),
                }
            }
            Action::MarkCe => {
                alter::mark_ce(altered.get_or_insert_with(|| frame.to_vec()), summary);
                "marked Congestion Experienced (CE)".to_owned()
            }
        }
    }
}
