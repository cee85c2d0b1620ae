//! Whole frames, from the Ethernet header to the ICRC.

use std::convert::Infallible;
use std::ops::Range;

use zerocopy::IntoBytes;

use super::icrc::{ICRC_LEN, IcrcField, icrc};
use super::packet::pad_count;
use super::shell::Unwrapped;
use super::{Bth, Ext, IpAddrs, Packet, Shell};
use crate::WireError;
use crate::net::udp::RawUdp;
use crate::view::split;

/// Largest payload of one packet: the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;

/// The UDP checksum in its datagram.
const CHECKSUM: Range<usize> = 6..8;

/// A received RoCEv2 frame whose checksums and lengths are right, and its ICRC, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceFrame<'a> {
    /// Where it came from and how.
    pub shell: Shell,
    /// What it says.
    pub packet: Packet<'a>,
}

impl<'a> RoceFrame<'a> {
    /// Reads a frame; bytes behind the IP datagram (Ethernet padding) are ignored.
    ///
    /// # Errors
    /// The first thing found wrong, from the outside in: each header's length and fields, the IPv4 and UDP checksums
    /// (a UDP checksum of 0 is none), the ICRC, then as [`Packet::parse`].
    pub fn parse(frame: &'a [u8]) -> Result<Self, WireError> {
        Self::parse_with(frame, IcrcField::Computed)
    }

    /// Reads a frame whose ICRC is checked only if it is there.
    ///
    /// # Errors
    /// As [`RoceFrame::parse`].
    pub fn parse_with(frame: &'a [u8], field: IcrcField) -> Result<Self, WireError> {
        let Unwrapped { shell, ip_and_udp, transport } = Shell::unwrap(frame)?;
        let Some((covered, found)) = transport.split_last_chunk::<ICRC_LEN>() else {
            return Err(WireError::Short { what: "ICRC", need: ICRC_LEN, have: transport.len() });
        };
        // Whether the CRC is right or not, what has no BTH is short.
        split(covered, 12, "BTH")?;
        if field == IcrcField::Computed {
            let expected = icrc(ip_and_udp, covered);
            let found = u32::from_le_bytes(*found);
            if found != expected {
                return Err(WireError::Icrc { found, expected });
            }
        }
        Ok(Self { shell, packet: Packet::parse(covered)? })
    }
}

/// Writes one frame at the end of a buffer: headers first, then the caller appends the payload, then
/// [`FrameWriter::finish`] adds pad and ICRC. Dropped without `finish`, it takes back what it wrote.
///
/// The frame is as short as it is: whoever puts it on real Ethernet pads it to 60 bytes.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Length of `out` to go back to when dropped.
    keep: usize,
    frame: usize,
    ip: IpAddrs,
    /// Bytes in front of the IP header.
    ether: usize,
    payload: usize,
    payload_len: usize,
}

impl<'a> FrameWriter<'a> {
    /// Appends the headers of a frame with `payload_len` bytes of payload. Nothing is allocated but by growth of `out`,
    /// which has room for the whole frame then.
    ///
    /// # Panics
    /// When the caller breaks its part: more than [`MAX_PAYLOAD`] bytes, or an `ext` that is not the variant
    /// `bth.opcode` demands.
    pub fn new(out: &'a mut Vec<u8>, shell: &Shell, bth: &Bth, ext: &Ext, payload_len: usize) -> Self {
        assert!(payload_len <= MAX_PAYLOAD, "payload of {payload_len} bytes in one packet");
        assert_eq!(ext.kind(), bth.opcode.ext_kind(), "extension headers of {:?}", bth.opcode);
        let frame = out.len();
        let pad = pad_count(payload_len);
        let raw_bth = bth.emit(pad);
        let transport_len = size_of_val(&raw_bth) + ext.kind().len_bytes() + payload_len + pad + ICRC_LEN;
        let ether = shell.ether_len();
        out.reserve(ether + shell.ip.header_len() + size_of::<RawUdp>() + transport_len);
        shell.emit(transport_len, out).expect("MAX_PAYLOAD and headers fit an IP datagram");
        out.extend_from_slice(raw_bth.as_bytes());
        ext.emit(out);
        let payload = out.len();
        Self { out, keep: frame, frame, ip: shell.ip, ether, payload, payload_len }
    }

