use tempfile::TempDir;

use super::*;

/// Devices that do not hang stop within this time, even on a loaded host.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// A worker that either stops on request or hangs.
struct Stub {
    hangs: bool,
}

impl Run for Stub {
    fn run(self: Box<Self>, mailbox: &mut Mailbox) -> io::Result<Ended> {
        if self.hangs {
            loop {
                thread::park();
            }
        }
        while !mailbox.is_stopped_within(STOP_TIMEOUT) {}
        Ok(Ended::Shutdown)
    }
}

fn device(folder: &TempDir, id: usize) -> String {
    let socket = folder.path().join(id.to_string());
    let socket = socket.display();
    format!(
        r#"{{"id": {id}, "frontend": {{"mthca": {{}}}}, "fabric": {{"local": {{}}}}, "socket_path": "{socket}"}}"#
    )
}

/// Creates a fleet with one device per element of `hang`. IDs start at 1. A device hangs if its element is true.
fn fleet(folder: &TempDir, hang: &[bool]) -> Fleet {
    let devices: Vec<_> = (1..=hang.len()).map(|id| device(folder, id)).collect();
    let text = format!(r#"{{"devices": [{}]}}"#, devices.join(","));
    let config = Config::from_text(&text, "test".as_ref()).unwrap();
    let (mut fleet, devices) = Fleet::new(config, Inherited::default(), origin());
    let Prepared(mut made) = fleet.prepare(devices).unwrap();
    for (made, hangs) in made.iter_mut().zip(hang) {
        made.worker = Box::new(Stub { hangs: *hangs });
    }
    fleet.start(Prepared(made)).unwrap();
    fleet.stop_timeout = LONG_TIMEOUT;
    fleet
}

/// The origin of a configuration that is not a file.
fn origin() -> Origin {
    Origin { path: None, parse: Box::new(|text, _| Config::from_unnamed_text(text)) }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn files(folder: &TempDir) -> usize {
    std::fs::read_dir(folder.path()).unwrap().count()
}

#[test]
fn shutdown_abandons_hung_device_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&folder, &[false, true, false]);
    for id in [1, 3] {
        block_on(fleet.remove(id)).unwrap();
    }
    fleet.stop_timeout = STOP_TIMEOUT;
    let error = block_on(fleet.end()).unwrap_err();
    assert_eq!(error.to_string(), "hca2 did not stop within 2 s");
    assert_eq!(files(&folder), 0, "all sockets are removed");
}

#[test]
fn removed_device_keeps_its_id_while_hung() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&folder, &[true, false]);
    let registry = fleet.registry();
    fleet.stop_timeout = STOP_TIMEOUT;
    let error = block_on(fleet.remove(1)).unwrap_err().to_string();
    assert_eq!(error, "hca1 did not stop within 2 s and will be removed when it stops");
    assert_eq!(files(&folder), 1, "the socket of the hung device is removed");
    assert!(block_on(fleet.remove(1)).unwrap_err().to_string().contains("has not stopped yet"));
    let entry = serde_json::from_str(&device(&folder, 1)).unwrap();
    let error = fleet.add(entry).unwrap_err().to_string();
    assert_eq!(error, "device.id: 1 is already used by hca1");
    fleet.stop_timeout = LONG_TIMEOUT;
    block_on(fleet.remove(2)).unwrap();
    assert_eq!(registry.borrow().len(), 1);
}

#[test]
fn reload_works_without_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&folder, &[false]);
    let text = format!(r#"{{"devices": [{}, {}]}}"#, device(&folder, 1), device(&folder, 2));
    let reloaded = block_on(fleet.reload(&text)).unwrap();
    assert_eq!((reloaded.added, reloaded.removed, reloaded.unchanged), (vec![2], vec![], vec![1]));
    block_on(fleet.end()).unwrap();
}

#[test]
fn reload_moves_port_to_overlapping_address() {
    let folder = tempfile::tempdir().unwrap();
    // By default, Linux does not assign ports below 32768 to sockets that are bound to port 0.
    let port = 22_000 + std::process::id() % 8192;
    let text = |id: usize, ip: &str| {
        let udp = format!(r#"{{"udp": {{"bind": "{ip}:{port}", "peers": []}}}}"#);
        format!(r#"{{"devices": [{}]}}"#, device(&folder, id).replace(r#"{"local": {}}"#, &udp))
    };
    let config = Config::from_unnamed_text(&text(1, "0.0.0.0")).unwrap();
    let (mut fleet, devices) = Fleet::new(config, Inherited::default(), origin());
    fleet.stop_timeout = LONG_TIMEOUT;
    let prepared = fleet.prepare(devices).unwrap();
    fleet.start(prepared).unwrap();
    // The kernel rejects the new address until the old device has stopped.
    let reloaded = block_on(fleet.reload(&text(2, "127.0.0.1"))).unwrap();
    assert_eq!((reloaded.added, reloaded.removed, reloaded.problems), (vec![2], vec![1], Vec::new()));
    block_on(fleet.end()).unwrap();
}
