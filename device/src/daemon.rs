//! Running a configuration: one thread per HCA, signals and the control socket on the main thread.

use std::io;
use std::path::PathBuf;
use std::thread;

use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::capture::Capture;
use crate::config::{Config, DeviceConfig, FabricConfig, TraceConfig};
use crate::control;
use crate::control::call::Handle;
use crate::fabric::Fabric;
use crate::fabric::local::Networks;
use crate::fabric::tap::TapFabric;
use crate::fabric::udp::UdpFabric;
use crate::frontend::address::Addresses;
use crate::frontend::{Interface, Setup, Taker};
use crate::hca::Hca;
use crate::telemetry::trace::Trace;
use crate::vfio::server::{ListenError, Listener, Source};
use crate::worker::{Ended, Run, Worker};

/// Why the daemon did not start or did not go on.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// No socket for a VMM.
    #[error("{key}")]
    Listen {
        /// Which device's.
        key: String,
        /// Reason.
        source: ListenError,
    },
    /// No fabric.
    #[error("{key}: cannot receive on {name}")]
    Fabric {
        /// Which device's.
        key: String,
        /// Configured address or interface.
        name: String,
        /// Reason.
        source: io::Error,
    },
    /// No capture or trace file.
    #[error("{key}: cannot write {}", path.display())]
    File {
        /// Which device's.
        key: String,
        /// Configured file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The host refuses threads, signals or descriptors.
    #[error("the host does not let us start")]
    Host(#[from] io::Error),
    /// A device cannot go on.
    #[error("{name} stopped")]
    Device {
        /// Which.
        name: String,
        /// Reason.
        source: io::Error,
    },
    /// A device ended in a panic, which has been reported.
    #[error("{name} stopped: this is a defect of hcad")]
    Panicked {
        /// Which.
        name: String,
    },
}

/// Serves all devices until SIGTERM or SIGINT, or until the only client is gone. `inherited` is for a device without
/// a path.
///
/// # Errors
/// Something the configuration names cannot be opened, or a device's thread cannot go on.
pub fn run(config: &Config, mut inherited: Option<Source>) -> Result<(), DaemonError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Handlers are in place before the first socket is: whoever sees a socket may already send SIGTERM.
    let (mut terminate, mut interrupt) = {
        let _guard = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };

    let mut networks = Networks::default();
    // All are made before any is started: what fails, fails before a VMM is served.
    let workers = config
        .devices
        .iter()
        .enumerate()
        .map(|(index, device)| worker(device, &format!("devices[{index}]"), &mut networks, &mut inherited))
        .collect::<Result<Vec<_>, _>>()?;
    let handles: Vec<_> = workers.iter().map(|worker| worker.handle()).collect();
    let control = config
        .control_socket
        .as_ref()
        .map(|path| Listener::bind_private(path))
        .transpose()
        .map_err(|source| DaemonError::Listen { key: "control_socket".into(), source })?;

    let (report, mut reports) = mpsc::unbounded_channel();
    let mut threads = Vec::new();
    for (device, worker) in config.devices.iter().zip(workers) {
        let name = name(device);
        let id = device.identity.lid.get();
        let mut ending = Ending { name: name.clone(), result: None, report: report.clone() };
        threads.push(thread::Builder::new().name(name).spawn(move || {
            let _span = tracing::info_span!("device", id).entered();
            ending.end(worker.run());
        })?);
    }
    tracing::info!(devices = threads.len(), "ready");

    let ended = runtime.block_on(async {
        tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            ended = reports.recv() => ended,
            () = serve_control(control.as_ref(), &config.devices, &handles) => None,
        }
    });
    handles.iter().for_each(Handle::stop);
    for thread in threads {
        // A panic has come as a report.
        let _ = thread.join();
    }
    match ended {
        None | Some((_, Some(Ok(Ended::Shutdown | Ended::ClientGone)))) => Ok(()),
        Some((name, Some(Err(source)))) => Err(DaemonError::Device { name, source }),
        Some((name, None)) => Err(DaemonError::Panicked { name }),
    }
}

