//! Results: a table for people, one JSON object a line for machines.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// One figure and what it is measured against.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// Operation, size and quantity.
    pub(crate) name: String,
    /// Median of the runs.
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// What the reference was measured on, in the same run.
    pub(crate) against: &'static str,
    pub(crate) reference: f64,
    /// `value` divided by `reference`.
    pub(crate) ratio: f64,
    /// What each run gave, in order.
    pub(crate) runs: Vec<f64>,
}

/// What a figure is measured against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
}

impl Figure {
    /// A figure from its runs. There is at least one.
    pub(crate) fn new(
        name: impl Into<String>,
        unit: &'static str,
        runs: &[f64],
        reference: Reference,
    ) -> Self {
        let value = median(runs);
        Self {
            name: name.into(),
            value,
            unit,
            against: reference.name,
            reference: reference.value,
            ratio: value / reference.value,
            runs: runs.to_vec(),
        }
    }

    /// A line of the table.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:<30} {:>12.1} {:<8} {:>6.3} of {:<24} ({:.1} .. {:.1}, {} runs)",
            self.name,
            self.value,
            self.unit,
            self.ratio,
            self.against,
            self.runs.iter().copied().fold(f64::INFINITY, f64::min),
            self.runs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            self.runs.len()
        )
    }
}

/// The middle value.
pub(crate) fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Writes all figures to `path`.
pub(crate) fn write(path: &Path, figures: &[Figure]) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(context)?;
    }
    let mut file = BufWriter::new(File::create(path).with_context(context)?);
    for figure in figures {
        serde_json::to_writer(&mut file, figure).with_context(context)?;
        file.write_all(b"\n").with_context(context)?;
    }
    file.flush().with_context(context)
}
