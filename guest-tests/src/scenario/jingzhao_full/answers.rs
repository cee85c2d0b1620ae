//! Compares the command statuses that devices return with the tables in the JingZhao interface.

use std::collections::{BTreeMap, BTreeSet};

use agent::wire::{CommandResult, EqId, OutParam, PollEq, RawCommand, RawCommands};
use anyhow::{Context as _, Result, ensure};

use super::expected::{self, Expected};
use super::spec::{Form, name_of, row_of};
use crate::report::line;
use crate::vm::Vm;

/// Identifies one form of a command.
pub(super) type Key = (u16, Form);

/// Statuses returned by one device. A form that is tried in several ways can have several statuses.
pub(super) type Answers = BTreeMap<Key, BTreeSet<u8>>;

/// Commands that are issued in sequence.
#[derive(Debug, Default)]
pub(super) struct Script(Vec<(Option<Form>, RawCommand)>);

impl Script {
    /// Adds a command whose status is recorded for `form`.
    pub(super) fn tries(&mut self, form: Form, command: RawCommand) {
        self.0.push((Some(form), command));
    }

    pub(super) fn good(&mut self, how: &'static str, command: RawCommand) {
        self.tries(Form::Good(how), command);
    }

    pub(super) fn bad(&mut self, what: &'static str, command: RawCommand) {
        self.tries(Form::Bad(what), command);
    }

    /// Adds a command that must succeed for later ones to work.
    pub(super) fn needs(&mut self, command: RawCommand) {
        self.0.push((None, command));
    }

    /// Issues all commands. If an event queue is given, each command requests a completion event.
    pub(super) async fn run(self, vm: &mut Vm, eq: Option<EqId>, answers: &mut Answers) -> Result<()> {
        let (forms, commands): (Vec<_>, Vec<_>) = self.0.into_iter().unzip();
        let results = match eq {
            Some(eq) => issue_with_events(vm, eq, commands.clone()).await?,
            None => issue(vm, commands.clone()).await?,
        };
        for ((form, command), result) in forms.into_iter().zip(&commands).zip(results) {
            match form {
                Some(form) => {
                    check_outbox(command, &result).with_context(|| format!("{command:x?}"))?;
                    answers.entry((command.op, form)).or_default().insert(result.status);
                }
                None => ensure!(result.status == 0, "status {:02x}h of {command:x?}", result.status),
            }
        }
        Ok(())
    }
}

/// Maximum number of commands per round trip to the guest.
const AT_ONCE: usize = 256;

/// Binary logarithm of the event queue's size. The queue has room for more than [`AT_ONCE`] events.
pub(super) const LOG_EVENTS: u8 = 9;

/// Issues commands with the E bit set. Each command, even a failed one, completes with one event that contains the
/// command's token and status (section 1.4 of the interface).
async fn issue_with_events(
    vm: &mut Vm,
    eq: EqId,
    mut commands: Vec<RawCommand>,
) -> Result<Vec<CommandResult>> {
    const COMMAND: u8 = 0x0a;
    let mut results = Vec::with_capacity(commands.len());
    for part in commands.chunks_mut(AT_ONCE) {
        (0x8000..).zip(part.iter_mut()).for_each(|(token, command)| command.event = Some(token));
        let answers = issue(vm, part.to_vec()).await?;
        // To detect a spurious event, request one more than expected.
        let count = u32::try_from(part.len() + 1)?;
        let events = vm.call(PollEq { eq, count, timeout_ms: 0 }).await?.eqes;
        ensure!(events.len() == part.len(), "{} events for {} commands", events.len(), part.len());
        for ((event, command), answer) in events.iter().zip(&*part).zip(&answers) {
            let seen = (event.event, event.subtype, event.number, event.detail);
            let token = command.event.unwrap_or_default();
            let expected = (COMMAND, 0, token.into(), u32::from(answer.status) << 24);
            ensure!(
                seen == expected,
                "type, subtype, token and status of {event:x?}, expected {expected:x?}"
            );
        }
        results.extend(answers);
    }
    Ok(results)
}

/// Issues commands, up to [`AT_ONCE`] of them per round trip.
pub(super) async fn issue(vm: &mut Vm, commands: Vec<RawCommand>) -> Result<Vec<CommandResult>> {
    let mut results = Vec::with_capacity(commands.len());
    for part in commands.chunks(AT_ONCE) {
        results.extend(vm.call(RawCommands { commands: part.to_vec() }).await?.results);
    }
    ensure!(results.len() == commands.len(), "{} results for {} commands", results.len(), commands.len());
    Ok(results)
}

