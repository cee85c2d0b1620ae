//! Making a good wire bad: frames are dropped, duplicated, reordered, delayed, corrupted and ECN-marked by rules.
//!
//! It stands between an HCA and its fabric, whatever the fabric is, and knows no clock and no socket: frames and the
//! time come in, frames come out, at once or when [`Impairments::next_deadline`] has come. Chance is drawn from the
//! seed of the rule, so that the same frames meet the same fate again.

mod alter;
mod glance;
mod held;
mod rule;
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

use self::glance::Glance;
pub use self::held::Frame;
use self::held::Held;
use self::rule::When;
pub use self::rule::{Action, Direction, Probability, Rule, RuleEntry, RuleError};
use super::Origin;
use crate::telemetry::log::Site;

/// Bound: rules of one device. Each is looked at for every frame.
pub const MAX_RULES: usize = 64;

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule applied: it goes on as it is.
    Untouched,
    /// At least one rule applied.
    Touched {
        /// What was done, for people.
        note: String,
        /// What goes on at once in the frame's place, in this order.
        frames: SmallVec<[Vec<u8>; 2]>,
    },
}

/// A device has [`MAX_RULES`] rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many impairments (maximum {MAX_RULES}); remove one first")]
pub struct TooManyRules;

/// A rule in force and what it did, as `hcactl` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImpairmentRow {
    /// Its number, from 1 on in the order in which rules were set.
    pub id: u32,
    /// What was set.
    pub rule: RuleEntry,
    /// Frames its selectors met.
    pub matched: u64,
    /// Frames it was applied to.
    pub hits: u64,
}

/// The rules of one device and the frames they hold back.
#[derive(Debug, Default)]
pub struct Impairments {
    rules: Vec<ActiveRule>,
    /// Rules that were ever set since there were none.
    numbered: u32,
    tx: Held,
    rx: Held,
}

#[derive(Debug)]
struct ActiveRule {
    id: u32,
    rule: Rule,
    matched: u64,
    hits: u64,
    rng: ChaCha8Rng,
    /// Each rule has an allowance of log lines, so that none hides another.
    site: Site,
}

/// What the rules that hit agreed on.
#[derive(Default)]
struct Fate {
    note: String,
    dropped: bool,
    delay: Duration,
    /// Frames that overtake, and how long to wait for them.
    overtakers: Option<(u32, Duration)>,
    copies: SmallVec<[Duration; 2]>,
}

