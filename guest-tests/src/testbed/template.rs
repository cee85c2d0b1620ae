//! Templates: testbeds whose guests already run services over RDMA.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::boot::{Booted, Place};
use super::kind::Kind;
use crate::run_dir::RunDir;
use crate::services::remote_shell;
use crate::services::storage::{NFS, NVME, Protocol};

/// Size of the server's disk. The image is sparse.
const DISK_MIB: u64 = 256;
/// TCP port of `ucx_perftest`.
const UCX_PORT: u16 = 13337;

/// A testbed of two or more guests, each with a ConnectX, in which services are already running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Template {
    /// ConnectX; guest a exports a 256 MiB disk over NVMe/RDMA, which appears as /dev/nvme0n1 in all other guests
    NvmeOf,
    /// ConnectX; guest a exports a directory using NFS over RDMA, and all other guests mount it at /mnt
    Nfs,
    /// ConnectX; UCX uses the RDMA device, guest a runs ucx_perftest as a server, and mpirun can start ranks in all guests
    Ucx,
}

/// A choice of testbed: a kind of RDMA device, or a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Kind(Kind),
    Template(Template),
}

impl Choice {
    pub const fn kind(self) -> Kind {
        match self {
            Self::Kind(kind) => kind,
            Self::Template(Template::NvmeOf | Template::Nfs | Template::Ucx) => Kind::Connectx,
        }
    }

    pub const fn template(self) -> Option<Template> {
        match self {
            Self::Kind(_) => None,
            Self::Template(template) => Some(template),
        }
    }

    /// Returns the name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kind(kind) => kind.name(),
            Self::Template(template) => template.name(),
        }
    }
}

impl ValueEnum for Choice {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Kind(Kind::Mthca),
            Self::Kind(Kind::Jingzhao),
            Self::Kind(Kind::E810),
            Self::Kind(Kind::Connectx),
            Self::Kind(Kind::ConnectxIb),
            Self::Kind(Kind::Rxe),
            Self::Kind(Kind::Mixed),
            Self::Template(Template::NvmeOf),
            Self::Template(Template::Nfs),
            Self::Template(Template::Ucx),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Kind(kind) => kind.to_possible_value(),
            Self::Template(template) => template.to_possible_value(),
        }
    }
}

impl Template {
    /// Returns the template's name as used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvmeOf => "nvme-of",
            Self::Nfs => "nfs",
            Self::Ucx => "ucx",
        }
    }

    const fn protocol(self) -> Option<Protocol> {
        match self {
            Self::NvmeOf => Some(NVME),
            Self::Nfs => Some(NFS),
            Self::Ucx => None,
        }
    }

    /// Creates the guest's additional disk, if the template provides one for it.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub(super) fn disk(self, place: Place, run: &RunDir) -> Result<Option<PathBuf>> {
        if self.protocol().is_none() || !place.is_first() {
            return Ok(None);
        }
        let path = run.scratch("disk");
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len(DISK_MIB << 20)?;
        Ok(Some(path))
    }

    /// Starts the services and connects their clients.
    ///
    /// # Errors
    /// Fails if a command in a guest fails.
    pub(super) async fn start(self, guests: &[Booted]) -> Result<()> {
        let server =
            guests.iter().find_map(|guest| guest.place.rdma_ip()).context("no guest has an address")?;
        for guest in guests {
            let script = match self.protocol() {
                Some(protocol) => storage(protocol, server, guest.place.is_first()),
                None => messaging(guest.place),
            };
            let name = guest.place.name;
            let ran = guest.ports.run(&["sh", "-c", &script], b"").await;
            ran.with_context(|| format!("cannot start the services of '{}' in guest {name}", self.name()))?;
        }
        Ok(())
    }

    /// Returns the environment variables for commands in a guest.
    pub(super) fn environment(self, place: Place) -> Vec<(String, String)> {
        let Some(device) = place.device.rdma_device().filter(|_| self == Self::Ucx) else {
            return Vec::new();
        };
        let port = format!("{device}:1");
        [
            ("UCX_NET_DEVICES", port.as_str()),
            ("UCX_IB_GID_INDEX", super::supervisor::IPV4_GID),
            // Open MPI refuses to run as root without these variables.
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_pml", "ucx"),
            ("OMPI_MCA_opal_common_ucx_tls", "any"),
            ("OMPI_MCA_opal_common_ucx_devices", "any"),
            ("PRTE_MCA_plm_ssh_agent", remote_shell::CLIENT),
            ("PRTE_MCA_hwloc_default_binding_policy", "none"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }
}

/// Returns the script to run in a guest of a storage template.
fn storage(protocol: Protocol, server: Ipv4Addr, is_server: bool) -> String {
    let text = if is_server {
        format!("{}\n{}", protocol.prepare, protocol.serve)
    } else {
        let appears = if protocol.file { "true" } else { "[ -b $path ]" };
        format!("{}\npath={}\nuntil {appears}; do sleep 0.1; done", protocol.connect, protocol.at_client)
    };
    format!("set -e\n{}\n", text.replace("{server}", &server.to_string()))
}

/// Returns the script to run in a guest of the UCX template.
fn messaging(place: Place) -> String {
    let environment: String = Template::Ucx
        .environment(place)
        .into_iter()
        .map(|(name, value)| format!("export {name}={value}\n"))
        .collect();
    let shell = serve(&remote_shell::serve(&place.ip().to_string()), remote_shell::PORT);
    // Without `-P 0`, the server would wait for MPI. It exits after each client and therefore runs in a loop.
    let server = if place.is_first() {
        serve("while true; do ucx_perftest -P 0; done", UCX_PORT)
    } else {
        String::new()
    };
    format!(
        "set -e\n{environment}{}{}{shell}{server}",
        remote_shell::install_client(),
        remote_shell::install_server()
    )
}

/// Returns shell code that starts a server and waits until it listens on a TCP port. The server outlives the shell.
fn serve(line: &str, port: u16) -> String {
    format!(
        "setsid sh -c '{line}' </dev/null >/dev/null 2>&1 &
until ss -Hltn sport = :{port} | grep -q .; do sleep 0.1; done
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_template_can_be_chosen() {
        let names = |choices: Vec<Choice>| choices.into_iter().map(Choice::name).collect::<Vec<_>>();
        let kinds = Kind::value_variants().iter().copied().map(Choice::Kind);
        let templates = Template::value_variants().iter().copied().map(Choice::Template);
        assert_eq!(names(Choice::value_variants().to_vec()), names(kinds.chain(templates).collect()));
        for choice in Choice::value_variants() {
            assert_eq!(choice.to_possible_value().unwrap().get_name(), choice.name());
        }
    }

    #[test]
    fn storage_client_scripts_contain_server_address() {
        let server = Ipv4Addr::new(10, 77, 0, 1);
        for protocol in [NVME, NFS] {
            for is_server in [true, false] {
                let script = storage(protocol, server, is_server);
                assert!(!script.contains('{'), "{script}");
            }
            assert!(storage(protocol, server, false).contains("10.77.0.1"), "{}", protocol.name);
        }
    }

    #[test]
    fn background_commands_do_not_contain_quotes() {
        assert!(!remote_shell::serve("192.168.0.1").contains('\''));
    }
}
