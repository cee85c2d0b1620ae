//! `cp` copies files and directories to or from a guest, as a tar archive.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use agent::wire::ExitStatus;
use agent::wire::exec::{MAX_PAYLOAD, Start};
use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::sync::mpsc;

use super::session::{self, Pipes, Printed, Session, channel, keep};
use super::unpack::unpack;
use crate::lab::size_in_mebibytes;
use crate::testbed::name::{Place, Target};

/// Shell code that falls back to busybox's tar, which every guest has, if Debian's tar is not installed.
const TAR: &str = r#"if ! command -v tar >/dev/null; then tar() { busybox tar "$@"; }; fi;"#;

/// Arguments of [`super::Command::Cp`].
#[derive(Clone, Debug, clap::Args)]
pub struct Copy {
    /// File or directory to copy: a path on the host, or NAME:GUEST:PATH
    #[arg(value_name = "SOURCE")]
    from: Place,
    /// Destination: a path on the host, or NAME:GUEST:PATH; if the destination is an existing directory, the source
    /// is copied into it
    #[arg(value_name = "TARGET")]
    to: Place,
    /// Maximum total size of the files copied from a guest, in MiB or with a unit (`M` or `G`)
    ///
    /// The limit protects the host's disk from a guest that never stops sending data.
    #[arg(long, default_value = "4G", value_name = "SIZE", value_parser = size_in_mebibytes)]
    max_size: u32,
}

impl Copy {
    /// Copies the file or directory.
    ///
    /// # Errors
    /// Fails if both paths are in guests, or neither is, or a file cannot be read or written.
    pub(super) async fn run(self) -> Result<()> {
        match (self.from, self.to) {
            (Place::Host(from), Place::Guest(target, to)) => into_guest(&from, None, &target, &to).await,
            (Place::Guest(target, from), Place::Host(to)) => {
                out_of_guest(&target, &from, &to, u64::from(self.max_size) << 20).await
            }
            (Place::Host(_), Place::Host(_)) => {
                bail!("both paths are on the host; specify one of them as NAME:GUEST:PATH")
            }
            (Place::Guest(..), Place::Guest(..)) => {
                bail!("both paths are in guests; copy to the host first, then to the other guest")
            }
        }
    }
}

fn last(path: &Path) -> Result<&str> {
    path.file_name()
        .and_then(|name| name.to_str())
        .with_context(|| format!("path {} does not end with a file or directory name", path.display()))
}

