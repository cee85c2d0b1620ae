//! Writes a port's frames to pcapng files.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use protocol::ids::Qpn;
use protocol::net::ether::{EtherFrame, EtherType};
use protocol::net::ipv4::Ipv4;
use protocol::net::ipv6::Ipv6;
use protocol::roce::Bth;

use crate::telemetry::filter::CaptureFilter;
use crate::telemetry::store::{Keep, Opening, Store};

const UDP_LEN: usize = 8;

/// Direction of a frame from the HCA's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Inbound,
    Outbound,
}

/// Additional information about a captured frame.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Local QP of a sent frame. For a received frame, the QP is taken from the BTH.
    pub qpn: Option<Qpn>,
    /// Work request number of the frame, as used in traces.
    pub wr: Option<u64>,
    pub note: Option<String>,
}

impl About {
    pub fn note(text: impl Into<String>) -> Self {
        Self { note: Some(text.into()), ..Self::default() }
    }
}

/// Formats a captured packet's comment. The QP and the work request are written as in a trace.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(qpn) = self.qpn {
            write!(f, "qpn={qpn}")?;
            separator = " ";
        }
        if let Some(wr) = self.wr {
            write!(f, "{separator}wr={wr}")?;
            separator = "; ";
        } else if self.qpn.is_some() {
            separator = "; ";
        }
        match &self.note {
            Some(note) => write!(f, "{separator}{note}"),
            None => Ok(()),
        }
    }
}

/// A capture of one HCA's frames. Each frame is stored with a nanosecond timestamp, its direction and an optional
/// comment. The comment gives the local QP if it is known.
///
/// A write error is logged once and ends the capture, but does not affect the device. A single-file capture also ends
/// when it reaches its size limit.
///
/// # Spec
/// IETF draft-ietf-opsawg-pcapng: Section Header, Interface Description and Enhanced Packet blocks.
pub struct Capture {
    store: Store,
    filter: CaptureFilter,
    blocks: PcapNgWriter<Vec<u8>>,
}

impl Capture {
    /// Opens the store described by `keep`. Wireshark shows `interface` as the interface name. Appending to a file
    /// begins a new section.
    ///
    /// # Errors
    /// Fails if a file cannot be opened.
    pub fn open(keep: &Keep, opening: Opening, interface: &str) -> io::Result<Self> {
        let mut blocks = PcapNgWriter::new(Vec::new()).map_err(into_io)?;
        blocks
            .write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(interface)),
                    // Resolution 10^-9: timestamps are in nanoseconds.
                    InterfaceDescriptionOption::IfTsResol(9),
                ],
            })
            .map_err(into_io)?;
        let head = std::mem::take(blocks.get_mut());
        let store = Store::open("capture", keep, opening, head)?;
        Ok(Self { store, filter: CaptureFilter::default(), blocks })
    }

    /// Creates or replaces the file at `path`.
    ///
    /// # Errors
    /// Fails if the file cannot be created or written.
    pub fn create(path: &Path, interface: &str) -> io::Result<Self> {
        Self::open(&Keep::file(path), Opening::Replace, interface)
    }

    /// Sets the size limit of each file.
    #[must_use]
    pub fn with_limit(self, max_len: u64) -> Self {
        Self { store: self.store.with_limit(max_len), ..self }
    }

    /// Captures only frames that match the filter.
    #[must_use]
    pub fn with_filter(self, filter: CaptureFilter) -> Self {
        Self { filter, ..self }
    }

    /// Returns the path that frames are written to, or `None` if the capture has ended.
    pub fn path(&self) -> Option<&Path> {
        self.store.path()
    }

    /// If the capture ended early, returns its file and the reason.
    pub fn ended(&self) -> Option<(&Path, &str)> {
        self.store.ended()
    }

    /// Returns the contents of the capture ring, or `None` if the capture does not use one.
    pub fn kept(&self) -> Option<Vec<u8>> {
        self.store.kept()
    }

    /// Records a frame. `frame` starts with the Ethernet header. A RoCE frame includes its ICRC.
    pub fn record(&mut self, direction: Direction, frame: &[u8], about: About) {
        if self.store.path().is_none() {
            return;
        }
        let bth = bth(frame);
        let qpn = match direction {
            Direction::Inbound => bth.map(|bth| bth.dest_qp),
            Direction::Outbound => about.qpn,
        };
        if !self.filter.is_empty() {
            let opcode = bth.map(|bth| bth.opcode.to_string());
            if !self.filter.admits(opcode.as_deref(), qpn) {
                return;
            }
        }
        let flags = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        let mut options = vec![EnhancedPacketOption::Flags(flags)];
        let comment = About { qpn, ..about }.to_string();
        if !comment.is_empty() {
            options.push(EnhancedPacketOption::Comment(Cow::Owned(comment)));
        }
        let written = self.blocks.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(frame),
            options,
        });
        // Writing to memory does not fail for a valid block.
        if written.is_ok() {
            self.store.push(self.blocks.get_ref());
        }
        self.blocks.get_mut().clear();
    }

    /// Flushes buffered frames to the operating system. Call this when idle.
    pub fn flush(&mut self) {
        self.store.flush();
    }
}

