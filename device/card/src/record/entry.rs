//! Entries of a recording.

use std::borrow::Cow;

use protocol::ids::MacAddr;
use twox_hash::XxHash3_64;

/// Maximum length of data recorded in full for comparison. Queue entries written by a device are never longer.
const SHORT: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// Nanoseconds elapsed on the device's clock since the last entry of this kind.
    Time {
        passed: u64,
    },
    /// The client mapped memory.
    Map {
        iova: u64,
        len: u64,
        read: bool,
        write: bool,
        reachable: bool,
    },
    /// The client unmapped memory.
    Unmap {
        iova: u64,
        len: u64,
    },
    /// The client unmapped all memory, or disconnected.
    UnmapAll,
    Input(Input<'a>),
    /// The device read guest memory. `None` means that the access was denied.
    Read {
        iova: u64,
        len: usize,
        bytes: Option<&'a [u8]>,
    },
    /// The device wrote guest memory, or the access was denied.
    Write {
        iova: u64,
        data: Content<'a>,
        done: bool,
    },
    /// The device executed a compare-and-swap on guest memory.
    Update {
        iova: u64,
        outcome: Update,
    },
    /// The device signalled a vector to the client.
    Interrupt {
        vector: usize,
    },
    /// The device sent a frame to the fabric.
    Frame(Content<'a>),
    /// The device answered a client read with this data.
    Answer(Content<'a>),
    /// An [`Input::Drain`] step ended with these kinds of work pending.
    Drained {
        frames: bool,
        other: bool,
    },
    End(Ending),
}

/// An input to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The client reads a region. `region` is a region index from `linux/vfio.h`.
    RegionRead {
        region: u8,
        offset: u64,
        len: usize,
    },
    /// The client writes a region.
    RegionWrite {
        region: u8,
        offset: u64,
        data: Cow<'a, [u8]>,
    },
    /// The client sets or clears the eventfd of a vector.
    Eventfd {
        vector: usize,
        present: bool,
    },
    /// The client masks or unmasks a vector.
    Mask {
        vector: usize,
        masked: bool,
    },
    /// The client signals a vector.
    Trigger {
        vector: usize,
    },
    /// The client clears all eventfds.
    Unwire,
    /// The client resets the function.
    Reset,
    Disconnect,
    /// A frame arrived from the fabric.
    Frame(Cow<'a, [u8]>),
    /// A deadline may have passed.
    Deadline,
    Drain,
    /// The fabric has taken frames from the outgoing batch. `frames` is the number of frames left in the batch.
    Left {
        frames: usize,
    },
    /// The cable is plugged in or unplugged.
    Link {
        up: bool,
    },
    /// The operator injects a device error.
    Fail,
    /// A host with this MAC appears on the fabric.
    AddNeighbour(MacAddr),
    /// A host with this MAC disappears.
    RemoveNeighbour(MacAddr),
    /// An impairment is added. The text is its JSON form, as in the configuration.
    Impair(Cow<'a, str>),
    /// An impairment is removed. If the ID is `None`, all impairments are removed.
    Unimpair(Option<u32>),
}

/// Result of a compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    /// The word was replaced.
    Replaced { before: u64, after: u64 },
    /// The word was left unchanged.
    Kept(u64),
    /// The access was denied.
    Refused,
}

/// Bytes to compare, stored in full if they are short, otherwise as a digest.
///
/// The digest is not a CRC, because frames end with their CRC, and the CRC of data followed by its own CRC is a
/// constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    Bytes(&'a [u8]),
    Digest { len: usize, xxh3: u64 },
}

impl<'a> Content<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        match bytes.len() {
            len if len > SHORT => Self::Digest { len, xxh3: XxHash3_64::oneshot(bytes) },
            _ => Self::Bytes(bytes),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Digest { len, .. } => *len,
        }
    }
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The daemon stopped, or recording was ended on request.
    Closed,
    /// The device failed. The last step may be incomplete.
    Failed,
    /// The file reached its size limit.
    Full,
    /// The file could not be written fast enough.
    Overrun,
}

impl Input<'_> {
    pub(super) fn into_owned(self) -> Input<'static> {
        match self {
            Self::RegionRead { region, offset, len } => Input::RegionRead { region, offset, len },
            Self::RegionWrite { region, offset, data } => {
                Input::RegionWrite { region, offset, data: Cow::Owned(data.into_owned()) }
            }
            Self::Eventfd { vector, present } => Input::Eventfd { vector, present },
            Self::Mask { vector, masked } => Input::Mask { vector, masked },
            Self::Trigger { vector } => Input::Trigger { vector },
            Self::Unwire => Input::Unwire,
            Self::Reset => Input::Reset,
            Self::Disconnect => Input::Disconnect,
            Self::Frame(frame) => Input::Frame(Cow::Owned(frame.into_owned())),
            Self::Deadline => Input::Deadline,
            Self::Drain => Input::Drain,
            Self::Left { frames } => Input::Left { frames },
            Self::Link { up } => Input::Link { up },
            Self::Fail => Input::Fail,
            Self::AddNeighbour(mac) => Input::AddNeighbour(mac),
            Self::RemoveNeighbour(mac) => Input::RemoveNeighbour(mac),
            Self::Impair(rule) => Input::Impair(Cow::Owned(rule.into_owned())),
            Self::Unimpair(id) => Input::Unimpair(id),
        }
    }
}
