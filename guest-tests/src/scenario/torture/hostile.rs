//! A client that means harm to the process that serves it, and one that does not.

mod disk;
mod wire;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use self::disk::FullDisk;
use self::wire::{Client, Region};

const PAGE: u64 = 4096;
/// Files that together are as long as the address space of a process (128 TiB), none of which has any content.
const HUGE_FILES: u64 = 80;
const HUGE: u64 = (128 << 40) / HUGE_FILES + PAGE;
/// As long as the bus addresses of a machine.
const EVERYTHING: u64 = 1 << 48;
/// Holes in it: more windows than a daemon may be made to remember (65,535).
const HOLES: u64 = 70_000;
/// Holes asked for at once.
const BATCH: usize = 256;
/// Memory of somebody who does nothing wrong.
const GUEST_MEMORY: u64 = 64 << 20;
/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;
/// Until a client that has left has made place for the next.
const SUCCESSION: Duration = Duration::from_secs(60);

/// Ways to harm a process that maps what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attack {
    /// Use up its address space: files longer than all memory, a page of each.
    HugeFiles,
    /// Use up its memory: one window, cut into more and more.
    ManyWindows,
    /// Let it fault: huge pages that the host does not have.
    NoHugePages,
    /// Let it fault: a hole in a file on a disk that is full.
    FullDisk,
    /// Let it fault: a file that is cut short once it is mapped.
    CutFile,
}

/// What an attack holds on to.
#[derive(Debug)]
pub(super) struct Attacker {
    _client: Option<Client>,
    _files: Vec<OwnedFd>,
    _disk: Option<FullDisk>,
}

impl Attack {
    pub(super) const ALL: &[Self] =
        &[Self::HugeFiles, Self::ManyWindows, Self::NoHugePages, Self::FullDisk, Self::CutFile];

    /// Returns why it cannot be tried on this machine, if it cannot.
    pub(super) fn obstacle(self) -> Option<String> {
        let tried = match self {
            Self::FullDisk => FullDisk::create().map(drop),
            Self::NoHugePages => memory("huge", HUGE_PAGE, MemfdFlags::HUGETLB).map(drop),
            Self::HugeFiles | Self::ManyWindows | Self::CutFile => Ok(()),
        };
        tried.err().map(|error| format!("{error:#}"))
    }

    /// Does it, as far as it is let.
    ///
    /// # Errors
    /// When it could not even be tried, or got further than it may.
    pub(super) fn begin(self, socket: &Path) -> Result<Attacker> {
        let mut client = connect(socket)?;
        let mut files = Vec::new();
        let mut disk = None;
        // Where it is not let, it is answered with an error or thrown out. Both are right.
        let outcome = match self {
            Self::HugeFiles => huge_files(&mut client, &mut files),
            Self::ManyWindows => many_windows(&mut client),
            Self::NoHugePages => {
                files.push(
                    memory("huge", 4 * HUGE_PAGE, MemfdFlags::HUGETLB).context("a file of huge pages")?,
                );
                let file = files[0].as_fd();
                touch(&mut client, HUGE_PAGE, |client| {
                    Ok(client.map(0, 4 * HUGE_PAGE, Some((file, 0)))?.is_ok())
                })
            }
            Self::FullDisk => {
                let full = disk.insert(FullDisk::create()?);
                let file = full.file();
                touch(&mut client, PAGE, |client| {
                    Ok(client.map(0, full.len(), Some((file.as_fd(), 0)))?.is_ok())
                })
            }
            Self::CutFile => {
                files.push(unsealed("cut", GUEST_MEMORY, MemfdFlags::empty())?);
                let file = files[0].as_fd();
                touch(&mut client, PAGE, |client| {
                    let mapped = client.map(0, GUEST_MEMORY, Some((file, 0)))?.is_ok();
                    ftruncate(file, 0)?;
                    Ok(mapped)
                })
            }
        };
        if let Err(error) = &outcome {
            tracing::debug!("{self:?}: {error:#}");
        }
        if self == Self::ManyWindows {
            ensure!(
                outcome.as_ref().map_or(true, |holes| *holes < HOLES),
                "the daemon keeps {HOLES} DMA windows of one client"
            );
        }
        Ok(Attacker { _client: outcome.is_ok().then_some(client), _files: files, _disk: disk })
    }
}

