//! The command line, including the options that QEMU requires of back-end programs.

pub mod device;

use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use card::telemetry::filter::{CaptureFilter, TraceFilter};
use card::telemetry::store::Keep;
use card::telemetry::trace::TraceFormat;
use clap::{Args, Parser, Subcommand};
use control_api::runtime_folder;
use schemars::schema_for;

use self::device::{COMMAND_LINE, DeviceArgs};
use crate::config::{CaptureConfig, Config, ConfigError, FabricEntry, TraceConfig, keys_of};
use crate::inherited::Inherited;
use crate::interfaces::FrontendEntry;

const OVERRIDES: &str = "Overrides (only for configurations with one device)";

const EXAMPLES: &str = "\
Examples:
  hcad --config configs/jingzhao.json            serve the configured devices
  hcad --config configs/jingzhao.json --check    check the configuration, then exit
  hcad --frontend mthca --id 1 --udp 127.0.0.1:47911 --peer 127.0.0.1:47912
                                                 serve one device without a configuration file
  hcad replay device.record                      replay a session record";

/// The package version. Benchmarks use it to reject development builds, which are several times slower than releases.
const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (development build)")
} else {
    env!("CARGO_PKG_VERSION")
};

/// Emulate RDMA NICs as vfio-user PCI devices
///
/// hcad runs in the foreground until it receives SIGTERM or SIGINT. SIGHUP and `hcactl reload` reload the
/// configuration file. The log is written to standard error; RUST_LOG sets its filter. Sockets without a
/// configured path are created in $RUNTIME_DIRECTORY if it is set, otherwise in $XDG_RUNTIME_DIR/hcad or
/// /run/hcad. hcad uses a socket passed by systemd if the configuration contains the socket's path, or if
/// there is only one device and it has no configured path.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "hcad",
    version = VERSION,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    after_help = EXAMPLES
)]
pub struct Cli {
    /// Subcommand to run instead of serving devices
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Path to the configuration file (JSON, described by configs/config.schema.json), or "-" for standard
    /// input
    #[arg(long, value_name = "FILE", required_unless_present_any = ["print_capabilities", "frontend", "write_manual"])]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub device: DeviceArgs,

    /// Path to the Unix socket that the VMM connects to
    #[arg(long, help_heading = OVERRIDES, value_name = "PATH", conflicts_with = "fd")]
    pub socket_path: Option<PathBuf>,

    /// File descriptor (3 or higher) of an inherited Unix socket that is either listening or already
    /// connected to the VMM
    #[arg(long, help_heading = OVERRIDES, value_name = "N", value_parser = clap::value_parser!(RawFd).range(3..))]
    pub fd: Option<RawFd>,

    /// Create a control socket for hcactl at PATH (default: control.sock in the runtime directory)
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    pub control_socket: Option<Option<PathBuf>>,

    /// Capture all sent and received frames to this pcapng file
    #[arg(long, help_heading = OVERRIDES, value_name = "FILE")]
    pub capture: Option<PathBuf>,

    /// Write a trace of register accesses, commands and queue entries to this file, or to standard error if
    /// FILE is "-"
    #[arg(long, help_heading = OVERRIDES, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Trace format
    #[arg(long, help_heading = OVERRIDES, value_name = "FORMAT", value_enum, default_value_t, requires = "trace")]
    pub trace_format: TraceFormat,

    /// Record all device input to this file, for use with `hcad replay`
    #[arg(long, help_heading = OVERRIDES, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Disable the sandbox
    #[arg(long)]
    pub no_confinement: bool,

    /// Check the configuration and the host requirements, then exit
    #[arg(long)]
    pub check: bool,

    /// Print the vfio-user back-end capabilities as JSON, then exit
    #[arg(long)]
    pub print_capabilities: bool,

    /// Write man pages and shell completions to this directory, then exit (for packagers)
    #[arg(long, value_name = "FOLDER", hide = true, exclusive = true)]
    pub write_manual: Option<PathBuf>,
}

/// Commands other than serving devices.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Replay a session record and compare the device's output with the recorded output
    ///
    /// A replay needs neither a guest nor a network. If the output differs, hcad prints the first difference
    /// and exits with status 1.
    Replay(ReplayArgs),
}

