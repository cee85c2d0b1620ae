//! Serving the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::call::{Call, Handle, Stopped};
use super::impair::ImpairCall;
use super::message::{DeviceRow, Request, Response};
use super::peers::{PeerCall, PeersError};
use crate::capture::Capture;
use crate::config::{ConfigError, UdpPeer};
use crate::fabric::impair::{Rule, RuleError, TooManyRules};
use crate::identity::Identity;
use crate::limited;
use crate::telemetry::trace::{Trace, TraceFormat};
use crate::vfio::server::Listener;

/// Bound: clients at a time. More are told so and turned away.
const MAX_CLIENTS: usize = 16;

/// Bound: bytes of a request with its line feed. The longest one names a file.
const MAX_REQUEST_LEN: u64 = 8192;

/// How long nobody is accepted after accepting failed, which is for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A device as the server knows it.
#[derive(Debug)]
pub struct Device {
    /// Number.
    pub id: u16,
    /// Device interface, by its key in the configuration.
    pub interface: &'static str,
    /// Interface name in captures.
    pub name: String,
    /// Addresses.
    pub identity: Identity,
    /// Socket of the VMM.
    pub socket: Option<PathBuf>,
    /// Its thread.
    pub handle: Handle,
}

/// Serves clients until dropped, in a tokio runtime with I/O and time.
///
/// # Errors
/// The runtime cannot watch the socket.
pub async fn serve(listener: &Listener, devices: Vec<Device>) -> io::Result<()> {
    let socket = UnixListener::from_std(listener.try_clone()?)?;
    let devices: Arc<[Device]> = devices.into();
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    loop {
        let stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                limited!(error, %error, "cannot accept control clients");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            // A line fits into the buffer of a new socket; a client that does not get it sees the end.
            let _ = stream.try_write(&line(&Response::Error("too many clients".into())));
            continue;
        };
        let devices = devices.clone();
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = client(stream, &devices).await {
                limited!(debug, %error, "connection of a control client failed");
            }
        });
    }
}

/// Answers one request after the other until the client closes or sends what is no line.
async fn client(mut stream: UnixStream, devices: &[Device]) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let mut request = Vec::new();
    loop {
        request.clear();
        if (&mut reader).take(MAX_REQUEST_LEN).read_until(b'\n', &mut request).await? == 0 {
            return Ok(());
        }
        if request.last() != Some(&b'\n') {
            // Where the next request would begin is unknown.
            let problem = format!("a request is one line of at most {MAX_REQUEST_LEN} bytes");
            return writer.write_all(&line(&Response::Error(problem))).await;
        }
        let response = match serde_json::from_slice(&request) {
            Ok(request) => {
                answer(request, devices).await.unwrap_or_else(|problem| Response::Error(problem.to_string()))
            }
            Err(error) => Response::Error(format!("not a request: {error}")),
        };
        writer.write_all(&line(&response)).await?;
    }
}

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("there is no device {0}")]
    NoDevice(u16),
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error("a capture to {} is running", .0.display())]
    Capturing(PathBuf),
    #[error("no capture is running")]
    NotCapturing,
    #[error("a trace to {} is running", .0.display())]
    Tracing(PathBuf),
    #[error("no trace is running")]
    NotTracing,
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(transparent)]
    TooManyRules(#[from] TooManyRules),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Peers(#[from] PeersError),
    #[error("there is no impairment {0}")]
    NoImpairment(u32),
    #[error("cannot create {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
}

