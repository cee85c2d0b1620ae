//! Transfers a file and checks that it arrives unchanged.

use std::time::Duration;

use agent::wire::{FillFile, Spawn};
use anyhow::{Result, ensure};

use super::net::Wire;
use super::station::Station;
use crate::tools::{Ready, stop, wait};

/// Path of the file, on tmpfs.
const FILE: &str = "/dev/shm/file";
const LEN_MIB: u64 = 256;
const PORT: u16 = 5555;
/// Timeout for the transfer, which includes computing checksums on emulated CPUs.
const LIMIT: Duration = Duration::from_secs(150);
/// Timeout for the transfer over the lossy link, where TCP must recover from losses.
const LOSSY_LIMIT: Duration = Duration::from_secs(600);
const FILL: Duration = Duration::from_secs(60);

/// Creates the file in guest `a` from `seed` and returns its checksum.
pub(in crate::scenario) async fn make(a: &mut Station, seed: u64) -> Result<String> {
    make_of(a, seed, LEN_MIB).await
}

/// Creates a file of `mib` MiB in guest `a` and returns its checksum.
pub(in crate::scenario) async fn make_of(a: &mut Station, seed: u64, mib: u64) -> Result<String> {
    a.sh(&format!("truncate -s {mib}M {FILE}")).await?;
    let fill = FillFile { path: FILE.into(), off: 0, len: mib << 20, seed, position: 0 };
    a.vm.call_within(FILL, fill).await?;
    let line = format!("md5sum < {FILE}");
    a.vm.run_within(LIMIT, &["sh", "-c", &line]).await
}

/// Returns the timeout for [`send`].
pub(in crate::scenario) const fn limit(wire: Wire) -> Duration {
    match wire {
        Wire::Good => LIMIT,
        Wire::Lossy => LOSSY_LIMIT,
    }
}

/// Sends the file to guest `b` and checks that the received data has the given checksum.
pub(in crate::scenario) async fn send(
    a: &mut Station,
    b: &mut Station,
    checksum: &str,
    wire: Wire,
) -> Result<()> {
    let address = b.address(0).ipv4;
    // The receiver hashes the data without storing it.
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
