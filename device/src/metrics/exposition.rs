//! Writes typed metric families in the Prometheus text format.
//!
//! The crate `prometheus-client` (0.26) is not used because it writes OpenMetrics, where a counter's TYPE line lacks
//! the `_total` suffix of its samples. A parser for the Prometheus text format would treat those samples as untyped.
//!
//! # Spec
//! Prometheus, "Exposition formats", text format version 0.0.4.

use std::fmt::{self, Write as _};

use engine::Durations;

/// Content type in the HTTP header.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that can only increase or restart at zero. The name of a counter ends in `_total`.
    Counter,
    /// A value that can increase and decrease.
    Gauge,
    /// Counts of observed values in cumulative buckets.
    Histogram,
}

/// Label name and value.
pub type Label<'a> = (&'static str, &'a str);

/// The text of the metric families written so far.
#[derive(Debug, Default)]
pub struct Exposition(String);

/// Writes the samples of one metric. The format requires them to be contiguous.
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Exposition {
    /// Begins a family. `help` must be a single line.
    pub fn family(&mut self, kind: Kind, name: &'static str, help: &'static str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        write(&mut self.0, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { text: &mut self.0, name }
    }

    pub fn finish(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Writes an integer sample.
    pub fn sample(&mut self, labels: &[Label<'_>], value: u64) {
        self.line("", labels, None, format_args!("{value}"));
    }

    /// Writes a sample in seconds.
    pub fn seconds(&mut self, labels: &[Label<'_>], seconds: f64) {
        self.line("", labels, None, format_args!("{seconds}"));
    }

    /// Writes a histogram in seconds.
    pub fn histogram(&mut self, labels: &[Label<'_>], durations: &Durations) {
        for (micros, count) in durations.cumulative() {
            let bound = seconds(micros);
            self.line("_bucket", labels, Some(&bound), format_args!("{count}"));
        }
        self.line("_bucket", labels, Some("+Inf"), format_args!("{}", durations.count));
        let (whole, nanos) = (durations.sum_ns / 1_000_000_000, durations.sum_ns % 1_000_000_000);
        self.line("_sum", labels, None, format_args!("{whole}.{nanos:09}"));
        self.line("_count", labels, None, format_args!("{}", durations.count));
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], bound: Option<&str>, value: fmt::Arguments<'_>) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut before = '{';
        for (label, value) in labels {
            self.text.push(before);
            before = ',';
            self.text.push_str(label);
            self.text.push_str("=\"");
            value.chars().for_each(|char| match char {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                char => self.text.push(char),
            });
            self.text.push('"');
        }
        if before == ',' {
            self.text.push('}');
        }
        write(self.text, format_args!(" {value}\n"));
    }
}

/// Formats microseconds as seconds, without trailing zeros.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn write(to: &mut String, what: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = to.write_fmt(what);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Compares the output with golden text that covers cumulative buckets and escapes in label values.
    #[test]
    fn metric_families_follow_prometheus_text_format() {
        let mut durations = Durations::default();
        for ns in [500, 3_000, 20_000_000_000] {
            durations.record(Duration::from_nanos(ns));
        }
        let mut exposition = Exposition::default();
        exposition.family(Kind::Gauge, "a", "Of b.").sample(&[], 3);
        let mut family = exposition.family(Kind::Counter, "b_total", "Of c.");
        family.sample(&[("device", "1"), ("reason", "a \"b\"\\\n")], u64::MAX);
        exposition.family(Kind::Histogram, "c_seconds", "Of d.").histogram(&[("device", "1")], &durations);
        let text = exposition.finish();
        let (head, tail) = text.split_once("c_seconds_bucket").unwrap();
        assert_eq!(
            head,
            "# HELP a Of b.\n# TYPE a gauge\na 3\n# HELP b_total Of c.\n# TYPE b_total counter\n\
             b_total{device=\"1\",reason=\"a \\\"b\\\"\\\\\\n\"} 18446744073709551615\n\
             # HELP c_seconds Of d.\n# TYPE c_seconds histogram\n"
        );
        let lines: Vec<_> = tail.lines().collect();
        assert_eq!(lines[0], "{device=\"1\",le=\"0.000001\"} 1");
        assert_eq!(lines[2], "c_seconds_bucket{device=\"1\",le=\"0.000004\"} 2");
        assert_eq!(lines[24], "c_seconds_bucket{device=\"1\",le=\"16.777216\"} 2");
        assert_eq!(
            &lines[25..],
            [
                "c_seconds_bucket{device=\"1\",le=\"+Inf\"} 3",
                "c_seconds_sum{device=\"1\"} 20.000003500",
                "c_seconds_count{device=\"1\"} 3",
            ]
        );
    }
}
