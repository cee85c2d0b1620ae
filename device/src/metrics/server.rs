//! The HTTP server for `GET /metrics`. It serves one request per connection, with bounded memory and time.
//!
//! # Spec
//! RFC 9110, RFC 9112. hyper implements them, except that it does not require a Host field.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use card::limited;
use card::vfio::server::Listener as UnixSocket;
use control_api::message::Counters;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Mutex, Notify};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::exposition::{CONTENT_TYPE, Exposition};
use super::families::{self, Reading};
use super::process::Process;
use crate::control::call::{self, Answer, Call, CallError, Status};
use crate::control::registry::{Device, DeviceRegistry};
use crate::descriptors::Reserve;

/// Maximum number of concurrent clients. When it is reached, a new client replaces the oldest one.
const MAX_CLIENTS: usize = 8;

/// Maximum length of a request's head in bytes. The head of a Prometheus request is about 300 bytes long.
const MAX_HEAD_LEN: usize = 4096;

/// Maximum number of bytes received but not yet parsed, set to the minimum that hyper permits.
const MAX_BUFFER_LEN: usize = 8192;

/// Maximum number of header fields in a request.
const MAX_FIELDS: usize = 32;

/// Timeout for receiving a client's request and for sending the response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the text generated for a scrape is reused for later scrapes.
pub const CACHE_TIME: Duration = Duration::from_millis(500);

/// Pause after `accept` has failed, for example because no descriptors are left.
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
    /// Fails if the address cannot be bound.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener))
    }

    /// Returns the TCP address, or `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

/// Serves until dropped. Requires a tokio runtime with I/O and time enabled.
///
/// # Errors
/// Fails if the runtime cannot register the socket.
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

struct Source {
    process: Process,
    registry: DeviceRegistry,
    /// The last generated text, and when it was generated.
    text: Option<(Instant, Arc<str>)>,
}

