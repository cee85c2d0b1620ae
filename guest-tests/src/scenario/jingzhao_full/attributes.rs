//! Every attribute of every transition, given alone as software that goes by the mask gives it: QUERY_QP has it, and
//! nothing else has changed.
//!
//! # Spec
//! JingZhao interface, sections 10.2, 10.3 (J-28) and 10.7.

use agent::wire::{CommandResult, RawCommand, Service};
use anyhow::{Context as _, Result, bail, ensure};

use super::answers::issue;
use super::commands::{query, with};
use super::device::TestQp;
use super::mailbox::Mailbox;
use super::section_10_2::State::Sqe;
use super::section_10_2::{Attribute, ROWS, Row};
use super::spec::name_of;
use super::transitions::{expect_state, walk};
use crate::vm::Vm;

/// Offsets of the live fields (section 10.3): 24 bits each.
const NEXT_SEND_PSN: usize = 0x6c;
const LAST_ACKED_PSN: usize = 0x7c;
const NEXT_RECV_PSN: usize = 0x84;
const PSN: u32 = 0xff_ffff;

/// Gives a QP of this type each attribute at each of its transitions.
pub(super) async fn run(vm: &mut Vm, service: Service) -> Result<()> {
    let qp = TestQp::create(vm, service).await?;
    for row in ROWS.iter().filter(|row| row.types.contains(&service)) {
        for attribute in row.req.iter().chain(row.opt) {
            given(vm, &qp, row, attribute)
                .await
                .with_context(|| format!("{} of {:03X}h {}", attribute.name, row.op, name_of(row.op)))?;
        }
    }
    Ok(())
}

async fn given(vm: &mut Vm, qp: &TestQp, row: &Row, attribute: &Attribute) -> Result<()> {
    let [from] = row.from else { bail!("a row with attributes starts from one state") };
    issue(vm, walk(qp, *from)).await?;
    if *from == Sqe {
        qp.fail_a_send(vm).await?;
    }
    let query = query(0x022, qp.qp.qpn);
    let commands = vec![query.clone(), command(qp, row, attribute), query];
    let results = issue(vm, commands).await?;
    let [before, command, after] = results.as_slice() else { bail!("{} results", results.len()) };
    ensure!(command.status == 0, "status {:02x}h", command.status);
    expect_state(before, *from)?;
    expect_state(after, row.to)?;
    let differences: Vec<_> = (0x0c..0xc0)
        .step_by(4)
        .map(|at| (at, word(after, at), expected(row, attribute, at, word(before, at))))
        .filter(|(_, seen, expected)| seen != expected)
        .map(|(at, seen, expected)| format!("{at:02X}h is {seen:08x}h, not {expected:08x}h"))
        .collect();
    ensure!(differences.is_empty(), "{}", differences.join("; "));
    Ok(())
}

/// Zeros but for the attribute; the service type is needed once.
fn command(qp: &TestQp, row: &Row, attribute: &Attribute) -> RawCommand {
    let mailbox = Mailbox::new(0xc0).word(0x00, 1 << attribute.bit).byte(0x09, qp.service_code());
    let mailbox = attribute.fields.iter().fold(mailbox, |mailbox, &(at, _, value)| mailbox.word(at, value));
    with(row.op, qp.qp.qpn, &mailbox)
}

/// A word of QUERY_QP after the command that was `before`.
fn expected(row: &Row, attribute: &Attribute, at: usize, before: u32) -> u32 {
    let given = |at| attribute.fields.iter().find(|(offset, ..)| *offset == at);
    let live = match (at, row.op) {
        (NEXT_RECV_PSN, 0x019 | 0x02d | 0x01a) => Some(NEXT_RECV_PSN),
        (NEXT_SEND_PSN | LAST_ACKED_PSN, 0x019 | 0x02d | 0x01a | 0x01b) => Some(NEXT_SEND_PSN),
        _ => None,
    };
    let before = match live {
        Some(source) => before & !PSN | given(source).map_or(0, |&(_, _, value)| value & PSN),
        None => before,
    };
    given(at).map_or(before, |&(_, bits, value)| before & !bits | value)
}

fn word(query: &CommandResult, at: usize) -> u32 {
    let bytes = query.outbox.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}
