//! Running a configuration: one thread per HCA, signals and the control socket on the main thread.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::blueprint::{self, Blueprint, MakeError};
use crate::config::{Config, MetricsConfig};
use crate::confinement;
use crate::control;
use crate::control::call::{self, Handle};
use crate::descriptors;
use crate::fabric::local::Networks;
use crate::inherited::{Inherited, InheritedError};
use crate::metrics;
use crate::metrics::process::Process;
use crate::notify::Notify;
use crate::supervisor::{Failure, Rebuild, supervise};
use crate::vfio::server::{Listener, Source};
use crate::worker::Ended;

/// How long devices have to end once they are asked to. A turn takes milliseconds; what takes longer hangs and ends with
/// the process.
const ENDING: Duration = Duration::from_secs(2);

/// Why the daemon did not start or did not go on.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A device cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// What was passed cannot be used.
    #[error(transparent)]
    Inherited(#[from] InheritedError),
    /// The host refuses threads, signals or descriptors.
    #[error("the host does not let us start")]
    Host(#[from] io::Error),
    /// A device cannot go on, and without its client cannot be made anew.
    #[error("{name} stopped")]
    Device {
        /// Which.
        name: String,
        /// Reason.
        source: Failure,
    },
    /// Devices did not end when they were asked to.
    #[error("{} did not end within {} s", names.join(", "), ENDING.as_secs())]
    Hung {
        /// Which.
        names: Vec<String>,
    },
}

/// Serves all devices until SIGTERM, SIGINT or SIGHUP, or until the only client is gone. Sockets that were passed are used
/// where the configuration names them; the service manager hears how it goes.
///
/// # Errors
/// Something the configuration names cannot be opened, a device that has no socket of its own cannot go on, or one
/// hangs at the end.
pub fn run(config: &Config, mut inherited: Inherited, notify: &Notify) -> Result<(), DaemonError> {
    descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Handlers are in place before the first socket is: whoever sees a socket may already send SIGTERM.
    let mut signals = {
        let _guard = runtime.enter();
        Signals::new()?
    };

    let mut networks = Networks::default();
    // All are made before any is started: what fails, fails before a VMM is served.
    let prepared = config
        .devices
        .iter()
        .enumerate()
        .map(|(index, device)| {
            let blueprint = Blueprint::new(device, index, &mut networks);
            let source = blueprint.source(&mut inherited)?;
            let listener = match &source {
                Source::Listener(listener) => Some(listener.clone()),
                Source::Client(_) => None,
            };
            let worker = blueprint.make(source)?;
            Ok((blueprint, listener, worker, call::mailbox()?))
        })
        .collect::<Result<Vec<_>, DaemonError>>()?;
    let control = config
        .control_socket
        .as_ref()
        .map(|path| inherited.take(path).map_or_else(|| Listener::bind(path).map(Arc::new), Ok))
        .transpose()
        .map_err(|source| MakeError::Listen { key: "control_socket".into(), source })?;
    let figures = config.metrics.as_ref().map(listen_for_metrics).transpose()?;
    inherited.check_used()?;

    confinement::complete();

    let (report, mut reports) = mpsc::unbounded_channel();
    let mut devices = Vec::new();
    for (device, (blueprint, listener, worker, (handle, mut mailbox))) in config.devices.iter().zip(prepared)
    {
        let (index, name, id) = (devices.len(), blueprint.name(), device.identity.lid.get());
        let report = report.clone();
        let rebuild = listener
            .clone()
            .map(|listener| -> Rebuild { Box::new(move || Ok(blueprint.make_again(listener.clone())?)) });
        devices.push(Device { name: name.clone(), listener, handle });
        thread::Builder::new().name(name).spawn(move || {
            let _span = tracing::info_span!("device", id).entered();
            // Nobody listens any more only when the daemon is ending anyway.
            let _ = report.send((index, supervise(worker, rebuild, &mut mailbox)));
        })?;
    }
    tracing::info!(devices = devices.len(), "ready");
    notify.ready(&format!("devices: {}", devices.len()));

    let ended = runtime.block_on(async {
        tokio::select! {
            name = signals.recv() => Err(name),
            Some(ended) = reports.recv() => Ok(ended),
            () = serve_control(control.as_deref(), config, &devices) => Err("nothing"),
            () = serve_metrics(figures, config, &devices) => Err("nothing"),
            () = keep_alive(notify) => Err("nothing"),
        }
    });
    notify.stopping();
    if let Err(signal) = &ended {
        let guests = devices.iter().filter(|device| device.handle.is_connected()).count();
        if guests > 0 {
            tracing::warn!(signal, guests, "guests lose their HCA: QEMU does not connect again");
        }
    }
    let first = ended.as_ref().ok().map(|(index, _)| *index);
    let all_ended = runtime.block_on(end(&devices, first, &mut reports));
    match ended {
        Err(_) | Ok((_, Ok(Ended::Shutdown | Ended::ClientGone))) => all_ended,
        Ok((index, Err(source))) => Err(DaemonError::Device { name: devices[index].name.clone(), source }),
    }
}

/// A device whose thread runs.
struct Device {
    name: String,
    /// Where its clients come from, unless the only one came with the command line.
    listener: Option<Arc<Listener>>,
    handle: Handle,
}

/// How a device ended.
type Report = (usize, Result<Ended, Failure>);

/// Has all devices end, but for one that has. Those that do not are left behind.
async fn end(
    devices: &[Device],
    ended: Option<usize>,
    reports: &mut mpsc::UnboundedReceiver<Report>,
) -> Result<(), DaemonError> {
    devices.iter().for_each(|device| device.handle.stop());
    let mut left: BTreeSet<usize> = (0..devices.len()).filter(|index| Some(*index) != ended).collect();
    let all_ended = async {
        while !left.is_empty() {
            let Some((index, _)) = reports.recv().await else { return };
            left.remove(&index);
        }
    };
    // What is left says how it went.
    let _ = tokio::time::timeout(ENDING, all_ended).await;
    if left.is_empty() {
        return Ok(());
    }
    let hung = left.iter().map(|index| &devices[*index]);
    // Its thread, which would, never comes to it.
    hung.clone().filter_map(|device| device.listener.as_ref()).for_each(|listener| listener.remove_file());
    Err(DaemonError::Hung { names: hung.map(|device| device.name.clone()).collect() })
}

/// Answers `hcactl` for as long as the daemon runs.
async fn serve_control(listener: Option<&Listener>, config: &Config, devices: &[Device]) {
    if let Some(listener) = listener {
        let devices = config.devices.iter().zip(devices).map(|(config, device)| control::server::Device {
            id: config.identity.lid.get(),
            interface: config.frontend.key(),
            name: blueprint::name(config),
            identity: config.identity,
            socket: config.socket_path.clone(),
            capture_max_bytes: config.capture_max_bytes,
            trace_max_bytes: config.trace_max_bytes,
            record_max_bytes: config.record_max_bytes,
            header: blueprint::header(config),
            handle: device.handle.clone(),
        });
        if let Err(error) = control::server::serve(listener, devices.collect()).await {
            tracing::error!(%error, "the control socket is not served");
        }
    }
    std::future::pending().await
}

/// Makes ready to tell figures, with what that takes of the process.
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
        tracing::info!(%address, "metrics are served to whoever reaches this address");
    }
    Ok((listener, Process::new()))
}

