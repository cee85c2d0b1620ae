//! Completion queue entries (CQE).
//!
//! # Spec
//! mlx5 interface, sections 9.1, 9.3 and 9.4.

use thiserror::Error;

use super::code::codes;
use super::cq::CqeSize;
use super::frame_cqe::FrameReceipt;
use super::syndrome::Syndrome;
use super::wqe::Opcode;
use crate::describe::{Code, Describe, Field as _, Hex, Visitor};
use crate::ids::{Lid, Qpn, UserIndex};
use crate::layout;

/// Length in bytes of a CQE without padding; see [`Fields`].
pub const LEN: usize = 64;
/// Offset of the owner bit's byte within [`Fields`]. The device writes it last.
pub const OWNER_BYTE: usize = 0x3f;
/// Initial value that drivers write to the last byte of each entry: opcode [`CqeOpcode::Invalid`] and owner bit 1.
pub const INITIAL_OWNER_BYTE: u8 = 0xf1;

codes! {
    /// Opcode of a CQE.
    pub enum CqeOpcode(u8) {
        /// A send request has completed.
        Requester = 0 "REQ",
        /// A WRITE with immediate data was received.
        WriteImm = 1 "RESP_WR_IMM",
        /// A SEND was received.
        Send = 2 "RESP_SEND",
        /// A SEND with immediate data was received.
        SendImm = 3 "RESP_SEND_IMM",
        /// A SEND with invalidate was received.
        SendInvalidate = 4 "RESP_SEND_INV",
        /// The next CQE is in the new ring of a resized CQ.
        Resize = 5 "RESIZE_CQ",
        /// A send request has failed.
        RequesterError = 13 "REQ_ERR",
        /// A receive request has failed.
        ResponderError = 14 "RESP_ERR",
        /// The entry has not been written yet.
        Invalid = 15 "INVALID",
    }
}

codes! {
    /// Amount of message data that the CQE contains inline. Support for inline data is optional.
    pub enum InlineScatter(u8) {
        None = 0 "none",
        /// 32 bytes, in the first half of the fields.
        Bytes32 = 1 "32",
        /// 64 bytes, in the first half of a 128-byte entry.
        Bytes64 = 2 "64",
    }
}

layout! {
    /// Fields of a CQE, for successful and failed requests.
    pub struct Fields[64] big_endian {
        /// InfiniBand: path bits from the destination LID of a datagram.
        @0x10[22:16]  path_bits: u8,
        /// InfiniBand: source LID of a datagram.
        @0x14[15:0]   source_lid: Lid,
        /// Nonzero if a datagram has a GRH.
        @0x18[29:28]  grh: u8,
        /// InfiniBand: service level of a datagram. Ethernet: network layer, a value of [`RoceHeader`].
        @0x18[27:24]  service_level: u8,
        /// Source QP of a datagram, or the peer of an RC QP.
        @0x18[23:0]   source_qpn: Qpn,
        /// Ethernet: whether a datagram had a VLAN tag.
        @0x1c[16]     vlan_present: bool,
        /// Ethernet: tag control information of a datagram's VLAN tag.
        @0x1c[15:0]   vlan_tag: u16 => Hex,
        /// User index of the QP or, for XRC, of the SRQ.
        @0x20[23:0]   user_index: UserIndex,
        /// Immediate data or invalidated key. For a datagram to QP1, the low half contains the P_Key.
        @0x24         immediate: [u8; 4],
        /// Number of bytes received, or returned by a READ or atomic.
        @0x2c         byte_count: u32,
        /// Timestamp in ticks of the device's clock. In an error CQE, the low bytes hold the syndromes.
        @0x30         timestamp: u64 => Hex,
        /// Opcode of a send WQE.
        @0x38[31:24]  wqe_opcode: u8 => Opcode::word,
        @0x38[23:0]   qpn: Qpn,
        /// For a send, the index of the WQE's first block. For a receive, the counter of the WQE or, with an SRQ, the
        /// index of the entry.
        @0x3c[31:16]  wqe_counter: u16,
        /// A value of [`CqeOpcode`].
        @0x3c[7:4]    opcode: u8 => CqeOpcode::word,
        /// A value of [`InlineScatter`].
        @0x3c[3:2]    inline: u8 => InlineScatter::word,
        /// Whether the completion is solicited.
        @0x3c[1]      solicited: bool,
        /// Owner bit: bit `log_entries` of the producer index. It toggles on each pass through the ring.
        @0x3c[0]      owner: bool,
    }
}

