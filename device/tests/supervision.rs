//! Tests that a failure of one HCA (a hung thread, a deleted tap interface) does not affect another HCA in the same
//! process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Daemon, hcactl_command, hcad, skip, until};
use serde_json::{Value, json};
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use vfio_user::Client;

/// Starts a daemon with two HCAs, the first on fabric `first`. Their sockets are `1` and `2` in the daemon's directory.
fn start(first: Value, prepare: impl FnOnce(&mut Command)) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let device = |id: u32, fabric: Value| {
        let socket = folder.path().join(id.to_string());
        json!({ "id": id, "frontend": { "jingzhao": {} }, "fabric": fabric, "socket_path": socket })
    };
    let config = json!({
        "devices": [device(1, first), device(2, json!({ "local": { "network": "a" } }))],
        "control_socket": folder.path().join("control"),
    });
    let path = folder.path().join("hcad.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(path);
    prepare(&mut command);
    let socket = folder.path().join("2");
    Daemon::ready(command, folder, socket)
}

fn socket(daemon: &Daemon, id: u32) -> PathBuf {
    daemon.folder.path().join(id.to_string())
}

/// Runs `hcactl` and returns its standard output, or its standard error if it fails.
fn hcactl(daemon: &Daemon, arguments: &[&str]) -> Result<String, String> {
    let control = daemon.folder.path().join("control");
    let output = hcactl_command(&control).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn devices(daemon: &Daemon) -> Value {
    serde_json::from_str(&hcactl(daemon, &["--json", "devices"]).unwrap()).unwrap()
}

#[track_caller]
fn is_served(client: &mut Client) {
    let mut id = [0; 4];
    client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut id).unwrap();
    assert_eq!(u32::from_le_bytes(id), 0x7028_10ee);
}

fn terminate(daemon: &Daemon) {
    let pid = libc::pid_t::try_from(daemon.child.id()).unwrap();
    // SAFETY: sends a signal to a child that has not been reaped, so its process ID is still valid.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
}

/// A thread of another process, stopped at an arbitrary point.
struct Stopped(libc::pid_t);

impl Stopped {
    fn new(daemon: &Daemon, name: &str) -> io::Result<Self> {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.child.id())).unwrap();
        let task = tasks.find_map(|task| {
            let path = task.unwrap().path();
            // Another thread may end before its name is read, so errors are ignored.
            let is_it = std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
            is_it.then(|| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
        });
        let task: libc::pid_t = task.unwrap();
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            let none = std::ptr::null_mut::<libc::c_void>();
            // SAFETY: neither request accesses this process's memory.
            if unsafe { libc::ptrace(request, task, none, none) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let stopped = Self(task);
        assert!(libc::WIFSTOPPED(stopped.wait()));
        Ok(stopped)
    }

    /// Waits for the thread to stop or end and returns its status.
    fn wait(&self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: the call writes only the status, which outlives it.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) }, self.0);
        status
    }
}

#[test]
fn daemon_keeps_working_despite_hung_thread() {
    let mut daemon = start(json!({ "local": { "network": "a" } }), |_| {});
    let _hung = Client::new(&socket(&daemon, 1)).unwrap();
    let mut client = Client::new(&socket(&daemon, 2)).unwrap();
    let thread = match Stopped::new(&daemon, "hca1") {
        Ok(thread) => thread,
        Err(error) => return skip(&format!("ptrace: {error}")),
    };

    // On a loaded host, the other device may also be late.
    let rows = until("a response from the other device", || {
        let rows = devices(&daemon);
        assert_eq!(rows[0]["state"], "not_answering", "{rows}");
        (rows[1]["state"] == "running").then_some(rows)
    });
    assert_eq!((&rows[0]["port"], &rows[0]["connected"]), (&Value::Null, &json!(true)));
    let text = hcactl(&daemon, &["devices"]).unwrap();
    assert!(text.contains("not responding"), "{text}");
    let error = hcactl(&daemon, &["--device", "1", "port", "down"]).unwrap_err();
    assert_eq!(error, "hcactl: the device is not responding\n");

    is_served(&mut client);
    drop(client);
    is_served(&mut Client::new(&socket(&daemon, 2)).unwrap());

    terminate(&daemon);
    while libc::WIFSTOPPED(thread.wait()) {}
    assert_eq!(until("the end of hcad", || daemon.child.try_wait().unwrap()).code(), Some(1));
    let mut log = String::new();
    daemon.log.read_to_string(&mut log).unwrap();
    assert!(log.contains("hcad: hca1 did not stop within 2 s"), "{log}");
    assert!(!socket(&daemon, 1).exists() && !socket(&daemon, 2).exists());
}

#[test]
fn deleted_tap_restarts_only_its_device() {
    const TAP: &str = "hcadtest0";
    // The test needs nsenter(1), ip(8) and permission to create a tap interface in a new network namespace.
    let mut tried = Command::new("unshare");
    let script = format!("nsenter --version >/dev/null && ip tuntap add dev {TAP} mode tap");
    tried.args(["--net", "sh", "-c", &script]);
    match tried.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => return skip(&format!("a tap: {}", String::from_utf8_lossy(&output.stderr).trim_end())),
        Err(error) => return skip(&format!("a tap: unshare: {error}")),
    }
    let mut daemon = start(json!({ "tap": { "interface": TAP } }), |command| {
        // SAFETY: only unshare(2) runs between fork and exec. It is a plain system call and does not access memory.
        unsafe {
            command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
    });
    let mut first = Client::new(&socket(&daemon, 1)).unwrap();
    is_served(&mut first);
    let mut second = Client::new(&socket(&daemon, 2)).unwrap();

    let mut delete = Command::new("nsenter");
    delete.args(["--net", "--target", &daemon.child.id().to_string(), "ip", "link", "delete", TAP]);
    assert!(delete.status().unwrap().success());
    let line = daemon.wait_for_line("device failed; ");
    assert!(line.contains("device{id=1}"), "{line}");

    let rows = until("the device", || {
        let rows = devices(&daemon);
        (rows[0]["state"] == "running" && rows[0]["restarts"] == 1).then_some(rows)
    });
    assert!(rows[0]["problem"].as_str().unwrap().contains("descriptor in bad state"), "{rows}");
    assert_eq!((&rows[0]["connected"], &rows[1]["connected"]), (&json!(false), &json!(true)));
    assert_eq!(rows[1]["restarts"], 0);
    assert!(
        first.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut [0; 4]).is_err(),
        "the failed device's client must be disconnected"
    );
    is_served(&mut Client::new(&socket(&daemon, 1)).unwrap());
    is_served(&mut second);
    terminate(&daemon);
    assert!(until("the end of hcad", || daemon.child.try_wait().unwrap()).success());
}
