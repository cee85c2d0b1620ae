//! WQEs posted to SQs to send Ethernet frames.

use std::num::NonZeroU16;

use super::segments::{ControlSegment, DataItem, DataItems};
use super::send::{Segments, WqeError};
use super::{Opcode, UNIT};
use crate::describe::{Describe, Field as _, Visitor};
use crate::ids::{Qpn, Sqn};
use crate::layout;

layout! {
    /// Ethernet segment, which follows the control segment.
    pub struct EthernetSegment[16] big_endian {
        /// Whether to compute the TCP or UDP checksum.
        @0x04[31]     l4_checksum: bool,
        /// Whether to compute the IPv4 header checksum.
        @0x04[30]     l3_checksum: bool,
        /// Maximum payload of a segment (MSS), for LSO.
        @0x04[15:0]   mss: u16,
        /// Metadata for transmit flow tables. Not used.
        @0x08         metadata: u32 => Hex,
        /// Whether to insert the VLAN tag.
        @0x0c[31]     insert_vlan: bool,
        /// Number of header bytes in the WQE. The first two bytes are in [`EthernetSegment::vlan_tag`].
        @0x0c[25:16]  inline_len: u16,
        /// Priority and identifier of the VLAN tag, or the first two header bytes.
        @0x0c[15:0]   vlan_tag: u16 => Hex,
    }
}

/// Number of header bytes that the Ethernet segment itself contains.
const FIRST: usize = 2;

/// Operation of a frame WQE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameOperation<'a> {
    /// Sends nothing. The completion only notifies the driver.
    Nop,
    /// Sends one frame, or several segments if `mss` is present.
    Send {
        /// Checksums to compute, and the VLAN tag to insert.
        segment: EthernetSegment,
        /// Segment size, for LSO.
        mss: Option<NonZeroU16>,
        /// First bytes of the frame. With LSO, these are the headers of every segment.
        header: &'a [u8],
        /// Remaining bytes of the frame.
        data: DataItems<'a>,
    },
}

/// A parsed WQE of an SQ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FrameWqe<'a> {
    pub control: ControlSegment,
    pub operation: FrameOperation<'a>,
}

impl<'a> FrameWqe<'a> {
    /// Parses the WQE at the beginning of `bytes`, which can be longer than the WQE.
    ///
    /// # Errors
    /// Fails if the size is 0, the queue number does not match the SQ, a segment extends past the end of the WQE, the
    /// opcode is not supported, or the MSS of an LSO WQE is 0.
    pub fn parse(bytes: &'a [u8], sqn: Sqn) -> Result<Self, WqeError> {
        let control = ControlSegment::parse_prefix(bytes).ok_or(WqeError::Truncated("control segment"))?;
        if control.size == 0 {
            return Err(WqeError::Empty);
        }
        if control.qpn != Qpn::new(sqn.get()) {
            return Err(WqeError::Queue(control.qpn));
        }
        let len = usize::from(control.size) * UNIT;
        let wqe = bytes.get(UNIT..len).ok_or(WqeError::Truncated("size"))?;
        let is_lso = match Opcode::from_code(control.opcode) {
            Some(Opcode::Nop) => return Ok(Self { control, operation: FrameOperation::Nop }),
            Some(Opcode::Send) => false,
            Some(Opcode::Lso) => true,
            _ => return Err(WqeError::Opcode(control.opcode)),
        };
        let segment = EthernetSegment::parse_prefix(wqe).ok_or(WqeError::Truncated("Ethernet segment"))?;
        let mss = match is_lso {
            true => Some(NonZeroU16::new(segment.mss).ok_or(WqeError::SegmentSize)?),
            false => None,
        };
        let first = EthernetSegment::LEN - FIRST;
        // With `insert_vlan`, `vlan_tag` contains the tag instead of header bytes.
        let inline_len = if segment.insert_vlan { 0 } else { usize::from(segment.inline_len) };
        let header = wqe.get(first..first + inline_len).ok_or(WqeError::Truncated("inline header"))?;
        let more_header = inline_len.saturating_sub(FIRST).next_multiple_of(UNIT);
        let rest =
            wqe.get(EthernetSegment::LEN + more_header..).ok_or(WqeError::Truncated("inline header"))?;
        let data = Segments(rest).data()?;
        Ok(Self { control, operation: FrameOperation::Send { segment, mss, header, data } })
    }

    /// Returns the WQE in wire format. Computes the size in the control segment and the inline length.
    pub fn emit(&self) -> Vec<u8> {
        let mut wqe = vec![0; ControlSegment::LEN];
        if let FrameOperation::Send { segment, mss, header, data } = &self.operation {
            let inline_len = u16::try_from(header.len()).unwrap_or(u16::MAX) & 0x3ff;
            let mss = mss.map_or(0, NonZeroU16::get);
            wqe.extend_from_slice(&EthernetSegment { mss, inline_len, ..*segment }.emit());
            if !segment.insert_vlan {
                wqe.truncate(wqe.len() - FIRST);
                wqe.extend_from_slice(header);
                wqe.resize(wqe.len().max(2 * UNIT).next_multiple_of(UNIT), 0);
            }
            for item in data {
                match item {
                    DataItem::Pointer(segment) => wqe.extend_from_slice(&segment.emit()),
                    DataItem::Inline(bytes) => {
                        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX) & 0x3ff | 1 << 31;
                        wqe.extend_from_slice(&count.to_be_bytes());
                        wqe.extend_from_slice(bytes);
                        wqe.resize(wqe.len().next_multiple_of(UNIT), 0);
                    }
                }
            }
        }
        let size = u8::try_from(wqe.len() / UNIT).unwrap_or(u8::MAX);
        let control = ControlSegment { size, ..self.control };
        wqe.splice(..ControlSegment::LEN, control.emit());
        wqe
    }
}

