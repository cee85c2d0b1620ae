//! Host directories that guests mount.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use agent::wire::MountShare;

use crate::qemu::Share;

/// A shared directory, parsed from `DIR:/AT` or `DIR:/AT:ro`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFolder {
    folder: PathBuf,
    at: String,
    read_only: bool,
}

impl SharedFolder {
    /// Returns the share's description for QEMU, with a tag that contains `number`.
    pub(super) fn device(&self, number: usize) -> Share {
        Share { folder: self.folder.clone(), tag: format!("share{number}"), read_only: self.read_only }
    }

    /// Returns the mount point in the guests.
    pub(super) fn at(&self) -> &str {
        &self.at
    }

    /// Returns the step that mounts the share in a guest.
    pub(super) fn mount(&self, number: usize) -> MountShare {
        let Share { tag, read_only, .. } = self.device(number);
        MountShare { tag, at: self.at.clone(), read_only }
    }
}

impl FromStr for SharedFolder {
    type Err = BadShare;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rest, read_only) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let usage = || {
            BadShare(format!(
                "'{text}' is not of the form DIR:/AT or DIR:/AT:ro, where /AT is an absolute path in the guest"
            ))
        };
        // The name of the host directory may contain colons.
        let (folder, at) =
            rest.rsplit_once(':').filter(|(folder, _)| !folder.is_empty()).ok_or_else(usage)?;
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !at.starts_with('/') || at == "/" || !Path::new(at).components().all(is_plain) {
            return Err(usage());
        }
        let folder = Path::new(folder)
            .canonicalize()
            .map_err(|error| BadShare(format!("cannot open the directory {folder}: {error}")))?;
        if !folder.is_dir() {
            return Err(BadShare(format!("{} is not a directory", folder.display())));
        }
        Ok(Self { folder, at: at.to_owned(), read_only })
    }
}

/// Why a shared directory is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadShare(String);

impl std::fmt::Display for BadShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadShare {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_requires_directory_and_absolute_mount_point() {
        let share: SharedFolder = "/usr/../usr:/t".parse().unwrap();
        assert_eq!((share.folder.as_path(), share.at(), share.read_only), (Path::new("/usr"), "/t", false));
        let share: SharedFolder = "/usr:/t/tests:ro".parse().unwrap();
        assert_eq!((share.at(), share.read_only), ("/t/tests", true));
        let mount = MountShare { tag: "share3".into(), at: "/t/tests".into(), read_only: true };
        assert_eq!(share.mount(3), mount);
        for wrong in [
            "/usr",
            "/usr:",
            ":/t",
            "/usr:t",
            "/usr:/",
            "/usr:/../etc",
            "/does/not/exist:/t",
            "/etc/passwd:/t",
        ] {
            assert!(wrong.parse::<SharedFolder>().is_err(), "{wrong}");
        }
    }
}
