//! Checks that invalid commands return the specified status and that the device keeps working.

use agent::wire::{Hex, InParam, OpenHca, OutParam, RawCommand, SendOp};
use anyhow::{Context, Result, ensure};

use crate::report::Report;
use crate::scenario::connection::{Attributes, Connection};
use crate::scenario::pair::{Node, Pair};
use crate::scenario::transfer::{Plan, transfer};

/// Opcodes (JingZhao interface, section 2).
mod op {
    pub(super) const QUERY_DEV_LIM: u16 = 0x003;
    pub(super) const QUERY_ADAPTER: u16 = 0x006;
    pub(super) const INIT_HCA: u16 = 0x007;
    pub(super) const SW2HW_MPT: u16 = 0x00d;
    pub(super) const HW2SW_MPT: u16 = 0x00f;
    pub(super) const WRITE_MTT: u16 = 0x011;
    pub(super) const SW2HW_CQ: u16 = 0x016;
    pub(super) const HW2SW_CQ: u16 = 0x017;
    pub(super) const RST2INIT: u16 = 0x019;
    pub(super) const QUERY_QP: u16 = 0x022;
    pub(super) const NOP: u16 = 0x031;
    pub(super) const UNKNOWN: u16 = 0x055;
    pub(super) const UNMAP_ICM: u16 = 0xff9;
    pub(super) const MAP_ICM: u16 = 0xffa;
}

/// Statuses (JingZhao interface, section 1.4).
mod status {
    pub(super) const OK: u8 = 0x00;
    pub(super) const INTERNAL_ERR: u8 = 0x01;
    pub(super) const BAD_OP: u8 = 0x02;
    pub(super) const BAD_PARAM: u8 = 0x03;
    pub(super) const BAD_SYS_STATE: u8 = 0x04;
}

/// An address that has no mapping in the guest's IOMMU.
const UNMAPPED: u64 = 0x7fff_ffff_f000;

struct BadCommand {
    what: &'static str,
    command: RawCommand,
    status: u8,
}

/// Returns commands that an initialised device must reject.
fn bad_commands() -> Vec<BadCommand> {
    let bad = |what, command, status| BadCommand { what, command, status };
    let of = |op| RawCommand { op, ..RawCommand::default() };
    let zeros = || InParam::Mailbox(Hex(vec![0; 0xc0]));
    vec![
        bad("unknown opcode", of(op::UNKNOWN), status::BAD_OP),
        bad(
            "QUERY_DEV_LIM with op_modifier 1",
            RawCommand { op_modifier: 1, output: OutParam::Mailbox, ..of(op::QUERY_DEV_LIM) },
            status::BAD_PARAM,
        ),
        bad(
            "MAP_ICM with op_modifier 3",
            RawCommand { op_modifier: 3, in_modifier: 1, input: zeros(), ..of(op::MAP_ICM) },
            status::BAD_PARAM,
        ),
        bad(
            "UNMAP_ICM with op_modifier 0",
            RawCommand { in_modifier: 1, input: InParam::Immediate(0x1000), ..of(op::UNMAP_ICM) },
            status::BAD_PARAM,
        ),
        bad("QUERY_ADAPTER without an output mailbox", of(op::QUERY_ADAPTER), status::BAD_PARAM),
        bad("INIT_HCA without an input mailbox", of(op::INIT_HCA), status::BAD_PARAM),
        bad(
            "output mailbox at an unmapped address",
            RawCommand { output: OutParam::Immediate(UNMAPPED), ..of(op::QUERY_DEV_LIM) },
            status::INTERNAL_ERR,
        ),
        bad(
            "input mailbox at an unmapped address",
            RawCommand { in_modifier: 1, input: InParam::Immediate(UNMAPPED), ..of(op::SW2HW_MPT) },
            status::INTERNAL_ERR,
        ),
        bad(
            "mailbox that extends beyond the address space",
            RawCommand { input: InParam::Immediate(u64::MAX - 0x1f), ..of(op::INIT_HCA) },
            status::INTERNAL_ERR,
        ),
        bad(
            "SW2HW_MPT with an index beyond the table",
            RawCommand { in_modifier: u32::MAX, input: zeros(), ..of(op::SW2HW_MPT) },
            status::BAD_PARAM,
        ),
        bad(
            "HW2SW_MPT with an index beyond the table",
            RawCommand { in_modifier: u32::MAX, ..of(op::HW2SW_MPT) },
            status::BAD_PARAM,
        ),
        bad(
            "SW2HW_CQ with a number of more than 24 bits",
            RawCommand { in_modifier: 0x0100_0000, input: zeros(), ..of(op::SW2HW_CQ) },
            status::BAD_PARAM,
        ),
        bad(
            "HW2SW_CQ of an unknown CQ",
            RawCommand { in_modifier: 0x3ff, ..of(op::HW2SW_CQ) },
            status::BAD_PARAM,
        ),
        bad(
            "RST2INIT with a number of more than 24 bits",
            RawCommand { in_modifier: 0x0100_0000, input: zeros(), ..of(op::RST2INIT) },
            status::BAD_PARAM,
        ),
        bad(
            "WRITE_MTT with zero entries",
            RawCommand { input: zeros(), ..of(op::WRITE_MTT) },
            status::BAD_PARAM,
        ),
        bad(
            "MAP_ICM with zero entries",
            RawCommand { op_modifier: 1, input: zeros(), ..of(op::MAP_ICM) },
            status::BAD_PARAM,
        ),
        bad(
            "MAP_ICM of zero pages",
            RawCommand { op_modifier: 1, in_modifier: 1, input: zeros(), ..of(op::MAP_ICM) },
            status::BAD_PARAM,
        ),
        bad(
            "UNMAP_ICM of zero pages",
            RawCommand { op_modifier: 1, input: InParam::Immediate(0x1000), ..of(op::UNMAP_ICM) },
            status::BAD_PARAM,
        ),
    ]
}

