//! Tests the command line: arguments, exit codes, and one-line error messages.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use crate::common::{Daemon, configuration, hcactl, hcad, until, with_control};
use device::interfaces;
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};
use vfio_user::Client;

fn run(arguments: &[&str]) -> Output {
    hcad().args(arguments).output().unwrap()
}

fn run_with(config: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hcad.json");
    std::fs::write(&path, config).unwrap();
    run(&["--config", path.to_str().unwrap()])
}

/// Checks that a run failed with a one-line error, and returns its standard error.
fn one_line(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("hcad: "), "{text}");
    text
}

fn signal(daemon: &Daemon, signal: libc::c_int) {
    kill(&daemon.child, signal);
}

fn kill(child: &Child, signal: libc::c_int) {
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: sends a signal to a child that has not been reaped, so its process ID is still valid.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn help_lists_every_option() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for option in
        ["--config", "--socket-path", "--fd", "--print-capabilities", "--check", "--capture", "--version"]
    {
        assert!(text.contains(option), "{option} is missing from the help:\n{text}");
    }
}

#[test]
fn version_matches_package_and_build() {
    let output = run(&["--version"]);
    let build = if cfg!(debug_assertions) { " (development build)" } else { "" };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("hcad {version}{build}\n"));
}

#[test]
fn print_capabilities_works_without_configuration() {
    let output = run(&["--print-capabilities"]);
    assert!(output.status.success());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["type"], "vfio-user");
    let features: Vec<_> =
        value["features"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    let interfaces = interfaces::ALL.iter().map(|interface| interface.key);
    for name in interfaces.chain(["udp", "local", "tap", "capture", "trace", "impairments"]) {
        assert!(features.contains(&name), "{name} is missing from {features:?}");
    }
}

#[test]
fn invalid_arguments_exit_with_status_2() {
    assert_eq!(run(&[]).status.code(), Some(2));
    assert_eq!(run(&["--frobnicate"]).status.code(), Some(2));
}

#[test]
fn unreadable_configuration_error_mentions_path() {
    let line = one_line(&run(&["--config", "/nonexistent/hcad.json"]));
    assert_eq!(line, "hcad: cannot read /nonexistent/hcad.json: No such file or directory (os error 2)\n");
}

#[test]
fn configuration_error_mentions_key_on_one_line() {
    let cases = [
        ("{", "EOF while parsing"),
        (r#"{"devices": []}"#, "devices: at least one device is required"),
        (r#"{"devices": [{"id": 1, "frontnd": {}}]}"#, "devices[0].frontnd: unknown field `frontnd`"),
        (r#"{"devices": [{"id": "one"}]}"#, "devices[0].id: invalid type"),
        (r#"{"devices": [], "logs": 1}"#, "logs: unknown field"),
    ];
    for (config, expected) in cases {
        let line = one_line(&run_with(config));
        assert!(line.contains(expected), "{line:?} should contain {expected:?}");
    }
}

#[test]
fn check_does_not_create_socket_or_directory() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hca.sock");
    let config = configuration(folder.path(), Some(&socket));
    let output = run(&["--config", config.to_str().unwrap(), "--check"]);
    assert!(output.status.success());
    assert!(!socket.exists());

    // Without a configured socket, a normal start would create the directory for the default socket.
    let config = configuration(folder.path(), None);
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(config).arg("--check").env("XDG_RUNTIME_DIR", &runtime);
    assert!(command.output().unwrap().status.success());
    assert_eq!(std::fs::read_dir(runtime).unwrap().count(), 0);
}

#[test]
fn socket_in_use_error_mentions_path() {
    let daemon = Daemon::start();
    let config = daemon.folder.path().join("hcad.json");
    let line = one_line(&run(&["--config", config.to_str().unwrap()]));
    assert!(line.contains("devices[0].socket_path: "), "{line}");
    assert!(line.contains("hca.sock: another process is listening"), "{line}");
}

#[test]
fn second_daemon_with_same_config_fails() {
    let (mut first, control) = {
        let folder = tempfile::tempdir().unwrap();
        let (config, socket, control) = with_control(folder.path(), &[]);
        let mut command = hcad();
        command.arg("--config").arg(config);
        (Daemon::ready(command, folder, socket), control)
    };
    one_line(&run(&["--config", first.folder.path().join("hcad.json").to_str().unwrap()]));
    let counters = hcactl(&control, &["--json", "counters"]).unwrap();
    let counters: serde_json::Value = serde_json::from_str(&counters).unwrap();
    assert_eq!(counters["vfio"]["clients"], 0);
    first.child.kill().unwrap();
    let mut log = String::new();
    first.log.read_to_string(&mut log).unwrap();
    assert!(!log.contains("client"), "{log}");
}

#[test]
fn check_reports_missing_host_resources() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), Some(Path::new("/nonexistent/s")));
    let line = one_line(&run(&["--config", config.to_str().unwrap(), "--check"]));
    assert!(line.contains("devices[0].socket_path: cannot access /nonexistent: No such file"), "{line}");
}

