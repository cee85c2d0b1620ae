//! Options that describe a single device, in place of a configuration file.

use std::net::SocketAddr;
use std::str::FromStr;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::config::{Config, ConfigError};
use crate::interfaces;

/// Name used in error messages for a configuration that does not come from a file.
pub const COMMAND_LINE: &str = "command line";

const SINGLE: &str = "One device without a configuration file";

/// One device, in place of a configuration file.
#[derive(Clone, Debug, Default, Args)]
pub struct DeviceArgs {
    /// Device interface to emulate, such as `mthca`.
    #[arg(long, help = frontend_help(), help_heading = SINGLE, value_name = "NAME", requires = "id", requires = "fabric", conflicts_with = "config")]
    pub frontend: Option<String>,

    /// Device number on the fabric, 1 to 49150; determines the device's LID, MAC and IPv4 address
    #[arg(
        long,
        help_heading = SINGLE,
        value_name = "ID",
        requires = "frontend",
        conflicts_with = "config",
        value_parser = clap::value_parser!(u16).range(1..=49150)
    )]
    id: Option<u16>,

    /// Use the UDP fabric and listen on this address and port
    #[arg(
        long,
        help_heading = SINGLE,
        value_name = "ADDR:PORT",
        requires = "frontend",
        group = "fabric",
        conflicts_with = "config"
    )]
    udp: Option<SocketAddr>,

    /// Use the tap fabric with this tap interface
    #[arg(
        long,
        help_heading = SINGLE,
        value_name = "INTERFACE",
        requires = "frontend",
        group = "fabric",
        conflicts_with = "config"
    )]
    tap: Option<String>,

    /// Add a UDP peer (repeatable)
    ///
    /// HOST is an address or a DNS name. If a name has several addresses, each of them is a peer, as with `addr` in the
    /// configuration.
    ///
    /// `mac=MAC` reserves a MAC address for the peer: frames with this source MAC are dropped if they come from another
    /// peer. `id=ID` does the same for the MAC derived from the peer's device number. Add `leaf` if the peer sends only
    /// to this device, as QEMU's -netdev dgram does. The device then forwards frames between that peer and all others.
    #[arg(
        long = "peer",
        help_heading = SINGLE,
        value_name = "HOST:PORT[,id=ID|,mac=MAC][,leaf]",
        requires = "udp",
        conflicts_with_all = ["tap", "config"]
    )]
    peers: Vec<PeerArg>,

    /// Report all violations of the device interface by the guest driver, including those that the device tolerates
    #[arg(long, help_heading = SINGLE, requires = "frontend", conflicts_with = "config")]
    strict: bool,
}

fn frontend_help() -> String {
    format!("Device interface to emulate: {}", interfaces::keys())
}

/// A `--peer` argument, converted to an entry of the `peers` list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PeerArg(Map<String, Value>);

impl FromStr for PeerArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mut peer = Map::from_iter([("addr".to_owned(), json!(parts.next()))]);
        for part in parts {
            let (key, value) = match part.split_once('=') {
                Some(("id", number)) => {
                    let id: u16 = number.parse().map_err(|_| format!("{number:?} is not a device number"))?;
                    ("id", json!(id))
                }
                Some(("mac", mac)) => ("mac", json!(mac)),
                None if part == "leaf" => ("leaf", json!(true)),
                _ => return Err(format!("unknown peer option {part:?}, expected id=ID, mac=MAC or leaf")),
            };
            if peer.insert(key.into(), value).is_some() {
                return Err(format!("{key} is specified twice"));
            }
        }
        Ok(Self(peer))
    }
}

impl DeviceArgs {
    /// Returns the configuration that these options describe, if `--frontend` is given.
    ///
    /// # Errors
    /// Fails if the equivalent configuration file would be rejected. The message names the option instead of
    /// the key.
    pub fn configuration(&self) -> Option<Result<Config, ConfigError>> {
        let interface = self.frontend.as_ref()?;
        let peers: Vec<_> = self.peers.iter().map(|peer| &peer.0).collect();
        let fabric = match &self.tap {
            Some(interface) => json!({ "tap": { "interface": interface } }),
            None => json!({ "udp": { "bind": self.udp, "peers": peers } }),
        };
        let device = json!({
            "id": self.id,
            "frontend": { interface.as_str(): {} },
            "fabric": fabric,
            "strict": self.strict,
        });
        let file = json!({ "devices": [device] });
        let config = Config::from_text(&file.to_string(), COMMAND_LINE.as_ref());
        Some(config.map_err(|error| match error {
            ConfigError::File { path, problem } => ConfigError::File { path, problem: in_options(&problem) },
            other => other,
        }))
    }
}

