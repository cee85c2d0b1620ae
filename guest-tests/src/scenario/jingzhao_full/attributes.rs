//! Checks which attributes each transition changes, starting from a context in which all attributes are set. Also
//! checks that QUERY_QP returns the values in use.
//!
//! # Spec
//! JingZhao interface, sections 10.2, 10.3 (J-28), 10.4, 10.6 and 10.7.

use agent::wire::{CommandResult, RawCommand, Service};
use anyhow::{Context as _, Result, bail, ensure};

use super::answers::issue;
use super::commands::{query, with};
use super::device::TestQp;
use super::mailbox::Mailbox;
use super::section_10_2::State::{self, Rtr, Rts, Sqd, Sqe};
use super::section_10_2::{
    ATTRIBUTES, Attribute, MIN_RNR_TIMER, PATH_MTU, PORT, RC, ROWS, RQ_PSN, Row, SQ_PSN, has, required_mask,
};
use super::spec::name_of;
use super::transitions::{expect_state, walk, walk_with};
use crate::vm::Vm;

const QUERY_QP: u16 = 0x022;
const RST2INIT: u16 = 0x019;
const INIT2INIT: u16 = 0x02d;
const INIT2RTR: u16 = 0x01a;
const RTR2RTS: u16 = 0x01b;

/// Offsets of the 24-bit fields that the device updates (section 10.3).
const NEXT_SEND_PSN: usize = 0x6c;
const LAST_ACKED_PSN: usize = 0x7c;
const NEXT_RECV_PSN: usize = 0x84;
const PSN: u32 = 0xff_ffff;

/// All defined bits of opt_param_mask.
const ALL_BITS: u32 = (1 << 21) - 1;

/// One attempt to execute a transition's command.
struct Attempt {
    what: String,
    mailbox: Mailbox,
}

/// For each row of [`ROWS`] with a single start state, attempts the transition several times on a QP of type `service`.
/// The attempts differ in their opt_param_mask, which selects one attribute, none, or all attributes that the row does
/// not accept.
pub(super) async fn run(vm: &mut Vm, service: Service) -> Result<()> {
    let qp = TestQp::create(vm, service).await?;
    for row in ROWS.iter().filter(|row| row.types.contains(&service)) {
        let [from] = row.from else { continue };
        let attempts = attempts(&qp, row);
        let scripts: Vec<_> = attempts.iter().map(|attempt| script(&qp, row, *from, attempt)).collect();
        let mut results = Vec::new();
        if *from == Sqe {
            for script in &scripts {
                let (to_rts, observed) = script.split_at(script.len() - 3);
                results.extend(issue(vm, to_rts.to_vec()).await?);
                qp.fail_a_send(vm).await?;
                results.extend(issue(vm, observed.to_vec()).await?);
            }
        } else {
            results = issue(vm, scripts.concat()).await?;
        }
        let mut results = results.into_iter();
        for (attempt, script) in attempts.iter().zip(&scripts) {
            let results: Vec<_> = results.by_ref().take(script.len()).collect();
            judge(service, row, *from, attempt, &results)
                .with_context(|| format!("{:03X}h {}: {}", row.op, name_of(row.op), attempt.what))?;
        }
    }
    Ok(())
}

fn attempts(qp: &TestQp, row: &Row) -> Vec<Attempt> {
    let blank = || Mailbox::new(0xc0).byte(0x09, qp.service_code());
    let others = || ATTRIBUTES.iter().fold(qp.image(), give);
    let mut attempts = Vec::new();
    let mut attempt = |what: String, mask: u32, mailbox: Mailbox| {
        attempts.push(Attempt { what, mailbox: mailbox.word(0x00, mask) });
    };
    for attribute in row.req.iter().chain(row.opt) {
        let (name, bit) = (attribute.name, 1 << attribute.bit);
        attempt(format!("{name} selected, zeros in other fields"), bit, give(blank(), attribute));
        attempt(format!("{name} selected, values in all fields"), bit, others());
        // Zero is neither a valid port nor a valid MTU.
        if ![PORT.bit, PATH_MTU.bit].contains(&attribute.bit) {
            attempt(format!("{name} selected, with value zero"), bit, blank());
        }
    }
    let taken = row.req.iter().chain(row.opt).fold(0, |mask, attribute| mask | 1 << attribute.bit);
    attempt("no attribute selected".to_owned(), 0, others());
    attempt("all attributes selected that the row does not accept".to_owned(), ALL_BITS & !taken, others());
    attempts
}

