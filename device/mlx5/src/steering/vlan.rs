//! VLAN tags that flow table entries remove and insert.

use std::borrow::Cow;

use card::nic::vlan::{self, Insertion};
use protocol::net::layers::{Layers, VlanTag};
use smallvec::SmallVec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanEdit {
    /// Removes the outermost tag. An untagged frame is left unchanged.
    Pop,
    /// Inserts a tag in front of the others.
    Push(VlanTag),
}

/// Edits to a frame, in order of application.
///
/// Each table that the frame visits adds at most two edits.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VlanEdits(SmallVec<[VlanEdit; 2]>);

impl VlanEdits {
    pub(super) fn extend(&mut self, edits: impl IntoIterator<Item = VlanEdit>) {
        self.0.extend(edits);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the edited frame. If there are no edits, the frame is not copied.
    pub fn apply<'a>(&self, frame: &'a [u8]) -> Cow<'a, [u8]> {
        self.0.iter().fold(Cow::Borrowed(frame), |frame, edit| edit.apply(&frame).map_or(frame, Cow::Owned))
    }
}

impl VlanEdit {
    /// Returns the edited frame, or `None` if the frame is left unchanged.
    fn apply(self, frame: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Pop => {
                Layers::parse(frame).ok()?.outer_tag?;
                Some(vlan::strip(frame)?.concat())
            }
            Self::Push(tag) => {
                let (addresses, rest) = frame.split_at_checked(vlan::ADDRESSES_LEN)?;
                Some([addresses, Insertion::new(Some(tag), None).bytes(), rest].concat())
            }
        }
    }
}
