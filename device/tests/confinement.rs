//! Tests the sandbox of `hcad` from outside: checks the process status in `/proc` and requests operations that must be
//! rejected.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Daemon, NO_LANDLOCK, hcactl, hcad, skip, with_control};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::{Value, json};

/// Starts a daemon. Also returns its control socket and the log line about its sandbox.
fn start(more: &[(&str, Value)], prepare: impl FnOnce(&mut Command)) -> (Daemon, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket, control) = with_control(folder.path(), more);
    let mut command = hcad();
    command.arg("--config").arg(config);
    prepare(&mut command);
    let child = command.spawn().unwrap();
    let mut daemon = Daemon::of(child, folder, socket);
    let line = daemon.wait_for_line("sandbox ");
    daemon.wait_for_line("ready");
    (daemon, control, line)
}

/// Returns the value of `key` in the status of each thread.
fn statuses(daemon: &Daemon, key: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.child.id())).unwrap();
    // A thread may end before its status is read.
    let status = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
        Some(line.trim().to_owned())
    };
    tasks.filter_map(status).collect()
}

#[test]
fn sandbox_covers_all_threads_and_is_logged() {
    let (daemon, _, line) = start(&[], |_| ());
    assert!(line.contains("INFO") && line.contains("sandbox active: "), "{line}");
    assert!(line.contains("seccomp") && line.contains("no new privileges"), "{line}");
    // The daemon has at least a main thread, a log thread and one device thread.
    let filters = statuses(&daemon, "Seccomp");
    assert!(filters.len() >= 3 && filters.iter().all(|mode| mode == "2"), "{filters:?}");
    assert!(statuses(&daemon, "NoNewPrivs").iter().all(|set| set == "1"));
}

#[test]
fn files_are_created_only_in_configured_directories() {
    let (other, allowed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let writable = json!({ "writable": [allowed.path()] });
    let (_daemon, control, line) = start(&[("confinement", writable)], |_| ());
    if !line.contains("landlock ABI") {
        // The rest of the test needs Landlock.
        assert!(line.contains("this host does not support landlock"), "{line}");
        return skip(NO_LANDLOCK);
    }
    for what in ["capture", "trace"] {
        let path = |folder: &Path| folder.join(what).to_str().unwrap().to_owned();
        // The control socket's directory is not writable, since `confinement` replaces the setting from `with_control`.
        for folder in [other.path(), control.parent().unwrap()] {
            let file = path(folder);
            let error = hcactl(&control, &[what, "on", &file]).unwrap_err();
            let expected = format!(
                "hcactl: cannot create {file}: the sandbox allows new files only under {}; to allow another directory, add it to `confinement.writable`\n",
                allowed.path().display()
            );
            assert_eq!(error, expected);
            assert!(!Path::new(&file).exists());
        }
        hcactl(&control, &[what, "on", &path(allowed.path())]).unwrap();
        hcactl(&control, &[what, "off"]).unwrap();
        assert!(allowed.path().join(what).exists());
    }
}

#[test]
fn default_writable_directory_is_next_to_control_socket() {
    let (daemon, control, line) = start(&[("confinement", json!({}))], |_| ());
    let own = daemon.folder.path().join("control.files");
    assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
    hcactl(&control, &["capture", "on", own.join("x.pcapng").to_str().unwrap()]).unwrap();
    if line.contains("landlock ABI") {
        let beside = daemon.folder.path().join("x.trace");
        let error = hcactl(&control, &["trace", "on", beside.to_str().unwrap()]).unwrap_err();
        assert!(error.contains(&format!("new files only under {}; ", own.display())), "{error}");
    }
}

#[test]
fn files_directory_writable_by_others_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (config, _, _) = with_control(folder.path(), &[("confinement", json!({}))]);
    std::os::unix::fs::symlink("/tmp", folder.path().join("control.files")).unwrap();
    let output = hcad().arg("--config").arg(&config).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(
        line.contains("control.files must be a directory that only the user that runs hcad can write to"),
        "{line}"
    );
}

