//! Runs guests on three hosts as Slurm job steps, with one guest per task.

mod cluster;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use self::cluster::{Cluster, Step, missing_program};
use super::site::{HOSTS, Site};
use crate::lab::Lab;
use crate::programs;
use crate::report::{Report, Skip};

/// MPI program that exchanges verified data between all ranks.
const EXCHANGE: &str = include_str!("../../guest/mpi_exchange.py");
/// Script that pings the next guest and exchanges RDMA messages with it. The client retries until its server has
/// started.
const RING: &str = r#"#!/bin/sh
set -e
set -- $HCAD_GUESTS
shift $(((HCAD_RANK + 1) % HCAD_RANKS))
ping -q -c 1 "$1" >/dev/null
ibv_rc_pingpong -c -n 100 -g "$HCAD_GID_INDEX" >/dev/null &
until ibv_rc_pingpong -c -n 100 -g "$HCAD_GID_INDEX" "$1" >/dev/null 2>&1; do sleep 0.2; done
wait $!
echo "rank $HCAD_RANK of $HCAD_RANKS in guest $HCAD_GUEST has exchanged messages with $1"
"#;
/// Script that runs two MPI ranks in each guest.
const MPI: &str = r#"#!/bin/sh
[ "$HCAD_RANK" = 0 ] || exit 0
mpirun.openmpi --map-by slot:OVERSUBSCRIBE -np 4 --host a:2,b:2 python3 /work/exchange.py
"#;
/// Script that fails in one guest. In the other, it sleeps until it is terminated.
const FAILURE: &str = r#"#!/bin/sh
[ "$HCAD_RANK" = 1 ] || exec sleep 3600
echo "rank 1 fails" >&2
exit 3
"#;

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("hosts-slurm")?;
    let hint = format!("see {}", run.path().display());
    let site = match Site::create("slurm").await {
        Ok(site) => site,
        Err(error) => {
            let why = format!("{error:#}");
            return report.case("Slurm on three hosts", &hint, async { Err(Skip(why).into()) }).await;
        }
    };
    if let Some(program) = missing_program().await {
        let why = format!("{program} is not installed on this machine");
        return report.case("Slurm on three hosts", &hint, async { Err(Skip(why).into()) }).await;
    }
    let folder = run.file("work");
    save(&folder)?;
    let cluster = Cluster::start(&site, &run).await.context(hint.clone())?;
    let node = Node { lab, cluster: &cluster, folder };
    report
        .case("srun starts one guest per task and labels its output with the rank", &hint, ring(&node))
        .await?;
    report.case("an MPI job over RDMA between the guests of two hosts", &hint, mpi(&node)).await?;
    report.case("a failed rank terminates the other ranks", &hint, failure(&node)).await?;
    report.case("the daemons of Slurm exit cleanly", &hint, cluster.stop()).await
}

fn save(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in
        [("ring.sh", RING), ("mpi.sh", MPI), ("failure.sh", FAILURE), ("exchange.py", EXCHANGE)]
    {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Runs job steps on a cluster as a user would.
struct Node<'a> {
    lab: &'a Lab,
    cluster: &'a Cluster,
    /// Directory with the scripts.
    folder: PathBuf,
}

impl Node<'_> {
    /// Runs a script in a job step with `tasks` guests, each on its own host.
    async fn step(&self, tasks: usize, kind: &str, script: &str) -> Result<Step> {
        let (count, program) = (tasks.to_string(), programs::guest_lab()?);
        let mut command = self.cluster.command("srun")?;
        command.args(["--nodes", &count, "--ntasks", &count, "--label"]).arg(program).arg("node").arg(kind);
        command.args(self.lab.given()).arg("--folder").arg(&self.folder).args(["--", script]);
        self.cluster.run(command).await
    }
}

async fn ring(node: &Node<'_>) -> Result<()> {
    let step = node.step(HOSTS, "connectx", "./ring.sh").await?;
    ensure!(step.code == Some(0), "{step:?}");
    for (rank, guest, next) in [(0, "a", "b"), (1, "b", "c"), (2, "c", "a")] {
        let line = format!("{rank}: rank {rank} of 3 in guest {guest} has exchanged messages with {next}");
        ensure!(step.stdout.lines().any(|found| found == line), "{line:?} is missing: {step:?}");
    }
    Ok(())
}

async fn mpi(node: &Node<'_>) -> Result<()> {
    let step = node.step(2, "ucx", "./mpi.sh").await?;
    ensure!(step.code == Some(0), "{step:?}");
    for (rank, guest) in [(0, "a"), (1, "a"), (2, "b"), (3, "b")] {
        let line = format!("0: rank {rank} of 4 on {guest} received everything as sent");
        ensure!(step.stdout.lines().any(|found| found == line), "{line:?} is missing: {step:?}");
    }
    Ok(())
}

async fn failure(node: &Node<'_>) -> Result<()> {
    let step = node.step(2, "mthca", "./failure.sh").await?;
    // srun exits with the highest exit status of all tasks.
    ensure!(step.code == Some(143), "{step:?}");
    for text in ["1: rank 1 fails", "task 1: Exited with exit code 3", "task 0: Exited with exit code 143"] {
        ensure!(step.stderr.contains(text), "{text:?} is missing: {step:?}");
    }
    let reason = "the command failed in the guest of rank 1 with exit status 3";
    ensure!(step.stderr.contains(reason), "{reason:?} is missing: {step:?}");
    Ok(())
}
