//! A ConnectX driven through vfio-pci by the lab's own driver, without `mlx5_core`. The cases are those of
//! `vfio_pci_driver_test` in Linux's selftests: copies, accesses to unmapped memory, interrupts and restarts. Another
//! case exercises the queue pairs that `fabric-bench` uses to measure two ConnectX cards.

use std::time::Duration;

use agent::wire::{
    BindVfio, CloseMlx5, ConnectMlx5Qps, CopyByWrite, CreateMlx5Qps, DeviceSelector, Mlx5Copied, Mlx5Info,
    OpenMlx5, SendOverMlx5, SendToSelfMlx5, VerifyMlx5,
};
use anyhow::{Context as _, Result, ensure};

use super::super::pair::{Node, VFIO_MODULES};
use crate::daemon::{Daemon, Explained, HcaSpec, Interface};
use crate::lab::Lab;
use crate::report::Report;

const CONNECTX: DeviceSelector = DeviceSelector::Ids { vendor: 0x15b3, device: 0x1017 };
/// Size in MiB of the memory used for copies.
const DATA_MIB: u32 = 16;
/// Bus address that is not mapped for the device.
const UNMAPPED: u64 = 0x7f_0000_0000;
/// Number of interrupts to request one after another.
const INTERRUPTS: u64 = 100;
/// Timeout for the slowest step on a busy host.
const LIMIT: Duration = Duration::from_secs(300);

/// Syndromes of error completions (mlx5 interface, section 9.4).
mod syndrome {
    pub(super) const LOCAL_PROTECTION: u8 = 0x04;
    pub(super) const FLUSHED: u8 = 0x05;
}

/// Violations that strict mode may report without failing the scenario.
const EXPLAINED: &[Explained] =
    &[Explained { rule: "wqe_key", why: "the driver reads memory that is not mapped, on purpose" }];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("connectx-vfio")?;
    let hint = format!("console output and logs are in {}", run.path().display());
    let [spec, _] = HcaSpec::pair()?;
    let spec = HcaSpec { interface: Interface::ConnectxIb, strict: true, explained: EXPLAINED, ..spec };
    let daemon = Daemon::start(&lab.hcad()?, &spec, &run).await?;
    let image = lab.image(&run, VFIO_MODULES)?;
    let mut station =
        Station::boot(Node::boot(lab, &run, &image, "a", daemon).await?, !lab.has_no_guests()).await?;
    report.case("the driver starts the device", &hint, station.open()).await?;
    report.case("copies of 1 byte to 8 MiB arrive", &hint, station.copies()).await?;
    report.case("reading memory that is not mapped fails", &hint, station.unmapped_source()).await?;
    report.case("writing memory that is not mapped fails", &hint, station.unmapped_destination()).await?;
    report.case("each requested interrupt arrives", &hint, station.interrupts()).await?;
    report.case("2,048 WRITEs are executed in order", &hint, station.storm()).await?;
    report.case("messages on sixteen queue pairs arrive", &hint, station.many_queue_pairs()).await?;
    report.case("the device is stopped and started again", &hint, station.restarts(false)).await?;
    report
        .case("the device works after it was closed without being stopped", &hint, station.restarts(true))
        .await?;
    report.case("strict mode reports nothing", &hint, station.stop()).await
}

/// A guest with a ConnectX that is bound to vfio-pci.
struct Station {
    node: Node,
    device: DeviceSelector,
    info: Option<Mlx5Info>,
    seed: u64,
}

impl Station {
    async fn boot(mut node: Node, in_guest: bool) -> Result<Self> {
        let device = if in_guest {
            node.vm.call(BindVfio { device: CONNECTX }).await?;
            CONNECTX
        } else {
            DeviceSelector::Socket(node.daemon.socket().display().to_string())
        };
        Ok(Self { node, device, info: None, seed: 0 })
    }

    async fn open(&mut self) -> Result<()> {
        let step = OpenMlx5 { device: self.device.clone(), data_mib: DATA_MIB, ..OpenMlx5::default() };
        let info = self.node.vm.call_within(LIMIT, step).await?;
        ensure!((info.firmware.as_str(), info.lid) == ("16.35.3006", 1), "{info:?}");
        self.info = Some(info);
        Ok(())
    }

    /// Copies from the first half of the memory to the second, unless `change` sets other parameters.
    async fn copy(&mut self, change: impl FnOnce(&mut CopyByWrite)) -> Result<Mlx5Copied> {
        let info = self.info.as_ref().context("the device is not open")?;
        self.seed += 1;
        let mut step = CopyByWrite {
            from: info.data_iova,
            to: info.data_iova + info.data_len / 2,
            len: 4096,
            parts: 1,
            seed: self.seed,
            interrupt: false,
        };
        change(&mut step);
        self.node.vm.call_within(LIMIT, step).await
    }

