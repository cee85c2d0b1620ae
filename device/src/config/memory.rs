//! Limits on the guest memory that a VMM can map.

use card::memory::limits::{DEFAULT_BYTES, MAX_BYTES_OF_ALL};
use card::memory::{FileSystems, Limits};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ConfigError, value};

const GIB: u64 = 1 << 30;

/// Limits on the guest memory that the VMM can map.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuestMemoryEntry {
    /// Maximum total size, in GiB, of the files that the VMM maps as guest memory. hcad counts each file at
    /// its full size, even if only part of the file is mapped. The limits of all devices together must not
    /// exceed 65536 GiB. Default: 1024, or 32768 divided by the number of devices if that is less.
    pub max_gib: Option<u32>,
    /// Accepted file systems for the files that back guest memory.
    pub files: FileSystems,
}

impl GuestMemoryEntry {
    /// Checks the limits of a device. `devices` is the total number of devices, and `left` is the part of the overall
    /// limit, in bytes, that remains after the preceding devices.
    pub(super) fn check(&self, devices: usize, left: &mut u64, key: &str) -> Result<Limits, ConfigError> {
        // The running devices keep their limits when others are added, so the defaults leave half of the total to
        // devices that are added later.
        let share = MAX_BYTES_OF_ALL / 2 / u64::try_from(devices.max(1)).unwrap_or(u64::MAX);
        let bytes = self.max_gib.map_or(DEFAULT_BYTES.min(share), |gib| u64::from(gib) * GIB);
        *left = left.checked_sub(bytes).ok_or_else(|| {
            let (bytes, left) = (bytes / GIB, *left / GIB);
            value(
                &format!("{key}.max_gib"),
                format!("{bytes} GiB exceeds the {left} GiB left by the preceding devices"),
            )
        })?;
        Ok(Limits { bytes, file_systems: self.files, ..Limits::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, device};
    use super::super::{DeviceConfig, SocketsEntry, check_together};

    #[test]
    fn devices_with_default_limits_leave_memory_for_others() {
        let entry =
            |id: u32| device("").replace("258", &id.to_string()).replace("7000", &(7000 + id).to_string());
        let running: Vec<_> = (1..=64).map(entry).collect();
        let mut all = check(&running.join(",")).unwrap().devices;
        let sockets = SocketsEntry { mode: None, group: None };
        for id in 65..=128 {
            let added = serde_json::from_str(&entry(id)).unwrap();
            let added = DeviceConfig::beside(added, &sockets, &all.iter().collect::<Vec<_>>()).unwrap();
            all.push(added);
        }
        let named: Vec<_> = all.iter().map(|device| (String::new(), device)).collect();
        check_together(&named).unwrap();
    }

    #[test]
    fn guest_memory_limit_is_divided_among_devices() {
        const GIB: u64 = 1 << 30;
        let one = |id: u32, extra: &str| {
            device(extra).replace("258", &id.to_string()).replace("7000", &(7000 + id).to_string())
        };
        let bytes = |devices: &[String]| -> Result<Vec<u64>, String> {
            Ok(check(&devices.join(","))?.devices.iter().map(|device| device.memory.bytes / GIB).collect())
        };
        assert_eq!(bytes(&[device("")]), Ok(vec![1024]));
        assert_eq!(bytes(&[device(r#", "guest_memory": {"max_gib": 65536}"#)]), Ok(vec![65536]));
        let many: Vec<_> = (1..=128).map(|id| one(id, "")).collect();
        assert_eq!(bytes(&many), Ok(vec![256; 128]));
        let large = r#", "guest_memory": {"max_gib": 40000, "files": "any"}"#;
        let error = bytes(&[one(1, large), one(2, large)]).unwrap_err();
        assert!(error.contains(
            "devices[1].guest_memory.max_gib: 40000 GiB exceeds the 25536 GiB left by the preceding devices"
        ));
        let config = check(&device(large)).unwrap();
        assert_eq!(config.devices[0].memory.file_systems, card::memory::FileSystems::Any);
    }
}
