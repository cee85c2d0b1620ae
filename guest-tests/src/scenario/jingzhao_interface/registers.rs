//! Checks registers, and contexts in the guest memory that the driver maps for the device. Section numbers refer to the
//! JingZhao interface.

use agent::wire::{
    ContextTable, HcrBase, Hex, MmioRead, MmioWidth, MmioWrite, OutParam, RawCommand, ReadContext, Region,
    SendOp,
};
use anyhow::{Context, Result, ensure};

use crate::report::Report;
use crate::scenario::connection::{Attributes, Connection};
use crate::scenario::pair::{Direction, Pair};
use crate::scenario::transfer::{Plan, transfer};
use crate::vm::Vm;

const QUERY_DEV_LIM: u16 = 0x003;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    report.case("both HCR locations access the same registers", hint, both_locations(&mut pair.a.vm)).await?;
    report.case("widths of register accesses", hint, widths(&mut pair.a.vm)).await?;
    report.case("read-only registers", hint, read_only(&mut pair.a.vm)).await?;
    report.case("contexts in guest memory reflect the state of their QP", hint, contexts(pair)).await
}

async fn both_locations(vm: &mut Vm) -> Result<()> {
    let mut outboxes = Vec::new();
    for hcr in [HcrBase::Zero, HcrBase::Document] {
        let query = RawCommand {
            op: QUERY_DEV_LIM,
            output: OutParam::Mailbox,
            hcr: Some(hcr),
            ..RawCommand::default()
        };
        let answer = vm.call(query).await?;
        ensure!(answer.status == 0, "{hcr:?}: {answer:?}");
        outboxes.push(answer.outbox);
    }
    // The values recommended in section 14.2.
    let recommended = "0100000000000000000e0010101005110f00000000080000010000400040004000500011000c0000\
                       001002000010020000000100000000000000000000000000";
    ensure!(outboxes.iter().all(|outbox| outbox.to_string() == recommended), "{outboxes:?}");
    Ok(())
}

/// Checks that writes narrower than 32 bits are ignored, that a 64-bit write acts as two 32-bit writes, and that reads
/// of any width work (section 1.3).
async fn widths(vm: &mut Vm) -> Result<()> {
    use MmioWidth::{Byte, Double, Half, Word};
    write(vm, 0x08, Word, 0x1122_3344).await?;
    write(vm, 0x0c, Word, 0x5566_7788).await?;
    for (offset, width, expected) in [
        (0x08, Word, 0x1122_3344),
        (0x8_0008, Word, 0x1122_3344),
        (0x08, Byte, 0x44),
        (0x0b, Byte, 0x11),
        (0x0a, Half, 0x1122),
        (0x08, Double, 0x5566_7788_1122_3344),
    ] {
        expect(vm, Region::Bar0, offset, width, expected).await?;
    }
    write(vm, 0x08, Half, 0).await?;
    write(vm, 0x08, Byte, 0).await?;
    expect(vm, Region::Bar0, 0x08, Word, 0x1122_3344).await?;
    write(vm, 0x8_0008, Double, 0x0a0b_0c0d_0102_0304).await?;
    expect(vm, Region::Bar0, 0x08, Double, 0x0a0b_0c0d_0102_0304).await?;
    // Writing a control word without the go bit does not start a command: afterwards, the status and the go bit must
    // read as 0.
    write(vm, 0x18, Word, 0x055).await?;
    let control = vm.call(MmioRead { offset: 0x18, ..MmioRead::default() }).await?.value;
    ensure!(control & 0xff80_8000 == 0, "control word {control:#x}");
    Ok(())
}

