//! The reference of strict rules.

use std::fmt::Write as _;

use device::frontend::{e810, jingzhao, mthca};
use device::telemetry::monitor::Rule;

use crate::markdown::cell;

const HEAD: &str = "# Strict rules

<!-- Made by `HCAD_UPDATE_BOOK=1 cargo test -p device --test book` from the tables of the rules. -->

The violations that a device in [strict mode](../strict.md) reports. Each row describes what a driver does when it breaks the
rule. The rule's name is in the log line, in the `violation` of the trace and in the counter. Log and trace also have the section
of the interface.
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
        "\n## {interface}\n\nSections refer to [the {interface} interface](../interfaces/{file}.md).\n\n\
         | rule | section | |\n| --- | --- | --- |\n"
    );
    for Rule { name, section, about } in rules {
        let _ = writeln!(page, "| `{name}` | {section} | {} |", cell(about));
    }
}