/// Maps a page each; how many were.
fn huge_files(client: &mut Client, files: &mut Vec<OwnedFd>) -> Result<u64> {
    let mut mapped = 0;
    for number in 0..HUGE_FILES {
        files.push(memory("sparse", HUGE, MemfdFlags::empty())?);
        let file = files.last().context("just made")?;
        mapped += u64::from(client.map(number * PAGE, PAGE, Some((file.as_fd(), 0)))?.is_ok());
    }
    Ok(mapped)
}

/// Takes every second page of one window; how many were taken.
fn many_windows(client: &mut Client) -> Result<u64> {
    ensure!(client.map(0, EVERYTHING, None)?.is_ok(), "not mapped");
    let holes: Vec<u64> = (0..HOLES).map(|hole| (2 * hole + 1) * PAGE).collect();
    let mut taken = 0;
    for batch in holes.chunks(BATCH) {
        taken += client.unmap_all(batch, PAGE)? as u64;
    }
    Ok(taken)
}

/// Lets the device write to an address it was lent; 1 if it did.
fn touch(client: &mut Client, address: u64, map: impl FnOnce(&mut Client) -> Result<bool>) -> Result<u64> {
    ensure!(map(client)?, "not mapped");
    Ok(u64::from(query_adapter(client, address)? == 0))
}

/// Does what every client does: connects, lends memory, has a command executed.
pub(super) fn behave(socket: &Path) -> Result<()> {
    let mut client = connect(socket)?;
    let file = memory("guest", GUEST_MEMORY, MemfdFlags::empty())?;
    let mapped = client.map(0, GUEST_MEMORY, Some((file.as_fd(), 0)))?;
    ensure!(mapped.is_ok(), "mapping its memory failed with error {mapped:?}");
    let status = query_adapter(&mut client, GUEST_MEMORY - PAGE)?;
    ensure!(status == 0, "QUERY_ADAPTER completed with status {status}");
    let mut answer = [0; 32];
    rustix::io::pread(&file, &mut answer, GUEST_MEMORY - PAGE)?;
    ensure!(answer != [0; 32], "QUERY_ADAPTER wrote nothing");
    Ok(())
}

/// Connects where another client may just be leaving.
fn connect(socket: &Path) -> Result<Client> {
    let deadline = Instant::now() + SUCCESSION;
    loop {
        match Client::connect(socket) {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            connected => return connected,
        }
    }
}

/// Has QUERY_ADAPTER write to an address; its status (JingZhao interface, sections 1.2 and 3.2).
fn query_adapter(client: &mut Client, mailbox: u64) -> Result<u32> {
    const HCR: u64 = 0x8_0000;
    const GO: u32 = 1 << 23;
    const QUERY_ADAPTER: u32 = 6;
    // Memory space and bus master.
    client.write(Region::Config, 4, &[6, 0])?;
    let [high, low] = [mailbox >> 32, mailbox & 0xffff_ffff].map(u32::try_from);
    for (offset, value) in [(0x0c, high?), (0x10, low?), (0x18, GO | QUERY_ADAPTER)] {
        client.write(Region::Bar0, HCR + offset, &value.to_le_bytes())?;
    }
    let word = client.read(Region::Bar0, HCR + 0x18)?;
    ensure!(word & GO == 0, "a command had not completed when the write that started it was acknowledged");
    Ok(word >> 24)
}

/// A memory file that cannot shrink, as QEMU's.
fn memory(name: &str, len: u64, flags: MemfdFlags) -> Result<OwnedFd> {
    let file = unsealed(name, len, flags)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// A memfd without seals, which can shrink.
fn unsealed(name: &str, len: u64, flags: MemfdFlags) -> Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
    ftruncate(&file, len)?;
    Ok(file)
}