/// A failed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Failure {
    /// Whether the failed request is a send rather than a receive.
    pub send: bool,
    /// Syndrome code; see [`Syndrome`].
    pub syndrome: u8,
    /// Vendor syndrome (specific to this device).
    pub vendor: u8,
    pub qpn: Qpn,
    /// User index of the QP or, for XRC, of the SRQ.
    pub user_index: UserIndex,
    /// Opcode of a failed send WQE, or 0 for a receive.
    pub wqe_opcode: u8,
    /// Index or counter of the WQE, as in a successful completion.
    pub wqe_counter: u16,
    /// Whether the CQE raises a solicited event.
    pub solicited: bool,
}

/// A receive request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Receipt {
    /// Content of the received message.
    pub content: Content,
    pub qpn: Qpn,
    /// User index of the QP or, for XRC, of the SRQ.
    pub user_index: UserIndex,
    /// Counter of the receive WQE or, with an SRQ, index of the entry.
    pub wqe_counter: u16,
    /// Number of bytes received, including 40 bytes for the GRH of a datagram.
    pub byte_count: u32,
    /// Whether the sender requested a solicited event.
    pub solicited: bool,
    /// Sender of the message: the peer of a connected QP, or the source of a datagram.
    pub source: Source,
    /// Timestamp in ticks of the device's clock, or 0.
    pub timestamp: u64,
}

/// Content of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// WRITE with immediate data.
    WriteImm([u8; 4]),
    /// SEND without immediate data or invalidation.
    Send {
        /// P_Key of a datagram to QP1, or 0 for any other message.
        pkey: u16,
    },
    /// SEND with immediate data.
    SendImm([u8; 4]),
    /// SEND that invalidated a key.
    SendInvalidate(u32),
}

codes! {
    /// Network layer of a datagram received by an Ethernet port. It is reported in place of the service level.
    pub enum RoceHeader(u8) {
        /// RoCEv1, which this device does not support.
        Grh = 0 "grh",
        Ipv6 = 1 "ipv6",
        Ipv4 = 2 "ipv4",
    }
}

/// Source of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Source {
    pub qpn: Qpn,
    /// Source LID of a datagram.
    pub lid: Lid,
    /// InfiniBand: service level of a datagram. Ethernet: network layer, a value of [`RoceHeader`].
    pub service_level: u8,
    /// Path bits from the destination LID of a datagram.
    pub path_bits: u8,
    /// Whether a datagram has a GRH. Always true on Ethernet.
    pub grh: bool,
    /// Ethernet: tag control information of a datagram's VLAN tag.
    pub vlan_tag: Option<u16>,
}

/// A send request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Sent {
    /// Opcode of the WQE.
    pub wqe_opcode: u8,
    pub qpn: Qpn,
    /// User index of the QP.
    pub user_index: UserIndex,
    /// Index of the WQE's first block.
    pub wqe_counter: u16,
    /// Number of bytes that a READ or atomic returned. Drivers ignore this field for other operations.
    pub byte_count: u32,
    /// Timestamp in ticks of the device's clock, or 0.
    pub timestamp: u64,
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cqe {
    /// A send request has completed.
    Sent(Sent),
    /// A message was received.
    Received(Receipt),
    /// A work request failed.
    Failed(Failure),
    /// The CQ continues in its new ring.
    Resize,
    /// A frame was received. [`Cqe::parse`] never returns this variant, since CQEs for frames and for messages have the
    /// same opcode.
    Frame(FrameReceipt),
}

/// Error for a CQE that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CqeError {
    /// The entry has not been written.
    #[error("the CQE has not been written yet")]
    Unwritten,
    /// The opcode is unknown.
    #[error("unknown CQE opcode {0}")]
    Opcode(u8),
    /// The CQE contains inline message data, which this device never writes.
    #[error("invalid inline data format {0} in a CQE")]
    Inline(u8),
}

impl Cqe {
    /// Returns the opcode of the CQE.
    pub const fn opcode(&self) -> CqeOpcode {
        match self {
            Self::Sent(_) => CqeOpcode::Requester,
            Self::Received(receipt) => match receipt.content {
                Content::WriteImm(_) => CqeOpcode::WriteImm,
                Content::Send { .. } => CqeOpcode::Send,
                Content::SendImm(_) => CqeOpcode::SendImm,
                Content::SendInvalidate(_) => CqeOpcode::SendInvalidate,
            },
            Self::Failed(Failure { send: true, .. }) => CqeOpcode::RequesterError,
            Self::Failed(_) => CqeOpcode::ResponderError,
            Self::Resize => CqeOpcode::Resize,
            Self::Frame(_) => CqeOpcode::Send,
        }
    }