/// Returns valid commands that are rejected before INIT_HCA.
fn early_commands() -> Vec<BadCommand> {
    let mailbox = || InParam::Mailbox(Hex(vec![0; 0xc0]));
    let early = |what, command| BadCommand { what, command, status: status::BAD_SYS_STATE };
    let with_inbox = |op| RawCommand { op, input: mailbox(), in_modifier: 1, ..RawCommand::default() };
    vec![
        early("MAP_ICM", RawCommand { op_modifier: 1, ..with_inbox(op::MAP_ICM) }),
        early("SW2HW_MPT", with_inbox(op::SW2HW_MPT)),
        early("WRITE_MTT", with_inbox(op::WRITE_MTT)),
        early("SW2HW_CQ", with_inbox(op::SW2HW_CQ)),
        early("RST2INIT", with_inbox(op::RST2INIT)),
        early(
            "QUERY_QP",
            RawCommand {
                op: op::QUERY_QP,
                in_modifier: 1,
                output: OutParam::Mailbox,
                ..RawCommand::default()
            },
        ),
    ]
}

/// Runs one case per invalid command, and one for commands before INIT_HCA.
pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    for bad in bad_commands() {
        report.case(&format!("command: {}", bad.what), hint, refused_and_alive(pair, &bad)).await?;
    }
    report.case("commands before INIT_HCA", hint, before_init(pair)).await
}

/// Checks that a command is rejected with the expected status and that commands and traffic still work afterwards.
async fn refused_and_alive(pair: &mut Pair, bad: &BadCommand) -> Result<()> {
    refused(&mut pair.a, bad).await?;
    let connection = Connection::create(pair, &Attributes::default()).await.context("afterwards")?;
    transfer(pair, &connection, Plan::new(SendOp::Send, 256)).await.context("afterwards")?;
    connection.destroy(pair).await
}

async fn before_init(pair: &mut Pair) -> Result<()> {
    pair.a.close().await?;
    pair.a.reopen(OpenHca { without_init: true, ..OpenHca::default() }).await?;
    for bad in early_commands() {
        refused(&mut pair.a, &bad).await?;
    }
    pair.a.close().await?;
    pair.a.reopen(OpenHca::default()).await?;
    let connection = Connection::create(pair, &Attributes::default()).await.context("after INIT_HCA")?;
    transfer(pair, &connection, Plan::new(SendOp::Send, 256)).await.context("after INIT_HCA")?;
    connection.destroy(pair).await
}

async fn refused(node: &mut Node, bad: &BadCommand) -> Result<()> {
    let result = node.vm.call(bad.command.clone()).await?;
    ensure!(
        result.status == bad.status,
        "{}: status is {:02x}h, expected {:02x}h (word {:08x}h)",
        bad.what,
        result.status,
        bad.status,
        result.word
    );
    let nop = node.vm.call(RawCommand { op: op::NOP, in_modifier: 0x1f, ..RawCommand::default() }).await?;
    ensure!(nop.status == status::OK, "NOP after {}: status {:02x}h", bad.what, nop.status);
    Ok(())
}
