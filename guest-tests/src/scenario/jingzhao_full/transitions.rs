//! All MODIFY_QP commands, issued for QPs of each service type in each state.
//!
//! # Spec
//! JingZhao interface, sections 10.1, 10.2 and 10.5.

use std::collections::BTreeMap;

use agent::wire::{CommandResult, RawCommand, Service};
use anyhow::{Context as _, Result, bail, ensure};

use super::answers::issue;
use super::commands::{on, query, with};
use super::device::TestQp;
use super::mailbox::Mailbox;
use super::section_10_2::State::{self, Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use super::section_10_2::{ROWS, STATES, listed, occurs};
use super::spec::name_of;
use super::spec::status::{BAD_PARAM, OK};
use crate::report::line;
use crate::vm::Vm;

/// Opcodes of the commands, in the order of section 2.
const OPS: [u16; 11] = [0x019, 0x02d, 0x01a, 0x01b, 0x01c, 0x01d, 0x01e, 0x01f, 0x038, 0x020, 0x021];

/// Returns the op_modifiers that a command accepts (section 2, J-36).
fn modifiers(op: u16) -> &'static [u8] {
    match op {
        0x01e | 0x021 => &[0, 2, 3],
        _ => &[0],
    }
}

/// The state in which a command is issued, its opcode, and its op_modifier.
type Key = (State, u16, u8);

/// The result of a command: its status, and the state code that QUERY_QP reports afterwards.
type Outcome = (u8, u8);

