//! Causes errors repeatedly and checks the completion status of each.

use anyhow::{Result, ensure};

use super::super::failing::{REGION, Side, status};
use super::pair::Pair;

pub(super) const ROUNDS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Mistake {
    RemoteKey,
    Beyond,
    LocalKey,
    TooLong,
    PeerGone,
}

impl Mistake {
    const ALL: [Self; 5] = [Self::RemoteKey, Self::Beyond, Self::LocalKey, Self::TooLong, Self::PeerGone];

    /// Posts a valid request, one that fails and one that must be flushed, and checks all three statuses.
    async fn happen(self, pair: &mut Pair) -> Result<()> {
        let may_be_lost =
            pair.is_wire_bad() && matches!(self, Self::RemoteKey | Self::Beyond | Self::TooLong);
        let [a, b] = pair.sides().await?;
        let [vm_a, vm_b] = pair.vms();
        let good = a.write(b.region.addr, b.region.rkey, 4096);
        let (bad, expected) = match self {
            Self::RemoteKey => (a.write(b.region.addr, b.region.rkey ^ 0x100, 4096), status::REM_ACCESS_ERR),
            Self::Beyond => {
                let va = b.region.addr + u64::from(REGION) - 4095;
                (a.write(va, b.region.rkey, 4096), status::REM_ACCESS_ERR)
            }
            Self::LocalKey => {
                let mut bad = a.write(b.region.addr, b.region.rkey, 4096);
                bad.sges[0].2 ^= 0x100;
                (bad, status::LOC_PROT_ERR)
            }
            Self::TooLong => {
                b.receive(vm_b, 4000).await?;
                (a.send(4096), status::REM_INV_REQ_ERR)
            }
            Self::PeerGone => (a.send(64), status::RETRY_EXC_ERR),
        };
        a.post(vm_a, std::slice::from_ref(&good)).await?;
        a.expect(vm_a, &[status::SUCCESS]).await?;
        if matches!(self, Self::PeerGone) {
            b.verbs.destroy(vm_b, b.qp).await?;
        }
        a.post(vm_a, &[bad, good]).await?;
        let mut expected = [expected, status::WR_FLUSH_ERR];
        let found = a.statuses(vm_a, 2).await?;
        // The responder sends the NAK once and enters the error state. If the NAK is lost, the requester does not
        // receive another response and exhausts its retries.
        if may_be_lost && found.first() == Some(&status::RETRY_EXC_ERR) {
            expected[0] = status::RETRY_EXC_ERR;
        }
        ensure!(found == expected, "statuses are {found:?}, expected {expected:?}");
        let [Side { verbs: of_a, .. }, Side { verbs: of_b, .. }] = [a, b];
        of_a.close(vm_a).await?;
        of_b.close(vm_b).await
    }
}

pub(super) async fn run(pair: &mut Pair, rounds: u32) -> Result<()> {
    for _ in 0..rounds {
        for mistake in Mistake::ALL {
            mistake.happen(pair).await.map_err(|error| error.context(format!("{mistake:?}")))?;
        }
    }
    Ok(())
}
