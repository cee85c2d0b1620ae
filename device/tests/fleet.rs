//! Tests adding and removing devices while `hcad` runs, with `hcactl device` and by reloading the configuration.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{
    self, Daemon, NO_LANDLOCK, PORT, TIMEOUT, hcactl_command, hcad, landlock_abi, loopback, skip, until,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Resource, Rlimit, prlimit, setrlimit};
use serde_json::{Value, json};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use vfio_user::Client;

/// Returns the configuration of device `id` on the local fabric.
fn device(folder: &Path, id: u16) -> Value {
    json!({
        "id": id,
        "frontend": { "mthca": {} },
        "fabric": { "local": {} },
        "socket_path": folder.join(format!("{id}.sock")),
    })
}

fn write(folder: &Path, devices: &[Value], more: &[(&str, Value)]) -> PathBuf {
    let mut config = json!({ "devices": devices, "control_socket": folder.join("control.sock") });
    for (key, value) in more {
        config[key] = value.clone();
    }
    let path = folder.join("hcad.json");
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// Starts a daemon with `devices` and extra configuration keys. Its configuration file is in `folder`.
fn start(folder: TempDir, devices: &[Value], more: &[(&str, Value)]) -> Daemon {
    let mut command = hcad();
    command.arg("--config").arg(write(folder.path(), devices, more));
    let socket = folder.path().join("1.sock");
    Daemon::ready(command, folder, socket)
}

fn control(daemon: &Daemon) -> PathBuf {
    daemon.folder.path().join("control.sock")
}

fn hcactl(daemon: &Daemon, arguments: &[&str]) -> Result<String, String> {
    common::hcactl(&control(daemon), arguments)
}

/// Runs `hcactl`. Returns its standard output, or its standard error if it fails.
fn outcome(mut command: Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn add(daemon: &Daemon, entry: &Value) -> Result<String, String> {
    let path = daemon.folder.path().join("input");
    fs::write(&path, entry.to_string()).unwrap();
    let mut command = hcactl_command(&control(daemon));
    command.args(["device", "add", "-"]).stdin(fs::File::open(path).unwrap());
    outcome(command)
}

/// Returns the IDs of the devices, in the order of `hcactl devices`.
fn devices(daemon: &Daemon) -> Vec<u64> {
    let rows: Value = serde_json::from_str(&hcactl(daemon, &["--json", "devices"]).unwrap()).unwrap();
    rows.as_array().unwrap().iter().map(|row| row["id"].as_u64().unwrap()).collect()
}

/// Connects to a device as a VMM does.
fn connect(daemon: &Daemon, id: u16) -> Client {
    Client::new(&daemon.folder.path().join(format!("{id}.sock"))).unwrap()
}

/// Returns whether the device still serves this VMM.
fn is_served(client: &mut Client) -> bool {
    let mut id = [0; 2];
    client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut id).is_ok() && u16::from_le_bytes(id) == 0x15b3
}

fn hang_up(daemon: &Daemon) {
    let pid = libc::pid_t::try_from(daemon.child.id()).unwrap();
    // SAFETY: sends a signal to a child that has not been reaped, so its process ID is still valid.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGHUP) }, 0);
}

fn has_landlock() -> bool {
    landlock_abi() > 0
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn device_changes_do_not_disturb_other_devices() {
    let folder = folder();
    let first = device(folder.path(), 1);
    let daemon = start(folder, &[first], &[]);
    let path = daemon.folder.path();
    let mut one = connect(&daemon, 1);

    let socket = add(&daemon, &device(path, 2)).unwrap();
    assert_eq!(socket, format!("{}\n", path.join("2.sock").display()));
    assert_eq!(fs::metadata(path.join("2.sock")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(devices(&daemon), [1, 2]);
    let mut two = connect(&daemon, 2);
    assert!(is_served(&mut one) && is_served(&mut two));
    hcactl(&daemon, &["--device", "2", "counters"]).unwrap();

    let refused = hcactl(&daemon, &["device", "remove", "2"]).unwrap_err();
    assert_eq!(refused, "hcactl: standard input is not a terminal; pass --yes to confirm\n");
    assert_eq!(hcactl(&daemon, &["device", "remove", "2", "--yes"]), Ok(String::new()));
    assert_eq!(devices(&daemon), [1]);
    assert!(!is_served(&mut two) && !path.join("2.sock").exists());
    assert!(is_served(&mut one));
    let error = hcactl(&daemon, &["device", "remove", "2"]).unwrap_err();
    assert_eq!(error, "hcactl: device 2 does not exist\n");

    // The ID, MAC and socket path can be reused, even if a killed process left its socket file behind.
    drop(UnixListener::bind(path.join("2.sock")).unwrap());
    add(&daemon, &device(path, 2)).unwrap();
    assert!(is_served(&mut connect(&daemon, 2)) && is_served(&mut one));
}

#[test]
fn last_device_can_be_replaced() {
    let folder = folder();
    let first = device(folder.path(), 1);
    let daemon = start(folder, &[first], &[]);
    hcactl(&daemon, &["device", "remove", "1"]).unwrap();
    assert_eq!(devices(&daemon), [0_u64; 0]);
    add(&daemon, &device(daemon.folder.path(), 3)).unwrap();
    assert!(is_served(&mut connect(&daemon, 3)));
}

#[test]
fn rejected_device_changes_nothing() {
    let folder = folder();
    let (elsewhere, taken) = (self::folder(), std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut first = device(folder.path(), 1);
    let own = SocketAddr::new(loopback(4, 1), PORT).to_string();
    first["fabric"] = json!({ "udp": { "bind": own, "peers": [] } });
    let mut daemon = start(folder, &[first], &[]);
    let mut one = connect(&daemon, 1);
    let path = daemon.folder.path().to_owned();
    let with = |key: &str, value: Value| {
        let mut entry = device(&path, 2);
        entry[key] = value;
        entry
    };
    let udp = |bind: &str| json!({ "udp": { "bind": bind, "peers": [] } });
    let in_use = format!("device.fabric.udp.bind: {own} is already used by hca1");
    let cases = [
        (json!([1]), "standard input: invalid type: sequence, expected a JSON object"),
        (with("id", json!("two")), "device.id: invalid type"),
        (with("sockt", json!(1)), "device.sockt: unknown field `sockt`"),
        (with("id", json!(1)), "device.id: 1 is already used by hca1"),
        (with("mac", json!("02:00:00:00:00:01")), "device.mac: 02:00:00:00:00:01 is already used by hca1"),
        (with("fabric", udp(&own)), in_use.as_str()),
        (
            with("fabric", udp(&taken.local_addr().unwrap().to_string())),
            "device.fabric.udp.bind: cannot open 127.0.0.1:",
        ),
        (with("socket_path", json!(path.join("1.sock"))), "1.sock is already used by hca1.socket_path"),
        (with("capture", json!(path.join("control.sock"))), "control.sock is already used by control_socket"),
        (with("guest_memory", json!({ "max_gib": 65536 })), "device.guest_memory.max_gib: 65536 GiB exceeds"),
    ];
    for (entry, expected) in cases {
        let error = add(&daemon, &entry).unwrap_err();
        assert!(
            error.starts_with("hcactl: ") && error.contains(expected),
            "{error:?} should contain {expected:?}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let confined = [
        (with("socket_path", json!(elsewhere.path().join("s"))), "add more with `confinement.sockets`"),
        (
            with("capture", json!(elsewhere.path().join("c"))),
            "to allow another directory, add it to `confinement.writable`",
        ),
        (with("fabric", json!({ "tap": { "interface": "t" } })), "device.fabric.tap: no device used the tap"),
        (
            with("fabric", json!({ "ring": { "folder": path } })),
            "device.fabric.ring: no device used the ring",
        ),
        (with("socket_group", json!(1)), "device.socket_group: group 1 was not set as a `socket_group`"),
    ];
    if !has_landlock() {
        skip(NO_LANDLOCK);
    }
    for (entry, expected) in confined.into_iter().filter(|_| has_landlock()) {
        let error = add(&daemon, &entry).unwrap_err();
        assert!(error.contains(expected), "{error:?} should contain {expected:?}");
    }
    assert_eq!(devices(&daemon), [1]);
    assert!(!path.join("2.sock").exists());
    assert!(is_served(&mut one));
    add(&daemon, &device(&path, 2)).unwrap();
    daemon.wait_for_line("cannot add the device: device.id: ");
}

#[test]
fn sandbox_allows_configured_paths_for_added_devices() {
    let folder = folder();
    let elsewhere = self::folder();
    let group = rustix::process::getegid().as_raw();
    let first = device(folder.path(), 1);
    let confinement = json!({ "sockets": [elsewhere.path()], "writable": [elsewhere.path()] });
    let daemon = start(folder, &[first], &[("confinement", confinement), ("socket_group", json!(group))]);
    let mut entry = device(elsewhere.path(), 2);
    entry["capture"] = json!(elsewhere.path().join("c.pcapng"));
    add(&daemon, &entry).unwrap();
    let made = fs::metadata(elsewhere.path().join("2.sock")).unwrap();
    assert_eq!((made.permissions().mode() & 0o777, made.gid()), (0o660, group));
    assert!(is_served(&mut Client::new(&elsewhere.path().join("2.sock")).unwrap()));
    assert!(elsewhere.path().join("c.pcapng").exists());
}

#[test]
fn sandbox_allows_added_device_to_join_ring() {
    let folder = folder();
    let first = device(folder.path(), 1);
    let ring = json!({ "ring": { "folder": folder.path() } });
    let daemon = start(folder, &[first], &[("confinement", json!({ "ring": true }))]);
    let path = daemon.folder.path();
    for id in [2, 3] {
        let mut entry = device(path, id);
        entry["fabric"] = ring.clone();
        add(&daemon, &entry).unwrap();
    }
    // The sandbox forbids creating directories.
    let mut entry = device(path, 4);
    entry["fabric"] = json!({ "ring": { "folder": path.join("new") } });
    let missing = add(&daemon, &entry).map_err(|error| error.contains("device.fabric.ring.folder: "));
    assert!(if has_landlock() { missing == Err(true) } else { missing.is_ok() });
    let members = || {
        let text = hcactl(&daemon, &["--json", "--device", "3", "peer", "list"]).unwrap();
        text.contains("02:00:00:00:00:02").then_some(())
    };
    until("the other member", members);
}

#[test]
fn reload_restarts_only_changed_devices() {
    let folder = folder();
    let [one, two, three] = [1, 2, 3].map(|id| device(folder.path(), id));
    // A reload compares the peer's name without resolving it, so this device counts as unchanged.
    let mut named = device(folder.path(), 4);
    named["fabric"] =
        json!({ "udp": { "bind": "127.0.0.1:0", "peers": [{ "addr": "localhost:9", "id": 9 }] } });
    let mut daemon = start(folder, &[one.clone(), two.clone(), three, named.clone()], &[]);
    let path = daemon.folder.path().to_owned();
    add(&daemon, &device(&path, 7)).unwrap();
    let mut clients = [1, 2, 3, 4, 7].map(|id| connect(&daemon, id));

    let mut changed = two;
    changed["strict"] = json!(true);
    write(&path, &[one, changed, named, device(&path, 5)], &[("log", json!({ "format": "json" }))]);
    let reloaded = hcactl(&daemon, &["--json", "reload"]).unwrap();
    let expected = json!({
        "added": [5], "removed": [3], "changed": [2], "unchanged": [1, 4], "not_changed": ["log"], "problems": [],
    });
    assert_eq!(serde_json::from_str::<Value>(&reloaded).unwrap(), expected);
    let served = clients.each_mut().map(is_served);
    assert_eq!(served, [true, false, false, true, true], "devices 2 and 3 are replaced or removed");
    assert!(is_served(&mut connect(&daemon, 2)) && is_served(&mut connect(&daemon, 5)));
    assert!(!path.join("3.sock").exists());
    let mut there = devices(&daemon);
    there.sort_unstable();
    assert_eq!(there, [1, 2, 4, 5, 7], "the device added by hcactl remains");
    daemon.wait_for_line("setting cannot be changed by a reload; restart hcad to apply the new value");

    // A reload without a change has no effect.
    let again = hcactl(&daemon, &["reload"]).unwrap();
    assert!(again.starts_with("unchanged: 1, 2, 4, 5\n"), "{again}");
    assert!(is_served(&mut clients[0]));
}

#[test]
fn reload_changes_log_filter() {
    let folder = folder();
    let one = device(folder.path(), 1);
    let mut daemon = start(
        folder,
        std::slice::from_ref(&one),
        &[("log", json!({ "filter": "warn,device::daemon=info" }))],
    );
    let path = daemon.folder.path().to_owned();
    let reload = |filter: &str| {
        write(&path, std::slice::from_ref(&one), &[("log", json!({ "filter": filter }))]);
        hcactl(&daemon, &["reload"]).unwrap()
    };
    assert_eq!(reload("info"), "unchanged: 1\n");
    // The initial filter would have suppressed this line.
    daemon.wait_for_line("INFO device::fleet: configuration reloaded ");
}

#[test]
fn reload_of_invalid_file_changes_nothing() {
    let folder = folder();
    let [one, two] = [1, 2].map(|id| device(folder.path(), id));
    let mut daemon = start(folder, &[one.clone(), two.clone()], &[]);
    let path = daemon.folder.path().to_owned();
    let mut clients = [1, 2].map(|id| connect(&daemon, id));
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut in_use = device(&path, 3);
    in_use["fabric"] = json!({ "udp": { "bind": taken.local_addr().unwrap(), "peers": [] } });
    let mut elsewhere = device(&path, 3);
    elsewhere["socket_path"] = json!("/nonexistent/s");
    add(&daemon, &device(&path, 7)).unwrap();
    let mut like_added = device(&path, 8);
    like_added["mac"] = json!("02:00:00:00:00:07");
    for (devices, problem) in [
        (vec![], "devices: at least one device is required"),
        (vec![one.clone(), one.clone()], "devices[1].id: 1 is already used by devices[0]"),
        // The MAC conflicts only with a device that is not in the file.
        (vec![one.clone(), like_added], "devices[1].mac: 02:00:00:00:00:07 is already used by hca7"),
        (vec![one.clone(), elsewhere], "devices[1].socket_path: cannot access /nonexistent"),
        // This conflict is detected only when the device is created. Device 2 must remain, although it is no longer in
        // the file.
        (vec![one, device(&path, 4), in_use], "devices[2].fabric.udp.bind: cannot open 127.0.0.1:"),
    ] {
        write(&path, &devices, &[]);
        let error = hcactl(&daemon, &["reload"]).unwrap_err();
        let expected = format!("cannot load {}: {problem}", path.join("hcad.json").display());
        assert!(error.contains(&expected), "{error:?} should contain {expected:?}");
        assert_eq!(error.lines().count(), 1, "{error}");
        let line = daemon.wait_for_line("cannot reload the configuration: ");
        assert!(line.contains(problem), "{line}");
    }
    fs::write(path.join("hcad.json"), "{").unwrap();
    assert!(hcactl(&daemon, &["reload"]).unwrap_err().contains("EOF while parsing"));
    assert_eq!(self::devices(&daemon), [1, 2, 7]);
    assert!(clients.iter_mut().all(is_served));
    assert!(!path.join("4.sock").exists());
}

/// The daemon reads the file on SIGHUP, and `hcactl` reads it for `hcactl reload`. Neither accepts a special file.
#[test]
fn reload_rejects_device_files_and_fifos() {
    let folder = folder();
    let one = device(folder.path(), 1);
    // The sandbox is disabled, because it would prevent the daemon from opening special files.
    let mut daemon = start(folder, &[one], &[("confinement", json!({ "enabled": false }))]);
    let mut client = connect(&daemon, 1);
    // With this limit, an attempt to read all of /dev/zero fails.
    let most = Some(1 << 30);
    let limit = Rlimit { current: most, maximum: most };
    prlimit(Some(Pid::from_child(&daemon.child)), Resource::Data, limit).unwrap();
    let path = daemon.folder.path().join("hcad.json");
    for kind in ["a character device", "a FIFO"] {
        fs::remove_file(&path).unwrap();
        if kind == "a FIFO" {
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        } else {
            symlink("/dev/zero", &path).unwrap();
        }
        let expected = format!("cannot read {}: not a regular file but {kind}", path.display());
        hang_up(&daemon);
        let line = daemon.wait_for_line("cannot reload the configuration: ");
        assert!(line.contains(&expected), "{line}");

        let mut command = hcactl_command(&control(&daemon));
        command.arg("reload");
        // SAFETY: only one system call is made between fork and exec.
        unsafe { command.pre_exec(move || setrlimit(Resource::Data, limit).map_err(io::Error::from)) };
        assert_eq!(outcome(command), Err(format!("hcactl: {expected}\n")));
        assert_eq!(devices(&daemon), [1]);
        assert!(is_served(&mut client));
    }
}

#[test]
fn changed_device_is_retried_until_creation_succeeds() {
    let folder = folder();
    let one = device(folder.path(), 1);
    let daemon = start(folder, std::slice::from_ref(&one), &[]);
    let path = daemon.folder.path();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut changed = one;
    changed["fabric"] = json!({ "udp": { "bind": taken.local_addr().unwrap(), "peers": [] } });
    write(path, &[changed], &[]);
    assert_eq!(hcactl(&daemon, &["reload"]).unwrap(), "changed: 1\n");
    let row = || -> Value {
        let rows = hcactl(&daemon, &["--json", "devices"]).unwrap();
        serde_json::from_str::<Value>(&rows).unwrap()[0].clone()
    };
    until("the failure", || (row()["restarts"].as_u64() > Some(0)).then_some(()));
    assert!(row()["problem"].as_str().unwrap().contains("cannot open 127.0.0.1:"), "{}", row());
    drop(taken);
    until("the device", || (row()["state"] == "running").then_some(()));
    assert!(is_served(&mut connect(&daemon, 1)));
}

#[test]
fn sighup_reloads_and_notifies_service_manager() {
    let folder = folder();
    let [one, two] = [1, 2].map(|id| device(folder.path(), id));
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = hcad();
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    command.arg("--config").arg(write(folder.path(), std::slice::from_ref(&one), &[]));
    let mut daemon = Daemon::ready(command, folder, PathBuf::new());
    let mut client = connect(&daemon, 1);
    let path = daemon.folder.path().to_owned();

    write(&path, &[one.clone(), two.clone()], &[]);
    hang_up(&daemon);
    daemon.wait_for_line("reloaded added=[2] removed=[] changed=[] unchanged=1");
    let next_message = || {
        let mut message = [0; 256];
        let len = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    };
    assert_eq!(next_message(), "READY=1\nSTATUS=devices: 1");
    assert!(next_message().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(next_message(), "READY=1\nSTATUS=devices: 2");
    assert!(is_served(&mut client) && is_served(&mut connect(&daemon, 2)));

    fs::write(path.join("hcad.json"), "{").unwrap();
    hang_up(&daemon);
    daemon.wait_for_line("cannot reload the configuration: ");
    assert!(is_served(&mut client));

    // Replace the file. The sandbox prevents the daemon from reading the new file, but hcactl can read it.
    fs::remove_file(path.join("hcad.json")).unwrap();
    write(&path, &[one, two], &[]);
    if !has_landlock() {
        return skip(NO_LANDLOCK);
    }
    hang_up(&daemon);
    let line = daemon.wait_for_line("cannot reload the configuration: ");
    assert!(line.contains("Permission denied") && line.contains("Use `hcactl reload`"), "{line}");
    assert_eq!(hcactl(&daemon, &["reload"]).unwrap().lines().next(), Some("unchanged: 1, 2"));
}

#[test]
fn sandbox_allows_reload_of_replaced_file() {
    let folder = folder();
    let one = device(folder.path(), 1);
    let readable = json!({ "readable": [folder.path()] });
    let mut daemon = start(folder, std::slice::from_ref(&one), &[("confinement", readable.clone())]);
    let path = daemon.folder.path();
    fs::remove_file(path.join("hcad.json")).unwrap();
    write(path, &[one, device(path, 2)], &[("confinement", readable)]);
    hang_up(&daemon);
    daemon.wait_for_line("reloaded added=[2]");
}
