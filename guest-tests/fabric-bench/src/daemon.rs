//! Runs hcad and measures the CPU time of its threads.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::thread::CpuSet;
use serde_json::Value;

use crate::processors;

/// A running hcad process, killed on drop.
pub(crate) struct Daemon {
    child: Child,
    _stderr: BufReader<ChildStderr>,
}

impl Daemon {
    /// Starts a daemon with the given devices. Its files are created in `folder`, with names that start with `name`. If
    /// `metrics` is given, the daemon serves metrics on that port of 127.0.0.1. If `processor` is given, the daemon is
    /// bound to that set of CPUs.
    pub(crate) fn start(
        folder: &Path,
        name: &str,
        devices: &[Value],
        metrics: Option<u16>,
        processor: Option<&CpuSet>,
    ) -> Result<Self> {
        let config = folder.join(format!("{name}.json"));
        let mut text = serde_json::json!({
            "control_socket": folder.join(format!("{name}.control")),
            "devices": devices,
        });
        if let Some(port) = metrics {
            text["metrics"] = serde_json::json!(format!("127.0.0.1:{port}"));
        }
        std::fs::write(&config, text.to_string())?;
        let program = std::env::current_exe()?.with_file_name("hcad");
        let mut command = Command::new(&program);
        command.arg("--config").arg(&config).env("RUST_LOG", "info").stderr(Stdio::piped());
        let spawned = match processor {
            Some(processor) => processors::bound(processor, || command.spawn())?,
            None => command.spawn(),
        };
        let mut child = spawned.with_context(|| {
            format!("cannot start {}; build it with 'cargo build --release'", program.display())
        })?;
        let stderr = child.stderr.take().context("standard error is a pipe")?;
        let mut stderr = BufReader::new(stderr);
        let mut said = String::new();
        while !said.contains("ready") {
            ensure!(stderr.read_line(&mut said)? > 0, "hcad exited before it was ready: {said}");
        }
        Ok(Self { child, _stderr: stderr })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the total CPU time of the daemon's threads named `thread` or, if `thread` is `None`, of all its threads.
    pub(crate) fn time(&self, thread: Option<&str>) -> Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let task = task?.path();
            let name = std::fs::read_to_string(task.join("comm"))?;
            if thread.is_none_or(|wanted| wanted == name.trim_end()) {
                let text = std::fs::read_to_string(task.join("schedstat"))?;
                nanos +=
                    parse_schedstat(&text).with_context(|| format!("cannot parse schedstat: {text:?}"))?;
            }
        }
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The daemon may already have exited, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the CPU time in nanoseconds, which is the first number in a schedstat file.
fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_starts_with_cpu_time() {
        assert_eq!(parse_schedstat("5123456789 61072 17\n"), Some(5_123_456_789));
        assert_eq!(parse_schedstat(""), None);
    }
}
