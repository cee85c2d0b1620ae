//! Tests that the daemon keeps running when its files reach the file size limit (`ulimit -f`, `LimitFSIZE=`).

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::common::{Daemon, hcactl, hcad, until, with_control};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::{Value, json};

/// Returns an `hcad` command with a file size limit of `len` bytes.
fn limited(len: u64) -> Command {
    let mut command = hcad();
    let limit = Rlimit { current: Some(len), maximum: Some(len) };
    // SAFETY: only one system call is made between fork and exec.
    unsafe { command.pre_exec(move || setrlimit(Resource::Fsize, limit).map_err(io::Error::from)) };
    command
}

#[test]
fn daemon_survives_log_size_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (config, _, control) = with_control(folder.path(), &[]);
    let log = folder.path().join("log");
    let mut command = limited(64);
    command.arg("--config").arg(config).stderr(Stdio::from(File::create(&log).unwrap()));
    let mut child = command.spawn().unwrap();
    let serves = || {
        assert_eq!(child.try_wait().unwrap(), None, "hcad must keep running");
        hcactl(&control, &["devices"]).ok()
    };
    until("a reply", serves);
    // The log has a thread of its own, which may write after the reply.
    until("a full log", || (std::fs::metadata(&log).unwrap().len() == 64).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn daemon_survives_output_size_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket, control) = with_control(folder.path(), &[]);
    let mut entry: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    entry["devices"][0]["capture"] = json!(folder.path().join("x.pcapng"));
    std::fs::write(&config, entry.to_string()).unwrap();
    let mut command = limited(16);
    command.arg("--config").arg(config);
    let mut daemon = Daemon::ready(command, folder, socket);
    for (what, name) in [("trace", "x.trace"), ("record", "x.record")] {
        let file = daemon.folder.path().join(name);
        // The trace or the recording may stop immediately or fail to start.
        let _ = hcactl(&control, &[what, "on", file.to_str().unwrap()]);
    }
    let _ = hcactl(&control, &["capture", "off"]);
    until("a reply", || hcactl(&control, &["devices"]).ok());
    assert_eq!(daemon.child.try_wait().unwrap(), None);
    assert!(std::fs::metadata(daemon.folder.path().join("x.pcapng")).unwrap().len() <= 16);
}

#[test]
fn daemon_survives_ring_size_limit() {
    let folder = tempfile::tempdir().unwrap();
    let ring = folder.path().join("ring");
    let device = |id: u16| {
        json!({
            "id": id,
            "socket_path": folder.path().join(format!("{id}.sock")),
            "frontend": { "jingzhao": {} },
            "fabric": { "ring": { "folder": ring } },
        })
    };
    let (config, control) = (folder.path().join("hcad.json"), folder.path().join("control.sock"));
    let devices = json!({ "control_socket": control, "devices": [device(1), device(2)] });
    std::fs::write(&config, devices.to_string()).unwrap();
    let mut command = limited(4096);
    command.arg("--config").arg(config);
    let mut daemon = Daemon::of(command.spawn().unwrap(), folder, control.clone());
    daemon.wait_for_line("File too large");
    until("a reply", || hcactl(&control, &["devices"]).ok());
}