/// Tells figures for as long as the daemon runs.
async fn serve_metrics(
    figures: Option<(metrics::server::Listener, Process)>,
    config: &Config,
    devices: &[Device],
) {
    if let Some((listener, process)) = figures {
        let devices = config.devices.iter().zip(devices).map(|(config, device)| metrics::server::Device {
            id: config.identity.lid.get(),
            interface: config.frontend.key(),
            handle: device.handle.clone(),
        });
        if let Err(error) = metrics::server::serve(&listener, process, devices.collect()).await {
            tracing::error!(%error, "metrics are not served");
        }
    }
    std::future::pending().await
}

/// Tells the service manager that the main thread lives. A device that hangs is no reason to take it for dead: the others
/// serve.
async fn keep_alive(notify: &Notify) {
    let Some(interval) = notify.interval() else { return std::future::pending().await };
    loop {
        notify.alive();
        tokio::time::sleep(interval).await;
    }
}

/// What asks the daemon to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None`: who started us had it ignored, as nohup does.
    hangup: Option<Signal>,
}

impl Signals {
    /// In a tokio runtime.
    fn new() -> io::Result<Self> {
        let hangup = !is_ignored(SignalKind::hangup());
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: hangup.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    /// Its name, once there is one.
    async fn recv(&mut self) -> &'static str {
        let Self { terminate, interrupt, hangup } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            _ = hangup => "SIGHUP",
        }
    }
}

/// Whether a signal is ignored, as proc(5) tells of the process.
fn is_ignored(signal: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw_value() - 1) & 1 != 0
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::control::call::Mailbox;
    use crate::worker::Run;

    /// A worker that ends when it is asked to, or never.
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
            while !mailbox.is_stopped_within(ENDING) {}
            Ok(Ended::Shutdown)
        }
    }

    #[test]
    fn a_device_that_hangs_is_left_behind_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let (report, mut reports) = mpsc::unbounded_channel();
        let mut devices = Vec::new();
        for (index, hangs) in [false, true, false].into_iter().enumerate() {
            let (handle, mut mailbox) = call::mailbox().unwrap();
            let name = format!("hca{}", index + 1);
            let listener = Arc::new(Listener::bind(&folder.path().join(&name)).unwrap());
            let (report, held) = (report.clone(), listener.clone());
            devices.push(Device { name, listener: Some(listener), handle });
            thread::spawn(move || {
                let _ = report.send((index, supervise(Box::new(Stub { hangs }), None, &mut mailbox)));
                drop(held);
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = Instant::now();
        let error = runtime.block_on(end(&devices, None, &mut reports)).unwrap_err();
        assert_eq!(error.to_string(), "hca2 did not end within 2 s");
        assert!(asked.elapsed() < ENDING * 3);
        drop(devices);
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "the socket of the hung device goes with the process");
    }
}
