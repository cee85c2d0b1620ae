//! Messages that set up a link between two HCAs.
//!
//! ```text
//! 0  8  "hcadring"
//! 8  2  version: 4
//! 10 1  kind: 1 shared memory is attached, 2 call, 3 answer to a call
//! 11 6  MAC of the sender
//! 17 3  reserved, 0
//! 20 4  length of one ring in bytes
//! 24 4  IPv4 address of the sender
//! 28 16 IPv6 address of the sender other than its link-local address, 0 if none
//! 44 8  token of the sender
//! 52 8  token of the message that this one answers, 0 if none
//! ```
//!
//! Numbers are little-endian. Addresses are in network byte order. Each message is sent with a single
//! `sendmsg`. A message of kind 1 carries one descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protocol::ids::MacAddr;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::memory::RingLen;
use super::tokens::Token;
use crate::identity::Identity;

const MAGIC: [u8; 8] = *b"hcadring";
const VERSION: u16 = 4;
const MEMORY: u8 = 1;
const CALL: u8 = 2;
const ANSWER: u8 = 3;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    kind: u8,
    mac: [u8; 6],
    reserved: [u8; 3],
    ring_len: U32,
    ipv4: [u8; 4],
    ipv6: [u8; 16],
    token: U64,
    answered: U64,
}

#[derive(Debug)]
pub(super) struct Hello {
    pub(super) from: Identity,
    /// Token to echo in the answer.
    pub(super) token: Option<Token>,
    /// Token of the message being answered.
    pub(super) answered: Option<Token>,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// The sender has created the shared memory for the rings and passes its memfd.
    Memory { len: RingLen, memfd: OwnedFd },
    /// The sender has no link to the receiver and requests one.
    Call,
    /// Answers a call and challenges the caller to prove that it owns the socket for its MAC address.
    Answer,
}

/// Why no valid message was received.
#[derive(Debug, Error)]
pub(super) enum HelloError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer did not send a valid hello message")]
    NotHello,
    #[error("the peer uses protocol version {0}, but this hcad uses version {VERSION}")]
    Version(u16),
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Message<'a> {
    Memory(BorrowedFd<'a>),
    Call,
    Answer,
}

/// Sends a message to the member at the other end of a socket.
pub(super) fn send(
    socket: impl AsFd,
    from: &Identity,
    message: Message<'_>,
    [token, answered]: [Option<Token>; 2],
) -> io::Result<()> {
    let (kind, memfd) = match message {
        Message::Memory(memfd) => (MEMORY, Some(memfd)),
        Message::Call => (CALL, None),
        Message::Answer => (ANSWER, None),
    };
    let raw = Raw {
        magic: MAGIC,
        version: U16::new(VERSION),
        kind,
        mac: from.mac.0,
        reserved: [0; 3],
        ring_len: U32::new(RingLen::DEFAULT.get()),
        ipv4: from.ipv4.octets(),
        ipv6: from.ipv6.map_or([0; 16], |ip| ip.octets()),
        token: U64::new(token.map_or(0, Token::get)),
        answered: U64::new(answered.map_or(0, Token::get)),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = memfd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(raw.as_bytes())], &mut control, flags)?;
    Ok(())
}

/// Receives the message sent on a new connection, if it has arrived.
pub(super) fn receive(socket: impl AsFd) -> Result<Option<Hello>, HelloError> {
    let mut bytes = [0; size_of::<Raw>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let len = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(HelloError::Io(error.into())),
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let memfd = rights.flatten().next();
    if len == 0 {
        return Err(HelloError::Closed);
    }
    let raw = Raw::read_from_bytes(&bytes[..len]).map_err(|_| HelloError::NotHello)?;
    if raw.magic != MAGIC {
        return Err(HelloError::NotHello);
    }
    if raw.version.get() != VERSION {
        return Err(HelloError::Version(raw.version.get()));
    }
    let mac = MacAddr(raw.mac);
    let ipv6 = Ipv6Addr::from(raw.ipv6);
    let kind = match (raw.kind, RingLen::new(raw.ring_len.get()), memfd) {
        (MEMORY, Some(len), Some(memfd)) => Kind::Memory { len, memfd },
        (CALL, ..) => Kind::Call,
        (ANSWER, ..) => Kind::Answer,
        _ => return Err(HelloError::NotHello),
    };
    let from = Identity {
        mac,
        ipv4: Ipv4Addr::from(raw.ipv4),
        ipv6: Some(ipv6).filter(|ip| !ip.is_unspecified()),
        lid: Identity::lid_of(mac),
        prefer_ipv6: false,
    };
    let token = |number: U64| Token::new(number.get());
    Ok(Some(Hello { from, token: token(raw.token), answered: token(raw.answered), kind }))
}
