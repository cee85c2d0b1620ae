//! A site's hosts, each with one HCA, and traffic between them.

use anyhow::{Context as _, Result, bail};

use agent::wire::Service;

use super::super::cell::{Cell, Operation};
use super::super::endpoint::connect;
use super::super::endpoint::jingzhao::{InProcess, Jingzhao};
use super::super::rxe_interop::ip;
use super::{HOSTS, Site};
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::Lab;
use crate::run_dir::RunDir;

/// Messages that two endpoints exchange. No length is a multiple of a path MTU.
const MESSAGES: [(Operation, u32); 4] = [
    (Operation::Send, 20_011),
    (Operation::WriteImm, 100_003),
    (Operation::Read, 65_537),
    (Operation::FetchAdd, 8),
];

/// A host's HCA and its daemon.
#[derive(Debug)]
pub(in super::super) struct Host {
    pub(in super::super) hca: Jingzhao<InProcess>,
    pub(in super::super) daemon: Daemon,
}

impl Host {
    /// Starts one HCA on each host, with settings modified by `change`.
    pub(in super::super) async fn start_all(
        lab: &Lab,
        run: &RunDir,
        site: &Site,
        change: impl Fn(&mut HcaSpec),
    ) -> Result<Vec<Self>> {
        let mut hosts = Vec::new();
        for (index, mut spec) in HcaSpec::mesh_of(HOSTS)?.into_iter().enumerate() {
            change(&mut spec);
            hosts.push(Self::start(lab, run, site, index, &spec).await?);
        }
        Ok(hosts)
    }

    /// Starts the HCA of one host.
    pub(in super::super) async fn start(
        lab: &Lab,
        run: &RunDir,
        site: &Site,
        index: usize,
        spec: &HcaSpec,
    ) -> Result<Self> {
        let command = site.hosts().get(index).context("no such host")?.command(lab.hcad()?);
        let daemon = Daemon::start_by(command, std::slice::from_ref(spec), run).await?;
        let hca = Jingzhao::attach(daemon.socket(), ip(spec.id), ip(spec.default_peer)).await?;
        Ok(Self { hca, daemon })
    }

    pub(in super::super) async fn stop_all(hosts: Vec<Self>) -> Result<()> {
        for Self { hca, daemon } in hosts {
            drop(hca);
            daemon.stop().await?;
        }
        Ok(())
    }
}

/// Makes every pair of hosts exchange all messages in both directions.
pub(in super::super) async fn talk(hosts: &mut [Host], path_mtu: u16) -> Result<()> {
    let mut seed = u64::from(path_mtu) << 40;
    for first in 0..hosts.len() {
        for second in first + 1..hosts.len() {
            let Ok([a, b]) = hosts.get_disjoint_mut([first, second]) else { bail!("two hosts") };
            connect(&mut a.hca, &mut b.hca, Service::Rc, path_mtu).await?;
            let what = || format!("between hosts {} and {}", first + 1, second + 1);
            exchange(a, b, &mut seed).await.with_context(what)?;
        }
    }
    Ok(())
}

/// Exchanges all messages between two connected hosts, in both directions. Advances `seed` so that every message
/// carries different data.
pub(in super::super) async fn exchange(a: &mut Host, b: &mut Host, seed: &mut u64) -> Result<()> {
    for (operation, len) in MESSAGES {
        let mut cell = || {
            *seed += 1 << 32;
            Cell { service: Service::Rc, operation, len, seed: *seed }
        };
        cell().run(&mut a.hca, &mut b.hca).await.with_context(|| operation.name())?;
        cell().run(&mut b.hca, &mut a.hca).await.with_context(|| operation.name())?;
    }
    Ok(())
}