impl Impairments {
    /// Whether nothing is or will be done until a rule is added.
    pub fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.tx.is_empty() && self.rx.is_empty()
    }

    /// Puts a rule into force, behind those there are. Gives its number.
    ///
    /// # Errors
    /// [`TooManyRules`].
    pub fn add(&mut self, rule: Rule) -> Result<u32, TooManyRules> {
        if self.rules.len() >= MAX_RULES {
            return Err(TooManyRules);
        }
        self.numbered = self.numbered.wrapping_add(1);
        let id = self.numbered;
        let mut rng = ChaCha8Rng::seed_from_u64(rule.seed());
        // Rules of one seed must not all hit the same frames.
        rng.set_stream(rule.stream());
        self.rules.push(ActiveRule { id, rule, matched: 0, hits: 0, rng, site: Site::new() });
        Ok(id)
    }

    /// Takes a rule out of force, or all. Frames they hold back go on when they were going to. False if there is no
    /// such rule.
    pub fn clear(&mut self, id: Option<u32>) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| id.is_some_and(|id| id != rule.id));
        if self.rules.is_empty() {
            self.numbered = 0;
        }
        id.is_none() || self.rules.len() < before
    }

    /// The rules, in the order in which they were set.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|active| &active.rule)
    }

    /// The rules and what they did.
    pub fn rows(&self) -> Vec<ImpairmentRow> {
        let row = |rule: &ActiveRule| ImpairmentRow {
            id: rule.id,
            rule: rule.rule.entry().clone(),
            matched: rule.matched,
            hits: rule.hits,
        };
        self.rules.iter().map(row).collect()
    }

    /// Decides about a frame; `origin` is what [`Frame::origin`] says when it is held back. Call [`Impairments::release`] after
    /// it: it may have overtaken others.
    pub fn judge(&mut self, now: Instant, direction: Direction, frame: &[u8], origin: Origin) -> Verdict {
        let glance = Glance::of(frame);
        let mut fate = Fate::default();
        let mut altered = None;
        for rule in self.rules.iter_mut().filter(|rule| rule.rule.direction() == direction) {
            rule.apply(&glance, frame, &mut altered, &mut fate);
        }
        let held = match direction {
            Direction::Tx => &mut self.tx,
            Direction::Rx => &mut self.rx,
        };
        if fate.note.is_empty() {
            held.overtake();
            return Verdict::Untouched;
        }

        let mut frames = SmallVec::new();
        if !fate.dropped {
            let frame = Frame { bytes: altered.unwrap_or_else(|| frame.to_vec()), origin };
            let mut kept = true;
            for after in &fate.copies {
                kept &= held.delay(now, fate.delay + *after, frame.clone());
            }
            match fate.overtakers {
                Some((by, within)) => kept &= held.hold(now + fate.delay + within, by, frame),
                None if fate.delay.is_zero() => frames.push(frame.bytes),
                None => kept &= held.delay(now, fate.delay, frame),
            }
            if !frames.is_empty() {
                held.overtake();
            }
            if !kept {
                fate.note += "; lost: too many frames are held";
            }
        }
        Verdict::Touched { note: fate.note, frames }
    }

    /// The next frame that was held back and goes on now.
    pub fn release(&mut self, now: Instant, direction: Direction) -> Option<Frame> {
        match direction {
            Direction::Tx => self.tx.release(now),
            Direction::Rx => self.rx.release(now),
        }
    }

    /// When [`Impairments::release`] is wanted next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.tx.next_deadline().into_iter().chain(self.rx.next_deadline()).min()
    }
}

impl ActiveRule {
    /// Counts the frame, and if the rule hits it, adds to its fate.
    fn apply(&mut self, glance: &Glance, frame: &[u8], altered: &mut Option<Vec<u8>>, fate: &mut Fate) {
        if !self.rule.selects(glance) {
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
        let what = self.act(glance, frame, altered, fate);
        let separator = if fate.note.is_empty() { "" } else { "; " };
        let _ = write!(fate.note, "{separator}impairment {}: {what}", self.id);

        if let Some(suppressed) = self.site.admit() {
            let (rule, direction, hits) = (self.id, self.rule.direction(), self.hits);
            tracing::info!(rule, ?direction, %glance, what, hits, suppressed, "impairment");
        }
    }

    /// Says what it did.
    fn act(
        &mut self,
        glance: &Glance,
        frame: &[u8],
        altered: &mut Option<Vec<u8>>,
        fate: &mut Fate,
    ) -> String {
        let micros = |us: u64| Duration::from_micros(us);
        match self.rule.action() {
            Action::Drop => {
                fate.dropped = true;
                "dropped".to_owned()
            }
            Action::Duplicate { after_us } => {
                fate.copies.push(micros(after_us));
                format!("duplicated after {after_us} us")
            }
            Action::Delay { us, jitter_us } => {
                let us = us + if jitter_us == 0 { 0 } else { self.rng.random_range(0..=jitter_us) };
                fate.delay += micros(us);
                format!("delayed by {us} us")
            }
            Action::Reorder { by, within_us } => {
                fate.overtakers = Some((by, micros(within_us)));
                format!("held until {by} frames have overtaken it")
            }
            Action::Corrupt => {
                let frame = altered.get_or_insert_with(|| frame.to_vec());
                match alter::corrupt(frame, glance, &mut self.rng) {
                    Some(byte) => format!("one bit of byte {byte} inverted"),
                    None => "not corrupted: frame is too short".to_owned(),
                }
            }
            Action::MarkCe => {
                alter::mark_ce(altered.get_or_insert_with(|| frame.to_vec()), glance);
                "marked Congestion Experienced (CE)".to_owned()
            }
        }
    }
}
