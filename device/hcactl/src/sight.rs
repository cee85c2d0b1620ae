//! `hcactl capture` and `hcactl trace`.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use card::telemetry::filter::{CaptureFilter, FrameKind, TraceFilter};
use card::telemetry::store::{MEMORY, RingBytes};
use card::telemetry::trace::{Kind, STANDARD_ERROR, TraceFormat};
use clap::{Args, Subcommand};
use control_api::message::Request;

use crate::impair::number;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Capture {
    /// Start capturing to a new file
    On {
        /// Path to the new file
        file: PathBuf,
        #[command(flatten)]
        bound: Bound,
        #[command(flatten)]
        frames: Frames,
    },
    /// Capture to an in-memory ring that keeps the most recent frames, for `dump`
    Ring {
        /// Size of the in-memory ring, in bytes or with a K or M suffix (64K to 64M)
        #[arg(value_parser = ring)]
        size: RingBytes,
        #[command(flatten)]
        frames: Frames,
    },
    /// Write the ring to a new file and continue capturing
    Dump {
        /// Path to the new file
        file: PathBuf,
    },
    /// Stop capturing and close the file
    Off,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Trace {
    /// Start tracing to a new file
    ///
    /// With --json, each trace entry is a JSON object.
    On {
        /// Path to the new file, or "-" for the standard error of hcad [default: -]
        file: Option<PathBuf>,
        #[command(flatten)]
        bound: Bound,
        #[command(flatten)]
        records: Records,
    },
    /// Trace to an in-memory ring that keeps the most recent entries, for `dump`
    ///
    /// With --json, each trace entry is a JSON object.
    Ring {
        /// Size of the in-memory ring, in bytes or with a K or M suffix (64K to 64M)
        #[arg(value_parser = ring)]
        size: RingBytes,
        #[command(flatten)]
        records: Records,
    },
    /// Write the ring to a new file and continue tracing
    Dump {
        /// Path to the new file
        file: PathBuf,
    },
    /// Stop tracing and close the file
    Off,
}

/// Limits on the output files.
#[derive(Clone, Debug, Args)]
pub(crate) struct Bound {
    /// Maximum size of each output file, in bytes or with a K, M or G suffix [default: as configured for the
    /// device]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max: Option<u64>,
    /// Number of output files to rotate through (FILE, FILE.1 and so on), 1 to 64
    #[arg(long, value_name = "N", default_value = "1")]
    files: NonZeroU16,
}

/// Filter for frames. An empty filter matches all frames.
#[derive(Clone, Debug, Args)]
pub(crate) struct Frames {
    /// Capture only frames of this kind (repeatable)
    #[arg(long, value_name = "KIND")]
    kind: Vec<FrameKind>,
    /// Capture only RoCE packets whose opcode name contains WORD, such as SEND or ack (repeatable)
    #[arg(long, value_name = "WORD")]
    opcode: Vec<String>,
    /// Capture only RoCE packets to or from this local queue pair (repeatable)
    #[arg(long, value_name = "QPN", value_parser = number)]
    qpn: Vec<u32>,
}

/// Filter for trace entries. An empty filter matches all entries.
#[derive(Clone, Debug, Args)]
pub(crate) struct Records {
    /// Include only trace entries of this kind (repeatable)
    #[arg(long, value_name = "KIND")]
    kind: Vec<Kind>,
    /// Include only trace entries whose opcode name contains WORD, such as SEND (repeatable)
    #[arg(long, value_name = "WORD")]
    opcode: Vec<String>,
    /// Include only trace entries that belong to this queue pair (repeatable)
    #[arg(long, value_name = "QPN", value_parser = number)]
    qpn: Vec<u32>,
}

impl Capture {
    /// Returns the request, and the path for the JSON output: the new file, [`MEMORY`] for a ring, or `None` for `off`.
    pub(crate) fn request(&self, device: u16) -> anyhow::Result<(Request, Option<PathBuf>)> {
        Ok(match self {
            Self::On { file, bound: Bound { max, files }, frames } => {
                let path = absolute(file)?;
                let request = Request::CaptureOn {
                    device,
                    path: path.clone(),
                    filter: frames.filter(),
                    max_bytes: *max,
                    files: *files,
                };
                (request, Some(path))
            }
            Self::Ring { size, frames } => {
                let request = Request::CaptureRing { device, bytes: *size, filter: frames.filter() };
                (request, Some(MEMORY.into()))
            }
            Self::Dump { file } => {
                let path = absolute(file)?;
                (Request::CaptureDump { device, path: path.clone() }, Some(path))
            }
            Self::Off => (Request::CaptureOff { device }, None),
        })
    }
}

impl Trace {
    /// Returns the request, and the path for the JSON output: the new file, [`STANDARD_ERROR`], [`MEMORY`] for a ring,
    /// or `None` for `off`.
    pub(crate) fn request(&self, device: u16, json: bool) -> anyhow::Result<(Request, Option<PathBuf>)> {
        let format = if json { TraceFormat::Json } else { TraceFormat::Text };
        Ok(match self {
            Self::On { file, bound: Bound { max, files }, records } => {
                // As with `hcad --trace`, "-" also means standard error.
                let file = file.as_deref().filter(|file| *file != Path::new(STANDARD_ERROR));
                let path = file.map_or_else(|| Ok(STANDARD_ERROR.into()), absolute)?;
                let request = Request::TraceOn {
                    device,
                    path: path.clone(),
                    format,
                    filter: records.filter(),
                    max_bytes: *max,
                    files: *files,
                };
                (request, Some(path))
            }
            Self::Ring { size, records } => {
                let request = Request::TraceRing { device, bytes: *size, format, filter: records.filter() };
                (request, Some(MEMORY.into()))
            }
            Self::Dump { file } => {
                let path = absolute(file)?;
                (Request::TraceDump { device, path: path.clone() }, Some(path))
            }
            Self::Off => (Request::TraceOff { device }, None),
        })
    }
}

impl Frames {
    fn filter(&self) -> CaptureFilter {
        let Self { kind, opcode, qpn } = self.clone();
        CaptureFilter { kinds: kind, opcodes: opcode, qpns: qpn }
    }
}

impl Records {
    fn filter(&self) -> TraceFilter {
        let Self { kind, opcode, qpn } = self.clone();
        TraceFilter { kinds: kind, opcodes: opcode, qpns: qpn }
    }
}

/// Makes a path absolute. hcad may run in a different working directory.
fn absolute(file: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(file).with_context(|| file.display().to_string())
}

/// Parses a number of bytes. An optional K, M or G suffix multiplies it by a power of 1024.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size such as 512K, 100M or 2G");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(1 << shift).ok_or_else(wrong)
}

fn ring(text: &str) -> Result<RingBytes, String> {
    RingBytes::try_from(size(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_suffixes_are_powers_of_1024() {
        assert_eq!(size("17"), Ok(17));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("2G"), Ok(2 << 30));
        for text in ["", "M", "1T", "-1", "1.5M", "99999999999G", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(ring("4M").is_ok() && ring("4k").is_err());
    }
}
