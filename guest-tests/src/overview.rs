//! The help text of `guest-lab`: its commands, listed in groups, followed by examples.

use std::fmt::Write as _;

use clap::CommandFactory as _;

use crate::Cli;

/// All commands, in the order of the help text.
const GROUPS: &[(&str, &[&str])] = &[
    ("Guests", &["up", "exec", "shell", "hcactl", "cp", "ps", "logs", "down", "ci", "here", "node"]),
    ("Drivers", &["build", "reload"]),
    ("Scenarios", &["list", "run"]),
    ("Machine", &["doctor", "demo", "fetch", "root", "qemu"]),
];

const EXAMPLES: &str = "\
Examples:
  guest-lab doctor                              check whether guests can be booted
  guest-lab up --name lab --share .:/t          boot two guests with this directory at /t
  guest-lab exec lab:a -- ibv_devinfo           run a command in guest a
  guest-lab hcactl lab:a qps                    list the queue pairs of the device of guest a
  guest-lab down lab                            stop both guests
  guest-lab ci connectx -- ./test.sh            run a script in two new guests
  guest-lab here connectx -- ./hello            run a program of this machine in a new guest
  guest-lab node ucx -- ./test.sh               as a Slurm task, run a script in one new guest per task
  guest-lab run mthca-probe                     run one of the project's own tests";

/// Returns the command line parser, whose help text lists the commands in groups.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let groups = groups(&command);
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}\nOptions:\n{{options}}\n\n{EXAMPLES}\n\n\
         'guest-lab help COMMAND' describes a command and its options.\n\
         See also device/book/src/lab.md.\n"
    );
    command.override_usage("guest-lab COMMAND [ARGUMENTS]").help_template(template)
}

/// Returns the groups as text. Each command has one line, which contains the first sentence of its help.
fn groups(command: &clap::Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        writeln!(text, "{heading}:").expect("writing to a String cannot fail");
        for name in *names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            writeln!(text, "  {name:8} {about}").expect("writing to a String cannot fail");
        }
        text.push('\n');
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser as _;

    use super::*;

    #[test]
    fn help_groups_list_every_visible_command_exactly_once() {
        let command = Cli::command();
        let visible: BTreeSet<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), visible);
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), visible.len());
    }

    #[test]
    fn help_lists_all_commands_within_110_columns() {
        let help = command().render_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
        for (heading, names) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{heading}: {help}");
            for name in *names {
                assert!(help.lines().any(|line| line.starts_with(&format!("  {name:8} "))), "{name}: {help}");
            }
        }
    }

    #[test]
    fn examples_in_help_parse() {
        let examples = EXAMPLES.lines().skip(1);
        for line in examples {
            let (command, _) = line.trim().split_once("  ").unwrap();
            let words: Vec<&str> = command.split(' ').collect();
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}\n{error}"));
        }
    }
}
