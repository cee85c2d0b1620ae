//! Switches from the initramfs to another root file system and mounts shared directories.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::mount::mount;
use crate::wire::{EnterRoot, MountShare, System};

/// Mount point of the new root's read-only layer before the switch.
const LOWER: &str = "/lower";
const UPPER: &str = "/upper";
const ROOT: &str = "/newroot";

/// Symbolic links in `/dev` to a process's open files, with their targets. The kernel does not create these links, but
/// shells and scripts rely on them.
const STREAMS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Mount options of every shared directory. `access=any` makes the guest send all requests as one user. This suffices,
/// since QEMU executes them as its own user anyway.
const SHARED: &str = "trans=virtio,version=9p2000.L,access=any,msize=262144";
/// Cache options for a shared root, which does not change while the guest runs. Without a cache, each file look-up
/// would be a round trip to QEMU. `noxattr` avoids a further round trip to read each program's file capabilities.
const CACHED: &str = "cache=loose,noxattr";
/// Cache option for the other shared directories, whose files may also change on the host.
const UNCACHED: &str = "cache=none";

pub(crate) fn enter(step: &EnterRoot) -> Result<()> {
    for folder in [LOWER, UPPER, ROOT] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {folder}"))?;
    }
    match &step.system {
        // Ignore set-user-ID bits. The files belong to the user that built the image, not necessarily to root.
        System::Disk(disk) => mount(disk, LOWER, "ext4", libc::MS_RDONLY | libc::MS_NOSUID, "")?,
        System::Shared(tag) => mount(tag, LOWER, "9p", libc::MS_RDONLY, &format!("{SHARED},{CACHED}"))?,
    }
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
    let moved: &[&str] = match &step.system {
        System::Disk(_) => &["/dev", "/proc", "/sys", "/run", "/tmp"],
        // Keep the host's /tmp, which may contain files that the command needs.
        System::Shared(_) => &["/dev", "/proc", "/sys", "/run"],
    };
    for folder in moved {
        fs::create_dir_all(at(folder)).with_context(|| format!("cannot create {folder}"))?;
        mount(folder, &at(folder), "", libc::MS_MOVE, "")?;
    }
    for (kind, folder) in [("devpts", "/dev/pts"), ("tmpfs", "/dev/shm")] {
        fs::create_dir_all(at(folder)).with_context(|| format!("cannot create {folder}"))?;
        mount(kind, &at(folder), kind, 0, "")?;
    }
    for (link, target) in STREAMS {
        let link = at(link);
        match symlink(target, &link) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot create {link}"));
            }
            _ => {}
        }
    }
    std::env::set_current_dir(ROOT).context("cannot enter the new root")?;
    mount(".", "/", "", libc::MS_MOVE, "")?;
    std::os::unix::fs::chroot(".").context("cannot change the root")?;
    std::env::set_current_dir("/").context("cannot enter the root")
}

pub(crate) fn mount_share(step: &MountShare) -> Result<()> {
    let MountShare { tag, at, read_only } = step;
    if !Path::new(at).is_dir() {
        fs::create_dir_all(at).with_context(|| format!("cannot create {at}"))?;
    }
    let flags = if *read_only { libc::MS_RDONLY } else { 0 };
    mount(tag, at, "9p", flags, &format!("{SHARED},{UNCACHED}"))
}