    /// Lets `append` add payload at the end of the buffer. Bytes that nobody appends are zero.
    ///
    /// # Errors
    /// Those of `append`.
    ///
    /// # Panics
    /// When it leaves anything but the payload so far, some more of it, and no more than was announced.
    pub fn payload<E>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        let before = self.out.len();
        append(self.out)?;
        let allowed = before..=self.payload + self.payload_len;
        assert!(allowed.contains(&self.out.len()), "payload of {} bytes", self.payload_len);
        Ok(())
    }

    /// Adds payload.
    ///
    /// # Panics
    /// When it is more than was announced.
    pub fn extend(&mut self, payload: &[u8]) {
        let Ok(()) = self.payload(|out| -> Result<(), Infallible> {
            out.extend_from_slice(payload);
            Ok(())
        });
    }

    /// Computes what depends on the payload. Returns the frame's length in bytes.
    pub fn finish(self) -> usize {
        self.finish_with(IcrcField::Computed)
    }

    /// The same, computing the ICRC and a UDP checksum over it only if the frame is to have them: [`seal`] does it later.
    pub fn finish_with(mut self, field: IcrcField) -> usize {
        let covered_len = self.payload + self.payload_len + pad_count(self.payload_len);
        if self.out.len() < covered_len {
            self.out.resize(covered_len, 0);
        }
        if field == IcrcField::LeftOut {
            self.out.extend_from_slice(&[0; ICRC_LEN]);
            let len = self.out.len() - self.frame;
            self.keep += len;
            return len;
        }
        let covered = &self.out[self.frame + self.ether..];
        let (ip_and_udp, transport) = covered.split_at(self.ip.header_len() + size_of::<RawUdp>());
        let icrc = icrc(ip_and_udp, transport);
        self.out.extend_from_slice(&icrc.to_le_bytes());
        let frame = &mut self.out[self.frame..];
        let len = frame.len();
        if let IpAddrs::V6 { .. } = self.ip {
            emit_udp_checksum(&self.ip, &mut frame[self.ether + self.ip.header_len()..]);
        }
        self.keep += len;
        len
    }
}

impl Drop for FrameWriter<'_> {
    fn drop(&mut self) {
        self.out.truncate(self.keep);
    }
}

/// Makes a frame whole whose ICRC was left out. A whole one stays as it is, one that was damaged is no longer seen to be.
///
/// # Errors
/// As [`RoceFrame::parse`]: it is no such frame.
pub fn seal(frame: &mut [u8]) -> Result<(), WireError> {
    let Unwrapped { shell, ip_and_udp, transport } = Shell::unwrap(frame)?;
    let Some((covered, _)) = transport.split_last_chunk::<ICRC_LEN>() else {
        return Err(WireError::Short { what: "ICRC", need: ICRC_LEN, have: transport.len() });
    };
    let icrc = icrc(ip_and_udp, covered);
    let datagram_at = shell.ether_len() + shell.ip.header_len();
    let icrc_at = datagram_at + size_of::<RawUdp>() + covered.len();
    frame[icrc_at..icrc_at + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    let datagram = &mut frame[datagram_at..icrc_at + ICRC_LEN];
    // Over IPv4 none, zeros, stays none.
    if matches!(shell.ip, IpAddrs::V6 { .. }) || datagram[CHECKSUM] != [0; 2] {
        datagram[CHECKSUM].fill(0);
        emit_udp_checksum(&shell.ip, datagram);
    }
    Ok(())
}

/// Fills in the UDP checksum of an IPv6 datagram.
///
/// Over IPv4 we send 0, none, as soft-RoCE does. Over IPv6 a receiver may discard 0 unless it was told that the port is
/// a tunnel's (RFC 8200, section 8.1), while every receiver takes a right one; the ICRC leaves the field out.
fn emit_udp_checksum(ip: &IpAddrs, datagram: &mut [u8]) {
    let len = u16::try_from(datagram.len()).expect("the UDP length field was filled from it");
    let sum = match ip.pseudo_header().with_u16(len).with(datagram).value() {
        0 => 0xffff,
        sum => sum,
    };
    datagram[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
}