fn give(mailbox: Mailbox, attribute: &Attribute) -> Mailbox {
    attribute.fields.iter().fold(mailbox, |mailbox, at| mailbox.field(at.offset, at.bits, at.given))
}

/// Returns the context as it is before each attempt.
fn held(qp: &TestQp) -> Mailbox {
    let fields = ATTRIBUTES.iter().flat_map(|attribute| attribute.fields);
    fields.fold(qp.image(), |mailbox, at| mailbox.field(at.offset, at.bits, at.held))
}

/// Returns the commands for an attempt: commands that move the QP to state `from` and set only the required attributes,
/// then a query, the attempt itself, and another query.
fn script(qp: &TestQp, row: &Row, from: State, attempt: &Attempt) -> Vec<RawCommand> {
    let query = query(QUERY_QP, qp.qp.qpn);
    let mut script = walk_with(qp, from, |op| held(qp).word(0x00, required_mask(qp.service, op)));
    script.extend([query.clone(), with(row.op, qp.qp.qpn, &attempt.mailbox), query]);
    script
}

fn judge(
    service: Service,
    row: &Row,
    from: State,
    attempt: &Attempt,
    results: &[CommandResult],
) -> Result<()> {
    let [steps @ .., before, command, after] = results else { bail!("{} results", results.len()) };
    ensure!(steps.iter().all(|step| step.status == 0), "transitions to {from:?} failed: {steps:?}");
    ensure!(command.status == 0, "status {:02x}h", command.status);
    expect_state(before, from)?;
    expect_state(after, row.to)?;
    compare(after, |at| expected(service, row, &attempt.mailbox, at, word(before, at)))
}

/// Checks all words that follow the state word in QUERY_QP's output.
fn compare(query: &CommandResult, expected: impl Fn(usize) -> u32) -> Result<()> {
    let differences: Vec<_> = (0x0c..0xc0)
        .step_by(4)
        .map(|at| (at, word(query, at), expected(at)))
        .filter(|(_, seen, expected)| seen != expected)
        .map(|(at, seen, expected)| format!("{at:02X}h is {seen:08x}h, expected {expected:08x}h"))
        .collect();
    ensure!(differences.is_empty(), "{}", differences.join("; "));
    Ok(())
}

/// Returns the word expected from QUERY_QP after the command. `before` is its previous value.
fn expected(service: Service, row: &Row, mailbox: &Mailbox, at: usize, before: u32) -> u32 {
    let live = match (at, row.op) {
        (NEXT_RECV_PSN, RST2INIT | INIT2INIT | INIT2RTR) => Some(NEXT_RECV_PSN),
        (NEXT_SEND_PSN | LAST_ACKED_PSN, RST2INIT | INIT2INIT | INIT2RTR | RTR2RTS) => Some(NEXT_SEND_PSN),
        _ => None,
    };
    let before = match (row.op, live) {
        (RST2INIT, Some(source)) => mailbox.get(at) & !PSN | mailbox.get(source) & PSN,
        (RST2INIT, None) => mailbox.get(at),
        (_, Some(source)) => before & !PSN | mailbox.get(source) & PSN,
        (_, None) => before,
    };
    let begins = matches!(row.op, INIT2INIT | INIT2RTR);
    let taken = |attribute: &Attribute| {
        let named = mailbox.get(0x00) >> attribute.bit & 1 != 0 && row.takes(attribute);
        let given = attribute.fields.iter().any(|field| mailbox.get(field.offset) & field.bits != 0);
        named || given && (row.requires(attribute) || begins && !has(service, attribute))
    };
    ATTRIBUTES
        .iter()
        .filter(|attribute| ![RQ_PSN.bit, SQ_PSN.bit].contains(&attribute.bit) && taken(attribute))
        .flat_map(|attribute| attribute.fields)
        .filter(|field| field.offset == at)
        .fold(before, |word, field| word & !field.bits | mailbox.get(at) & field.bits)
}

