//! A file with a hole, on a file system in memory that has no room left.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Bytes of the file, none of which has a place.
const LEN: u64 = 1 << 20;

/// See the module. It is gone with the process in whose mount namespace it is.
#[derive(Debug)]
pub(super) struct FullDisk {
    holder: Child,
    file: File,
}

impl FullDisk {
    /// Makes one that nobody else sees; where that needs root, in a user namespace.
    pub(super) fn create() -> Result<Self> {
        let script = format!(
            "set -e; mount -t tmpfs -o size=64k none /mnt; truncate -s {LEN} /mnt/memory; \
             dd if=/dev/zero of=/mnt/rest bs=4k 2>/dev/null || true; echo full; read -r _"
        );
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting unshare")?;
        let mut said = String::new();
        let output = holder.stdout.take().context("its output is a pipe")?;
        BufReader::new(output).read_line(&mut said)?;
        let path = format!("/proc/{}/root/mnt/memory", holder.id());
        let file =
            File::options().read(true).write(true).open(&path).with_context(|| format!("opening {path}"));
        let file = match file {
            Ok(file) if said == "full\n" => file,
            other => {
                // It has ended, or is to.
                let _ = holder.kill();
                let _ = holder.wait();
                return other.and_then(|_| anyhow::bail!("no full disk could be made"));
            }
        };
        ensure!(file.metadata()?.len() == LEN, "{path} is not the file that was made");
        Ok(Self { holder, file })
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    pub(super) const fn len(&self) -> u64 {
        LEN
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        // It has nothing to lose.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
