//! What two HCAs say to each other before frames flow.
//!
//! ```text
//! 0  8  "hcadring"
//! 8  2  version: 2
//! 10 1  kind: 1 the memory comes with this message, 2 please call me
//! 11 6  MAC of the sender
//! 17 3  reserved, 0
//! 20 4  bytes of one ring
//! ```
//!
//! Little-endian. A message comes in one piece, with one descriptor if its kind is 1.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protocol::ids::MacAddr;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::memory::RingLen;

const MAGIC: [u8; 8] = *b"hcadring";
const VERSION: u16 = 2;
const MEMORY: u8 = 1;
const CALL: u8 = 2;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U16,
    kind: u8,
    mac: [u8; 6],
    reserved: [u8; 3],
    ring_len: U32,
}

/// What a message says.
#[derive(Debug)]
pub(super) enum Hello {
    /// The rings are in this file.
    Memory { mac: MacAddr, len: RingLen, memfd: OwnedFd },
    /// The sender wants to be called.
    Call { mac: MacAddr },
}

/// Why a message is none.
#[derive(Debug, Error)]
pub(super) enum Unheard {
    #[error("it closed the connection")]
    Closed,
    #[error("it does not begin as an HCA does")]
    NotHello,
    #[error("it speaks version {0} of the protocol, and we {VERSION}")]
    Version(u16),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Sends the memory, or without any the wish to be called.
pub(super) fn send(
    socket: impl AsFd,
    mac: MacAddr,
    len: RingLen,
    memfd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let raw = Raw {
        magic: MAGIC,
        version: U16::new(VERSION),
        kind: if memfd.is_some() { MEMORY } else { CALL },
        mac: mac.0,
        reserved: [0; 3],
        ring_len: U32::new(len.get()),
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

/// The message of a newcomer, if it is there.
pub(super) fn receive(socket: impl AsFd) -> Result<Option<Hello>, Unheard> {
    let mut bytes = [0; size_of::<Raw>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let len = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(Unheard::Io(error.into())),
    };
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let memfd = rights.flatten().next();
    if len == 0 {
        return Err(Unheard::Closed);
    }
    let raw = Raw::read_from_bytes(&bytes[..len]).map_err(|_| Unheard::NotHello)?;
    if raw.magic != MAGIC {
        return Err(Unheard::NotHello);
    }
    if raw.version.get() != VERSION {
        return Err(Unheard::Version(raw.version.get()));
    }
    let mac = MacAddr(raw.mac);
    match (raw.kind, RingLen::new(raw.ring_len.get()), memfd) {
        (MEMORY, Some(len), Some(memfd)) => Ok(Some(Hello::Memory { mac, len, memfd })),
        (CALL, ..) => Ok(Some(Hello::Call { mac })),
        _ => Err(Unheard::NotHello),
    }
}
