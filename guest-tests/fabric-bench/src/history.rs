//! The history of ratios between figures and their references: a file in the repository with one entry per line, oldest
//! first. A run is compared with the last entry from a similar machine, and regressions are printed, but never make a
//! test fail.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::report::{Figure, print};

/// A ratio is reported if it has become worse by more than this fraction.
const REGRESSION_THRESHOLD: f64 = 0.1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// The measured commit; a trailing `+` marks uncommitted changes.
    commit: String,
    /// Date of the run in UTC.
    date: String,
    machine: Machine,
    /// Ratios, keyed by the names of the figure and its reference.
    ratios: BTreeMap<String, Ratio>,
}

/// Properties of the machine that affect the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Ratio {
    ratio: f64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cost: bool,
}

impl Machine {
    fn here() -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
        Ok(Self {
            cpu: cpu_model(&cpuinfo).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        })
    }

    /// Returns whether figures from the two machines are comparable. The kernel versions may differ.
    fn is_like(&self, other: &Self) -> bool {
        (&self.cpu, self.cores) == (&other.cpu, other.cores)
    }
}

/// Prints regressions relative to the last entry from a similar machine. If `keep` is set, appends a new entry to the
/// history.
pub(crate) fn compare(path: &Path, figures: &[Figure], keep: bool) -> Result<()> {
    let context = || format!("cannot read or write the history {}", path.display());
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        other => other.with_context(context)?,
    };
    let machine = Machine::here()?;
    let now = ratios(figures);
    if let Some(last) = last_of(&parse(&text).with_context(context)?, &machine) {
        print(&format!(
            "\ncompared with commit {} of {}, the last entry from a similar machine:",
            last.commit, last.date
        ));
        let regressions = regressions(&last.ratios, &now);
        for line in &regressions {
            print(line);
        }
        if regressions.is_empty() {
            print(&format!("no ratio is more than {:.0} % worse", REGRESSION_THRESHOLD * 100.0));
        }
    }
    if keep {
        let entry =
            Entry { commit: commit()?, date: output_of("date", &["-u", "+%F"])?, machine, ratios: now };
        let mut file = OpenOptions::new().append(true).create(true).open(path).with_context(context)?;
        writeln!(file, "{}", serde_json::to_string(&entry)?).with_context(context)?;
    }
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Entry>> {
    let lines = text.lines().filter(|line| !line.is_empty()).enumerate();
    lines.map(|(i, line)| serde_json::from_str(line).with_context(|| format!("entry {}", i + 1))).collect()
}

fn last_of<'a>(entries: &'a [Entry], machine: &Machine) -> Option<&'a Entry> {
    entries.iter().rev().find(|entry| entry.machine.is_like(machine))
}

/// Returns the ratios of the figures that have a reference.
fn ratios(figures: &[Figure]) -> BTreeMap<String, Ratio> {
    let others = figures.iter().filter(|figure| figure.name != figure.against && figure.ratio.is_finite());
    others
        .map(|figure| {
            // Measurements are not precise beyond four decimal places.
            let ratio = (figure.ratio * 1e4).round() / 1e4;
            (format!("{}/{}", figure.name, figure.against), Ratio { ratio, cost: figure.is_cost() })
        })
        .collect()
}

/// Returns one line for each ratio that has become worse by more than [`REGRESSION_THRESHOLD`], worst first.
fn regressions(before: &BTreeMap<String, Ratio>, now: &BTreeMap<String, Ratio>) -> Vec<String> {
    let mut worse: Vec<_> = now
        .iter()
        .filter_map(|(name, now)| {
            let before = before.get(name)?;
            let left = if now.cost { before.ratio / now.ratio } else { now.ratio / before.ratio };
            (left < 1.0 - REGRESSION_THRESHOLD).then_some((left, name, before.ratio, now.ratio))
        })
        .collect();
    worse.sort_by(|a, b| a.0.total_cmp(&b.0));
    let line = |(left, name, before, now)| format!("{name:<72} {before:>8.3} -> {now:>8.3} ({left:.2} x)");
    worse.into_iter().map(line).collect()
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

fn commit() -> Result<String> {
    let commit = output_of("git", &["rev-parse", "--short=12", "HEAD"])?;
    let changed = output_of("git", &["status", "--porcelain", "--untracked-files=no"])?;
    Ok(if changed.is_empty() { commit } else { commit + "+" })
}

fn output_of(program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Reference;

    fn entry(commit: &str, cpu: &str, kernel: &str) -> Entry {
        let machine = Machine { cpu: cpu.into(), cores: 2, kernel: kernel.into() };
        Entry { commit: commit.into(), date: "2026-11-24".into(), machine, ratios: BTreeMap::new() }
    }

    fn of(name: &str, ratio: f64, cost: bool) -> (String, Ratio) {
        (name.into(), Ratio { ratio, cost })
    }

    #[test]
    fn comparison_uses_last_entry_from_similar_machine() {
        let entries = [entry("a", "x", "6.1"), entry("b", "x", "6.12"), entry("c", "y", "6.12")];
        let here = entry("", "x", "7.0").machine;
        assert_eq!(last_of(&entries, &here).map(|entry| entry.commit.as_str()), Some("b"));
        assert_eq!(last_of(&entries, &entry("", "z", "6.12").machine), None);
        let more = Machine { cores: 4, ..here };
        assert_eq!(last_of(&entries, &more), None);
    }

    #[test]
    fn history_entries_round_trip() {
        let mut kept = entry("a", "x", "6.1");
        kept.ratios =
            BTreeMap::from([of("rc_write_1m_bw/udp_4k_bw", 0.6, false), of("latency/udp", 0.8, true)]);
        let line = serde_json::to_string(&kept).unwrap();
        assert_eq!(parse(&format!("{line}\n{line}\n")).unwrap(), [kept.clone(), kept]);
        let error = parse(&format!("{line}\nnonsense\n")).unwrap_err();
        assert!(format!("{error:#}").starts_with("entry 2"), "{error:#}");
    }

    #[test]
    fn large_regressions_are_listed_worst_first() {
        let before = BTreeMap::from([
            of("a", 1.0, false),
            of("b", 1.0, true),
            of("c", 1.0, false),
            of("d", 2.0, true),
        ]);
        let now = BTreeMap::from([
            of("a", 0.91, false),
            of("b", 1.2, true),
            of("c", 0.5, false),
            of("d", 1.0, true),
            of("e", 0.1, false),
        ]);
        let lines = regressions(&before, &now);
        assert_eq!(lines.iter().map(|line| &line[..1]).collect::<Vec<_>>(), ["c", "b"]);
    }

    #[test]
    fn reference_figure_has_no_ratio() {
        let reference = Reference { name: "udp_4k_bw".into(), value: 10.0 };
        let figures = [
            Figure::new("udp_4k_bw", "MB/s", &[10.0], &reference),
            Figure::new("rc_write_4k_bw", "MB/s", &[3.333_333], &reference),
            Figure::new("rc_write_64b_latency", "us", &[5.0], &reference),
        ];
        let expected =
            [of("rc_write_4k_bw/udp_4k_bw", 0.3333, false), of("rc_write_64b_latency/udp_4k_bw", 0.5, true)];
        assert_eq!(ratios(&figures), BTreeMap::from(expected));
    }

    #[test]
    fn cpu_model_is_read_from_cpuinfo() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(cpu_model(text), Some("AMD EPYC"));
        assert_eq!(cpu_model("processor: 0\n"), None);
    }
}
