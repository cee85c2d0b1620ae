//! Complete RoCEv2 frames, from the Ethernet header to the ICRC.

use std::convert::Infallible;
use std::ops::Range;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes as _, IntoBytes};

use super::bth::RawBth;
use super::encap::Unwrapped;
use super::ext::{RawXrceth, XRCETH_LEN};
use super::icrc::{ICRC_LEN, icrc};
use super::packet::pad_count;
use super::{
    Bth, Encap, Ext, FlowHeaders, IpAddrs, Mtu, Offload, Packet, PacketPayload, PacketWith, PayloadLen,
};
use crate::ids::Srqn;
use crate::net::udp::RawUdp;
use crate::view::split;
use crate::{Psn, WireError};

/// Largest packet payload in bytes: the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;

/// Largest payload in bytes of a frame written with [`Offload::Segmentation`]. Every path MTU divides it, and the frame
/// still fits into an IP datagram.
pub const MAX_OFFLOADED_PAYLOAD: usize = 32 << 10;

/// Byte range of the checksum in a UDP datagram.
const CHECKSUM: Range<usize> = 6..8;

/// A received RoCEv2 frame with verified lengths and checksums. The ICRC is verified too if the frame was parsed with
/// [`Offload::None`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceFrame<'a> {
    /// Ethernet, IP and UDP headers.
    pub encap: Encap,
    /// BTH, extension headers and payload.
    pub packet: Packet<'a>,
}

impl<'a> RoceFrame<'a> {
    /// Parses a frame. Bytes after the IP datagram (Ethernet padding) are ignored.
    ///
    /// # Errors
    /// Returns the first error found. The Ethernet, IP and UDP headers are checked first, with their lengths and
    /// checksums (a UDP checksum of 0 means none), then the ICRC, and finally the packet (see [`Packet::parse`]).
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        Self::parse_with(frame, Offload::None)
    }

    /// Parses a frame. The ICRC is verified only if `offload` is [`Offload::None`].
    ///
    /// # Errors
    /// Fails in the same cases as [`RoceFrame::parse`], except that a wrong ICRC is accepted if it is not verified.
    /// With [`Offload::Segmentation`], also fails if the payload exceeds [`MAX_OFFLOADED_PAYLOAD`], or [`MAX_PAYLOAD`]
    /// if the packet cannot be divided.
    pub fn parse_with(frame: &'a [u8], offload: Offload) -> Result<Self, WireError> {
        Self::of(&Encap::unwrap(frame)?, offload)
    }

    /// Parses a frame of a flow, with the same result as [`RoceFrame::parse_with`]. Returns `None` if the frame is not
    /// part of the flow or has an error.
    pub fn parse_in_flow(flow: &FlowHeaders, frame: &'a [u8], offload: Offload) -> Option<Self> {
        Self::of(&flow.unwrap(frame)?, offload).ok()
    }

    fn of(unwrapped: &Unwrapped<'a>, offload: Offload) -> Result<Self, WireError> {
        let Unwrapped { encap, ip_and_udp, transport } = *unwrapped;
        let Some((covered, found)) = transport.split_last_chunk::<ICRC_LEN>() else {
            return Err(WireError::Short { what: "ICRC", need: ICRC_LEN, have: transport.len() });
        };
        // Report a packet that is too short for a BTH as such, not as an ICRC mismatch.
        split(covered, 12, "BTH")?;
        if offload == Offload::None {
            let expected = icrc(ip_and_udp, covered);
            let found = u32::from_le_bytes(*found);
            if found != expected {
                return Err(WireError::Icrc { found, expected });
            }
        }
        let packet = Packet::parse(covered)?;
        check_payload_len(&packet, offload)?;
        Ok(Self { encap, packet })
    }
}

/// Headers of a RoCEv2 frame whose payload is not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceHeaders {
    /// Ethernet, IP and UDP headers.
    pub encap: Encap,
    /// BTH, extension headers and payload length.
    pub packet: PacketWith<PayloadLen>,
    /// Offset of the payload in the frame.
    pub payload_at: usize,
}