#[test]
fn every_thread_drops_capabilities() {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket, _) = with_control(folder.path(), &[]);
    let mut entry: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    // Enable recording, whose writer thread starts before the sandbox is complete.
    entry["devices"][0]["record"] = json!(folder.path().join("x.record"));
    std::fs::write(&config, entry.to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(config);
    let mut daemon = Daemon::of(command.spawn().unwrap(), folder, socket);
    let line = daemon.wait_for_line("sandbox ");
    assert!(line.contains("no capabilities, "), "{line}");
    daemon.wait_for_line("ready");
    for key in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let sets = statuses(&daemon, key);
        assert!(sets.len() >= 4 && sets.iter().all(|set| set == "0000000000000000"), "{key}: {sets:?}");
    }
    if rustix::process::geteuid().is_root() {
        let bounds = statuses(&daemon, "CapBnd");
        assert!(bounds.iter().all(|set| set == "0000000000000000"), "{bounds:?}");
    }
}

#[test]
fn sandbox_keeps_capabilities_that_later_devices_need() {
    if !rustix::process::geteuid().is_root() {
        return skip("root: the user is not root");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(elsewhere.path(), Some(65_534), Some(65_534)).unwrap();
    let confinement = json!({ "writable": [elsewhere.path()], "tap": true });
    let (_daemon, control, line) =
        start(&[("confinement", confinement), ("socket_group", json!(4711))], |_| ());
    assert!(line.contains("no capabilities except CAP_DAC_OVERRIDE CAP_NET_ADMIN"), "{line}");
    hcactl(&control, &["capture", "on", elsewhere.path().join("x").to_str().unwrap()]).unwrap();
    let mut entry = json!({
        "id": 2,
        "frontend": { "jingzhao": {} },
        "fabric": { "udp": { "bind": "127.0.0.1:0", "peers": [] } },
    });
    let later = control.with_file_name("later.sock");
    entry["socket_path"] = json!(later);
    let file = control.with_file_name("later.json");
    std::fs::write(&file, entry.to_string()).unwrap();
    hcactl(&control, &["device", "add", file.to_str().unwrap()]).unwrap();
    assert_eq!(std::fs::metadata(later).unwrap().gid(), 4711, "the socket belongs to the configured group");
}

#[test]
fn disabled_sandbox_restricts_nothing() {
    let off = json!({ "enabled": false });
    let by_file = start(&[("confinement", off)], |_| ());
    let by_option = start(&[], |command| {
        command.arg("--no-confinement");
    });
    let other = tempfile::tempdir().unwrap();
    for (name, (daemon, control, line)) in [("a", by_file), ("b", by_option)] {
        assert!(line.contains("sandbox disabled"), "{line}");
        for key in ["Seccomp", "NoNewPrivs"] {
            // The value must be the same as in this process.
            let own = std::fs::read_to_string("/proc/self/status").unwrap();
            let own = own.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
            assert!(statuses(&daemon, key).iter().all(|value| value == own.trim()), "{key}");
        }
        let file = other.path().join(name);
        hcactl(&control, &["capture", "on", file.to_str().unwrap()]).unwrap();
    }
}

#[test]
fn missing_kernel_feature_is_reported_and_tolerated() {
    // The system call number is the same on all architectures.
    const LANDLOCK_CREATE_RULESET: i64 = 444;
    for (call, missing) in [
        (LANDLOCK_CREATE_RULESET, "this host does not support landlock (not supported by the kernel)"),
        (libc::SYS_seccomp, "this host does not support seccomp (not supported by the kernel)"),
    ] {
        let filter = without(call);
        let (daemon, control, line) = start(&[], |command| {
            // SAFETY: only two system calls are made between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    seccompiler::apply_filter(&filter).map_err(|_| std::io::Error::last_os_error())
                });
            }
        });
        assert!(line.contains(missing) && line.contains("no new privileges"), "{line}");
        let file = daemon.folder.path().join("x.trace");
        hcactl(&control, &["trace", "on", file.to_str().unwrap()]).unwrap();
    }
}

/// Returns a filter that simulates a kernel without the given system call.
fn without(call: i64) -> BpfProgram {
    let refusal = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let rules = [(call, Vec::new())].into();
    SeccompFilter::new(rules, SeccompAction::Allow, refusal, architecture).unwrap().try_into().unwrap()
}

#[test]
fn nonexistent_writable_directory_is_configuration_error() {
    let folder = tempfile::tempdir().unwrap();
    let more = [("confinement", json!({ "writable": ["/nonexistent"] }))];
    let (config, _, _) = with_control(folder.path(), &more);
    let output = hcad().arg("--config").arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8(output.stderr).unwrap();
    let expected = format!("hcad: {}: confinement.writable[0]: /nonexistent: No such file", config.display());
    assert!(line.starts_with(&expected), "{line}");
}
