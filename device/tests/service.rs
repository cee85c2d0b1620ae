//! Tests `hcad` as a service: socket activation, notifications to the service manager, and running without a
//! configuration file.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Daemon, TIMEOUT, configuration, hcactl, hcactl_program, hcad, until, with_control};
use tempfile::TempDir;
use vfio_user::Client;

/// Receives the next message sent to the service manager.
fn next_message(manager: &UnixDatagram) -> String {
    let mut message = [0; 256];
    let len = manager.recv(&mut message).unwrap();
    String::from_utf8(message[..len].to_vec()).unwrap()
}

fn terminate(daemon: &Daemon) {
    let pid = libc::pid_t::try_from(daemon.child.id()).unwrap();
    // SAFETY: sends a signal to a child that has not been reaped, so its process ID is still valid.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
}

/// sd_notify(3): NOTIFY_SOCKET is either a path or `@` followed by an abstract socket name.
#[test]
fn service_manager_is_notified_of_lifecycle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let abstract_name = format!("hcad-test-{}", std::process::id());
    let at_path = UnixDatagram::bind(&path).unwrap();
    let nowhere = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let nowhere = UnixDatagram::bind_addr(&nowhere).unwrap();
    for (manager, name) in
        [(at_path, path.to_str().unwrap().to_owned()), (nowhere, format!("@{abstract_name}"))]
    {
        manager.set_read_timeout(Some(TIMEOUT)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (config, socket, _) = with_control(folder.path(), &[]);
        let mut command = hcad();
        // hcad sends a message every 2 s. At a much shorter interval, the messages could fill the socket's queue while
        // this thread does not run, and hcad would drop STOPPING.
        command.arg("--config").arg(config).env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "4000000");
        let mut daemon = Daemon::ready(command, folder, socket);
        // The first watchdog message may precede READY.
        let messages = [next_message(&manager), next_message(&manager), next_message(&manager)];
        assert!(messages.iter().any(|message| message == "READY=1\nSTATUS=devices: 1"), "{messages:?}");
        assert_eq!(messages.iter().filter(|message| *message == "WATCHDOG=1").count(), 2, "{messages:?}");
        terminate(&daemon);
        while next_message(&manager) != "STOPPING=1" {}
        assert!(daemon.child.wait().unwrap().success());
    }
}

#[test]
fn unreachable_notify_socket_is_error() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), Some(&folder.path().join("s")));
    let output = hcad().arg("--config").arg(config).env("NOTIFY_SOCKET", "/nonexistent/n").output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.starts_with("hcad: NOTIFY_SOCKET: No such file"), "{line}");
}

/// Returns an `hcad --config` command with the given arguments. The process inherits `sockets` from descriptor 3
/// onwards, as it would from a service manager.
fn passed(sockets: &[&UnixListener], arguments: &[&Path]) -> Command {
    let mut command = Command::new("sh");
    let program = r#"LISTEN_PID=$$ exec "$0" "$@""#;
    command.args(["-c", program, env!("CARGO_BIN_EXE_hcad"), "--config"]).args(arguments);
    command.env_remove("RUST_LOG").env("LISTEN_FDS", sockets.len().to_string()).stderr(Stdio::piped());
    let sockets: Vec<_> = sockets.iter().map(|socket| socket.as_raw_fd()).collect();
    // SAFETY: only fcntl and dup2 are called between fork and exec. Both are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            // Duplicate the sockets to high descriptors first, so that none is overwritten.
            for (socket, to) in sockets.iter().zip(100..) {
                if libc::dup2(*socket, to) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            for (from, to) in (100..).zip(3..).take(sockets.len()) {
                if libc::dup2(from, to) < 0 || libc::fcntl(from, libc::F_SETFD, libc::FD_CLOEXEC) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    command
}

fn listening(folder: &TempDir, name: &str) -> (PathBuf, UnixListener) {
    let path = folder.path().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    (path, listener)
}

/// Sockets are passed as described in sd_listen_fds(3).
#[test]
fn passed_sockets_are_matched_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket, control) = with_control(folder.path(), &[]);
    let (_, for_control) = listening(&folder, "control.sock");
    let (_, for_device) = listening(&folder, "hca.sock");
    let command = passed(&[&for_control, &for_device], &[&config]);
    let mut daemon = Daemon::ready(command, folder, socket);
    for _ in 0..2 {
        drop(Client::new(&daemon.socket).unwrap());
        daemon.wait_for_line("client disconnected");
    }
    hcactl(&control, &["devices"]).unwrap();
    terminate(&daemon);
    assert!(daemon.child.wait().unwrap().success());
    // The daemon must not remove these sockets, which it did not create.
    assert!(daemon.socket.exists() && control.exists());
}

