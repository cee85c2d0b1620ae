//! `hcactl` queries and controls a guest's device.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use super::describe;
use crate::programs;
use crate::testbed::name::Target;
use crate::testbed::protocol::{Description, Stage};

/// Arguments of [`super::Command::Hcactl`].
#[derive(Clone, Debug, clap::Args)]
pub struct Hcactl {
    /// Guest whose device hcactl should access, as NAME:GUEST
    #[arg(value_name = "NAME:GUEST")]
    target: Target,
    /// Arguments to pass to hcactl, such as `explain qp 0x10014`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

impl Hcactl {
    /// Replaces this process with hcactl, which then sets the exit status. Returns only if hcactl cannot be started.
    ///
    /// # Errors
    /// Fails if the guest has no hcad device or if hcactl cannot be started.
    pub(super) async fn run(self) -> Result<ExitCode> {
        let description = describe(&self.target.testbed).await?;
        let socket = control_socket(&description, &self.target)?;
        let program = programs::hcactl()?;
        let mut command = std::process::Command::new(&program);
        let error = command.arg("--socket").arg(socket).args(self.arguments).exec();
        Err(error).with_context(|| format!("cannot start {}", program.display()))
    }
}

/// Returns the control socket of the hcad process that serves the guest's device.
fn control_socket<'a>(description: &'a Description, target: &Target) -> Result<&'a Path> {
    let Some(guest) = description.guests.iter().find(|guest| guest.name == target.guest) else {
        bail!("guest {target} does not exist; 'guest-lab ps' lists the guests");
    };
    match (&guest.control_socket, guest.stage) {
        (Some(socket), _) => Ok(socket),
        (None, Stage::Booting | Stage::SettingUp) => {
            bail!("guest {target} is still booting; try again when 'guest-lab ps' lists it as ready")
        }
        (None, _) => bail!("guest {target} has no hcad device: its device type is {}", guest.device),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn guest_without_hcad_device_has_no_control_socket() {
        let guest = |name: &str, device: &str, stage: &str, socket: Option<&str>| {
            json!({
                "name": name, "device": device, "stage": stage, "ip": "192.168.0.1", "rdma_ip": null,
                "rdma_device": null, "boot_ms": 0, "commands": 0, "qemu": 1, "control_socket": socket,
            })
        };
        let description: Description = serde_json::from_value(json!({
            "name": "lab", "kind": "mixed", "kernel": "7.2", "modules": "/m", "folder": "/f",
            "supervisor": 1, "seconds": 1,
            "guests": [
                guest("a", "e810", "ready", Some("/s/a.control")),
                guest("b", "rxe", "ready", None),
                guest("c", "mthca", "booting", None),
            ],
        }))
        .unwrap();
        let socket = |target: &str| control_socket(&description, &target.parse().unwrap());
        assert_eq!(socket("lab:a").unwrap(), Path::new("/s/a.control"));
        let error = |target| socket(target).unwrap_err().to_string();
        assert_eq!(error("lab:b"), "guest lab:b has no hcad device: its device type is rxe");
        assert!(error("lab:c").contains("still booting") && error("lab:d").contains("does not exist"));
    }
}