impl RoceHeaders {
    /// Parses the headers of a frame of a flow. `head` is the beginning of the frame, whose length is `len`. Returns
    /// the headers that [`RoceFrame::parse_in_flow`] would return for the whole frame, or `None` if that function would
    /// return `None`, if it would verify the ICRC, or if `head` does not hold all headers.
    #[inline]
    pub fn parse_in_flow(flow: &FlowHeaders, head: &[u8], len: usize, offload: Offload) -> Option<Self> {
        if offload == Offload::None {
            return None;
        }
        let head = head.get(..len).unwrap_or(head);
        let (encap, rest, transport_len) = flow.unwrap_headers(head)?;
        let transport_at = head.len() - rest.len();
        if transport_at + transport_len > len {
            return None;
        }
        let covered_len = transport_len.checked_sub(ICRC_LEN)?;
        let (packet, headers_len) = PacketWith::parse_headers(rest, covered_len).ok()?;
        check_payload_len(&packet, offload).ok()?;
        Some(Self { encap, packet, payload_at: transport_at + headers_len })
    }
}

/// Checks that the payload is not too long for its offload; see [`RoceFrame::parse_with`].
fn check_payload_len<P: PacketPayload>(packet: &PacketWith<P>, offload: Offload) -> Result<(), WireError> {
    let Offload::Segmentation(mtu) = offload else { return Ok(()) };
    let is_divided = packet.segment_count(mtu) > 1;
    let most = if is_divided { MAX_OFFLOADED_PAYLOAD } else { MAX_PAYLOAD };
    let len = packet.payload.len();
    if len > most {
        let value = u64::try_from(len).unwrap_or(u64::MAX);
        return Err(WireError::Invalid { what: "payload length", value });
    }
    Ok(())
}

/// Writes one frame at the end of a buffer.
///
/// `new` writes the headers, the caller appends the payload, and [`FrameWriter::finish`] adds the pad bytes and the
/// ICRC. If the writer is dropped without `finish`, the buffer is truncated to its original length. The code that sends
/// the frame off-host pads it to the 60-byte Ethernet minimum.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Length that `out` is truncated to on drop: the original length until the frame is finished.
    keep: usize,
    frame: usize,
    encap: &'a Encap,
    payload: usize,
    payload_len: usize,
}

impl<'a> FrameWriter<'a> {
    /// Appends the headers of a frame with `payload_len` bytes of payload. Reserves space for the whole frame, so that
    /// appending the payload does not reallocate the buffer.
    ///
    /// # Panics
    /// Panics in the same cases as [`FrameWriter::with_xrceth`], and for XRC requests, which require an XRCETH.
    pub fn new(out: &'a mut Vec<u8>, encap: &'a Encap, bth: &Bth, ext: &Ext, payload_len: usize) -> Self {
        Self::with_xrceth(out, encap, bth, None, ext, payload_len)
    }

    /// Like [`FrameWriter::new`], but also writes an XRCETH for `srqn` if the opcode requires one.
    ///
    /// # Panics
    /// Panics if `payload_len` exceeds [`MAX_OFFLOADED_PAYLOAD`] or if `ext` is not the variant that `bth.opcode`
    /// requires. Also panics if the opcode requires an XRCETH but `srqn` is missing, or vice versa.
    pub fn with_xrceth(
        out: &'a mut Vec<u8>,
        encap: &'a Encap,
        bth: &Bth,
        srqn: Option<Srqn>,
        ext: &Ext,
        payload_len: usize,
    ) -> Self {
        assert!(payload_len <= MAX_OFFLOADED_PAYLOAD, "payload of {payload_len} bytes in one frame");
        assert_eq!(ext.kind(), bth.opcode.ext_kind(), "extension headers of {:?}", bth.opcode);
        assert_eq!(srqn.is_some(), bth.opcode.has_xrceth(), "XRCETH of {:?}", bth.opcode);
        let frame = out.len();
        let pad = pad_count(payload_len);
        let raw_bth = bth.emit(pad);
        let ext_len = ext.kind().len_bytes() + if srqn.is_some() { XRCETH_LEN } else { 0 };
        let transport_len = size_of_val(&raw_bth) + ext_len + payload_len + pad + ICRC_LEN;
        let ether = encap.ether_len();
        out.reserve(ether + encap.ip.header_len() + size_of::<RawUdp>() + transport_len);
        encap.emit(transport_len, out).expect("MAX_OFFLOADED_PAYLOAD and headers fit an IP datagram");
        out.extend_from_slice(raw_bth.as_bytes());
        if let Some(srqn) = srqn {
            out.extend_from_slice(RawXrceth::of(srqn).as_bytes());
        }
        ext.emit(out);
        let payload = out.len();
        Self { out, keep: frame, frame, encap, payload, payload_len }
    }

