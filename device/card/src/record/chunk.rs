//! Chunks of a recording: length and digest, followed by the content.

use std::io::{self, Read, Write};

use twox_hash::XxHash3_64;

use super::codec::MAX_ENTRY;

/// A chunk is complete once its content reaches this length, in bytes.
pub(super) const TARGET_LEN: usize = 256 << 10;

/// Maximum length of the content in bytes, including a last entry that begins just below [`TARGET_LEN`].
pub(super) const MAX_CHUNK: usize = TARGET_LEN + 2 * MAX_ENTRY;

/// Number of bytes before a chunk's content.
pub(super) const HEAD_LEN: u64 = 12;

/// Result of reading a chunk.
pub(super) enum ChunkRead {
    /// The content is in the buffer.
    Whole,
    /// The file ends after the previous chunk.
    End,
    /// The file ends inside the chunk.
    CutOff,
    /// The length or the digest is wrong.
    Damaged,
}

pub(super) fn write(to: &mut impl Write, contents: &[u8]) -> io::Result<()> {
    let len = u32::try_from(contents.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(&XxHash3_64::oneshot(contents).to_le_bytes())?;
    to.write_all(contents)
}

/// Reads the next chunk's content into `contents`, replacing the old data. Allocates memory as bytes arrive, so a wrong
/// length cannot cause a large allocation.
pub(super) fn read(from: &mut impl Read, contents: &mut Vec<u8>) -> io::Result<ChunkRead> {
    contents.clear();
    let mut head = Vec::new();
    from.by_ref().take(HEAD_LEN).read_to_end(&mut head)?;
    let Some((len, digest)) = head.split_first_chunk() else {
        return Ok(if head.is_empty() { ChunkRead::End } else { ChunkRead::CutOff });
    };
    let Some(digest) = digest.first_chunk() else { return Ok(ChunkRead::CutOff) };
    let len = u32::from_le_bytes(*len);
    if u64::from(len) > MAX_CHUNK as u64 {
        return Ok(ChunkRead::Damaged);
    }
    let read = from.by_ref().take(len.into()).read_to_end(contents)?;
    if (read as u64) < u64::from(len) {
        contents.clear();
        return Ok(ChunkRead::CutOff);
    }
    if XxHash3_64::oneshot(contents) != u64::from_le_bytes(*digest) {
        contents.clear();
        return Ok(ChunkRead::Damaged);
    }
    Ok(ChunkRead::Whole)
}