    /// Returns the fields of the CQE, with the given owner bit. A frame's CQE has a different layout; see
    /// [`FrameReceipt::fields`].
    #[inline]
    pub fn fields(&self, owner: bool) -> Fields {
        let fields = Fields { opcode: self.opcode().code(), owner, ..Fields::default() };
        match *self {
            Self::Sent(sent) => Fields {
                wqe_opcode: sent.wqe_opcode,
                qpn: sent.qpn,
                user_index: sent.user_index,
                wqe_counter: sent.wqe_counter,
                byte_count: sent.byte_count,
                timestamp: sent.timestamp,
                ..fields
            },
            Self::Received(receipt) => Fields {
                path_bits: receipt.source.path_bits,
                source_lid: receipt.source.lid,
                grh: receipt.source.grh.into(),
                service_level: receipt.source.service_level,
                source_qpn: receipt.source.qpn,
                vlan_present: receipt.source.vlan_tag.is_some(),
                vlan_tag: receipt.source.vlan_tag.unwrap_or_default(),
                user_index: receipt.user_index,
                immediate: match receipt.content {
                    Content::WriteImm(imm) | Content::SendImm(imm) => imm,
                    Content::Send { pkey } => u32::from(pkey).to_be_bytes(),
                    Content::SendInvalidate(key) => key.to_be_bytes(),
                },
                byte_count: receipt.byte_count,
                timestamp: receipt.timestamp,
                qpn: receipt.qpn,
                wqe_counter: receipt.wqe_counter,
                solicited: receipt.solicited,
                ..fields
            },
            Self::Failed(failure) => Fields {
                timestamp: u64::from(u16::from_be_bytes([failure.vendor, failure.syndrome])),
                wqe_opcode: failure.wqe_opcode,
                qpn: failure.qpn,
                user_index: failure.user_index,
                wqe_counter: failure.wqe_counter,
                solicited: failure.solicited,
                ..fields
            },
            Self::Resize | Self::Frame(_) => fields,
        }
    }

    /// Returns the fields in wire format, with the given owner bit.
    pub fn emit(&self, owner: bool) -> [u8; LEN] {
        match self {
            Self::Frame(receipt) => receipt.emit(owner),
            _ => self.fields(owner).emit(),
        }
    }

    /// Returns a whole entry in wire format and its length. Bytes outside [`Fields`] are zero.
    pub fn emit_entry(&self, size: CqeSize, owner: bool) -> ([u8; 2 * LEN], usize) {
        let mut entry = [0; 2 * LEN];
        let at = size.fields_at();
        entry[at..at + LEN].copy_from_slice(&self.emit(owner));
        (entry, size.stride())
    }

    /// Parses the fields of an entry. Returns the CQE and its owner bit.
    ///
    /// # Errors
    /// Fails if the entry has not been written, the opcode is unknown, or the CQE contains inline data.
    pub fn parse(entry: &[u8; LEN]) -> Result<(Self, bool), CqeError> {
        let fields = Fields::parse(entry);
        if fields.inline != 0 {
            return Err(CqeError::Inline(fields.inline));
        }
        let received = |content| {
            Self::Received(Receipt {
                content,
                qpn: fields.qpn,
                user_index: fields.user_index,
                wqe_counter: fields.wqe_counter,
                byte_count: fields.byte_count,
                solicited: fields.solicited,
                source: Source {
                    qpn: fields.source_qpn,
                    lid: fields.source_lid,
                    service_level: fields.service_level,
                    path_bits: fields.path_bits,
                    grh: fields.grh != 0,
                    vlan_tag: fields.vlan_present.then_some(fields.vlan_tag),
                },
                timestamp: fields.timestamp,
            })
        };
        let [.., vendor, syndrome] = fields.timestamp.to_be_bytes();
        let failed = |send| {
            Self::Failed(Failure {
                send,
                syndrome,
                vendor,
                qpn: fields.qpn,
                user_index: fields.user_index,
                wqe_opcode: fields.wqe_opcode,
                wqe_counter: fields.wqe_counter,
                solicited: fields.solicited,
            })
        };
        let [_, _, high, low] = fields.immediate;
        let opcode = CqeOpcode::from_code(fields.opcode).ok_or(CqeError::Opcode(fields.opcode))?;
        let cqe = match opcode {
            CqeOpcode::Requester => Self::Sent(Sent {
                wqe_opcode: fields.wqe_opcode,
                qpn: fields.qpn,
                user_index: fields.user_index,
                wqe_counter: fields.wqe_counter,
                byte_count: fields.byte_count,
                timestamp: fields.timestamp,
            }),
            CqeOpcode::WriteImm => received(Content::WriteImm(fields.immediate)),
            CqeOpcode::Send => received(Content::Send { pkey: u16::from_be_bytes([high, low]) }),
            CqeOpcode::SendImm => received(Content::SendImm(fields.immediate)),
            CqeOpcode::SendInvalidate => {
                received(Content::SendInvalidate(u32::from_be_bytes(fields.immediate)))
            }
            CqeOpcode::Resize => Self::Resize,
            CqeOpcode::RequesterError => failed(true),
            CqeOpcode::ResponderError => failed(false),
            CqeOpcode::Invalid => return Err(CqeError::Unwritten),
        };
        Ok((cqe, fields.owner))
    }
}