async fn answer(request: Request, devices: &[Device]) -> Result<Response, Refused> {
    let find = |id| devices.iter().find(|device| device.id == id).ok_or(Refused::NoDevice(id));
    Ok(match request {
        Request::Devices {} => {
            let mut rows = Vec::with_capacity(devices.len());
            for device in devices {
                rows.push(row(device).await?);
            }
            Response::Devices(rows)
        }
        Request::List { device, table, from } => {
            Response::Page(find(device)?.handle.call(|answer| Call::List(table, from, answer)).await?)
        }
        Request::Counters { device } => {
            Response::Counters(Box::new(find(device)?.handle.call(Call::Counters).await?))
        }
        Request::CaptureOn { device, path } => {
            start_capture(find(device)?, &path).await?;
            Response::Done {}
        }
        Request::SetPort { device, state } => {
            find(device)?.handle.call(|answer| Call::SetPort(state, answer)).await?;
            Response::Done {}
        }
        Request::Fail { device } => {
            find(device)?.handle.call(Call::Fail).await?;
            Response::Done {}
        }
        Request::CaptureOff { device } => {
            let handle = &find(device)?.handle;
            let capture = handle.call(|answer| Call::SetCapture(None, answer)).await?;
            capture.ok_or(Refused::NotCapturing)?.flush();
            Response::Done {}
        }
        Request::TraceOn { device, path, format } => {
            start_trace(find(device)?, &path, format).await?;
            Response::Done {}
        }
        Request::TraceOff { device } => {
            let trace = find(device)?.handle.call(|answer| Call::SetTrace(None, answer)).await?;
            trace.ok_or(Refused::NotTracing)?.flush();
            Response::Done {}
        }
        Request::Impairments { device } => {
            let handle = &find(device)?.handle;
            Response::Impairments(handle.call(|answer| Call::Impair(ImpairCall::List(answer))).await?)
        }
        Request::ImpairAdd { device, rule } => {
            let handle = &find(device)?.handle;
            let rule = Box::new(Rule::try_from(rule)?);
            Response::Impairment(handle.call(|answer| Call::Impair(ImpairCall::Add(rule, answer))).await??)
        }
        Request::Peers { device } => {
            let handle = &find(device)?.handle;
            Response::Peers(handle.call(|answer| Call::Peers(PeerCall::List(answer))).await??)
        }
        Request::PeerAdd { device, peer } => {
            let handle = &find(device)?.handle;
            let peer = UdpPeer::check(&peer, "")?;
            handle.call(|answer| Call::Peers(PeerCall::Add(peer, answer))).await??;
            Response::Done {}
        }
        Request::PeerRemove { device, addr } => {
            let handle = &find(device)?.handle;
            handle.call(|answer| Call::Peers(PeerCall::Remove(addr, answer))).await??;
            Response::Done {}
        }
        Request::ImpairClear { device, id } => {
            let handle = &find(device)?.handle;
            let found = handle.call(|answer| Call::Impair(ImpairCall::Clear(id, answer))).await?;
            match id {
                Some(id) if !found => return Err(Refused::NoImpairment(id)),
                _ => Response::Done {},
            }
        }
    })
}

async fn row(device: &Device) -> Result<DeviceRow, Stopped> {
    let status = device.handle.call(Call::Status).await?;
    Ok(DeviceRow {
        id: device.id,
        interface: device.interface.to_owned(),
        mac: device.identity.mac.to_string(),
        ipv4: device.identity.ipv4,
        ipv6: device.identity.own_ipv6(),
        socket: device.socket.clone(),
        connected: status.connected,
        port: status.port,
        capture: status.capture,
        trace: status.trace,
    })
}

async fn start_capture(device: &Device, path: &Path) -> Result<(), Refused> {
    if let Some(running) = device.handle.call(Call::Status).await?.capture {
        return Err(Refused::Capturing(running));
    }
    let capture = Capture::create_new(path, &device.name)
        .map_err(|error| Refused::File { path: path.to_owned(), error })?;
    // If another client was faster, its capture ends here: the later request wins.
    device.handle.call(|answer| Call::SetCapture(Some(capture), answer)).await?;
    Ok(())
}

async fn start_trace(device: &Device, path: &Path, format: TraceFormat) -> Result<(), Refused> {
    if let Some(running) = device.handle.call(Call::Status).await?.trace {
        return Err(Refused::Tracing(running));
    }
    let trace = Trace::create_new(path, format, &device.name)
        .map_err(|error| Refused::File { path: path.to_owned(), error })?;
    let trace = Some(Box::new(trace));
    // As with captures: of two clients at the same moment the later wins.
    device.handle.call(|answer| Call::SetTrace(trace, answer)).await?;
    Ok(())
}

/// A response as it is written.
fn line(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response)
        .unwrap_or_else(|_| br#"{"error":"the answer cannot be written as JSON"}"#.to_vec());
    line.push(b'\n');
    line
}
