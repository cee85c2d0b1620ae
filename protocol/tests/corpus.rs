//! Replays the seed corpora of the fuzz targets without a fuzzer.

use std::fs;
use std::path::Path;

#[test]
fn decode_frame_corpus_replays() {
    replay("decode_frame", 30, fuzz_targets::decode_frame);
}

#[test]
fn decode_wqe_corpus_replays() {
    replay("decode_wqe", 15, fuzz_targets::jingzhao::decode_wqe);
}

#[test]
fn decode_mailbox_corpus_replays() {
    replay("decode_mailbox", 10, fuzz_targets::jingzhao::decode_mailbox);
}

#[test]
fn decode_context_corpus_replays() {
    replay("decode_context", 8, fuzz_targets::context::decode_context);
}

#[test]
fn decode_mad_corpus_replays() {
    replay("decode_mad", 6, fuzz_targets::mad::decode_mad);
}

#[test]
fn decode_mthca_corpus_replays() {
    replay("decode_mthca", 6, fuzz_targets::mthca::decode_mthca);
}

/// Runs a target on its corpus, which must have `at_least` files.
fn replay(target: &str, at_least: usize, run: impl Fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(corpus).expect("the corpus is in the repository") {
        let path = entry.expect("a readable folder").path();
        run(&fs::read(path).expect("a readable file"));
        count += 1;
    }
    assert!(count >= at_least, "{count} files");
}

#[expect(unreachable_pub, reason = "a library of its own in the fuzz crate")]
#[path = "../fuzz/src/lib.rs"]
mod fuzz_targets;
