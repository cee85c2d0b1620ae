//! The package that the driver has loaded. Of its content the device keeps what it is called, and how it groups packet types,
//! in terms of which drivers program receive side scaling: the parser that a package sets up in silicon is written out in
//! this one.
//!
//! A package is loaded once, until the whole device is reset: a function that is reset finds it there.
//!
//! # Spec
//! E810 interface, sections 1.2 and 7.

use protocol::hca::e810::package::{Metadata, PackageInfo};

use super::rss::profiles::PacketGroups;

/// What the driver is told of the track of any package.
const TRACK: u32 = 0xc000_0001;

/// State of the package.
#[derive(Clone, Debug, Default)]
pub struct Package {
    metadata: Option<Metadata>,
    packet_groups: PacketGroups,
    complete: bool,
}

impl Package {
    /// Somebody is about to load a package.
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    /// A piece of a package arrives. The first that says what it is called names the package.
    pub fn add(&mut self, piece: &[u8]) {
        self.metadata = self.metadata.or_else(|| Metadata::find(piece));
        self.packet_groups.add(piece);
    }

    /// Whoever was to load a package is done.
    pub fn end(&mut self) {
        self.complete = self.metadata.is_some();
    }

    /// Whether a package is loaded.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Its groups of packet types.
    pub(super) const fn packet_groups(&self) -> &PacketGroups {
        &self.packet_groups
    }

    /// The package that is loaded, or being loaded.
    pub fn info(&self) -> Option<PackageInfo> {
        let Metadata { version, name, .. } = self.metadata?;
        Some(PackageInfo { version, name, track_id: TRACK, active: true, ..PackageInfo::default() })
    }
}
