//! Runs the daemon. The main thread handles signals and manages the devices. Separate tasks on this thread serve the
//! control socket and the metrics, and look up the DNS names of peers.

use std::future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use card::vfio::server::Listener;
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::builder::MakeError;
use crate::config::{Config, MetricsConfig};
use crate::confinement;
use crate::control;
use crate::control::registry::{self, Change, DeviceRegistry};
use crate::fleet::{Fleet, FleetError, Next, Origin, STOP_TIMEOUT};
use crate::inherited::{Inherited, InheritedError};
use crate::metrics;
use crate::metrics::process::Process;
use crate::notify::Notify;
use crate::peer_names::{self, Resolver};

/// Why the daemon failed to start or stopped with an error.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A device cannot be created or has failed.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// A control or metrics socket cannot be created.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// An inherited descriptor is unusable.
    #[error(transparent)]
    Inherited(#[from] InheritedError),
    /// The event loop or a signal handler cannot be created.
    #[error("cannot set up the event loop or the signal handlers")]
    Host(#[from] io::Error),
}

/// Serves all devices until SIGTERM or SIGINT, or until the last device has ended on its own. A device whose client
/// connection was inherited ends when that client disconnects. SIGHUP reloads the configuration if it came from a file
/// and stops the daemon otherwise. The service manager is notified of the daemon's state. `resolver` looks up the DNS
/// names of peers.
///
/// # Errors
/// Fails if a configured resource cannot be opened, if a device with an inherited client fails, or if a device hangs at
/// shutdown.
pub fn run(
    config: Config,
    inherited: Inherited,
    notify: &Notify,
    origin: Origin,
    resolver: Option<Resolver>,
) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Another process may send SIGTERM as soon as a socket exists, so install the signal handlers before creating the
    // first socket.
    let mut signals = {
        let _guard = runtime.enter();
        Signals::new()?
    };
    let mut reloads = origin.path.is_some().then(|| signals.hangup.take()).flatten();

    let (control, metrics_listener) = (config.control_socket.clone(), config.metrics.clone());
    let (mut fleet, devices) = Fleet::new(config, inherited, origin);
    let prepared = fleet.prepare(devices)?;
    let control = control
        .map(|path| fleet.take_inherited(&path).map_or_else(|| Listener::bind(&path).map(Arc::new), Ok))
        .transpose()
        .map_err(|source| MakeError::Listen { key: "control_socket".into(), source })?;
    let metrics_listener = metrics_listener.as_ref().map(listen_for_metrics).transpose()?;
    fleet.check_inherited()?;

    confinement::complete();

    fleet.start(prepared)?;
    tracing::info!(devices = fleet.len(), "ready");
    notify.ready(&status(&fleet));

    let ended = runtime.block_on(async {
        let (changer, mut changes) = registry::changes();
        let serving = [
            tokio::spawn(serve_control(
                control,
                fleet.registry(),
                changer.clone(),
                fleet.file().map(Path::to_owned),
            )),
            tokio::spawn(serve_metrics(metrics_listener, fleet.registry())),
            tokio::spawn(peer_names::serve(resolver, fleet.registry())),
        ];
        let ended = tokio::select! {
            name = signals.recv() => Err(name),
            ended = handle_events(&mut fleet, &mut changes, &mut reloads, notify) => Ok(ended),
            () = keep_alive(notify) => Err("nothing"),
        };
        serving.iter().for_each(tokio::task::JoinHandle::abort);
        // Wait until the tasks have ended and closed their sockets.
        for task in serving {
            let _ = task.await;
        }
        drop(changer);
        ended
    });
    notify.stopping();
    if let Err(signal) = &ended {
        let guests = fleet.guests();
        if guests > 0 {
            tracing::warn!(
                signal,
                guests,
                "shutting down while guests are connected; the guests lose their devices because QEMU does not reconnect"
            );
        }
    }
    let all_ended = runtime.block_on(fleet.end());
    // A control request may still be closing a file on a slow disk.
    runtime.shutdown_timeout(STOP_TIMEOUT);
    Ok(ended.unwrap_or(Ok(())).and(all_ended)?)
}

