//! Manages the process's devices, each with its own thread.
//!
//! A device is created completely before its thread starts, and no device affects another. A reload has three steps. It
//! first creates all devices that do not need resources held by the devices to be removed. If this step fails, nothing
//! has changed. It then stops the devices to be removed, and finally creates the remaining devices. If one of these
//! cannot be created, the supervisor retries, as after a failure.

mod change_error;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use card::fabric::local::Networks;
use card::telemetry::subscriber::{self, LogConfig};
use card::vfio::server::{Listener, Source};
use control_api::message::Reloaded;
use control_api::runtime_folder;
use control_api::text_file;
use serde_json::{Map, Value};
use thiserror::Error;
use tokio::sync::{mpsc, watch};

use self::change_error::{ChangeError, HINT, causes};
use crate::builder::{self, DeviceBuilder, MakeError};
use crate::config::{
    ADDED, Config, ConfigError, DeviceConfig, check_paths, check_together, configuration_file,
};
use crate::confinement;
use crate::control::call::{self, Mailbox};
use crate::control::named_peers::PeerNames;
use crate::control::registry::{Change, Device, DeviceRegistry, Devices};
use crate::inherited::{Inherited, InheritedError};
use crate::supervisor::{Failure, Rebuild, supervise};
use crate::worker::{Ended, Run};

/// Timeout for stopping devices. A turn of a device's event loop takes milliseconds, so a device that takes longer to
/// stop is considered hung. Its thread may run until the process exits.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(2);

const LOG: &str = "log";

/// Why devices cannot be created, or why one failed.
#[derive(Debug, Error)]
pub enum FleetError {
    /// A device cannot be created.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The process cannot create more threads or descriptors.
    #[error("cannot start the device")]
    Host(#[from] io::Error),
    /// A device failed and cannot be recreated without its client.
    #[error("{name} stopped")]
    Device { name: String, source: Failure },
    /// Devices did not stop in time.
    #[error("{} did not stop within {} s", names.join(", "), STOP_TIMEOUT.as_secs())]
    Hung { names: Vec<String> },
}

/// The origin of the configuration, for reloads.
pub struct Origin {
    /// The configuration file. `None` if it cannot be read again, or if the command line describes the device.
    pub path: Option<PathBuf>,
    /// Parses the text of a configuration and applies the command line.
    pub parse: Box<Parse>,
}

/// A function that parses the text of a configuration, applies the command line, and assigns inherited sockets to
/// devices. Its errors do not name a file, because the text may come from any file.
pub type Parse = dyn Fn(&str, &mut Inherited) -> Result<Config, ConfigError>;

/// All devices of the process.
pub struct Fleet {
    members: Vec<Member>,
    registry: watch::Sender<Devices>,
    networks: Networks,
    inherited: Inherited,
    report: mpsc::UnboundedSender<Report>,
    reports: mpsc::UnboundedReceiver<Report>,
    /// Serial number of the next device.
    serial: u64,
    /// The configuration without its devices, as of startup or the last reload.
    config: Config,
    origin: Origin,
    stop_timeout: Duration,
    /// Result of the last device, if it ended on its own.
    over: Option<Result<(), FleetError>>,
}

/// A device with a running thread.
struct Member {
    /// Distinguishes the device from earlier and later devices with the same ID.
    serial: u64,
    config: DeviceConfig,
    shown: Arc<Device>,
    /// Listening socket of the device. `None` if its only client was inherited.
    listener: Option<Arc<Listener>>,
    /// Whether the device is in the configuration file. If not, a reload does not remove it.
    is_of_file: bool,
    /// Whether a stop has been requested.
    is_leaving: bool,
}

/// An event for [`Fleet::handle`].
pub enum Next {
    /// A device has ended.
    Ended(Report),
    /// A control client requests a change.
    Change(Change),
    /// SIGHUP requests a reload.
    Hangup,
}

impl Next {
    /// Returns whether the event is a reload, by signal or by request.
    pub fn is_reload(&self) -> bool {
        matches!(self, Self::Hangup | Self::Change(Change::Reload(..)))
    }
}

/// The outcome of a device whose thread has ended.
pub struct Report {
    serial: u64,
    outcome: Result<Ended, Failure>,
}

/// A device whose thread has not been started.
struct BuiltDevice {
    config: DeviceConfig,
    builder: DeviceBuilder,
    listener: Option<Arc<Listener>>,
    worker: Box<dyn Run>,
}

/// Stands in for a worker that could not be created. It fails immediately, and the supervisor retries.
struct Unbuilt(io::Error);

impl Run for Unbuilt {
    fn run(self: Box<Self>, _: &mut Mailbox) -> io::Result<Ended> {
        Err(self.0)
    }
}

impl Fleet {
    /// Creates an empty fleet. Also returns the devices' configurations, which the caller must pass to
    /// [`Fleet::prepare`].
    pub fn new(mut config: Config, inherited: Inherited, origin: Origin) -> (Self, Vec<DeviceConfig>) {
        let devices = std::mem::take(&mut config.devices);
        let (report, reports) = mpsc::unbounded_channel();
        let registry = watch::Sender::new(Devices::default());
        let (networks, members) = (Networks::default(), Vec::new());
        let fleet = Self {
            members,
            registry,
            networks,
            inherited,
            report,
            reports,
            serial: 0,
            config,
            origin,
            stop_timeout: STOP_TIMEOUT,
            over: None,
        };
        (fleet, devices)
    }

