//! A timeline of disturbances for failure analysis, and a count of disturbances of each kind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Timeline {
    begun: Instant,
    file: RefCell<File>,
    counts: RefCell<BTreeMap<String, u32>>,
}

impl Timeline {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { begun: Instant::now(), file: RefCell::new(file), counts: RefCell::default() })
    }

    /// Records that a disturbance has started or that a check has succeeded.
    pub(super) fn note(&self, lane: &str, what: &str) -> Result<()> {
        let seconds = self.begun.elapsed().as_secs_f64();
        Ok(writeln!(self.file.borrow_mut(), "{seconds:8.2} {lane}: {what}")?)
    }

    /// Records that a disturbance is over and had no unexpected effect.
    pub(super) fn count(&self, lane: &str, what: &str) -> Result<()> {
        *self.counts.borrow_mut().entry(format!("{lane}: {what}")).or_default() += 1;
        self.note(lane, &format!("{what} finished"))
    }

    /// Returns the number of disturbances of each kind, as text.
    pub(super) fn summary(&self) -> String {
        let counts = self.counts.borrow();
        let lines: Vec<String> =
            counts.iter().map(|(what, count)| format!("      {count:3} {what}")).collect();
        lines.join("\n")
    }
}
