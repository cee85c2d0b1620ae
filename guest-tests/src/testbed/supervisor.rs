//! The process that owns a testbed's guests and daemons and serves its socket.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use agent::wire::exec::{MAX_PAYLOAD, Start};
use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use futures_util::future::join_all;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::boot::{self, Booted, Place};
use super::commands::Taken;
use super::guest::RunningGuest;
use super::impair::{Impairment, Keeper, seed_of_now};
use super::name::{GuestName, TestbedName};
use super::protocol::{Description, Event, GuestDescription, Keep, Reply, Request, Stage, receive, send};
use super::state::{State, States};
use super::{LOGS, UpOptions};
use crate::artifacts::{Added, cache_dir};
use crate::lab::Lab;
use crate::run_dir::RunDir;

/// Index of the GID that a RoCE port derives from its IPv4 address.
pub(super) const IPV4_GID: &str = "1";

/// Boots guests and keeps them running until `down`, a signal, the exit of the watched process, or the loss of the
/// lease, which is the connection to `guest-lab up`.
///
/// # Errors
/// Fails if the guests do not boot. `guest-lab up` is then notified if it is still running.
pub async fn run(wanted: UpOptions, lease: StdUnixStream) -> Result<()> {
    lease.set_nonblocking(true).context("cannot set up the connection to 'guest-lab up'")?;
    let (reader, mut writer) =
        UnixStream::from_std(lease).context("cannot set up the connection to 'guest-lab up'")?.into_split();
    let mut reader = BufReader::new(reader);
    let mut folder = None;
    let result = supervise(wanted, &mut reader, &mut writer, &mut folder).await;
    if let Err(error) = &result {
        // The receiver may already have disconnected.
        let _ = send(&mut writer, &Event::Failed { reason: format!("{error:#}"), folder }).await;
    }
    result
}

type LeaseReader = BufReader<tokio::net::unix::OwnedReadHalf>;

async fn supervise(
    mut wanted: UpOptions,
    reader: &mut LeaseReader,
    writer: &mut OwnedWriteHalf,
    folder: &mut Option<PathBuf>,
) -> Result<()> {
    let name = wanted.name.clone().context("'guest-lab supervise' requires --name")?;
    for impairment in &mut wanted.impairments {
        if let Impairment::Random(seed) = impairment {
            *seed = seed.or_else(|| Some(seed_of_now()));
        }
    }
    let state = States::open()?.claim(&name)?;
    let listener = UnixListener::bind(state.socket())
        .with_context(|| format!("cannot listen on {}", state.socket().display()))?;
    let lab = Lab::prepare_with(&wanted.options, Added::read(&cache_dir()?)?).await?;
    let run = RunDir::create_with(&cache_dir()?.join(LOGS), name.as_str(), state.folder())?;
    *folder = Some(run.path().to_owned());
    let (downs, mut stop_requests) = mpsc::channel(1);
    let bed = Arc::new(Testbed::new(&name, &wanted, &lab, &run, downs));
    let server = tokio::spawn(serve(listener, Arc::clone(&bed)));
    let mut ends = Ends::watch(&wanted)?;

    let (events, mut guest_events) = mpsc::unbounded_channel();
    let booted = {
        let boot = async {
            let booted = boot::all(&lab, &run, &wanted, &events).await?;
            if let Some(template) = wanted.choice.template() {
                template.start(&booted.0).await?;
            }
            anyhow::Ok(booted)
        };
        tokio::pin!(boot);
        loop {
            tokio::select! {
                booted = &mut boot => break booted.map_err(NotBooted::Failed),
                Some(event) = guest_events.recv() => {
                    bed.note(&event);
                    send(writer, &event).await.context("'guest-lab up' has exited")?;
                }
                reason = ends.next(reader, true) => {
                    break Err(NotBooted::Failed(anyhow!("{}", reason.words())));
                }
                Some(stop_request) = stop_requests.recv() => break Err(NotBooted::Stopped(stop_request)),
            }
        }
    };
    let (guests, switch) = match booted {
        Ok(guests) => guests,
        Err(NotBooted::Failed(error)) => return Err(error),
        Err(NotBooted::Stopped(stop_request)) => {
            server.abort();
            drop(run);
            drop::<State>(state);
            stop_request.answer(&Reply::Down { complaints: Vec::new(), strict: false }).await;
            bail!("'guest-lab down' stopped the guests while they were booting");
        }
    };
    while let Ok(event) = guest_events.try_recv() {
        bed.note(&event);
        send(writer, &event).await.context("'guest-lab up' has exited")?;
    }
    let links = guests.iter().filter_map(Booted::link).collect();
    bed.enter_root(guests);
    let keeper = Keeper::start(&wanted.impairments, links, run.path()).await?;
    send(writer, &Event::Up(bed.description().await)).await.context("'guest-lab up' has exited")?;
    tracing::info!("all guests are ready");

    let mut leased = true;
    let stop_request = loop {
        tokio::select! {
            reason = ends.next(reader, leased) => match reason {
                Reason::Kept => leased = false,
                other => {
                    tracing::info!("{}", other.words());
                    break None;
                }
            },
            stop_request = stop_requests.recv() => break stop_request,
        }
    };
    server.abort();
    drop(keeper);
    let (complaints, strict) = (bed.end().await, bed.wanted.strict);
    drop(switch);
    for complaint in &complaints {
        tracing::warn!("{complaint}");
    }
    // Remove the state before sending the reply, since the client may reuse the name immediately.
    drop(run);
    drop::<State>(state);
    if let Some(stop_request) = stop_request {
        stop_request.answer(&Reply::Down { complaints, strict }).await;
    }
    Ok(())
}

