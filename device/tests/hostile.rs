//! A device among a hostile guest, client and wire: the fuzzer's operations, from its corpus and at random.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::path::Path;

#[test]
fn the_corpus_replays() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/device_ops");
    let mut count = 0;
    for entry in fs::read_dir(corpus).expect("the corpus is in the repository") {
        device_fuzz::run(&fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 20, "{count} files");
}

#[test]
fn a_device_serves_on_whatever_happened() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for run in 0..200 {
        let input: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 56).to_le_bytes()[0]
        })
        .take(run * 8)
        .collect();
        device_fuzz::run(&input);
    }
}

#[allow(unreachable_pub, clippy::cast_possible_truncation, reason = "a library of its own in the fuzz crate")]
#[path = "../fuzz/src/lib.rs"]
mod device_fuzz;