impl Describe for FrameWqe<'_> {
    fn describe(&self, to: &mut dyn Visitor) {
        self.control.describe(to);
        if let FrameOperation::Send { segment, header, data, .. } = &self.operation {
            segment.describe(to);
            header.len().show("header_len", to);
            to.objects("data", &mut data.iter().map(|item| item as &dyn Describe));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::segments::DataSegment;
    use super::*;
    use crate::ids::{Lkey, Va};

    const SQN: Sqn = Sqn::new(0x4002);

    fn control(opcode: Opcode, index: u16) -> ControlSegment {
        let qpn = Qpn::new(SQN.get());
        ControlSegment { index, opcode: opcode.code(), qpn, completion: 2, ..ControlSegment::default() }
    }

    fn data(byte_count: u32) -> DataItem<'static> {
        DataItem::Pointer(DataSegment { byte_count, lkey: Lkey::new(0x800), va: Va::new(0x36a4_0000) })
    }

    fn round_trip(wqe: &FrameWqe<'static>) -> &'static [u8] {
        let bytes = wqe.emit().leak();
        assert_eq!(FrameWqe::parse(bytes, SQN).as_ref(), Ok(wqe));
        bytes
    }

    /// The 66 header bytes of this WQE end in the middle of a unit.
    #[test]
    fn lso_header_continues_after_ethernet_segment() {
        let header = (0..66).collect::<Vec<u8>>().leak();
        let segment = EthernetSegment { l4_checksum: true, l3_checksum: true, ..EthernetSegment::default() };
        let wqe = FrameWqe {
            control: ControlSegment { size: 7, ..control(Opcode::Lso, 13) },
            operation: FrameOperation::Send {
                segment: EthernetSegment { mss: 1448, inline_len: 66, vlan_tag: 1, ..segment },
                mss: NonZeroU16::new(1448),
                header,
                data: [data(2896)].into_iter().collect(),
            },
        };
        let bytes = round_trip(&wqe);
        assert_eq!(bytes[..12], [0, 0, 13, 0x0e, 0, 0x40, 2, 7, 0, 0, 0, 8]);
        assert_eq!(bytes[16..34], [0, 0, 0, 0, 0xc0, 0, 5, 0xa8, 0, 0, 0, 0, 0, 66, 0, 1, 2, 3]);
    }

    #[test]
    fn frame_without_inline_header_has_only_data() {
        let wqe = FrameWqe {
            control: ControlSegment { size: 3, ..control(Opcode::Send, 7) },
            operation: FrameOperation::Send {
                segment: EthernetSegment::default(),
                mss: None,
                header: &[],
                data: [data(98)].into_iter().collect(),
            },
        };
        assert_eq!(round_trip(&wqe).len(), 48);
        let control = ControlSegment { size: 1, ..control(Opcode::Nop, 0) };
        round_trip(&FrameWqe { control, operation: FrameOperation::Nop });
    }

    #[test]
    fn rejects_malformed_frame_wqes() {
        let mut wqe = vec![0; 64];
        let mut parse = |control: ControlSegment, segment: EthernetSegment| {
            wqe[..16].copy_from_slice(&control.emit());
            wqe[16..32].copy_from_slice(&segment.emit());
            FrameWqe::parse(&wqe, SQN).map(drop).unwrap_err()
        };
        let segment = EthernetSegment::default();
        let send = control(Opcode::Send, 0);
        assert_eq!(parse(send, segment), WqeError::Empty);
        assert_eq!(
            parse(ControlSegment { size: 1, ..send }, segment),
            WqeError::Truncated("Ethernet segment")
        );
        assert_eq!(parse(ControlSegment { size: 5, ..send }, segment), WqeError::Truncated("size"));
        let qpn = Qpn::new(1);
        assert_eq!(parse(ControlSegment { size: 2, qpn, ..send }, segment), WqeError::Queue(qpn));
        let read = ControlSegment { size: 2, ..control(Opcode::Read, 0) };
        assert_eq!(parse(read, segment), WqeError::Opcode(0x10));
        let lso = ControlSegment { size: 2, ..control(Opcode::Lso, 0) };
        assert_eq!(parse(lso, segment), WqeError::SegmentSize);
        let long = EthernetSegment { inline_len: 1023, ..segment };
        assert_eq!(parse(ControlSegment { size: 4, ..send }, long), WqeError::Truncated("inline header"));
    }
}