/// Answers `hcactl` for as long as the daemon runs.
async fn serve_control(listener: Option<&Listener>, configs: &[DeviceConfig], handles: &[Handle]) {
    if let Some(listener) = listener {
        let devices = configs.iter().zip(handles).map(|(config, handle)| control::server::Device {
            id: config.identity.lid.get(),
            interface: config.frontend.key(),
            name: name(config),
            identity: config.identity,
            socket: config.socket_path.clone(),
            handle: handle.clone(),
        });
        if let Err(error) = control::server::serve(listener, devices.collect()).await {
            tracing::error!(%error, "the control socket is not served");
        }
    }
    std::future::pending().await
}

/// Tells the main thread how a device's thread ended, by a panic too.
struct Ending {
    name: String,
    result: Option<io::Result<Ended>>,
    report: mpsc::UnboundedSender<(String, Option<io::Result<Ended>>)>,
}

impl Ending {
    fn end(&mut self, result: io::Result<Ended>) {
        self.result = Some(result);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // Nobody listens any more only when the daemon is ending anyway.
        let _ = self.report.send((std::mem::take(&mut self.name), self.result.take()));
    }
}

fn worker(
    device: &DeviceConfig,
    key: &str,
    networks: &mut Networks,
    inherited: &mut Option<Source>,
) -> Result<Box<dyn Run>, DaemonError> {
    let source = match (&device.socket_path, inherited.take()) {
        (Some(path), _) => Listener::bind(path)
            .map(Source::Listener)
            .map_err(|source| DaemonError::Listen { key: format!("{key}.socket_path"), source })?,
        (None, Some(source)) => source,
        (None, None) => {
            return Err(DaemonError::Host(io::Error::other(format!("{key} has no socket to listen on"))));
        }
    };
    let fabric = fabric(device, networks, &format!("{key}.fabric"))?;
    let capture = device.capture.as_ref().map(|path| {
        Capture::create(path, &name(device)).map_err(|source| DaemonError::File {
            key: format!("{key}.capture"),
            path: path.clone(),
            source,
        })
    });
    let common = Setup { options: (), addresses: addresses(device), engine: engine::Config::default() };
    device.frontend.make(&common, Parts { device, key, source, fabric, capture: capture.transpose()? })
}

/// What a worker is made of beside its front-end.
struct Parts<'a> {
    device: &'a DeviceConfig,
    key: &'a str,
    source: Source,
    fabric: Box<dyn Fabric + Send>,
    capture: Option<Capture>,
}

impl Taker for Parts<'_> {
    type Output = Result<Box<dyn Run>, DaemonError>;

    fn take<F: Interface>(self, frontend: F) -> Self::Output {
        let Self { device, key, source, fabric, capture } = self;
        let mut hca = Hca::new(frontend, addresses(device), capture);
        hca.set_strict(device.strict);
        if let Some(TraceConfig { file, format }) = &device.trace {
            let trace = Trace::create(file, *format, &name(device)).map_err(|source| DaemonError::File {
                key: format!("{key}.trace.file"),
                path: file.clone(),
                source,
            })?;
            hca.set_trace(Some(trace));
        }
        for rule in &device.impairments {
            hca.impairments().add(rule.clone()).map_err(io::Error::other)?;
        }
        Ok(Box::new(Worker::new(source, hca, fabric)?.with_linger(device.linger)))
    }
}

fn addresses(device: &DeviceConfig) -> Addresses {
    Addresses { own: device.identity, peers: device.peers.clone(), default_peer: device.default_peer }
}

fn fabric(
    device: &DeviceConfig,
    networks: &mut Networks,
    key: &str,
) -> Result<Box<dyn Fabric + Send>, DaemonError> {
    let mac = device.identity.mac;
    let failed =
        |part: &str, name: String, source| DaemonError::Fabric { key: format!("{key}.{part}"), name, source };
    Ok(match &device.fabric {
        FabricConfig::Udp { bind, peers } => {
            let fabric = UdpFabric::bind(*bind, mac, peers);
            Box::new(fabric.map_err(|source| failed("udp.bind", bind.to_string(), source))?)
        }
        FabricConfig::Local { network } => Box::new(networks.join(network, mac)?),
        FabricConfig::Tap { interface } => {
            let fabric = TapFabric::open(interface);
            Box::new(fabric.map_err(|source| failed("tap.interface", interface.to_string(), source))?)
        }
    })
}

/// Of the thread, and of the interface in captures.
fn name(device: &DeviceConfig) -> String {
    format!("hca{}", device.identity.lid.get())
}