impl Failure {
    /// Returns the syndrome, or `None` if the code is unknown.
    pub const fn syndrome(&self) -> Option<Syndrome> {
        Syndrome::from_code(self.syndrome)
    }
}

/// Returns the owner bit of an entry, given the free-running producer index.
pub const fn owner(producer: u32, log_entries: u8) -> bool {
    match producer.checked_shr(log_entries as u32) {
        Some(lap) => lap & 1 != 0,
        None => false,
    }
}

impl Describe for Cqe {
    fn describe(&self, to: &mut dyn Visitor) {
        Code(self.opcode().code().into(), Some(self.opcode().name())).show("opcode", to);
        match self {
            Self::Sent(sent) => {
                Opcode::word(sent.wqe_opcode).show("wqe_opcode", to);
                sent.qpn.show("qpn", to);
                sent.user_index.show("user_index", to);
                sent.wqe_counter.show("wqe_counter", to);
                sent.byte_count.show("byte_count", to);
                Hex(sent.timestamp).show("timestamp", to);
            }
            Self::Received(receipt) => {
                receipt.qpn.show("qpn", to);
                receipt.user_index.show("user_index", to);
                receipt.wqe_counter.show("wqe_counter", to);
                receipt.byte_count.show("byte_count", to);
                receipt.solicited.show("solicited", to);
                match receipt.content {
                    Content::WriteImm(imm) | Content::SendImm(imm) => imm.show("imm", to),
                    Content::Send { pkey } => Hex(pkey).show("pkey", to),
                    Content::SendInvalidate(key) => Hex(key).show("invalidated_key", to),
                }
                receipt.source.qpn.show("source_qpn", to);
                receipt.source.lid.show("source_lid", to);
                receipt.source.service_level.show("service_level", to);
                receipt.source.path_bits.show("path_bits", to);
                receipt.source.grh.show("grh", to);
                if let Some(tag) = receipt.source.vlan_tag {
                    Hex(tag).show("vlan_tag", to);
                }
                Hex(receipt.timestamp).show("timestamp", to);
            }
            Self::Failed(failure) => {
                Syndrome::word(failure.syndrome).show("syndrome", to);
                Hex(failure.vendor).show("vendor", to);
                if failure.send {
                    Opcode::word(failure.wqe_opcode).show("wqe_opcode", to);
                }
                failure.qpn.show("qpn", to);
                failure.user_index.show("user_index", to);
                failure.wqe_counter.show("wqe_counter", to);
            }
            Self::Resize => {}
            Self::Frame(receipt) => receipt.describe(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    fn receipt() -> Receipt {
        Receipt {
            content: Content::Send { pkey: 0 },
            qpn: Qpn::new(0x83),
            user_index: UserIndex::new(0),
            wqe_counter: 0,
            byte_count: 0x200,
            solicited: false,
            source: Source { qpn: Qpn::new(0x84), ..Source::default() },
            timestamp: 0,
        }
    }

    fn check(cqe: Cqe, owner: bool, expected: &[(usize, u32)]) {
        let expected = words(expected);
        assert_eq!(cqe.emit(owner), expected, "{cqe:?}");
        assert_eq!(Cqe::parse(&expected), Ok((cqe, owner)));
    }

    /// Example CQEs from section 22.
    #[test]
    fn recorded_cqes_round_trip() {
        let umr = Sent {
            wqe_opcode: Opcode::Umr.code(),
            qpn: Qpn::new(0x82),
            user_index: UserIndex::NONE,
            wqe_counter: 0,
            byte_count: 0,
            timestamp: 0,
        };
        check(Cqe::Sent(umr), false, &[(0x20, 0xff_ffff), (0x38, 0x2500_0082)]);
        let received = &[(0x18, 0x84), (0x2c, 0x200), (0x38, 0x83), (0x3c, 0x20)];
        check(Cqe::Received(receipt()), false, received);
    }

    #[test]
    fn datagram_cqe_identifies_sender() {
        let source = Source {
            qpn: Qpn::new(1),
            lid: Lid::new(0x12),
            service_level: 3,
            path_bits: 5,
            grh: true,
            vlan_tag: None,
        };
        let content = Content::Send { pkey: 0xffff };
        let cqe = Cqe::Received(Receipt { content, source, solicited: true, ..receipt() });
        let expected = [
            (0x10, 0x0005_0000),
            (0x14, 0x12),
            (0x18, 0x1300_0001),
            (0x24, 0xffff),
            (0x2c, 0x200),
            (0x38, 0x83),
            (0x3c, 0x23),
        ];
        check(cqe, true, &expected);
    }

    #[test]
    fn ethernet_datagram_cqe_has_header_and_vlan() {
        let header = RoceHeader::Ipv4.code();
        let (qpn, vlan_tag) = (Qpn::new(1), Some(0xc005));
        let source = Source { qpn, service_level: header, grh: true, vlan_tag, ..Source::default() };
        let cqe = Cqe::Received(Receipt { source, ..receipt() });
        let words = [(0x18, 0x1200_0001), (0x1c, 0x0001_c005), (0x2c, 0x200), (0x38, 0x83), (0x3c, 0x20)];
        check(cqe, false, &words);
    }

    #[test]
    fn receive_cqe_opcode_matches_message_kind() {
        for (content, opcode) in [
            (Content::WriteImm([1, 2, 3, 4]), 1),
            (Content::SendImm([1, 2, 3, 4]), 3),
            (Content::SendInvalidate(0x0102_0304), 4),
        ] {
            let cqe = Cqe::Received(Receipt { content, ..receipt() });
            let words = [(0x18, 0x84), (0x24, 0x0102_0304), (0x2c, 0x200), (0x38, 0x83), (0x3c, opcode << 4)];
            check(cqe, false, &words);
        }
    }

    /// Example from golden trace ib-5.
    #[test]
    fn error_cqe_holds_syndromes() {
        let failure = Failure {
            send: true,
            syndrome: Syndrome::RemoteAccess.code(),
            vendor: 0x88,
            qpn: Qpn::new(0x87),
            user_index: UserIndex::new(0),
            wqe_opcode: 0x08,
            wqe_counter: 3,
            solicited: true,
        };
        check(Cqe::Failed(failure), false, &[(0x34, 0x8813), (0x38, 0x0800_0087), (0x3c, 0x0003_00d2)]);
        assert_eq!(failure.syndrome(), Some(Syndrome::RemoteAccess));
        let flushed = Failure {
            send: false,
            syndrome: Syndrome::Flushed.code(),
            vendor: 0,
            wqe_opcode: 0,
            wqe_counter: 0,
            ..failure
        };
        check(Cqe::Failed(flushed), false, &[(0x34, 5), (0x38, 0x87), (0x3c, 0xe2)]);
    }

    #[test]
    fn resize_cqe_has_only_opcode_and_owner() {
        check(Cqe::Resize, true, &[(0x3c, 0x51)]);
    }

    #[test]
    fn large_cqe_has_fields_in_second_half() {
        let (entry, stride) = Cqe::Resize.emit_entry(CqeSize::Bytes128, true);
        assert_eq!((stride, entry[0x7f], entry[0x3f]), (128, 0x51, 0));
        let (entry, stride) = Cqe::Resize.emit_entry(CqeSize::Bytes64, false);
        assert_eq!((stride, entry[0x3f]), (64, 0x50));
    }

    #[test]
    fn rejects_unwritten_and_unsupported_entries() {
        let mut entry = [0; LEN];
        entry[OWNER_BYTE] = INITIAL_OWNER_BYTE;
        assert_eq!(Cqe::parse(&entry), Err(CqeError::Unwritten));
        entry[OWNER_BYTE] = 0x60;
        assert_eq!(Cqe::parse(&entry), Err(CqeError::Opcode(6)));
        entry[OWNER_BYTE] = 0x24;
        assert_eq!(Cqe::parse(&entry), Err(CqeError::Inline(1)));
    }

    #[test]
    fn owner_bit_toggles_on_each_pass() {
        assert!(!owner(0, 3) && !owner(7, 3) && owner(8, 3) && !owner(16, 3));
        assert!(!owner(u32::MAX, 32));
    }
}