    async fn arrives(&mut self, change: impl FnOnce(&mut CopyByWrite)) -> Result<()> {
        let copied = self.copy(change).await?;
        ensure!(copied.syndrome == 0 && copied.first_difference.is_none(), "{copied:?}");
        Ok(())
    }

    async fn copies(&mut self) -> Result<()> {
        for len in [1, 2, 3, 4, 63, 64, 65, 4095, 4096, 4097, 65_537, 1 << 20, 8 << 20] {
            // Misalign source and destination, unless the copy fills all memory.
            let shift = if len < 8 << 20 { 5 } else { 0 };
            self.arrives(|step| {
                step.len = len;
                step.from += shift;
                step.to += 3 * shift;
            })
            .await
            .with_context(|| format!("{len} bytes"))?;
        }
        Ok(())
    }

    async fn unmapped_source(&mut self) -> Result<()> {
        let copied = self.copy(|step| step.from = UNMAPPED).await?;
        ensure!(copied.syndrome == syndrome::LOCAL_PROTECTION, "{copied:x?}");
        self.arrives(|_| ()).await
    }

    async fn unmapped_destination(&mut self) -> Result<()> {
        let copied = self.copy(|step| step.to = UNMAPPED).await?;
        // The queue pair is connected to itself. As the responder, it enters the error state before it receives its own
        // NAK as the requester. The request is therefore flushed.
        ensure!(copied.syndrome == syndrome::FLUSHED, "{copied:x?}");
        self.arrives(|_| ()).await
    }

    async fn interrupts(&mut self) -> Result<()> {
        for n in 0..INTERRUPTS {
            let copied = self.copy(|step| step.interrupt = true).await?;
            let expected = Mlx5Copied { syndrome: 0, first_difference: None, interrupts: 1 };
            ensure!(copied == expected, "copy {n}: {copied:?}");
        }
        Ok(())
    }

    async fn storm(&mut self) -> Result<()> {
        self.arrives(|step| (step.len, step.parts) = (8 << 20, 2048)).await
    }

    /// Sends on several queue pairs at once. Each is connected to itself, because there is no second function, and has a
    /// destination of its own.
    async fn many_queue_pairs(&mut self) -> Result<()> {
        const QPS: u32 = 16;
        const DEPTH: u32 = 128;
        // The destinations of all queue pairs fill the second half of the memory.
        const STRIDE: u32 = (DATA_MIB << 20) / 2 / QPS;
        let lid = self.info.as_ref().context("the device is not open")?.lid;
        let created = self.node.vm.call(CreateMlx5Qps { count: QPS, depth: DEPTH }).await?;
        self.node.vm.call(ConnectMlx5Qps { lid, qpns: created.qpns }).await?;
        let remote = Some(created.destination);
        // The first run wraps around each send queue several times.
        for (len, count) in [(64, 1000), (4097, 200), (STRIDE, 8)] {
            self.seed += 1;
            let send = SendOverMlx5 {
                qps: QPS,
                count,
                len,
                depth: DEPTH,
                batch: DEPTH / 2,
                remote,
                remote_stride: STRIDE,
                seed: self.seed,
            };
            self.node.vm.call_within(LIMIT, send).await?;
            for qp in 0..QPS {
                self.verify(qp * STRIDE, len).await.with_context(|| format!("WRITEs on queue pair {qp}"))?;
            }
        }
        // The receive queues wrap around as well.
        for len in [64, 4097] {
            for _ in 0..5 {
                self.seed += 1;
                let send = SendToSelfMlx5 { qps: QPS, count: DEPTH, len, stride: STRIDE, seed: self.seed };
                self.node.vm.call_within(LIMIT, send).await?;
                for qp in 0..QPS {
                    self.verify(qp * STRIDE, len)
                        .await
                        .with_context(|| format!("SENDs on queue pair {qp}"))?;
                }
            }
        }
        Ok(())
    }

    /// Checks a message at offset `off` in the second half of the memory.
    async fn verify(&mut self, off: u32, len: u32) -> Result<()> {
        let verified = self.node.vm.call(VerifyMlx5 { off, len, seed: self.seed }).await?;
        ensure!(verified.first_difference.is_none(), "{len} bytes: {verified:?}");
        Ok(())
    }

    async fn restarts(&mut self, abrupt: bool) -> Result<()> {
        for _ in 0..5 {
            self.node.vm.call_within(LIMIT, CloseMlx5 { abrupt }).await?;
            self.open().await?;
            self.arrives(|step| step.interrupt = true).await?;
        }
        Ok(())
    }

    /// Stops the guest and the daemon. Fails if the daemon has reported a violation.
    async fn stop(mut self) -> Result<()> {
        self.node.vm.call_within(LIMIT, CloseMlx5::default()).await?;
        self.node.vm.kill().await?;
        self.node.daemon.stop().await
    }
}