/// Why a boot was aborted.
enum NotBooted {
    Failed(Error),
    Stopped(StopRequest),
}

/// An event, other than `down`, that affects the testbed. After [`Self::Kept`], the guests keep running. All other
/// events stop the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// `up` has released the lease. Closing it no longer has any effect.
    Kept,
    LeaseClosed,
    Signal,
    ProcessEnded,
}

impl Reason {
    const fn words(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::LeaseClosed => "'guest-lab up' exited; stopping its guests",
            Self::Signal => "the supervisor received a signal; stopping the guests",
            Self::ProcessEnded => "the process passed with --for-pid exited; stopping the guests",
        }
    }
}

/// All sources of events that can stop a testbed, apart from `down`.
struct Ends {
    signals: [tokio::signal::unix::Signal; 3],
    process: Option<oneshot::Receiver<()>>,
}

impl Ends {
    fn watch(wanted: &UpOptions) -> Result<Self> {
        let process = match wanted.for_pid {
            None => None,
            Some(pid) => {
                let id = rustix::process::Pid::from_raw(i32::try_from(pid.get())?)
                    .with_context(|| format!("--for-pid: {pid} is not a process ID"))?;
                let process = rustix::process::pidfd_open(id, rustix::process::PidfdFlags::empty())
                    .with_context(|| format!("--for-pid: process {pid} does not exist"))?;
                let (ended, end) = oneshot::channel();
                std::thread::spawn(move || {
                    let mut wanted = [PollFd::new(&process, PollFlags::IN)];
                    // The thread can run as long as the watched process, but does not keep the supervisor alive.
                    while poll(&mut wanted, None) == Err(rustix::io::Errno::INTR) {}
                    // If the receiver has been dropped, the testbed has already stopped.
                    let _ = ended.send(());
                });
                Some(end)
            }
        };
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [a, b, c] = kinds.map(signal);
        Ok(Self { signals: [a?, b?, c?], process })
    }

    /// Waits for the next event. This future is cancel-safe.
    async fn next(&mut self, lease: &mut LeaseReader, leased: bool) -> Reason {
        let [terminate, interrupt, hangup] = &mut self.signals;
        tokio::select! {
            _ = terminate.recv() => Reason::Signal,
            _ = interrupt.recv() => Reason::Signal,
            _ = hangup.recv() => Reason::Signal,
            () = ended(self.process.as_mut()) => Reason::ProcessEnded,
            reason = read_lease(lease), if leased => reason,
        }
    }
}

async fn ended(process: Option<&mut oneshot::Receiver<()>>) {
    match process {
        Some(process) => {
            let _ = process.await;
        }
        None => std::future::pending().await,
    }
}

