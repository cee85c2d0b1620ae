//! `hcactl` inspects and controls a running `hcad`.

mod counters;
mod daemon;
mod device;
mod help;
mod impair;
mod peer;
mod sight;
mod table;
mod top;

use std::env;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use card::sanitize;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use control_api::explain;
use control_api::message::{PortState, Request, Response};
use control_api::{manual, runtime_folder};
use serde_json::{Value, json};

use self::daemon::Daemon;

/// Exit status for an invalid command line. Clap uses the same value.
const USAGE: u8 = 2;

/// Inspect and control a running hcad
///
/// hcactl connects to hcad's control socket. To create this socket, start hcad with --control-socket or set
/// `control_socket` in its configuration.
#[derive(Debug, Parser)]
#[command(name = "hcactl", version)]
struct Cli {
    /// Path to the hcad control socket
    ///
    /// Default: $XDG_RUNTIME_DIR/hcad/control.sock, or /run/hcad/control.sock if $XDG_RUNTIME_DIR is not set.
    #[arg(long, value_name = "PATH", global = true, env = "HCACTL_SOCKET")]
    socket: Option<PathBuf>,

    /// Maximum time to wait for each response, in seconds
    #[arg(long, value_name = "SECONDS", global = true, default_value = "10", value_parser = daemon::timeout)]
    timeout: Duration,

