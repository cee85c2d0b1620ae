//! Checks the documentation of `guest-lab`. Every documented command line must parse, and the table of scenarios must
//! be complete.

#![allow(clippy::unwrap_used, reason = "a panic is how these tests fail")]

use std::path::Path;

use clap::Parser as _;
use guest_tests::scenario;

use crate::Cli;

#[path = "../../device/tests/book/commands.rs"]
mod commands;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[test]
fn documented_command_lines_parse() {
    let printed = commands::of(Path::new(REPOSITORY), "guest-lab");
    for commands::Printed { place, words } in &printed {
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{place}: {words:?}\n{error}");
        }
    }
    assert!(printed.len() > 20, "found only {printed:?}");
}

#[test]
fn kubernetes_manifest_has_valid_command() {
    let path = Path::new(REPOSITORY).join("guest-tests/examples/kubernetes/lab.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, command) = text.split_once("command:\n").unwrap();
    let (command, _) = command.split_once("env:\n").unwrap();
    let words: Vec<String> = command
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- "))
        .map(|word| word.replace("$(RANK)", "0"))
        .collect();
    if let Err(error) = Cli::try_parse_from(&words) {
        panic!("{words:?}\n{error}");
    }
    let hosts = words.iter().find_map(|word| word.strip_prefix("--hosts=")).unwrap();
    assert!(text.contains(&format!("replicas: {}\n", hosts.split(',').count())), "{hosts}");
}

/// Rows of the table contain scenario names or patterns such as `jingzhao-*`. The page explains the `-full` suffix
/// above the table, so `-full` scenarios do not need rows.
#[test]
fn documented_table_lists_every_scenario() {
    let page = std::fs::read_to_string(Path::new(REPOSITORY).join("device/book/src/scenarios.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let patterns: Vec<&str> =
        rows.flat_map(|cell| cell.split(['`', ',', ' '])).filter(|name| !name.is_empty()).collect();
    let is_named = |name: &str| {
        patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *pattern == name,
        })
    };
    for scenario in scenario::ALL {
        let shorter = scenario.name.strip_suffix("-full").unwrap_or(scenario.name);
        assert!(is_named(scenario.name) || is_named(shorter), "the table has no row for {}", scenario.name);
    }
}
