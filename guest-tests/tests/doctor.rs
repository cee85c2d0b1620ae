//! Runs `guest-lab` itself. The tests work on any machine.

#![allow(clippy::unwrap_used, reason = "a panic is how these tests fail")]

use std::process::{Command, Output};

fn guest_lab(arguments: &[&str], programs: &std::path::Path) -> Output {
    let cache = programs.join("cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_guest-lab"));
    command.args(arguments).env("HCAD_PROGRAMS", programs).env("HCAD_LAB_CACHE", cache);
    command.output().unwrap()
}

/// Runs the checks without hcad and with an empty cache. Guests cannot boot like this on any machine.
#[test]
fn doctor_reports_missing_hcad_and_qemu() {
    let folder = tempfile::tempdir().unwrap();
    let output = guest_lab(&["doctor", "--offline"], folder.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let (checks, conclusion) = text.split_once("\n\n").unwrap();
    for line in checks.lines() {
        assert!(
            ["ok ", "limited ", "missing ", "skipped "].iter().any(|state| line.starts_with(state)),
            "{line}"
        );
    }
    for (state, name) in [("missing", "hcad"), ("missing", "QEMU"), ("limited", "hcactl")] {
        let beginning = format!("{state:8} {name} ");
        assert!(checks.lines().any(|line| line.starts_with(&beginning)), "{beginning}: {text}");
    }
    assert!(conclusion.starts_with("Guests cannot be booted"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn doctor_prints_json() {
    let folder = tempfile::tempdir().unwrap();
    let output = guest_lab(&["doctor", "--offline", "--json"], folder.path());
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checks.as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == "hcad" && check["state"] == "missing"), "{checks:#?}");
    assert!(
        checks.iter().all(|check| check["state"] == "ok"
            || check["state"] == "skipped"
            || check["remedy"].is_string()),
        "{checks:#?}"
    );
}

#[test]
fn running_without_arguments_prints_grouped_help() {
    let folder = tempfile::tempdir().unwrap();
    let output = guest_lab(&[], folder.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for part in ["\nGuests:\n", "\nScenarios:\n", "\nMachine:\n", "\nExamples:\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
}
