//! DDP packages in a guest (E810 interface, section 7).

use std::time::Duration;

use agent::wire::Run;
use anyhow::{Context, Result, ensure};

use crate::artifacts::ddp;
use crate::lab::Lab;
use crate::report::Skip;
use crate::vm::Vm;

/// The DDP package that the driver finds in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scenario) enum Package {
    /// The package that the lab generates.
    Synthetic,
    /// Debian's package, copied from the additional disk.
    Debian,
    /// No package, which puts the driver into safe mode.
    None,
}

/// The guest's first disk that is not part of its root file system.
const DISK: &str = "/dev/vdc";
/// Temporary mount point of the disk.
const MOUNT: &str = "/tmp/package";
/// Program that decodes hexadecimal text. Agent requests can carry only text, so the package is sent in this form.
const UNHEX: &str = "import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))";
/// Timeout for the program that writes the file.
const LIMIT: Duration = Duration::from_secs(120);
/// Time allowed for the agent's reply, in addition to [`LIMIT`].
const ANSWER_MARGIN: Duration = Duration::from_secs(60);

impl Package {
    /// Copies the package to the directory that the driver searches.
    pub(in crate::scenario) async fn install(self, vm: &mut Vm) -> Result<()> {
        let file = format!("/lib/firmware/{}/ice.pkg", ddp::FOLDER);
        let commands = match self {
            Self::None => format!("rm -f {file}"),
            Self::Synthetic => format!("mkdir -p {} && python3 -c '{UNHEX}' > {file}", folder(&file)),
            Self::Debian => format!(
                "mkdir -p {} {MOUNT} && mount -o ro {DISK} {MOUNT} && cp {MOUNT}/ice.pkg {file} && umount {MOUNT}",
                folder(&file)
            ),
        };
        let stdin = match self {
            Self::Synthetic => ddp::synthetic().iter().map(|byte| format!("{byte:02x}")).collect(),
            _ => String::new(),
        };
        let argv = ["sh", "-c", &commands].map(str::to_owned).to_vec();
        let step = Run { argv, stdin, timeout_ms: u32::try_from(LIMIT.as_millis())? };
        let end = vm.call_within(LIMIT + ANSWER_MARGIN, step).await?;
        ensure!(
            end.status == agent::wire::ExitStatus::Code(0),
            "{commands} failed with {:?}: {}",
            end.status,
            end.stderr
        );
        Ok(())
    }

    /// Returns the message that the driver prints about the package.
    pub(in crate::scenario) fn message(self) -> String {
        match self {
            Self::Synthetic => {
                let [major, minor, update, draft] = ddp::VERSION;
                let name = ddp::NAME;
                format!(
                    "The DDP package was successfully loaded: {name} version {major}.{minor}.{update}.{draft}"
                )
            }
            Self::Debian => {
                "The DDP package was successfully loaded: ICE OS Default Package version 1.3.".into()
            }
            Self::None => {
                "The DDP package file was not found or could not be read. Entering Safe Mode".into()
            }
        }
    }
}

/// Returns a disk with Debian's package, or [`Skip`] if the package is not available.
pub(in crate::scenario) async fn debian_disk(lab: &Lab) -> std::result::Result<std::path::PathBuf, Skip> {
    lab.debian_ddp()
        .await
        .context("the archive does not contain Debian's package, which is non-free")
        .map_err(|error| Skip(format!("{error:#}").lines().next().unwrap_or_default().to_owned()))
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("/", |(folder, _)| folder)
}
