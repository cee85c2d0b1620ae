//! Interrupt masks (JingZhao interface, section 8.5). An event is written immediately even if its interrupt is masked;
//! the interrupt follows when the mask is lifted.

use agent::wire::{
    CreateEq, DeviceSelector, DisableInterrupts, EnableInterrupts, Mask, MaskInterrupts, OpenHca,
    PendingInterrupts,
};
use anyhow::{Result, ensure};

use super::VECTORS;
use super::commands::nop;
use super::watch::{Watch, kind};
use crate::daemon::{Daemon, HcaSpec};
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::driver::{Driver, Guestless};
use crate::scenario::pair::Pair;

const VECTOR: u16 = 17;
const OTHER: u16 = 18;

pub(super) async fn run(pair: &mut Pair, lab: &Lab, report: &mut Report, hint: &str) -> Result<()> {
    let vm = &mut pair.a.vm;
    report.case("function mask: pending, and delivered when unmasked", hint, function_mask(vm)).await?;
    report.case("mask of a table entry: delivered when unmasked", hint, masked_entry(vm)).await?;
    report.case("MSI-X disabled: no interrupt is sent later", hint, disabled(vm)).await?;
    report.case("unknown vector: no interrupt", hint, no_such_vector(vm)).await?;

    let [spec, _] = HcaSpec::pair()?;
    let daemon =
        Daemon::start(&lab.hcad()?, &HcaSpec { name: "guestless".into(), ..spec }, pair.run()).await?;
    let mut driver = Guestless::default();
    let device = DeviceSelector::Socket(daemon.socket().display().to_string());
    driver.call(OpenHca { device, ..OpenHca::default() }).await?;
    driver.call(EnableInterrupts { vectors: VECTORS }).await?;
    let driver = &mut driver;
    report.case("without a guest: function mask", hint, function_mask(driver)).await?;
    report.case("without a guest: mask of a table entry", hint, masked_entry(driver)).await?;
    report.case("without a guest: mask of the VMM", hint, vmm_mask(driver)).await?;
    report.case("without a guest: MSI-X disabled", hint, disabled(driver)).await?;
    report.case("without a guest: unknown vector", hint, no_such_vector(driver)).await
}

/// Checks that an interrupt masked by the function mask stays pending in the device and is shown in the device's
/// pending bits (section 8.5).
async fn function_mask(driver: &mut impl Driver) -> Result<()> {
    held_back(driver, Mask::Function, true).await
}

/// Checks interrupts that the guest masks in its MSI-X table. Since the VMM emulates that table, they are not pending
/// in the device.
async fn masked_entry(driver: &mut impl Driver) -> Result<()> {
    held_back(driver, Mask::Entry(VECTOR), false).await?;
    others_go_on(driver, Mask::Entry(VECTOR)).await
}

async fn vmm_mask(driver: &mut impl Driver) -> Result<()> {
    held_back(driver, Mask::Vmm(VECTOR), true).await?;
    others_go_on(driver, Mask::Vmm(VECTOR)).await
}

/// Checks that several events raised while the interrupt is masked trigger a single interrupt when the mask is lifted.
/// If `shown` is set, also checks that the device's pending bits show the interrupt.
async fn held_back(driver: &mut impl Driver, mask: Mask, shown: bool) -> Result<()> {
    let eq = Watch::create(driver, VECTOR, &[kind::COMMAND]).await?;
    driver.call(MaskInterrupts { mask, masked: true }).await?;
    let events = [nop(driver, 1).await?, nop(driver, 2).await?];
    eq.expect_no_interrupt(driver).await?;
    eq.expect_entries(driver, &events).await?;
    if shown {
        let pending = driver.call(PendingInterrupts {}).await?.bits;
        ensure!(pending == 1 << VECTOR, "pending bits {pending:#x}");
    }
    driver.call(MaskInterrupts { mask, masked: false }).await?;
    eq.expect_interrupt(driver).await?;
    let pending = driver.call(PendingInterrupts {}).await?.bits;
    ensure!(pending == 0, "pending bits {pending:#x} after the interrupt");

    // Check that no interrupt is still pending: the next event must raise exactly one interrupt, and masking and
    // unmasking must raise none.
    let event = nop(driver, 3).await?;
    eq.expect(driver, event).await?;
    for masked in [true, false] {
        driver.call(MaskInterrupts { mask, masked }).await?;
    }
    eq.expect_no_interrupt(driver).await?;
    eq.destroy(driver).await
}

/// Checks that masking one vector does not affect other vectors.
async fn others_go_on(driver: &mut impl Driver, mask: Mask) -> Result<()> {
    let eq = Watch::create(driver, OTHER, &[kind::COMMAND]).await?;
    driver.call(MaskInterrupts { mask, masked: true }).await?;
    let event = nop(driver, 1).await?;
    eq.expect(driver, event).await?;
    driver.call(MaskInterrupts { mask, masked: false }).await?;
    eq.destroy(driver).await
}

/// Checks that, while MSI-X is disabled, events are written but interrupts do not become pending (section 8.5).
async fn disabled(driver: &mut impl Driver) -> Result<()> {
    let eq = Watch::create(driver, VECTOR, &[kind::COMMAND]).await?;
    driver.call(DisableInterrupts {}).await?;
    let event = nop(driver, 1).await?;
    let pending = driver.call(PendingInterrupts {}).await?.bits;
    ensure!(pending == 0, "pending bits {pending:#x} without MSI-X");
    driver.call(EnableInterrupts { vectors: VECTORS }).await?;
    eq.expect_no_interrupt(driver).await?;
    eq.expect_entries(driver, &[event]).await?;
    let event = nop(driver, 2).await?;
    eq.expect(driver, event).await?;
    eq.destroy(driver).await
}

async fn no_such_vector(driver: &mut impl Driver) -> Result<()> {
    let shape = CreateEq { vector: VECTORS, ..CreateEq::default() };
    let eq = Watch { vector: 0, ..Watch::create_as(driver, shape, &[kind::COMMAND]).await? };
    let event = nop(driver, 1).await?;
    eq.expect_silently(driver, event).await?;
    eq.destroy(driver).await
}
