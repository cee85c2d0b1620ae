//! A guest, its daemon and its memory region.

use std::net::Ipv4Addr;

use agent::wire::{BindVfio, DeviceSelector, MrInfo, OpenHca};
use anyhow::{Context as _, Result, ensure};

use super::traffic;
use super::usage::Usage;
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::{Guest, Lab};
use crate::run_dir::RunDir;
use crate::scenario::connection::region;
use crate::vm::{Image, Vm};

const MEMORY_MIB: u32 = 256;

/// The lab, run directory and image that all guests share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) lab: &'a Lab,
    pub(super) run: &'a RunDir,
    pub(super) image: &'a Image,
}

/// The process that a disturbance kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// QEMU. The daemon keeps running and serves the next guest.
    Guest,
    /// The daemon. QEMU does not reconnect, so the guest is replaced too.
    Daemon,
}

#[derive(Debug)]
pub(super) struct Member {
    spec: HcaSpec,
    pub(super) vm: Vm,
    pub(super) daemon: Daemon,
    pub(super) mr: MrInfo,
}

impl Member {
    pub(super) async fn start(site: Site<'_>, spec: HcaSpec) -> Result<Self> {
        let daemon = Daemon::start(&site.lab.hcad()?, &spec, site.run).await?;
        let (vm, mr) = boot(site, &spec, &daemon).await?;
        Ok(Self { spec, vm, daemon, mr })
    }

    /// Replaces the guest that was killed or has lost its daemon.
    pub(super) async fn replace(&mut self, site: Site<'_>, killed: Victim) -> Result<()> {
        match killed {
            Victim::Guest => {
                self.vm.kill().await?;
                self.daemon.wait_for_disconnect().await?;
            }
            Victim::Daemon => {
                self.daemon.process().kill().await?;
                self.vm.kill().await?;
                self.daemon = Daemon::start(&site.lab.hcad()?, &self.spec, site.run).await?;
            }
        }
        (self.vm, self.mr) = boot(site, &self.spec, &self.daemon).await?;
        Ok(())
    }

    /// Returns the HCA's IP address.
    pub(super) fn ip(&self) -> Ipv4Addr {
        let [high, low] = self.spec.id.to_be_bytes();
        Ipv4Addr::new(10, 77, high, low)
    }

    /// Returns the ID of the process that a disturbance of kind `victim` kills.
    pub(super) fn process(&mut self, victim: Victim) -> Result<u32> {
        match victim {
            Victim::Guest => self.vm.process_id(),
            Victim::Daemon => self.daemon.process().id(),
        }
    }

    pub(super) fn usage(&mut self) -> Result<Usage> {
        Usage::of(self.vm.process_id()?, self.daemon.process().id()?)
    }

    /// Checks that the daemon has not restarted the device and that the guest is connected to it.
    pub(super) async fn is_well(&self) -> Result<()> {
        let rows = self.daemon.control(&["devices"]).await?;
        ensure!(rows[0]["restarts"] == 0 && rows[0]["connected"] == true, "{rows}");
        Ok(())
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.vm.kill().await?;
        self.daemon.stop().await
    }
}

async fn boot(site: Site<'_>, spec: &HcaSpec, daemon: &Daemon) -> Result<(Vm, MrInfo)> {
    let hcas = vec![daemon.socket().to_owned()];
    let guest = Guest { name: &spec.name, hcas, memory_mib: Some(MEMORY_MIB), ..Guest::default() };
    let mut vm = site.lab.boot(site.run, site.image, guest).await?;
    vm.call(BindVfio { device: DeviceSelector::default() }).await?;
    vm.call(OpenHca::default()).await.with_context(|| format!("HCA {}", spec.id))?;
    let mr = region(&mut vm, traffic::REGION, 0).await?;
    Ok((vm, mr))
}
