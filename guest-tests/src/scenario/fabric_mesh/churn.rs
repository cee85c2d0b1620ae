//! Removes peers and adds them back while other peers communicate.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Mesh;
use super::rounds::{Station, talk};
use crate::daemon::Daemon;

/// Index of HCA 4, which is removed from the others' peer lists and added back.
const REMOVED: usize = 3;
/// Index of the HCA that communicates with HCA 4.
const CALLS: usize = 4;
/// Number of rounds that each remaining pair must complete in each phase.
const ROUNDS: u64 = 2;
const PHASE: Duration = Duration::from_secs(60);

/// Removes HCA 4 from the peer lists of all other HCAs, then adds it back. While HCA 4 is not a peer, its frames must
/// be dropped. Two other pairs, one of them with the NIC behind HCA 1, must keep communicating throughout.
pub(super) async fn run(mesh: &mut Mesh) -> Result<()> {
    let address = mesh.specs[REMOVED].bind.to_string();
    let others: Vec<&Daemon> =
        mesh.daemons.iter().enumerate().filter(|(n, _)| *n != REMOVED).map(|(_, daemon)| daemon).collect();
    let [hub, second, third, leaver, caller, _, _, nic] = mesh.stations.as_mut_slice() else {
        anyhow::bail!("expected eight stations")
    };
    let (stop, stopped) = watch::channel(false);
    let (near_count, near) = watch::channel(0);
    let (far_count, far) = watch::channel(0);

    let change = async {
        let mut counts = [near, far];
        await_progress(&mut counts).await.context("before")?;
        for daemon in &others {
            daemon.control(&["peer", "remove", &address]).await?;
        }
        let called = talk(leaver, caller, 0x71_0000 << 32).await;
        ensure!(called.is_err(), "HCA {} is not a peer, but its frames were accepted", REMOVED + 1);
        let strangers = others.get(CALLS - 1).context("the caller's daemon")?.counter("/fabric/rx_stranger");
        ensure!(strangers.await? > 0, "its frames were not counted as frames from an unknown peer");
        await_progress(&mut counts).await.context("while it was not a peer")?;
        for daemon in &others {
            daemon.control(&["peer", "add", &address]).await?;
        }
        talk(leaver, caller, 0x72_0000 << 32).await.context("after it became a peer again")?;
        await_progress(&mut counts).await.context("afterwards")?;
        stop.send(true).context("the other peers have stopped")
    };
    let near_talk = repeat_rounds(second, third, 0x73_0000, &near_count, stopped.clone());
    let far_talk = repeat_rounds(hub, nic, 0x74_0000, &far_count, stopped);
    tokio::try_join!(change, near_talk, far_talk)?;
    Ok(())
}

/// Waits until each pair has completed [`ROUNDS`] more rounds.
async fn await_progress(counts: &mut [watch::Receiver<u64>]) -> Result<()> {
    for count in counts {
        let goal = *count.borrow() + ROUNDS;
        timeout(PHASE, count.wait_for(|done| *done >= goal))
            .await
            .with_context(|| format!("the other peers did not complete {ROUNDS} exchanges within {PHASE:?}"))?
            .context("the other peers have stopped")?;
    }
    Ok(())
}

/// Repeats rounds and reports the number of completed rounds.
async fn repeat_rounds(
    a: &mut Station,
    b: &mut Station,
    seed: u64,
    count: &watch::Sender<u64>,
    stopped: watch::Receiver<bool>,
) -> Result<()> {
    while !*stopped.borrow() {
        let done = *count.borrow();
        talk(a, b, (seed + 16 * done) << 32)
            .await
            .with_context(|| format!("exchange {done} of the remaining peers"))?;
        count.send_replace(done + 1);
    }
    Ok(())
}
