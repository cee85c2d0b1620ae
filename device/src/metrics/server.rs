//! The HTTP server of `GET /metrics`: one request per connection, with bounded memory and time.
//!
//! # Spec
//! RFC 9110, RFC 9112: the part of HTTP/1.1 that a server of one resource needs.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::exposition::{CONTENT_TYPE, Exposition};
use super::families::{self, Reading};
use super::process::Process;
use crate::control::call::{self, Answer, Call, CallError, Status};
use crate::control::message::Counters;
use crate::control::registry::{Device, DeviceRegistry};
use crate::descriptors::Reserve;
use crate::limited;
use crate::vfio::server::Listener as UnixSocket;

/// Bound: concurrent clients. A client beyond it disconnects the oldest, which has had its time by then.
const MAX_CLIENTS: usize = 8;

/// Bound: bytes of a request's head. That of Prometheus has about 300.
const MAX_HEAD_LEN: usize = 4096;

/// Bound: header fields of a request.
const MAX_FIELDS: usize = 32;

/// Time for a client to send its request, and then to receive the response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the text is reused for further scrapes.
pub const FRESH: Duration = Duration::from_millis(500);

/// How long no client is accepted after `accept` failed, which means that descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Listening socket of the metrics server.
#[derive(Debug)]
pub enum Listener {
    Tcp(std::net::TcpListener),
    Unix(UnixSocket),
}

impl Listener {
    /// Listens on a TCP address.
    ///
    /// # Errors
    /// The address is unavailable.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// Returns the TCP address, if it is one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

/// Serves until dropped. Requires a tokio runtime with I/O and time.
///
/// # Errors
/// The runtime cannot watch the socket.
pub async fn serve(listener: &Listener, process: Process, registry: DeviceRegistry) -> io::Result<()> {
    let source = Arc::new(Mutex::new(Source { process, registry, text: None }));
    let mut clients = Clients { tasks: VecDeque::new(), source, reserve: Reserve::new() };
    match listener {
        Listener::Tcp(listener) => {
            let socket = TcpListener::from_std(listener.try_clone()?)?;
            loop {
                clients.take(socket.accept().await).await;
            }
        }
        Listener::Unix(listener) => {
            let socket = UnixListener::from_std(listener.try_clone()?)?;
            loop {
                clients.take(socket.accept().await).await;
            }
        }
    }
}

struct Clients {
    /// Tasks of the clients, oldest first.
    tasks: VecDeque<AbortHandle>,
    source: Arc<Mutex<Source>>,
    reserve: Reserve,
}

impl Clients {
    async fn take<A>(
        &mut self,
        accepted: io::Result<(impl AsyncRead + AsyncWrite + Unpin + Send + 'static, A)>,
    ) {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if self.reserve.release(&error) => return,
            Err(error) => {
                limited!(error, %error, "cannot accept metrics connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                return;
            }
        };
        self.tasks.retain(|task| !task.is_finished());
        self.reserve.refill();
        if self.tasks.len() >= MAX_CLIENTS
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        let source = self.source.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = client(stream, &source).await {
                limited!(debug, %error, "metrics connection failed");
            }
        });
        self.tasks.push_back(task.abort_handle());
    }
}

/// The text of a scrape and its sources.
struct Source {
    process: Process,
    registry: DeviceRegistry,
    /// The last text and its time.
    text: Option<(Instant, Arc<str>)>,
}

impl Source {
    async fn text(&mut self) -> Arc<str> {
        if let Some((_, text)) = self.text.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return text.clone();
        }
        let devices = self.registry.borrow().clone();
        let readings = read(&devices).await;
        let mut exposition = Exposition::default();
        families::expose(&mut exposition, &readings);
        self.process.expose(&mut exposition);
        let text: Arc<str> = exposition.finish().into();
        self.text = Some((Instant::now(), text.clone()));
        text
    }
}

/// Queries all devices. Waits for all devices in parallel.
async fn read(devices: &[Arc<Device>]) -> Vec<Reading> {
    type Asked = Result<(Answer<Status>, Answer<Counters>), CallError>;
    let deadline = Instant::now() + call::ANSWER;
    let ask = |device: &Arc<Device>| -> Asked {
        Ok((device.handle.ask(Call::Status)?, device.handle.ask(Call::Counters)?))
    };
    let asked: Vec<_> = devices.iter().map(ask).collect();
    let mut readings = Vec::with_capacity(devices.len());
    for (device, asked) in devices.iter().zip(asked) {
        let answer = match asked {
            Ok((status, counters)) => match (status.by(deadline).await, counters.by(deadline).await) {
                (Ok(status), Ok(counters)) => Some((status, Box::new(counters))),
                _ => None,
            },
            Err(_) => None,
        };
        readings.push(Reading {
            id: device.id,
            interface: device.interface,
            connected: device.handle.is_connected(),
            health: device.handle.health(),
            answer,
        });
    }
    readings
}

