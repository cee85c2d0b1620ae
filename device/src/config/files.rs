//! Paths of the files and sockets in a configuration. Each path may be used only once.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use card::telemetry::store::Keep;
use card::telemetry::trace::STANDARD_ERROR;
use control_api::runtime_folder;

use super::{Config, ConfigError, DeviceConfig, FabricConfig, MetricsConfig, value};

/// The purpose of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A socket is created at the path and removed when hcad exits.
    Socket,
    /// A file is written at the path.
    File,
}

impl DeviceConfig {
    /// Creates the directory of the device's ring if it is missing. `name` is the device's configuration key, for error
    /// messages.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if the directory cannot be created.
    pub(crate) fn make_ring_folder(&self, name: &str) -> Result<(), ConfigError> {
        match &self.fabric {
            FabricConfig::Ring { folder, .. } => runtime_folder::make_ring(folder).map_err(|error| {
                let problem = format!("cannot create {}: {error}", folder.display());
                value(&format!("{name}.fabric.ring.folder"), problem)
            }),
            FabricConfig::Udp { .. } | FabricConfig::Local { .. } | FabricConfig::Tap { .. } => Ok(()),
        }
    }

    /// Yields the path of each file and socket of the device, with its configuration key prefixed by `name`.
    pub(crate) fn paths_of(&self, name: &str) -> impl Iterator<Item = (String, PathBuf, Use)> {
        self.paths().map(move |(key, path, used)| (format!("{name}.{key}"), path, used))
    }

    /// Yields the path of each file and socket of the device, with its configuration key. A trace to standard error has
    /// no path and is omitted.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&'static str, PathBuf, Use)> {
        let files = |key, keep: Option<&Keep>| {
            let paths: Vec<_> = keep.into_iter().flat_map(Keep::files).collect();
            paths.into_iter().map(move |path| (key, path, Use::File))
        };
        let socket = self.socket_path.clone().map(|path| ("socket_path", path, Use::Socket));
        let record = self.record.clone().map(|path| ("record", path, Use::File));
        let trace = self.trace.as_ref().map(|trace| &trace.keep);
        let ring = match &self.fabric {
            FabricConfig::Ring { socket, .. } => Some(("fabric.ring.folder", socket.clone(), Use::Socket)),
            FabricConfig::Udp { .. } | FabricConfig::Local { .. } | FabricConfig::Tap { .. } => None,
        };
        socket
            .into_iter()
            .chain(ring)
            .chain(files("capture", self.capture.as_ref().map(|capture| &capture.keep)))
            .chain(record)
            .chain(files("trace.file", trace.filter(|keep| keep.path() != Path::new(STANDARD_ERROR))))
    }
}

