//! Helpers for tests that run `hcad`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod dns;
mod guest;
pub(crate) mod machine;

use std::ffi::c_long;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) use guest::Guest;

/// Timeout for each wait. Only a bug makes a wait take this long.
#[allow(dead_code, reason = "not every test waits")]
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Reason to pass to [`skip`] if a test needs Landlock and the host does not support it.
#[allow(dead_code, reason = "not every test needs Landlock")]
pub(crate) const NO_LANDLOCK: &str = "landlock: this host does not support it";

/// UDP port for devices at addresses from [`loopback`]. By default, Linux does not assign it to a socket that is bound
/// to port 0, so it is not taken by another process that is bound to all addresses.
#[allow(dead_code, reason = "not every test chooses addresses")]
pub(crate) const PORT: u16 = 21_911;

/// Returns a loopback address that is not used by any other test or test process. Each test that calls this has a
/// different number, from 1 to 15.
#[allow(dead_code, reason = "not every test chooses addresses")]
pub(crate) fn loopback(test: u8, host: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 0x3f, low, test << 4 | host).into()
}

/// Reports that a test, or the rest of it, is skipped, and why. Writes directly to standard output, because the test
/// harness captures the output of `println!`. `ci/test` counts these lines and accepts only known reasons.
#[allow(dead_code, reason = "not every test can be skipped")]
pub(crate) fn skip(why: &str) {
    let line = format!("0 passed, 0 failed, 1 skipped: {why}\n");
    rustix::io::write(io::stdout(), line.as_bytes()).unwrap();
}

/// Polls `ask` until it returns a value.
#[allow(dead_code, reason = "not every test waits")]
#[track_caller]
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "timed out after {TIMEOUT:?} waiting for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the daemon uses at most `most` ticks of CPU time (10 ms each) during a period of `length`. Unfinished
/// work only prolongs the wait, but a thread stuck in a busy loop makes the test fail.
#[allow(dead_code, reason = "not every test checks this")]
#[track_caller]
pub(crate) fn assert_idle(daemon: &Daemon, length: Duration, most: u64) {
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        // proc(5): utime and stime.
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    until("the daemon to become idle", || {
        let before = used();
        thread::sleep(length);
        (used() - before <= most).then_some(())
    });
}

/// Returns the kernel's Landlock ABI version, or a negative number if the kernel does not support Landlock.
#[allow(dead_code, reason = "not every test depends on landlock")]
pub(crate) fn landlock_abi() -> c_long {
    // The system call number is the same on all architectures. Flag 1 queries the ABI version.
    const LANDLOCK_CREATE_RULESET: c_long = 444;
    // SAFETY: with this flag, the kernel does not read a ruleset.
    unsafe { libc::syscall(LANDLOCK_CREATE_RULESET, std::ptr::null::<u8>(), 0, 1) }
}

/// A daemon that is killed at the end of the test.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    #[allow(dead_code, reason = "not every test reads the directory")]
    pub(crate) folder: TempDir,
    #[allow(dead_code, reason = "not every test has one device, or connects to it")]
    pub(crate) socket: PathBuf,
    pub(crate) log: BufReader<ChildStderr>,
}

/// Writes a configuration with one device, listening on `socket` if given. Returns the path of the file.
pub(crate) fn configuration(folder: &Path, socket: Option<&Path>) -> PathBuf {
    let mut device = serde_json::json!({
        "id": 1,
        "frontend": { "jingzhao": {} },
        "fabric": { "udp": { "bind": "127.0.0.1:0", "peers": [] } },
    });
    if let Some(socket) = socket {
        device["socket_path"] = serde_json::json!(socket);
    }
    let path = folder.join("hcad.json");
    std::fs::write(&path, serde_json::json!({ "devices": [device] }).to_string()).unwrap();
    path
}

/// Writes a configuration with one device, a control socket and the extra keys in `more`, and lets the daemon write to
/// `folder`. Returns the paths of the configuration, the device's socket and the control socket.
#[allow(dead_code, reason = "not every test has a control socket")]
pub(crate) fn with_control(folder: &Path, more: &[(&str, serde_json::Value)]) -> (PathBuf, PathBuf, PathBuf) {
    let (socket, control) = (folder.join("hca.sock"), folder.join("control.sock"));
    let path = configuration(folder, Some(&socket));
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["control_socket"] = serde_json::json!(control);
    config["confinement"] = serde_json::json!({ "writable": [folder] });
    for (key, value) in more {
        config[key] = value.clone();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    (path, socket, control)
}

/// Returns an `hcad` command whose standard error is piped. Variables that change the behaviour of a daemon or that a
/// service manager sets for the test process are removed.
pub(crate) fn hcad() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hcad"));
    for name in
        ["RUST_LOG", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "RUNTIME_DIRECTORY"]
    {
        command.env_remove(name);
    }
    command.stderr(Stdio::piped());
    command
}

/// Returns the path of `hcactl`. It belongs to another package but is built into the same directory as `hcad`.
pub(crate) fn hcactl_program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_hcad")).with_file_name("hcactl");
    assert!(program.exists(), "{} does not exist; run cargo build -p hcactl", program.display());
    program
}

/// Returns an `hcactl` command for the daemon with this control socket. It waits for a daemon on a loaded host.
#[allow(dead_code, reason = "not every test runs hcactl")]
pub(crate) fn hcactl_command(control: &Path) -> Command {
    let mut command = Command::new(hcactl_program());
    command.arg("--socket").arg(control).args(["--timeout", &TIMEOUT.as_secs().to_string()]);
    command
}

/// Runs `hcactl` and returns its standard output, or its standard error if it fails. Repeats the command if a device
/// has not responded within the daemon's timeout, which is shorter than the stalls of a loaded host.
#[allow(dead_code, reason = "not every test runs hcactl")]
#[track_caller]
pub(crate) fn hcactl(control: &Path, arguments: &[&str]) -> Result<String, String> {
    until("a device to respond to hcactl", || {
        let output = hcactl_command(control).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let result = if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) };
        let is_late = match &result {
            // The state of a device in the output of `hcactl --json devices`.
            Ok(text) => text.contains("\"not_answering\""),
            Err(text) => text.contains("the device is not responding"),
        };
        (!is_late).then_some(result)
    })
}

impl Daemon {
    /// Starts a daemon with one device and waits until clients can connect.
    #[allow(dead_code, reason = "not every test has a daemon of this kind")]
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("hca.sock");
        let config = configuration(folder.path(), Some(&socket));
        let mut command = hcad();
        command.arg("--config").arg(config);
        Self::ready(command, folder, socket)
    }

    /// Starts `command` and waits until clients can connect.
    #[allow(dead_code, reason = "not every test skips the first lines")]
    pub(crate) fn ready(mut command: Command, folder: TempDir, socket: PathBuf) -> Self {
        let mut daemon = Self::of(command.spawn().unwrap(), folder, socket);
        daemon.wait_for_line("ready");
        daemon
    }

    /// Wraps a daemon process that has just been started.
    pub(crate) fn of(mut child: Child, folder: TempDir, socket: PathBuf) -> Self {
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, folder, socket, log }
    }

    /// Reads log lines until one contains `text`, and returns that line. Panics if the daemon exits first.
    pub(crate) fn wait_for_line(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let len = self.log.read_line(&mut line).unwrap();
            assert!(len > 0, "hcad exited before it logged {text:?}:\n{seen}");
            if line.contains(text) {
                return line;
            }
            seen += &line;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
