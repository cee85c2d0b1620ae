use std::sync::mpsc as sync_mpsc;

use card::identity::Identity;
use card::record::Header;
use card::telemetry::trace::Kind;
use protocol::ids::Lid;
use serde_json::Map;
use tokio::sync::{oneshot, watch};

use super::*;
use crate::control::call::{Mailbox, mailbox};
use crate::control::registry::changes;

/// Returns a service with one device, and the mailbox of the device.
fn service() -> (Service, Mailbox) {
    let (handle, mailbox) = mailbox().unwrap();
    let device = Device {
        id: 1,
        interface: "mthca",
        name: "hca1".to_owned(),
        identity: Identity::from_lid(Lid::new(1)),
        socket: None,
        capture_max_bytes: u64::MAX,
        trace_max_bytes: u64::MAX,
        record_max_bytes: u64::MAX,
        header: Header::new("hca1", Map::new()),
        names: None,
        handle,
    };
    let registry = watch::Sender::new(Arc::from([Arc::new(device)])).subscribe();
    let idle_limit = Duration::from_secs(3600);
    (Service { registry, changes: changes().0, configuration: None, idle_limit }, mailbox)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A file whose flush reports that it has begun, and then blocks until it is released.
struct SlowFile {
    begun: Option<oneshot::Sender<()>>,
    released: sync_mpsc::Receiver<()>,
}

impl io::Write for SlowFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(begun) = self.begun.take() {
            let _ = begun.send(());
        }
        self.released.recv_timeout(Duration::from_secs(60)).map_err(io::Error::other)
    }
}

#[test]
fn slow_close_of_trace_blocks_no_task() {
    let (service, mut mailbox) = service();
    let (begun, has_begun) = oneshot::channel();
    let (release, released) = sync_mpsc::channel();
    let file = SlowFile { begun: Some(begun), released };
    let device = async {
        loop {
            for call in mailbox.take() {
                if let Call::SetTrace(None, answer) = call {
                    let mut trace = Trace::new(Box::new(file), Path::new("trace"), TraceFormat::Text, "hca1");
                    trace.record(Kind::Wqe, "send", |_| {});
                    return answer.send(Some(trace)).is_ok();
                }
            }
            tokio::task::yield_now().await;
        }
    };
    let other = async {
        assert!(device.await);
        has_begun.await.unwrap();
        release.send(())
    };
    let (answer, released) =
        run(async { tokio::join!(answer(Request::TraceOff { device: 1 }, &service), other) });
    assert_eq!(answer.map_err(|error| error.to_string()), Ok(Response::Done {}));
    released.unwrap();
}

#[test]
fn seventeenth_client_is_rejected_with_reason() {
    async fn read(client: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        client.read_line(&mut line).await.unwrap();
        line
    }
    async fn is_served(client: &mut BufReader<UnixStream>) -> bool {
        client.write_all(b"{\"tables\":{}}\n").await.unwrap();
        read(client).await.starts_with("{\"tables\":")
    }
    let (service, _mailbox) = service();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = Listener::bind(&path).unwrap();
    let connect = async || BufReader::new(UnixStream::connect(&path).await.unwrap());
    run(async {
        let clients = async {
            let mut clients = Vec::new();
            for _ in 0..16 {
                let mut client = connect().await;
                assert!(is_served(&mut client).await);
                clients.push(client);
            }
            let rejected = read(&mut connect().await).await;
            assert_eq!(rejected, "{\"error\":\"too many control clients, maximum is 16\"}\n");
            for client in &mut clients {
                assert!(is_served(client).await);
            }
        };
        tokio::select! {
            ended = serve(&listener, service) => panic!("{ended:?}"),
            () = clients => {}
        }
    });
}

#[test]
fn failed_capture_leaves_no_files() {
    let (service, mailbox) = service();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.pcapng");
    drop(mailbox);
    let device = service.registry.borrow()[0].clone();
    let keep = Keep::Files { path, count: NonZeroU16::new(2).unwrap() };
    let capture = Capture::open(&keep, Opening::New, "hca1").unwrap();
    let started = run(async {
        let capture = Some(Box::new(capture));
        let started = device.handle.call(|answer| Call::SetCapture(capture, answer)).await;
        replaced(started, keep).await
    });
    assert_eq!(started.unwrap_err().to_string(), "the device is not running");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
