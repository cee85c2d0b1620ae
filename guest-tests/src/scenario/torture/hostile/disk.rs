//! A file that is one large hole, on a full tmpfs. The host cannot provide pages for it, so an access raises SIGBUS.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::limits::Limit;

/// Length of the file. None of its blocks are allocated.
const LEN: u64 = 1 << 20;

/// A full tmpfs in the mount namespace of a helper process. It exists as long as that process runs.
#[derive(Debug)]
pub(super) struct FullDisk {
    holder: Child,
    file: File,
}

impl FullDisk {
    /// Creates a full tmpfs that is visible only to the helper process. Mounting requires root privileges, so the
    /// process runs in a user namespace.
    pub(super) fn create() -> Result<Self> {
        if let Some(reason) = Limit::Mounts.reason() {
            bail!(reason);
        }
        let script = format!(
            "set -e; mount -t tmpfs -o size=64k none /mnt; truncate -s {LEN} /mnt/memory; \
             dd if=/dev/zero of=/mnt/rest bs=4k 2>/dev/null || true; echo full; read -r _"
        );
        let mut holder = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start unshare")?;
        let mut said = String::new();
        let output = holder.stdout.take().context("its output is a pipe")?;
        BufReader::new(output).read_line(&mut said)?;
        if said != "full\n" {
            let mut errors = String::new();
            holder.stderr.take().context("its errors are a pipe")?.read_to_string(&mut errors)?;
            holder.wait()?;
            bail!("creating a full disk failed: {}", errors.trim_end());
        }
        let path = format!("/proc/{}/root/mnt/memory", holder.id());
        match open(&path) {
            Ok(file) => Ok(Self { holder, file }),
            Err(error) => {
                // Ignore errors: the process may already have exited.
                let _ = holder.kill();
                let _ = holder.wait();
                Err(error)
            }
        }
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    pub(super) const fn len(&self) -> u64 {
        LEN
    }
}

fn open(path: &str) -> Result<File> {
    let file = File::options().read(true).write(true).open(path);
    let file = file.with_context(|| format!("cannot open {path}"))?;
    ensure!(file.metadata()?.len() == LEN, "{path} is not the file that was created");
    Ok(file)
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
