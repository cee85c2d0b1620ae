//! A guest's initramfs: the agent as `/init`, busybox for interactive use, and the scenario's modules.
//!
//! The initramfs is a `newc` cpio archive. It is not compressed, because QEMU passes it to the kernel in memory, and
//! decompression would be slow under TCG. If a scenario needs a root file system, the archive contains the file system
//! modules, and the agent switches to the root file system on the disk.

use crate::modules::Module;

/// Directory of the modules in the guest.
const MODULES: &str = "lib/modules";

/// A cpio archive under construction.
#[derive(Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    /// Creates an archive with `agent` as `/init` and directories for mount points.
    pub fn new(agent: &[u8]) -> Self {
        let mut archive = Self::default();
        for folder in ["dev", "proc", "sys", "tmp", "run", "bin", "lib", MODULES] {
            archive.folder(folder);
        }
        archive.file("init", 0o755, agent);
        // The kernel opens the console for /init before anything is mounted.
        archive.entry("dev/console", 0o020_600, &[], (5, 1));
        archive
    }

    /// Adds a static busybox and a symbolic link to it for each of its `applets`.
    pub fn add_busybox<'a>(&mut self, program: &[u8], applets: impl IntoIterator<Item = &'a str>) {
        self.file("bin/busybox", 0o755, program);
        for applet in applets.into_iter().filter(|applet| *applet != "busybox") {
            self.entry(&format!("bin/{applet}"), 0o120_777, b"busybox", (0, 0));
        }
    }

    /// Adds modules and returns their paths in the guest, in the same order.
    pub fn add_modules(&mut self, modules: &[Module]) -> Vec<String> {
        modules
            .iter()
            .map(|module| {
                let path = format!("{MODULES}/{}.ko", module.name);
                self.file(&path, 0o644, &module.object);
                format!("/{path}")
            })
            .collect()
    }

    /// Adds a file and its parent directories. The path is relative to the root.
    pub fn add_file(&mut self, path: &str, content: &[u8]) {
        for (end, _) in path.match_indices('/') {
            // An entry for a directory that already exists has no effect.
            self.folder(&path[..end]);
        }
        self.file(path, 0o644, content);
    }

    /// Returns the finished cpio archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }

    fn folder(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[], (0, 0));
    }

    fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.entry(path, 0o100_000 | permissions, content, (0, 0));
    }

    /// Appends an entry: a header, the name and the content. The name and the content are each padded to a multiple of
    /// four bytes. After its magic number, the header has thirteen fields of eight hexadecimal digits.
    fn entry(&mut self, path: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        let len = u32::try_from(content.len()).expect("initramfs content is smaller than 4 GiB");
        let name_len = u32::try_from(path.len() + 1).expect("paths are short");
        self.entries += 1;
        let (links, owner, time, checksum, disk) = (1, 0, 0, 0, 0);
        let fields = [
            self.entries,
            mode,
            owner,
            owner,
            links,
            time,
            len,
            disk,
            disk,
            device.0,
            device.1,
            name_len,
            checksum,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares an entry with the output of GNU `cpio -o -H newc` for a three-byte file `a`. In that output, the inode,
    /// owner, time and device are replaced by the values that this archive uses.
    #[test]
    fn file_entry_has_newc_header() {
        let mut archive = Initramfs::default();
        archive.file("a", 0o644, b"abc");
        let expected = b"070701000000010000\
            81a400000000000000000000000100000000000000030000000000000000000000000000000000000002\
            00000000a\0abc\0";
        assert_eq!(archive.bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    /// The kernel unpacks entries in order and does not create missing directories.
    #[test]
    fn parent_directories_precede_added_file() {
        let mut archive = Initramfs::default();
        archive.add_file("lib/firmware/a.pkg", b"abc");
        let at = |name: &[u8]| archive.bytes.windows(name.len()).position(|window| window == name).unwrap();
        assert!(at(b"lib\0") < at(b"lib/firmware\0"));
        assert!(at(b"lib/firmware\0") < at(b"lib/firmware/a.pkg\0"));
    }

    #[test]
    fn modules_are_listed_in_loading_order() {
        let mut archive = Initramfs::new(b"agent");
        let module = |name: &str| Module { name: name.into(), object: vec![1, 2, 3] };
        let paths = archive.add_modules(&[module("vfio"), module("vfio_pci")]);
        assert_eq!(paths, ["/lib/modules/vfio.ko", "/lib/modules/vfio_pci.ko"]);
        assert_eq!(archive.finish().len() % 4, 0);
    }
}
