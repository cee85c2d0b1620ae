//! The socket of one client.

use std::collections::VecDeque;
use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use thiserror::Error;

use super::Device;
use super::input::{Input, ProtocolError, ReceiveError, Received};
use super::session::Session;
use super::stats::MessageStats;

/// Maximum number of bytes in unsent replies. Once this limit is reached, no more messages are served. The last reply
/// may exceed the limit.
const MAX_UNSENT: usize = 256 << 10;

pub struct Connection {
    stream: UnixStream,
    input: Input,
    session: Session,
    /// Replies. The first `sent` bytes have already been sent.
    replies: Vec<u8>,
    sent: usize,
    /// Descriptors to send with the replies that begin at these offsets.
    files: VecDeque<(usize, Arc<OwnedFd>)>,
}

/// Why a client was disconnected.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The client closed the socket.
    #[error("the client closed the connection")]
    Closed,
    /// The client violated the protocol.
    #[error("the client violated the vfio-user protocol")]
    Violation(#[from] ProtocolError),
    /// The client's memory was lost; see [`GuestMemory::is_lost`](crate::memory::GuestMemory::is_lost).
    #[error("guest memory is not accessible")]
    MemoryLost,
    #[error("the connection to the client failed")]
    Io(#[source] io::Error),
}

/// Result of serving messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub messages: usize,
    /// Whether unserved messages may remain because the budget or the space for replies ran out. If so, call
    /// [`Connection::serve`] again once all replies have been sent, without waiting for the socket to become readable.
    pub more: bool,
}

impl Connection {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// Fails if the socket cannot be made non-blocking.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            input: Input::new(),
            session: Session::default(),
            replies: Vec::new(),
            sent: 0,
            files: VecDeque::new(),
        })
    }

    /// Serves up to `budget` messages in order. Once the work they started has finished, call [`Connection::reply`] to
    /// send the replies. If earlier replies are still unsent, sends them first, and serves nothing unless the socket
    /// accepts all of them.
    ///
    /// # Errors
    /// Fails if the client has disconnected or has violated the protocol.
    pub fn serve(&mut self, device: &mut impl Device, budget: usize) -> Result<Served, ConnectionError> {
        // The buffer of replies is cleared only when all of them have been sent. A client that always leaves some of
        // them unread must not make the buffer grow.
        self.reply()?;
        if self.wants_to_send() {
            return Ok(Served { messages: 0, more: true });
        }
        let mut messages = 0;
        let mut all_read = false;
        loop {
            while messages < budget && self.replies.len() - self.sent < MAX_UNSENT {
                let Some(message) = self.input.next()? else { break };
                let (header, payload, fds) = (message.header, message.payload, message.fds);
                let start = self.replies.len();
                let file = self.session.handle(header, payload, fds, device, &mut self.replies)?;
                self.files.extend(file.map(|file| (start, file)));
                messages += 1;
            }
            if self.input.has_next() {
                return Ok(Served { messages, more: true });
            }
            if all_read {
                return Ok(Served { messages, more: false });
            }
            match self.input.receive(&self.stream).map_err(ConnectionError::from)? {
                Received::Some { all } => all_read = all,
                Received::WouldBlock => return Ok(Served { messages, more: false }),
                Received::End => return Err(ConnectionError::Closed),
            }
        }
    }

    /// Returns whether there are unsent replies. Until they are sent, poll the socket only for writing.
    pub fn wants_to_send(&self) -> bool {
        self.sent < self.replies.len()
    }

    #[cfg(test)]
    pub(super) fn reply_buffer_len(&self) -> usize {
        self.replies.len()
    }

    pub fn stats(&self) -> &MessageStats {
        &self.session.stats
    }

    /// Sends as many bytes of the replies as the socket accepts.
    ///
    /// # Errors
    /// Fails if the client has disconnected.
    pub fn reply(&mut self) -> Result<(), ConnectionError> {
        while self.sent < self.replies.len() {
            match self.send_some() {
                Ok(sent) => self.sent += sent,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    return Err(ConnectionError::Closed);
                }
                Err(error) => return Err(ConnectionError::Io(error.into())),
            }
        }
        self.replies.clear();
        self.replies.shrink_to(MAX_UNSENT);
        self.sent = 0;
        Ok(())
    }

    /// Sends the bytes before the next reply that has a descriptor. If that reply is the first unsent one, sends it
    /// together with its descriptor, because a client expects to read both at once.
    fn send_some(&mut self) -> rustix::io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let next = self.files.front().map(|(start, _)| *start);
        if next != Some(self.sent) {
            let end = next.unwrap_or(self.replies.len());
            return send(&self.stream, &self.replies[self.sent..end], flags);
        }
        let end = self.files.get(1).map_or(self.replies.len(), |(start, _)| *start);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = self.files.front().iter().map(|(_, file)| file.as_fd()).collect();
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let bytes = [IoSlice::new(&self.replies[self.sent..end])];
        let sent = sendmsg(&self.stream, &bytes, &mut ancillary, flags)?;
        self.files.pop_front();
        Ok(sent)
    }
}

impl From<ReceiveError> for ConnectionError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Violation(violation) => Self::Violation(violation),
            ReceiveError::Io(error) if error.kind() == io::ErrorKind::ConnectionReset => Self::Closed,
            ReceiveError::Io(error) => Self::Io(error),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
