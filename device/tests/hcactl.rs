//! Tests `hcactl` with a real daemon and with a misbehaving server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use crate::common::{Daemon, hcactl_command, hcactl_program, hcad, with_control};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

fn hcactl() -> Command {
    let mut command = Command::new(hcactl_program());
    command.env_remove("HCACTL_SOCKET");
    command
}

fn start() -> (Daemon, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket, control) = with_control(folder.path(), &[]);
    let mut command = hcad();
    command.arg("--config").arg(config);
    (Daemon::ready(command, folder, socket), control)
}

fn run(socket: &Path, arguments: &[&str]) -> Output {
    hcactl_command(socket).env_remove("HCACTL_SOCKET").args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Starts a server that accepts one client and sends `reply` in response to its first request.
fn server(reply: &'static [u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        // The client may disconnect before the whole reply has been sent.
        let _ = (&stream).write_all(reply);
    });
    (folder, path)
}

#[test]
fn socket_path_comes_from_option_or_environment() {
    let (_daemon, control) = start();
    let behind = hcactl().arg("devices").arg("--socket").arg(&control).output().unwrap();
    assert!(printed(&behind).contains("02:00:00:00:00:01"));
    let environment = hcactl().arg("devices").env("HCACTL_SOCKET", &control).output().unwrap();
    assert_eq!(printed(&environment), printed(&behind));
    let option = run(&control, &["devices"]);
    assert_eq!(printed(&option), printed(&behind));
}

#[test]
fn stopped_daemon_does_not_block_commands() {
    let (daemon, control) = start();
    let pid = Pid::from_raw(daemon.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let mut command = hcactl();
    let late = command.arg("--socket").arg(&control).args(["--timeout", "0.5", "qps"]).output().unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    let expected = format!("hcactl: hcad at {} has not replied for 0.5 s\n", control.display());
    assert_eq!(complaint(&late), expected);
    printed(&run(&control, &["qps"]));
}

#[test]
fn devices_command_shows_selected_device() {
    let (_daemon, control) = start();
    let one: Value =
        serde_json::from_str(&printed(&run(&control, &["--json", "--device", "1", "devices"]))).unwrap();
    assert_eq!((one.as_array().unwrap().len(), &one[0]["id"]), (1, &json!(1)));
    let none = run(&control, &["--device", "7", "devices"]);
    assert_eq!(complaint(&none), "hcactl: device 7 does not exist\n");
}

#[test]
fn commands_for_missing_objects_fail() {
    let (_daemon, control) = start();
    for (arguments, error) in [
        (&["--device", "7", "list"][..], "device 7 does not exist"),
        (&["--device", "7", "qps"], "device 7 does not exist"),
        (&["--device", "7", "explain", "qp", "5"], "device 7 does not exist"),
        (&["--device", "7", "port", "up"], "device 7 does not exist"),
        (&["device", "remove", "7"], "device 7 does not exist"),
        (&["explain", "qp", "5"], "QP 0x5 does not exist or is in RESET"),
        (&["explain", "qp", "0x1000005"], "QP number 0x1000005 does not fit in 24 bits"),
        (&["capture", "ring", "64K", "--qpn", "0x1000005"], "QP number 0x1000005 does not fit in 24 bits"),
        (&["trace", "ring", "64K", "--qpn", "0x1000005"], "QP number 0x1000005 does not fit in 24 bits"),
        (&["capture", "on", "x", "--qpn", "0x1000005"], "QP number 0x1000005 does not fit in 24 bits"),
        (&["trace", "on", "x", "--qpn", "0x1000005"], "QP number 0x1000005 does not fit in 24 bits"),
        (&["impair", "clear", "5"], "impairment 5 does not exist"),
        (&["peer", "remove", "127.0.0.1:9"], "127.0.0.1:9"),
        (&["list", "vegetables"], "vegetables"),
    ] {
        for options in [&[][..], &["--json"]] {
            let output = run(&control, &[options, arguments].concat());
            assert!(complaint(&output).contains(error), "{arguments:?}: {output:?}");
            assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
        }
    }
    let output = run(&control, &["--device", "7", "top", "--once"]);
    assert_eq!(complaint(&output), "hcactl: device 7 does not exist\n");
}

#[test]
fn json_option_prints_result_of_each_command() {
    let (daemon, control) = start();
    let file = daemon.folder.path().join("x.pcapng");
    let file = file.to_str().unwrap();
    let json = |arguments: &[&str]| -> Value {
        let arguments = [&["--json"], arguments].concat();
        serde_json::from_str(&printed(&run(&control, &arguments))).unwrap()
    };
    assert_eq!(json(&["capture", "on", file]), json!({ "device": 1, "capture": file }));
    assert_eq!(json(&["capture", "off"]), json!({ "device": 1, "capture": null }));
    assert_eq!(json(&["port", "down"]), json!({ "device": 1, "port": "down" }));
    assert_eq!(json(&["peer", "add", "127.0.0.1:9"]), json!({ "device": 1, "peer": "127.0.0.1:9" }));
    assert_eq!(json(&["impair", "clear"]), json!({ "device": 1, "cleared": null }));
    assert_eq!(printed(&run(&control, &["port", "up"])), "");
}

#[test]
fn fail_command_requires_confirmation() {
    let (_daemon, control) = start();
    let refused = run(&control, &["fail"]);
    assert_eq!(complaint(&refused), "hcactl: standard input is not a terminal; pass --yes to confirm\n");
    assert_eq!(printed(&run(&control, &["--json", "fail", "--yes"])), "{\"device\":1,\"failed\":true}\n");
}

#[test]
fn control_characters_in_rows_are_escaped() {
    let (_daemon, control) = start();
    let mut rows: Value = serde_json::from_str(&printed(&run(&control, &["--json", "devices"]))).unwrap();
    rows[0]["interface"] = json!("\u{1b}[2J");
    let rows: &'static str = Box::leak((json!({ "devices": rows }).to_string() + "\n").into_boxed_str());
    let (_folder, socket) = server(rows.as_bytes());
    let table = printed(&run(&socket, &["devices"]));
    assert!(table.contains("\\u{1b}[2J") && !table.contains('\u{1b}'), "{table:?}");
}