/// Arguments of `hcad replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// Path to the session record
    pub file: PathBuf,

    /// Replay only the first N steps
    #[arg(long, value_name = "N")]
    pub until: Option<u64>,

    /// Write a trace of register accesses, commands and queue entries to this file, using the original
    /// timestamps from the recording
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Trace format
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t, requires = "trace")]
    pub trace_format: TraceFormat,

    /// Print each replayed step and what the device did in response
    #[arg(long)]
    pub steps: bool,

    /// Print each step and wait for Enter before replaying it
    #[arg(long)]
    pub wait: bool,
}

impl Cli {
    /// Returns the origin of the configuration, for use in messages: the file or the command line.
    pub fn origin(&self) -> &Path {
        self.config.as_deref().unwrap_or(COMMAND_LINE.as_ref())
    }

    /// Loads the configuration from the file or from the device options and applies the overrides. Every device without
    /// a configured socket gets an inherited socket or a socket path in the runtime directory.
    ///
    /// # Errors
    /// Fails if the file cannot be read or if the file or an option is invalid.
    pub fn configuration(&self, inherited: &mut Inherited) -> Result<Config, ConfigError> {
        let mut config = match (self.device.configuration(), &self.config) {
            (Some(config), _) => config?,
            (None, Some(path)) => Config::load(path)?,
            (None, None) => {
                return Err(ConfigError::Value {
                    key: "--config".into(),
                    problem: "a configuration file is required".into(),
                });
            }
        };
        self.apply(&mut config, inherited).map_err(|error| error.in_file(self.origin()))?;
        Ok(config)
    }

    /// Returns the configuration file if it is a regular file and can therefore be reloaded. Reading a pipe again would
    /// block until a writer opens it.
    pub fn file(&self) -> Option<&Path> {
        self.config.as_deref().filter(|path| path.is_file())
    }

    /// Parses a new configuration and applies the same overrides as at startup. Errors do not name a file, because the
    /// text may come from a different file.
    ///
    /// # Errors
    /// Fails if the configuration is invalid or conflicts with the options.
    pub fn again(&self, text: &str, inherited: &mut Inherited) -> Result<Config, ConfigError> {
        let mut config = Config::from_unnamed_text(text)?;
        self.apply(&mut config, inherited)?;
        Ok(config)
    }

    fn apply(&self, config: &mut Config, inherited: &mut Inherited) -> Result<(), ConfigError> {
        let overrides = [
            ("--socket-path", self.socket_path.is_some()),
            ("--fd", self.fd.is_some()),
            ("--capture", self.capture.is_some()),
            ("--trace", self.trace.is_some()),
            ("--record", self.record.is_some()),
        ];
        if let Some((option, _)) = overrides.iter().find(|(_, given)| *given) {
            let [device] = config.devices.as_mut_slice() else {
                let problem = format!(
                    "requires a configuration with exactly one device, but this one has {}",
                    config.devices.len()
                );
                return Err(ConfigError::Value { key: (*option).into(), problem });
            };
            if self.socket_path.is_some() || self.fd.is_some() {
                device.socket_path.clone_from(&self.socket_path);
            }
            if self.capture.is_some() {
                let keep = self.capture.as_ref().map(Keep::file);
                device.capture = keep.map(|keep| CaptureConfig { keep, filter: CaptureFilter::default() });
            }
            if self.record.is_some() {
                device.record.clone_from(&self.record);
            }
            if let Some(file) = &self.trace {
                let (keep, format) = (Keep::file(file), self.trace_format);
                device.trace = Some(TraceConfig { keep, format, filter: TraceFilter::default() });
            }
        }
        config.confinement.enabled &= !self.no_confinement;
        let folder = runtime_folder::own();
        match &self.control_socket {
            Some(Some(path)) => config.control_socket = Some(path.clone()),
            Some(None) => config.control_socket = Some(runtime_folder::control(&folder)),
            None => {}
        }
        if let [device] = config.devices.as_slice()
            && device.socket_path.is_none()
        {
            inherited.prefer_only();
        }
        if !(config.devices.len() == 1 && inherited.has_only()) {
            for device in config.devices.iter_mut().filter(|device| device.socket_path.is_none()) {
                device.socket_path = Some(runtime_folder::device(&folder, device.identity.lid.get()));
            }
        }
        config.check_paths_beside(self.file())
    }
}

