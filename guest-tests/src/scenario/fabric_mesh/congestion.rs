//! Tests ECN marks, as set by a congested switch, with hcad at both ends.

use agent::wire::Service;
use anyhow::{Context as _, Result, ensure};

use super::Mesh;
use crate::daemon::Daemon;
use crate::report::line;
use crate::scenario::cell::{Cell, Operation};
use crate::scenario::endpoint::connect;
use crate::scenario::impairments::Impairments;

/// Checks congestion notification (IBTA annex A17, section A17.9): HCA 3 notifies HCA 2 of marked packets at a limited
/// rate, and HCA 2 receives every notification.
pub(super) async fn run(mesh: &mut Mesh) -> Result<()> {
    let daemons = mesh.daemons.as_slice();
    let [_, sender, receiver, ..] = daemons else { anyhow::bail!("expected seven daemons") };
    let [_, a, b, ..] = mesh.stations.as_mut_slice() else { anyhow::bail!("expected eight stations") };
    let mut marks = Impairments::default();
    marks.add(receiver, &["rx", "--opcode", "RDMA WRITE Middle", "mark-ce"]).await?;
    connect(a, b, Service::Rc, 1024).await?;
    let before = counts(sender, receiver).await?;
    let cell = Cell { service: Service::Rc, operation: Operation::Write, len: 4 << 20, seed: 0x75 << 48 };
    cell.run(a, b).await.context("marked data")?;
    let after = counts(sender, receiver).await?;
    let [seen, sent, received] = [0, 1, 2].map(|n| after[n] - before[n]);
    let hits = marks.hits(receiver).await?;
    ensure!(seen == hits && hits > 1000, "{seen} of {hits} marks arrived");
    ensure!(
        sent > 0 && sent < seen && received == sent,
        "{sent} CNPs were sent for {seen} marks, {received} arrived"
    );
    marks.clear(receiver).await?;
    line(&format!("      {seen} packets marked, {sent} CNPs sent and received"))
}

/// Returns three counts: marked packets received, notifications sent, and notifications received.
async fn counts(sender: &Daemon, receiver: &Daemon) -> Result<[u64; 3]> {
    let of = async |daemon: &Daemon, name: &str| daemon.counter(&format!("/engine/congestion/{name}")).await;
    Ok([
        of(receiver, "received_marked").await?,
        of(receiver, "sent_cnps").await?,
        of(sender, "received_cnps").await?,
    ])
}
