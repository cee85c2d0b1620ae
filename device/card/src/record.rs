//! Session recordings: the inputs and outputs of a device, for replay without a guest, a VMM or a network.
//!
//! A device runs on one thread. Each input (an access, a frame, a deadline, the end of an event loop iteration) begins
//! a *step*. The device's behaviour depends only on its inputs, their times, and the bytes that it reads from guest
//! memory. A recording contains all of these in order. It also contains the device's outputs: writes to guest memory,
//! interrupts, frames and register values. Since the guest may change its memory at any time, bytes are recorded each
//! time they are read.
//!
//! - `entry`, `codec`, `text`: events, their encoding, and their text form
//! - `dedup`: the cache that removes repeated data
//! - `chunk`, `header`, `reader`: the file format and its reader
//! - `queue`, `recorder`: the writer, which never makes the device wait for the file
//! - `replay_source`: the source of a replay's inputs, which also compares the outputs
//! - `sink`: the interface that the device reports its inputs and outputs to, both when recording and during replay
//!
//! # File
//! A file begins with eight bytes, `HCADREC` and a line feed, followed by chunks. A chunk consists of the length of its
//! content (4 bytes), the XXH3-64 of the content (8 bytes), and the content. Numbers are little-endian. The first chunk
//! contains the header, a JSON object. All other chunks contain complete entries. As entries refer to earlier ones, a
//! recording must be read from its beginning. If the writer was killed, the recording is readable up to the last
//! complete chunk. The header's `format` must be [`FORMAT`].

mod chunk;
mod codec;
mod dedup;
mod entry;
mod header;
mod queue;
mod reader;
mod recorder;
mod replay_source;
mod sink;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod text;

pub use entry::{Ending, Input};
pub use header::{FORMAT, Header};
pub use reader::{ReadError, Reader};
pub use recorder::Recorder;
pub use replay_source::{Counts, Difference, Finish, ReplaySource};
pub use sink::RecordSink;
