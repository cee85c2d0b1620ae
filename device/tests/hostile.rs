//! Runs the fuzz targets on their corpora and on random inputs, to simulate hostile guests, clients and peers.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::path::Path;

use device::interfaces;

#[test]
fn fuzz_targets_accept_corpus_inputs() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut names: Vec<_> = fs::read_dir(&corpora)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, device_fuzz::TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, target) in device_fuzz::TARGETS {
        replay(&corpora.join(name), 6, target);
    }
}

/// Runs a target on its corpus. The corpus must contain at least `at_least` files.
fn replay(corpus: &Path, at_least: usize, run: impl Fn(&[u8])) {
    let mut count = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        run(&fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= at_least, "{} has {count} files, expected at least {at_least}", corpus.display());
}

#[test]
fn every_interface_works_after_fuzzed_input() {
    let fuzzed: Vec<_> = device_fuzz::INTERFACES.iter().map(|(key, ..)| *key).collect();
    let all: Vec<_> = interfaces::ALL.iter().map(|interface| interface.key).collect();
    assert_eq!(fuzzed, all);
    // Run the interfaces in parallel. In sequence, they would take longer than any other test.
    std::thread::scope(|scope| {
        for (_, run, size) in device_fuzz::INTERFACES {
            scope.spawn(move || random_inputs(200, *size, run));
        }
    });
}

#[test]
fn management_responds_after_hostile_input() {
    random_inputs(500, 16, device_fuzz::mads::run);
}

#[test]
fn vfio_server_works_after_hostile_input() {
    random_inputs(200, 4, device_fuzz::vfio::run);
}

#[test]
fn randomly_mapped_guest_memory_matches_model() {
    random_inputs(300, 4, device_fuzz::dma::run);
}

#[test]
fn port_responds_after_hostile_input() {
    random_inputs(500, 16, device_fuzz::net::run);
}

#[test]
fn impaired_frame_count_matches_rules() {
    random_inputs(200, 8, device_fuzz::impair::run);
}

#[test]
fn switch_protects_peer_macs_from_hostile_input() {
    random_inputs(300, 4, device_fuzz::switch::run);
}

#[test]
fn trimmed_udp_frame_keeps_its_packet() {
    random_inputs(500, 4, |bytes| {
        let mut frame = include_bytes!("../fuzz/corpus/udp_frames/ipv4_padded").to_vec();
        for [at, value] in bytes.as_chunks().0.iter().take(3) {
            let at = usize::from(*at) % frame.len();
            frame[at] = *value;
        }
        device_fuzz::udp::run(&frame);
    });
}

#[test]
fn corrupted_ring_memory_yields_only_valid_frames() {
    random_inputs(500, 8, device_fuzz::ring::run);
}

#[test]
fn replay_of_any_recording_terminates() {
    random_inputs(500, 4, device_fuzz::record::run);
}

/// Runs a target on `runs` random inputs, each `step` bytes longer than the previous one.
fn random_inputs(runs: usize, step: usize, target: impl Fn(&[u8])) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for run in 0..runs {
        let input: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 56).to_le_bytes()[0]
        })
        .take(run * step)
        .collect();
        target(&input);
    }
}

#[allow(
    dead_code,
    unreachable_pub,
    clippy::cast_possible_truncation,
    reason = "a library of its own in the fuzz crate"
)]
#[path = "../fuzz/src/lib.rs"]
mod device_fuzz;
