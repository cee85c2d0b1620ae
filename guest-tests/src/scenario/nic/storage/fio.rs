//! Command line and output of fio. fio reads and writes random 4 KiB to 256 KiB blocks and verifies the data it reads.

use std::time::Duration;

use agent::wire::{ExitStatus, ProgramEnd};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Byte counts of an fio run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) read: u64,
    pub(super) written: u64,
}

/// Returns the fio command line for `mib` MiB of a file or device.
pub(super) fn words(path: &str, mib: u32, runtime: Duration) -> Vec<String> {
    let options = [
        "fio --output-format=json --name=verify --rw=randrw --bsrange=4k-256k --iodepth=32".to_owned(),
        "--ioengine=libaio --direct=1 --time_based".to_owned(),
        "--verify=crc32c --verify_backlog=64 --verify_fatal=1".to_owned(),
        format!("--filename={path} --size={mib}M --runtime={}", runtime.as_secs()),
    ];
    options.iter().flat_map(|part| part.split_whitespace()).map(str::to_owned).collect()
}

/// Returns the byte counts. Fails if fio reported an error, or if it did not transfer data in both directions.
pub(super) fn judge(end: &ProgramEnd) -> Result<Moved> {
    let said = || format!("{:?}: {}{}", end.status, end.stdout, end.stderr);
    ensure!(end.status == ExitStatus::Code(0), "{}", said());
    // Other lines may precede the JSON output.
    let start = end.stdout.find('{').with_context(said)?;
    let output: Output = serde_json::from_str(end.stdout.split_at(start).1).with_context(said)?;
    let [job] = output.jobs.as_slice() else { anyhow::bail!("expected one job: {}", said()) };
    let moved = Moved { read: job.read.io_bytes, written: job.write.io_bytes };
    ensure!(job.error == 0 && moved.read > 0 && moved.written > 0, "{}", said());
    Ok(moved)
}

#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    error: i32,
    read: Direction,
    write: Direction,
}

#[derive(Debug, Deserialize)]
struct Direction {
    io_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(status: i32, error: i32, written: u64) -> ProgramEnd {
        let stdout = format!(
            "fio: a note\n{{ \"fio version\": \"fio-3.39\", \"jobs\": [ {{ \"jobname\": \"verify\", \"error\": {error}, \
             \"read\": {{ \"io_bytes\": 4096, \"bw\": 1 }}, \"write\": {{ \"io_bytes\": {written} }} }} ] }}\n"
        );
        ProgramEnd { status: ExitStatus::Code(status), stdout, stderr: String::new() }
    }

    #[test]
    fn fio_success_requires_transferred_data() {
        assert_eq!(judge(&end(0, 0, 8192)).unwrap(), Moved { read: 4096, written: 8192 });
        assert!(judge(&end(1, 0, 8192)).is_err());
        assert!(judge(&end(0, 84, 8192)).is_err());
        assert!(judge(&end(0, 0, 0)).is_err());
        let silent = ProgramEnd { stdout: String::new(), ..end(0, 0, 1) };
        assert!(judge(&silent).is_err());
    }
}
