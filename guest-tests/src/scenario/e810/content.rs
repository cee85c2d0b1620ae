//! A file that must arrive as it is.

use std::time::Duration;

use agent::wire::{FillFile, Spawn};
use anyhow::{Result, ensure};

use super::net::Wire;
use super::station::Station;
use crate::tools::{Ready, stop, wait};

/// Where it is: in memory.
const FILE: &str = "/dev/shm/file";
const LEN_MIB: u64 = 256;
const PORT: u16 = 5555;
/// For all of it to pass, checksums made by emulated processors included.
const LIMIT: Duration = Duration::from_secs(150);
/// The same where TCP has to find out what was lost.
const LOSSY_LIMIT: Duration = Duration::from_secs(600);
const FILL: Duration = Duration::from_secs(60);

/// Makes the file at a, which `seed` fills, and returns its checksum.
pub(super) async fn make(a: &mut Station, seed: u64) -> Result<String> {
    make_of(a, seed, LEN_MIB).await
}

/// The same of another length.
pub(super) async fn make_of(a: &mut Station, seed: u64, mib: u64) -> Result<String> {
    a.sh(&format!("truncate -s {mib}M {FILE}")).await?;
    let fill = FillFile { path: FILE.into(), off: 0, len: mib << 20, seed, position: 0 };
    a.vm.call_within(FILL, fill).await?;
    let line = format!("md5sum < {FILE}");
    a.vm.run_within(LIMIT, &["sh", "-c", &line]).await
}

/// How long [`send`] may take.
pub(super) const fn limit(wire: Wire) -> Duration {
    match wire {
        Wire::Good => LIMIT,
        Wire::Lossy => LOSSY_LIMIT,
    }
}

/// Sends it to b, where it must have this checksum.
pub(super) async fn send(a: &mut Station, b: &mut Station, checksum: &str, wire: Wire) -> Result<()> {
    let address = b.address(0).ipv4;
    // What arrives is not kept.
    let line = format!("nc.openbsd -l {address} {PORT} | md5sum");
    let server = b.vm.call(Spawn { argv: ["sh", "-c", &line].map(str::to_owned).to_vec() }).await?.program;
    let sent = async {
        Ready::Tcp(PORT).wait(&mut b.vm, server, &line).await?;
        let line = format!("nc.openbsd -N {address} {PORT} < {FILE}");
        a.vm.run_within(limit(wire), &["sh", "-c", &line]).await
    }
    .await;
    if let Err(error) = sent {
        stop(&mut b.vm, server).await?;
        return Err(error);
    }
    let end = wait(&mut b.vm, server, LIMIT).await?;
    ensure!(end.stdout == checksum, "sent {checksum}, received {}{}", end.stdout, end.stderr);
    Ok(())
}
