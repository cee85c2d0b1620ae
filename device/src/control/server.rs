//! The control socket server.

use std::fs;
use std::io::{self, Write as _};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use card::capture::Capture;
use card::fabric::impair::{Rule, RuleError, TooManyRulesError};
use card::limited;
use card::record::Recorder;
use card::telemetry::file;
use card::telemetry::filter::{CaptureFilter, TraceFilter, UnknownOpcodeError};
use card::telemetry::store::{Keep, MAX_FILES, Opening};
use card::telemetry::trace::{STANDARD_ERROR, Trace, TraceFormat};
use card::vfio::server::Listener;
use control_api::message::{DeviceRow, DeviceState, Request, Response, TableRow};
use protocol::ids::Qpn;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::call::{self, Call, CallError, RunState, StartRecordError};
use super::impair::ImpairCall;
use super::peers::{PeerCall, PeerList, PeersError};
use super::registry::{Change, Device, DeviceRegistry};
use crate::clock;
use crate::config::{ConfigError, MAX_QPN, check_peer};
use crate::confinement::{self, OutsideError};
use crate::descriptors::Reserve;
use crate::interfaces::{self, UnknownTableError};

/// Maximum number of concurrent clients. When it is reached, a new client replaces the one that has been idle longest,
/// provided that it has been idle for at least the service's idle limit. Otherwise, the new client receives an error.
const MAX_CLIENTS: usize = 16;

/// Idle time after which a client of `hcad` can be replaced.
pub const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// Maximum length of a request in bytes, including its line feed. The longest requests contain a configuration with
/// thousands of devices.
const MAX_REQUEST_LEN: u64 = 4 << 20;

/// Maximum size of the request buffer that is kept for each client between requests.
const USUAL_REQUEST_LEN: usize = 8192;

/// Pause after `accept` has failed, for example because no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Everything that the control server needs to answer requests.
#[derive(Debug)]
pub struct Service {
    pub registry: DeviceRegistry,
    pub changes: mpsc::Sender<Change>,
    /// Path of the configuration file, if it can be reloaded.
    pub configuration: Option<PathBuf>,
    /// Idle time after which a client can be replaced.
    pub idle_limit: Duration,
}

/// Serves clients until dropped. Requires a tokio runtime with I/O and time enabled.
///
/// # Errors
/// Fails if the runtime cannot register the socket.
pub async fn serve(listener: &Listener, service: Service) -> io::Result<()> {
    let socket = UnixListener::from_std(listener.try_clone()?)?;
    let service = Arc::new(service);
    let mut slots: Vec<ClientSlot> = Vec::new();
    let mut reserve = Reserve::new();
    loop {
        let stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) if reserve.release(&error) => continue,
            Err(error) => {
                limited!(error, %error, "cannot accept control connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        slots.retain(|slot| !slot.task.is_finished());
        reserve.refill();
        if slots.len() >= MAX_CLIENTS && !make_room(&mut slots, service.idle_limit) {
            // The error fits into the empty send buffer. If the write still fails, the client only sees the connection
            // close.
            let _ = stream.try_write(&line(&Response::Error(format!(
                "too many control clients, maximum is {MAX_CLIENTS}"
            ))));
            continue;
        }
        let service = service.clone();
        let idle = Arc::new(IdleSince::default());
        let kept = idle.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = client(stream, &service, &idle).await {
                limited!(debug, %error, "control connection failed");
            }
        });
        slots.push(ClientSlot { task: task.abort_handle(), idle: kept });
    }
}

struct ClientSlot {
    task: AbortHandle,
    idle: Arc<IdleSince>,
}

/// Time at which a client became idle, as returned by [`now`], or [`IdleSince::BUSY`].
struct IdleSince(AtomicU64);

impl IdleSince {
    /// Value while a request is being executed.
    const BUSY: u64 = u64::MAX;

