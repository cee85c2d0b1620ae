//! Commands about the queue itself, the driver and its locks: 0001, 0002, 0003, 0008, 0009.
//!
//! # Spec
//! E810 interface, sections 5.2 and 7.1.

use std::fmt;

use crate::describe::{Field, Value, Visitor};
use crate::layout;

layout! {
    /// Answer of "get version".
    pub struct Version[16] {
        /// Of the boot ROM.
        @0   rom: u32,
        /// Of the firmware's sources.
        @4   build: u32 => Hex,
        /// Firmware.
        @8   firmware_branch: u8,
        /// Firmware.
        @9   firmware_major: u8,
        /// Firmware.
        @10  firmware_minor: u8,
        /// Firmware.
        @11  firmware_patch: u8,
        /// Interface.
        @12  api_branch: u8,
        /// Interface; 1.
        @13  api_major: u8,
        /// Interface.
        @14  api_minor: u8,
        /// Interface.
        @15  api_patch: u8,
    }
}

layout! {
    /// Version of the driver, whose text is in the buffer.
    pub struct DriverVersion[16] {
        /// Major.
        @0   major: u8,
        /// Minor.
        @1   minor: u8,
        /// Build.
        @2   build: u8,
        /// Below it.
        @3   sub_build: u8,
    }
}

layout! {
    /// "Queue shutdown".
    pub struct QueueShutdown[16] {
        /// The driver is being unloaded.
        @0[0]  unloading: bool,
    }
}

layout! {
    /// "Request resource", its answer, and "release resource".
    pub struct ResourceLock[16] {
        /// Which lock.
        @0   resource: ResourceId as u16,
        /// 1 to read, 2 to write.
        @2   access: u16,
        /// For how long it is wanted or granted, milliseconds.
        @4   timeout: u32,
        /// Not used by the locks there are.
        @8   number: u32,
        /// Answer about the global configuration: 0 granted, 1 in progress, 2 done already.
        @12  status: u16,
    }
}

/// Access of [`ResourceLock`]: to read.
pub const ACCESS_READ: u16 = 1;
/// Access of [`ResourceLock`]: to write.
pub const ACCESS_WRITE: u16 = 2;
/// Status of [`ResourceLock`]: somebody has configured the device already, there is nothing left to do.
pub const STATUS_DONE: u16 = 2;

/// Something that one function at a time may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceId {
    /// The flash.
    Nvm,
    /// Tables that the package has set up.
    ChangeLock,
    /// Configuration of the whole device by a package.
    GlobalConfig,
    /// None of them.
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

    /// Section 16.3.
    #[test]
    fn the_version_is_answered_as_published() {
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

    /// 0008 of `probe-synth-fd.aq.gz`.
    #[test]
    fn the_lock_of_the_flash_is_asked_for_as_recorded() {
        let lock = ResourceLock::parse(&[1, 0, 1, 0, 0x20, 0xbf, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((lock.resource, lock.access, lock.timeout), (ResourceId::Nvm, ACCESS_READ, 180_000));
    }
}