/// Checks a QP's default RNR retry count, ACK timeout and retry count, which apply unless software sets them (section
/// 10.6).
pub(super) async fn defaults(vm: &mut Vm, service: Service) -> Result<()> {
    /// The defaults are unlimited RNR retries, an ACK timeout of 67.1 ms, and 7 retries. The first two values are in
    /// the upper bits of their bytes, and the last is in bits 18:16 of its word.
    const IN_FORCE: [(usize, u32); 3] = [(0x20, 7 << 29), (0x24, 14 << 27), (0x68, 7 << 16)];
    let qp = TestQp::create(vm, service).await?;
    for (state, begun) in [(Rtr, false), (Rts, true), (Sqd, true)] {
        let mut script = walk(&qp, state);
        script.push(query(QUERY_QP, qp.qp.qpn));
        let results = issue(vm, script).await?;
        let after = results.last().context("no reply")?;
        expect_state(after, state)?;
        for (at, value) in IN_FORCE {
            let expected = if begun && service == RC { value } else { 0 };
            let seen = word(after, at);
            ensure!(seen == expected, "{at:02X}h is {seen:08x}h in {state:?}, expected {expected:08x}h");
        }
    }
    Ok(())
}

/// Checks the public driver's opt_param_mask, in which bit 11 stands for the port and bit 6 stands for the RNR timer
/// (section 10.4). The driver sends the whole context with every command and always sets the retry counts and the
/// timeout to zero.
pub(super) async fn drivers_mask(vm: &mut Vm) -> Result<()> {
    const PORT_NUM: u32 = 1 << 11;
    const RNR_TIMEOUT: u32 = 1 << 6;
    let qp = TestQp::create(vm, RC).await?;
    let mask = |op| match op {
        RST2INIT => PORT_NUM,
        INIT2RTR => RNR_TIMEOUT,
        _ => 0,
    };
    let zeros = || qp.image().field(0x84, !0, 0);
    for (from, op) in [(Sqd, 0x038), (Sqd, 0x020), (Rts, 0x01c)] {
        for (given, timer) in [
            (PORT_NUM, false),
            (RNR_TIMEOUT, true),
            (PORT_NUM | RNR_TIMEOUT, true),
            // In the driver's numbering: the alternate path, a second RNR retry count, the scheduling queue, and an
            // undefined bit.
            (1 << 0 | 1 << 13 | 1 << 16 | 1 << 20, false),
        ] {
            let mut script = walk_with(&qp, from, |op| held(&qp).word(0x00, mask(op)));
            let query = query(QUERY_QP, qp.qp.qpn);
            script.extend([query.clone(), with(op, qp.qp.qpn, &zeros().word(0x00, given)), query]);
            let results = issue(vm, script).await?;
            let [steps @ .., before, command, after] = results.as_slice() else { bail!("no results") };
            ensure!(steps.iter().all(|step| step.status == 0), "transitions to {from:?} failed: {steps:?}");
            ensure!(command.status == 0, "status {:02x}h", command.status);
            let expected = |at| {
                let timer_bits = MIN_RNR_TIMER.fields.iter().find(|field| timer && field.offset == at);
                word(before, at) & !timer_bits.map_or(0, |field| field.bits)
            };
            compare(after, expected).with_context(|| format!("{op:03X}h with mask {given:#x}"))?;
        }
    }
    Ok(())
}

fn word(query: &CommandResult, at: usize) -> u32 {
    let bytes = query.outbox.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}
