//! Access permissions of the devices' sockets: mode and group.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use card::vfio::server::Access;
use nix::unistd::Group;
use rustix::fs::{Gid, Mode};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ConfigError, value};

/// A group, by name or number.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum GroupEntry {
    /// Group ID.
    Number(u32),
    /// Group name, as listed by `getent group`.
    Name(String),
}

/// Access settings of a device, or the default settings in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessEntry<'a> {
    pub(super) mode: Option<&'a str>,
    pub(super) group: Option<&'a GroupEntry>,
}

/// Default access settings for devices without their own.
#[derive(Clone, Debug, Default)]
pub struct SocketsEntry {
    /// Permissions of the sockets, in octal.
    pub(super) mode: Option<String>,
    pub(super) group: Option<GroupEntry>,
}

impl SocketsEntry {
    pub(super) fn entry(&self) -> AccessEntry<'_> {
        AccessEntry { mode: self.mode.as_deref(), group: self.group.as_ref() }
    }

    pub(crate) fn group(&self) -> Option<Gid> {
        self.group.as_ref().and_then(|entry| gid(entry, "socket_group").ok())
    }
}

impl AccessEntry<'_> {
    /// Checks the settings. The default mode permits access by the owner and, if a group is set, by the group. `key` is
    /// the prefix of the configuration keys in error messages.
    pub(super) fn check(self, key: &str) -> Result<Access, ConfigError> {
        let group = self.group.map(|entry| gid(entry, &format!("{key}socket_group"))).transpose()?;
        let mode = match (self.mode, group) {
            (Some(text), _) => mode(text, &format!("{key}socket_mode"))?,
            (None, Some(_)) => Access::PRIVATE.mode | Mode::RGRP | Mode::WGRP,
            (None, None) => Access::PRIVATE.mode,
        };
        Ok(Access { mode, group })
    }

    /// Returns these settings, filling in missing ones from `other`.
    pub(super) fn or(self, other: Self) -> Self {
        Self { mode: self.mode.or(other.mode), group: self.group.or(other.group) }
    }
}

fn mode(text: &str, key: &str) -> Result<Mode, ConfigError> {
    let wrong = || value(key, format!("{text:?} is not an octal mode such as \"0660\""));
    // `from_str_radix` would also accept a sign.
    let is_octal = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let bits =
        u32::from_str_radix(text, 8).ok().filter(|bits| is_octal && *bits <= 0o777).ok_or_else(wrong)?;
    let mode = Mode::from_raw_mode(bits);
    if !mode.contains(Access::PRIVATE.mode) {
        return Err(value(
            key,
            format!("{text:?} denies access to the user that runs hcad; the mode must include 0600"),
        ));
    }
    Ok(mode)
}

fn gid(entry: &GroupEntry, key: &str) -> Result<Gid, ConfigError> {
    match entry {
        // chown(2) interprets `u32::MAX` (that is, -1) as "unchanged".
        GroupEntry::Number(u32::MAX) => Err(value(key, format!("{} is not a valid group ID", u32::MAX))),
        GroupEntry::Number(number) => Ok(Gid::from_raw(*number)),
        GroupEntry::Name(name) => {
            let found = Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw()));
            let number = match found {
                Ok(Some(number)) => {
                    known().insert(name.clone(), number);
                    Some(number)
                }
                Ok(None) | Err(_) => known().get(name).copied(),
            };
            match (number, found) {
                (Some(number), _) => Ok(Gid::from_raw(number)),
                (None, Err(error)) => Err(value(key, format!("cannot look up group {name:?}: {error}"))),
                (None, Ok(_)) => Err(value(key, format!("group {name:?} does not exist"))),
            }
        }
    }
}

/// Returns the cache of group IDs by name. A sandboxed process cannot look up the names again.
fn known() -> MutexGuard<'static, BTreeMap<String, u32>> {
    static KNOWN: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mode: Option<&str>, group: Option<GroupEntry>) -> Result<Access, String> {
        AccessEntry { mode, group: group.as_ref() }.check("devices[0].").map_err(|error| error.to_string())
    }

    #[test]
    fn configured_group_changes_default_mode_to_0660() {
        assert_eq!(check(None, None), Ok(Access::PRIVATE));
        let shared = check(None, Some(GroupEntry::Name("root".into()))).unwrap();
        assert_eq!((shared.mode.bits(), shared.group), (0o660, Some(Gid::from_raw(0))));
        let number = check(Some("666"), Some(GroupEntry::Number(7))).unwrap();
        assert_eq!((number.mode.bits(), number.group), (0o666, Some(Gid::from_raw(7))));
    }

    #[test]
    fn rejects_invalid_mode_and_group() {
        for mode in ["", "rw", "+660", "8", "1777", "99999999999"] {
            let error = check(Some(mode), None).unwrap_err();
            assert!(error.starts_with("devices[0].socket_mode: ") && error.contains("octal"), "{error}");
        }
        assert!(check(Some("0060"), None).unwrap_err().contains("denies access to the user that runs hcad"));
        let error = check(None, Some(GroupEntry::Name("no such group".into()))).unwrap_err();
        assert_eq!(error, "devices[0].socket_group: group \"no such group\" does not exist");
        assert!(check(None, Some(GroupEntry::Number(u32::MAX))).is_err());
    }
}