    /// Creates the configured devices. All are created before any is started, so that errors are reported before the
    /// first client is served.
    ///
    /// # Errors
    /// Fails if a device cannot be created.
    pub fn prepare(&mut self, devices: Vec<DeviceConfig>) -> Result<Prepared, FleetError> {
        let made = devices
            .into_iter()
            .enumerate()
            .map(|(index, device)| self.make(device, &format!("devices[{index}]")))
            .collect::<Result<_, _>>()?;
        Ok(Prepared(made))
    }

    /// Starts the devices.
    ///
    /// # Errors
    /// Fails if a thread cannot be created.
    pub fn start(&mut self, Prepared(made): Prepared) -> Result<(), FleetError> {
        for made in made {
            self.run(made, true)?;
        }
        Ok(())
    }

    pub fn take_inherited(&mut self, path: &Path) -> Option<Arc<Listener>> {
        self.inherited.take(path)
    }

    /// Checks that every inherited socket is used.
    ///
    /// # Errors
    /// Fails if a socket is unused.
    pub fn check_inherited(&self) -> Result<(), InheritedError> {
        self.inherited.check_used()
    }

    /// Subscribes to the set of devices.
    pub fn registry(&self) -> DeviceRegistry {
        self.registry.subscribe()
    }

    /// Returns the configuration file, if it can be read again.
    pub fn file(&self) -> Option<&Path> {
        self.origin.path.as_deref()
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the number of devices with a connected VMM.
    pub fn guests(&self) -> usize {
        self.members.iter().filter(|member| member.shown.handle.is_connected()).count()
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self, changes: &mut mpsc::Receiver<Change>) -> Next {
        tokio::select! {
            Some(report) = self.reports.recv() => Next::Ended(report),
            Some(change) = changes.recv() => Next::Change(change),
            else => std::future::pending().await,
        }
    }

    /// Handles an event. Not cancel-safe: dropping the future leaves a change incomplete, so it may be dropped only
    /// during shutdown.
    pub async fn handle(&mut self, next: Next) {
        match next {
            Next::Ended(report) => self.account(report),
            Next::Change(change) => self.change(change).await,
            Next::Hangup => self.reload_file().await,
        }
    }

    /// Returns the result of the last device once it has ended on its own.
    pub fn over(&mut self) -> Option<Result<(), FleetError>> {
        self.over.take()
    }

    /// Reads and applies the configuration file again and logs the outcome.
    async fn reload_file(&mut self) {
        let Some(path) = self.file() else { return };
        match text_file::read(path) {
            Ok(text) => drop(self.reload(&text).await),
            Err(error) => {
                let confined = error.kind() == io::ErrorKind::PermissionDenied && confinement::is_in_force();
                let (path, hint) = (path.display(), if confined { HINT } else { "" });
                tracing::error!("cannot reload the configuration: cannot read {path}: {error}{hint}");
            }
        }
    }

    /// Stops all devices. Hung devices are abandoned.
    ///
    /// # Errors
    /// [`FleetError::Hung`] if any device hangs.
    pub async fn end(&mut self) -> Result<(), FleetError> {
        let all = self.members.iter().map(|member| member.serial).collect();
        let hung = self.stop_devices(&all).await;
        if hung.is_empty() { Ok(()) } else { Err(FleetError::Hung { names: hung }) }
    }

    async fn change(&mut self, change: Change) {
        // Errors from `send` are ignored, because the requester may have disconnected.
        match change {
            Change::Add(entry, answer) => {
                let added = self.add(entry);
                if let Err(error) = &added {
                    tracing::warn!("cannot add the device: {error}");
                }
                let _ = answer.send(added.map_err(|error| error.to_string()));
            }
            Change::Remove(id, answer) => {
                let _ = answer.send(self.remove(id).await.map_err(|error| error.to_string()));
            }
            Change::Reload(text, answer) => {
                let _ = answer.send(self.reload(&text).await.map_err(|error| error.to_string()));
            }
        }
    }

    /// Adds a device without affecting the others.
    fn add(&mut self, entry: Map<String, Value>) -> Result<(u16, Option<PathBuf>), ChangeError> {
        let others: Vec<_> = self.members.iter().map(|member| &member.config).collect();
        let mut device = DeviceConfig::beside(entry, &self.config.sockets, &others)?;
        let id = device.identity.lid.get();
        device.socket_path.get_or_insert_with(|| runtime_folder::device(&runtime_folder::own(), id));
        self.check_beside(&[(ADDED.to_owned(), &device)], |_| true)?;
        let socket = device.socket_path.clone();
        let made = self.make(device, ADDED)?;
        let name = made.builder.name();
        self.run(made, false)?;
        tracing::info!(device = name, "device added");
        Ok((id, socket))
    }

    /// Removes a device without affecting the others.
    async fn remove(&mut self, id: u16) -> Result<(), ChangeError> {
        let member = self.member(id).ok_or(ChangeError::NoDevice(id))?;
        let (serial, name) = (member.serial, member.shown.name.clone());
        if member.is_leaving {
            return Err(ChangeError::Leaving(name));
        }
        if self.stop_devices(&BTreeSet::from([serial])).await.is_empty() {
            tracing::info!(device = name, "device removed");
            Ok(())
        } else {
            Err(ChangeError::Hung(name))
        }
    }

    /// Applies the text of a configuration. On error, nothing has changed.
    async fn reload(&mut self, text: &str) -> Result<Reloaded, ChangeError> {
        let reloaded = self.reload_text(text).await;
        match &reloaded {
            Err(error) => tracing::error!("cannot reload the configuration: {error}"),
            Ok(Reloaded { added, removed, changed, unchanged, not_changed, problems }) => {
                for key in not_changed {
                    tracing::warn!(
                        key,
                        "setting cannot be changed by a reload; restart hcad to apply the new value"
                    );
                }
                problems
                    .iter()
                    .for_each(|problem| tracing::error!("configuration only partially applied: {problem}"));
                tracing::info!(
                    ?added,
                    ?removed,
                    ?changed,
                    unchanged = unchanged.len(),
                    "configuration reloaded"
                );
            }
        }
        reloaded
    }

    async fn reload_text(&mut self, text: &str) -> Result<Reloaded, ChangeError> {
        let config = (self.origin.parse)(text, &mut self.inherited)?;
        let mut reloaded = Reloaded::default();
        let (mut kept, mut leaving, mut coming) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for (index, device) in config.devices.iter().enumerate() {
            let (key, id) = (format!("devices[{index}]"), device.identity.lid.get());
            match self.member(id) {
                None => reloaded.added.push(id),
                Some(member) if member.is_leaving => {
                    return Err(ChangeError::Leaving(member.shown.name.clone()));
                }
                Some(member) if member.config.has_same_entry_as(device) => {
                    reloaded.unchanged.push(id);
                    kept.insert(member.serial);
                    continue;
                }
                Some(Member { listener: None, shown, .. }) => {
                    return Err(ChangeError::OnlyClient { key, name: shown.name.clone() });
                }
                Some(member) => {
                    reloaded.changed.push(id);
                    leaving.insert(member.serial);
                }
            }
            coming.push((key, device));
        }
        for member in self.members.iter().filter(|member| member.is_of_file && !member.is_leaving) {
            if !kept.contains(&member.serial) && leaving.insert(member.serial) {
                reloaded.removed.push(member.shown.id);
            }
        }
        self.check_beside(&coming, |member| !leaving.contains(&member.serial))?;
        let before = self.config.process_settings.iter().zip(&config.process_settings);
        reloaded.not_changed =
            before.filter(|(before, now)| before != now).map(|((key, _), _)| (*key).to_owned()).collect();

        // A device that conflicts with one to be removed can be created only after that one has stopped.
        let is_in_the_way = |device: &DeviceConfig| {
            let mut leaving = self.members.iter().filter(|member| leaving.contains(&member.serial));
            leaving.any(|member| member.config.conflicts_with(device))
        };
        let (late, early): (Vec<_>, Vec<_>) = coming
            .into_iter()
            .map(|(key, device)| (key, device.clone()))
            .partition(|(_, device)| is_in_the_way(device));
        let mut made = Vec::new();
        for (key, device) in early {
            match self.make(device, &key) {
                Ok(device) => made.push(device),
                Err(error) => {
                    made.into_iter().for_each(|made| self.unmake(made));
                    return Err(error.into());
                }
            }
        }

        // From here on, the reload can no longer be undone.
        self.config.sockets = config.sockets;
        if self.refilter(&config.log) {
            reloaded.not_changed.retain(|key| key != LOG);
        }
        for member in self.members.iter_mut().filter(|member| kept.contains(&member.serial)) {
            member.is_of_file = true;
        }
        let hung = self.stop_devices(&leaving).await;
        reloaded.problems.extend(hung.iter().map(|name| ChangeError::Hung(name.clone()).to_string()));
        for (key, device) in late {
            if hung.contains(&builder::name(&device)) {
                continue;
            }
            match self.make_or_retry(device, &key) {
                Ok(device) => made.push(device),
                Err(error) => reloaded.problems.push(causes(&error)),
            }
        }
        for made in made {
            let name = made.builder.name();
            if let Err(error) = self.run(made, true) {
                reloaded.problems.push(format!("cannot start the thread of {name}: {error}"));
            }
        }
        Ok(reloaded)
    }

    /// Applies the log filter unless the log format has changed. Returns whether the log now matches the configuration.
    fn refilter(&mut self, log: &LogConfig) -> bool {
        let now = &mut self.config.log;
        if log.format != now.format {
            return false;
        }
        if log.filter != now.filter {
            if !subscriber::set_filter(&log.filter) {
                return false;
            }
            now.filter.clone_from(&log.filter);
        }
        true
    }

    /// Checks that the new devices do not conflict with each other or with the devices that remain. Each new device is
    /// paired with its configuration key, for error messages.
    fn check_beside(
        &self,
        new: &[(String, &DeviceConfig)],
        stays: impl Fn(&Member) -> bool,
    ) -> Result<(), ConfigError> {
        let staying = self.members.iter().filter(|member| stays(member));
        let mut all: Vec<_> = staying.map(|member| (member.shown.name.clone(), &member.config)).collect();
        all.extend(new.iter().cloned());
        check_together(&all)?;
        let of_devices = all.iter().flat_map(|(name, device)| device.paths_of(name).collect::<Vec<_>>());
        let of_the_process = configuration_file(self.file()).chain(self.config.paths_of_the_process());
        check_paths(of_the_process.chain(of_devices))?;
        for (name, device) in new {
            confinement::check_device(device, name)?;
            // If creating the directory fails, the next check reports that it is missing.
            let _ = device.make_ring_folder(name);
            device.check_host(name, &[])?;
        }
        Ok(())
    }

    fn member(&self, id: u16) -> Option<&Member> {
        self.members.iter().find(|member| member.shown.id == id)
    }

    /// Creates a device and its socket. `key` is the device's configuration key, for error messages.
    fn make(&mut self, config: DeviceConfig, key: &str) -> Result<BuiltDevice, MakeError> {
        let builder = DeviceBuilder::new(&config, key, &mut self.networks);
        let source = builder.source(&mut self.inherited)?;
        let listener = listener(&source);
        match builder.make(source) {
            Ok(worker) => Ok(BuiltDevice { config, builder, listener, worker }),
            Err(error) => {
                self.release_socket(&config, listener);
                Err(error)
            }
        }
    }

    /// Like [`Self::make`], but for changes that can no longer be undone. If the socket can be created but the device
    /// cannot, the supervisor retries.
    fn make_or_retry(&mut self, config: DeviceConfig, key: &str) -> Result<BuiltDevice, MakeError> {
        let builder = DeviceBuilder::new(&config, key, &mut self.networks);
        let source = builder.source(&mut self.inherited)?;
        let listener = listener(&source);
        let worker = builder.make(source).or_else(|error| match listener {
            Some(_) => Ok::<Box<dyn Run>, _>(Box::new(Unbuilt(io::Error::other(causes(&error))))),
            None => Err(error),
        })?;
        Ok(BuiltDevice { config, builder, listener, worker })
    }

    fn unmake(&mut self, BuiltDevice { config, listener, worker, .. }: BuiltDevice) {
        drop(worker);
        self.release_socket(&config, listener);
    }

    /// Releases a device's socket. An inherited socket is kept for the next device; any other is removed when dropped.
    fn release_socket(&mut self, config: &DeviceConfig, listener: Option<Arc<Listener>>) {
        if let Some(listener) = listener.filter(|listener| listener.is_passed()) {
            self.inherited.put_back(config.socket_path.as_deref(), listener);
        }
    }

    fn run(&mut self, made: BuiltDevice, is_of_file: bool) -> io::Result<()> {
        let BuiltDevice { config, builder, listener, worker } = made;
        let (handle, mut mailbox) = call::mailbox()?;
        let (id, name, serial) = (config.identity.lid.get(), builder.name(), self.serial);
        self.serial += 1;
        let shown = Arc::new(Device {
            id,
            interface: config.frontend.key(),
            name: name.clone(),
            identity: config.identity,
            socket: config.socket_path.clone(),
            capture_max_bytes: config.capture_max_bytes,
            trace_max_bytes: config.trace_max_bytes,
            record_max_bytes: config.record_max_bytes,
            header: builder::header(&config),
            names: PeerNames::of(&config, builder.resolved()),
            handle,
        });
        let rebuild = listener
            .clone()
            .map(|listener| -> Rebuild { Box::new(move || Ok(builder.make_again(listener.clone())?)) });
        let report = self.report.clone();
        thread::Builder::new().name(name).spawn(move || {
            let _span = tracing::info_span!("device", id).entered();
            let outcome = supervise(worker, rebuild, &mut mailbox);
            // Sending fails only during shutdown, when the receiver has already been dropped.
            let _ = report.send(Report { serial, outcome });
        })?;
        self.members.push(Member { serial, config, shown, listener, is_of_file, is_leaving: false });
        self.publish();
        Ok(())
    }

    /// Stops devices. Returns the names of the devices that did not stop in time.
    async fn stop_devices(&mut self, serials: &BTreeSet<u64>) -> Vec<String> {
        for member in self.members.iter_mut().filter(|member| serials.contains(&member.serial)) {
            member.is_leaving = true;
            member.shown.handle.stop();
        }
        let end = tokio::time::Instant::now() + self.stop_timeout;
        while self.members.iter().any(|member| serials.contains(&member.serial)) {
            // After the timeout, all remaining devices count as hung.
            let Ok(Some(report)) = tokio::time::timeout_at(end, self.reports.recv()).await else { break };
            self.account(report);
        }
        let hung = self.members.iter().filter(|member| serials.contains(&member.serial));
        hung.map(|member| {
            // A hung thread cannot remove its socket file itself.
            member.listener.as_ref().inspect(|listener| listener.remove_file());
            member.shown.name.clone()
        })
        .collect()
    }

    /// Removes a device whose thread has ended and handles the outcome.
    fn account(&mut self, Report { serial, outcome }: Report) {
        let Some(at) = self.members.iter().position(|member| member.serial == serial) else { return };
        let Member { config, shown, listener, is_leaving, .. } = self.members.remove(at);
        self.release_socket(&config, listener);
        self.publish();
        let name = shown.name.clone();
        match (outcome, self.members.is_empty()) {
            _ if is_leaving => {}
            (Ok(_), true) => self.over = Some(Ok(())),
            (Err(source), true) => self.over = Some(Err(FleetError::Device { name, source })),
            (Ok(_), false) => {
                tracing::info!(
                    device = name,
                    "device stopped: its client disconnected, and --fd allows only one connection"
                )
            }
            (Err(failure), false) => {
                tracing::error!(device = name, %failure, "device failed and cannot be restarted; removing the device")
            }
        }
    }

    fn publish(&self) {
        self.registry.send_replace(self.members.iter().map(|member| member.shown.clone()).collect());
    }
}

/// Devices that have been created but not started.
pub struct Prepared(Vec<BuiltDevice>);

fn listener(source: &Source) -> Option<Arc<Listener>> {
    match source {
        Source::Listener(listener) => Some(listener.clone()),
        Source::Client(_) => None,
    }
}