#[test]
fn configuration_is_read_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), Some(&folder.path().join("s")));
    let check =
        |input: std::fs::File| hcad().args(["--config", "-", "--check"]).stdin(input).output().unwrap();
    let output = check(std::fs::File::open(&config).unwrap());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "standard input: ok\n");
    std::fs::write(&config, "{}").unwrap();
    let line = one_line(&check(std::fs::File::open(&config).unwrap()));
    assert!(line.starts_with("hcad: standard input: missing field `devices`"), "{line}");
}

#[test]
fn configuration_error_mentions_file_once() {
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| {
        let path = folder.path().join("hcad.json");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let udp = |bind: &str, more: &str| {
        format!(
            r#"{{"devices": [{{"id": 1, "frontend": {{"jingzhao": {{}}}}, {more}
                "fabric": {{"udp": {{"bind": "{bind}", "peers": []}}}}}}]}}"#
        )
    };
    let socket = format!(r#""socket_path": "{}","#, folder.path().join("s").display());
    for (text, arguments) in [
        (r#"{"devices": []}"#.to_owned(), &[][..]),
        (udp("127.0.0.1:0", r#""socket_path": "/nonexistent/s","#), &[]),
        (udp("203.0.113.1:1", &socket), &[]),
        (udp("127.0.0.1:0", &format!(r#"{socket} "capture": "/nonexistent/c","#)), &[]),
        (udp("127.0.0.1:0", &socket), &["--capture", "/x", "--trace", "/x"]),
        (format!(r#"{{"log": {{"filter": "device=loud"}}, {}"#, &udp("127.0.0.1:0", &socket)[1..]), &[]),
    ] {
        let path = write(&text);
        let output = run(&[&["--config", &path], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        // Log lines about the opened sockets precede the error.
        let log = String::from_utf8(output.stderr).unwrap();
        let line = log.lines().last().unwrap();
        assert!(line.starts_with(&format!("hcad: {path}: ")), "{line}");
        assert!(line.matches("os error").count() <= 1, "{line}");
    }
}

#[test]
fn invalid_rust_log_error_mentions_variable() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), Some(&folder.path().join("s")));
    let output = hcad().arg("--config").arg(config).env("RUST_LOG", "device=loud").output().unwrap();
    let line = one_line(&output);
    assert!(line.starts_with("hcad: RUST_LOG \"device=loud\": "), "{line}");
}

#[test]
fn invalid_log_filter_error_mentions_key() {
    let line = one_line(&run_with(
        r#"{"log": {"filter": "device=loud"}, "devices": [{"id": 1, "socket_path": "/nonexistent/s",
            "frontend": {"jingzhao": {}}, "fabric": {"udp": {"bind": "127.0.0.1:0", "peers": []}}}]}"#,
    ));
    assert!(line.contains("log.filter"), "{line}");
}

#[test]
fn signals_stop_daemon_and_remove_socket() {
    for (number, arguments) in [
        (libc::SIGTERM, &["--config", "hcad.json"][..]),
        (libc::SIGINT, &["--config", "hcad.json"]),
        (libc::SIGHUP, &["--frontend", "mthca", "--id", "1", "--udp", "127.0.0.1:0"]),
    ] {
        let mut daemon = start_with_hangup(libc::SIG_DFL, arguments);
        let client = Client::new(&daemon.socket).unwrap();
        signal(&daemon, number);
        let line = daemon.wait_for_line("the guests lose their devices");
        assert!(line.contains("WARN") && line.contains("guests=1"), "{line}");
        assert!(daemon.child.wait().unwrap().success());
        assert!(!daemon.socket.exists());
        drop(client);
    }
}

/// Starts `hcad` with the given standard error and additional arguments, and waits until clients can connect.
fn start_with_stderr(stderr: impl Into<Stdio>, arguments: &[&str]) -> (Child, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hca.sock");
    let config = configuration(folder.path(), Some(&socket));
    let mut file: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    file["control_socket"] = folder.path().join("control.sock").to_str().unwrap().into();
    std::fs::write(&config, file.to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(config).args(arguments).stderr(stderr);
    let mut child = command.spawn().unwrap();
    // The control socket is opened last.
    until("the control socket", || {
        assert_eq!(child.try_wait().unwrap(), None, "hcad must keep running");
        UnixStream::connect(folder.path().join("control.sock")).ok()
    });
    (child, folder)
}

/// Uses the device and the control socket, then sends SIGTERM. Each step makes the daemon write to standard error.
/// Checks that the daemon serves all requests and exits normally.
fn check_serving_and_exit(mut child: Child, folder: &TempDir) {
    let mut client = Client::new(&folder.path().join("hca.sock")).unwrap();
    client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, 4, &[6, 0]).unwrap();
    for _ in 0..100 {
        client.region_write(VFIO_PCI_BAR0_REGION_INDEX, 0x18, &[0xff; 4]).unwrap();
        client.region_read(VFIO_PCI_BAR0_REGION_INDEX, 0x18, &mut [0; 4]).unwrap();
    }
    hcactl(&folder.path().join("control.sock"), &["devices"]).unwrap();
    drop(client);
    kill(&child, libc::SIGTERM);
    let status = until("hcad to exit", || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert!(!folder.path().join("hca.sock").exists());
}

#[test]
fn unwritable_log_does_not_stop_daemon() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (child, folder) = start_with_stderr(full, &["--trace", "-"]);
    check_serving_and_exit(child, &folder);
}

#[test]
fn unread_log_does_not_stop_daemon() {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    (&writer).write_all(&[b'\n'; 4096]).unwrap();
    let (child, folder) = start_with_stderr(writer, &["--trace", "-"]);
    check_serving_and_exit(child, &folder);
    drop(reader);
}

#[test]
fn closed_log_pipe_does_not_stop_daemon() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (child, folder) = start_with_stderr(writer, &[]);
    check_serving_and_exit(child, &folder);
}

#[test]
fn full_stdout_is_reported_without_panic() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let status = hcad().arg("--print-capabilities").stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

/// Starts a daemon with the given SIGHUP disposition, regardless of the disposition in the test process.
fn start_with_hangup(disposition: libc::sighandler_t, arguments: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hca.sock");
    configuration(folder.path(), None);
    let mut command = hcad();
    command.current_dir(folder.path()).args(arguments).arg("--socket-path").arg(&socket);
    // SAFETY: only signal(2) is called between fork and exec, which is safe there.
    unsafe {
        command.pre_exec(move || match libc::signal(libc::SIGHUP, disposition) {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    Daemon::ready(command, folder, socket)
}

/// nohup(1) starts programs with SIGHUP ignored.
#[test]
fn ignored_sighup_stays_ignored() {
    let mut daemon = start_with_hangup(libc::SIG_IGN, &["--config", "hcad.json"]);
    signal(&daemon, libc::SIGHUP);
    drop(Client::new(&daemon.socket).unwrap());
    daemon.wait_for_line("client disconnected");
    signal(&daemon, libc::SIGTERM);
    assert!(daemon.child.wait().unwrap().success());
}

#[test]
fn descriptor_limit_is_raised_to_maximum() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hca.sock");
    let mut command = hcad();
    command.arg("--config").arg(configuration(folder.path(), Some(&socket)));
    // SAFETY: only setrlimit is called between fork and exec, which is safe there. `limit` outlives the call.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 64, rlim_max: 512 };
            match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let daemon = Daemon::ready(command, folder, socket);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("512"), "{line}");
}

#[test]
fn socket_of_killed_daemon_is_replaced() {
    let mut first = Daemon::start();
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(first.socket.exists());
    let mut command = hcad();
    command.arg("--config").arg(first.folder.path().join("hcad.json"));
    let second = Daemon::ready(command, tempfile::tempdir().unwrap(), first.socket.clone());
    Client::new(&second.socket).unwrap();
}

#[test]
fn socket_path_option_overrides_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), Some(Path::new("/nonexistent/s")));
    let socket = folder.path().join("other.sock");
    let mut command = hcad();
    command.arg("--config").arg(config).arg("--socket-path").arg(&socket);
    let daemon = Daemon::ready(command, folder, socket);
    Client::new(&daemon.socket).unwrap();
}

/// Starts a daemon that inherits `socket` as descriptor 3.
fn start_with_fd(socket: &impl AsRawFd) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), None);
    let mut command = hcad();
    command.arg("--config").arg(config).args(["--fd", "3"]);
    let fd = socket.as_raw_fd();
    // SAFETY: only dup2 or fcntl is called between fork and exec, which is safe there.
    unsafe {
        command.pre_exec(move || {
            let result = if fd == 3 { libc::fcntl(3, libc::F_SETFD, 0) } else { libc::dup2(fd, 3) };
            if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    Daemon::ready(command, folder, "/nonexistent".into())
}

#[test]
fn inherited_listener_serves_successive_clients() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inherited.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut daemon = start_with_fd(&listener);
    for _ in 0..2 {
        drop(Client::new(&path).unwrap());
        daemon.wait_for_line("client disconnected");
    }
}

#[test]
fn daemon_exits_when_inherited_client_disconnects() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut daemon = start_with_fd(&theirs);
    drop(theirs);
    drop(ours);
    assert!(daemon.child.wait().unwrap().success());
}

