//! The devices of the process: one thread each, and which of them there are, as that changes.
//!
//! A device is made whole before its thread starts, and none is touched for the sake of another. What a reload changes it
//! changes in this order: devices that need nothing of those that leave are made, and if one cannot be, nothing has
//! happened; those that leave end; the rest is made, and what cannot be made then is tried again, as after a failure.

mod refusal;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};
use thiserror::Error;
use tokio::sync::{mpsc, watch};

use self::refusal::{HINT, Refusal, causes};
use crate::blueprint::{self, Blueprint, MakeError};
use crate::config::{ADDED, Config, ConfigError, DeviceConfig, check_paths, check_together};
use crate::confinement;
use crate::control::call::{self, Mailbox};
use crate::control::message::Reloaded;
use crate::control::roster::{Change, Device, Devices, Roster};
use crate::fabric::local::Networks;
use crate::inherited::{Inherited, InheritedError};
use crate::runtime_folder;
use crate::supervisor::{Failure, Rebuild, supervise};
use crate::telemetry::subscriber::{self, LogConfig};
use crate::text_file;
use crate::vfio::server::{Listener, Source};
use crate::worker::{Ended, Run};

/// How long devices have to end once they are asked to. A turn takes milliseconds; what takes longer hangs and ends with
/// the process.
pub const ENDING: Duration = Duration::from_secs(2);

/// The key of what the process says of itself.
const LOG: &str = "log";

/// Why the devices are not there, or did not end well.
#[derive(Debug, Error)]
pub enum FleetError {
    /// A device cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The host refuses threads or descriptors.
    #[error("cannot allocate host resources such as threads or file descriptors")]
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
    #[error("{} did not stop within {} s", names.join(", "), ENDING.as_secs())]
    Hung {
        /// Which.
        names: Vec<String>,
    },
}

/// Where the configuration comes from when it is read again.
pub struct Origin {
    /// The file.
    pub path: PathBuf,
    /// Makes a configuration of its text, with what the command line says.
    pub parse: Box<Parse>,
}

/// Makes a configuration of a text, with the sockets that were passed.
pub type Parse = dyn Fn(&str, &mut Inherited) -> Result<Config, ConfigError>;

/// See the module.
pub struct Fleet {
    members: Vec<Member>,
    roster: watch::Sender<Devices>,
    networks: Networks,
    inherited: Inherited,
    report: mpsc::UnboundedSender<Report>,
    reports: mpsc::UnboundedReceiver<Report>,
    /// Of the next device.
    serial: u64,
    /// As it was at the start, without its devices; of what may change as it is now.
    config: Config,
    origin: Option<Origin>,
    /// The last device has ended without being asked to, and so.
    over: Option<Result<(), FleetError>>,
}

/// A device whose thread runs.
struct Member {
    /// Tells it from others that have or had its number.
    serial: u64,
    config: DeviceConfig,
    shown: Arc<Device>,
    /// Where its clients come from, unless the only one came with the command line.
    listener: Option<Arc<Listener>>,
    /// The file has it, and a reload may take it away.
    is_of_file: bool,
    /// It has been asked to end.
    is_leaving: bool,
}

/// What there is to be done.
pub enum Next {
    /// A device has ended.
    Ended(Report),
    /// Somebody asks for others.
    Change(Change),
    /// The configuration is to be read again.
    Hangup,
}

impl Next {
    /// Whether it is a reload, however it was asked for.
    pub fn is_reload(&self) -> bool {
        matches!(self, Self::Hangup | Self::Change(Change::Reload(..)))
    }
}

/// How a device ended.
pub struct Report {
    serial: u64,
    outcome: Result<Ended, Failure>,
}

/// A device that is ready and has no thread yet.
struct Made {
    config: DeviceConfig,
    blueprint: Blueprint,
    listener: Option<Arc<Listener>>,
    worker: Box<dyn Run>,
}

/// In place of a worker that cannot be made yet: the supervisor tries again.
struct NotMade(io::Error);

impl Run for NotMade {
    fn run(self: Box<Self>, _: &mut Mailbox) -> io::Result<Ended> {
        Err(self.0)
    }
}

impl Fleet {
    /// Of a configuration, with its devices not made yet, and sockets that were passed.
    pub fn new(
        mut config: Config,
        inherited: Inherited,
        origin: Option<Origin>,
    ) -> (Self, Vec<DeviceConfig>) {
        let devices = std::mem::take(&mut config.devices);
        let (report, reports) = mpsc::unbounded_channel();
        let roster = watch::Sender::new(Devices::default());
        let (networks, members) = (Networks::default(), Vec::new());
        let fleet = Self {
            members,
            roster,
            networks,
            inherited,
            report,
            reports,
            serial: 0,
            config,
            origin,
            over: None,
        };
        (fleet, devices)
    }

