//! Checks that drivers can be restarted, with different tables and after a crash or a reset.

use agent::wire::{CloseHca, Hex, IcmOptions, InParam, MmioWrite, OpenHca, RawCommand, SendOp};
use anyhow::{Result, ensure};

use crate::report::Report;
use crate::scenario::connection::{Attributes, Connection};
use crate::scenario::pair::Pair;
use crate::scenario::transfer::{Plan, transfer};

/// Opcode of SW2HW_MPT, which fails with [`BAD_SYS_STATE`] before INIT_HCA.
const SW2HW_MPT: u16 = 0x00d;
const BAD_SYS_STATE: u8 = 0x04;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    for (offset, name) in [(0xf10, "the RTL's"), (0xf_0010, "the document's")] {
        let name = format!("{name} reset register clears all state");
        report.case(&name, hint, reset_register(pair, offset)).await?;
    }
    let driver = |options: OpenHca| (options.clone(), options);
    let crashed = driver(OpenHca::default());
    report.case("a new driver after a driver crash", hint, restarted(pair, crashed, true)).await?;
    let high = OpenHca {
        icm: IcmOptions { base: 0x10_0000_0000, scattered: false, ..IcmOptions::default() },
        ..OpenHca::default()
    };
    report.case("ICM tables at high addresses", hint, restarted(pair, driver(high), false)).await?;
    let small = OpenHca {
        icm: IcmOptions {
            log_qps: 4,
            log_cqs: 4,
            log_eqs: 0,
            log_mpts: 6,
            log_mtts: 12,
            ..IcmOptions::default()
        },
        ..OpenHca::default()
    };
    report.case("small ICM tables", hint, restarted(pair, driver(small), false)).await?;
    let huge = OpenHca { huge_pages: true, ..OpenHca::default() };
    report.case("huge pages behind the guest's IOMMU", hint, restarted(pair, driver(huge), false)).await
}

/// Checks that a write to the reset register resets the device while the guest keeps the function open (JingZhao
/// interface, section 1.5).
async fn reset_register(pair: &mut Pair, offset: u64) -> Result<()> {
    let connection = Connection::create(pair, &Attributes::default()).await?;
    transfer(pair, &connection, Plan::new(SendOp::Send, 1000)).await?;
    pair.a.vm.call(MmioWrite { offset, value: 1, ..MmioWrite::default() }).await?;
    let input = InParam::Mailbox(Hex(vec![0; 0x40]));
    let command = RawCommand { op: SW2HW_MPT, in_modifier: 1, input, ..RawCommand::default() };
    let status = pair.a.vm.call(command).await?.status;
    ensure!(status == BAD_SYS_STATE, "status {status:#04x} after a reset through {offset:#x}");
    restarted(pair, (OpenHca::default(), OpenHca::default()), true).await
}

/// Stops both drivers and starts them again. If `abrupt` is set, the drivers stop while all objects are still in use.
async fn restarted(pair: &mut Pair, (a, b): (OpenHca, OpenHca), abrupt: bool) -> Result<()> {
    pair.a.vm.call(CloseHca { abrupt }).await?;
    pair.b.vm.call(CloseHca { abrupt }).await?;
    tokio::try_join!(pair.a.reopen(a), pair.b.reopen(b))?;
    let connection = Connection::create(pair, &Attributes::default()).await?;
    for op in [SendOp::Send, SendOp::WriteImm, SendOp::Read] {
        transfer(pair, &connection, Plan::new(op, 50_000)).await?;
    }
    connection.destroy(pair).await
}