/// Copies a file or directory to a guest, except the directory `excluded`, which need not exist.
pub(super) async fn into_guest(
    from: &Path,
    excluded: Option<&Path>,
    target: &Target,
    to: &Path,
) -> Result<()> {
    // Resolve the path, because a path such as `.` has no last component.
    let from = from.canonicalize().with_context(|| from.display().to_string())?;
    // If the log directory is the copied directory itself, exclude nothing.
    let excluded = excluded.and_then(|path| path.canonicalize().ok()).filter(|path| *path != from);
    let to_text = to.to_str().with_context(|| format!("guest path {} is not valid UTF-8", to.display()))?;
    let (is_folder, _) = session::run(target, &["test", "-d", to_text], Vec::new()).await?;
    let (folder, name) = match is_folder {
        ExitStatus::Code(0) => (to.to_owned(), last(&from)?.to_owned()),
        _ => (to.parent().unwrap_or(Path::new("/")).to_owned(), last(to)?.to_owned()),
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
    // `-o` discards the owners, since the host's users do not exist in a guest.
    let script = format!("{TAR} cd \"$1\" && tar -xof -");
    let argv = ["sh", "-c", &script, "cp", folder.to_str().unwrap_or_default()];
    let (feed, input) = channel();
    let packing = std::thread::spawn(move || pack(&from, excluded.as_deref(), &name, Feed(feed)));
    let (status, text) = with_input(target, &argv, input).await?;
    // If the guest stopped reading early, its error message is more helpful than the packing error.
    ensure!(
        status == ExitStatus::Code(0),
        "cannot write files to guest {}: {}",
        target.guest,
        text.trim_end()
    );
    tokio::task::spawn_blocking(move || packing.join())
        .await?
        .map_err(|_| anyhow!("the thread that reads the files panicked"))?
}

async fn with_input(
    target: &Target,
    argv: &[&str],
    input: mpsc::Receiver<Vec<u8>>,
) -> Result<(ExitStatus, String)> {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    let session = Session::start(target, Start { argv, ..Start::default() }).await?;
    let (_controls, controls) = channel();
    let (output, mut printed) = channel();
    let collect = async {
        let mut text = Vec::new();
        while let Some(Printed::Output(bytes) | Printed::Errors(bytes)) = printed.recv().await {
            keep(&mut text, &bytes);
        }
        String::from_utf8_lossy(&text).into_owned()
    };
    let (status, text) = tokio::join!(session.run(Pipes { input, controls, output }), collect);
    Ok((status?, text))
}

/// Writes a file or directory to an archive as `name`, except the directory `excluded`. Omits sockets in directories,
/// as tar does, because they are useless without their process. For example, Git creates the socket
/// `fsmonitor--daemon.ipc` in a repository.
fn pack(from: &Path, excluded: Option<&Path>, name: &str, into: impl Write) -> Result<()> {
    let mut archive = tar::Builder::new(io::BufWriter::with_capacity(MAX_PAYLOAD, into));
    archive.follow_symlinks(false);
    // The guest's busybox tar does not support sparse file entries.
    archive.sparse(false);
    let mut left = vec![(from.to_owned(), PathBuf::from(name))];
    while let Some((path, name)) = left.pop() {
        if excluded == Some(path.as_path()) {
            continue;
        }
        let context = || format!("cannot read {}", path.display());
        let metadata = fs::symlink_metadata(&path).with_context(context)?;
        if metadata.file_type().is_socket() && path != from {
            continue;
        }
        if metadata.file_type().is_fifo() {
            // `append_path_with_name` would use the path on the host as the name.
            let mut header = tar::Header::new_gnu();
            header.set_metadata(&metadata);
            header.set_entry_type(tar::EntryType::Fifo);
            header.set_size(0);
            archive.append_data(&mut header, &name, io::empty()).with_context(context)?;
            continue;
        }
        archive.append_path_with_name(&path, &name).with_context(context)?;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path).with_context(context)? {
                let entry = entry.with_context(context)?;
                left.push((entry.path(), name.join(entry.file_name())));
            }
        }
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

async fn out_of_guest(target: &Target, from: &Path, to: &Path, limit: u64) -> Result<()> {
    let name = last(from)?.to_owned();
    let folder = from.parent().and_then(Path::to_str).filter(|folder| !folder.is_empty()).unwrap_or(".");
    let to = if to.is_dir() { to.join(&name) } else { to.to_owned() };
    let script = format!("{TAR} cd \"$1\" && tar -cf - \"$2\"");
    let argv = ["sh", "-c", &script, "cp", folder, &name].map(str::to_owned).to_vec();
    let session = Session::start(target, Start { argv, ..Start::default() }).await?;
    let (feed, input) = channel();
    drop(feed);
    let (_controls, controls) = channel();
    let (output, mut printed) = channel();
    let (bytes, archive) = channel();
    let unpacking =
        std::thread::spawn(move || unpack(Drain { pieces: archive, rest: Vec::new() }, &name, &to, limit));
    // Returns the command's error output, or `None` if the archive was rejected before it ended.
    let collect = async {
        let mut errors = Vec::new();
        while let Some(piece) = printed.recv().await {
            match piece {
                Printed::Output(piece) => {
                    if bytes.send(piece).await.is_err() {
                        // The command is terminated once its output has no receiver.
                        drop(printed);
                        return None;
                    }
                }
                Printed::Errors(piece) => keep(&mut errors, &piece),
            }
        }
        drop(bytes);
        Some(String::from_utf8_lossy(&errors).into_owned())
    };
    let (status, errors) = tokio::join!(session.run(Pipes { input, controls, output }), collect);
    let unpacked = tokio::task::spawn_blocking(move || unpacking.join())
        .await?
        .map_err(|_| anyhow!("the thread that writes the files panicked"))?;
    let Some(errors) = errors else { return unpacked };
    ensure!(
        status? == ExitStatus::Code(0),
        "cannot read files from guest {}: {}",
        target.guest,
        errors.trim_end()
    );
    unpacked
}

/// Writer that feeds a command's input.
struct Feed(mpsc::Sender<Vec<u8>>);

impl Write for Feed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(MAX_PAYLOAD)];
        let sent = self.0.blocking_send(piece.to_vec());
        sent.map(|()| piece.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reader of a command's output.
struct Drain {
    pieces: mpsc::Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

impl Read for Drain {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let len = self.rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&self.rest[..len]);
        self.rest.drain(..len);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(from: &Path, name: &str) -> Vec<u8> {
        let (feed, mut pieces) = mpsc::channel(1024);
        pack(from, None, name, Feed(feed)).unwrap();
        std::iter::from_fn(|| pieces.try_recv().ok()).flatten().collect()
    }

    #[test]
    fn copied_directory_keeps_file_modes_and_links() {
        let root = tempfile::tempdir().unwrap();
        let from = root.path().join("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("run.sh"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(from.join("run.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        std::os::unix::fs::symlink("run.sh", from.join("link")).unwrap();
        let to = root.path().join("to");
        unpack(packed(&from, "new").as_slice(), "new", &to, 1 << 20).unwrap();
        assert_eq!(fs::read_to_string(to.join("link")).unwrap(), "#!/bin/sh\n");
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(to.join("run.sh")).unwrap());
        assert_eq!(mode & 0o777, 0o755);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn excluded_directory_is_not_packed() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["deep/logs", "deep/kept"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
            fs::write(root.path().join(folder).join("file"), "").unwrap();
        }
        let mut bytes = Vec::new();
        pack(root.path(), Some(&root.path().join("deep/logs")), "new", &mut bytes).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let path = |entry: io::Result<tar::Entry<'_, _>>| entry.unwrap().path().unwrap().into_owned();
        let mut paths: Vec<PathBuf> = archive.entries().unwrap().map(path).collect();
        paths.sort();
        assert_eq!(paths, ["new", "new/deep", "new/deep/kept", "new/deep/kept/file"].map(PathBuf::from));
    }

    #[test]
    fn fifo_is_packed_under_its_name() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut bytes = Vec::new();
        pack(root.path(), None, "new", &mut bytes).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entry = archive.entries().unwrap().nth(1).unwrap().unwrap();
        assert_eq!(
            (entry.path().unwrap().as_ref(), entry.header().entry_type()),
            (Path::new("new/fifo"), tar::EntryType::Fifo)
        );
    }

    #[test]
    fn sockets_in_directory_are_omitted() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("ipc");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        fs::write(root.path().join("test.sh"), "").unwrap();
        let mut bytes = Vec::new();
        pack(root.path(), None, "new", &mut bytes).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let path = |entry: io::Result<tar::Entry<'_, _>>| entry.unwrap().path().unwrap().into_owned();
        let paths: Vec<PathBuf> = archive.entries().unwrap().map(path).collect();
        assert_eq!(paths, ["new", "new/test.sh"].map(PathBuf::from));
        // A socket that was named explicitly is an error.
        assert!(pack(&socket, None, "ipc", io::sink()).is_err());
    }

    #[test]
    fn sparse_file_is_packed_as_regular_file() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let mut bytes = Vec::new();
        pack(&file, None, "file", &mut bytes).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!((entry.header().entry_type(), entry.size()), (tar::EntryType::Regular, 1 << 20));
    }
}