fn bth(frame: &[u8]) -> Option<Bth> {
    let (ether, _) = EtherFrame::parse_tagged(frame).ok().filter(|(ether, _)| ether.is_roce())?;
    let datagram = match ether.ether_type {
        EtherType::Ipv4 => Ipv4::parse(ether.payload).ok()?.1,
        EtherType::Ipv6 => Ipv6::parse(ether.payload).ok()?.1,
        EtherType::Arp | EtherType::Other(_) => return None,
    };
    Some(Bth::parse(datagram.get(UDP_LEN..)?).ok()?.0)
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("store", &self.store).finish_non_exhaustive()
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

    fn about(qpn: u32, wr: u64) -> About {
        About { qpn: Some(Qpn::new(qpn)), wr: Some(wr), note: None }
    }

    fn frames(bytes: &[u8]) -> Vec<(Vec<u8>, String)> {
        let mut reader = PcapNgReader::new(bytes).unwrap();
        let mut seen = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                seen.push((packet.data.to_vec(), format!("{:?}", packet.options)));
            }
        }
        seen
    }

    #[test]
    fn capture_stores_frames_with_direction_and_comment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let mut capture = Capture::create(&path, "hca0").unwrap();
        let noted = About { note: Some("dropped".into()), ..about(0x12, 128) };
        capture.record(Direction::Outbound, &[0xab; 61], noted);
        capture.record(Direction::Inbound, &[0xcd; 60], About::default());
        capture.flush();

        let seen = frames(&std::fs::read(&path).unwrap());
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].0, [0xab; 61]);
        assert!(seen[0].1.contains("Flags(2)"), "{}", seen[0].1);
        assert!(seen[0].1.contains("qpn=0x12 wr=128; dropped"), "{}", seen[0].1);
        assert_eq!(seen[1].0, [0xcd; 60]);
        assert!(seen[1].1.contains("Flags(1)") && !seen[1].1.contains("Comment"), "{}", seen[1].1);
    }

    #[test]
    fn vlan_tagged_packet_matches_roce_filter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let kinds = vec![crate::telemetry::filter::FrameKind::Roce];
        let filter = CaptureFilter { kinds, opcodes: vec!["acknowledge".into()], ..CaptureFilter::default() };
        let mut capture = Capture::create(&path, "hca0").unwrap().with_filter(filter);
        let frames_of_scapy = include_str!("../../../protocol/tests/data/scapy_frames.txt");
        let hex = frames_of_scapy.lines().find_map(|line| line.strip_prefix("rc_ack ")).unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let untagged: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let tagged = [&untagged[..12], &[0x81, 0, 0, 5], &untagged[12..]].concat();
        capture.record(Direction::Inbound, &untagged, About::default());
        capture.record(Direction::Inbound, &tagged, About::default());
        capture.flush();
        let seen = frames(&std::fs::read(&path).unwrap());
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|(_, options)| options.contains("qpn=0xabcdef")), "{seen:?}");
    }

    #[test]
    fn full_disk_stops_capture_and_reports_reason() {
        let mut capture = Capture::create(Path::new("/dev/full"), "hca0").unwrap();
        for _ in 0..3 {
            capture.record(Direction::Outbound, &[0; 1 << 20], About::default());
        }
        capture.flush();
        assert!(capture.path().is_none());
        let (path, why) = capture.ended().unwrap();
        assert!(path == Path::new("/dev/full") && why.contains("No space left"), "{why}");
    }

    #[test]
    fn capture_at_size_limit_stays_valid() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let mut capture = Capture::create(&path, "hca0").unwrap().with_limit(10_000);
        for _ in 0..1000 {
            capture.record(Direction::Outbound, &[0; 1000], About::default());
        }
        assert_eq!(capture.path(), None);
        assert!(capture.ended().unwrap().1.contains("size limit of 10000 bytes"));
        let bytes = std::fs::read(&path).unwrap();
        assert!((10_000..12_000).contains(&bytes.len()), "{}", bytes.len());
        assert!((9..11).contains(&frames(&bytes).len()));
    }

    #[test]
    fn rotating_files_and_ring_hold_newest_frames() {
        let dir = tempfile::tempdir().unwrap();
        let files = Keep::Files { path: dir.path().join("a.pcapng"), count: 2.try_into().unwrap() };
        let memory = Keep::Memory((64 << 10).try_into().unwrap());
        let [mut turns, mut ring] = [&files, &memory]
            .map(|keep| Capture::open(keep, Opening::New, "hca0").unwrap().with_limit(20_000));
        for n in 0..=255 {
            for capture in [&mut turns, &mut ring] {
                capture.record(Direction::Outbound, &[n; 1000], About::default());
                capture.flush();
            }
        }
        assert!(turns.ended().is_none() && turns.kept().is_none());
        let turned = files.files().flat_map(|path| frames(&std::fs::read(path).unwrap()));
        let mut turned: Vec<_> = turned.map(|(bytes, _)| bytes[0]).collect();
        turned.sort_unstable();
        let kept: Vec<_> = frames(&ring.kept().unwrap()).iter().map(|(bytes, _)| bytes[0]).collect();
        for newest in [turned, kept] {
            assert!(newest.len() >= 20, "{newest:?}");
            let last: Vec<u8> = (0..=255).collect();
            assert!(last.ends_with(&newest), "{newest:?}");
        }
    }

    #[test]
    fn append_continues_existing_capture() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcapng");
        let append = || Capture::open(&Keep::file(&path), Opening::Append, "hca0").unwrap();
        for _ in 0..2 {
            let mut capture = append();
            capture.record(Direction::Inbound, &[0; 60], About::default());
            capture.flush();
        }
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(frames(&bytes).len(), 2);
        let mut capture = append().with_limit(bytes.len() as u64);
        capture.record(Direction::Inbound, &[0; 60], About::default());
        assert!(capture.ended().is_some(), "the existing contents count towards the limit");
    }
}
