//! Replays the seed corpora of the fuzz targets without a fuzzer.

use std::fs;
use std::path::Path;

#[test]
fn every_corpus_input_runs_without_panic() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut names: Vec<_> = fs::read_dir(&corpora)
        .expect("the corpora are in the repository")
        .map(|entry| {
            entry.expect("the corpora are readable").file_name().into_string().expect("the name is UTF-8")
        })
        .collect();
    names.sort();
    assert_eq!(names, fuzz_targets::TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, target) in fuzz_targets::TARGETS {
        replay(&corpora.join(name), 6, target);
    }
}

/// Runs a target on its corpus, which must contain at least `at_least` files.
fn replay(corpus: &Path, at_least: usize, run: impl Fn(&[u8])) {
    let mut count = 0;
    for entry in fs::read_dir(corpus).expect("the corpus is in the repository") {
        let path = entry.expect("the corpus is readable").path();
        run(&fs::read(path).expect("the corpus file is readable"));
        count += 1;
    }
    assert!(count >= at_least, "only {count} files in {}", corpus.display());
}

#[expect(unreachable_pub, reason = "a library of its own in the fuzz crate")]
#[path = "../fuzz/src/lib.rs"]
mod fuzz_targets;
