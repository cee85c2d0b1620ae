//! What a record is made of.

use std::borrow::Cow;

use protocol::ids::MacAddr;
use twox_hash::XxHash3_64;

/// Longest contents that are kept as they are where they serve to compare: all that a device writes into queues.
const SHORT: usize = 64;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// Nanoseconds that have passed on the device's clock since it was told last.
    Time { passed: u64 },
    /// The client lent a range of its memory.
    Map { iova: u64, len: u64, read: bool, write: bool, reachable: bool },
    /// The client took a range back.
    Unmap { iova: u64, len: u64 },
    /// The client took all ranges back, or is gone.
    UnmapAll,
    /// A step begins.
    Input(Input<'a>),
    /// The device read guest memory. `None`: it was not allowed to.
    Read { iova: u64, len: usize, bytes: Option<&'a [u8]> },
    /// The device wrote guest memory, or was not allowed to.
    Write { iova: u64, data: Content<'a>, done: bool },
    /// The device exchanged a word of guest memory.
    Update { iova: u64, outcome: Update },
    /// The device signalled a vector to the client.
    Interrupt { vector: usize },
    /// A frame for the fabric.
    Frame(Content<'a>),
    /// What the client read.
    Answer(Content<'a>),
    /// The step [`Input::Drain`] is over, and left work of these kinds.
    Drained { frames: bool, other: bool },
    /// The record ends.
    End(Ending),
}

/// What is told to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the device's functions")]
pub enum Input<'a> {
    /// The client reads; `region` is an index of `linux/vfio.h`.
    RegionRead { region: u8, offset: u64, len: usize },
    /// The client writes.
    RegionWrite { region: u8, offset: u64, data: Cow<'a, [u8]> },
    /// A vector gets an eventfd, or loses it.
    Eventfd { vector: usize, present: bool },
    /// The client masks or unmasks a vector.
    Mask { vector: usize, masked: bool },
    /// The client signals a vector.
    Trigger { vector: usize },
    /// The client takes all eventfds away.
    Unwire,
    /// The client resets the function.
    Reset,
    /// The client is gone.
    Disconnect,
    /// A frame arrived from the fabric.
    Frame(Cow<'a, [u8]>),
    /// A deadline may have passed.
    Deadline,
    /// A turn ends.
    Drain,
    /// The fabric has taken frames; so many are left.
    Left { frames: usize },
    /// The cable is plugged in or pulled out.
    Link { up: bool },
    /// The device is to fail.
    Fail,
    /// Somebody has a MAC.
    Know(MacAddr),
    /// Nobody has it any more.
    Forget(MacAddr),
    /// An impairment begins, as JSON of the configuration.
    Impair(Cow<'a, str>),
    /// An impairment ends, or all.
    Unimpair(Option<u32>),
}

/// What became of an exchange of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    /// There was one value, and now there is the other.
    Replaced { before: u64, after: u64 },
    /// It was left.
    Kept(u64),
    /// The device was not allowed to.
    Refused,
}

/// Bytes to compare others with: themselves, or a digest where they are many.
///
/// The digest is no CRC: what frames carry ends with CRCs, and a CRC over those hides what they cover.
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

/// Why a record has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The daemon ended, or was asked to end the record.
    Closed,
    /// The device failed: the last step may be a part of one.
    Failed,
    /// The file has reached its bound.
    Full,
    /// More came than the file took in time.
    Overrun,
}

impl Input<'_> {
    /// The same with bytes of its own.
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
            Self::Know(mac) => Input::Know(mac),
            Self::Forget(mac) => Input::Forget(mac),
            Self::Impair(rule) => Input::Impair(Cow::Owned(rule.into_owned())),
            Self::Unimpair(id) => Input::Unimpair(id),
        }
    }
}
