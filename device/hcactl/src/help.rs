//! Builds the `hcactl --help` text: grouped commands and examples.

use clap::{Command, CommandFactory as _};

use super::Cli;

/// Commands grouped by subject. Clap can group options, but not commands.
const GROUPS: &[(&str, &[&str])] = &[
    ("Devices", &["devices", "device", "reload"]),
    ("Diagnostics", &["explain", "counters", "top", "capture", "trace", "record"]),
    ("RDMA objects", &["qps", "cqs", "eqs", "mrs", "icm", "ahs", "groups", "cqp", "list"]),
    ("NIC objects", &["queues", "link", "vsis", "rules", "scheduler"]),
    ("Fabric and fault injection", &["peer", "impair", "port", "fail"]),
    ("Help", &["help"]),
];

const EXAMPLES: &[(&str, &str)] = &[
    ("hcactl devices", "list all devices"),
    ("hcactl qps --device 1", "list the queue pairs of device 1"),
    ("hcactl explain qp 0x12", "explain why a queue pair makes no progress"),
    ("hcactl top", "monitor rates and errors"),
    ("hcactl trace on", "write a trace to standard error of hcad"),
    ("hcactl impair add rx --probability 0.01 drop", "drop 1% of the received frames"),
];

/// Width of the command name column.
const NAMES: usize = 11;

/// Returns `hcactl`'s clap command, with help text that lists the commands in groups.
pub(crate) fn command() -> Command {
    let mut command = Cli::command();
    // `build` adds the `help` command.
    command.build();
    let styles = command.get_styles();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        template += &format!("\n{header}{title}:{header:#}\n");
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            template += &format!("  {literal}{name:NAMES$}{literal:#}{about}\n");
        }
    }
    template += &format!("\n{header}Options:{header:#}\n{{options}}\n\n{header}Examples:{header:#}\n");
    for (example, purpose) in EXAMPLES {
        template += &format!("  {literal}{example:46}{literal:#}{purpose}\n");
    }
    Cli::command().help_template(template)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn every_visible_command_is_in_one_help_group() {
        let mut command = Cli::command();
        command.build();
        let mut names: Vec<_> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, names);
    }

    #[test]
    fn examples_parse_and_help_fits_100_columns() {
        for (example, _) in EXAMPLES {
            let parsed = Cli::try_parse_from(example.split(' '));
            assert!(parsed.is_ok(), "{example}: {parsed:?}");
        }
        let help = command().render_help().to_string();
        let long: Vec<_> = help.lines().filter(|line| line.len() > 100).collect();
        assert!(long.is_empty(), "{long:?}");
        assert!(help.contains("\nRDMA objects:\n  qps        List queue pairs"), "{help}");
        assert!(!help.contains('{'), "{help}");
    }
}
