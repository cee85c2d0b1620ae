//! Tests a file or device that the server exports to the client.

use std::time::Duration;

use agent::wire::{FillFile, Spawn};
use anyhow::{Context, Result, ensure};
use tokio::time::{sleep, timeout};

use super::Pair;
use super::fio;
use super::server::Place;
use crate::daemon::Daemon;
use crate::scenario::impairments::Impairments;
use crate::scenario::nic::station::Station;
use crate::services::storage::Protocol;
use crate::tools::{stop, wait};

/// Path of the generated content.
const CONTENT: &str = "/dev/shm/content";
/// Timeout for connecting, or for detecting a lost peer, in emulated guests on a busy host.
const SOON: Duration = Duration::from_secs(60);
/// Directory of the RDMA device in sysfs.
const DEVICE: &str = "/sys/class/infiniband/mlx5_0";
/// Polling interval while waiting.
const POLL: Duration = Duration::from_millis(200);
/// Number of bytes that fio must have transferred before the outage begins.
const UNDER_WAY: u64 = 1 << 20;
/// How long a client may take to reconnect. The delays between its attempts grow to half a minute.
const RECONNECT: Duration = Duration::from_secs(120);
/// Number of 256 KiB blocks written during the capture.
const RECORDED: u32 = 4;
/// The message that irdma prints for a connection whose peer no longer responds.
const NO_ANSWER: &str = "abnormal ae_id = 0x50a ";
/// The message that irdma prints for a request with an invalidated key.
const KEY_GONE: &str = "abnormal ae_id = 0x103 ";
/// The message that irdma prints for a request with the old key of a re-registered region.
const KEY_REPLACED: &str = "abnormal ae_id = 0x102 ";

/// A kind of server outage.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outage<'a> {
    /// The server disconnects its clients and accepts them again later.
    LetGo,
    /// The server's guest is killed, and a new guest takes over its disk.
    Killed(&'a Place<'a>),
}

impl Outage<'_> {
    /// Returns the seed for the content that is written after the outage.
    const fn seed(self) -> u64 {
        match self {
            Self::LetGo => 0x200,
            Self::Killed(_) => 0x300,
        }
    }
}

/// Amount of data to write, and duration of fio's verification.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    /// Number of parts, each with different content.
    pub(super) parts: u32,
    pub(super) part_mib: u32,
    pub(super) verify: Duration,
}

impl Amount {
    pub(super) const fn mib(self) -> u32 {
        self.parts * self.part_mib
    }
}

/// A file or device on the server, accessed by the client through a storage protocol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    protocol: Protocol,
    amount: Amount,
}

impl Target {
    pub(super) const fn new(protocol: Protocol, amount: Amount) -> Self {
        Self { protocol, amount }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.protocol.name
    }

