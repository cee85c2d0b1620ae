//! Checks that the examples in the documentation work: command lines must parse, and configurations must load.

use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use device::cli::Cli;
use device::config::Config;
use serde_json::{Value, json};

use super::commands::{blocks, of, pages};
use super::{REPOSITORY, commands};
use crate::common::hcactl_program;

/// Path of a socket that no daemon listens on.
const NO_DAEMON: &str = "/nonexistent/control.sock";

/// Configuration keys at the same level as `devices`.
const TOP_LEVEL: [&str; 6] =
    ["log", "control_socket", "metrics", "socket_mode", "socket_group", "confinement"];

#[test]
fn hcad_commands_in_book_parse() {
    let printed = of(Path::new(REPOSITORY), "hcad");
    for commands::Printed { place, words } in &printed {
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{place}: {words:?}\n{error}");
        }
    }
    assert!(printed.len() > 5, "found only {printed:?}");
}

/// For a valid command line, `hcactl` exits with status 1, because it cannot connect to a daemon. For an invalid one,
/// it would exit with status 2 before trying to connect.
#[test]
fn hcactl_commands_in_book_parse() {
    let printed = of(Path::new(REPOSITORY), "hcactl");
    for commands::Printed { place, words } in &printed {
        let mut arguments = words[1..].to_vec();
        match arguments.iter().position(|word| word == "--socket") {
            Some(at) => NO_DAEMON.clone_into(&mut arguments[at + 1]),
            None => arguments.extend(["--socket".to_owned(), NO_DAEMON.to_owned()]),
        }
        let output = Command::new(hcactl_program()).args(&arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{place}: {words:?}\n{error}");
        assert!(error.contains(NO_DAEMON), "{place}: {words:?}\n{error}");
    }
    assert!(printed.len() > 20, "found only {printed:?}");
}

/// Returns the configuration in a code block, completed if the block shows only part of it.
fn whole(block: &str) -> Value {
    let part: Value = serde_json::from_str(block)
        .or_else(|_| serde_json::from_str(&format!("{{{block}}}")))
        .unwrap_or_else(|error| panic!("{error}: {block}"));
    let part = part.as_object().unwrap();
    let merge = |mut base: Value| {
        base.as_object_mut().unwrap().extend(part.clone());
        base
    };
    let device = json!({ "id": 1, "frontend": { "mthca": {} }, "fabric": { "local": {} } });
    match part {
        _ if part.contains_key("devices") => Value::Object(part.clone()),
        _ if part.keys().all(|key| TOP_LEVEL.contains(&key.as_str())) => {
            merge(json!({ "devices": [device] }))
        }
        _ => json!({ "devices": [merge(device)] }),
    }
}

/// Removes `socket_group` settings, because the groups might not exist on this host.
fn without_groups(mut config: Value) -> Value {
    config.as_object_mut().unwrap().remove("socket_group");
    for device in config["devices"].as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("socket_group");
    }
    config
}

#[test]
fn config_examples_in_book_are_valid() {
    let mut count = 0;
    for path in pages(Path::new(REPOSITORY)) {
        let text = std::fs::read_to_string(&path).unwrap();
        for (line, language, block) in blocks(&text) {
            if language == "json" {
                let config = without_groups(whole(&block)).to_string();
                if let Err(error) = Config::from_text(&config, &path) {
                    panic!("{}:{line}: {error}", path.display());
                }
                count += 1;
            }
        }
    }
    assert!(count > 8, "found only {count} examples");
}

/// The JSON in QEMU's `-device` options is not checked by any other test.
#[test]
fn qemu_options_in_book_have_socket_path() {
    let printed = of(Path::new(REPOSITORY), "qemu-system-x86_64");
    for commands::Printed { place, words } in &printed {
        let device = words.iter().skip_while(|word| *word != "-device").nth(1).expect(place);
        let device: Value = serde_json::from_str(device).expect(place);
        assert_eq!(device["driver"], "vfio-user-pci", "{place}");
        assert_eq!(device["socket"]["type"], "unix", "{place}");
        let socket = device["socket"]["path"].as_str().expect(place);
        assert!(socket.ends_with("/hca1.sock"), "{place}: {socket}");
    }
    assert!(printed.len() > 1, "found only {printed:?}");
}
