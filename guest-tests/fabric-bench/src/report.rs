//! Prints results as a human-readable table and writes them as one JSON object per line.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// A measured figure, compared with a reference measurement (the baseline).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Name, composed of the operation, the size and the measured quantity.
    pub(crate) name: String,
    /// Median of the runs.
    pub(crate) value: f64,
    pub(crate) unit: Cow<'static, str>,
    /// Name of the reference, which was measured during the same invocation of `ci/bench`.
    pub(crate) against: Cow<'static, str>,
    pub(crate) reference: f64,
    /// `value` divided by `reference`.
    pub(crate) ratio: f64,
    /// Results of all runs, in order.
    #[serde(default)]
    pub(crate) runs: Vec<f64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) name: Cow<'static, str>,
    pub(crate) value: f64,
}

impl Reference {
    /// Returns a reference whose value is the median of the runs.
    pub(crate) fn of(name: impl Into<Cow<'static, str>>, runs: &[f64]) -> Self {
        Self { name: name.into(), value: median(runs) }
    }
}

impl Figure {
    /// Creates a figure from at least one run.
    pub(crate) fn new(
        name: impl Into<String>,
        unit: &'static str,
        runs: &[f64],
        reference: &Reference,
    ) -> Self {
        let value = median(runs);
        Self {
            name: name.into(),
            value,
            unit: unit.into(),
            against: reference.name.clone(),
            reference: reference.value,
            ratio: value / reference.value,
            runs: runs.to_vec(),
        }
    }

    pub(crate) fn line(&self) -> String {
        let digits = if self.value < 10.0 { 3 } else { 1 };
        format!(
            "{:<48} {:>12.digits$} {:<5} {:>7.3} of {:<40} ({:.digits$} .. {:.digits$}, {} runs)",
            self.name,
            self.value,
            self.unit,
            self.ratio,
            self.against,
            self.runs.iter().copied().fold(f64::INFINITY, f64::min),
            self.runs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            self.runs.len(),
        )
    }

    /// Returns whether lower values are better, as for times but not for rates.
    pub(crate) fn is_cost(&self) -> bool {
        matches!(&*self.unit, "us" | "ns" | "%")
    }
}

/// All figures of this invocation. Each is printed as soon as it has been measured.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) all: Vec<Figure>,
}

impl Figures {
    pub(crate) fn add(&mut self, figure: Figure) {
        print(&figure.line());
        self.all.push(figure);
    }

    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.all.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

pub(crate) fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::print_stdout, reason = "the table")]
pub(crate) fn print(line: &str) {
    println!("{line}");
}

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
