//! Version, queue shutdown and resource lock commands: 0001, 0002, 0003, 0008, 0009.
//!
//! # Spec
//! E810 interface, sections 5.2 and 7.1.

use std::fmt;

use crate::describe::{Field, Value, Visitor};
use crate::layout;

layout! {
    /// Response to "get version".
    pub struct Version[16] {
        /// The boot ROM's version.
        @0   rom: u32,
        /// The firmware's build ID.
        @4   build: u32 => Hex,
        /// Branch of the firmware version.
        @8   firmware_branch: u8,
        @9   firmware_major: u8,
        @10  firmware_minor: u8,
        /// The firmware's patch level.
        @11  firmware_patch: u8,
        /// Branch of the API version.
        @12  api_branch: u8,
        /// Major API version; always 1.
        @13  api_major: u8,
        @14  api_minor: u8,
        /// The API's patch level.
        @15  api_patch: u8,
    }
}

layout! {
    /// Parameters of "driver version". The buffer contains the version as text.
    pub struct DriverVersion[16] {
        @0   major: u8,
        @1   minor: u8,
        @2   build: u8,
        @3   sub_build: u8,
    }
}

layout! {
    /// Parameters of "queue shutdown".
    pub struct QueueShutdown[16] {
        /// Whether the driver is being unloaded.
        @0[0]  unloading: bool,
    }
}

layout! {
    /// Parameters of "request resource", its response, and "release resource".
    pub struct ResourceLock[16] {
        /// Resource to lock or release.
        @0   resource: ResourceId as u16,
        /// Either [`ACCESS_READ`] or [`ACCESS_WRITE`].
        @2   access: u16,
        /// Requested or granted time in milliseconds.
        @4   timeout: u32,
        /// Resource number. No resource lock uses it.
        @8   number: u32,
        /// In a response for the global configuration lock: 0 if granted, 1 if configuration is in progress, or
        /// [`STATUS_DONE`].
        @12  status: u16,
    }
}

/// Read access to a [`ResourceLock`].
pub const ACCESS_READ: u16 = 1;
/// Write access to a [`ResourceLock`].
pub const ACCESS_WRITE: u16 = 2;
/// Status of a [`ResourceLock`] if another function has already configured the device.
pub const STATUS_DONE: u16 = 2;

/// A resource that only one function can use at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ResourceId {
    /// The flash memory (NVM).
    Nvm,
    /// Tables that the DDP package configures.
    ChangeLock,
    /// DDP package download, which configures the whole device.
    GlobalConfig,
    Other(u16),
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvm => f.pad("nvm"),
            Self::ChangeLock => f.pad("change_lock"),
            Self::GlobalConfig => f.pad("global_config"),
            Self::Other(code) => write!(f, "{code:#x}"),
        }
    }
}

impl From<u16> for ResourceId {
    fn from(code: u16) -> Self {
        match code {
            1 => Self::Nvm,
            3 => Self::ChangeLock,
            4 => Self::GlobalConfig,
            other => Self::Other(other),
        }
    }
}

impl From<ResourceId> for u16 {
    fn from(resource: ResourceId) -> Self {
        match resource {
            ResourceId::Nvm => 1,
            ResourceId::ChangeLock => 3,
            ResourceId::GlobalConfig => 4,
            ResourceId::Other(code) => code,
        }
    }
}

impl Field for ResourceId {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let value = match *self {
            Self::Nvm => Value::Name("nvm"),
            Self::ChangeLock => Value::Name("change_lock"),
            Self::GlobalConfig => Value::Name("global_config"),
            Self::Other(code) => Value::Hex(code.into()),
        };
        to.value(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The response is the example in section 16.3.
    #[test]
    fn version_matches_published_response() {
        let version = Version {
            build: 0x8001_4040,
            firmware_major: 6,
            firmware_minor: 1,
            api_major: 1,
            api_minor: 5,
            ..Version::default()
        };
        let golden = [0, 0, 0, 0, 0x40, 0x40, 0x01, 0x80, 0, 6, 1, 0, 0, 1, 5, 0];
        assert_eq!(version.emit(), golden);
    }

    /// Uses command 0008 from the recording `probe-synth-fd.aq.gz`.
    #[test]
    fn parses_recorded_nvm_lock_request() {
        let lock = ResourceLock::parse(&[1, 0, 1, 0, 0x20, 0xbf, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((lock.resource, lock.access, lock.timeout), (ResourceId::Nvm, ACCESS_READ, 180_000));
    }
}
