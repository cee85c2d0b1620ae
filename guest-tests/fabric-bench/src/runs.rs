//! Repeats measurements and converts units.

use std::time::Duration;

use anyhow::Result;

/// Repeats a measurement and returns the result of each run.
pub(crate) fn runs(count: u16, mut measure: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    (0..count).map(|_| measure()).collect()
}

/// Repeats a measurement that has several results. For each result, returns its values, one per run.
pub(crate) fn repeated<const N: usize>(
    count: u16,
    mut measure: impl FnMut() -> Result<[f64; N]>,
) -> Result<[Vec<f64>; N]> {
    let mut figures = [const { Vec::new() }; N];
    for _ in 0..count {
        for (runs, value) in figures.iter_mut().zip(measure()?) {
            runs.push(value);
        }
    }
    Ok(figures)
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns the time per item in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "a report needs less precision than f64 has")]
pub(crate) fn nanos_each(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

/// Returns the number of items per second.
#[expect(clippy::cast_precision_loss, reason = "a report needs less precision than f64 has")]
pub(crate) fn rate(count: u64, nanos: u64) -> f64 {
    count as f64 / nanos as f64 * 1e9
}

/// Formats a length as it appears in figure names.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{}k", bytes >> 10),
        _ => format!("{bytes}b"),
    }
}

/// Parses a length taken from a figure name.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    match unit {
        "b" => Some(number),
        "k" => Some(number << 10),
        "m" => Some(number << 20),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_sizes_round_trip() {
        for bytes in [1, 64, 1023, 1 << 10, 4 << 10, 1 << 20, 16 << 20] {
            assert_eq!(parse_size(&size(bytes)), Some(bytes));
        }
        assert_eq!([size(64), size(65536), size(8 << 20)], ["64b", "64k", "8m"]);
        assert_eq!(["", "k", "12", "spread"].map(parse_size), [None; 4]);
    }

    #[test]
    fn repeated_runs_are_grouped_by_result() {
        let mut next = 0.0;
        let measured = repeated(3, || {
            next += 1.0;
            Ok([next, -next])
        });
        assert_eq!(measured.unwrap(), [[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]]);
        assert!((nanos_each(Duration::from_micros(3), 2) - 1500.0).abs() < 1e-6);
        assert!((rate(5, 1_000_000_000) - 5.0).abs() < 1e-9);
    }
}