/// Returns the text printed by `--print-capabilities`.
pub fn capabilities() -> String {
    let mut features = keys_of(&schema_for!(FrontendEntry));
    features.extend(keys_of(&schema_for!(FabricEntry)));
    features
        .extend(["capture", "trace", "record", "impairments", "strict", "confinement"].map(str::to_owned));
    serde_json::json!({ "type": "vfio-user", "features": features }).to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["hcad"], arguments].concat())
    }

    fn configuration(name: &str) -> Config {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../configs"));
        Config::load(&folder.join(name)).unwrap()
    }

    #[test]
    fn only_regular_configuration_files_are_reloaded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(parse(&["--config", path]).unwrap().file(), Some(file.path()));
        for other in ["-", "/dev/null"] {
            assert_eq!(parse(&["--config", other]).unwrap().file(), None, "{other}");
        }
    }

    #[test]
    fn errors_of_reloaded_text_do_not_name_first_file() {
        let cli = parse(&["--config", "first.json", "--capture", "c"]).unwrap();
        let entry = r#"{"id": 1, "frontend": {"mthca": {}}, "fabric": {"local": {}}}"#;
        let other = entry.replace('1', "2");
        for (text, problem) in [
            ("{".to_owned(), "EOF while parsing"),
            (r#"{"devices": []}"#.to_owned(), "devices: at least one device"),
            (format!(r#"{{"devices": [{entry}, {other}]}}"#), "--capture: requires a configuration"),
        ] {
            let error = cli.again(&text, &mut Inherited::default()).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{error}");
        }
    }

    #[test]
    fn clap_accepts_command_definition() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn socket_path_and_fd_are_mutually_exclusive() {
        assert!(parse(&["--config", "x", "--socket-path", "s", "--fd", "3"]).is_err());
        assert!(parse(&["--config", "x", "--fd", "2"]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--print-capabilities"]).is_ok());
    }

    fn apply(arguments: &[&str], mut config: Config) -> Result<Config, String> {
        let cli = parse(&[&["--config", "x"], arguments].concat()).map_err(|error| error.to_string())?;
        let mut inherited = Inherited::default();
        cli.apply(&mut config, &mut inherited).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn command_line_options_override_configuration_file() {
        let config = configuration("jingzhao.json");
        let config = apply(&["--socket-path", "/run/s", "--capture", "c"], config).unwrap();
        assert_eq!(config.devices[0].socket_path.as_deref(), Some(Path::new("/run/s")));
        assert_eq!(config.devices[0].capture.as_ref().unwrap().keep, Keep::file("c"));

        let config = apply(&["--trace", "-", "--trace-format", "json"], config).unwrap();
        let (keep, filter) = (Keep::file("-"), TraceFilter::default());
        let trace = TraceConfig { keep, format: TraceFormat::Json, filter };
        assert_eq!(config.devices[0].trace, Some(trace));
        assert!(parse(&["--config", "x", "--trace-format", "json"]).is_err());

        let config = apply(&["--control-socket=/run/c"], config).unwrap();
        assert_eq!(config.control_socket.as_deref(), Some(Path::new("/run/c")));
    }

    #[test]
    fn override_options_require_single_device() {
        let error = apply(&["--capture", "c"], configuration("pair.json")).unwrap_err();
        assert_eq!(error, "--capture: requires a configuration with exactly one device, but this one has 2");
    }

    #[test]
    fn output_files_may_not_overwrite_configuration_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("hcad.json"), folder.path().join("link"));
        let text = r#"{"devices": [{"id": 1, "frontend": {"mthca": {}}, "fabric": {"local": {}}}]}"#;
        std::fs::write(&path, text).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let [path, link] = [path.to_str().unwrap(), link.to_str().unwrap()];
        for (option, key) in [("--trace", "trace.file"), ("--capture", "capture"), ("--record", "record")] {
            let cli = parse(&["--config", path, option, link]).unwrap();
            let error = cli.configuration(&mut Inherited::default()).unwrap_err();
            let problem = format!("{path}: devices[0].{key}: {link} is already used by --config");
            assert_eq!(error.to_string(), problem);
        }
    }

    #[test]
    fn default_socket_path_contains_device_id() {
        let mut config = configuration("pair.json");
        let first = PathBuf::from("/run/first");
        (config.devices[0].socket_path, config.devices[1].socket_path) = (Some(first.clone()), None);
        let config = apply(&["--control-socket"], config).unwrap();
        let folder = runtime_folder::own();
        assert_eq!(config.devices[0].socket_path, Some(first));
        assert_eq!(config.devices[1].socket_path, Some(folder.join("hca2.sock")));
        assert_eq!(config.control_socket, Some(folder.join("control.sock")));
    }
}