    /// Device number (can be repeated for commands that print lists or counters)
    ///
    /// By default, commands that print lists or counters cover all devices. Commands that act on one device
    /// require this option if hcad is serving more than one device.
    #[arg(long, value_name = "ID", global = true)]
    device: Vec<u16>,

    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// List devices: addresses, state, VMM, socket
    Devices,
    /// Add or remove a device at run time
    #[command(subcommand)]
    Device(device::Device),
    /// Reload the configuration file
    ///
    /// Adds new devices, removes devices that are no longer in the file and recreates devices whose entries
    /// have changed. Other devices are not affected. If the file contains an error, nothing changes.
    Reload {
        /// Path to the configuration to load, or "-" for standard input [default: the file that hcad was
        /// started with]
        file: Option<PathBuf>,
    },
    /// List queue pairs: state, PSNs, peer, queues
    Qps,
    /// List completion queues
    Cqs,
    /// List event queues
    Eqs,
    /// List memory regions
    Mrs,
    /// List context memory (ICM) mapped by the guest driver
    Icm,
    /// List NIC queues: state, ring, frame counts
    Queues,
    /// Show the NIC link: speed, MAC, maximum frame size, frame counts
    Link,
    /// List virtual station interfaces (VSIs) of the NIC: queues, VLAN tags, filters
    Vsis,
    /// List NIC switch rules: addresses, VLANs, EtherTypes, destination VSIs
    Rules,
    /// Show the NIC transmit scheduler tree
    Scheduler,
    /// List address handles (E810)
    Ahs,
    /// List multicast groups and their queue pairs (E810)
    Groups,
    /// Show the RDMA control queue and its object counts (E810)
    Cqp,
    /// List the objects of any table
    ///
    /// The other list commands are shortcuts for common tables. Depending on its interface, a device can have further
    /// tables.
    List {
        /// Name of the table [default: list the names of all tables]
        table: Option<String>,
    },
    /// Explain what a queue pair is waiting for
    #[command(subcommand)]
    Explain(Explain),
    /// Show all counters
    Counters {
        /// Print nonzero counters and their rates at this interval, in seconds (minimum: 0.1, default: 1)
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = counters::period)]
        watch: Option<Duration>,
    },
    Top(top::Top),
    /// Set the link up or down
    ///
    /// The device notifies the guest driver. While the link is down, the port drops all frames.
    Port {
        /// New link state
        #[arg(value_enum)]
        state: Port,
    },
    /// Inject a catastrophic device error
    ///
    /// The device reports the error to the guest driver, which should reset the device.
    Fail {
        /// Inject the error without asking for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Capture frames to a pcapng file
    #[command(subcommand)]
    Capture(sight::Capture),
    /// Trace register accesses, commands, queue entries and interrupts, one per line
    #[command(subcommand)]
    Trace(sight::Trace),
    /// Record all input to a device, for use with `hcad replay`
    #[command(subcommand)]
    Record(Record),
    /// Inject network faults: drop, duplicate, delay, reorder or corrupt frames
    #[command(subcommand)]
    Impair(impair::Impair),
    /// List, add or remove a device's peers
    #[command(subcommand)]
    Peer(peer::Peer),
    /// Write man pages and shell completions to a directory (for packagers)
    #[command(hide = true)]
    WriteManual {
        /// Destination directory
        folder: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Port {
    Up,
    Down,
}

#[derive(Clone, Debug, Subcommand)]
enum Explain {
    /// Explain the requester and responder state of a queue pair
    Qp {
        /// QP number, as shown by `hcactl qps` (decimal, or hexadecimal with a 0x prefix)
        #[arg(value_name = "QPN", value_parser = impair::number)]
        qpn: u32,
    },
}

#[derive(Clone, Debug, Subcommand)]
enum Record {
    /// Restart the device and write a session record to a new file; fails if a VMM is connected
    On {
        /// Path to the new file
        file: PathBuf,
    },
    /// Stop recording and close the file
    Off,
}

impl Cli {
    /// Returns an error message if the command would ignore a global option.
    fn conflict(&self) -> Option<&'static str> {
        match &self.command {
            Command::Device(_) | Command::Reload { .. } if !self.device.is_empty() => {
                Some("the argument '--device <ID>' cannot be used with 'device' or 'reload'")
            }
            Command::Top(_) if self.json => {
                Some("the argument '--json' cannot be used with 'top'; use 'counters --watch --json'")
            }
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    if env::args_os().len() < 2 {
        let _ = help::command().print_help();
        return ExitCode::from(USAGE);
    }
    let matches = help::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if let Some(conflict) = cli.conflict() {
        help::command().error(ErrorKind::ArgumentConflict, conflict).exit();
    }
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "hcactl: {}", sanitize::text(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    if let Command::WriteManual { folder } = &cli.command {
        return manual::write(Cli::command(), folder).with_context(|| {
            format!("cannot write man pages and shell completions to {}", folder.display())
        });
    }
    let by_default = || runtime_folder::control(&runtime_folder::shared());
    let socket = cli.socket.clone().unwrap_or_else(by_default);
    let mut daemon = Daemon::connect(&socket, cli.timeout)?;
    let text = match &cli.command {
        Command::Devices => {
            daemon.check_exist(&cli.device)?;
            let mut devices = daemon.devices()?;
            devices.retain(|device| cli.device.is_empty() || cli.device.contains(&device.id));
            if cli.json { json(&devices)? } else { table::devices(&devices) }
        }
        Command::Device(device) => device.run(&mut daemon, cli)?,
        Command::Reload { file } => {
            let (text, went_well) = device::reload(&mut daemon, cli, file.as_deref())?;
            print(&text)?;
            ensure!(went_well, "the configuration was only partially applied; see the errors above");
            return Ok(());
        }
        Command::List { table: Some(table) } => list(&mut daemon, cli, table_name(table))?,
        Command::List { table: None } => {
            daemon.check_exist(&cli.device)?;
            match daemon.ask(&Request::Tables {})? {
                Response::Tables(rows) if cli.json => json(&rows)?,
                Response::Tables(rows) => table::tables(&rows),
                _ => bail!("unexpected response from hcad"),
            }
        }
        Command::Qps => list(&mut daemon, cli, "qps")?,
        Command::Cqs => list(&mut daemon, cli, "cqs")?,
        Command::Eqs => list(&mut daemon, cli, "eqs")?,
        Command::Mrs => list(&mut daemon, cli, "mrs")?,
        Command::Icm => list(&mut daemon, cli, "icm")?,
        Command::Queues => list(&mut daemon, cli, "queues")?,
        Command::Link => list(&mut daemon, cli, "link")?,
        Command::Vsis => list(&mut daemon, cli, "vsis")?,
        Command::Rules => list(&mut daemon, cli, "rules")?,
        Command::Scheduler => list(&mut daemon, cli, "scheduler")?,
        Command::Ahs => list(&mut daemon, cli, table_name("ahs"))?,
        Command::Groups => list(&mut daemon, cli, "groups")?,
        Command::Cqp => list(&mut daemon, cli, table_name("cqp"))?,
        Command::Counters { watch: Some(period) } => {
            return counters::watch(&mut daemon, &cli.device, *period, cli.json);
        }
        Command::Counters { watch: None } => counters::once(&mut daemon, &cli.device, cli.json)?,
        Command::Explain(Explain::Qp { qpn }) => {
            let device = daemon.choose(&cli.device)?;
            let Response::Explanation(explanation) = daemon.ask(&Request::Explain { device, qpn: *qpn })?
            else {
                bail!("unexpected response from hcad")
            };
            let lines = explain::lines(*qpn, &explanation)?;
            match cli.json {
                true => json(&json!({ "qpn": qpn, "explanation": explanation, "text": lines }))?,
                false => lines.join("\n") + "\n",
            }
        }
        Command::Top(top) => top.run(&mut daemon, &socket, &cli.device)?,
        Command::Port { state } => {
            let device = daemon.choose(&cli.device)?;
            let state = match state {
                Port::Up => PortState::Up,
                Port::Down => PortState::Down,
            };
            daemon.tell(&Request::SetPort { device, state })?;
            done(cli, device, "port", &state)?
        }
        Command::Fail { yes } => {
            let device = daemon.choose(&cli.device)?;
            ensure!(
                *yes || confirmed(&format!("Inject a catastrophic error into device {device}?"))?,
                "cancelled; nothing was changed"
            );
            daemon.tell(&Request::Fail { device })?;
            done(cli, device, "failed", &true)?
        }
        Command::Capture(capture) => {
            let device = daemon.choose(&cli.device)?;
            let (request, path) = capture.request(device)?;
            daemon.tell(&request)?;
            done(cli, device, "capture", &path)?
        }
        Command::Trace(trace) => {
            let device = daemon.choose(&cli.device)?;
            let (request, path) = trace.request(device, cli.json)?;
            daemon.tell(&request)?;
            done(cli, device, "trace", &path)?
        }
        Command::Record(record) => {
            let device = daemon.choose(&cli.device)?;
            let path = match record {
                Record::On { file } => Some(std::path::absolute(file)?),
                Record::Off => None,
            };
            daemon.tell(&match path.clone() {
                Some(path) => Request::RecordOn { device, path },
                None => Request::RecordOff { device },
            })?;
            done(cli, device, "record", &path)?
        }
        Command::WriteManual { .. } => String::new(),
        Command::Peer(peer::Peer::List) => peer::list(&mut daemon, cli)?,
        Command::Peer(command) => {
            let device = daemon.choose(&cli.device)?;
            daemon.tell(&command.request(device))?;
            done(cli, device, "peer", &command.addr())?
        }
        Command::Impair(impair::Impair::List) => impair::list(&mut daemon, cli)?,
        Command::Impair(impair::Impair::Add(add)) => {
            let device = daemon.choose(&cli.device)?;
            match daemon.ask(&Request::ImpairAdd { device, rule: add.rule() })? {
                Response::Impairment(id) => format!("{id}\n"),
                _ => bail!("unexpected response from hcad"),
            }
        }
        Command::Impair(impair::Impair::Clear { id }) => {
            let device = daemon.choose(&cli.device)?;
            daemon.tell(&Request::ImpairClear { device, id: *id })?;
            done(cli, device, "cleared", id)?
        }
    };
    print(&text).map(drop)
}

/// Prints text. Returns false if the reader has closed standard output.
fn print(text: &str) -> anyhow::Result<bool> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader, such as `head`, does not need more output.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to standard output"),
    }
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(sanitize::json(&serde_json::to_string(value)?) + "\n")
}

/// With `--json`, returns the outcome of a change as JSON. Without it, returns an empty string.
fn done(cli: &Cli, device: u16, what: &str, value: &impl serde::Serialize) -> anyhow::Result<String> {
    if cli.json { json(&json!({ "device": device, what: value })) } else { Ok(String::new()) }
}

fn confirmed(question: &str) -> anyhow::Result<bool> {
    ensure!(io::stdin().is_terminal(), "standard input is not a terminal; pass --yes to confirm");
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Returns the name of a table on the control socket. Two tables have other names than the commands that print them.
fn table_name(name: &str) -> &str {
    match name {
        "ahs" => "handles",
        "cqp" => "control",
        name => name,
    }
}

/// Returns a table for the chosen devices. If there are several, each row also shows the device number.
fn list(daemon: &mut Daemon, cli: &Cli, table: &str) -> anyhow::Result<String> {
    let devices = daemon.several(&cli.device)?;
    let mut all: Vec<Value> = Vec::new();
    let mut text = table::Text::default();
    for device in &devices {
        let of = (devices.len() > 1).then_some(*device);
        let listed = if cli.json {
            daemon.pages(*device, table, |rows: Vec<Value>| {
                all.extend(rows.into_iter().map(|mut row| {
                    if let (Some(device), Some(row)) = (of, row.as_object_mut()) {
                        row.insert("device".into(), device.into());
                    }
                    row
                }));
                true
            })
        } else {
            daemon.text_pages(*device, table, |page| text.add(page, of))
        };
        if let Err(error) = listed {
            daemon.ignore_if_removed(&cli.device, *device, of_device(error, of))?;
        }
    }
    if cli.json { json(&all) } else { Ok(text.finish()) }
}

/// Adds the number of the device to an error of a command that covers several devices.
fn of_device(error: anyhow::Error, of: Option<u16>) -> anyhow::Error {
    match of {
        Some(device) => error.context(format!("device {device}")),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_accepts_the_name_of_each_list_command() {
        for (command, table) in
            [("ahs", "handles"), ("cqp", "control"), ("groups", "groups"), ("handles", "handles")]
        {
            assert_eq!(table_name(command), table);
        }
    }
}
