//! Records: everything that reaches one device from outside, and what it does, so that it can be run again without guest,
//! VMM and network.
//!
//! A device is one thread's, and what it does follows from what is told to it (a *step*: an access, a frame, a deadline,
//! the end of a turn), the time it is told, and the bytes it reads from guest memory. A record has these, in order, and
//! what the device did in answer: what it wrote to guest memory, the interrupts, the frames, what registers read as. The
//! guest changes its memory at any time, so bytes are kept as they were read, each time they were.
//!
//! - `entry`, `codec`, `words`: one thing that happened, its bytes, its words for people
//! - `memo`: what need not be written twice
//! - `chunk`, `header`, `reader`: the file
//! - `queue`, `recorder`: writing it without ever holding up the device
//! - `player`: giving a device its inputs again, and comparing
//! - `tape`: what a device holds: one of the two
//!
//! # File
//! Eight bytes `HCADREC` and a line feed, then chunks. A chunk is the length of its contents (4 bytes), their XXH3-64 (8
//! bytes) and the contents; numbers are little-endian. The first has the header, a JSON object; all others have whole
//! entries. Entries refer to earlier ones, so that a record is read from its beginning. One whose writer was killed ends with
//! its last whole chunk. The header's `format` is [`FORMAT`]: others are refused.

mod chunk;
mod codec;
mod entry;
mod header;
mod memo;
mod player;
mod queue;
mod reader;
mod recorder;
mod tape;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod words;

pub use entry::{Ending, Input};
pub use header::{FORMAT, Header};
pub use player::{Counts, Difference, Finish, Player};
pub use reader::{ReadError, Reader};
pub use recorder::Recorder;
pub use tape::Tape;
