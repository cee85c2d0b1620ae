//! Writing what crosses a fabric to a pcapng file.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use crate::telemetry::file;

/// Which way a frame went, from the HCA's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the fabric.
    Inbound,
    /// To the fabric.
    Outbound,
}

/// Bytes collected before a write to the file. Large enough that a burst at full rate costs few system calls.
const BUFFER_LEN: usize = 1 << 20;

/// A capture file of one HCA: every frame with its time in nanoseconds, its direction and, where there is one, a
/// comment that names the local QP.
///
/// A write that fails ends the capture with one log line, never the device. So does a file of the greatest length.
///
/// # Spec
/// IETF draft-ietf-opsawg-pcapng: Section Header, Interface Description and Enhanced Packet blocks.
pub struct Capture {
    path: PathBuf,
    writer: Option<PcapNgWriter<BufWriter<File>>>,
    unflushed: bool,
    /// Bytes of the file.
    len: u64,
    max_len: u64,
    /// Why it ended.
    ended: Option<String>,
}

impl Capture {
    /// Creates or replaces the file at `path`; `interface` is the name Wireshark shows.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(path: &Path, interface: &str) -> io::Result<Self> {
        Self::to_file(file::create(path)?, path, interface)
    }

    /// Creates the file at `path`, which must not exist: nothing is overwritten, and nobody waits for a pipe.
    ///
    /// # Errors
    /// The file exists, or cannot be created or written.
    pub fn create_new(path: &Path, interface: &str) -> io::Result<Self> {
        Self::to_file(file::create_new(path)?, path, interface)
    }

    /// Goes on in the file at `path`, with a section of its own behind those there are.
    ///
    /// # Errors
    /// The file cannot be opened or written.
    pub fn append(path: &Path, interface: &str) -> io::Result<Self> {
        Self::to_file(file::append(path)?, path, interface)
    }

    /// Ends when the file is so long.
    #[must_use]
    pub fn with_limit(self, max_len: u64) -> Self {
        Self { max_len, ..self }
    }

    fn to_file(file: File, path: &Path, interface: &str) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let file = BufWriter::with_capacity(BUFFER_LEN, file);
        let mut writer = PcapNgWriter::new(file).map_err(into_io)?;
        writer
            .write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(interface)),
                    // Ten to the minus ninth: timestamps count nanoseconds.
                    InterfaceDescriptionOption::IfTsResol(9),
                ],
            })
            .map_err(into_io)?;
        Ok(Self {
            path: path.to_owned(),
            writer: Some(writer),
            unflushed: true,
            len,
            max_len: u64::MAX,
            ended: None,
        })
    }

    /// The file, unless the capture has ended.
    pub fn path(&self) -> Option<&Path> {
        self.writer.is_some().then_some(&self.path)
    }

    /// Why it ended before its time, and in which file.
    pub fn ended(&self) -> Option<(&Path, &str)> {
        self.ended.as_deref().map(|why| (self.path.as_path(), why))
    }

    /// Adds one frame, from its Ethernet header to its ICRC.
    pub fn record(&mut self, direction: Direction, frame: &[u8], comment: Option<String>) {
        let Some(writer) = &mut self.writer else { return };
        if self.len >= self.max_len {
            self.flush();
            return self.stop(&format!("the file has reached its bound of {} bytes", self.max_len));
        }
        let flags = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        let mut options = vec![EnhancedPacketOption::Flags(flags)];
        options.extend(comment.map(|text| EnhancedPacketOption::Comment(Cow::Owned(text))));
        let written = writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(frame),
            options,
        });
        self.unflushed = true;
        match written.map_err(into_io) {
            Ok(len) => self.len += len as u64,
            Err(error) => self.stop(&error.to_string()),
        }
    }

    /// Hands buffered frames to the operating system. Call when there is nothing better to do.
    pub fn flush(&mut self) {
        if !self.unflushed {
            return;
        }
        self.unflushed = false;
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.get_mut().flush()
        {
            self.stop(&error.to_string());
        }
    }

    fn stop(&mut self, why: &str) {
        if self.ended.is_none() {
            tracing::error!(path = %self.path.display(), why, "capture ends: the file cannot be written");
            self.ended = Some(why.to_owned());
        }
        self.writer = None;
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("path", &self.path).finish_non_exhaustive()
    }
}

fn into_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn frames_are_kept_whole_with_direction_and_comment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let mut capture = Capture::create(&path, "hca0").unwrap();
        capture.record(Direction::Outbound, &[0xab; 61], Some("qp 0x12".into()));
        capture.record(Direction::Inbound, &[0xcd; 60], None);
        capture.flush();

        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let mut seen = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                seen.push((packet.data.to_vec(), format!("{:?}", packet.options)));
            }
        }
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].0, [0xab; 61]);
        assert!(seen[0].1.contains("Flags(2)") && seen[0].1.contains("qp 0x12"), "{}", seen[0].1);
        assert_eq!(seen[1].0, [0xcd; 60]);
        assert!(seen[1].1.contains("Flags(1)"), "{}", seen[1].1);
    }

    #[test]
    fn a_full_disk_ends_the_capture_and_nothing_else() {
        let mut capture = Capture::create(Path::new("/dev/full"), "hca0").unwrap();
        for _ in 0..3 {
            capture.record(Direction::Outbound, &[0; BUFFER_LEN], None);
        }
        capture.flush();
        assert!(capture.writer.is_none());
        let (path, why) = capture.ended().unwrap();
        assert!(path == Path::new("/dev/full") && why.contains("No space left"), "{why}");
    }

    /// Frames in the file, which must be whole.
    fn frames(path: &Path) -> usize {
        let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
        let mut count = 0;
        while let Some(block) = reader.next_block() {
            count += usize::from(matches!(block.unwrap(), Block::EnhancedPacket(_)));
        }
        count
    }

    #[test]
    fn a_file_that_has_reached_its_bound_is_whole_and_grows_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let mut capture = Capture::create(&path, "hca0").unwrap().with_limit(10_000);
        for _ in 0..1000 {
            capture.record(Direction::Outbound, &[0; 1000], None);
        }
        assert_eq!(capture.path(), None);
        assert!(capture.ended().unwrap().1.contains("its bound of 10000 bytes"));
        let len = std::fs::metadata(&path).unwrap().len();
        assert!((10_000..12_000).contains(&len), "{len}");
        assert!((9..11).contains(&frames(&path)));
    }

    #[test]
    fn a_capture_goes_on_behind_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        for _ in 0..2 {
            let mut capture = Capture::append(&path, "hca0").unwrap();
            capture.record(Direction::Inbound, &[0; 60], None);
            capture.flush();
        }
        assert_eq!(frames(&path), 2);
        let len = std::fs::metadata(&path).unwrap().len();
        let mut capture = Capture::append(&path, "hca0").unwrap().with_limit(len);
        capture.record(Direction::Inbound, &[0; 60], None);
        assert!(capture.ended().is_some(), "what there is counts");
    }
}
