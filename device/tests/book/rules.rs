//! The reference of strict rules.

use std::fmt::Write as _;

use device::frontend::{e810, jingzhao, mthca};
use device::telemetry::monitor::Rule;

use crate::markdown::cell;

const HEAD: &str = "# Strict rules

<!-- Made by `HCAD_UPDATE_BOOK=1 cargo test -p device --test book` from the tables of the rules. -->

What a device with [`\"strict\": true`](configuration.md#devices) reports of its driver, though it tolerates it: a line of the
log, a `violation` in the trace and a counter, all with the rule's name, and the log and the trace with the section of the
interface. A rule is what a driver does when it is broken.
";

pub(crate) fn page() -> String {
    let mut page = HEAD.to_owned();
    table(&mut page, "mthca", mthca::strict::rules::ALL);
    table(&mut page, "E810", e810::strict::rules::ALL);
    table(&mut page, "JingZhao", jingzhao::strict::rules::ALL);
    page
}

fn table(page: &mut String, interface: &str, rules: &[&Rule]) {
    let file = interface.to_lowercase();
    let _ = write!(
        page,
        "\n## {interface}\n\nSections are those of [the {interface} interface](../interfaces/{file}.md).\n\n\
         | rule | section | |\n| --- | --- | --- |\n"
    );
    for Rule { name, section, about } in rules {
        let _ = writeln!(page, "| `{name}` | {section} | {} |", cell(about));
    }
}
