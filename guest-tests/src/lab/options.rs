//! Options that select guest components, and scenario options.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::arch::Arch;
use crate::artifacts::KernelChoice;
use crate::modules;
use crate::qemu::Accelerator;

/// Help heading of the options for guest components.
const PARTS: &str = "Guest components";

/// Options for guest components.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Path to the QEMU binary, which must be version 11.0 or later with vfio-user-pci support [default: the
    /// QEMU that guest-lab downloads]
    #[arg(help_heading = PARTS, long, value_name = "FILE")]
    pub qemu: Option<PathBuf>,
    /// Architecture of the guests [default: the architecture of this machine]
    ///
    /// Guests whose architecture differs from this machine's are emulated.
    #[arg(help_heading = PARTS, long, value_enum)]
    pub arch: Option<Arch>,
    /// Guest kernel: `trixie` or `trixie-backports` for a Debian kernel, or a path [default:
    /// trixie-backports]
    ///
    /// With `--arch arm64`, `trixie-16k` and `trixie-backports-16k` are Debian's kernels with pages of 16 KiB. A path
    /// names either an x86-64 kernel image whose modules are installed in /lib/modules, or a module directory, such
    /// as /lib/modules/7.2.12, that also contains the kernel image as `vmlinuz`.
    #[arg(help_heading = PARTS, long, value_name = "SUITE|PATH")]
    pub kernel: Option<KernelChoice>,
    /// Path to an ext4 image with the guest root filesystem [default: an image that guest-lab builds]
    #[arg(help_heading = PARTS, long, value_name = "FILE")]
    pub root: Option<PathBuf>,
    /// Kernel module to load at boot, along with its dependencies, before the stock drivers (repeatable)
    #[arg(help_heading = PARTS, long = "module", value_name = "FILE")]
    pub modules: Vec<PathBuf>,
    /// Path to the hcad binary [default: hcad in the same directory as guest-lab]
    #[arg(help_heading = PARTS, long, value_name = "FILE")]
    pub hcad: Option<PathBuf>,
    /// Path to the guest agent, which must be statically linked [default: the built-in agent]
    #[arg(help_heading = PARTS, long, value_name = "FILE")]
    pub agent: Option<PathBuf>,
    /// QEMU accelerator [default: kvm if KVM can boot guests on this host, otherwise tcg]
    #[arg(help_heading = PARTS, long, value_enum)]
    pub accel: Option<Accelerator>,
    /// Number of virtual CPUs per guest, 1 to 64
    #[arg(help_heading = PARTS, long, visible_alias = "smp", default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
    /// Trace every device bound to a guest kernel driver; trace files are written next to the logs
    #[arg(help_heading = PARTS, long)]
    pub trace: bool,
    /// Memory per guest, in MiB or with a unit (`M` or `G`), such as `2G`
    #[arg(help_heading = PARTS, long, default_value = "512", value_name = "SIZE", value_parser = mebibytes)]
    pub memory: u32,
}

impl Options {
    /// Checks the files that can be checked without the guests' kernel. Call this before downloading anything.
    ///
    /// # Errors
    /// Fails if a module or the root file system does not exist, or if a module is not a kernel module.
    pub fn check_files(&self) -> Result<()> {
        self.modules.iter().try_for_each(|file| modules::read_with_version(file).map(drop))?;
        if let Some(root) = &self.root {
            ensure!(root.is_file(), "{} does not exist", root.display());
        }
        Ok(())
    }

    /// Returns the given options that select programs, architecture, kernel, root file system and accelerator, in the
    /// form of command-line arguments.
    pub(super) fn given(&self) -> Vec<String> {
        let arch = self.arch.map(|arch| arch.name().into());
        let kernel = self.kernel.as_ref().map(|kernel| kernel.to_string().into());
        let accel = self.accel.map(|accel| match accel {
            Accelerator::Tcg => "tcg".into(),
            Accelerator::Kvm => "kvm".into(),
        });
        let paths = [
            ("--qemu", &self.qemu),
            ("--arch", &arch),
            ("--kernel", &kernel),
            ("--root", &self.root),
            ("--hcad", &self.hcad),
            ("--agent", &self.agent),
            ("--accel", &accel),
        ];
        let given = paths.into_iter().filter_map(|(option, value)| Some((option, value.as_ref()?)));
        given.map(|(option, value)| format!("{option}={}", value.display())).collect()
    }
}

/// Options for scenarios that run for a fixed time or make random choices.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Chance {
    /// Duration, in minutes, of scenarios that run for a fixed time, such as `torture` [default: 5]
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
    /// Seed for random choices, as printed by an earlier run [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

fn mebibytes(text: &str) -> Result<u32, String> {
    /// Memory, in MiB, that Debian's kernel needs to unpack its initramfs.
    const LEAST_MIB: u32 = 128;
    let size = size_in_mebibytes(text)?;
    if size < LEAST_MIB { Err(format!("minimum is {LEAST_MIB}M")) } else { Ok(size) }
}

/// Parses a size, which is a number of MiB or a number followed by M or G. Returns the number of MiB.
pub(crate) fn size_in_mebibytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 1024),
        None => (text.strip_suffix(['M', 'm']).unwrap_or(text), 1),
    };
    let number: u32 = digits
        .parse()
        .map_err(|_| "a size is a number of MiB, or a number followed by M or G, such as 2G".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "size is too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_invalid_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let (text, missing) = (folder.path().join("text.ko"), folder.path().join("missing"));
        std::fs::write(&text, "text").unwrap();
        let refusal = |options: Options| format!("{:#}", options.check_files().unwrap_err());
        let module = |file: &PathBuf| Options { modules: vec![file.clone()], ..Options::default() };
        assert!(refusal(module(&missing)).starts_with("cannot read "));
        assert!(refusal(module(&text)).contains("is not a kernel module"));
        let root = Options { root: Some(missing), ..Options::default() };
        assert!(refusal(root).ends_with("missing does not exist"));
        Options::default().check_files().unwrap();
    }

    #[test]
    fn memory_size_defaults_to_mebibytes() {
        assert_eq!(["512", "512M", "2G", "1g"].map(mebibytes), [Ok(512), Ok(512), Ok(2048), Ok(1024)]);
        for wrong in ["", "64", "G", "1T", "-1", "4194304G"] {
            assert!(mebibytes(wrong).is_err(), "{wrong}");
        }
    }
}
