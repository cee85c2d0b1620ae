//! Builds a device's worker from its configuration, at startup and after each failure.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use card::capture::Capture;
use card::fabric::Fabric;
use card::fabric::local::{Network, Networks};
use card::fabric::ring::RingFabric;
use card::fabric::tap::TapFabric;
use card::fabric::udp::UdpFabric;
use card::frontend::{FrontendVisitor, Interface, PortNumber, Setup};
use card::hca::Hca;
use card::net::address::Addresses;
use card::record::{Header, Recorder};
use card::telemetry::store::{Keep, Opening};
use card::telemetry::trace::Trace;
use card::vfio::server::{ListenError, Listener, Source};
use protocol::ids::MacAddr;
use thiserror::Error;

use crate::clock;
use crate::config::{CaptureConfig, DeviceConfig, Doorbells, FabricConfig, TraceConfig};
use crate::control::named_peers::ResolvedPeers;
use crate::inherited::Inherited;
use crate::worker::{Run, Worker};

/// Why a device cannot be created.
#[derive(Debug, Error)]
pub enum MakeError {
    /// The socket for the VMM cannot be created.
    #[error("{key}")]
    Listen {
        /// Configuration key of the socket.
        key: String,
        source: ListenError,
    },
    /// The device has no socket path, and the process has not inherited a socket for it.
    #[error("{0} has no `socket_path`, and hcad did not inherit a socket for it")]
    NoSocket(String),
    /// The fabric cannot be opened.
    #[error("{key}: cannot open {name}")]
    Fabric {
        /// Configuration key of the fabric.
        key: String,
        /// Configured address or interface.
        name: String,
        source: io::Error,
    },
    /// The capture, trace or recording cannot be written.
    #[error("{key}: cannot write to {}", path.display())]
    File {
        /// Configuration key of the file.
        key: String,
        path: PathBuf,
        source: io::Error,
    },
    /// The process is out of file descriptors or memory.
    #[error("cannot start the device")]
    Host(#[from] io::Error),
}

/// Builds a device's worker. The socket is passed to each build, and the local network is kept between builds. Each
/// build reopens all other resources.
#[derive(Clone, Debug)]
pub struct DeviceBuilder {
    device: DeviceConfig,
    /// Configuration key of the device, such as `devices[0]`.
    key: String,
    /// The device's network, if it uses the local fabric.
    network: Option<Arc<Network>>,
    /// Peers found through DNS.
    resolved: ResolvedPeers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    Start,
    Restart,
}

impl DeviceBuilder {
    /// Creates a builder for a device. `key` identifies the device in error messages.
    pub fn new(device: &DeviceConfig, key: &str, networks: &mut Networks) -> Self {
        let network = match &device.fabric {
            FabricConfig::Local { network } => Some(networks.network(network)),
            FabricConfig::Udp { .. } | FabricConfig::Ring { .. } | FabricConfig::Tap { .. } => None,
        };
        Self { device: device.clone(), key: key.to_owned(), network, resolved: ResolvedPeers::default() }
    }

    /// Returns the name of the device's thread, which is also the name of the interface in captures.
    pub fn name(&self) -> String {
        name(&self.device)
    }

    /// Returns the peers found through DNS. Each build of the worker uses this list.
    pub fn resolved(&self) -> &ResolvedPeers {
        &self.resolved
    }

    /// Returns the socket through which clients reach the device, either inherited or newly bound.
    ///
    /// # Errors
    /// Fails if the process cannot listen on the socket, or if the device has no socket path and no socket was
    /// inherited.
    pub fn source(&self, inherited: &mut Inherited) -> Result<Source, MakeError> {
        let Some(path) = &self.device.socket_path else {
            return inherited.take_only().ok_or_else(|| MakeError::NoSocket(self.key.clone()));
        };
        if let Some(listener) = inherited.take(path) {
            return Ok(Source::Listener(listener));
        }
        Listener::bind_for(path, self.device.socket_access)
            .map(|listener| Source::Listener(listener.into()))
            .map_err(|source| MakeError::Listen { key: format!("{}.socket_path", self.key), source })
    }

    /// Builds the worker at startup. Replaces existing output files.
    ///
    /// # Errors
    /// Fails if a resource in the configuration cannot be opened.
    pub fn make(&self, source: Source) -> Result<Box<dyn Run>, MakeError> {
        self.make_on(Occasion::Start, source)
    }