/// Tries every command in every state on a QP of one service type. Prints the table of results and fails unless the
/// device permits exactly the transitions of section 10.2.
pub(super) async fn run(vm: &mut Vm, service: Service) -> Result<()> {
    let qp = TestQp::create(vm, service).await?;
    let mut outcomes = BTreeMap::new();
    for from in STATES {
        if !occurs(service, from) {
            rc_never_enters_sqe(vm, &qp).await?;
        } else if from == Sqe {
            for (op, op_modifier) in attempts() {
                issue(vm, walk(&qp, Rts)).await?;
                qp.fail_a_send(vm).await?;
                let results = issue(vm, observed(&qp, op, op_modifier)).await?;
                outcomes.insert((from, op, op_modifier), outcome(from, &results)?);
            }
        } else {
            let scripts = attempts().map(|(op, op_modifier)| {
                let mut script = walk(&qp, from);
                script.extend(observed(&qp, op, op_modifier));
                script
            });
            let scripts: Vec<_> = scripts.collect();
            let mut results = issue(vm, scripts.concat()).await?.into_iter();
            for ((op, op_modifier), script) in attempts().zip(&scripts) {
                let results: Vec<_> = results.by_ref().take(script.len()).collect();
                let outcome = outcome(from, &results).with_context(|| format!("before {op:03X}h"))?;
                outcomes.insert((from, op, op_modifier), outcome);
            }
        }
    }
    print(service, &outcomes)?;
    let wrong = differences(service, &outcomes);
    ensure!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

fn attempts() -> impl Iterator<Item = (u16, u8)> {
    OPS.into_iter().flat_map(|op| modifiers(op).iter().map(move |&op_modifier| (op, op_modifier)))
}

/// Returns commands that move the QP from any state to `to`. For SQE, they end in RTS, and the caller must then make a
/// send fail.
pub(super) fn walk(qp: &TestQp, to: State) -> Vec<RawCommand> {
    walk_with(qp, to, |_| qp.image())
}

/// Like [`walk`], but each command has the mailbox that `mailbox` returns for its opcode.
pub(super) fn walk_with(qp: &TestQp, to: State, mailbox: impl Fn(u16) -> Mailbox) -> Vec<RawCommand> {
    const TO_RTS: [(u16, u8); 4] = [(0x021, 3), (0x019, 0), (0x01a, 0), (0x01b, 0)];
    let steps: &[(u16, u8)] = match to {
        Reset => &TO_RTS[..1],
        Init => &TO_RTS[..2],
        Rtr => &TO_RTS[..3],
        Rts | Sqe => &TO_RTS,
        Sqd => &[(0x021, 3), (0x019, 0), (0x01a, 0), (0x01b, 0), (0x01f, 0)],
        Err => &[(0x021, 3), (0x019, 0), (0x01a, 0), (0x01b, 0), (0x01e, 2)],
    };
    let command = |&(op, op_modifier)| match op_modifier {
        0 => with(op, qp.qp.qpn, &mailbox(op)),
        _ => RawCommand { op_modifier, ..on(op, qp.qp.qpn) },
    };
    steps.iter().map(command).collect()
}

/// Returns a command with a QUERY_QP before it and another after it.
fn observed(qp: &TestQp, op: u16, op_modifier: u8) -> Vec<RawCommand> {
    let query = query(0x022, qp.qp.qpn);
    vec![query.clone(), command(qp, op, op_modifier), query]
}

/// Returns a command that succeeds in every QP state where it is permitted.
fn command(qp: &TestQp, op: u16, op_modifier: u8) -> RawCommand {
    match op_modifier {
        0 => with(op, qp.qp.qpn, &qp.image()),
        _ => RawCommand { op_modifier, ..on(op, qp.qp.qpn) },
    }
}

/// Evaluates the last three results, which come from [`observed`]. Only the observed command may fail.
fn outcome(from: State, results: &[CommandResult]) -> Result<Outcome> {
    let [steps @ .., before, command, after] = results else { bail!("{} results", results.len()) };
    ensure!(steps.iter().all(|step| step.status == OK), "transitions to {from:?} failed: {steps:?}");
    expect_state(before, from)?;
    Ok((command.status, state(after)?))
}

/// Fails unless QUERY_QP reports the state `expected`.
pub(super) fn expect_state(query: &CommandResult, expected: State) -> Result<()> {
    let state = state(query)?;
    ensure!(state == expected as u8, "the QP is in state {state}, expected {expected:?}");
    Ok(())
}

/// Returns the state code in QUERY_QP's output mailbox. For a QP in RESET, the mailbox is all zero (section 3.13).
fn state(query: &CommandResult) -> Result<u8> {
    ensure!(query.status == OK && query.outbox.len() == 0xc0, "QUERY_QP: {query:?}");
    let state = query.outbox[8] >> 4;
    ensure!(state != 0 || query.outbox.iter().all(|&byte| byte == 0), "RESET: {}", query.outbox);
    Ok(state)
}

/// Checks that an RC QP enters ERR on an error that would move a QP of another type to SQE (section 10.1).
async fn rc_never_enters_sqe(vm: &mut Vm, qp: &TestQp) -> Result<()> {
    issue(vm, walk(qp, Rts)).await?;
    qp.fail_a_send(vm).await?;
    let results = issue(vm, vec![query(0x022, qp.qp.qpn)]).await?;
    expect_state(results.first().context("no reply")?, Err).context("after a failed send")
}

/// Describes each missing attempt, each result that contradicts section 10.2, and each row of section 10.2 that was not
/// observed.
fn differences(service: Service, outcomes: &BTreeMap<Key, Outcome>) -> Vec<String> {
    let mut wrong = Vec::new();
    let states = || STATES.into_iter().filter(|&from| occurs(service, from));
    for (from, (op, op_modifier)) in states().flat_map(|from| attempts().map(move |try_| (from, try_))) {
        let what = format!("{from:?}: {op:03X}h {}, op_modifier {op_modifier}", name_of(op));
        let expected = match listed(service, from, op) {
            Some(to) => (OK, to as u8),
            None => (BAD_PARAM, from as u8),
        };
        match outcomes.get(&(from, op, op_modifier)) {
            None => wrong.push(format!("{what} was not tested")),
            Some(seen) if *seen != expected => {
                wrong.push(format!("{what}: status and state are {seen:x?}, expected {expected:x?}"));
            }
            Some(_) => {}
        }
    }
    for row in ROWS.iter().filter(|row| row.types.contains(&service)) {
        if !states().any(|from| row.from.contains(&from)) {
            wrong.push(format!(
                "{:?} -> {:?} by {:03X}h has no start state that occurs with {service:?}",
                row.from, row.to, row.op
            ));
        }
        for from in states().filter(|from| row.from.contains(from)) {
            let shown = outcomes.iter().any(|(&(state, op, _), &outcome)| {
                (state, op, outcome) == (from, row.op, (OK, row.to as u8))
            });
            if !shown {
                wrong.push(format!("{from:?} -> {:?} by {:03X}h was not observed", row.to, row.op));
            }
        }
    }
    wrong
}

/// Prints a table with one column per command and one row per source state. A cell contains the target state or, if the
/// command was rejected without changing the state, the status.
fn print(service: Service, outcomes: &BTreeMap<Key, Outcome>) -> Result<()> {
    let ops: String = OPS.iter().map(|op| format!("  {op:02X}h ")).collect();
    line(&format!("      {:5}  {ops}", super::service_name(service)))?;
    for from in STATES {
        let cells: String = OPS.iter().map(|&op| format!(" {:5}", cell(from, op, outcomes))).collect();
        line(&format!("      {:5}  {cells}", format!("{from:?}").to_uppercase()))?;
    }
    Ok(())
}

fn cell(from: State, op: u16, outcomes: &BTreeMap<Key, Outcome>) -> String {
    let mut seen: Vec<String> = modifiers(op)
        .iter()
        .map(|&op_modifier| match outcomes.get(&(from, op, op_modifier)) {
            None => "-".into(),
            Some((OK, code)) => STATES
                .into_iter()
                .find(|state| *state as u8 == *code)
                .map_or(format!("?{code}"), |state| format!("{state:?}").to_uppercase()),
            Some((status, code)) if *code == from as u8 => format!("{status:02X}"),
            Some((status, code)) => format!("{status:02X}?{code}"),
        })
        .collect();
    seen.dedup();
    seen.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::section_10_2::{RC, UC, UD};
    use super::*;

    /// Returns the results of a device that follows section 10.2.
    fn faithful(service: Service) -> BTreeMap<Key, Outcome> {
        let states = STATES.into_iter().filter(|&from| occurs(service, from));
        let tries = states.flat_map(|from| attempts().map(move |(op, op_modifier)| (from, op, op_modifier)));
        tries
            .map(|(from, op, op_modifier)| {
                let refused = (BAD_PARAM, from as u8);
                let outcome = listed(service, from, op).map_or(refused, |to| (OK, to as u8));
                ((from, op, op_modifier), outcome)
            })
            .collect()
    }

    #[test]
    fn transitions_differing_from_table_are_reported() {
        for service in [RC, UC, UD] {
            let outcomes = faithful(service);
            assert_eq!(outcomes.len(), 7 * 15 - if service == RC { 15 } else { 0 });
            assert_eq!(differences(service, &outcomes), Vec::<String>::new());
        }
        let mut more = faithful(UC);
        more.insert((Rtr, 0x01d, 0), (OK, Rts as u8));
        assert_eq!(
            differences(UC, &more),
            ["Rtr: 01Dh SQERR2RTS_QPEE, op_modifier 0: status and state are (0, 3), expected (3, 2)"]
        );
        let mut less = faithful(UC);
        less.insert((Sqe, 0x01d, 0), (BAD_PARAM, Sqe as u8));
        assert_eq!(
            differences(UC, &less),
            [
                "Sqe: 01Dh SQERR2RTS_QPEE, op_modifier 0: status and state are (3, 4), expected (0, 3)",
                "Sqe -> Rts by 01Dh was not observed"
            ]
        );
    }

    #[test]
    fn missing_attempt_is_reported_as_not_tested() {
        let mut outcomes = faithful(UD);
        outcomes.remove(&(Err, 0x021, 2));
        assert_eq!(differences(UD, &outcomes), ["Err: 021h ERR2RST_QPEE, op_modifier 2 was not tested"]);
    }

    #[test]
    fn rejection_with_state_change_is_reported() {
        let mut outcomes = faithful(RC);
        outcomes.insert((Sqd, 0x019, 0), (BAD_PARAM, Init as u8));
        assert_eq!(differences(RC, &outcomes).len(), 1);
    }
}