    /// Returns the timeout for transferring all data in both directions and for running fio.
    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs(120) + Duration::from_secs(2) * self.amount.mib() + self.amount.verify * 3
    }

    /// Starts the server and connects the client, which writes and reads a small amount of data. This traffic is
    /// captured for other checks.
    pub(super) async fn connect(&self, pair: &mut Pair) -> Result<()> {
        let daemon = daemon(&pair.client)?;
        let control = daemon.controls();
        let stem = daemon.capture().file_stem().unwrap_or_default().to_string_lossy();
        let file = daemon.capture().with_file_name(format!("{stem}-{}.pcapng", self.protocol.name));
        control.ask(&["capture", "on", &file.display().to_string()]).await?;
        let result = async {
            self.join(pair).await?;
            let path = self.protocol.at_client;
            let lines = format!(
                "dd if=/dev/urandom of={path} bs=256k count={RECORDED} conv=notrunc oflag=direct status=none && \
                 dd if={path} of=/dev/null bs=256k count={RECORDED} iflag=direct status=none"
            );
            pair.client.within(SOON, &lines).await.map(drop)
        }
        .await;
        control.ask(&["capture", "off"]).await?;
        result
    }

    async fn join(&self, pair: &mut Pair) -> Result<()> {
        pair.server.within(SOON, &format!("set -e; {}", self.protocol.prepare)).await?;
        self.serve(pair).await?;
        let script = self.script(pair, self.protocol.connect).await?;
        pair.client.within(SOON, &script).await?;
        if self.protocol.file {
            pair.client.within(SOON, &format!("truncate -s 0 {}", self.protocol.at_client)).await?;
        }
        let kind = if self.protocol.file { "-f" } else { "-b" };
        let there = format!("until [ {kind} {} ]; do sleep 0.1; done", self.protocol.at_client);
        pair.client.within(SOON, &there).await.map(drop)
    }

    async fn serve(&self, pair: &mut Pair) -> Result<()> {
        let script = self.script(pair, self.protocol.serve).await?;
        pair.server.within(SOON, &script).await.map(drop)
    }

    /// Replaces the placeholders in a command; see [`Protocol`].
    async fn script(&self, pair: &mut Pair, text: &str) -> Result<String> {
        let mut text = format!("set -e; {}", text.replace("{server}", &pair.server.address(0).ipv4));
        if text.contains("{client_guid}") {
            let guid = pair.client.sh(&format!("cut -d: -f5- {DEVICE}/ports/1/gids/0 | tr -d :")).await?;
            text = text.replace("{client_guid}", guid.trim());
        }
        if text.contains("{server_guid}") {
            let guid = pair.server.sh(&format!("tr -d : < {DEVICE}/node_guid")).await?;
            text = text.replace("{server_guid}", guid.trim());
        }
        Ok(text)
    }

    /// Disconnects the client, then stops the server.
    pub(super) async fn disconnect(&self, pair: &mut Pair) -> Result<()> {
        pair.client.within(SOON, self.protocol.disconnect).await?;
        self.end(pair).await?;
        // Check the logs now, so that the server's messages about the disconnect are not attributed to the next
        // protocol.
        self.judge(pair, self.protocol.loss).await
    }

    /// Runs the protocol's shutdown commands on the server.
    pub(super) async fn end(&self, pair: &mut Pair) -> Result<()> {
        pair.server.within(SOON, &format!("set -e; {}", self.protocol.end)).await.map(drop)
    }

    /// Writes all parts, drops the caches, and checks both the data read back by the client and the data stored by the
    /// server. The data must have been transferred over RDMA.
    pub(super) async fn content(&self, pair: &mut Pair, seed: u64) -> Result<()> {
        let Amount { parts, part_mib, .. } = self.amount;
        let before = [pair.client.rdma_received().await?, pair.server.rdma_received().await?];
        let mut sums = Vec::new();
        for part in 0..parts {
            sums.push(self.write(&mut pair.client, part, seed + u64::from(part)).await?);
        }
        for (part, sum) in (0..).zip(&sums) {
            let direct = if self.protocol.file { "" } else { "iflag=direct" };
            for (station, path, direct) in [
                (&mut pair.client, self.protocol.at_client, direct),
                (&mut pair.server, self.protocol.at_server, ""),
            ] {
                let line = format!(
                    "echo 3 > /proc/sys/vm/drop_caches; \
                     dd if={path} bs=1M skip={} count={part_mib} {direct} status=none | md5sum",
                    part * part_mib
                );
                let found = station.within(self.limit(), &line).await?;
                ensure!(
                    found == *sum,
                    "part {part} has checksum {sum}, but {found} in guest {}",
                    station.vm.name()
                );
            }
        }
        let all = u64::from(self.amount.mib()) << 20;
        pair.client.has_received(before[0], all).await?;
        pair.server.has_received(before[1], all).await
    }

    /// Writes a part and returns its checksum.
    async fn write(&self, client: &mut Station, part: u32, seed: u64) -> Result<String> {
        let mib = self.amount.part_mib;
        client.sh(&format!("truncate -s {mib}M {CONTENT}")).await?;
        let len = u64::from(mib) << 20;
        let fill = FillFile { path: CONTENT.into(), off: 0, len, seed, position: 0 };
        client.vm.call_within(self.limit(), fill).await?;
        let direct = if self.protocol.file { "conv=notrunc,fsync" } else { "oflag=direct" };
        let line = format!(
            "set -e; dd if={CONTENT} of={} bs=1M seek={} {direct} status=none; md5sum < {CONTENT}; rm {CONTENT}",
            self.protocol.at_client,
            part * mib
        );
        client.within(self.limit(), &line).await
    }

    fn fio(&self) -> Vec<String> {
        fio::words(self.protocol.at_client, self.amount.mib(), self.amount.verify)
    }

    /// Runs fio with verification. The data must have been transferred over RDMA.
    pub(super) async fn verify(&self, pair: &mut Pair) -> Result<()> {
        let before = [pair.client.rdma_received().await?, pair.server.rdma_received().await?];
        let program = pair.client.vm.call(Spawn { argv: self.fio() }).await?.program;
        let moved = fio::judge(&wait(&mut pair.client.vm, program, self.limit()).await?)?;
        pair.client.has_received(before[0], moved.read).await?;
        pair.server.has_received(before[1], moved.written).await
    }

    /// Runs the content check and fio on a link that loses frames in both directions.
    pub(super) async fn lossy(&self, pair: &mut Pair) -> Result<()> {
        let mut rules = [Impairments::default(), Impairments::default()];
        for (station, rules) in [&pair.client, &pair.server].into_iter().zip(&mut rules) {
            let seed = station.id.to_string();
            rules.add(daemon(station)?, &["tx", "--probability", "0.001", "--seed", &seed, "drop"]).await?;
        }
        let result = async {
            self.content(pair, 0x100).await?;
            self.verify(pair).await
        }
        .await;
        for (station, rules) in [&pair.client, &pair.server].into_iter().zip(rules) {
            let daemon = daemon(station)?;
            let lost = rules.hits(daemon).await?;
            rules.clear(daemon).await?;
            ensure!(lost > 0 || result.is_err(), "no frame from guest {} was dropped", station.vm.name());
        }
        result?;
        if self.protocol.may_fail {
            self.judge(pair, &[self.protocol.loss, &[KEY_GONE, KEY_REPLACED]].concat()).await
        } else {
            self.no_warnings(pair).await
        }
    }

    /// Causes a server outage while fio runs. fio must continue, and all data must be correct.
    pub(super) async fn survives_outage(&self, pair: &mut Pair, outage: Outage<'_>) -> Result<()> {
        let before = pair.client.rdma_received().await?;
        let program = pair.client.vm.call(Spawn { argv: self.fio() }).await?.program;
        let gone = self.execute_outage(pair, outage).await;
        if gone.is_err() {
            stop(&mut pair.client.vm, program).await?;
        }
        gone?;
        let moved = fio::judge(&wait(&mut pair.client.vm, program, self.limit() + RECONNECT).await?)?;
        pair.client.has_received(before, moved.read).await?;
        self.content(pair, outage.seed()).await?;
        self.judge(pair, &[self.protocol.loss, &[NO_ANSWER]].concat()).await
    }

    async fn execute_outage(&self, pair: &mut Pair, outage: Outage<'_>) -> Result<()> {
        let before = pair.server.rdma_received().await?;
        let moving = async {
            while pair.server.rdma_received().await? < before + UNDER_WAY {
                sleep(POLL).await;
            }
            anyhow::Ok(())
        };
        timeout(SOON, moving).await.with_context(|| format!("fio moved no data within {SOON:?}"))??;
        match outage {
            Outage::LetGo => {
                pair.server.within(SOON, self.protocol.pause).await?;
                let noticed = format!("until {}; do sleep 0.1; done", self.protocol.noticed);
                pair.client
                    .within(SOON, &noticed)
                    .await
                    .context("the client did not report the loss of the server")?;
                pair.server.within(SOON, self.protocol.resume).await.map(drop)
            }
            Outage::Killed(place) => {
                place.kill(&mut pair.server).await?;
                self.serve(pair).await
            }
        }
    }

    /// Checks that neither kernel has logged an unexpected warning since the last check.
    pub(super) async fn no_warnings(&self, pair: &mut Pair) -> Result<()> {
        self.judge(pair, &[]).await
    }

    async fn judge(&self, pair: &mut Pair, also: &[&str]) -> Result<()> {
        let normal = [self.protocol.messages, also].concat();
        pair.client.no_warnings_but(&normal).await?;
        pair.server.no_warnings_but(&normal).await
    }
}

fn daemon(station: &Station) -> Result<&Daemon> {
    station.daemon.as_ref().context("the station has no daemon")
}