async fn client(mut stream: impl AsyncRead + AsyncWrite + Unpin, source: &Mutex<Source>) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let asked = tokio::time::timeout(CLIENT_TIMEOUT, head(&mut stream)).await.map_err(late)??;
    let answer = match asked {
        Asked::Metrics { body } => {
            let text = source.lock().await.text().await;
            response("200 OK", CONTENT_TYPE, &text, body)
        }
        Asked::Refused(status) => response(status, "text/plain", "only GET /metrics is supported\n", true),
    };
    let give = async {
        stream.write_all(&answer).await?;
        stream.shutdown().await
    };
    tokio::time::timeout(CLIENT_TIMEOUT, give).await.map_err(late)?
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// GET or HEAD of the metrics; `body` is false for HEAD.
    Metrics { body: bool },
    /// Anything else, with the status of the response.
    Refused(&'static str),
}

/// Reads the head of a request. Anything after it is ignored: neither method has a body.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Asked> {
    let mut head = [0; MAX_HEAD_LEN];
    let mut len = 0;
    loop {
        let Some(room) = head.get_mut(len..).filter(|room| !room.is_empty()) else {
            return Ok(Asked::Refused("431 Request Header Fields Too Large"));
        };
        let more = stream.read(room).await?;
        len += more;
        if let Some(asked) = parse(head.get(..len).unwrap_or_default()) {
            return Ok(asked);
        }
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Parses the head of a request if it is complete.
fn parse(head: &[u8]) -> Option<Asked> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => {
            let hosts =
                request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host")).count();
            // RFC 9112, section 3.2: an HTTP/1.1 request has exactly one Host field.
            if hosts > 1 || hosts == 0 && request.version == Some(1) {
                return Some(Asked::Refused("400 Bad Request"));
            }
            let path = request.path.unwrap_or_default();
            // Query parameters, which some scrapers add, are ignored.
            let known = path.split('?').next() == Some("/metrics");
            Some(match (request.method, known) {
                (Some("GET"), true) => Asked::Metrics { body: true },
                (Some("HEAD"), true) => Asked::Metrics { body: false },
                (_, true) => Asked::Refused("405 Method Not Allowed"),
                (_, false) => Asked::Refused("404 Not Found"),
            })
        }
        Err(_) => Some(Asked::Refused("400 Bad Request")),
    }
}

fn response(status: &str, content_type: &str, text: &str, body: bool) -> Vec<u8> {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        text.len()
    );
    let mut response = head.into_bytes();
    if body {
        response.extend_from_slice(text.as_bytes());
    }
    response
}

#[cfg(test)]
mod tests {
    use protocol::ids::Lid;
    use tokio::sync::watch;

    use super::*;
    use crate::control::call::{ANSWER, mailbox};
    use crate::identity::Identity;
    use crate::record::Header;

    #[test]
    fn hung_device_is_reported_down() {
        let (hung, _kept) = mailbox().unwrap();
        let (gone, mailbox) = mailbox().unwrap();
        drop(mailbox);
        let device = |id, handle| {
            Arc::new(Device {
                id,
                interface: "mthca",
                name: format!("hca{id}"),
                identity: Identity::from_lid(Lid::new(id)),
                socket: None,
                capture_max_bytes: 0,
                trace_max_bytes: 0,
                record_max_bytes: 0,
                header: Header::new("", serde_json::Map::new()),
                handle,
            })
        };
        let (_sender, registry) = watch::channel([device(1, hung), device(2, gone)].into());
        let mut source = Source { process: Process::new(), registry, text: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let asked = Instant::now();
            let text = source.text().await;
            assert!(asked.elapsed() < ANSWER * 2);
            for line in [
                "hcad_device_up{device=\"1\",interface=\"mthca\"} 0\n",
                "hcad_device_up{device=\"2\",interface=\"mthca\"} 0\n",
                "hcad_device_restarts_total{device=\"1\"} 0\n",
            ] {
                assert!(text.contains(line), "{text}");
            }
            assert!(!text.contains("hcad_port_up{"), "{text}");
            let asked = Instant::now();
            assert!(Arc::ptr_eq(&source.text().await, &text), "a fresh response is served again");
            assert!(asked.elapsed() < FRESH);
        });
    }

    #[test]
    fn only_metrics_path_is_served() {
        let parse = |text: &str| parse(text.as_bytes());
        assert_eq!(parse("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Some(Asked::Metrics { body: true }));
        assert_eq!(parse("GET /metrics?x=y HTTP/1.0\r\n\r\n"), Some(Asked::Metrics { body: true }));
        assert_eq!(parse("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Some(Asked::Metrics { body: false }));
        assert_eq!(parse("GET /metrics HTTP/1.1\r\nHost:"), None);
        for (text, status) in [
            ("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "405 Method Not Allowed"),
            ("GET /metrics/ HTTP/1.1\r\nhost:\r\n\r\n", "404 Not Found"),
            ("GET /../metrics HTTP/1.1\r\nHost: a\r\n\r\n", "404 Not Found"),
            ("GET /metrics HTTP/1.1\r\n\r\n", "400 Bad Request"),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n", "400 Bad Request"),
            ("GET /metrics HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "400 Bad Request"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "400 Bad Request"),
            ("GET /metrics\r\n\r\n", "400 Bad Request"),
            ("\0\0\0\0", "400 Bad Request"),
            ("GET /metrics HTTP/1.1\r\nno field\r\n\r\n", "400 Bad Request"),
        ] {
            assert_eq!(parse(text), Some(Asked::Refused(status)), "{text:?}");
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(parse(&many), Some(Asked::Refused("400 Bad Request")));
    }
}