/// Checks registers that cannot be written (sections 1.1, 1.5 and 1.6).
async fn read_only(vm: &mut Vm) -> Result<()> {
    for (region, offset, expected) in [
        // In this order: init_done, both reset registers, ranges without registers, and the doorbells.
        (Region::Bar0, 0xf20, 1),
        (Region::Bar0, 0xf10, 0),
        (Region::Bar0, 0xf_0010, 0),
        (Region::Bar0, 0x1000, 0),
        (Region::Bar0, 0x5400, 0),
        (Region::Bar0, 0xf_fffc, 0),
        (Region::Bar2, 0x0, 0),
        (Region::Bar2, 0x7f_fffc, 0),
    ] {
        let value = if offset == 0xf10 || offset == 0xf_0010 { 0xffff_fffe } else { u64::MAX };
        if region == Region::Bar0 {
            vm.call(MmioWrite { region, offset, width: MmioWidth::Word, value }).await?;
        }
        expect(vm, region, offset, MmioWidth::Word, expected).await?;
    }
    Ok(())
}

/// Checks that the device writes back the state and the PSNs, but leaves all other fields as software wrote them
/// (section 4.3). Also checks that a context is cleared when its object is destroyed (section 3.11).
async fn contexts(pair: &mut Pair) -> Result<()> {
    let attributes = Attributes { psn: [5, 7], ..Attributes::default() };
    let connection = Connection::create(pair, &attributes).await?;
    // Each message consists of three packets.
    transfer(pair, &connection, Plan { count: 2, ..Plan::new(SendOp::Send, 9000) }).await?;
    let (at_a, at_b) = connection.towards(Direction::AToB);
    let sender = at_a.query(&mut pair.a.vm).await?;
    ensure!((sender.state, sender.next_send_psn, sender.unacked_psn) == (3, 11, 11), "sender {sender:?}");
    let receiver = at_b.query(&mut pair.b.vm).await?;
    ensure!((receiver.state, receiver.expected_psn) == (3, 11), "receiver {receiver:?}");
    for (vm, end, answer) in [(&mut pair.a.vm, at_a, &sender), (&mut pair.b.vm, at_b, &receiver)] {
        let context = read(vm, ContextTable::Qpc, end.qp.qpn).await?;
        // Compare everything from the end of opt_param_mask, which exists only in commands, to the last defined byte.
        let part = |bytes: &Hex| bytes.get(4..0xa4).map(<[u8]>::to_vec);
        ensure!(
            part(&context).is_some() && part(&context) == part(&answer.raw),
            "context in memory {context}\nQUERY_QP {}",
            answer.raw
        );
    }
    let cqc = read(&mut pair.a.vm, ContextTable::Cqc, at_a.cq.cqn).await?;
    ensure!(cqc.get(0x18..0x1c) == Some(&at_a.cq.lkey.to_be_bytes()), "CQC in memory {cqc}");
    let region = read(&mut pair.a.vm, ContextTable::Mpt, at_a.qp.sq_lkey).await?;
    ensure!(region.get(0x08..0x0c) == Some(&at_a.qp.sq_lkey.to_be_bytes()), "MPT in memory {region}");

    let (cqn, key) = (at_a.cq.cqn, at_a.qp.sq_lkey);
    connection.destroy(pair).await?;
    for (table, index, len) in [(ContextTable::Cqc, cqn, 56), (ContextTable::Mpt, key, 64)] {
        let bytes = read(&mut pair.a.vm, table, index).await?;
        let cleared = bytes.get(..len).context("the context is too short")?.iter().all(|&byte| byte == 0);
        ensure!(cleared, "{table:?} of a destroyed object: {bytes}");
    }
    Ok(())
}

async fn read(vm: &mut Vm, table: ContextTable, index: u32) -> Result<Hex> {
    Ok(vm.call(ReadContext { table, index }).await?.bytes)
}

async fn write(vm: &mut Vm, offset: u64, width: MmioWidth, value: u64) -> Result<()> {
    vm.call(MmioWrite { region: Region::Bar0, offset, width, value }).await.map(drop)
}

async fn expect(vm: &mut Vm, region: Region, offset: u64, width: MmioWidth, expected: u64) -> Result<()> {
    let value = vm.call(MmioRead { region, offset, width }).await?.value;
    ensure!(value == expected, "{region:?}+{offset:#x} {width:?} reads {value:#x}, expected {expected:#x}");
    Ok(())
}