#[test]
fn one_passed_socket_serves_one_device() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), None);
    let (path, listener) = listening(&folder, "any");
    let daemon = Daemon::ready(passed(&[&listener], &[&config]), folder, path);
    Client::new(&daemon.socket).unwrap();
}

#[test]
fn unused_passed_socket_is_error() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), Some(&folder.path().join("hca.sock")));
    let (path, listener) = listening(&folder, "other");
    let output = passed(&[&listener], &[&config]).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains(&format!("LISTEN_FDS: {} is not used", path.display())), "{line}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn device_options_replace_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("hcad");
    let mut command = hcad();
    command.args(["--frontend", "mthca", "--id", "7", "--udp", "127.0.0.1:0", "--peer", "localhost:9,id=8"]);
    command.arg("--control-socket").env("XDG_RUNTIME_DIR", folder.path()).env_remove("RUNTIME_DIRECTORY");
    let daemon = Daemon::ready(command, folder, sockets.join("hca7.sock"));
    Client::new(&daemon.socket).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&sockets), mode(&daemon.socket)), (0o755, 0o600));
    let mut hcactl = Command::new(hcactl_program());
    hcactl.env_remove("HCACTL_SOCKET").env("XDG_RUNTIME_DIR", daemon.folder.path()).args(["peer", "list"]);
    let output = hcactl.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("127.0.0.1:9") && text.contains("02:00:00:00:00:08"), "{output:?}");
}

/// A service may be able to write only to its runtime directory.
#[test]
fn default_ring_is_in_runtime_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (service, user) = (folder.path().join("service"), folder.path().join("user"));
    let device = serde_json::json!({ "id": 1, "frontend": { "mthca": {} }, "fabric": { "ring": {} } });
    let config = folder.path().join("hcad.json");
    std::fs::write(&config, serde_json::json!({ "devices": [device] }).to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(config).env("RUNTIME_DIRECTORY", &service).env("XDG_RUNTIME_DIR", &user);
    let daemon = Daemon::ready(command, folder, service.join("hca1.sock"));
    Client::new(&daemon.socket).unwrap();
    assert!(service.join("ring/020000000001.ring").exists());
    assert!(!user.exists());
}

#[test]
fn device_option_error_mentions_option() {
    let run = |arguments: &[&str]| {
        let output = hcad().args(arguments).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let line = run(&["--frontend", "mthca", "--id", "1", "--udp", "127.0.0.1:1", "--peer", "nobody:0"]);
    assert!(
        line.starts_with("hcad: command line: --peer 1.addr: port 0 is not a valid destination"),
        "{line}"
    );
    assert!(run(&["--frontend", "mthca", "--id", "1"]).contains("--udp"));
}

#[test]
fn programs_write_man_pages_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let (hcad, hcactl) = (PathBuf::from(env!("CARGO_BIN_EXE_hcad")), hcactl_program());
    for (program, option) in [(hcad, "--write-manual"), (hcactl, "write-manual")] {
        assert!(Command::new(program).arg(option).arg(folder.path()).status().unwrap().success());
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    for (name, text) in [
        ("hcad.1", "socket\\-path"),
        ("hcactl.1", "hcactl\\-devices(1)"),
        ("hcactl-peer-add.1", "max\\-frames"),
        ("hcad.bash", "--frontend"),
        ("_hcactl", "devices"),
        ("hcactl.fish", "devices"),
    ] {
        assert!(read(name).contains(text), "{name} should contain {text:?}");
    }
    assert!(!read("hcad.1").contains("manual"));
    until("all files", || (folder.path().read_dir().unwrap().count() > 20).then_some(()));
}
