//! The fuzzers' seed corpora, replayed without a fuzzer.

use std::fs;
use std::path::Path;

#[test]
fn decode_frame_corpus_replays() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/decode_frame");
    let mut count = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        fuzz_targets::decode_frame(&fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 30, "{count} files");
}

#[expect(unreachable_pub, reason = "a library of its own in the fuzz crate")]
#[path = "../fuzz/src/lib.rs"]
mod fuzz_targets;
