//! Tests `hcactl` without a daemon. Tests that need a daemon are in the `device` crate, which contains hcad.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use serde_json::{Value, json};
use tempfile::TempDir;

fn hcactl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hcactl"));
    command.env_remove("HCACTL_SOCKET");
    command
}

/// Runs `hcactl` with a timeout that is not reached on a loaded host.
fn run(socket: &Path, arguments: &[&str]) -> Output {
    hcactl().arg("--socket").arg(socket).args(["--timeout", "60"]).args(arguments).output().unwrap()
}

fn error_output(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Starts a server that accepts one client and responds to its first request with `answer`. Returns the temporary
/// directory and the path of the socket in it.
fn server(answer: &'static [u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        // The write fails if the client disconnects before the whole response has been sent.
        let _ = (&stream).write_all(answer);
    });
    (folder, path)
}

/// Starts a server that accepts one client and answers each of its requests with `answer`.
fn daemon(mut answer: impl FnMut(&Value) -> Value + Send + 'static) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for request in BufReader::new(stream.try_clone().unwrap()).lines() {
            let answer = answer(&serde_json::from_str(&request.unwrap()).unwrap());
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    (folder, path)
}

fn device(id: u16) -> Value {
    json!({
        "id": id, "interface": "mthca", "mac": "02:00:00:00:00:01", "ipv4": "10.77.0.1", "ipv6": "fe80::1",
        "socket": null, "connected": false, "state": "running", "restarts": 0, "problem": null, "port": "up",
        "capture": null, "trace": null,
    })
}