    fn begin(&self) {
        self.0.store(now(), Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.store(Self::BUSY, Ordering::Relaxed);
    }
}

impl Default for IdleSince {
    fn default() -> Self {
        Self(now().into())
    }
}

/// Returns the time since the first call, in milliseconds.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Disconnects the client that has been idle longest, if it has reached the idle limit. Returns whether a client was
/// disconnected.
fn make_room(slots: &mut Vec<ClientSlot>, idle_limit: Duration) -> bool {
    let since = |slot: &ClientSlot| slot.idle.0.load(Ordering::Relaxed);
    let longest = (0..slots.len()).min_by_key(|index| since(&slots[*index]));
    let idle_too_long =
        |index: &usize| u128::from(now().saturating_sub(since(&slots[*index]))) >= idle_limit.as_millis();
    let Some(index) = longest.filter(idle_too_long) else { return false };
    slots.swap_remove(index).task.abort();
    true
}

/// Answers requests until the client closes the connection or sends an overlong line.
async fn client(mut stream: UnixStream, service: &Service, idle: &IdleSince) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    let mut request = Vec::new();
    loop {
        request.clear();
        request.shrink_to(USUAL_REQUEST_LEN);
        idle.begin();
        if (&mut reader).take(MAX_REQUEST_LEN).read_until(b'\n', &mut request).await? == 0 {
            return Ok(());
        }
        if request.last() != Some(&b'\n') {
            // The start of the next request is unknown, so the connection has to be closed.
            let problem =
                format!("request exceeds {MAX_REQUEST_LEN} bytes or is not terminated by a newline");
            return writer.write_all(&line(&Response::Error(problem))).await;
        }
        idle.end();
        let response = match serde_json::from_slice(&request) {
            Ok(request) => {
                answer(request, service).await.unwrap_or_else(|problem| Response::Error(problem.to_string()))
            }
            Err(error) => Response::Error(format!("invalid request: {error}")),
        };
        // A client that does not read its response counts as idle.
        idle.begin();
        writer.write_all(&line(&response)).await?;
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("{0}")]
    Unchanged(String),
    #[error("hcad is shutting down")]
    Ending,
    #[error("device {0} does not exist")]
    NoDevice(u16),
    #[error("QP number {0:#x} does not fit in 24 bits")]
    Qpn(u32),
    #[error(transparent)]
    UnknownOpcode(#[from] UnknownOpcodeError),
    #[error(transparent)]
    UnknownTable(#[from] UnknownTableError),
    #[error(transparent)]
    CallError(#[from] CallError),
    #[error("a capture to {} is already running", .0.display())]
    Capturing(PathBuf),
    #[error("no capture is running")]
    NotCapturing,
    #[error("a trace to {} is already running", .0.display())]
    Tracing(PathBuf),
    #[error("no trace is running")]
    NotTracing,
    #[error("no in-memory {0} is running; start one with `hcactl {0} ring`")]
    NothingKept(&'static str),
    #[error("too many files: {0} (maximum {MAX_FILES})")]
    TooManyFiles(u16),
    #[error("a trace to standard error cannot rotate through several files")]
    RotatingStandardError,
    #[error("already recording to {}", .0.display())]
    Recording(PathBuf),
    #[error("no recording is in progress")]
    NotRecording,
    #[error(transparent)]
    StartRecordError(#[from] StartRecordError),
    #[error("the {what} to {} has already stopped: {why}", path.display())]
    Ended { what: &'static str, path: PathBuf, why: String },
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(transparent)]
    TooManyRulesError(#[from] TooManyRulesError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Peers(#[from] PeersError),
    #[error("impairment {0} does not exist")]
    NoImpairment(u32),
    #[error("cannot create {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("cannot create {}: {outside}", path.display())]
    Confined { path: PathBuf, outside: OutsideError },
}

impl RequestError {
    /// Returns the error for a file that cannot be created. If the sandbox is the cause, the error mentions it.
    fn file(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match confinement::check_file(&path) {
            Err(outside) if error.kind() == io::ErrorKind::PermissionDenied => {
                Self::Confined { path, outside }
            }
            _ => Self::File { path, error },
        }
    }
}

async fn answer(request: Request, service: &Service) -> Result<Response, RequestError> {
    let devices = service.registry.borrow().clone();
    let find = |id| devices.iter().find(|device| device.id == id).ok_or(RequestError::NoDevice(id));
    Ok(match request {
        Request::Devices {} => Response::Devices(rows(&devices).await),
        Request::Configuration {} => Response::Configuration(service.configuration.clone()),
        Request::DeviceAdd { entry } => {
            let (device, socket) = change(service, |answer| Change::Add(entry, answer)).await?;
            Response::Added { device, socket }
        }
        Request::DeviceRemove { device } => {
            change(service, |answer| Change::Remove(device, answer)).await?;
            Response::Done {}
        }
        Request::Reload { text } => {
            Response::Reloaded(change(service, |answer| Change::Reload(text, answer)).await?)
        }
        Request::Tables {} => {
            Response::Tables(interfaces::tables().into_iter().map(TableRow::from).collect())
        }
        Request::List { device, table, from, text } => {
            let table = interfaces::table(&table)?;
            let page = find(device)?.handle.call(|answer| Call::List(table, from, answer)).await?;
            if text { Response::Text((&page).into()) } else { Response::Page((&page).into()) }
        }
        // `Qpn::new` ignores the upper bits, so the response would describe another QP.
        Request::Explain { qpn, .. } if qpn > MAX_QPN => return Err(RequestError::Qpn(qpn)),
        Request::Explain { device, qpn } => {
            let handle = &find(device)?.handle;
            let explanation = handle.call(|answer| Call::Explain(Qpn::new(qpn), answer)).await?;
            Response::Explanation(Box::new(explanation))
        }
        Request::Counters { device } => {
            Response::Counters(Box::new(find(device)?.handle.call(Call::Counters).await?))
        }
        Request::CaptureOn { device, path, filter, max_bytes, files } => {
            check_files(files)?;
            check_qpns(&filter.qpns)?;
            filter.check_opcodes()?;
            start_capture(find(device)?, Keep::Files { path, count: files }, max_bytes, filter).await?;
            Response::Done {}
        }
        Request::CaptureRing { device, bytes, filter } => {
            check_qpns(&filter.qpns)?;
            filter.check_opcodes()?;
            start_capture(find(device)?, Keep::Memory(bytes), None, filter).await?;
            Response::Done {}
        }
        Request::CaptureDump { device, path } => {
            let kept = find(device)?.handle.call(Call::KeptFrames).await?;
            let kept = kept.ok_or(RequestError::NothingKept("capture"))?;
            with_files(move || dump(&path, &kept)).await??;
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
            let mut capture = capture.ok_or(RequestError::NotCapturing)?;
            with_files(move || {
                capture.flush();
                ended("capture", capture.ended())
            })
            .await??
        }
        Request::TraceOn { device, path, format, filter, max_bytes, files } => {
            check_files(files)?;
            if path == Path::new(STANDARD_ERROR) && files > NonZeroU16::MIN {
                return Err(RequestError::RotatingStandardError);
            }
            check_qpns(&filter.qpns)?;
            let keep = Keep::Files { path, count: files };
            start_trace(find(device)?, keep, max_bytes, format, filter).await?;
            Response::Done {}
        }
        Request::TraceRing { device, bytes, format, filter } => {
            check_qpns(&filter.qpns)?;
            start_trace(find(device)?, Keep::Memory(bytes), None, format, filter).await?;
            Response::Done {}
        }
        Request::TraceDump { device, path } => {
            let kept = find(device)?.handle.call(Call::KeptRecords).await?;
            let kept = kept.ok_or(RequestError::NothingKept("trace"))?;
            with_files(move || dump(&path, &kept)).await??;
            Response::Done {}
        }
        Request::TraceOff { device } => {
            let trace = find(device)?.handle.call(|answer| Call::SetTrace(None, answer)).await?;
            let mut trace = trace.ok_or(RequestError::NotTracing)?;
            with_files(move || {
                trace.flush();
                ended("trace", trace.ended())
            })
            .await??
        }
        Request::RecordOn { device, path } => {
            start_record(find(device)?, path).await?;
            Response::Done {}
        }
        Request::RecordOff { device } => {
            let record = find(device)?.handle.call(Call::EndRecord).await?;
            let record = record.ok_or(RequestError::NotRecording)?;
            let (path, failure) = with_files(move || record.finish()).await?;
            ended("recording", failure.as_deref().map(|why| (&*path, why)))?
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
            match handle.call(|answer| Call::Peers(PeerCall::List(answer))).await?? {
                PeerList::Peers(rows) => Response::Peers(rows),
                PeerList::Members(rows) => Response::Members(rows),
            }
        }
        Request::PeerAdd { device, peer } => {
            let handle = &find(device)?.handle;
            let peer = check_peer(&peer, "")?;
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
                Some(id) if !found => return Err(RequestError::NoImpairment(id)),
                _ => Response::Done {},
            }
        }
    })
}

/// Runs file operations on another thread. The main thread serves all devices and must not wait for a slow disk.
async fn with_files<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, RequestError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| RequestError::Ending)
}

async fn change<T>(
    service: &Service,
    change: impl FnOnce(oneshot::Sender<Result<T, String>>) -> Change,
) -> Result<T, RequestError> {
    let (answer, answered) = oneshot::channel();
    service.changes.send(change(answer)).await.map_err(|_| RequestError::Ending)?;
    // No timeout is needed here, because the procedure that stops a device has a timeout of its own.
    answered.await.map_err(|_| RequestError::Ending)?.map_err(RequestError::Unchanged)
}

/// Returns the response to a request to stop a capture, trace or recording. If it had already stopped on its own,
/// `before` contains its path and the reason.
fn ended(what: &'static str, before: Option<(&Path, &str)>) -> Result<Response, RequestError> {
    match before {
        Some((path, why)) => Err(RequestError::Ended { what, path: path.to_owned(), why: why.to_owned() }),
        None => Ok(Response::Done {}),
    }
}

/// Queries all devices in parallel and returns their rows.
async fn rows(devices: &[Arc<Device>]) -> Vec<DeviceRow> {
    let deadline = Instant::now() + call::ANSWER_TIMEOUT;
    let asked: Vec<_> = devices.iter().map(|device| device.handle.ask(Call::Status)).collect();
    let mut rows = Vec::with_capacity(devices.len());
    for (device, asked) in devices.iter().zip(asked) {
        let status = match asked {
            Ok(answer) => answer.by(deadline).await,
            Err(error) => Err(error),
        };
        rows.push(row(device, status));
    }
    rows
}

fn row(device: &Device, status: Result<call::Status, CallError>) -> DeviceRow {
    let health = device.handle.health();
    let state = match (&health.run_state, &status) {
        (RunState::Restarting(_), _) | (RunState::Running, Err(CallError::NotRunning)) => {
            DeviceState::Restarting
        }
        (RunState::Running, Err(CallError::Late)) => DeviceState::NotAnswering,
        (RunState::Running, Ok(_)) => DeviceState::Running,
    };
    let status = status.ok();
    DeviceRow {
        id: device.id,
        interface: device.interface.to_owned(),
        mac: device.identity.mac.to_string(),
        ipv4: device.identity.ipv4,
        ipv6: device.identity.own_ipv6(),
        socket: device.socket.clone(),
        connected: device.handle.is_connected(),
        state,
        restarts: health.restarts,
        problem: health.problem,
        port: status.as_ref().map(|status| status.port),
        port_disabled: status.as_ref().is_some_and(|status| status.port_disabled),
        capture: status.as_ref().and_then(|status| status.capture.clone()),
        trace: status.as_ref().and_then(|status| status.trace.clone()),
        record: status.and_then(|status| status.record),
    }
}

async fn start_capture(
    device: &Device,
    keep: Keep,
    max_bytes: Option<u64>,
    filter: CaptureFilter,
) -> Result<(), RequestError> {
    if let Some(running) = device.handle.call(Call::Status).await?.capture {
        return Err(RequestError::Capturing(running));
    }
    let (files, name) = (keep.clone(), device.name.clone());
    let capture = with_files(move || Capture::open(&files, Opening::New, &name))
        .await?
        .map_err(|error| RequestError::file(keep.path(), error))?
        .with_limit(max_bytes.unwrap_or(device.capture_max_bytes))
        .with_filter(filter);
    let capture = Some(Box::new(capture));
    // Another client may have started a capture in the meantime. The new capture replaces it.
    let started = device.handle.call(|answer| Call::SetCapture(capture, answer)).await;
    replaced(started, keep).await
}

async fn start_trace(
    device: &Device,
    keep: Keep,
    max_bytes: Option<u64>,
    format: TraceFormat,
    filter: TraceFilter,
) -> Result<(), RequestError> {
    if let Some(running) = device.handle.call(Call::Status).await?.trace {
        return Err(RequestError::Tracing(running));
    }
    let (files, name) = (keep.clone(), device.name.clone());
    let trace = with_files(move || Trace::open(&files, Opening::New, format, &name))
        .await?
        .map_err(|error| RequestError::file(keep.path(), error))?
        .with_limit(max_bytes.unwrap_or(device.trace_max_bytes))
        .with_filter(filter);
    let trace = Some(Box::new(trace));
    // Another client may have started a trace in the meantime. The new trace replaces it.
    let started = device.handle.call(|answer| Call::SetTrace(trace, answer)).await;
    replaced(started, keep).await
}

/// Closes the capture or trace that a new one has replaced. If the new one was not started, removes its files, so that
/// the request can be repeated.
async fn replaced<T: Send + 'static>(
    started: Result<Option<T>, CallError>,
    keep: Keep,
) -> Result<(), RequestError> {
    with_files(move || match started {
        Ok(previous) => {
            drop(previous);
            Ok(())
        }
        Err(error) => {
            // If the device is only slow, it may still start the capture or trace.
            if error == CallError::NotRunning {
                let files = keep.files().filter(|path| path != Path::new(STANDARD_ERROR));
                files.for_each(|path| drop(fs::remove_file(path)));
            }
            Err(error.into())
        }
    })
    .await?
}

fn check_files(files: NonZeroU16) -> Result<(), RequestError> {
    if files.get() > MAX_FILES { Err(RequestError::TooManyFiles(files.get())) } else { Ok(()) }
}

/// Checks the QP numbers of a filter. A number of more than 24 bits would match nothing.
fn check_qpns(qpns: &[u32]) -> Result<(), RequestError> {
    qpns.iter().find(|qpn| **qpn > MAX_QPN).map_or(Ok(()), |qpn| Err(RequestError::Qpn(*qpn)))
}

/// Writes the contents of a capture or trace ring to a new file.
fn dump(path: &Path, kept: &[u8]) -> Result<(), RequestError> {
    let mut file = file::create_new(path).map_err(|error| RequestError::file(path, error))?;
    file.write_all(kept).map_err(|error| {
        // Remove the incomplete file.
        let _ = fs::remove_file(path);
        RequestError::file(path, error)
    })
}

async fn start_record(device: &Device, path: PathBuf) -> Result<(), RequestError> {
    if let Some(running) = device.handle.call(Call::Status).await?.record {
        return Err(RequestError::Recording(running));
    }
    let header = device.header.clone().with_clock_origin(clock::origin());
    let (file, max_len) = (path.clone(), device.record_max_bytes);
    let record = with_files(move || Recorder::create_new(&file, &header, max_len))
        .await?
        .map_err(|error| RequestError::file(&path, error))?;
    let record = Box::new(record);
    let begun = device.handle.call(|answer| Call::BeginRecord(record, answer)).await;
    with_files(move || {
        let why = match begun {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err((_, why))) => why.into(),
            // The device is only slow and may still start the recording.
            Err(CallError::Late) => return Err(CallError::Late.into()),
            Err(error) => error.into(),
        };
        // Remove the file, which does not contain any device data yet.
        let _ = fs::remove_file(path);
        Err(why)
    })
    .await?
}

fn line(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response)
        .unwrap_or_else(|_| br#"{"error":"cannot encode the response as JSON"}"#.to_vec());
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
