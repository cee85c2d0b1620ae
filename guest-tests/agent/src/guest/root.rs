//! Switches from the initramfs to a root file system on disk.

use std::fs;

use anyhow::{Context as _, Result};

use super::mount::mount;
use crate::wire::EnterRoot;

/// Mount point of the system disk before the switch.
const LOWER: &str = "/lower";
const UPPER: &str = "/upper";
const ROOT: &str = "/newroot";

pub(crate) fn enter(step: &EnterRoot) -> Result<()> {
    for folder in [LOWER, UPPER, ROOT] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {folder}"))?;
    }
    // Ignore set-user-ID bits: the files belong to the user that built the image, which may not be root.
    mount(&step.system, LOWER, "ext4", libc::MS_RDONLY | libc::MS_NOSUID, "")?;
    mount("tmpfs", UPPER, "tmpfs", 0, "")?;
    for folder in ["/upper/data", "/upper/work"] {
        fs::create_dir(folder).with_context(|| format!("cannot create {folder}"))?;
    }
    mount("overlay", ROOT, "overlay", 0, "lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work")?;

    let at = |path: &str| format!("{ROOT}{path}");
    if let Some(modules) = &step.modules {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("cannot read the release of the kernel")?;
        let folder = at(&format!("/usr/lib/modules/{}", release.trim()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {folder}"))?;
        mount(modules, &folder, "ext4", libc::MS_RDONLY, "")?;
    }
    for folder in ["/dev", "/proc", "/sys", "/run", "/tmp"] {
        fs::create_dir_all(at(folder)).with_context(|| format!("cannot create {folder}"))?;
        mount(folder, &at(folder), "", libc::MS_MOVE, "")?;
    }
    for (kind, folder) in [("devpts", "/dev/pts"), ("tmpfs", "/dev/shm")] {
        fs::create_dir_all(at(folder)).with_context(|| format!("cannot create {folder}"))?;
        mount(kind, &at(folder), kind, 0, "")?;
    }
    std::env::set_current_dir(ROOT).context("cannot enter the new root")?;
    mount(".", "/", "", libc::MS_MOVE, "")?;
    std::os::unix::fs::chroot(".").context("cannot change the root")?;
    std::env::set_current_dir("/").context("cannot enter the root")
}
