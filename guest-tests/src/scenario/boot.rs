//! The lab without anything to test: kernel, initramfs, agent, modules.

use agent::wire::Info;
use anyhow::{Result, ensure};

use super::pair::VFIO_MODULES;
use crate::lab::{Guest, Lab};
use crate::report::{Report, line};

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("boot")?;
    let image = lab.image(&run, VFIO_MODULES)?;
    let hint = format!("consoles and command lines: {}", run.path().display());
    let boot = async |name: &str| {
        let mut vm = lab.boot(&run, &image, Guest { name, ..Guest::default() }).await?;
        let info = vm.call(Info {}).await?;
        ensure!(info.cmdline.contains("intel_iommu=on"), "kernel command line: {}", info.cmdline);
        line(&format!(
            "      guest {name}: {} answered after {:.1} s",
            info.kernel,
            vm.boot_time().as_secs_f64()
        ))
    };
    report.case("one guest", &hint, boot("alone")).await?;
    report
        .case("two guests at once", &hint, async {
            tokio::try_join!(boot("left"), boot("right"))?;
            Ok(())
        })
        .await
}
