//! `hcactl`: looks into a running `hcad` and changes what can be changed from outside.

mod impair;
mod peer;
mod plain;
mod table;

use std::io::{self, BufRead, BufReader, IsTerminal as _, Read, Take, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use device::control::DEFAULT_SOCKET;
use device::control::message::{DeviceRow, PortState, Request, Response};
use device::frontend::snapshot::{Rows, Table};
use device::telemetry::trace::{STANDARD_ERROR, TraceFormat};
use serde_json::{Value, json};

/// Bound: bytes of one answer. A page of a list has some 200 kB.
const MAX_ANSWER_LEN: u64 = 16 << 20;

/// Bound: bytes of all answers to one command. The longest list, of all queue pairs a device can have, takes some 80 MB.
const MAX_ANSWERS_LEN: u64 = 256 << 20;

/// Looks into a running hcad.
///
/// hcad serves the socket that `control_socket` in its configuration names.
#[derive(Debug, Parser)]
#[command(name = "hcactl", version)]
struct Cli {
    /// Control socket of the daemon
    #[arg(long, value_name = "PATH", global = true, env = "HCACTL_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,

    /// Number of the device; needed if the daemon has several
    #[arg(long, value_name = "ID", global = true)]
    device: Option<u16>,

    /// Print one line of JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Devices, their addresses and who uses them
    Devices,
    /// Queue pairs: state, PSNs, peer, queues
    Qps,
    /// Completion queues
    Cqs,
    /// Event queues
    Eqs,
    /// Memory regions
    Mrs,
    /// Context memory that the guest lends to the device
    Icm,
    /// Queues of a NIC: state, ring, frames
    Queues,
    /// Link of a NIC as its driver sees it
    Link,
    /// Virtual station interfaces of a NIC: queues, VLAN tags, what they may send
    Vsis,
    /// Rules of a NIC's switch: addresses, VLANs and types of frames, and who takes them
    Rules,
    /// Tree by which a NIC's queues share the line
    Scheduler,
    /// Address handles of a NIC's RDMA half
    Ahs,
    /// Multicast groups of a NIC's RDMA half, and their queue pairs
    Groups,
    /// Control queue of a NIC's RDMA half, and how much it has made
    Cqp,
    /// Everything that is counted
    Counters,
    /// The link: a port that is down loses every frame, and the guest is told
    Port {
        /// What it is to be
        #[arg(value_enum)]
        state: Port,
    },
    /// An internal error of the device: the guest is told, and its driver is to reset it
    Fail {
        /// Do not ask first
        #[arg(long)]
        yes: bool,
    },
    /// Writing every frame to a pcapng file
    #[command(subcommand)]
    Capture(Capture),
    /// Recording register accesses, commands, queue entries and interrupts, a line each
    #[command(subcommand)]
    Trace(Trace),
    /// Making the wire bad: lost, doubled, late, damaged frames
    #[command(subcommand)]
    Impair(impair::Impair),
    /// Who is on the fabric
    #[command(subcommand)]
    Peer(peer::Peer),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Port {
    Up,
    Down,
}

#[derive(Clone, Debug, Subcommand)]
enum Capture {
    /// Begin; the file must not exist
    On {
        /// File to write
        file: PathBuf,
    },
    /// End; the file is complete
    Off,
}

#[derive(Clone, Debug, Subcommand)]
enum Trace {
    /// Begin; the file must not exist. With --json, a record is a JSON object
    On {
        /// File to write; without one it goes to the daemon's standard error
        file: Option<PathBuf>,
    },
    /// End; the file is complete
    Off,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "hcactl: {}", plain::text(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let mut daemon = Daemon::connect(&cli.socket)?;
    let text = match &cli.command {
        Command::Devices => {
            let mut devices = daemon.devices()?;
            if let Some(id) = cli.device {
                devices.retain(|device| device.id == id);
                ensure!(!devices.is_empty(), "there is no device {id}");
            }
            if cli.json { json(&devices)? } else { table::devices(&devices) }
        }
        Command::Qps => list(&mut daemon, cli, Table::Qps)?,
        Command::Cqs => list(&mut daemon, cli, Table::Cqs)?,
        Command::Eqs => list(&mut daemon, cli, Table::Eqs)?,
        Command::Mrs => list(&mut daemon, cli, Table::Mrs)?,
        Command::Icm => list(&mut daemon, cli, Table::Icm)?,
        Command::Queues => list(&mut daemon, cli, Table::Queues)?,
        Command::Link => list(&mut daemon, cli, Table::Link)?,
        Command::Vsis => list(&mut daemon, cli, Table::Vsis)?,
        Command::Rules => list(&mut daemon, cli, Table::Rules)?,
        Command::Scheduler => list(&mut daemon, cli, Table::Scheduler)?,
        Command::Ahs => list(&mut daemon, cli, Table::Handles)?,
        Command::Groups => list(&mut daemon, cli, Table::Groups)?,
        Command::Cqp => list(&mut daemon, cli, Table::Control)?,
        Command::Counters => {
            let device = daemon.choose(cli.device)?;
            let Response::Counters(counters) = daemon.ask(&Request::Counters { device })? else {
                bail!("the daemon gave an answer to another question");
            };
            let value = serde_json::to_value(counters)?;
            if cli.json { json(&value)? } else { table::counters(&value) }
        }
        Command::Port { state } => {
            let device = daemon.choose(cli.device)?;
            let state = match state {
                Port::Up => PortState::Up,
                Port::Down => PortState::Down,
            };
            daemon.tell(&Request::SetPort { device, state })?;
            done(cli, device, "port", &state)?
        }
        Command::Fail { yes } => {
            let device = daemon.choose(cli.device)?;
            ensure!(
                *yes || confirmed(&format!("Report an internal error of device {device} to its guest?"))?,
                "nothing was done"
            );
            daemon.tell(&Request::Fail { device })?;
            done(cli, device, "failed", &true)?
        }
        Command::Capture(capture) => {
            let device = daemon.choose(cli.device)?;
            // The daemon's folder is another.
            let path = match capture {
                Capture::On { file } => Some(std::path::absolute(file)?),
                Capture::Off => None,
            };
            daemon.tell(&match path.clone() {
                Some(path) => Request::CaptureOn { device, path },
                None => Request::CaptureOff { device },
            })?;
            done(cli, device, "capture", &path)?
        }
        Command::Trace(trace) => {
            let device = daemon.choose(cli.device)?;
            let path = match trace {
                Trace::On { file: Some(file) } => Some(std::path::absolute(file)?),
                Trace::On { file: None } => Some(STANDARD_ERROR.into()),
                Trace::Off => None,
            };
            let format = if cli.json { TraceFormat::Json } else { TraceFormat::Text };
            daemon.tell(&match path.clone() {
                Some(path) => Request::TraceOn { device, path, format },
                None => Request::TraceOff { device },
            })?;
            done(cli, device, "trace", &path)?
        }
        Command::Peer(command) => {
            let device = daemon.choose(cli.device)?;
            match daemon.ask(&command.request(device))? {
                Response::Peers(rows) if cli.json => json(&rows)?,
                Response::Peers(rows) => table::peers(&rows),
                Response::Done {} => done(cli, device, "peer", &command.addr())?,
                _ => bail!("the daemon gave an answer to another question"),
            }
        }
        Command::Impair(command) => {
            let device = daemon.choose(cli.device)?;
            let request = match command {
                impair::Impair::List => Request::Impairments { device },
                impair::Impair::Add(add) => Request::ImpairAdd { device, rule: add.rule() },
                impair::Impair::Clear { id } => Request::ImpairClear { device, id: *id },
            };
            match daemon.ask(&request)? {
                Response::Impairments(rows) if cli.json => json(&rows)?,
                Response::Impairments(rows) => table::impairments(&rows),
                Response::Impairment(id) => format!("{id}\n"),
                Response::Done {} => match command {
                    impair::Impair::Clear { id } => done(cli, device, "cleared", id)?,
                    _ => String::new(),
                },
                _ => bail!("the daemon gave an answer to another question"),
            }
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        // Whoever read us has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(plain::json(&serde_json::to_string(value)?) + "\n")
}

/// What is printed of something that was done: nothing for people.
fn done(cli: &Cli, device: u16, what: &str, value: &impl serde::Serialize) -> anyhow::Result<String> {
    if cli.json { json(&json!({ "device": device, what: value })) } else { Ok(String::new()) }
}

/// Asks whoever sits at the terminal.
fn confirmed(question: &str) -> anyhow::Result<bool> {
    ensure!(io::stdin().is_terminal(), "nobody can be asked whether it is meant: say --yes");
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// All pages of a table.
fn list(daemon: &mut Daemon, cli: &Cli, table: Table) -> anyhow::Result<String> {
    let device = daemon.choose(cli.device)?;
    let mut all: Vec<Value> = Vec::new();
    let mut text = table::Text::default();
    let mut from = 0;
    loop {
        let Response::Page(page) = daemon.ask(&Request::List { device, table, from })? else {
            bail!("the daemon gave an answer to another question");
        };
        if cli.json {
            all.extend(rows(&page.rows)?);
        } else {
            text.add(&page.rows);
        }
        match page.next {
            None => break,
            // A place behind the last one: a daemon cannot keep us here for ever.
            Some(next) if next > from => from = next,
            Some(_) => bail!("the daemon's pages do not end"),
        }
    }
    if cli.json { json(&all) } else { Ok(text.finish()) }
}

fn rows(rows: &Rows) -> serde_json::Result<Vec<Value>> {
    fn values<T: serde::Serialize>(rows: &[T]) -> serde_json::Result<Vec<Value>> {
        rows.iter().map(serde_json::to_value).collect()
    }
    match rows {
        Rows::Qps(rows) => values(rows),
        Rows::Cqs(rows) => values(rows),
        Rows::Eqs(rows) => values(rows),
        Rows::Mrs(rows) => values(rows),
        Rows::Icm(rows) => values(rows),
        Rows::Queues(rows) => values(rows),
        Rows::Link(rows) => values(rows),
        Rows::Vsis(rows) => values(rows),
        Rows::Rules(rows) => values(rows),
        Rows::Scheduler(rows) => values(rows),
        Rows::Handles(rows) => values(rows),
        Rows::Groups(rows) => values(rows),
        Rows::Control(rows) => values(rows),
    }
}

/// Connection to a daemon.
struct Daemon {
    requests: UnixStream,
    answers: Take<BufReader<UnixStream>>,
}

impl Daemon {
    fn connect(path: &Path) -> anyhow::Result<Self> {
        let connect = || {
            let requests = UnixStream::connect(path)?;
            let answers = BufReader::new(requests.try_clone()?).take(MAX_ANSWERS_LEN);
            io::Result::Ok(Self { requests, answers })
        };
        connect().map_err(|error| {
            anyhow!(
                "cannot reach {}: {error}; the key `control_socket` of hcad's configuration says where it is",
                path.display()
            )
        })
    }

    /// Asks and waits. A refusal is an error.
    fn ask(&mut self, request: &Request) -> anyhow::Result<Response> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        // A daemon that turns us away has written why before it closed.
        let sent = self.requests.write_all(&line);
        let mut answer = Vec::new();
        let received = (&mut self.answers).take(MAX_ANSWER_LEN).read_until(b'\n', &mut answer);
        let too_long = answer.len() as u64 == MAX_ANSWER_LEN || self.answers.limit() == 0;
        ensure!(!too_long, "the daemon's answer is too long");
        if answer.is_empty() {
            sent.and(received).context("the daemon is gone")?;
            bail!("the daemon closed the connection");
        }
        match serde_json::from_slice(&answer).context("the daemon's answer is not understood")? {
            Response::Error(problem) => bail!(problem),
            response => Ok(response),
        }
    }

    /// Has something done.
    fn tell(&mut self, request: &Request) -> anyhow::Result<()> {
        match self.ask(request)? {
            Response::Done {} => Ok(()),
            _ => bail!("the daemon gave an answer to another question"),
        }
    }

    fn devices(&mut self) -> anyhow::Result<Vec<DeviceRow>> {
        match self.ask(&Request::Devices {})? {
            Response::Devices(devices) => Ok(devices),
            _ => bail!("the daemon gave an answer to another question"),
        }
    }

    fn choose(&mut self, device: Option<u16>) -> anyhow::Result<u16> {
        if let Some(device) = device {
            return Ok(device);
        }
        let devices = self.devices()?;
        let [only] = devices.as_slice() else {
            let ids: Vec<_> = devices.iter().map(|device| device.id.to_string()).collect();
            bail!("there are several devices, say --device with one of {}", ids.join(", "));
        };
        Ok(only.id)
    }
}
