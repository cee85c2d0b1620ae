//! Reads a recording entry by entry.

use std::fmt;
use std::io::{self, Read};

use thiserror::Error;

use super::chunk::{self, ChunkRead};
use super::codec::{self, CodecError};
use super::dedup::DedupCache;
use super::entry::Entry;
use super::header::{FORMAT, Header, MAGIC};

/// Why a recording, or the rest of it, cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file is not a recording.
    #[error("the file is not an hcad recording")]
    NoRecord,
    /// The recording has a different format version.
    #[error(
        "the recording has format version {found}, but this hcad requires version {FORMAT}; use hcad {hcad}"
    )]
    Format {
        /// Format version of the file.
        found: u32,
        /// Version of hcad that wrote it.
        hcad: String,
    },
    /// The header is invalid.
    #[error("cannot read the recording header: {0}")]
    Header(#[from] serde_json::Error),
    /// The length or digest of a chunk is wrong.
    #[error("the recording is damaged at byte {at}")]
    Damaged {
        /// Offset of the damaged chunk.
        at: u64,
    },
    /// A chunk contains an invalid entry.
    #[error("the recording is damaged in the chunk that ends at byte {at}: {malformed}")]
    CodecError {
        /// Offset of the chunk's end.
        at: u64,
        malformed: CodecError,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A recording that is being read.
pub struct Reader {
    from: Box<dyn Read + Send>,
    header: Header,
    chunk: Vec<u8>,
    cache: DedupCache,
    /// Number of bytes consumed from the current chunk.
    at: usize,
    /// File offset of the current chunk's end.
    read: u64,
    /// Whether the file ends inside a chunk.
    cut_off: bool,
}

impl Reader {
    /// Reads the header.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn new(mut from: Box<dyn Read + Send>) -> Result<Self, ReadError> {
        let mut magic = Vec::new();
        from.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        let mut chunk = Vec::new();
        if magic != MAGIC || !matches!(chunk::read(&mut from, &mut chunk)?, ChunkRead::Whole) {
            return Err(ReadError::NoRecord);
        }
        // Another format may have a different header, but every header contains the format version.
        let value: serde_json::Value = serde_json::from_slice(&chunk)?;
        let found = value.get("format").and_then(serde_json::Value::as_u64);
        let found = found.and_then(|found| u32::try_from(found).ok()).ok_or(ReadError::NoRecord)?;
        if found != FORMAT {
            let hcad =
                value.get("hcad").and_then(serde_json::Value::as_str).unwrap_or("of a different version");
            return Err(ReadError::Format { found, hcad: hcad.to_owned() });
        }
        let header = serde_json::from_value(value)?;
        let read = MAGIC.len() as u64 + chunk::HEAD_LEN + chunk.len() as u64;
        chunk.clear();
        Ok(Self { from, header, chunk, cache: DedupCache::default(), at: 0, read, cut_off: false })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns whether the file ends inside a chunk. This is known only once the end of the file has been
    /// reached.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// Returns the next entry without consuming it, or `None` at the end of the file.
    pub(super) fn peek(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        while self.at >= self.chunk.len() {
            self.at = 0;
            match chunk::read(&mut self.from, &mut self.chunk)? {
                ChunkRead::Whole => self.read += chunk::HEAD_LEN + self.chunk.len() as u64,
                ChunkRead::End => return Ok(None),
                ChunkRead::CutOff => {
                    self.cut_off = true;
                    return Ok(None);
                }
                ChunkRead::Damaged => return Err(ReadError::Damaged { at: self.read }),
            }
        }
        let at = self.read;
        let (entry, _) = codec::decode(&self.chunk[self.at..], &self.cache)
            .map_err(|malformed| ReadError::CodecError { at, malformed })?;
        Ok(Some(entry))
    }

    /// Consumes the entry returned by [`Reader::peek`].
    pub(super) fn advance(&mut self) {
        let rest = self.chunk.get(self.at..).unwrap_or_default();
        let left = codec::learn(rest, &mut self.cache).unwrap_or(0);
        self.at = self.chunk.len() - left;
    }

    /// Reads the remaining entries and returns their number.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn count(mut self) -> Result<u64, ReadError> {
        let mut entries = 0;
        while self.peek()?.is_some() {
            self.advance();
            entries += 1;
        }
        Ok(entries)
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("header", &self.header)
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}