    /// Makes the devices of the configuration. All are made before any is started: what fails, fails before a VMM is served.
    ///
    /// # Errors
    /// One cannot be made.
    pub fn prepare(&mut self, devices: Vec<DeviceConfig>) -> Result<Prepared, FleetError> {
        let made = devices
            .into_iter()
            .enumerate()
            .map(|(index, device)| self.make(device, &format!("devices[{index}]")))
            .collect::<Result<_, _>>()?;
        Ok(Prepared(made))
    }

    /// Starts what was made.
    ///
    /// # Errors
    /// The host has no threads left.
    pub fn start(&mut self, Prepared(made): Prepared) -> Result<(), FleetError> {
        for made in made {
            self.run(made, true)?;
        }
        Ok(())
    }

    /// The socket that was passed for `path`.
    pub fn take_passed(&mut self, path: &std::path::Path) -> Option<Arc<Listener>> {
        self.inherited.take(path)
    }

    /// Sees to it that no socket was passed in vain.
    ///
    /// # Errors
    /// One was.
    pub fn check_passed(&self) -> Result<(), InheritedError> {
        self.inherited.check_used()
    }

    /// The devices, for those who serve others.
    pub fn roster(&self) -> Roster {
        self.roster.subscribe()
    }

    /// The file that the configuration comes from.
    pub fn file(&self) -> Option<PathBuf> {
        self.origin.as_ref().map(|origin| origin.path.clone())
    }

    /// How many devices there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// How many have a VMM.
    pub fn guests(&self) -> usize {
        self.members.iter().filter(|member| member.shown.handle.is_connected()).count()
    }

    /// What comes next. Whoever drops the future loses nothing.
    pub async fn next(&mut self, changes: &mut mpsc::Receiver<Change>) -> Next {
        tokio::select! {
            Some(report) = self.reports.recv() => Next::Ended(report),
            Some(change) = changes.recv() => Next::Change(change),
            else => std::future::pending().await,
        }
    }

    /// Carries it out. Whoever drops the future leaves it half done, for the end of all.
    pub async fn attend(&mut self, next: Next) {
        match next {
            Next::Ended(report) => self.account(report),
            Next::Change(change) => self.change(change).await,
            Next::Hangup => self.reload_file().await,
        }
    }

    /// How the last device has ended, once it has without being asked to.
    pub fn over(&mut self) -> Option<Result<(), FleetError>> {
        self.over.take()
    }

    /// Reads and applies the configuration file again, and logs the outcome.
    async fn reload_file(&mut self) {
        let text = match &self.origin {
            None => Err(Refusal::NoFile),
            Some(Origin { path, .. }) => text_file::read(path).map_err(|error| {
                let confined = error.kind() == io::ErrorKind::PermissionDenied && confinement::is_in_force();
                Refusal::Unreadable { path: path.clone(), error, hint: if confined { HINT } else { "" } }
            }),
        };
        match text {
            Ok(text) => drop(self.reload(&text).await),
            Err(refusal) => tracing::error!("configuration not reloaded: {refusal}"),
        }
    }

    /// Has all devices end. Those that do not are left behind.
    ///
    /// # Errors
    /// [`FleetError::Hung`].
    pub async fn end(&mut self) -> Result<(), FleetError> {
        let all = self.members.iter().map(|member| member.serial).collect();
        let hung = self.leave(&all).await;
        if hung.is_empty() { Ok(()) } else { Err(FleetError::Hung { names: hung }) }
    }

    async fn change(&mut self, change: Change) {
        // An asker that is gone wants no answer.
        match change {
            Change::Add(entry, answer) => {
                let added = self.add(entry);
                if let Err(refusal) = &added {
                    tracing::warn!("device not added: {refusal}");
                }
                let _ = answer.send(added.map_err(|refusal| refusal.to_string()));
            }
            Change::Remove(id, answer) => {
                let _ = answer.send(self.remove(id).await.map_err(|refusal| refusal.to_string()));
            }
            Change::Reload(text, answer) => {
                let _ = answer.send(self.reload(&text).await.map_err(|refusal| refusal.to_string()));
            }
        }
    }

    /// One more, beside those that are there.
    fn add(&mut self, entry: Map<String, Value>) -> Result<(u16, Option<PathBuf>), Refusal> {
        let others: Vec<_> = self.members.iter().map(|member| &member.config).collect();
        let mut device = DeviceConfig::beside(entry, &self.config.sockets, &others)?;
        let id = device.identity.lid.get();
        device.socket_path.get_or_insert_with(|| runtime_folder::device(&runtime_folder::own(), id));
        self.check_beside(&[(ADDED.to_owned(), &device)], |_| true)?;
        let socket = device.socket_path.clone();
        let made = self.make(device, ADDED)?;
        let name = made.blueprint.name();
        self.run(made, false)?;
        tracing::info!(device = name, "device added");
        Ok((id, socket))
    }

