//! Bytes and descriptors of a client, cut into messages.
//!
//! Descriptors come with a read, not with a message, and a read ends with the bytes they were sent with. They belong
//! to the message of the last byte read so far; while any wait, nothing is read beyond that message. Those that this
//! process has no room for are lost to their message, and to no other.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use thiserror::Error;
use zerocopy::FromBytes;

use super::message::{HEADER_LEN, Header, MAX_FDS, MAX_MESSAGE_LEN};

/// Buffer for ordinary messages; a long one grows it for its time.
const BUFFER_LEN: usize = 64 << 10;

/// What a client did that leaves no way to go on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// Shorter than its header, or longer than negotiated.
    #[error("message size {size} is not between {HEADER_LEN} and {MAX_MESSAGE_LEN}")]
    Size {
        /// Size field.
        size: u32,
    },
    /// More descriptors than we said we take.
    #[error("message carries more than {MAX_FDS} descriptors")]
    Descriptors,
    /// A reply, or no known type of message.
    #[error("message flags {flags:#x} do not identify a command")]
    NotACommand {
        /// Flags field.
        flags: u32,
    },
    /// The first command was not VERSION, or VERSION was refused.
    #[error("command {command} was sent before version negotiation")]
    NoVersion {
        /// Command field.
        command: u16,
    },
}

/// Outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Bytes. `all`: those there were, as far as one can tell.
    Some {
        all: bool,
    },
    WouldBlock,
    End,
}

/// A message that is complete.
pub(super) struct Message<'a> {
    pub(super) header: Header,
    pub(super) payload: &'a [u8],
    pub(super) fds: Result<Vec<OwnedFd>, OutOfDescriptors>,
}

/// The client sent descriptors, and the host let this process have no more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfDescriptors;

/// What was read and not yet served.
pub(super) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Of the last message in the buffer, which may be incomplete.
    fds: Result<Vec<OwnedFd>, OutOfDescriptors>,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_LEN], start: 0, end: 0, fds: Ok(Vec::new()) }
    }

    /// Takes the next message, if it is complete.
    pub(super) fn next(&mut self) -> Result<Option<Message<'_>>, Violation> {
        let Some((header, len)) = self.peek(self.start)? else { return Ok(None) };
        let (start, end) = (self.start, self.start + len);
        if end > self.end {
            return Ok(None);
        }
        self.start = end;
        let none = Ok(Vec::new());
        let fds = if end == self.end { std::mem::replace(&mut self.fds, none) } else { none };
        Ok(Some(Message { header, payload: &self.buffer[start + HEADER_LEN..end], fds }))
    }

    /// Whether `next` would give something.
    pub(super) fn has_next(&self) -> bool {
        match self.peek(self.start) {
            Ok(Some((_, len))) => len <= self.end - self.start,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Reads once. All complete messages must have been taken.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> Result<Received, ReceiveError> {
        let wanted = match self.peek(self.start)? {
            Some((_, len)) => len,
            None => HEADER_LEN,
        };
        self.make_room(wanted);
        let limit = if self.brought_none() { self.buffer.len() } else { self.start + wanted };

        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.buffer[self.end..limit])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(socket, &mut parts, &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Received::WouldBlock),
            Err(Errno::INTR) => return Ok(Received::Some { all: false }),
            Err(error) => return Err(ReceiveError::Io(error.into())),
        };
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let arrived: Vec<OwnedFd> = rights.flatten().collect();
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // Linux says the same of descriptors beyond the space for them, and of those that it cannot give us.
            if arrived.len() >= MAX_FDS {
                return Err(Violation::Descriptors.into());
            }
            self.fds = Err(OutOfDescriptors);
        } else if let Ok(fds) = &mut self.fds {
            fds.extend(arrived);
            if fds.len() > MAX_FDS {
                return Err(Violation::Descriptors.into());
            }
        }
        if received.bytes == 0 {
            return Ok(Received::End);
        }
        self.end += received.bytes;
        // A read ends early behind descriptors, or when nothing is left.
        Ok(Received::Some { all: self.end < limit && self.brought_none() })
    }

    /// Whether the last message in the buffer came without descriptors so far.
    fn brought_none(&self) -> bool {
        self.fds.as_ref().is_ok_and(Vec::is_empty)
    }

    /// Header and length of the message at `at`, if its header is there.
    fn peek(&self, at: usize) -> Result<Option<(Header, usize)>, Violation> {
        let Ok((header, _)) = Header::read_from_prefix(&self.buffer[at..self.end]) else { return Ok(None) };
        match usize::try_from(header.size) {
            Ok(len) if (HEADER_LEN..=MAX_MESSAGE_LEN).contains(&len) => Ok(Some((header, len))),
            _ => Err(Violation::Size { size: header.size }),
        }
    }

    /// Moves what there is to the front and makes the buffer as long as the message needs.
    fn make_room(&mut self, wanted: usize) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let len = wanted.max(BUFFER_LEN);
        if self.buffer.len() != len {
            self.buffer.resize(len, 0);
            self.buffer.shrink_to_fit();
        }
    }
}

/// Why a read ends the connection.
#[derive(Debug, Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error(transparent)]
    Io(std::io::Error),
}