fn output(socket: &Path, arguments: &[&str]) -> String {
    let output = run(socket, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Device 1 has UDP peers, device 2 has a fabric without a peer list, and device 3 is a member of a ring.
fn three_devices(request: &Value) -> Value {
    let of = |name: &str| request.pointer(&format!("/{name}/device")).and_then(Value::as_u64);
    match (of("peers"), of("impairments")) {
        (Some(1), _) => json!({ "peers": [{
            "addr": "192.0.2.1:9", "leaf": false, "macs": [], "rx_frames": 1, "rx_over_rate": 0,
            "rx_foreign_mac": 0, "tx_frames": 2,
        }] }),
        (Some(2), _) => json!({ "error": control_api::peer::NO_PEER_LIST }),
        (Some(_), _) => json!({ "members": [{
            "mac": "02:00:00:00:00:09", "macs": [], "asleep": true, "rx_frames": 3, "rx_foreign_mac": 0,
            "tx_frames": 4, "tx_refused": 0, "tx_waiting_bytes": 0,
        }] }),
        (_, Some(device)) => json!({ "impairments": [{
            "id": device, "rule": { "direction": "tx", "action": "drop" }, "matched": 0, "hits": 0,
        }] }),
        _ => json!({ "devices": [device(1), device(2), device(3)] }),
    }
}

#[test]
fn peers_and_impairments_cover_all_devices() {
    let list = |arguments: &[&str]| {
        let (_folder, socket) = daemon(three_devices);
        output(&socket, arguments)
    };
    let words = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let peers = ["DEVICE ADDRESS", "1 192.0.2.1:9", "", "DEVICE MEMBER", "3 02:00:00:00:00:09"];
    assert_eq!(words(&list(&["peer", "list"])), peers);
    assert_eq!(words(&list(&["impair", "list"])), ["DEVICE ID", "1 1", "2 2", "3 3"]);
    for list in
        [list(&["--json", "peer", "list"]), list(&["--json", "impair", "list", "--device=1", "--device=3"])]
    {
        let rows: Value = serde_json::from_str(&list).unwrap();
        let devices: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["device"].clone()).collect();
        assert_eq!(devices, [1, 3], "{list}");
    }
    assert_eq!(words(&list(&["--device", "1", "peer", "list"])), ["ADDRESS KIND", "192.0.2.1:9 mesh"]);
    let (_folder, socket) = daemon(three_devices);
    let error = error_output(&run(&socket, &["--device", "2", "peer", "list"]));
    assert_eq!(error, format!("hcactl: {}\n", control_api::peer::NO_PEER_LIST));
}

#[test]
fn list_of_all_devices_skips_removed_device() {
    let answer = |still_exists: bool| {
        let mut polls = 0;
        move |request: &Value| match request.pointer("/list/device").and_then(Value::as_u64) {
            Some(1) => json!({ "text": { "columns": ["QPN"], "lines": [["0x5"]], "next": null } }),
            Some(_) => json!({ "error": "the device is not running" }),
            None => {
                polls += 1;
                let both = polls == 1 || still_exists;
                json!({ "devices": if both { vec![device(1), device(2)] } else { vec![device(1)] } })
            }
        }
    };
    let (_folder, socket) = daemon(answer(false));
    assert_eq!(output(&socket, &["qps"]), "DEVICE  QPN\n1       0x5\n");
    let (_folder, socket) = daemon(answer(true));
    assert_eq!(error_output(&run(&socket, &["qps"])), "hcactl: device 2: the device is not running\n");
}

#[test]
fn ignored_options_are_rejected() {
    for arguments in [
        &["--device", "1", "device", "remove", "2"][..],
        &["reload", "--device", "1"],
        &["--json", "top", "--once"],
    ] {
        let output = run(Path::new("/nonexistent/control.sock"), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}

#[test]
fn full_disk_is_reported() {
    let (_folder, socket) = daemon(three_devices);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = hcactl().arg("--socket").arg(socket).arg("devices").stdout(full).output().unwrap();
    assert!(error_output(&output).starts_with("hcactl: cannot write to standard output: "), "{output:?}");
}

#[test]
fn dash_selects_standard_error_of_hcad() {
    let (_folder, socket) = daemon(|request| match request.pointer("/trace_on/path") {
        Some(path) => json!({ "error": format!("path {path}") }),
        None => json!({ "devices": [device(1)] }),
    });
    assert_eq!(error_output(&run(&socket, &["trace", "on", "-"])), "hcactl: path \"-\"\n");
}

#[test]
fn missing_command_prints_grouped_help() {
    let output = hcactl().env("HCACTL_SOCKET", "/nonexistent/control.sock").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["\nDevices:\n  devices ", "\nOptions:\n", "\nExamples:\n  hcactl devices "] {
        assert!(text.contains(part), "{part:?} is missing from\n{text}");
    }
}

#[test]
fn connection_error_mentions_configuration_key() {
    let error = error_output(&run(Path::new("/nonexistent/control.sock"), &["devices"]));
    assert!(
        error.starts_with("hcactl: cannot connect to /nonexistent/control.sock: No such file"),
        "{error}"
    );
    assert!(error.contains("`control_socket`"), "{error}");
    assert_eq!(error.matches("No such file").count(), 1, "{error}");
}

#[test]
fn control_characters_from_daemon_are_escaped() {
    let (_folder, socket) = server(b"{\"error\":\"\\u001b]0;mine\\u0007\xc2\x9b2J\"}\n");
    let error = error_output(&run(&socket, &["devices"]));
    assert_eq!(error, "hcactl: \\u{1b}]0;mine\\u{7}\\u{9b}2J\n");
}

#[track_caller]
fn assert_times_out(socket: &Path) {
    let mut command = hcactl();
    let output = command.arg("--socket").arg(socket).args(["--timeout", "0.2", "devices"]).output().unwrap();
    let error = error_output(&output);
    assert_eq!(error, format!("hcactl: hcad at {} has not replied for 0.2 s\n", socket.display()));
}

/// The kernel accepts connections to a listening socket even if the daemon does not call `accept`.
#[test]
fn silent_daemon_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    assert_times_out(&path);
}

#[test]
fn connecting_to_full_backlog_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    // A backlog of 0 leaves room for one connection.
    listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    assert_times_out(&path);
}

#[test]
fn time_limit_covers_whole_response() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert_times_out(&path);
}

#[test]
fn invalid_timeouts_are_rejected() {
    for limit in ["0", "-1", "x", "inf", "86401"] {
        let mut command = hcactl();
        let output = command
            .args(["--socket", "/nonexistent/control.sock", "devices"])
            .arg(format!("--timeout={limit}"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{limit}: {output:?}");
    }
}

#[test]
fn endless_response_is_rejected() {
    static ENDLESS: [u8; 17 << 20] = [b'x'; 17 << 20];
    let (_folder, socket) = server(&ENDLESS);
    assert_eq!(
        error_output(&run(&socket, &["devices"])),
        "hcactl: the response from hcad exceeds the size limit\n"
    );
}

/// hcad sends this response without reading a request, and then closes the connection.
#[test]
fn rejection_reason_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"{\"error\":\"too many control clients\"}\n").unwrap();
    });
    assert_eq!(error_output(&run(&path, &["devices"])), "hcactl: too many control clients\n");
}

#[test]
fn top_lists_busy_device_without_counters() {
    let (_folder, socket) = daemon(|request| match request.get("devices") {
        Some(_) => json!({ "devices": [device(1)] }),
        None => json!({ "error": "the device is not responding" }),
    });
    let text = output(&socket, &["top", "--once", "--every", "0.1"]);
    assert!(text.contains("mthca"), "{text}");
}