    /// One less; the others do not notice.
    async fn remove(&mut self, id: u16) -> Result<(), Refusal> {
        let member = self.member(id).ok_or(Refusal::NoDevice(id))?;
        let (serial, name) = (member.serial, member.shown.name.clone());
        if member.is_leaving {
            return Err(Refusal::Leaving(name));
        }
        if self.leave(&BTreeSet::from([serial])).await.is_empty() {
            tracing::info!(device = name, "device removed");
            Ok(())
        } else {
            Err(Refusal::Hung(name))
        }
    }

    /// Has the devices that the text of a configuration says. An error means that nothing has changed.
    async fn reload(&mut self, text: &str) -> Result<Reloaded, Refusal> {
        let reloaded = self.reload_text(text).await;
        match &reloaded {
            Err(refusal) => tracing::error!("configuration not reloaded: {refusal}"),
            Ok(Reloaded { added, removed, changed, unchanged, not_changed, problems }) => {
                for key in not_changed {
                    tracing::warn!(
                        key,
                        "setting not changed by the reload; restart hcad to apply the new value"
                    );
                }
                problems
                    .iter()
                    .for_each(|problem| tracing::error!("configuration only partly applied: {problem}"));
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

    async fn reload_text(&mut self, text: &str) -> Result<Reloaded, Refusal> {
        let origin = self.origin.as_ref().ok_or(Refusal::NoFile)?;
        let config = (origin.parse)(text, &mut self.inherited)?;
        let mut reloaded = Reloaded::default();
        let (mut kept, mut leaving, mut coming) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for (index, device) in config.devices.iter().enumerate() {
            let (key, id) = (format!("devices[{index}]"), device.identity.lid.get());
            match self.member(id) {
                None => reloaded.added.push(id),
                Some(member) if member.is_leaving => {
                    return Err(Refusal::Leaving(member.shown.name.clone()));
                }
                Some(member) if member.config.says_as(device) => {
                    reloaded.unchanged.push(id);
                    kept.insert(member.serial);
                    continue;
                }
                Some(Member { listener: None, shown, .. }) => {
                    return Err(Refusal::OnlyClient { key, name: shown.name.clone() });
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
        let before = self.config.of_the_process.iter().zip(&config.of_the_process);
        reloaded.not_changed =
            before.filter(|(before, now)| before != now).map(|((key, _), _)| (*key).to_owned()).collect();

        let is_in_the_way = |device: &DeviceConfig| {
            let mut leaving = self.members.iter().filter(|member| leaving.contains(&member.serial));
            leaving.any(|member| member.config.excludes(device))
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

        // From here on it is done.
        self.config.sockets = config.sockets;
        if self.refilter(&config.log) {
            reloaded.not_changed.retain(|key| key != LOG);
        }
        for member in self.members.iter_mut().filter(|member| kept.contains(&member.serial)) {
            member.is_of_file = true;
        }
        let hung = self.leave(&leaving).await;
        reloaded.problems.extend(hung.iter().map(|name| Refusal::Hung(name.clone()).to_string()));
        for (key, device) in late {
            if hung.contains(&blueprint::name(&device)) {
                continue;
            }
            match self.make_in_the_end(device, &key) {
                Ok(device) => made.push(device),
                Err(error) => reloaded.problems.push(causes(&error)),
            }
        }
        for made in made {
            let name = made.blueprint.name();
            if let Err(error) = self.run(made, true) {
                reloaded.problems.push(format!("cannot start the thread of {name}: {error}"));
            }
        }
        Ok(reloaded)
    }

    /// Has the log pass by the filter of these settings, if that is all that is new in them; whether the log is as they say.
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

    /// Whether new devices, by their names in messages, can be beside those that stay.
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
        check_paths(self.config.paths_of_the_process().chain(of_devices))?;
        for (name, device) in new {
            confinement::check_device(device, name)?;
            // Where confinement does not let it be made, what is missing is said next.
            let _ = device.make_ring_folder(name);
            device.check_host(name, &[])?;
        }
        Ok(())
    }

    fn member(&self, id: u16) -> Option<&Member> {
        self.members.iter().find(|member| member.shown.id == id)
    }

    /// Makes a device, with its socket; `key` is what messages call it.
    fn make(&mut self, config: DeviceConfig, key: &str) -> Result<Made, MakeError> {
        let blueprint = Blueprint::new(&config, key, &mut self.networks);
        let source = blueprint.source(&mut self.inherited)?;
        let listener = listener(&source);
        match blueprint.make(source) {
            Ok(worker) => Ok(Made { config, blueprint, listener, worker }),
            Err(error) => {
                self.let_go(&config, listener);
                Err(error)
            }
        }
    }

    /// The same when there is no way back: with its socket it is tried again and again, as a device that failed.
    fn make_in_the_end(&mut self, config: DeviceConfig, key: &str) -> Result<Made, MakeError> {
        let blueprint = Blueprint::new(&config, key, &mut self.networks);
        let source = blueprint.source(&mut self.inherited)?;
        let listener = listener(&source);
        let worker = blueprint.make(source).or_else(|error| match listener {
            Some(_) => Ok::<Box<dyn Run>, _>(Box::new(NotMade(io::Error::other(causes(&error))))),
            None => Err(error),
        })?;
        Ok(Made { config, blueprint, listener, worker })
    }

    fn unmake(&mut self, Made { config, listener, worker, .. }: Made) {
        drop(worker);
        self.let_go(&config, listener);
    }

    /// A device does not use its socket any more. One that was passed is kept for who comes next, another goes.
    fn let_go(&mut self, config: &DeviceConfig, listener: Option<Arc<Listener>>) {
        if let Some(listener) = listener.filter(|listener| listener.is_passed()) {
            self.inherited.put_back(config.socket_path.as_deref(), listener);
        }
    }

    /// Gives a device its thread.
    fn run(&mut self, made: Made, is_of_file: bool) -> io::Result<()> {
        let Made { config, blueprint, listener, worker } = made;
        let (handle, mut mailbox) = call::mailbox()?;
        let (id, name, serial) = (config.identity.lid.get(), blueprint.name(), self.serial);
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
            header: blueprint::header(&config),
            handle,
        });
        let rebuild = listener
            .clone()
            .map(|listener| -> Rebuild { Box::new(move || Ok(blueprint.make_again(listener.clone())?)) });
        let report = self.report.clone();
        thread::Builder::new().name(name).spawn(move || {
            let _span = tracing::info_span!("device", id).entered();
            let outcome = supervise(worker, rebuild, &mut mailbox);
            // Nobody listens any more only when the daemon is ending anyway.
            let _ = report.send(Report { serial, outcome });
        })?;
        self.members.push(Member { serial, config, shown, listener, is_of_file, is_leaving: false });
        self.publish();
        Ok(())
    }

    /// Has some devices end, and gives the names of those that do not.
    async fn leave(&mut self, serials: &BTreeSet<u64>) -> Vec<String> {
        for member in self.members.iter_mut().filter(|member| serials.contains(&member.serial)) {
            member.is_leaving = true;
            member.shown.handle.stop();
        }
        let end = tokio::time::Instant::now() + ENDING;
        while self.members.iter().any(|member| serials.contains(&member.serial)) {
            // What is left says how it went.
            let Ok(Some(report)) = tokio::time::timeout_at(end, self.reports.recv()).await else { break };
            self.account(report);
        }
        let hung = self.members.iter().filter(|member| serials.contains(&member.serial));
        hung.map(|member| {
            // Its thread, which would, never comes to it.
            member.listener.as_ref().inspect(|listener| listener.remove_file());
            member.shown.name.clone()
        })
        .collect()
    }

    /// Takes note of a device that has ended.
    fn account(&mut self, Report { serial, outcome }: Report) {
        let Some(at) = self.members.iter().position(|member| member.serial == serial) else { return };
        let Member { config, shown, listener, is_leaving, .. } = self.members.remove(at);
        self.let_go(&config, listener);
        self.publish();
        let name = shown.name.clone();
        match (outcome, self.members.is_empty()) {
            _ if is_leaving => {}
            (Ok(_), true) => self.over = Some(Ok(())),
            (Err(source), true) => self.over = Some(Err(FleetError::Device { name, source })),
            (Ok(_), false) => {
                tracing::info!(device = name, "device stopped because its only client (--fd) disconnected")
            }
            (Err(failure), false) => {
                tracing::error!(device = name, %failure, "device stopped because it failed and cannot be restarted")
            }
        }
    }

    fn publish(&self) {
        self.roster.send_replace(self.members.iter().map(|member| member.shown.clone()).collect());
    }
}

/// Devices that are made and not started.
pub struct Prepared(Vec<Made>);

fn listener(source: &Source) -> Option<Arc<Listener>> {
    match source {
        Source::Listener(listener) => Some(listener.clone()),
        Source::Client(_) => None,
    }
}
