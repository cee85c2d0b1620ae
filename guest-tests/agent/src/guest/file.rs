//! Fills, verifies and reads files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::error::timeout;
use crate::pattern;
use crate::wire::{AwaitText, FillFile, Hex, PeekFile, Verified, VerifyFile};

/// Size of a read or write, in bytes.
const CHUNK: u64 = 1 << 16;
/// Polling interval. Files in procfs and sysfs do not notify readers of changes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(crate) fn fill(step: &FillFile) -> Result<()> {
    let file = File::options().write(true).open(&step.path).with_context(|| step.path.clone())?;
    let mut buffer = Vec::new();
    for at in (0..step.len).step_by(usize::try_from(CHUNK)?) {
        buffer.resize(usize::try_from(CHUNK.min(step.len - at))?, 0);
        pattern::fill(step.seed, step.position + at, &mut buffer);
        file.write_all_at(&buffer, step.off + at).with_context(|| step.path.clone())?;
    }
    Ok(())
}

pub(crate) fn verify(step: &VerifyFile) -> Result<Verified> {
    let file = File::open(&step.path).with_context(|| step.path.clone())?;
    let mut buffer = Vec::new();
    for at in (0..step.len).step_by(usize::try_from(CHUNK)?) {
        buffer.resize(usize::try_from(CHUNK.min(step.len - at))?, 0);
        file.read_exact_at(&mut buffer, step.off + at).with_context(|| step.path.clone())?;
        if let Some(first) = pattern::first_difference(step.seed, step.position + at, &buffer) {
            return Ok(Verified { first_difference: Some(at + first as u64) });
        }
    }
    Ok(Verified { first_difference: None })
}

pub(crate) fn peek(step: &PeekFile) -> Result<Hex> {
    let file = File::open(&step.path).with_context(|| step.path.clone())?;
    let mut bytes = vec![0; usize::try_from(step.len)?];
    file.read_exact_at(&mut bytes, step.off).with_context(|| step.path.clone())?;
    Ok(Hex(bytes))
}

pub(crate) fn await_text(step: &AwaitText) -> Result<()> {
    let deadline = Instant::now() + Duration::from_millis(step.timeout_ms.into());
    loop {
        let read = |path: &String| fs::read_to_string(path).unwrap_or_else(|error| format!("({error})"));
        let held: Vec<String> = step.paths.iter().map(read).collect();
        if step.texts.iter().any(|text| held.iter().any(|content| content.contains(text))) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let (texts, paths) = (&step.texts, &step.paths);
            return Err(timeout(format!(
                "none of {texts:?} appeared in {paths:?}, which contain:\n{}",
                held.concat()
            )));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifying_part_of_file_finds_wrong_byte() {
        let path = std::env::temp_dir().join(format!("hcad-agent-file-{}", std::process::id()));
        let (off, len) = (5, 3 * CHUNK + 7);
        let file = File::create(&path).unwrap();
        let path = path.display().to_string();
        fill(&FillFile { path: path.clone(), off, len, seed: 9, position: 2 }).unwrap();
        let verify = |cut: u64, len: u64| {
            let step = VerifyFile { path: path.clone(), off: off + cut, len, seed: 9, position: 2 + cut };
            verify(&step).unwrap().first_difference
        };
        assert_eq!(verify(0, len), None);
        assert_eq!(verify(CHUNK + 1, CHUNK), None);
        file.write_all_at(&[0; 2], off + 2 * CHUNK + 1).unwrap();
        assert_eq!(verify(0, len), Some(2 * CHUNK + 1));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn waiting_for_text_tolerates_missing_file() {
        let path = std::env::temp_dir().join(format!("hcad-agent-await-{}", std::process::id()));
        let step = AwaitText {
            paths: vec!["/nonexistent".into(), path.display().to_string()],
            texts: vec!["ACTIVE".into()],
            timeout_ms: 10_000,
        };
        let failure = await_text(&AwaitText { timeout_ms: 0, ..step.clone() }).unwrap_err();
        assert_eq!(crate::error::into_failure(&failure).kind, crate::wire::FailureKind::Timeout);
        let writer = std::thread::spawn({
            let path = path.clone();
            move || fs::write(path, "4: ACTIVE\n").unwrap()
        });
        await_text(&step).unwrap();
        writer.join().unwrap();
        fs::remove_file(&path).unwrap();
    }
}
