//! Tests the templates of `guest-lab up`, whose guests start with services already running.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use super::user::User;
use crate::lab::Lab;
use crate::report::Report;

/// Size of the data written through a storage protocol.
const MIB: u32 = 16;
/// Path of the counter for payload bytes received by an RDMA device.
const RECEIVED: &str = "/engine/received_payload_bytes";
/// UCX bandwidth test with tag matching, against the server in guest `a`.
const TEST: &str = "ucx_perftest -P 0 a -t tag_bw -s 65536 -n 100 -f";
/// MPI program that exchanges verified data between all ranks.
const EXCHANGE: &str = include_str!("../../../guest/mpi_exchange.py");

pub(in crate::scenario) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("templates")?;
    let hint = format!("transcripts of all commands: {}", run.path().display());
    let user = User::new(lab, &run)?.bound();
    let case = storage(&user, "nvme-of", "/dev/nvme0n1", "/dev/vdc", "oflag=direct");
    report.case("nvme-of: guest a stores the data that guest b writes to the NVMe disk", &hint, case).await?;
    let case = storage(&user, "nfs", "/mnt/file", "/export/file", "conv=fsync");
    report.case("nfs: guest a stores the data that guest b writes to the NFS directory", &hint, case).await?;
    report
        .case("ucx: perftest has a server, and MPI has ranks in both guests", &hint, ucx(&user, run.path()))
        .await
}

async fn storage(user: &User, template: &str, at_client: &str, at_server: &str, flags: &str) -> Result<()> {
    user.run(&["up", template, "--strict"]).await?.succeeded()?;
    let [server, client] = ["a", "b"].map(|guest| format!("{template}:{guest}"));
    let before = received(user, &server).await?;
    let write = format!(
        "head -c {MIB}M /dev/urandom > /dev/shm/data && \
         dd if=/dev/shm/data of={at_client} bs=1M {flags} status=none && md5sum < /dev/shm/data"
    );
    let written = user.run(&["exec", &client, "--", "sh", "-c", &write]).await?;
    written.succeeded()?;
    let read = format!("echo 3 > /proc/sys/vm/drop_caches; head -c {MIB}M {at_server} | md5sum");
    let stored = user.run(&["exec", &server, "--", "sh", "-c", &read]).await?;
    ensure!(stored.stdout == written.stdout && !stored.stdout.is_empty(), "{stored:?}, written: {written:?}");
    let bytes = received(user, &server).await? - before;
    ensure!(bytes >= u64::from(MIB) << 20, "{bytes} bytes were received over RDMA");
    user.run(&["down", template]).await?.succeeded()
}

async fn received(user: &User, guest: &str) -> Result<u64> {
    let counters = user.run(&["hcactl", guest, "--json", "counters"]).await?.json()?;
    let value = counters.pointer(RECEIVED).and_then(serde_json::Value::as_u64);
    value.ok_or_else(|| anyhow::anyhow!("no counter {RECEIVED} in {counters}"))
}

async fn ucx(user: &User, folder: &Path) -> Result<()> {
    user.run(&["up", "ucx"]).await?.succeeded()?;
    let test = ["exec", "ucx:b", "--", "sh", "-c", TEST];
    user.run(&test).await?.succeeded()?;
    // The server restarts after each test. Retry until it is ready again.
    let again = format!("until {TEST}; do sleep 0.5; done");
    user.run(&["exec", "ucx:b", "--", "timeout", "60", "sh", "-c", &again]).await?.succeeded()?;
    let program = folder.join("exchange.py");
    fs::write(&program, EXCHANGE)?;
    for guest in ["a", "b"] {
        user.run(&["cp", &program.display().to_string(), &format!("ucx:{guest}:/tmp/")])
            .await?
            .succeeded()?;
    }
    let mpi = "mpirun.openmpi --map-by slot:OVERSUBSCRIBE -np 4 --host a:2,b:2 python3 /tmp/exchange.py";
    let outcome = user.run(&["exec", "ucx:a", "--", "sh", "-c", mpi]).await?;
    outcome.succeeded()?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    for (rank, guest) in [(0, "a"), (1, "a"), (2, "b"), (3, "b")] {
        let said = format!("rank {rank} of 4 on {guest} received everything as sent");
        ensure!(text.contains(&said), "{said:?} is missing: {outcome:?}");
    }
    user.run(&["down", "ucx"]).await?.succeeded()
}