    /// Like [`FrameWriter::with_xrceth`], but copies the headers before the extension headers from the frame at offset
    /// `model` of `out`, except for the PSN and the solicited event flag. That frame must have the same encapsulation,
    /// opcode and length.
    ///
    /// # Panics
    /// Panics if `out` does not contain a frame of the same length at `model`.
    #[inline]
    pub fn with_model(
        out: &'a mut Vec<u8>,
        model: usize,
        encap: &'a Encap,
        (psn, solicited): (Psn, bool),
        srqn: Option<Srqn>,
        ext: &Ext,
        payload_len: usize,
    ) -> Self {
        let frame = out.len();
        let udp_at = encap.ether_len() + encap.ip.header_len();
        let ext_at = udp_at + size_of::<RawUdp>() + size_of::<RawBth>();
        let ext_len = ext.kind().len_bytes() + if srqn.is_some() { XRCETH_LEN } else { 0 };
        let len = ext_at + ext_len + payload_len + pad_count(payload_len) + ICRC_LEN;
        out.reserve(len);
        out.extend_from_within(model..model + ext_at);
        let (udp, bth) =
            RawUdp::mut_from_prefix(&mut out[frame + udp_at..]).expect("a UDP header was copied");
        assert_eq!(udp_at + usize::from(udp.len.get()), len, "length of the frame");
        udp.checksum = U16::ZERO;
        let bth = RawBth::mut_from_bytes(bth).expect("a BTH was copied");
        bth.flags.set_solicited(solicited);
        bth.sequence.set_psn(psn.get());
        if let Some(srqn) = srqn {
            out.extend_from_slice(RawXrceth::of(srqn).as_bytes());
        }
        ext.emit(out);
        let payload = out.len();
        Self { out, keep: frame, frame, encap, payload, payload_len }
    }

    /// Calls `append`, which adds payload at the end of the buffer. Payload bytes that are not appended are zero.
    ///
    /// # Errors
    /// Returns the error that `append` returns.
    ///
    /// # Panics
    /// Panics if `append` shortens the buffer or if the payload exceeds the length passed to [`FrameWriter::new`].
    pub fn payload<E>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        let before = self.out.len();
        append(self.out)?;
        let allowed = before..=self.payload + self.payload_len;
        assert!(allowed.contains(&self.out.len()), "payload of {} bytes", self.payload_len);
        Ok(())
    }

    /// Appends bytes to the payload.
    ///
    /// # Panics
    /// Panics if the payload exceeds the length passed to [`FrameWriter::new`].
    pub fn extend(&mut self, payload: &[u8]) {
        let Ok(()) = self.payload(|out| -> Result<(), Infallible> {
            out.extend_from_slice(payload);
            Ok(())
        });
    }

    /// Adds the pad bytes and the ICRC and fills in the UDP checksum. Returns the length of the frame in bytes.
    pub fn finish(self) -> usize {
        self.finish_with(Offload::None)
    }

    /// Finishes a frame whose payload is inserted later. Appends the pad bytes and a placeholder for the ICRC. Returns
    /// the number of bytes written and the offset in them at which the payload belongs (the length of the headers).
    ///
    /// # Panics
    /// Panics if part of the payload has been appended.
    pub fn finish_without_payload(mut self) -> (usize, u16) {
        assert_eq!(self.out.len(), self.payload, "part of the payload has been appended");
        self.out.resize(self.payload + pad_count(self.payload_len) + ICRC_LEN, 0);
        let len = self.out.len() - self.frame;
        self.keep += len;
        let headers_len = self.payload - self.frame;
        (len, u16::try_from(headers_len).expect("the headers are shorter than 128 bytes"))
    }

    /// Like [`FrameWriter::finish`], but skips the ICRC and the UDP checksum unless `offload` is [`Offload::None`].
    ///
    /// # Panics
    /// Panics if the payload exceeds [`MAX_PAYLOAD`] and `offload` is not [`Offload::Segmentation`].
    #[inline]
    pub fn finish_with(mut self, offload: Offload) -> usize {
        let is_one_packet = self.payload_len <= MAX_PAYLOAD;
        assert!(
            is_one_packet || matches!(offload, Offload::Segmentation(_)),
            "{} bytes in a packet",
            self.payload_len
        );
        let covered_len = self.payload + self.payload_len + pad_count(self.payload_len);
        if self.out.len() < covered_len {
            self.out.resize(covered_len, 0);
        }
        if offload == Offload::None {
            self.append_checksums();
        } else {
            self.out.extend_from_slice(&[0; ICRC_LEN]);
        }
        let len = self.out.len() - self.frame;
        self.keep += len;
        len
    }

    /// Appends the ICRC and, over IPv6, fills in the UDP checksum.
    fn append_checksums(&mut self) {
        let Encap { ip, .. } = self.encap;
        let ip_at = self.encap.ether_len();
        let covered = &self.out[self.frame + ip_at..];
        let (ip_and_udp, transport) = covered.split_at(ip.header_len() + size_of::<RawUdp>());
        let icrc = icrc(ip_and_udp, transport);
        self.out.extend_from_slice(&icrc.to_le_bytes());
        if let IpAddrs::V6 { .. } = ip {
            emit_udp_checksum(ip, &mut self.out[self.frame + ip_at + ip.header_len()..]);
        }
    }
}

