//! The `hcad` program: parses the command line, runs the daemon or a command, and reports the outcome.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use card::sanitize;
use card::telemetry::{file, non_blocking, subscriber};
use clap::{CommandFactory as _, Parser as _};
use control_api::manual;
use device::builder::MakeError;
use device::cli::{self, Cli, Command, ReplayArgs};
use device::config::{self, Config};
use device::confinement;
use device::daemon::{self, DaemonError};
use device::descriptors;
use device::fleet::{FleetError, Origin};
use device::inherited::Inherited;
use device::notify::Notify;
use device::peer_names::{Resolver, ResolverError};

/// How long to wait at exit for queued log lines to be written to standard error.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let ran = file::survive_size_limit()
        .context("cannot install the SIGXFSZ handler")
        .and_then(|()| run(&Cli::parse()));
    let code = match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("hcad: {}\n", sanitize::text(&format!("{error:#}"))));
            ExitCode::FAILURE
        }
    };
    if let Ok(writer) = non_blocking::standard_error() {
        writer.finish(LOG_FLUSH_TIMEOUT);
    }
    code
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    if let Some(Command::Replay(args)) = &cli.command {
        return replay(args);
    }
    if cli.print_capabilities {
        return print(&cli::capabilities());
    }
    if let Some(folder) = &cli.write_manual {
        return manual::write(Cli::command(), folder).with_context(|| {
            format!("cannot write man pages and shell completions to {}", folder.display())
        });
    }
    // Adopt inherited descriptors before any other code opens one.
    let mut inherited = Inherited::take_over(cli.fd).map_err(|error| match cli.fd {
        Some(_) => anyhow::Error::new(error).context("--fd"),
        None => error.into(),
    })?;
    let config = cli.configuration(&mut inherited)?;
    let origin = cli.origin();
    if cli.check {
        config.check_host().map_err(|error| error.in_file(origin))?;
        return print(&format!("{}: ok", config::shown(origin)));
    }
    let file = cli.file().map(std::path::absolute).transpose().context(config::shown(origin).to_string())?;
    let first = cli.clone();
    let reloads =
        Origin { path: file.clone(), parse: Box::new(move |text, inherited| first.again(text, inherited)) };
    let notify = Notify::from_environment().context("NOTIFY_SOCKET")?;
    config.make_runtime_folder()?;
    // Set up the descriptor limit and the sandbox before the log, which creates a thread.
    descriptors::raise_limit();
    let resolver = resolver(&config).context("dns").with_context(|| config::shown(origin).to_string())?;
    let dns_ports = resolver.as_ref().map(Resolver::ports).unwrap_or_default();
    confinement::begin(&config, file.as_deref(), &dns_ports).map_err(|error| error.in_file(origin))?;
    subscriber::init(&config.log).map_err(anyhow::Error::msg)?;
    match daemon::run(config, inherited, &notify, reloads, resolver) {
        Err(
            error @ (DaemonError::Make(
                MakeError::Listen { .. } | MakeError::Fabric { .. } | MakeError::File { .. },
            )
            | DaemonError::Fleet(FleetError::Make(
                MakeError::Listen { .. } | MakeError::Fabric { .. } | MakeError::File { .. },
            ))),
        ) => Err(anyhow::Error::new(error).context(config::shown(origin).to_string())),
        ended => Ok(ended?),
    }
}

/// Creates the DNS client if a device needs it or may need it later. It reads files, so it must be created before the
/// process enters the sandbox.
fn resolver(config: &Config) -> Result<Option<Resolver>, ResolverError> {
    match (Resolver::new(&config.dns), config.may_have_names()) {
        (Err(error), true) => Err(error),
        (Ok(resolver), true) => Ok(Some(resolver)),
        (Ok(resolver), false) if !config.confinement.enabled => Ok(Some(resolver)),
        (_, false) => Ok(None),
    }
}

fn replay(args: &ReplayArgs) -> anyhow::Result<()> {
    let options = device::replay::Options {
        until: args.until,
        trace: args.trace.clone().map(|file| (file, args.trace_format)),
        steps: args.steps || args.wait,
        wait: args.wait,
    };
    Ok(device::replay::run(&args.file, &options, &mut io::stdout().lock())?)
}

fn print(line: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{line}").context("cannot write to standard output")
}

/// Prints the error that ends the process.
fn report(line: &str) {
    match non_blocking::standard_error() {
        Ok(writer) => writer.push(line.as_bytes()),
        Err(_) => {
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}