#[test]
fn socket_modes_ignore_umask() {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for (more, umask, expected) in [
        (vec![], 0, 0o600),
        (vec![("socket_mode", "0660".into())], 0o77, 0o660),
        (vec![("socket_group", rustix::process::getegid().as_raw().into())], 0o777, 0o660),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (config, socket, control) = with_control(folder.path(), &more);
        let (capture, trace) = (folder.path().join("c"), folder.path().join("t"));
        let mut command = hcad();
        command.arg("--config").arg(config).arg("--capture").arg(&capture).arg("--trace").arg(&trace);
        // SAFETY: only umask is called between fork and exec, which is safe there.
        unsafe {
            command.pre_exec(move || {
                libc::umask(umask);
                Ok(())
            });
        }
        let daemon = Daemon::ready(command, folder, socket);
        assert_eq!((mode(&daemon.socket), mode(&control)), (expected, 0o600), "{more:?}");
        assert_eq!((mode(&capture), mode(&trace)), (0o600, 0o600), "{more:?}");
    }
}

#[test]
fn rejects_descriptor_that_is_not_socket() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), None);
    let line = one_line(&run(&["--config", config.to_str().unwrap(), "--fd", "250"]));
    assert_eq!(line, "hcad: --fd: file descriptor 250 is not an open socket\n");
}
