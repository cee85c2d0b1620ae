//! Exchanges messages between an arm64 guest and an x86-64 guest, and compares every byte at both ends.

use anyhow::{Context as _, Result};

use crate::daemon::HcaSpec;
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::endpoint::stock::Stock;
use crate::scenario::mixed_fabric::{E810_CELLS, Talk};
use crate::scenario::nic::roce;
use crate::scenario::nic::station::strict_card;
use crate::scenario::rxe_interop::ip;
use crate::testbed::kind::Device;

/// Exchanges the messages in `E810_CELLS` between a ConnectX in the arm64 guest and an E810 in the x86-64 guest.
pub(super) async fn run(arm: &Lab, other: &Lab, report: &mut Report) -> Result<()> {
    let run = arm.new_run("arm64-interop")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let [a, b] = HcaSpec::pair()?;
    let (a, b) = (strict_card(Device::Connectx, arm, a), strict_card(Device::E810, other, b));
    let started = tokio::try_join!(
        roce::guest(Device::Connectx, arm, &run, &a, ip(a.id)),
        roce::guest(Device::E810, other, &run, &b, ip(b.id)),
    );
    let ((vm_a, device_a, daemon_a), (vm_b, device_b, daemon_b)) = started.context(hint.clone())?;
    let mut a = Stock::open("arm64", vm_a, device_a, ip(a.id)).await.context(hint.clone())?;
    let mut b = Stock::open("other", vm_b, device_b, ip(b.id)).await.context(hint.clone())?;
    for (number, &(service, cells)) in (1..).zip(E810_CELLS) {
        let title = format!("{service:?} between arm64 and {}", other.kernel().arch);
        let talk = Talk { service, cells, seed: number << 48 };
        report.case(&title, &hint, talk.run(&mut a, &mut b)).await?;
    }
    let stop = async {
        a.vm.kill().await?;
        b.vm.kill().await?;
        daemon_a.stop().await?;
        daemon_b.stop().await
    };
    report.case("the daemons exit cleanly on SIGTERM", &hint, stop).await
}
