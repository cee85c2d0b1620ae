//! vfio-user messages from a client that violates the protocol in ways that a library would prevent.

use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Timeout for a reply. The host may be busy, and the daemon may be stopped for several seconds.
const ANSWER: Duration = Duration::from_secs(60);
/// Maximum length of a reply in bytes.
const LONGEST: usize = 1 << 16;
const HEADER: usize = 16;
/// Error flag in the message header.
const ERROR: u32 = 1 << 5;

/// Commands (vfio-user protocol, "Commands").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    RegionRead = 9,
    RegionWrite = 10,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Region {
    Bar0 = 0,
    Config = 7,
}

#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    sent: u16,
}

/// A reply: the bytes after the header, or an error number.
pub(super) type Answer = Result<Vec<u8>, u32>;

impl Client {
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut client = Self { stream, sent: 0 };
        let version = [&[0, 0, 1, 0][..], b"{\"capabilities\":{}}\0"].concat();
        client.ask(Command::Version, &version, None)?.map_err(refused).context("versions")?;
        Ok(client)
    }

    /// Maps `len` bytes of a file for DMA. Without a file, adds a range that the daemon cannot map.
    pub(super) fn map(
        &mut self,
        address: u64,
        len: u64,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<Answer> {
        const READ_WRITE: u32 = 3;
        let offset = file.map_or(0, |(_, offset)| offset);
        let mut body = Vec::from(32u32.to_le_bytes());
        body.extend(READ_WRITE.to_le_bytes());
        body.extend([offset, address, len].map(u64::to_le_bytes).as_flattened());
        self.ask(Command::DmaMap, &body, file.map(|(file, _)| file))
    }

    /// Unmaps ranges of `len` bytes. Returns the number of ranges that were unmapped successfully.
    pub(super) fn unmap_all(&mut self, addresses: &[u64], len: u64) -> Result<usize> {
        let mut messages = Vec::new();
        for address in addresses {
            let mut body = Vec::from(24u32.to_le_bytes());
            body.extend(0u32.to_le_bytes());
            body.extend([*address, len].map(u64::to_le_bytes).as_flattened());
            messages.extend(self.message(Command::DmaUnmap, &body)?);
        }
        self.stream.write_all(&messages)?;
        let mut taken = 0;
        for _ in addresses {
            taken += usize::from(self.answer()?.is_ok());
        }
        Ok(taken)
    }

    pub(super) fn write(&mut self, region: Region, offset: u64, bytes: &[u8]) -> Result<()> {
        let body = [&Self::access(region, offset, bytes.len())?[..], bytes].concat();
        self.ask(Command::RegionWrite, &body, None)?.map(drop).map_err(refused)
    }

    pub(super) fn read(&mut self, region: Region, offset: u64) -> Result<u32> {
        let body = Self::access(region, offset, 4)?;
        let answer = self.ask(Command::RegionRead, &body, None)?.map_err(refused)?;
        let word = answer.get(16..20).context("no data in the reply to a read")?;
        Ok(u32::from_le_bytes(word.try_into()?))
    }

    fn access(region: Region, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut body = Vec::from(offset.to_le_bytes());
        body.extend((region as u32).to_le_bytes());
        body.extend(u32::try_from(len)?.to_le_bytes());
        Ok(body)
    }

    fn ask(&mut self, command: Command, body: &[u8], file: Option<BorrowedFd<'_>>) -> Result<Answer> {
        let message = self.message(command, body)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        if !files.is_empty() {
            ensure!(
                ancillary.push(SendAncillaryMessage::ScmRights(&files)),
                "the control message has no room for a descriptor"
            );
        }
        let sent =
            sendmsg(&self.stream, &[std::io::IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL)?;
        ensure!(sent == message.len(), "{sent} of {} bytes were accepted", message.len());
        self.answer()
    }

    fn message(&mut self, command: Command, body: &[u8]) -> Result<Vec<u8>> {
        self.sent = self.sent.wrapping_add(1);
        let mut message = Vec::from(self.sent.to_le_bytes());
        message.extend((command as u16).to_le_bytes());
        message.extend(u32::try_from(HEADER + body.len())?.to_le_bytes());
        message.extend([0; 8]);
        message.extend(body);
        Ok(message)
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header)?;
        let word = |at: usize| -> Result<u32> { Ok(u32::from_le_bytes(header[at..at + 4].try_into()?)) };
        let (len, flags, error) = (usize::try_from(word(4)?)?, word(8)?, word(12)?);
        let Some(rest) = len.checked_sub(HEADER).filter(|rest| *rest <= LONGEST) else {
            bail!("the reply has an invalid length of {len} bytes");
        };
        let mut body = vec![0; rest];
        self.stream.read_exact(&mut body)?;
        Ok(if flags & ERROR == 0 { Ok(body) } else { Err(error) })
    }
}

fn refused(error: u32) -> anyhow::Error {
    match i32::try_from(error) {
        Ok(error) => std::io::Error::from_raw_os_error(error).into(),
        Err(_) => anyhow::anyhow!("rejected with error {error:#x}"),
    }
}