/// Waits until a message arrives on the lease or the lease is closed.
async fn read_lease(lease: &mut LeaseReader) -> Reason {
    // Cancelling `fill_buf` does not lose data. Once data has arrived, `receive` completes without waiting, because
    // `up` sends its message in a single write.
    match lease.fill_buf().await {
        Ok([]) | Err(_) => return Reason::LeaseClosed,
        Ok(_) => {}
    }
    match receive::<Keep>(lease).await {
        Ok(Some(Keep::Keep)) => Reason::Kept,
        _ => Reason::LeaseClosed,
    }
}

/// A client that has sent `down` and is waiting for the reply.
struct StopRequest(OwnedWriteHalf);

impl StopRequest {
    async fn answer(mut self, reply: &Reply) {
        // The client may already have disconnected.
        let _ = send(&mut self.0, reply).await;
    }
}

/// The part of a testbed's state that is needed to serve requests.
struct Testbed {
    name: TestbedName,
    wanted: UpOptions,
    kernel: (String, PathBuf),
    folder: PathBuf,
    begun: Instant,
    stages: Mutex<BTreeMap<GuestName, Stage>>,
    guests: Mutex<BTreeMap<GuestName, Arc<RunningGuest>>>,
    downs: mpsc::Sender<StopRequest>,
}

impl Testbed {
    fn new(
        name: &TestbedName,
        wanted: &UpOptions,
        lab: &Lab,
        run: &RunDir,
        downs: mpsc::Sender<StopRequest>,
    ) -> Self {
        let kernel = lab.kernel();
        Self {
            name: name.clone(),
            wanted: wanted.clone(),
            kernel: (kernel.release(), kernel.modules.clone()),
            folder: run.path().to_owned(),
            begun: Instant::now(),
            stages: Mutex::default(),
            guests: Mutex::default(),
            downs,
        }
    }

    fn note(&self, event: &Event) {
        if let Event::Guest { name, stage } = event {
            lock(&self.stages).insert(*name, *stage);
        }
    }

    fn enter_root(&self, guests: Vec<Booted>) {
        *lock(&self.guests) = guests
            .into_iter()
            .map(|booted| (booted.place.name, Arc::new(RunningGuest::new(&self.name, booted))))
            .collect();
    }

    fn guest(&self, name: GuestName) -> Result<Arc<RunningGuest>> {
        let found = lock(&self.guests).get(&name).cloned();
        found.with_context(|| {
            format!(
                "testbed {} has no guest {name} that can run commands; 'guest-lab ps' lists the guests",
                self.name
            )
        })
    }

    async fn description(&self) -> Description {
        let guests =
            join_all(Place::booted_here(&self.wanted).into_iter().map(|place| self.describe(place))).await;
        Description {
            name: self.name.clone(),
            kind: self.wanted.kind(),
            template: self.wanted.choice.template().map(|template| template.name().to_owned()),
            kernel: self.kernel.0.clone(),
            modules: self.kernel.1.clone(),
            folder: self.folder.clone(),
            supervisor: std::process::id(),
            seconds: self.begun.elapsed().as_secs(),
            guests,
            impairments: self.wanted.impairments.iter().map(ToString::to_string).collect(),
        }
    }

    async fn describe(&self, place: Place) -> GuestDescription {
        let booted = self.guest(place.name).ok();
        let (stage, qemu) = match &booted {
            Some(guest) => guest.state().await,
            None => (lock(&self.stages).get(&place.name).copied().unwrap_or(Stage::Booting), None),
        };
        GuestDescription {
            name: place.name,
            device: place.device.name().to_owned(),
            stage,
            ip: place.ip(),
            rdma_ip: place.rdma_ip(),
            rdma_device: place.device.rdma_device().map(str::to_owned),
            boot_ms: booted.as_ref().map_or(0, |guest| guest.boot_ms),
            commands: booted.as_ref().map_or(0, |guest| guest.ports.busy()),
            qemu,
            control_socket: booted.as_ref().and_then(|guest| guest.control_socket.clone()),
        }
    }