impl Source {
    async fn text(&mut self) -> Arc<str> {
        if let Some((_, text)) = self.text.as_ref().filter(|(at, _)| at.elapsed() < CACHE_TIME) {
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

/// Queries all devices in parallel.
async fn read(devices: &[Arc<Device>]) -> Vec<Reading> {
    type Asked = Result<(Answer<Status>, Answer<Counters>), CallError>;
    let deadline = Instant::now() + call::ANSWER_TIMEOUT;
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

async fn client(stream: impl AsyncRead + AsyncWrite + Unpin, source: &Mutex<Source>) -> io::Result<()> {
    let (received, answered) = (&Notify::new(), &Notify::new());
    let service = service_fn(move |request: Request<Incoming>| async move {
        received.notify_one();
        let response = respond(&request, source).await;
        answered.notify_one();
        Ok::<_, Infallible>(response)
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .half_close(true)
        .max_header_size(MAX_HEAD_LEN)
        .max_buf_size(MAX_BUFFER_LEN)
        .title_case_headers(true)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // hyper can limit the time to receive a head but not to send a response, so both limits are implemented here.
    let head = async {
        tokio::select! {
            ended = &mut connection => Some(ended),
            () = received.notified() => None,
        }
    };
    if let Some(ended) = timeout(CLIENT_TIMEOUT, head).await? {
        return ended.map_err(io::Error::other);
    }
    tokio::select! {
        ended = &mut connection => return ended.map_err(io::Error::other),
        () = answered.notified() => {}
    }
    timeout(CLIENT_TIMEOUT, connection).await?.map_err(io::Error::other)
}

/// Returns the response to a request. hyper rejects malformed requests and omits the body of responses to HEAD.
async fn respond(request: &Request<Incoming>, source: &Mutex<Source>) -> Response<String> {
    let (status, content_type, text) = match status(request) {
        StatusCode::OK => (StatusCode::OK, CONTENT_TYPE, source.lock().await.text().await.to_string()),
        refused => (refused, "text/plain", "only GET /metrics is supported\n".to_owned()),
    };
    let len = text.len();
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(header::CONTENT_LENGTH, len.into());
    if status == StatusCode::METHOD_NOT_ALLOWED {
        fields.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

fn status(request: &Request<Incoming>) -> StatusCode {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    // RFC 9112, section 3.2: an HTTP/1.1 request has exactly one Host field.
    let is_host_wrong = hosts > 1 || hosts == 0 && request.version() == Version::HTTP_11;
    if is_host_wrong || request.headers().len() > MAX_FIELDS {
        return StatusCode::BAD_REQUEST;
    }
    // Some scrapers add query parameters, which are ignored.
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => StatusCode::OK,
        (_, "/metrics") => StatusCode::METHOD_NOT_ALLOWED,
        _ => StatusCode::NOT_FOUND,
    }
}

#[cfg(test)]
mod tests {
    use card::identity::Identity;
    use card::record::Header;
    use protocol::ids::Lid;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;

    use super::*;
    use crate::control::call::mailbox;

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
                names: None,
                handle,
            })
        };
        let (_sender, registry) = watch::channel([device(1, hung), device(2, gone)].into());
        let mut source = Source { process: Process::new(), registry, text: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let text = source.text().await;
            for line in [
                "hcad_device_up{device=\"1\",interface=\"mthca\"} 0\n",
                "hcad_device_up{device=\"2\",interface=\"mthca\"} 0\n",
                "hcad_device_restarts_total{device=\"1\"} 0\n",
            ] {
                assert!(text.contains(line), "{text}");
            }
            assert!(!text.contains("hcad_port_up{"), "{text}");
            // The text must not expire during the test.
            source.text.as_mut().unwrap().0 += Duration::from_secs(3600);
            assert!(Arc::ptr_eq(&source.text().await, &text), "the text is cached");
        });
    }

    /// Sends a request, shuts down the client's write side, and returns the response.
    async fn exchange(source: &Mutex<Source>, request: &str) -> String {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        ours.write_all(request.as_bytes()).await.unwrap();
        ours.shutdown().await.unwrap();
        // Ignore the error that a malformed request causes.
        let _ = client(theirs, source).await;
        let mut response = String::new();
        ours.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn only_metrics_path_is_served() {
        let (_sender, registry) = watch::channel([].into());
        let source = Mutex::new(Source { process: Process::new(), registry, text: None });
        let text = source.lock().await.text().await;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        let whole = format!("{head}{text}");
        assert_eq!(exchange(&source, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await, whole);
        assert_eq!(exchange(&source, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await, head);
        let old = exchange(&source, "GET /metrics?x=y HTTP/1.0\r\n\r\n").await;
        assert!(old.starts_with("HTTP/1.0 200 OK\r\n") && old.ends_with(&*text), "{old}");
        assert_eq!(exchange(&source, "GET /metrics HTTP/1.1\r\nHost:").await, "");
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        for (request, status) in [
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
            (&many, "400 Bad Request"),
        ] {
            let response = exchange(&source, request).await;
            let version = if request.contains("HTTP/1.0") { "HTTP/1.0" } else { "HTTP/1.1" };
            assert!(response.starts_with(&format!("{version} {status}\r\n")), "{request:?}: {response}");
            assert!(!response.contains("hcad_"), "{request:?}: {response}");
        }
    }

    #[tokio::test]
    async fn oversized_request_head_returns_status_431() {
        let (_sender, registry) = watch::channel([].into());
        let source = Mutex::new(Source { process: Process::new(), registry, text: None });
        let head = |len: usize| {
            let fixed = "GET /metrics HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
            format!("GET /metrics HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(len - fixed.len()))
        };
        let largest = head(MAX_HEAD_LEN);
        assert!(exchange(&source, &largest).await.starts_with("HTTP/1.1 200 OK\r\n"));
        let (complete, incomplete) = (head(MAX_HEAD_LEN + 1), &head(MAX_HEAD_LEN + 4)[..MAX_HEAD_LEN]);
        for request in [&*complete, incomplete] {
            let response = exchange(&source, request).await;
            assert!(response.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{response}");
        }
    }
}
