//! Records the durations of scenarios and cases in the file named by the environment variable `HCAD_TIMES`, as one JSON
//! object per line. `ci/test` sets the variable and adds the durations of its own steps.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

const FILE: &str = "HCAD_TIMES";

pub(crate) fn case(scenario: &str, case: &str, elapsed: Duration) {
    append(&json!({ "scenario": scenario, "case": case, "seconds": rounded(elapsed) }));
}

/// Records the duration of a whole scenario, including the time to boot its guests.
pub(crate) fn scenario(scenario: &str, elapsed: Duration) {
    append(&json!({ "scenario": scenario, "seconds": rounded(elapsed) }));
}

fn rounded(elapsed: Duration) -> f64 {
    (elapsed.as_secs_f64() * 10.0).round() / 10.0
}

/// Appends a line to the file. Errors do not affect the tests and are only logged.
fn append(times: &Value) {
    let Some(path) = std::env::var_os(FILE).filter(|path| !path.is_empty()) else { return };
    let appended = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        // Write each line with a single call: parallel scenarios share the file.
        .and_then(|mut file| file.write_all(format!("{times}\n").as_bytes()));
    if let Err(error) = appended {
        tracing::warn!("cannot write test durations to {}: {error}", path.display());
    }
}