    /// Returns the environment variables for commands in a guest.
    fn environment(&self, guest: &RunningGuest) -> BTreeMap<String, String> {
        let places = Place::all(&self.wanted);
        let names: Vec<String> = places.iter().map(|place| place.name.to_string()).collect();
        let mut environment: BTreeMap<String, String> = [
            ("HCAD_TESTBED", self.name.to_string()),
            ("HCAD_GUEST", guest.place.name.to_string()),
            ("HCAD_GUESTS", names.join(" ")),
            ("HCAD_IP", guest.place.ip().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        if let Some(node) = &self.wanted.node {
            environment.insert("HCAD_RANK".into(), node.rank.to_string());
            environment.insert("HCAD_RANKS".into(), node.size().to_string());
        }
        if let Some(device) = guest.place.device.rdma_device() {
            environment.insert("HCAD_RDMA_DEVICE".into(), device.to_owned());
            // The first GID of a RoCE port is its link-local address, and the second is its IPv4 address.
            let gid_index = if guest.place.rdma_ip().is_some() { IPV4_GID } else { "0" };
            environment.insert("HCAD_GID_INDEX".into(), gid_index.to_owned());
        }
        if let Some(template) = self.wanted.choice.template() {
            environment.extend(template.environment(guest.place));
        }
        for place in places {
            let letter = place.name.to_string().to_uppercase();
            environment.insert(format!("HCAD_IP_{letter}"), place.ip().to_string());
            if let Some(ip) = place.rdma_ip() {
                environment.insert(format!("HCAD_RDMA_IP_{letter}"), ip.to_string());
            }
        }
        environment
    }

    /// Kills the guests, then shuts the daemons down cleanly. Returns the problems found.
    async fn end(&self) -> Vec<String> {
        let guests = std::mem::take(&mut *lock(&self.guests));
        let mut complaints = Vec::new();
        for guest in guests.values() {
            guest.kill().await;
        }
        for (name, guest) in &guests {
            if let Err(error) = guest.stop_daemon().await {
                complaints.push(format!("guest {name}: {error:#}"));
            }
        }
        complaints
    }
}

/// Serves each client in its own task. Dropping the future ends the tasks, so that none of them can hold the lock of a
/// guest that is being stopped.
async fn serve(listener: UnixListener, bed: Arc<Testbed>) {
    let mut clients = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while clients.try_join_next().is_some() {}
                let bed = Arc::clone(&bed);
                clients.spawn(async move {
                    if let Err(error) = answer(stream, &bed).await {
                        tracing::warn!("{error:#}");
                    }
                });
            }
            Err(error) => {
                tracing::error!("cannot accept a connection on the testbed socket: {error}");
                return;
            }
        }
    }
}

async fn answer(stream: UnixStream, bed: &Testbed) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let Some(request) = receive::<Request>(&mut reader).await? else { return Ok(()) };
    let reply = match request {
        Request::Describe => Reply::Description(bed.description().await),
        Request::Down => {
            // Only the first `down` request gets a reply; for later ones, the connection is just closed.
            let _ = bed.downs.send(StopRequest(writer)).await;
            return Ok(());
        }
        Request::Messages { guest } => match messages(bed, guest).await {
            Ok(lines) => Reply::Messages(lines),
            Err(error) => Reply::Refused(format!("{error:#}")),
        },
        Request::Exec { guest: name, start } => match begin(bed, name, start).await {
            Ok((guest, port, start)) => {
                send(&mut writer, &Reply::Go).await?;
                let silence = || async { guest.until_unresponsive().await.to_string() };
                let relayed = port.relay(start, reader, writer, silence).await;
                return relayed.with_context(|| format!("guest {name}"));
            }
            Err(error) => Reply::Refused(format!("{error:#}")),
        },
    };
    send(&mut writer, &reply).await
}

/// Allocates a port for a command and adds the guest's environment variables to the command's.
async fn begin(
    bed: &Testbed,
    guest: GuestName,
    mut start: Start,
) -> Result<(Arc<RunningGuest>, Taken, Start)> {
    let guest = bed.guest(guest)?;
    // Check the guest first, since the port would never be freed if the guest did not execute the command.
    guest.check().await?;
    let mut environment = bed.environment(&guest);
    environment.append(&mut start.env);
    start.env = environment;
    let len = serde_json::to_vec(&start)?.len();
    ensure!(
        len <= MAX_PAYLOAD,
        "the command line and environment are too long: {len} bytes (maximum {MAX_PAYLOAD}); pass long input in a file or on standard input"
    );
    let port = guest.ports.take()?;
    Ok((guest, port, start))
}

async fn messages(bed: &Testbed, guest: GuestName) -> Result<Vec<String>> {
    bed.guest(guest)?.messages().await
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