/// Handles events until the last device has ended on its own.
async fn handle_events(
    fleet: &mut Fleet,
    changes: &mut mpsc::Receiver<Change>,
    reloads: &mut Option<Signal>,
    notify: &Notify,
) -> Result<(), FleetError> {
    loop {
        let next = tokio::select! {
            next = fleet.next(changes) => next,
            () = received(reloads) => Next::Hangup,
        };
        let is_reload = next.is_reload();
        if is_reload {
            notify.reloading();
        }
        fleet.handle(next).await;
        match is_reload {
            true => notify.ready(&status(fleet)),
            false => notify.status(&status(fleet)),
        }
        if let Some(over) = fleet.over() {
            return over;
        }
    }
}

/// Returns the status line for the service manager.
fn status(fleet: &Fleet) -> String {
    format!("devices: {}", fleet.len())
}

/// Serves `hcactl` while the daemon runs.
async fn serve_control(
    listener: Option<Arc<Listener>>,
    registry: DeviceRegistry,
    changes: mpsc::Sender<Change>,
    configuration: Option<PathBuf>,
) {
    if let Some(listener) = listener {
        let idle_limit = control::server::IDLE_LIMIT;
        let service = control::server::Service { registry, changes, configuration, idle_limit };
        if let Err(error) = control::server::serve(&listener, service).await {
            tracing::error!(%error, "control socket failed; hcactl cannot connect until hcad is restarted");
        }
    }
    future::pending().await
}

/// Opens the metrics listener and the files in `/proc` that the metrics are read from.
fn listen_for_metrics(config: &MetricsConfig) -> Result<(metrics::server::Listener, Process), MakeError> {
    let key = || "metrics".to_owned();
    let listener = match config {
        MetricsConfig::Unix(path) => Listener::bind(path)
            .map(metrics::server::Listener::Unix)
            .map_err(|source| MakeError::Listen { key: key(), source })?,
        MetricsConfig::Tcp(address) => metrics::server::Listener::tcp(*address)
            .map_err(|source| MakeError::Fabric { key: key(), name: address.to_string(), source })?,
    };
    if let Some(address) = listener.address() {
        tracing::info!(%address, "serving metrics on a network address without authentication");
    }
    Ok((listener, Process::new()))
}

/// Serves metrics while the daemon runs.
async fn serve_metrics(
    metrics_listener: Option<(metrics::server::Listener, Process)>,
    registry: DeviceRegistry,
) {
    if let Some((listener, process)) = metrics_listener
        && let Err(error) = metrics::server::serve(&listener, process, registry).await
    {
        tracing::error!(%error, "metrics server failed; metrics are unavailable until hcad is restarted");
    }
    future::pending().await
}

/// Sends watchdog notifications from the main thread. They continue even while a device hangs, since the other devices
/// still work.
async fn keep_alive(notify: &Notify) {
    let Some(interval) = notify.interval() else { return future::pending().await };
    loop {
        notify.alive();
        tokio::time::sleep(interval).await;
    }
}

/// The signals that stop or reload the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP, if it stops the daemon. `None` if SIGHUP reloads the configuration or if the parent process ignored it
    /// (as nohup does).
    hangup: Option<Signal>,
}

impl Signals {
    /// Installs the signal handlers. Requires a tokio runtime.
    fn new() -> io::Result<Self> {
        let hangup = !is_ignored(SignalKind::hangup());
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: hangup.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    /// Waits for a signal and returns its name.
    async fn recv(&mut self) -> &'static str {
        let Self { terminate, interrupt, hangup } = self;
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            () = received(hangup) => "SIGHUP",
        }
    }
}

/// Waits for a signal. Waits forever if `signal` is `None`.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => future::pending().await,
    }
}

/// Returns whether a signal is ignored, according to /proc/self/status.
fn is_ignored(signal: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw_value() - 1) & 1 != 0
}
