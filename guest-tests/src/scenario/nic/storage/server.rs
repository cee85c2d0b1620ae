//! The storage server's guest, which the tests can kill and boot again. Its disk survives.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::daemon::HcaSpec;
use crate::lab::{Guest, Lab};
use crate::run_dir::RunDir;
use crate::scenario::nic::roce;
use crate::scenario::nic::station::{Station, shape, strict_e810};
use crate::testbed::kind::Device;
use crate::vm::Image;

/// Space for file system metadata, in MiB.
const SPARE_MIB: u32 = 64;

/// Parameters for booting the server.
#[derive(Debug)]
pub(super) struct Place<'a> {
    hca: Device,
    lab: &'a Lab,
    run: &'a RunDir,
    image: &'a Image,
    disk: PathBuf,
}

impl<'a> Place<'a> {
    /// Creates the server's disk with room for `mib` MiB of data.
    pub(super) fn new(
        hca: Device,
        lab: &'a Lab,
        run: &'a RunDir,
        image: &'a Image,
        mib: u32,
    ) -> Result<Self> {
        let disk = run.scratch("disk");
        let file = File::create(&disk).with_context(|| format!("cannot create {}", disk.display()))?;
        file.set_len(u64::from(mib + SPARE_MIB) << 20)?;
        Ok(Self { hca, lab, run, image, disk })
    }

    /// Boots a client and a server. The disk is attached to the server.
    pub(super) async fn pair(&self) -> Result<[Station; 2]> {
        let Self { hca, lab, run, image, .. } = *self;
        let interface = hca.interface().unwrap_or_default();
        let [client, server] = HcaSpec::pair()?.map(|spec| HcaSpec { interface, ..strict_e810(lab, spec) });
        let (client, server) = tokio::try_join!(
            Station::with_hca(hca, lab, run, image, &client, shape(&client.name)),
            Station::with_hca(hca, lab, run, image, &server, self.guest(&server.name)),
        )?;
        Ok([client, server])
    }

    fn guest<'name>(&self, name: &'name str) -> Guest<'name> {
        Guest { own_disk: Some(self.disk.clone()), ..shape(name) }
    }

    /// Kills the server and boots it again.
    pub(super) async fn kill(&self, server: &mut Station) -> Result<()> {
        let name = server.vm.name().to_owned();
        server.replace(self.lab, self.run, self.image, self.guest(&name)).await?;
        self.start_rdma(server).await
    }

    /// For a NIC, loads the RDMA driver and waits until the port is active. An InfiniBand port is already active.
    pub(super) async fn start_rdma(&self, station: &mut Station) -> Result<()> {
        match self.hca {
            Device::E810 | Device::Connectx => roce::start(station).await,
            _ => Ok(()),
        }
    }
}
