//! Formats a recording's entries as text for the output of a replay.

use std::fmt;

use super::entry::{Content, Ending, Entry, Input, Update};

/// Maximum number of bytes shown per byte string.
const SHOWN: usize = 64;

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time { passed } => write!(f, "{passed} ns elapse"),
            Self::Map { iova, len, read, write, reachable } => {
                let rights = match (read, write) {
                    (true, true) => "read-write",
                    (true, false) => "read-only",
                    _ => "write-only",
                };
                let reach = if *reachable { "" } else { ", not accessible" };
                write!(f, "map {len:#x} bytes at {iova:#x}, {rights}{reach}")
            }
            Self::Unmap { iova, len } => write!(f, "unmap {len:#x} bytes at {iova:#x}"),
            Self::UnmapAll => write!(f, "unmap all memory"),
            Self::Input(input) => write!(f, "{input}"),
            Self::Read { iova, len, bytes } => {
                write!(f, "read {len} bytes of guest memory at {iova:#x}")?;
                match bytes {
                    Some(bytes) => write!(f, ": {}", Hex(bytes)),
                    None => write!(f, ": failed"),
                }
            }
            Self::Write { iova, data, done } => {
                write!(f, "write guest memory at {iova:#x}: {data}")?;
                if *done { Ok(()) } else { write!(f, ", failed") }
            }
            Self::Update { iova, outcome } => {
                write!(f, "compare and swap guest memory at {iova:#x}: ")?;
                match outcome {
                    Update::Replaced { before, after } => write!(f, "{before:#x} replaced by {after:#x}"),
                    Update::Kept(before) => write!(f, "{before:#x} unchanged"),
                    Update::Refused => write!(f, "failed"),
                }
            }
            Self::Interrupt { vector } => write!(f, "signal vector {vector}"),
            Self::Frame(frame) => write!(f, "send a frame: {frame}"),
            Self::Answer(answer) => write!(f, "complete the read with {answer}"),
            Self::Drained { frames, other } => {
                let left = match (frames, other) {
                    (false, false) => "nothing",
                    (true, false) => "frames",
                    (false, true) => "events",
                    (true, true) => "frames and events",
                };
                write!(f, "end the event loop iteration, {left} pending")
            }
            Self::End(ending) => write!(f, "{ending}"),
        }
    }
}

impl fmt::Display for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RegionRead { region, offset, len } => {
                write!(f, "client reads {len} bytes at {}+{offset:#x}", Region(*region))
            }
            Self::RegionWrite { region, offset, data } => {
                write!(f, "client writes at {}+{offset:#x}: {}", Region(*region), Hex(data))
            }
            Self::Eventfd { vector, present: true } => {
                write!(f, "client sets the eventfd of vector {vector}")
            }
            Self::Eventfd { vector, present: false } => {
                write!(f, "client clears the eventfd of vector {vector}")
            }
            Self::Mask { vector, masked: true } => write!(f, "client masks vector {vector}"),
            Self::Mask { vector, masked: false } => write!(f, "client unmasks vector {vector}"),
            Self::Trigger { vector } => write!(f, "client signals vector {vector}"),
            Self::Unwire => write!(f, "client clears all eventfds"),
            Self::Reset => write!(f, "client resets the device"),
            Self::Disconnect => write!(f, "client disconnects"),
            Self::Frame(frame) => write!(f, "frame of {} bytes received: {}", frame.len(), Hex(frame)),
            Self::Deadline => write!(f, "timer expires"),
            Self::Drain => write!(f, "event loop iteration ends"),
            Self::Left { frames } => write!(f, "fabric sends frames, {frames} left"),
            Self::Link { up } => write!(f, "link goes {}", if *up { "up" } else { "down" }),
            Self::Fail => write!(f, "operator injects a device error"),
            Self::AddNeighbour(mac) => write!(f, "MAC {mac} appears on the fabric"),
            Self::RemoveNeighbour(mac) => write!(f, "MAC {mac} disappears from the fabric"),
            Self::Impair(rule) => write!(f, "operator adds impairment {rule}"),
            Self::Unimpair(Some(id)) => write!(f, "operator removes impairment {id}"),
            Self::Unimpair(None) => write!(f, "operator removes all impairments"),
        }
    }
}

impl fmt::Display for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", Hex(bytes)),
            Self::Digest { len, xxh3 } => write!(f, "{len} bytes with XXH3 {xxh3:016x}"),
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed by hcad",
            Self::Failed => "the device failed",
            Self::Full => "size limit reached",
            Self::Overrun => "the file could not be written fast enough",
        })
    }
}

/// Displays a region index as the region's name.
struct Region(u8);

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bar @ 0..=5 => write!(f, "bar{bar}"),
            7 => write!(f, "config"),
            other => write!(f, "region {other}"),
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().take(SHOWN).enumerate() {
            let space = if at > 0 && at % 4 == 0 { " " } else { "" };
            write!(f, "{space}{byte:02x}")?;
        }
        if self.0.len() > SHOWN { write!(f, " …") } else { Ok(()) }
    }
}
