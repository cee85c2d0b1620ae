//! One client's socket.

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
use super::input::{Input, ReceiveError, Received, Violation};
use super::session::Session;
use super::stats::MessageStats;

/// Bound: bytes of replies that may wait for the client before we stop serving it. One more reply may come on top.
const MAX_UNSENT: usize = 256 << 10;

/// A client.
pub struct Connection {
    stream: UnixStream,
    input: Input,
    session: Session,
    /// Replies; the first `sent` bytes are on their way.
    replies: Vec<u8>,
    sent: usize,
    /// Files that go with the replies which begin at these bytes.
    files: VecDeque<(usize, Arc<OwnedFd>)>,
}

/// Why a client is gone.
#[derive(Debug, Error)]
pub enum Gone {
    /// It closed the socket.
    #[error("the client closed the connection")]
    Closed,
    /// It broke the protocol.
    #[error("the client violated the vfio-user protocol")]
    Violation(#[from] Violation),
    /// Its memory is not all there, see [`GuestMemory::is_lost`](crate::memory::GuestMemory::is_lost).
    #[error("guest memory is not accessible")]
    MemoryLost,
    /// The socket failed.
    #[error("the connection to the client failed")]
    Io(#[source] io::Error),
}

/// Outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Messages served.
    pub messages: usize,
    /// There are more messages than the budget, or the room for replies, allowed: serve again without waiting for the
    /// socket, unless replies wait for the client.
    pub more: bool,
}

impl Connection {
    /// Takes over a connected socket.
    ///
    /// # Errors
    /// The socket cannot be made non-blocking.
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

    /// Serves up to `budget` messages, in order. Their replies wait for [`Connection::reply`]: what a store set in
    /// motion should not wait for the client to be told that the store is done.
    ///
    /// # Errors
    /// The client is gone, through its fault or not.
    pub fn serve(&mut self, device: &mut impl Device, budget: usize) -> Result<Served, Gone> {
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
            match self.input.receive(&self.stream).map_err(Gone::from)? {
                Received::Some { all } => all_read = all,
                Received::WouldBlock => return Ok(Served { messages, more: false }),
                Received::End => return Err(Gone::Closed),
            }
        }
    }

    /// Whether replies wait for the client to read. Until they are sent, only readiness to write is of interest.
    pub fn wants_to_send(&self) -> bool {
        self.sent < self.replies.len()
    }

    /// Messages this client sent.
    pub fn stats(&self) -> &MessageStats {
        &self.session.stats
    }

    /// Sends what the client takes of the replies.
    ///
    /// # Errors
    /// The client is gone.
    pub fn reply(&mut self) -> Result<(), Gone> {
        while self.sent < self.replies.len() {
            match self.send_some() {
                Ok(sent) => self.sent += sent,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(Gone::Closed),
                Err(error) => return Err(Gone::Io(error.into())),
            }
        }
        self.replies.clear();
        self.replies.shrink_to(MAX_UNSENT);
        self.sent = 0;
        Ok(())
    }

    /// Sends up to the next reply that has a file, or the beginning of that one with its file: a client looks for it where
    /// it looks for the header.
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

impl From<ReceiveError> for Gone {
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
