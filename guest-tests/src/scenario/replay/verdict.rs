//! Runs `hcad replay` on a recording and checks its output.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;
use tokio::time::timeout;

/// Timeout for a replay. A recording of several minutes replays in seconds, but takes longer on a busy host or in a
/// debug build.
const LIMIT: Duration = Duration::from_secs(240);
/// End of the output if there were no differences and hcad closed the recording cleanly.
const NO_DIFFERENCES: &str = "no differences; recording ended: closed by hcad\n";

/// Files that are written while a device is recorded.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) record: PathBuf,
    pub(super) trace: PathBuf,
}

impl Files {
    fn trace_again(&self) -> PathBuf {
        self.trace.with_extension("again.trace")
    }

    /// Replays the recording with the given hcad program. Returns the counts that hcad prints and the recording's size.
    pub(super) async fn replay(&self, hcad: &Path) -> Result<String> {
        let mut command = Command::new(hcad);
        command.arg("replay").arg(&self.record).arg("--trace").arg(self.trace_again()).kill_on_drop(true);
        let output = timeout(LIMIT, command.output())
            .await
            .with_context(|| format!("the replay did not finish within {LIMIT:?}"))??;
        let (text, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success() && text.ends_with(NO_DIFFERENCES), "{text}{error}");
        let mut lines = text.lines().rev();
        let counts = lines.nth(1).context("no counts")?;
        let bytes = self.record.metadata()?.len();
        Ok(format!("{counts}; {bytes} bytes"))
    }

    /// Checks that the replay's trace equals the original except for timestamps and durations. Returns the number of
    /// lines.
    pub(super) fn compare_traces(&self) -> Result<u64> {
        let open = |path: &Path| {
            File::open(path).map(BufReader::new).with_context(|| format!("cannot open {}", path.display()))
        };
        let (first, again) = (open(&self.trace)?.lines(), open(&self.trace_again())?.lines());
        let (mut first, mut again) =
            (first.map(|line| Ok(without_times(&line?))), again.map(|line| Ok(without_times(&line?))));
        let mut lines = 0;
        loop {
            let pair: (Option<Result<String>>, Option<Result<String>>) = (first.next(), again.next());
            match (pair.0.transpose()?, pair.1.transpose()?) {
                (None, None) => break,
                (first, again) if first == again => lines += 1,
                (first, again) => {
                    let show = |line: Option<String>| line.unwrap_or_else(|| "(the end)".into());
                    bail!("line {} was {}, but is {} in the replay", lines + 1, show(first), show(again))
                }
            }
        }
        ensure!(lines > 0, "the traces are empty");
        Ok(lines)
    }
}

/// Strips the timestamp and the command duration from a trace line.
fn without_times(line: &str) -> String {
    let words = line.split(' ').skip(1).filter(|word| !word.starts_with("us="));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_comparison_ignores_times() {
        let live = "1762351200.000241 hca1 command SW2HW_MPT status=OK us=18.2 index=0x5";
        let again = "0.000000 hca1 command SW2HW_MPT status=OK us=0.0 index=0x5";
        assert_eq!(without_times(live), without_times(again));
        assert_ne!(without_times(live), without_times(&again.replace("0x5", "0x6")));
    }
}
