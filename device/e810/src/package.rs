//! The dynamic device personalization (DDP) package loaded by the driver. The device keeps only the package's name, its
//! version, and its packet type groups, which drivers use to program RSS. On silicon, the package configures the
//! parser, but here the parser is fixed.
//!
//! A loaded package survives function resets but not device resets.
//!
//! # Spec
//! E810 interface, sections 1.2 and 7.

use protocol::hca::e810::package::{Metadata, PackageInfo};

use super::rss::profiles::PacketGroups;

/// Track ID reported for any package.
const TRACK: u32 = 0xc000_0001;

#[derive(Clone, Debug, Default)]
pub struct Package {
    metadata: Option<Metadata>,
    packet_groups: PacketGroups,
    complete: bool,
}

impl Package {
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    /// Adds a segment of the package. The first segment with metadata determines the package's name and version.
    pub fn add(&mut self, segment: &[u8]) {
        self.metadata = self.metadata.or_else(|| Metadata::find(segment));
        self.packet_groups.add(segment);
    }

    pub fn end(&mut self) {
        self.complete = self.metadata.is_some();
    }

    /// Returns whether a package is loaded.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) const fn packet_groups(&self) -> &PacketGroups {
        &self.packet_groups
    }

    /// Returns information about the package that is loaded or being loaded, if its metadata is known.
    pub fn info(&self) -> Option<PackageInfo> {
        let Metadata { version, name, .. } = self.metadata?;
        Some(PackageInfo { version, name, track_id: TRACK, active: true, ..PackageInfo::default() })
    }
}