/// Replaces the configuration key at the start of a message with the corresponding option.
fn in_options(problem: &str) -> String {
    const OPTIONS: &[(&str, &str)] = &[
        ("devices[0].frontend", "--frontend"),
        ("devices[0].id", "--id"),
        ("devices[0].fabric.udp.bind", "--udp"),
        ("devices[0].fabric.tap.interface", "--tap"),
        ("devices[0].fabric.udp.peers[", "--peer "),
    ];
    let option = OPTIONS.iter().find_map(|(key, option)| Some((option, problem.strip_prefix(key)?)));
    match option {
        // Options are counted from 1, array entries from 0.
        Some((option, rest)) if option.ends_with(' ') => match rest.split_once(']') {
            Some((index, rest)) => {
                let number = index.parse().map_or(0, |index: usize| index + 1);
                format!("{option}{number}{rest}")
            }
            None => problem.to_owned(),
        },
        Some((option, rest)) => format!("{option}{rest}"),
        None => problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use clap::error::ErrorKind;

    use super::super::Cli;
    use crate::config::{Config, FabricConfig};

    const DEVICE: &[&str] = &["--frontend", "mthca", "--id", "1", "--udp", "127.0.0.1:47911"];

    fn configuration(arguments: &[&str]) -> Result<Config, String> {
        let cli = Cli::try_parse_from([&["hcad"], arguments].concat()).map_err(|error| error.to_string())?;
        cli.device.configuration().unwrap().map_err(|error| error.to_string())
    }

    #[test]
    fn device_options_are_equivalent_to_file_entry() {
        let config = configuration(
            &[DEVICE, &["--peer", "127.0.0.1:47912,id=2", "--peer", "127.0.0.1:9,leaf", "--strict"]].concat(),
        )
        .unwrap();
        let [device] = &config.devices[..] else { panic!("{config:?}") };
        assert_eq!((device.identity.lid.get(), device.frontend.key(), device.strict), (1, "mthca", true));
        let FabricConfig::Udp { bind, peers, .. } = &device.fabric else { panic!("{device:?}") };
        assert_eq!(bind.to_string(), "127.0.0.1:47911");
        let peers: Vec<_> =
            peers.iter().map(|peer| (peer.addr.port(), peer.mac.is_some(), peer.leaf)).collect();
        assert_eq!(peers, [(47912, true, false), (9, false, true)]);
        let config = configuration(&["--frontend", "e810", "--id", "7", "--tap", "tap0"]).unwrap();
        assert!(matches!(config.devices[0].fabric, FabricConfig::Tap { .. }));
    }

    #[test]
    fn invalid_value_error_mentions_option() {
        for (more, expected) in [
            (&["--frontend", "hangu", "--id", "1", "--udp", "127.0.0.1:1"][..], "command line: --frontend"),
            (
                &["--frontend", "mthca", "--id", "0", "--udp", "127.0.0.1:1"],
                "'0' for '--id <ID>': 0 is not in 1..=49150",
            ),
            (&["--frontend", "mthca", "--id", "70000", "--udp", "127.0.0.1:1"], "70000 is not in 1..=49150"),
            (
                &["--frontend", "mthca", "--id", "1", "--udp", "224.0.0.1:1"],
                "--udp: 224.0.0.1 is not a unicast",
            ),
            (
                &[DEVICE, &["--peer", "127.0.0.1:2", "--peer", "127.0.0.1:2"]].concat(),
                "--peer 2.addr: 127.0.0.1:2",
            ),
            (
                &[DEVICE, &["--peer", "127.0.0.1:2,id=1"]].concat(),
                "--peer 1.mac: 02:00:00:00:00:01 is this device's own MAC",
            ),
            (&["--frontend", "mthca", "--id", "1", "--tap", "a/b"], "--tap: \"a/b\" is not a valid"),
        ] {
            let error = configuration(more).unwrap_err();
            assert!(error.contains(expected), "{error:?} should contain {expected:?}");
        }
    }

    /// Without the conflict, the error would name further options, which are also rejected.
    #[test]
    fn device_options_conflict_with_configuration_file() {
        for option in [
            &["--strict"][..],
            &["--id", "1"],
            &["--udp", "127.0.0.1:1"],
            &["--tap", "t"],
            &["--peer", "127.0.0.1:2"],
        ] {
            let error = Cli::try_parse_from([&["hcad", "--config", "x"], option].concat()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{error}");
        }
    }

    #[test]
    fn incomplete_device_options_are_rejected() {
        for arguments in [
            &["--frontend", "mthca", "--id", "1"][..],
            &["--frontend", "mthca", "--udp", "127.0.0.1:1"],
            &["--config", "x", "--id", "1"],
            &["--config", "x", "--frontend", "mthca", "--id", "1", "--udp", "127.0.0.1:1"],
            &["--frontend", "mthca", "--id", "1", "--tap", "t", "--peer", "127.0.0.1:2"],
            &[DEVICE, &["--peer", "127.0.0.1:2,fast"]].concat(),
            &[DEVICE, &["--peer", "127.0.0.1:2,id=1,id=2"]].concat(),
        ] {
            assert!(Cli::try_parse_from([&["hcad"], arguments].concat()).is_err(), "{arguments:?}");
        }
    }
}