/// Checks that a successful command fills its output mailbox exactly and that a rejected one leaves it unchanged
/// (section 2).
fn check_outbox(command: &RawCommand, result: &CommandResult) -> Result<()> {
    let expected = match (&command.output, row_of(command.op)) {
        (OutParam::Mailbox, Some(row)) if result.status == 0 => row.outbox.unwrap_or(0),
        _ => 0,
    };
    let written = result.outbox.len() as u64;
    ensure!(written == expected, "{written:#x} bytes in the output mailbox, expected {expected:#x}");
    Ok(())
}

/// Prints the table of results and checks that it matches the interface's table row for row.
pub(super) fn judge(devices: &[Answers; 2]) -> Result<()> {
    let expected: BTreeMap<Key, Expected> = expected::all().map(|row| ((row.op, row.form), row)).collect();
    print(devices, &expected)?;
    let wrong = differences(devices, &expected);
    ensure!(wrong.is_empty(), "{} rows differ:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// Describes each untested row, each tested form without a row, and each status that differs from its row.
fn differences(devices: &[Answers; 2], expected: &BTreeMap<Key, Expected>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, row) in expected {
        for (answers, status) in devices.iter().zip(row.status) {
            let what = format!("{:03X}h {}: {} (section {})", key.0, name_of(key.0), key.1, row.section);
            match answers.get(key) {
                None => wrong.push(format!("{what} was not tested")),
                Some(seen) if *seen != BTreeSet::from([status]) => {
                    wrong.push(format!("{what} returns {seen:02x?}, expected {status:02x}h"));
                }
                Some(_) => {}
            }
        }
    }
    let tried: BTreeSet<_> = devices.iter().flat_map(BTreeMap::keys).collect();
    for (op, form) in tried.into_iter().filter(|key| !expected.contains_key(key)) {
        wrong.push(format!("{op:03X}h {}: {form} was tested, but has no row", name_of(*op)));
    }
    wrong
}

/// Prints the forms of each opcode, grouped by the two devices' statuses.
fn print(devices: &[Answers; 2], expected: &BTreeMap<Key, Expected>) -> Result<()> {
    line("      commands of section 2: status by default, status with extended_status and mad_ifc, forms")?;
    let keys: BTreeSet<Key> = devices.iter().flat_map(BTreeMap::keys).copied().collect();
    let mut blocks: BTreeMap<u16, BTreeMap<Vec<String>, Vec<String>>> = BTreeMap::new();
    for key in keys {
        let statuses = devices.iter().map(|answers| match answers.get(&key) {
            Some(seen) => seen.iter().map(|status| format!("{status:02X}")).collect::<Vec<_>>().join("/"),
            None => "--".into(),
        });
        let section = expected.get(&key).map_or("?", |row| row.section);
        let forms = blocks.entry(key.0).or_default().entry(statuses.collect()).or_default();
        forms.push(format!("{} [{section}]", key.1));
    }
    for (op, block) in blocks {
        line(&format!("      {op:03X}h {}", name_of(op)))?;
        for (statuses, forms) in block {
            line(&format!("           {}  {}", statuses.join(" "), forms.join(", ")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = BTreeMap<Key, Expected>;

    /// Returns the whole table, and two devices' answers that match the table exactly.
    fn faithful() -> (Table, [Answers; 2]) {
        let table: Table = expected::all().map(|row| ((row.op, row.form), row)).collect();
        let device = |n: usize| {
            table.iter().map(|(key, row)| (*key, BTreeSet::from([row.status[n]]))).collect::<Answers>()
        };
        let devices = [device(0), device(1)];
        (table, devices)
    }

    #[test]
    fn expected_answers_list_each_command_form_once() {
        assert_eq!(expected::all().count(), faithful().0.len());
    }

    #[test]
    fn missing_row_or_untested_form_is_reported() {
        let (table, devices) = faithful();
        assert_eq!(differences(&devices, &table), Vec::<String>::new());
        let key = (0x016, Form::Bad("valid already"));
        let mut silent = devices.clone();
        silent[1].remove(&key);
        assert_eq!(
            differences(&silent, &table),
            ["016h SW2HW_CQ: valid already (section 3.11) was not tested"]
        );
        let mut short = table.clone();
        short.remove(&key);
        assert_eq!(
            differences(&devices, &short),
            ["016h SW2HW_CQ: valid already was tested, but has no row"]
        );
    }

    #[test]
    fn unlisted_status_is_reported_as_difference() {
        let (table, mut devices) = faithful();
        let seen = devices[0].get_mut(&(0x00d, Form::OpModifier)).unwrap();
        seen.insert(0);
        let expected = "00Dh SW2HW_MPT: op_modifier not listed (section 2 b) returns {00, 03}, expected 03h";
        assert_eq!(differences(&devices, &table), [expected]);
    }
}
