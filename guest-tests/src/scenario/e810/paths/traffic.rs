//! Continuous traffic on a connection. Both ends check the data while network conditions change.

use std::time::Duration;

use agent::wire::{ProgramEnd, ProgramId};
use anyhow::{Context, Result, bail, ensure};
use tokio::time::{sleep, timeout};

use crate::scenario::nic::content;
use crate::scenario::nic::net::Wire;
use crate::scenario::nic::station::Station;
use crate::tools::{Ready, spawn, stop};

/// How long a connection may take to make progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of packets that count as progress.
const PROGRESS: u64 = 500;
const POLL: Duration = Duration::from_millis(50);
/// Size in MiB of the file that is transferred concurrently over the NIC.
const FILE_MIB: u64 = 24;

/// A running `rping`, which writes, reads and compares continuously.
#[derive(Debug)]
pub(super) struct Traffic {
    server: ProgramId,
    client: ProgramId,
}

impl Traffic {
    /// Starts traffic between two stations. The client connects to guest `b` at `address`.
    pub(super) async fn start(a: &mut Station, b: &mut Station, address: &str) -> Result<Self> {
        let line = format!("rping -s -a {address} -S 4000 -V");
        let server = spawn(&mut b.vm, &line).await?;
        Ready::Cm.wait(&mut b.vm, server, &line).await?;
        let client = spawn(&mut a.vm, &format!("rping -c -a {address} -S 4000 -V")).await?;
        let traffic = Self { server, client };
        traffic.moves_on(a, b).await.context("before the change")?;
        Ok(traffic)
    }

    /// Checks that both ends make progress. The programs exit if the data differs.
    pub(super) async fn moves_on(&self, a: &mut Station, b: &mut Station) -> Result<()> {
        let moved = async {
            for station in [&*a, &*b] {
                let before = received(station).await?;
                while received(station).await? < before + PROGRESS {
                    sleep(POLL).await;
                }
            }
            anyhow::Ok(())
        };
        match timeout(PROGRESS_TIMEOUT, moved).await {
            Ok(moved) => moved,
            Err(_) => {
                let ends = [stop(&mut a.vm, self.client).await?, stop(&mut b.vm, self.server).await?];
                bail!("fewer than {PROGRESS} packets arrived within {PROGRESS_TIMEOUT:?}: {ends:?}");
            }
        }
    }

    /// Stops the traffic and checks that there were no errors.
    pub(super) async fn end(self, a: &mut Station, b: &mut Station) -> Result<()> {
        self.moves_on(a, b).await.context("at the end")?;
        let said = |end: ProgramEnd| format!("{}{}", end.stdout, end.stderr);
        let client = said(stop(&mut a.vm, self.client).await?);
        ensure!(!client.contains("mismatch") && !client.contains("failed"), "{client}");
        // Stopping the client invalidates its memory, so the server may fail.
        let server = said(stop(&mut b.vm, self.server).await?);
        ensure!(!server.contains("mismatch"), "{server}");
        for station in [a, b] {
            station.no_warnings_but(&["abnormal ae_id = 0x102 ", "abnormal ae_id = 0x20d "]).await?;
        }
        Ok(())
    }

    pub(super) fn programs(self) -> [ProgramId; 2] {
        [self.client, self.server]
    }
}

/// Returns the number of packets received by the RDMA block of a station's device.
async fn received(station: &Station) -> Result<u64> {
    let daemon = station.daemon.as_ref().context("the guest has no daemon")?;
    daemon.counter("/engine/received_packets").await
}

/// Runs an RDMA connection and a file transfer over TCP concurrently, and checks both.
pub(super) async fn beside_nic(a: &mut Station, b: &mut Station) -> Result<()> {
    let checksum = content::make_of(a, 21, FILE_MIB).await?;
    let address = b.address(0).ipv4;
    let traffic = Traffic::start(a, b, &address).await?;
    content::send(a, b, &checksum, Wire::Good).await?;
    let checksum = content::make_of(b, 22, FILE_MIB).await?;
    content::send(b, a, &checksum, Wire::Good).await?;
    traffic.end(a, b).await
}
