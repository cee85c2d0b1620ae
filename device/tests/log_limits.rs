//! Tests the limits on the length, rate and total size of the log lines that a guest can cause.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::BufRead as _;
use std::time::Instant;

use crate::common::{Daemon, Guest, hcad};
use card::telemetry::log::{BURST, BURST_LEN, LEN_PER_DAY, WINDOW_MS};
use drivers::e810::{AdminCommand, Driver};
use protocol::hca::e810::admin::{Opcode, PARAMETERS_LEN};
use serde_json::{Value, json};

/// Maximum length of a line in bytes, including its line feed.
const MAX_LINE: usize = 2049;

/// Number of commands. Without limits, they would produce 8 MB of log output.
const COMMANDS: usize = 500;

const DAY_MS: u64 = 86_400_000;

/// Runs a guest driver that repeatedly reports its version as a 4 KiB string. Returns the lines that the daemon logs,
/// and the elapsed time in milliseconds.
fn logged(format: &str) -> (Vec<String>, u64) {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket) = (folder.path().join("hcad.json"), folder.path().join("1.sock"));
    let device =
        json!({ "id": 1, "frontend": { "e810": {} }, "fabric": { "local": {} }, "socket_path": socket });
    fs::write(&config, json!({ "devices": [device], "log": { "format": format } }).to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(config);
    let mut daemon = Daemon::ready(command, folder, socket);

    let start = Instant::now();
    let mut driver = Driver::new(Guest::attach(&daemon.socket, 1 << 20));
    driver.bind();
    driver.open_admin_queue();
    // Each of these bytes takes four characters in the log.
    let version = AdminCommand::with_input(Opcode::DriverVersion, [0; PARAMETERS_LEN], &[0xff; 4096]);
    for _ in 0..COMMANDS {
        driver.succeed(&version);
    }
    drop(driver);
    let mut lines = Vec::new();
    let is_last = |line: &String| line.contains("client disconnected");
    while !lines.last().is_some_and(is_last) {
        let mut line = String::new();
        assert!(daemon.log.read_line(&mut line).unwrap() > 0, "hcad has exited:\n{}", lines.concat());
        lines.push(line);
    }
    (lines, u64::try_from(start.elapsed().as_millis()).unwrap())
}

/// Checks the limits. They are computed from the elapsed time, so the test also passes on a slow host.
fn check_limits(lines: &[String], elapsed_ms: u64) {
    // Add the partial windows at the start and at the end.
    let windows = elapsed_ms / WINDOW_MS + 2;
    let caused: Vec<_> = lines.iter().filter(|line| line.contains("driver version: ")).collect();
    assert!((BURST..=BURST * windows).contains(&(caused.len() as u64)), "{} lines", caused.len());
    for line in caused {
        assert!(line.contains(" more bytes)"), "{line}");
    }
    for line in lines {
        assert!(line.len() <= MAX_LINE, "{} bytes: {line}", line.len());
    }
    let total: usize = lines.iter().map(String::len).sum();
    let allowance = BURST_LEN + LEN_PER_DAY * elapsed_ms / DAY_MS;
    assert!(total as u64 <= allowance + MAX_LINE as u64, "{total} bytes");
}

#[test]
fn text_log_from_noisy_guest_is_bounded() {
    let (lines, elapsed_ms) = logged("text");
    check_limits(&lines, elapsed_ms);
}

#[test]
fn json_log_from_noisy_guest_is_bounded() {
    let (lines, elapsed_ms) = logged("json");
    check_limits(&lines, elapsed_ms);
    for line in &lines {
        assert!(serde_json::from_str::<Value>(line).unwrap().is_object(), "{line}");
    }
}
