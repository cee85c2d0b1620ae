//! Checks that the host meets the requirements of a configuration, without opening or creating anything.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use card::fabric::tap::{self, InterfaceName};
use rustix::fs::{Access, access};
use rustix::net::SocketAddrUnix;
use rustix::thread::{CapabilitySet, capabilities};

use super::files::Use;
use super::{Config, ConfigError, DeviceConfig, FabricConfig, value};

impl Config {
    /// Checks for missing directories, interfaces and permissions.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first requirement that is not met.
    pub fn check_host(&self) -> Result<(), ConfigError> {
        let made = self.made_folders();
        for (index, device) in self.devices.iter().enumerate() {
            device.check_host(&format!("devices[{index}]"), &made)?;
        }
        for (key, path, used) in self.paths_of_the_process() {
            check_path(&path, used, &made).map_err(|problem| value(&key, problem))?;
        }
        Ok(())
    }
}

impl DeviceConfig {
    /// Checks for the directories, interfaces and permissions that the device needs. `name` is the device's
    /// configuration key, for error messages. `made` lists directories that hcad will create.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first requirement that is not met.
    pub fn check_host(&self, name: &str, made: &[PathBuf]) -> Result<(), ConfigError> {
        for (key, path, used) in self.paths_of(name) {
            check_path(&path, used, made).map_err(|problem| value(&key, problem))?;
        }
        if let FabricConfig::Tap { interface, .. } = &self.fabric {
            let key = format!("{name}.fabric.tap.interface");
            check_tap(interface).map_err(|problem| value(&key, problem))?;
        }
        Ok(())
    }
}

/// Checks that a path can be used as intended. `made` lists directories that hcad creates at startup.
fn check_path(path: &Path, used: Use, made: &[PathBuf]) -> Result<(), String> {
    if path.as_os_str().is_empty() {
        return Err("the path is empty".to_owned());
    }
    if used == Use::Socket
        && let Err(error) = SocketAddrUnix::new(path)
    {
        return Err(format!("{} cannot be used as a socket path: {error}", path.display()));
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let cannot = |what: &Path, error: io::Error| format!("cannot access {}: {error}", what.display());
    let writable = |what: &Path| {
        access(what, Access::WRITE_OK)
            .map_err(|error| format!("cannot write to {}: {}", what.display(), io::Error::from(error)))
    };
    let is_made = |folder: &&Path| !folder.exists() && made.iter().any(|made| made == folder);
    if is_made(&folder) {
        let above = folder.ancestors().find(|folder| !is_made(folder));
        return above.map_or(Ok(()), writable);
    }
    let is_folder = fs::metadata(folder).map_err(|error| cannot(folder, error))?.is_dir();
    if !is_folder {
        return Err(format!("{} is not a directory", folder.display()));
    }
    match (fs::symlink_metadata(path), used) {
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => writable(folder),
        (Err(error), _) => Err(cannot(path, error)),
        (Ok(there), Use::Socket) if !there.file_type().is_socket() => {
            Err(format!("{} exists but is not a socket", path.display()))
        }
        (Ok(there), Use::File) if there.is_dir() || there.file_type().is_socket() => {
            Err(format!("{} exists but is not a regular file", path.display()))
        }
        // A stale socket will be replaced. Whether a server still uses the socket is checked at startup.
        (Ok(_), Use::Socket) => writable(folder),
        (Ok(_), Use::File) => writable(path),
    }
}

fn check_tap(interface: &InterfaceName) -> Result<(), String> {
    let driver = Path::new(tap::DEVICE);
    access(driver, Access::READ_OK | Access::WRITE_OK)
        .map_err(|error| format!("cannot access {}: {}", driver.display(), io::Error::from(error)))?;
    let known = Path::new("/sys/class/net").join(interface.to_string());
    if known.exists() {
        return match known.join("tun_flags").exists() {
            true => Ok(()),
            false => Err(format!("{interface} is not a tap interface")),
        };
    }
    let may_make = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    match may_make {
        true => Ok(()),
        false => Err(format!("interface {interface} does not exist, and creating it requires CAP_NET_ADMIN")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, device};

    fn problem(extra: &str) -> Option<String> {
        check(&device(extra)).unwrap().check_host().err().map(|error| error.to_string())
    }

    #[test]
    fn errors_describe_unusable_paths_and_interfaces() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().display();
        assert_eq!(problem(&format!(r#", "socket_path": "{folder}/s", "capture": "{folder}/c""#)), None);
        for (extra, message) in [
            (
                r#", "socket_path": "/nonexistent/s""#.to_owned(),
                "devices[0].socket_path: cannot access /nonexistent: No such",
            ),
            (
                r#", "socket_path": "/etc/passwd/s""#.to_owned(),
                "devices[0].socket_path: /etc/passwd is not a directory",
            ),
            (r#", "socket_path": "/etc/passwd""#.to_owned(), "/etc/passwd exists but is not a socket"),
            (r#", "socket_path": """#.to_owned(), "devices[0].socket_path: the path is empty"),
            (
                format!(r#", "socket_path": "{folder}/{}""#, "s".repeat(108)),
                "cannot be used as a socket path: File name too long",
            ),
            (r#", "capture": """#.to_owned(), "devices[0].capture: the path is empty"),
            (format!(r#", "capture": "{folder}""#), "exists but is not a regular file"),
        ] {
            let problem = problem(&extra).unwrap();
            assert!(problem.contains(message), "{problem:?} should contain {message:?}");
        }
        let tap = device("").replace(
            r#"{"udp": {"bind": "127.0.0.1:7000", "peers": []}}"#,
            r#"{"tap": {"interface": "lo"}}"#,
        );
        let error = check(&tap).unwrap().check_host().unwrap_err().to_string();
        let expected = ["lo is not a tap interface", "/dev/net/tun: "];
        assert!(expected.iter().any(|part| error.contains(part)), "{error}");
    }
}
