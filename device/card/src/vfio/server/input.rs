//! Splits bytes and descriptors from a client into messages.
//!
//! A `recvmsg` call that returns descriptors stops after the bytes that were sent with them. The descriptors therefore
//! belong to the message that contains the last byte read. Until that message is complete, no bytes beyond it are read.
//! If the process has reached its descriptor limit, only that message fails.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use thiserror::Error;
use zerocopy::FromBytes;

use super::message::{HEADER_LEN, Header, MAX_FDS, MAX_MESSAGE_LEN};

/// Size of the buffer for ordinary messages. For a long message, the buffer grows temporarily.
const BUFFER_LEN: usize = 64 << 10;

/// A protocol violation that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The message is shorter than its header, or longer than negotiated.
    #[error("message size {size} is not between {HEADER_LEN} and {MAX_MESSAGE_LEN}")]
    Size { size: u32 },
    /// The message carries more descriptors than negotiated.
    #[error("the message carries more than {MAX_FDS} file descriptors")]
    Descriptors,
    /// The message is a reply or has an unknown type.
    #[error("invalid message flags {flags:#x}: the message is not a command")]
    NotACommand { flags: u32 },
    /// The first command was not VERSION, or VERSION was rejected.
    #[error("command {command} was sent before version negotiation")]
    NoVersion { command: u16 },
}

/// Outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Bytes were read. `all` is true if the read probably emptied the socket.
    Some {
        all: bool,
    },
    WouldBlock,
    End,
}

/// A complete message from the client.
pub(super) struct Message<'a> {
    pub(super) header: Header,
    pub(super) payload: &'a [u8],
    pub(super) fds: Result<Vec<OwnedFd>, OutOfDescriptors>,
}

/// The client sent descriptors, but the process limit on open files was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfDescriptors;

/// Bytes that have been read but not yet processed.
pub(super) struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Descriptors of the last message in the buffer. The message may be incomplete.
    fds: Result<Vec<OwnedFd>, OutOfDescriptors>,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_LEN], start: 0, end: 0, fds: Ok(Vec::new()) }
    }

    /// Removes and returns the next message if it is complete.
    pub(super) fn next(&mut self) -> Result<Option<Message<'_>>, ProtocolError> {
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

    /// Returns whether `next` would return a message or an error.
    pub(super) fn has_next(&self) -> bool {
        match self.peek(self.start) {
            Ok(Some((_, len))) => len <= self.end - self.start,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Reads once from the socket. The caller must first take all complete messages.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> Result<Received, ReceiveError> {
        let wanted = match self.peek(self.start)? {
            Some((_, len)) => len,
            None => HEADER_LEN,
        };
        self.make_room(wanted);
        let limit = if self.has_no_fds() { self.buffer.len() } else { self.start + wanted };

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
            // Linux sets MSG_CTRUNC both if the descriptors do not fit in the buffer and if they would exceed the
            // process limit.
            if arrived.len() >= MAX_FDS {
                return Err(ProtocolError::Descriptors.into());
            }
            self.fds = Err(OutOfDescriptors);
        } else if let Ok(fds) = &mut self.fds {
            fds.extend(arrived);
            if fds.len() > MAX_FDS {
                return Err(ProtocolError::Descriptors.into());
            }
        }
        if received.bytes == 0 {
            return Ok(Received::End);
        }
        self.end += received.bytes;
        // A read that returns fewer bytes than requested has emptied the socket, unless it stopped because of
        // descriptors.
        Ok(Received::Some { all: self.end < limit && self.has_no_fds() })
    }

    /// Returns true if no descriptors have arrived yet for the last message.
    fn has_no_fds(&self) -> bool {
        self.fds.as_ref().is_ok_and(Vec::is_empty)
    }

    /// Returns the header and the length of the message at `at`, if its header has arrived.
    fn peek(&self, at: usize) -> Result<Option<(Header, usize)>, ProtocolError> {
        let Ok((header, _)) = Header::read_from_prefix(&self.buffer[at..self.end]) else { return Ok(None) };
        match usize::try_from(header.size) {
            Ok(len) if (HEADER_LEN..=MAX_MESSAGE_LEN).contains(&len) => Ok(Some((header, len))),
            _ => Err(ProtocolError::Size { size: header.size }),
        }
    }

    /// Moves pending bytes to the front and sizes the buffer for the next message.
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

/// A read error that ends the connection.
#[derive(Debug, Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Violation(#[from] ProtocolError),
    #[error(transparent)]
    Io(std::io::Error),
}
