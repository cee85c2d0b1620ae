//! Checks that the host's RDMA libraries can drive a device. This runs before a guest with the host's root file system
//! boots.
//!
//! `libibverbs` loads a provider library for each kind of device. If the provider is missing, verbs programs report
//! only that the machine has no RDMA devices.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::kind::Device;

/// Directories that may contain `libibverbs.so.1`, relative to the root.
const LIBRARY_FOLDERS: &[&str] = &[
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib64",
    "lib",
    "usr/local/lib/x86_64-linux-gnu",
    "usr/local/lib64",
    "usr/local/lib",
];
/// Directories that may contain programs, relative to the root.
const PROGRAM_FOLDERS: &[&str] = &["usr/bin", "usr/sbin", "bin", "sbin"];

/// A component that the host lacks. The error message explains how to install it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    device: Device,
    part: Part,
    system: System,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The library `libibverbs.so.1`, which all verbs programs use.
    Verbs,
    /// The provider library for the device, such as `libmlx5-rdmav*.so`.
    Provider { library: String, searched: PathBuf },
    /// The program `rdma`, which creates a soft-RoCE device.
    RdmaTool,
}

/// The family of the host's operating system, which determines package names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Debian,
    Fedora,
    Other,
}

/// Checks that the libraries under `root` can drive `device`.
///
/// # Errors
/// Fails if a library or program is missing.
pub(super) fn check(root: &Path, device: Device) -> Result<(), Missing> {
    let missing = |part| Missing { device, part, system: System::of(root) };
    let folders = || LIBRARY_FOLDERS.iter().map(|folder| root.join(folder));
    let Some(beside) = folders().find(|folder| folder.join("libibverbs.so.1").exists()) else {
        return Err(missing(Part::Verbs));
    };
    if let Some(provider) = provider(device)
        && !folders().any(|folder| has_provider(&folder.join("libibverbs"), provider))
    {
        let library = format!("lib{provider}-rdmav*.so");
        return Err(missing(Part::Provider { library, searched: beside.join("libibverbs") }));
    }
    let has_rdma_tool = || PROGRAM_FOLDERS.iter().any(|folder| root.join(folder).join("rdma").exists());
    if device == Device::Rxe && !has_rdma_tool() {
        return Err(missing(Part::RdmaTool));
    }
    Ok(())
}

/// Returns the name of rdma-core's provider for a device. JingZhao HCAs have none.
const fn provider(device: Device) -> Option<&'static str> {
    match device {
        Device::Mthca => Some("mthca"),
        Device::E810 => Some("irdma"),
        Device::Connectx | Device::ConnectxIb => Some("mlx5"),
        Device::Rxe => Some("rxe"),
        Device::Jingzhao => None,
    }
}

/// Returns whether the directory contains the provider. The number after `rdmav` is the version of the interface
/// between `libibverbs` and its providers.
fn has_provider(folder: &Path, provider: &str) -> bool {
    let is_provider = |name: OsString| {
        let name = name.to_str().and_then(|name| name.strip_prefix("lib")?.strip_prefix(provider));
        name.is_some_and(|rest| rest.starts_with("-rdmav") && rest.ends_with(".so"))
    };
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| is_provider(entry.file_name()))
}

impl System {
    /// Reads the family from `/etc/os-release`.
    ///
    /// # Spec
    /// os-release(5): `ID` and `ID_LIKE`.
    fn of(root: &Path) -> Self {
        let release = fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
        let values = release.lines().filter_map(|line| {
            let (key, value) = line.split_once('=')?;
            matches!(key, "ID" | "ID_LIKE").then(|| value.trim_matches('"'))
        });
        let names: Vec<&str> = values.flat_map(str::split_whitespace).collect();
        if names.contains(&"debian") {
            Self::Debian
        } else if names.contains(&"fedora") || names.contains(&"rhel") {
            Self::Fedora
        } else {
            Self::Other
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.name();
        match &self.part {
            Part::Verbs => write!(
                f,
                "programs on this machine cannot use the {device} device: the library libibverbs.so.1 is not installed"
            )?,
            Part::Provider { library, searched } => write!(
                f,
                "programs on this machine cannot use the {device} device: {} contains no provider library {library}",
                searched.display()
            )?,
            Part::RdmaTool => write!(
                f,
                "the {device} device cannot be created: the program 'rdma' of iproute2 is not installed"
            )?,
        }
        let install = match (self.system, &self.part) {
            (System::Debian, Part::RdmaTool) => "run 'apt-get install iproute2'",
            (System::Debian, _) => "run 'apt-get install ibverbs-providers'",
            (System::Fedora, Part::RdmaTool) => "run 'dnf install iproute'",
            (System::Fedora, _) => "run 'dnf install libibverbs'",
            (System::Other, Part::RdmaTool) => "install the package that contains it",
            (System::Other, _) => "install rdma-core's libraries (on Debian, the package ibverbs-providers)",
        };
        write!(f, "; {install}. If the command brings its own, pass --no-check")
    }
}

impl std::error::Error for Missing {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a root file system that contains `files`, all of them empty.
    fn root(files: &[&str], release: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files.iter().chain(&["etc/os-release"]) {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::write(root.path().join("etc/os-release"), release).unwrap();
        root
    }

    const VERBS: &str = "usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    const MLX5: &str = "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so";

    #[test]
    fn provider_library_determines_supported_devices() {
        let root = root(&[VERBS, MLX5], "ID=debian\n");
        assert_eq!(check(root.path(), Device::Connectx), Ok(()));
        assert_eq!(check(root.path(), Device::ConnectxIb), Ok(()));
        assert_eq!(check(root.path(), Device::Jingzhao), Ok(()));
        let text = check(root.path(), Device::E810).unwrap_err().to_string();
        for part in ["e810", "libirdma-rdmav*.so", "apt-get install ibverbs-providers", "--no-check"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn file_with_similar_name_is_not_a_provider() {
        let names = ["libmlx5.so.1", "libmlx5-rdmav34.so.bak", "libmlx55-rdmav34.so"];
        let files: Vec<String> = names.iter().map(|name| format!("usr/lib64/libibverbs/{name}")).collect();
        let files: Vec<&str> =
            files.iter().map(String::as_str).chain(["usr/lib64/libibverbs.so.1"]).collect();
        let root = root(&files, "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n");
        let text = check(root.path(), Device::Connectx).unwrap_err().to_string();
        assert!(text.contains("usr/lib64/libibverbs contains no"), "{text}");
        assert!(text.contains("dnf install libibverbs"), "{text}");
    }

    #[test]
    fn missing_verbs_library_is_reported_by_name() {
        let root = root(&[], "ID=ubuntu\nID_LIKE=debian\n");
        let text = check(root.path(), Device::Mthca).unwrap_err().to_string();
        assert!(text.contains("libibverbs.so.1") && text.contains("apt-get install"), "{text}");
    }

    #[test]
    fn soft_roce_requires_rdma_tool() {
        let provider = "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so";
        let without = root(&[VERBS, provider], "ID=debian\n");
        let text = check(without.path(), Device::Rxe).unwrap_err().to_string();
        assert!(text.contains("apt-get install iproute2"), "{text}");
        let with = root(&[VERBS, provider, "sbin/rdma"], "ID=debian\n");
        assert_eq!(check(with.path(), Device::Rxe), Ok(()));
    }
}
