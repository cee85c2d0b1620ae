//! The command line, with the options that QEMU's conventions ask of a back-end program.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Parser;
use schemars::{Schema, schema_for};
use serde_json::Value;

use crate::config::{Config, ConfigError, FabricEntry, TraceConfig};
use crate::frontend::FrontendEntry;
use crate::telemetry::trace::TraceFormat;

/// Serves RDMA HCAs as vfio-user PCI devices.
///
/// Runs in the foreground until SIGTERM or SIGINT. Log lines go to standard error; RUST_LOG filters them.
#[derive(Clone, Debug, Parser)]
#[command(name = "hcad", version)]
pub struct Cli {
    /// Configuration file (JSON; its keys are described in configs/config.schema.json), or "-" for standard input
    #[arg(long, value_name = "FILE", required_unless_present = "print_capabilities")]
    pub config: Option<PathBuf>,

    /// Unix socket to serve the VMM on, instead of the file's; for a configuration with one device
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    pub socket_path: Option<PathBuf>,

    /// Inherited Unix socket, listening or connected, instead of a path; for a configuration with one device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(RawFd).range(3..))]
    pub fd: Option<RawFd>,

    /// Write every frame to this pcapng file; for a configuration with one device
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,

    /// Record register accesses, commands and queue entries in this file, or on standard error for "-"; for a
    /// configuration with one device
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Form of the records
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t, requires = "trace")]
    pub trace_format: TraceFormat,

    /// Leave the process all that its user may do
    #[arg(long)]
    pub no_confinement: bool,

    /// Check the configuration and exit
    #[arg(long)]
    pub check: bool,

    /// Print what this back-end can do, as JSON, and exit
    #[arg(long)]
    pub print_capabilities: bool,
}

impl Cli {
    /// Applies the options that override the file, and checks that a VMM can reach every device.
    ///
    /// # Errors
    /// An override is given for more than one device or for a path that has another use, or a device has no socket.
    pub fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        let overrides = [
            ("--socket-path", self.socket_path.is_some()),
            ("--fd", self.fd.is_some()),
            ("--capture", self.capture.is_some()),
            ("--trace", self.trace.is_some()),
        ];
        if let Some((option, _)) = overrides.iter().find(|(_, given)| *given) {
            let [device] = config.devices.as_mut_slice() else {
                let problem =
                    format!("needs a configuration with one device, this has {}", config.devices.len());
                return Err(ConfigError::Value { key: (*option).into(), problem });
            };
            if self.socket_path.is_some() || self.fd.is_some() {
                device.socket_path.clone_from(&self.socket_path);
            }
            if self.capture.is_some() {
                device.capture.clone_from(&self.capture);
            }
            if let Some(file) = &self.trace {
                device.trace = Some(TraceConfig { file: file.clone(), format: self.trace_format });
            }
        }
        config.confinement.enabled &= !self.no_confinement;
        match config.devices.iter().position(|device| device.socket_path.is_none()) {
            Some(index) if self.fd.is_none() => Err(ConfigError::Value {
                key: format!("devices[{index}].socket_path"),
                problem: "is missing, and neither --socket-path nor --fd is given".into(),
            }),
            _ => config.check_paths(),
        }
    }
}

/// Text of `--print-capabilities`.
///
/// # Spec
/// QEMU interop documents, "Backend program conventions".
pub fn capabilities() -> String {
    let mut features = keys_of(&schema_for!(FrontendEntry));
    features.extend(keys_of(&schema_for!(FabricEntry)));
    features.extend(["capture", "trace", "impairments", "strict", "confinement"].map(str::to_owned));
    serde_json::json!({ "type": "vfio-user", "features": features }).to_string()
}

/// The keys of which an entry of the configuration has one.
fn keys_of(schema: &Schema) -> Vec<String> {
    let variants = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let keys = |variant: &Value| {
        variant["properties"]
            .as_object()
            .into_iter()
            .flat_map(|keys| keys.keys().cloned())
            .collect::<Vec<_>>()
    };
    variants.flat_map(keys).collect()
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
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn path_and_descriptor_exclude_each_other_and_standard_streams_are_none() {
        assert!(parse(&["--config", "x", "--socket-path", "s", "--fd", "3"]).is_err());
        assert!(parse(&["--config", "x", "--fd", "2"]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--print-capabilities"]).is_ok());
    }

    #[test]
    fn overrides_replace_what_the_file_says() {
        let cli = parse(&["--config", "x", "--socket-path", "/run/s", "--capture", "c"]).unwrap();
        let mut config = configuration("jingzhao.json");
        cli.apply(&mut config).unwrap();
        assert_eq!(config.devices[0].socket_path.as_deref(), Some(Path::new("/run/s")));
        assert_eq!(config.devices[0].capture.as_deref(), Some(Path::new("c")));

        let cli = parse(&["--config", "x", "--trace", "-", "--trace-format", "json"]).unwrap();
        cli.apply(&mut config).unwrap();
        let trace = TraceConfig { file: "-".into(), format: TraceFormat::Json };
        assert_eq!(config.devices[0].trace, Some(trace));
        assert!(parse(&["--config", "x", "--trace-format", "json"]).is_err());

        let cli = parse(&["--config", "x", "--fd", "3"]).unwrap();
        cli.apply(&mut config).unwrap();
        assert_eq!(config.devices[0].socket_path, None);
    }

    #[test]
    fn overrides_need_a_single_device() {
        let cli = parse(&["--config", "x", "--capture", "c"]).unwrap();
        let error = cli.apply(&mut configuration("pair.json")).unwrap_err();
        assert_eq!(error.to_string(), "--capture: needs a configuration with one device, this has 2");
    }

    #[test]
    fn a_device_nobody_can_reach_is_refused() {
        let mut config = configuration("pair.json");
        config.devices[1].socket_path = None;
        let error = parse(&["--config", "x"]).unwrap().apply(&mut config).unwrap_err();
        assert!(error.to_string().starts_with("devices[1].socket_path: is missing"), "{error}");
    }
}
