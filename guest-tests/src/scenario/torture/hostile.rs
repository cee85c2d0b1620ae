//! Attacks by a hostile client on its daemon, and a well-behaved client for comparison.

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
/// Number of sparse files. Together, they exceed the address space of a process (128 TiB).
const HUGE_FILES: u64 = 80;
const HUGE: u64 = (128 << 40) / HUGE_FILES + PAGE;
/// Size of the bus address space.
const EVERYTHING: u64 = 1 << 48;
/// Number of holes to create in the address space. Together, they would split it into more than the 65,535 windows that
/// the daemon accepts.
const HOLES: u64 = 70_000;
/// Number of unmap requests sent before the replies are read.
const BATCH: usize = 256;
const GUEST_MEMORY: u64 = 64 << 20;
const HUGE_PAGE: u64 = 2 << 20;
/// How long the daemon may take to accept the next client after the previous one disconnects.
const SUCCESSION: Duration = Duration::from_secs(60);

/// Attacks on a daemon that maps memory provided by its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attack {
    /// Exhausts the daemon's address space with huge sparse files. One page of each file is mapped for DMA.
    HugeFiles,
    /// Exhausts the daemon's memory by splitting one window into more and more windows.
    ManyWindows,
    /// Causes page faults in a file of huge pages when the host has no free huge pages.
    NoHugePages,
    /// Causes page faults in a hole of a file on a full disk.
    FullDisk,
    /// Causes page faults in a file that is truncated after it has been mapped.
    CutFile,
}

/// Resources that are held for the duration of an attack.
#[derive(Debug)]
pub(super) struct Attacker {
    _client: Option<Client>,
    _files: Vec<OwnedFd>,
    _disk: Option<FullDisk>,
}

impl Attack {
    pub(super) const ALL: &[Self] =
        &[Self::HugeFiles, Self::ManyWindows, Self::NoHugePages, Self::FullDisk, Self::CutFile];

    /// Returns why this machine cannot run the attack, or `None` if it can.
    pub(super) fn obstacle(self) -> Option<String> {
        let tried = match self {
            Self::FullDisk => FullDisk::create().map(drop),
            Self::NoHugePages => memory("huge", HUGE_PAGE, MemfdFlags::HUGETLB).map(drop),
            Self::HugeFiles | Self::ManyWindows | Self::CutFile => Ok(()),
        };
        tried.err().map(|error| format!("{error:#}"))
    }

    /// Runs the attack as far as the daemon permits.
    ///
    /// # Errors
    /// Fails if the attack could not be attempted or if the daemon permitted more than it should have.
    pub(super) fn begin(self, socket: &Path) -> Result<Attacker> {
        let mut client = connect(socket)?;
        let mut files = Vec::new();
        let mut disk = None;
        // The daemon may reject the attack with an error, or disconnect the client. Either is correct.
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

/// Maps one page of each file. Returns the number of mapped pages.
fn huge_files(client: &mut Client, files: &mut Vec<OwnedFd>) -> Result<u64> {
    let mut mapped = 0;
    for number in 0..HUGE_FILES {
        files.push(memory("sparse", HUGE, MemfdFlags::empty())?);
        let file = files.last().context("the list of files is empty")?;
        mapped += u64::from(client.map(number * PAGE, PAGE, Some((file.as_fd(), 0)))?.is_ok());
    }
    Ok(mapped)
}

/// Unmaps every second page of a window. Returns the number of unmapped pages.
fn many_windows(client: &mut Client) -> Result<u64> {
    ensure!(client.map(0, EVERYTHING, None)?.is_ok(), "the daemon rejected the mapping");
    let holes: Vec<u64> = (0..HOLES).map(|hole| (2 * hole + 1) * PAGE).collect();
    let mut taken = 0;
    for batch in holes.chunks(BATCH) {
        taken += client.unmap_all(batch, PAGE)? as u64;
    }
    Ok(taken)
}

/// Maps memory and makes the device write to it. Returns 1 if the write succeeded and 0 if it failed.
fn touch(client: &mut Client, address: u64, map: impl FnOnce(&mut Client) -> Result<bool>) -> Result<u64> {
    ensure!(map(client)?, "the daemon rejected the mapping");
    Ok(u64::from(query_adapter(client, address)? == 0))
}

/// Connects, maps memory and executes a command, as a well-behaved client would.
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

/// Connects to the daemon. If another client is still disconnecting, retries until the daemon accepts the connection.
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

/// Makes QUERY_ADAPTER write to an address and returns the command's status (JingZhao interface, sections 1.2 and 3.2).
fn query_adapter(client: &mut Client, mailbox: u64) -> Result<u32> {
    const HCR: u64 = 0x8_0000;
    const GO: u32 = 1 << 23;
    const QUERY_ADAPTER: u32 = 6;
    // Enable memory space and bus mastering.
    client.write(Region::Config, 4, &[6, 0])?;
    let [high, low] = [mailbox >> 32, mailbox & 0xffff_ffff].map(u32::try_from);
    for (offset, value) in [(0x0c, high?), (0x10, low?), (0x18, GO | QUERY_ADAPTER)] {
        client.write(Region::Bar0, HCR + offset, &value.to_le_bytes())?;
    }
    let word = client.read(Region::Bar0, HCR + 0x18)?;
    ensure!(word & GO == 0, "a command had not completed when the write that started it was acknowledged");
    Ok(word >> 24)
}

/// Creates a memfd that is sealed against shrinking, as QEMU's are.
fn memory(name: &str, len: u64, flags: MemfdFlags) -> Result<OwnedFd> {
    let file = unsealed(name, len, flags)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

fn unsealed(name: &str, len: u64, flags: MemfdFlags) -> Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
    ftruncate(&file, len)?;
    Ok(file)
}
