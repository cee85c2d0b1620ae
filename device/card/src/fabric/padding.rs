//! Pads RoCE frames to equal lengths so that one segmented send can carry them.
//!
//! The bytes of an Ethernet frame after the IP packet are padding, which the receiver ignores (RFC 894 and RFC 1122,
//! section 2.3.3). The IP header gives the length of the packet.

use protocol::net::ether::{EtherFrame, EtherType};

/// Maximum number of padding bytes: the length of a RETH plus that of immediate data. Only the first packet of a WRITE
/// contains a RETH, and only the last can contain immediate data. The packets of a READ response differ by at most the
/// length of an AETH, which is less.
pub const MAX_PADDING: usize = 16 + 4;

/// A frame may be padded by at most `1 / MIN_LEN_RATIO` of its padded length.
const MIN_LEN_RATIO: usize = 16;

/// Minimum length of an IPv4 header.
const MIN_IPV4_HEADER_LEN: usize = 20;
/// Length of an IPv6 header.
const IPV6_HEADER_LEN: usize = 40;
/// Length of a UDP header.
const UDP_HEADER_LEN: usize = 8;

/// Returns whether a frame of `len` bytes may be padded to `segment` bytes.
pub(super) fn is_small(len: usize, segment: usize) -> bool {
    segment.checked_sub(len).is_some_and(|padding| padding <= MAX_PADDING.min(segment / MIN_LEN_RATIO))
}

/// Returns whether a frame may be padded. Only RoCE frames qualify, since the receiver can find the end of their
/// packet, and only if they have no padding yet.
pub fn can_pad(frame: &[u8]) -> bool {
    packet_end(frame) == Some(frame.len())
}

/// Returns a frame without its padding if it is a RoCE frame. Returns other frames unchanged.
pub fn trim(frame: &[u8]) -> &[u8] {
    packet_end(frame).and_then(|end| frame.get(..end)).unwrap_or(frame)
}

/// Returns the offset where the IP packet of a RoCE frame ends. The frame may have one VLAN tag.
fn packet_end(frame: &[u8]) -> Option<usize> {
    let ether = EtherFrame::parse_tagged(frame).ok()?.0;
    if !ether.is_roce() {
        return None;
    }
    let word = |at: usize| {
        let bytes = ether.payload.get(at..)?.first_chunk()?;
        Some(usize::from(u16::from_be_bytes(*bytes)))
    };
    let (version, header_len, packet_len) = match ether.ether_type {
        EtherType::Ipv4 => (4, usize::from(ether.payload.first()? & 0xf) * 4, word(2)?),
        EtherType::Ipv6 => (6, IPV6_HEADER_LEN, IPV6_HEADER_LEN + word(4)?),
        EtherType::Arp | EtherType::Other(_) => return None,
    };
    let is_valid = ether.payload.first()? >> 4 == version
        && header_len >= MIN_IPV4_HEADER_LEN
        && packet_len >= header_len + UDP_HEADER_LEN;
    is_valid.then(|| frame.len() - ether.payload.len() + packet_len).filter(|end| *end <= frame.len())
}

#[cfg(test)]
pub(super) mod tests {
    use protocol::ids::MacAddr;

    use super::*;

    /// Returns a RoCE frame of `len` bytes whose contents end with `tag`.
    pub(in crate::fabric) fn roce(dst: MacAddr, src: MacAddr, len: u16, tag: u8) -> Vec<u8> {
        let mut frame = [&dst.0[..], &src.0, &[8, 0]].concat();
        let [high, low] = (len - 14).to_be_bytes();
        frame.extend([0x45, 0, high, low, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        frame.extend([0xc0, 0, 0x12, 0xb7]);
        frame.resize(len.into(), tag);
        frame
    }

    fn roce_v6(len: u16) -> Vec<u8> {
        let mut frame = vec![0; len.into()];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[14] = 0x60;
        frame[18..20].copy_from_slice(&(len - 54).to_be_bytes());
        frame[20] = 17;
        frame[56..58].copy_from_slice(&4791_u16.to_be_bytes());
        frame
    }

    fn tagged(frame: &[u8]) -> Vec<u8> {
        [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat()
    }

    #[test]
    fn padding_of_roce_frame_is_removed() {
        let v4 = roce(MacAddr::default(), MacAddr::default(), 100, 7);
        for frame in [tagged(&v4), v4, tagged(&roce_v6(100)), roce_v6(100)] {
            assert!(can_pad(&frame));
            let padded = [&frame[..], &[0; MAX_PADDING]].concat();
            assert!(!can_pad(&padded));
            assert_eq!(trim(&padded), frame);
            assert_eq!(trim(&frame), frame);
        }
    }

    #[test]
    fn non_roce_and_invalid_frames_are_unchanged() {
        let valid = roce(MacAddr::default(), MacAddr::default(), 100, 7);
        let changed = |at: usize, value: u8| {
            let mut frame = valid.clone();
            frame[at] = value;
            frame
        };
        let ether_type = changed(13, 6);
        let version = changed(14, 0x65);
        let too_long = changed(17, 87);
        let shorter_than_header = [changed(17, 19), vec![0; 10]].concat();
        let tcp = [changed(23, 6), vec![0; 10]].concat();
        let truncated = valid[..20].to_vec();
        for frame in [ether_type, version, too_long, shorter_than_header, tcp, truncated, Vec::new()] {
            assert!(!can_pad(&frame));
            assert_eq!(trim(&frame), frame);
        }
    }

    #[test]
    fn padding_has_absolute_and_relative_limits() {
        assert!(is_small(4158, 4174) && is_small(314, 330) && is_small(330, 330));
        assert!(!is_small(4150, 4174), "at most 20 bytes");
        assert!(!is_small(122, 138), "at most a sixteenth of the frame");
        assert!(!is_small(331, 330));
    }
}