    /// Builds the worker after a failure. Appends to existing output files. If an output file cannot be opened, the
    /// device runs without it.
    ///
    /// # Errors
    /// Fails if the fabric cannot be opened.
    pub fn make_again(&self, listener: Arc<Listener>) -> Result<Box<dyn Run>, MakeError> {
        self.make_on(Occasion::Restart, Source::Listener(listener))
    }

    fn make_on(&self, occasion: Occasion, source: Source) -> Result<Box<dyn Run>, MakeError> {
        let Self { device, .. } = self;
        let fabric = self.fabric()?;
        let opening = match occasion {
            Occasion::Start => Opening::Replace,
            Occasion::Restart => Opening::Append,
        };
        let capture = match &device.capture {
            None => None,
            Some(CaptureConfig { keep, filter }) => self
                .opened("capture", occasion, keep, Capture::open(keep, opening, &self.name()))?
                .map(|capture| capture.with_limit(device.capture_max_bytes).with_filter(filter.clone())),
        };
        let trace = match &device.trace {
            None => None,
            Some(TraceConfig { keep, format, filter }) => self
                .opened("trace.file", occasion, keep, Trace::open(keep, opening, *format, &self.name()))?
                .map(|trace| trace.with_limit(device.trace_max_bytes).with_filter(filter.clone())),
        };
        let record = match (&device.record, occasion) {
            (None, _) => None,
            (Some(path), Occasion::Start) => {
                let header = header(device).with_clock_origin(clock::origin());
                let record = Recorder::create(path, &header, device.record_max_bytes);
                Some(self.must("record", path, record)?)
            }
            (Some(path), Occasion::Restart) => {
                tracing::warn!(path = %path.display(), "recording stopped: the device failed");
                None
            }
        };
        device
            .frontend
            .make(&setup(device), WorkerParts { builder: self, source, fabric, capture, trace, record })
    }

    /// Returns an output file. An error while opening it is fatal at startup, but is only logged when the device
    /// restarts after a failure.
    fn opened<T>(
        &self,
        key: &str,
        occasion: Occasion,
        keep: &Keep,
        opened: io::Result<T>,
    ) -> Result<Option<T>, MakeError> {
        match occasion {
            Occasion::Start => self.must(key, keep.path(), opened).map(Some),
            Occasion::Restart => Ok(ok_or_log(keep.path(), opened)),
        }
    }

    fn must<T>(&self, key: &str, path: &Path, opened: io::Result<T>) -> Result<T, MakeError> {
        opened.map_err(|source| MakeError::File {
            key: format!("{}.{key}", self.key),
            path: path.to_owned(),
            source,
        })
    }

    fn fabric(&self) -> Result<Box<dyn Fabric + Send>, MakeError> {
        let mac = self.device.identity.mac;
        let failed = |part: &str, name: String, source| MakeError::Fabric {
            key: format!("{}.fabric.{part}", self.key),
            name,
            source,
        };
        Ok(match (&self.device.fabric, &self.network) {
            (FabricConfig::Udp { bind, peers, named }, _) => {
                let failed = |source| failed("udp.bind", bind.to_string(), source);
                let mut fabric = UdpFabric::bind(*bind, mac, peers).map_err(failed)?;
                if let Some(switch) = fabric.switch() {
                    let mut macs = named.iter().filter_map(|peer| peer.mac);
                    macs.try_for_each(|mac| switch.reserve(mac))
                        .map_err(|error| failed(io::Error::other(error)))?;
                    // The returned errors can be ignored, because peers that cannot be added have already been logged.
                    let _ = switch.set_resolved(&self.resolved.get());
                }
                Box::new(fabric)
            }
            (FabricConfig::Ring { folder, .. }, _) => {
                let fabric = RingFabric::join(folder, &self.device.identity);
                Box::new(
                    fabric.map_err(|source| failed("ring.folder", folder.display().to_string(), source))?,
                )
            }
            (FabricConfig::Tap { interface, path_mtu }, _) => {
                let fabric = TapFabric::open(interface, *path_mtu);
                Box::new(fabric.map_err(|source| failed("tap.interface", interface.to_string(), source))?)
            }
            (FabricConfig::Local { .. }, Some(network)) => Box::new(network.join(&self.device.identity)?),
            (FabricConfig::Local { network }, None) => {
                let missing = io::Error::from(io::ErrorKind::NotFound);
                return Err(failed("local.network", network.clone(), missing));
            }
        })
    }
}

/// Returns a front-end's setup parameters, except for its options.
pub fn setup(device: &DeviceConfig) -> Setup<()> {
    Setup { options: (), mac: device.identity.mac, engine: engine::Config::default() }
}

/// A configured device, independent of its host resources.
#[derive(Clone, Copy, Debug)]
pub struct ConfiguredDevice<'a>(&'a DeviceConfig);

