//! Durations of scenarios and cases, one JSON object per line, in the file that the environment variable `HCAD_TIMES`
//! names. `ci/test` sets it and adds the durations of its steps.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

const FILE: &str = "HCAD_TIMES";

pub(crate) fn case(scenario: &str, case: &str, elapsed: Duration) {
    append(&json!({ "scenario": scenario, "case": case, "seconds": rounded(elapsed) }));
}

/// Records the duration of a whole scenario, with its boots.
pub(crate) fn scenario(scenario: &str, elapsed: Duration) {
    append(&json!({ "scenario": scenario, "seconds": rounded(elapsed) }));
}

fn rounded(elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() * 10.0).round() / 10.0
}

/// Appends a line. A failure is only logged, because it is unrelated to the tests.
fn append(times: &Value) {
    let Some(path) = std::env::var_os(FILE).filter(|path| !path.is_empty()) else { return };
    let appended = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        // A single write per line, because scenarios of one run share the file.
        .and_then(|mut file| file.write_all(format!("{times}\n").as_bytes()));
    if let Err(error) = appended {
        tracing::warn!("cannot write test times to {}: {error}", path.display());
    }
}