impl Config {
    /// Yields the path of each file and socket, with its configuration key. A trace to standard error has no path and
    /// is omitted.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (String, PathBuf, Use)> {
        let of_devices =
            self.devices.iter().enumerate().flat_map(|(index, device)| {
                device.paths_of(&format!("devices[{index}]")).collect::<Vec<_>>()
            });
        of_devices.chain(self.paths_of_the_process())
    }

    /// Yields the path of each socket that belongs to the process rather than to a device.
    pub(crate) fn paths_of_the_process(&self) -> impl Iterator<Item = (String, PathBuf, Use)> {
        let control = self.control_socket.clone().map(|path| ("control_socket".into(), path, Use::Socket));
        let metrics = match &self.metrics {
            Some(MetricsConfig::Unix(path)) => Some(("metrics".into(), path.clone(), Use::Socket)),
            Some(MetricsConfig::Tcp(_)) | None => None,
        };
        control.into_iter().chain(metrics)
    }

    /// Creates the ring directories, and the runtime directory if any socket is in it.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if a directory cannot be created.
    pub fn make_runtime_folder(&self) -> Result<(), ConfigError> {
        for (index, device) in self.devices.iter().enumerate() {
            device.make_ring_folder(&format!("devices[{index}]"))?;
        }
        if self.confinement.ring {
            let folder = runtime_folder::ring();
            runtime_folder::make_ring(&folder).map_err(|error| {
                value("confinement.ring", format!("cannot create {}: {error}", folder.display()))
            })?;
        }
        let folder = runtime_folder::own();
        match self.paths().find(|(_, path, used)| *used == Use::Socket && path.parent() == Some(&folder)) {
            Some((key, ..)) => runtime_folder::make(&folder)
                .map_err(|error| value(&key, format!("cannot create {}: {error}", folder.display()))),
            None => Ok(()),
        }
    }

    /// Returns whether any device uses a ring, or devices added later may use one.
    pub(crate) fn may_have_rings(&self) -> bool {
        self.confinement.ring
            || self.devices.iter().any(|device| matches!(device.fabric, FabricConfig::Ring { .. }))
    }

    /// Returns whether any device uses UDP, or devices added later may use it.
    pub(crate) fn may_have_udp(&self) -> bool {
        self.confinement.udp
            || self.devices.iter().any(|device| matches!(device.fabric, FabricConfig::Udp { .. }))
    }

    /// Returns whether any device specifies peers by DNS name, or devices added later may do so.
    pub fn may_have_names(&self) -> bool {
        self.confinement.dns || self.devices.iter().any(|device| !device.fabric.named_peers().is_empty())
    }

    /// Returns the default directory for files that hcad writes at the request of `hcactl`.
    pub(crate) fn own_folder(&self) -> Option<PathBuf> {
        match (&self.confinement.writable, &self.control_socket) {
            (None, Some(control)) => Some(control.with_extension("files")),
            _ => None,
        }
    }

    /// Returns the directories that are created at startup if they are missing.
    pub(super) fn made_folders(&self) -> Vec<PathBuf> {
        let rings = self.devices.iter().filter_map(|device| match &device.fabric {
            FabricConfig::Ring { folder, .. } => Some(folder.clone()),
            FabricConfig::Udp { .. } | FabricConfig::Local { .. } | FabricConfig::Tap { .. } => None,
        });
        rings.chain([runtime_folder::own(), runtime_folder::shared()]).collect()
    }

    /// Checks that no path is used twice.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if two settings have the same path.
    pub fn check_paths(&self) -> Result<(), ConfigError> {
        check_paths(self.paths())
    }

    /// Like [`Config::check_paths`]. Also checks that no setting has the path of the configuration file `file`, because
    /// a capture, trace or session record would overwrite it.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if two settings have the same path, or if one has the path of the file.
    pub fn check_paths_beside(&self, file: Option<&Path>) -> Result<(), ConfigError> {
        check_paths(configuration_file(file).chain(self.paths()))
    }
}

/// Yields the path of the configuration file, with the option that names it.
pub(crate) fn configuration_file(file: Option<&Path>) -> impl Iterator<Item = (String, PathBuf, Use)> {
    file.map(|path| ("--config".to_owned(), path.to_owned(), Use::File)).into_iter()
}

/// Checks that no path is used twice.
///
/// # Errors
/// [`ConfigError::Value`] if two settings have the same path.
pub(crate) fn check_paths(paths: impl Iterator<Item = (String, PathBuf, Use)>) -> Result<(), ConfigError> {
    let mut users: HashMap<PathBuf, String> = HashMap::new();
    for (key, path, _) in paths {
        let path = path.as_path();
        // Character devices, such as /dev/null, may be used several times.
        if fs::metadata(path).is_ok_and(|there| there.file_type().is_char_device()) {
            continue;
        }
        if let Some(user) = users.get(&resolved(path)) {
            return Err(value(&key, format!("{} is already used by {user}", path.display())));
        }
        users.insert(resolved(path), key);
    }
    Ok(())
}

/// Returns the canonical form of a path. If the file does not exist, only its directory is resolved.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(resolved) = path.canonicalize() {
        return resolved;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (absolute.parent().and_then(|folder| folder.canonicalize().ok()), absolute.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, device};

    #[test]
    fn rejects_two_settings_with_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let (direct, linked) = (folder.path().join("x"), link.join("x"));
        let (direct, linked) = (direct.display(), linked.display());
        for (devices, message) in [
            (
                device(r#", "socket_path": "/x/./s", "capture": "/x/s""#),
                "devices[0].capture: /x/s is already used by devices[0].socket_path".to_owned(),
            ),
            (
                device(&format!(r#", "capture": "{direct}", "trace": {{"file": "{linked}"}}"#)),
                format!("devices[0].trace.file: {linked} is already used by devices[0].capture"),
            ),
            (
                format!(
                    "{},{}",
                    device(r#", "trace": {"file": "/x/t"}"#),
                    device(r#", "capture": "/x/t""#).replace("258", "259").replace("7000", "7001")
                ),
                "devices[1].capture: /x/t is already used by devices[0].trace.file".to_owned(),
            ),
        ] {
            assert_eq!(check(&devices).unwrap_err(), message);
        }
        let traces = device(r#", "trace": {"file": "-"}, "capture": "/dev/null""#);
        let others = traces.replace("258", "259").replace("7000", "7001");
        check(&format!("{traces},{others}")).unwrap();
    }
}