impl<'a> ConfiguredDevice<'a> {
    pub fn of(device: &'a DeviceConfig) -> Self {
        Self(device)
    }

    /// Creates the device in its power-on state.
    ///
    /// # Errors
    /// Fails if the configuration has too many impairments.
    pub fn hca<F: Interface>(&self, frontend: F, capture: Option<Capture>) -> io::Result<Hca<F>> {
        let device = self.0;
        let mut hca = Hca::new(frontend, self.addresses(), capture);
        if let FabricConfig::Tap { path_mtu, .. } = &device.fabric {
            hca.limit_path_mtu(*path_mtu);
        }
        self.peer_macs().for_each(|mac| hca.add_static_neighbour(mac));
        hca.set_strict(device.strict);
        hca.set_memory_limits(device.memory);
        if device.doorbells == Doorbells::Mapped {
            hca.map_doorbells();
        }
        for rule in &device.impairments {
            hca.impair(rule.clone()).map_err(io::Error::other)?;
        }
        Ok(hca)
    }

    fn addresses(&self) -> Addresses {
        let DeviceConfig { identity, peers, default_peer, .. } = self.0;
        Addresses { own: *identity, peers: peers.clone(), default_peer: *default_peer }
    }

    /// Returns the configured MACs of UDP peers.
    fn peer_macs(&self) -> impl Iterator<Item = MacAddr> {
        let peers = match &self.0.fabric {
            FabricConfig::Udp { peers, .. } => peers.as_slice(),
            FabricConfig::Local { .. } | FabricConfig::Ring { .. } | FabricConfig::Tap { .. } => &[],
        };
        let named = self.0.fabric.named_peers().iter().filter_map(|peer| peer.mac);
        peers.iter().filter_map(|peer| peer.mac).chain(named)
    }
}

/// Returns the header of the device's recordings.
pub fn header(device: &DeviceConfig) -> Header {
    Header::new(&name(device), device.entry.clone())
}

pub fn name(device: &DeviceConfig) -> String {
    format!("hca{}", device.identity.lid.get())
}

/// Returns the opened file. If opening failed, logs the error and returns `None`.
fn ok_or_log<T>(path: &Path, opened: io::Result<T>) -> Option<T> {
    opened
        .inspect_err(
            |error| tracing::warn!(path = %path.display(), %error, "cannot reopen a capture or trace file when the device restarts; continuing without it"),
        )
        .ok()
}

/// All parts of a worker except the front-end.
struct WorkerParts<'a> {
    builder: &'a DeviceBuilder,
    source: Source,
    fabric: Box<dyn Fabric + Send>,
    capture: Option<Capture>,
    trace: Option<Trace>,
    record: Option<Recorder>,
}

impl FrontendVisitor for WorkerParts<'_> {
    type Output = Result<Box<dyn Run>, MakeError>;

    fn visit<F: Interface>(self, frontend: impl Fn() -> F + Send + 'static) -> Self::Output {
        let Self { builder, source, mut fabric, capture, trace, record } = self;
        let device = builder.device.clone();
        let (linger, coalesce) = (device.linger, device.coalesce);
        let first = frontend();
        if first.port_kind(PortNumber::ONE).is_nic() {
            fabric.set_promiscuous();
        }
        let mut hca = ConfiguredDevice::of(&device).hca(first, capture)?;
        hca.set_trace(trace);
        let anew = move || ConfiguredDevice::of(&device).hca(frontend(), None);
        let worker = Worker::new(source, hca, fabric)?
            .with_busy_poll(linger)
            .with_coalescing(coalesce)
            .with_maker(Box::new(anew));
        Ok(Box::new(match record {
            Some(record) => worker.with_record(record),
            None => worker,
        }))
    }
}