impl Drop for FrameWriter<'_> {
    fn drop(&mut self) {
        self.out.truncate(self.keep);
    }
}

/// Computes the ICRC and the UDP checksum of a frame that was written with [`Offload::Icrc`]. A complete frame remains
/// unchanged. A damaged frame also gets a valid ICRC, which hides the damage from receivers.
///
/// # Errors
/// Fails if the Ethernet, IP or UDP header is invalid, or if the frame is too short for an ICRC.
pub fn seal(frame: &mut [u8]) -> Result<(), WireError> {
    let Unwrapped { encap, ip_and_udp, transport } = Encap::unwrap(frame)?;
    let Some((covered, _)) = transport.split_last_chunk::<ICRC_LEN>() else {
        return Err(WireError::Short { what: "ICRC", need: ICRC_LEN, have: transport.len() });
    };
    let icrc = icrc(ip_and_udp, covered);
    let datagram_at = encap.ether_len() + encap.ip.header_len();
    let icrc_at = datagram_at + size_of::<RawUdp>() + covered.len();
    frame[icrc_at..icrc_at + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    let datagram = &mut frame[datagram_at..icrc_at + ICRC_LEN];
    // Over IPv4, a UDP checksum of 0 (none) remains 0.
    if matches!(encap.ip, IpAddrs::V6 { .. }) || datagram[CHECKSUM] != [0; 2] {
        datagram[CHECKSUM].fill(0);
        emit_udp_checksum(&encap.ip, datagram);
    }
    Ok(())
}

/// Divides a frame written with [`Offload::Segmentation`] into its packets and calls `act` with each packet's complete
/// frame, in PSN order.
///
/// # Errors
/// Fails in the same cases as [`RoceFrame::parse_with`].
pub fn for_each_frame(frame: &[u8], mtu: Mtu, mut act: impl FnMut(&[u8])) -> Result<(), WireError> {
    let RoceFrame { encap, packet } = RoceFrame::parse_with(frame, Offload::Segmentation(mtu))?;
    let mut out = Vec::new();
    for Packet { bth, srqn, ext, payload } in packet.segments(mtu) {
        out.clear();
        let mut writer = FrameWriter::with_xrceth(&mut out, &encap, &bth, srqn, &ext, payload.len());
        writer.extend(payload);
        writer.finish();
        act(&out);
    }
    Ok(())
}

/// Fills in the UDP checksum.
///
/// Over IPv4, the writer leaves the checksum at 0 (none), as soft-RoCE does. Over IPv6, receivers discard datagrams
/// with a checksum of 0, except on tunnel ports (RFC 8200, section 8.1). The ICRC does not cover the checksum.
fn emit_udp_checksum(ip: &IpAddrs, datagram: &mut [u8]) {
    let len = u16::try_from(datagram.len()).expect("the UDP length field was filled from it");
    let sum = match ip.pseudo_header().with_u16(len).with(datagram).value() {
        // RFC 768: a computed checksum of 0 is sent as all ones; 0 means none.
        0 => 0xffff,
        sum => sum,
    };
    datagram[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
}
