//! `hcactl device` and `hcactl reload`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Subcommand;
use control_api::message::{Reloaded, Request, Response};
use control_api::{text_file, unique_keys};

use super::{Cli, Daemon, confirmed, done, json};

/// Commands of `hcactl device`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Device {
    /// Add a device and print the path to its socket
    ///
    /// The device exists until it is removed or hcad exits. The configuration file does not change.
    Add {
        /// Path to a JSON file that contains one entry of `devices`, as in the configuration, or "-" for
        /// standard input
        file: PathBuf,
    },
    /// Remove a device and disconnect its VMM; the guest loses the device
    Remove {
        /// Device number
        id: u16,
        /// Remove the device without confirmation, even if a VMM is connected
        #[arg(long)]
        yes: bool,
    },
}

impl Device {
    pub(crate) fn run(&self, daemon: &mut Daemon, cli: &Cli) -> anyhow::Result<String> {
        match self {
            Self::Add { file } => {
                let text = read(file)?;
                let entry = unique_keys::parse_object(&text).with_context(|| shown(file))?;
                let Response::Added { device, socket } = daemon.ask(&Request::DeviceAdd { entry })? else {
                    bail!("unexpected response from hcad")
                };
                match (cli.json, socket) {
                    (true, socket) => json(&serde_json::json!({ "device": device, "added": socket })),
                    (false, Some(socket)) => Ok(format!("{}\n", socket.display())),
                    (false, None) => Ok(String::new()),
                }
            }
            Self::Remove { id, yes } => {
                let has_vmm = daemon.devices()?.iter().any(|device| device.id == *id && device.connected);
                ensure!(
                    !has_vmm
                        || *yes
                        || confirmed(&format!("A VMM is connected to device {id}. Remove the device?"))?,
                    "cancelled; nothing was changed"
                );
                daemon.tell(&Request::DeviceRemove { device: *id })?;
                done(cli, *id, "removed", &true)
            }
        }
    }
}

/// Loads a configuration into hcad, by default from the file that hcad was started with. Returns the output and whether
/// the reload succeeded without problems.
pub(crate) fn reload(daemon: &mut Daemon, cli: &Cli, file: Option<&Path>) -> anyhow::Result<(String, bool)> {
    let file = match (file, daemon.ask(&Request::Configuration {})?) {
        (Some(file), _) => file.to_owned(),
        (None, Response::Configuration(Some(file))) => file,
        (None, Response::Configuration(None)) => {
            bail!("hcad was started without a configuration file; specify one with 'hcactl reload FILE'")
        }
        _ => bail!("unexpected response from hcad"),
    };
    let text = read(&file)?;
    let answer = daemon.ask(&Request::Reload { text });
    let Response::Reloaded(reloaded) = answer.with_context(|| format!("cannot load {}", shown(&file)))?
    else {
        bail!("unexpected response from hcad")
    };
    let went_well = reloaded.problems.is_empty();
    Ok((if cli.json { json(&reloaded)? } else { lines(&reloaded) }, went_well))
}

fn lines(reloaded: &Reloaded) -> String {
    let Reloaded { added, removed, changed, unchanged, not_changed, problems } = reloaded;
    let mut text = String::new();
    for (what, ids) in
        [("added", added), ("removed", removed), ("changed", changed), ("unchanged", unchanged)]
    {
        if !ids.is_empty() {
            let ids: Vec<_> = ids.iter().map(u16::to_string).collect();
            text += &format!("{what}: {}\n", ids.join(", "));
        }
    }
    for key in not_changed {
        text += &format!("{key}: a reload cannot change this setting; restart hcad to apply the new value\n");
    }
    problems.iter().for_each(|problem| text += &format!("{problem}\n"));
    text
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        return text_file::read_standard_input().context("cannot read standard input");
    }
    text_file::read(file).with_context(|| format!("cannot read {}", file.display()))
}

fn shown(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}
