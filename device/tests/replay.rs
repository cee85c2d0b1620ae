//! Tests recording and replaying from the user's perspective: a daemon writes a recording, and `hcad replay` replays
//! it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::{Daemon, configuration, hcad, until};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::Client;

/// Offset of the command register in configuration space.
const COMMAND: u64 = 4;
/// Value of the command register with the memory space and bus master bits set.
const ENABLE: [u8; 2] = [6, 0];

/// Starts a daemon that records a session. Also returns the path of the recording.
fn recorded() -> (Daemon, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hca.sock");
    let config = configuration(folder.path(), Some(&socket));
    let record = folder.path().join("record");
    let mut command = hcad();
    command.arg("--config").arg(config).arg("--record").arg(&record);
    (Daemon::ready(command, folder, socket), record)
}

/// Connects a client that maps memory, enables the device, reads registers, and disconnects.
fn use_device(daemon: &mut Daemon) {
    let mut client = Client::new(&daemon.socket).unwrap();
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 1 << 20).unwrap();
    client.dma_map(0, 0, 1 << 20, memory.as_raw_fd()).unwrap();
    client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut [0; 4]).unwrap();
    client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, COMMAND, &ENABLE).unwrap();
    for register in 0..64 {
        client.region_read(VFIO_PCI_BAR0_REGION_INDEX, 0x8_0000 + 4 * register, &mut [0; 4]).unwrap();
    }
    client.dma_unmap(0, 1 << 20).unwrap();
    drop(client);
    daemon.wait_for_line("client disconnected");
}

fn replay(record: &Path, arguments: &[&str]) -> Output {
    hcad().arg("replay").arg(record).args(arguments).output().unwrap()
}

/// Checks that a replay succeeds, and returns its standard output.
fn replay_ok(record: &Path, arguments: &[&str]) -> String {
    let output = replay(record, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn pid(daemon: &Daemon) -> Pid {
    Pid::from_raw(daemon.child.id().try_into().unwrap()).unwrap()
}

#[test]
fn replay_command_reproduces_recording() {
    let (mut daemon, record) = recorded();
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600);
    use_device(&mut daemon);
    kill_process(pid(&daemon), Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());

    let text = replay_ok(&record, &[]);
    assert!(text.contains(&format!("hca1 (jingzhao) of hcad {}", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.ends_with("no differences; recording ended: closed by hcad\n"), "{text}");

    let text = replay_ok(&record, &["--until", "10", "--steps"]);
    assert!(text.ends_with("no differences up to this step\n"), "{text}");
    let lines: Vec<_> = text.lines().collect();
    let numbers: Vec<_> =
        lines.iter().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).collect();
    assert_eq!(
        numbers,
        [&(1..=10).collect::<Vec<_>>()[..], &[10]].concat(),
        "ten steps, followed by the step count"
    );
    assert!(lines[lines.len() - 3].starts_with("    "), "the last step is shown with its effects:\n{text}");

    let trace = record.with_extension("trace");
    let text = replay_ok(&record, &["--steps", "--trace", trace.to_str().unwrap()]);
    for shown in [
        "map 0x100000 bytes at 0x0, read-write",
        "client reads 4 bytes at bar0+0x80000",
        "complete the read with ",
    ] {
        assert!(text.contains(shown), "{shown} is missing from\n{text}");
    }
    let trace = fs::read_to_string(trace).unwrap();
    assert_eq!(trace.lines().filter(|line| line.contains(" hca1 read ")).count(), 64, "{trace}");
}

/// A recording contains the times of inputs but not of their effects, so the times of effects may differ by one turn of
/// the event loop. The host may also set its clock meanwhile.
#[test]
fn replay_trace_has_original_times() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hca.sock");
    let config = configuration(folder.path(), Some(&socket));
    let [record, original, again] = ["record", "original", "again"].map(|name| folder.path().join(name));
    let mut command = hcad();
    command.arg("--config").arg(config).arg("--record").arg(&record).arg("--trace").arg(&original);
    let mut daemon = Daemon::ready(command, folder, socket);
    use_device(&mut daemon);
    kill_process(pid(&daemon), Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());
    replay_ok(&record, &["--trace", again.to_str().unwrap()]);

    let lines = |path: &Path| -> Vec<(f64, String)> {
        let text = fs::read_to_string(path).unwrap();
        let parts = text.lines().map(|line| line.split_once(' ').unwrap());
        parts.map(|(time, entry)| (time.parse().unwrap(), entry.to_owned())).collect()
    };
    let (original, again) = (lines(&original), lines(&again));
    assert_eq!(original.len(), again.len());
    assert!(original.len() > 64, "{}", original.len());
    for ((time, entry), (replayed, replayed_entry)) in original.iter().zip(&again) {
        assert_eq!(entry, replayed_entry);
        assert!((time - replayed).abs() < 3600.0, "{entry}: recorded at {time}, but replayed at {replayed}");
    }
}

#[test]
fn killed_daemon_leaves_usable_recording() {
    let (mut daemon, record) = recorded();
    use_device(&mut daemon);
    // The daemon writes data to the file with a short delay. Once in the file, the data survives even if the
    // daemon is killed.
    let text = until("the last step in the file", || {
        let text = replay_ok(&record, &["--steps"]);
        text.contains("client disconnects").then_some(text)
    });
    let incomplete = "no differences; recording is incomplete: hcad was killed or is still recording";
    assert!(text.contains(incomplete), "{text}");
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    replay_ok(&record, &[]);
    let whole = fs::read(&record).unwrap();
    fs::write(&record, &whole[..whole.len() - 1]).unwrap();
    let text = replay_ok(&record, &[]);
    assert!(text.contains("recording is incomplete: the file is truncated"), "{text}");
}

#[test]
fn replay_that_differs_from_recording_fails() {
    let (mut daemon, record) = recorded();
    use_device(&mut daemon);
    kill_process(pid(&daemon), Signal::TERM).unwrap();
    daemon.child.wait().unwrap();
    // Change the device in the header, but not the header's length.
    let folder = TempDir::new().unwrap();
    let other = folder.path().join("other");
    fs::write(&other, renamed(&fs::read(&record).unwrap(), br#""jingzhao""#, br#""mthca"   "#)).unwrap();
    let output = replay(&other, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("first difference in step ")
            && text.contains("  recorded: ")
            && text.contains("  now: "),
        "{text}"
    );
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.ends_with("other: the replay differs from the recording\n") && error.lines().count() == 1,
        "{error}"
    );
}

/// Returns the recording with `from` replaced by `to` in the header. The header is the first chunk.
fn renamed(record: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    const HEADER: usize = 8 + 12;
    let len = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
    let mut header = record[HEADER..HEADER + len].to_vec();
    let at = header.windows(from.len()).position(|words| words == from).unwrap();
    header[at..at + from.len()].copy_from_slice(to);
    let digest = twox_hash::XxHash3_64::oneshot(&header).to_le_bytes();
    [&record[..12], &digest, &header, &record[HEADER + len..]].concat()
}

#[test]
fn error_for_invalid_recording_is_one_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("x");
    File::create(&path).unwrap();
    for (path, problem) in [(&*path, "not an hcad recording"), (Path::new("/nonexistent"), "No such file")] {
        let output = replay(path, &[]);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(problem) && error.lines().count() == 1, "{error}");
    }
}
