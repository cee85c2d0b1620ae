//! Reads text files specified by an operator. Rejects special files, such as FIFOs and devices.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// Maximum length of a file's text, in bytes. This is twice the length of a configuration with a thousand devices, and
/// small enough for a control request.
pub const MAX_LEN: u64 = 2 << 20;

/// Reads a regular file.
///
/// # Errors
/// Fails if the file cannot be read, is longer than [`MAX_LEN`], or is not a regular file.
pub fn read(path: &Path) -> io::Result<String> {
    // With O_NONBLOCK, opening a FIFO does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        let name = match kind {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_fifo() => "a FIFO",
            kind if kind.is_char_device() => "a character device",
            kind if kind.is_block_device() => "a block device",
            _ => "a file of unknown type",
        };
        return Err(io::Error::other(format!("not a regular file but {name}")));
    }
    read_from(file)
}

/// Reads all of standard input.
///
/// # Errors
/// Fails if standard input cannot be read, or is longer than [`MAX_LEN`].
pub fn read_standard_input() -> io::Result<String> {
    read_from(io::stdin().lock())
}

fn read_from(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MAX_LEN + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_LEN {
        true => Err(io::Error::other(format!("larger than {MAX_LEN} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    fn refusal(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "{}").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        assert_eq!(
            (read(&at("file")).unwrap(), read(&at("link")).unwrap()),
            ("{}".to_owned(), "{}".to_owned())
        );
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(refusal(&at("fifo")), "not a regular file but a FIFO");
        assert!(refusal(Path::new("/dev/zero")).contains("a character device"));
        assert!(refusal(folder.path()).contains("a directory"));
        let _socket = UnixListener::bind(at("socket")).unwrap();
        read(&at("socket")).unwrap_err();
    }

    #[test]
    fn overlong_text_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().set_len(MAX_LEN).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MAX_LEN);
        File::create(&path).unwrap().set_len(MAX_LEN + 1).unwrap();
        assert_eq!(refusal(&path), "larger than 2097152 bytes");
        assert!(read_from(io::repeat(0)).unwrap_err().to_string().contains("larger than"));
        assert!(read_from(&[0xff][..]).is_err());
    }
}
