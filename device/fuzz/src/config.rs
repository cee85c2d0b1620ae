//! Fuzzes the configuration file parser.

use std::collections::HashSet;

use card::memory::limits::MAX_BYTES_OF_ALL;
use device::config::{Config, ConfigFile};

/// Runs one input. Any text is either rejected with a one-line error or accepted as a configuration that devices can be
/// created from.
pub fn run(input: &[u8]) {
    let Ok(file) = serde_json::from_slice::<ConfigFile>(input) else { return };
    match Config::try_from(file) {
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        Ok(config) => {
            assert!(!config.devices.is_empty());
            assert!(config.devices.iter().map(|device| device.memory.bytes).sum::<u64>() <= MAX_BYTES_OF_ALL);
            let sockets = || config.devices.iter().filter_map(|device| device.socket_path.as_ref());
            assert_eq!(sockets().collect::<HashSet<_>>().len(), sockets().count());
        }
    }
}
