//! ICMP echo (RFC 792).

use zerocopy::IntoBytes;

use super::checksum::Checksum;
use super::ether::{EtherType, RawEther};
use super::ipv4::Ipv4;
use crate::WireError;
use crate::ids::MacAddr;
use crate::view::split;

/// Protocol number of ICMP.
pub const PROTOCOL: u8 = 1;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// An echo request: identifier, sequence number and data, which the reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoRequest<'a>(pub &'a [u8]);

impl<'a> EchoRequest<'a> {
    /// Reads the payload of an IPv4 datagram. `None`: ICMP, but not an echo request.
    ///
    /// # Errors
    /// [`WireError::Short`], [`WireError::Checksum`].
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Self>, WireError> {
        let (header, _) = split(bytes, 8, "icmp")?;
        if Checksum::new().with(bytes).value() != 0 {
            return Err(WireError::Checksum { what: "icmp" });
        }
        let is_echo_request = header.starts_with(&[ECHO_REQUEST, 0]);
        Ok(bytes.get(4..).filter(|_| is_echo_request).map(Self))
    }

    /// Appends the whole frame that answers this request, `ip` being the header of the answer.
    ///
    /// # Errors
    /// [`WireError::Invalid`] when the answer does not fit an IPv4 datagram; nothing is then appended.
    pub fn emit_reply_frame(
        &self,
        dst: MacAddr,
        src: MacAddr,
        ip: Ipv4,
        out: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        let ip = Ipv4 { protocol: PROTOCOL, ..ip }.emit(self.0.len().saturating_add(4))?;
        out.extend_from_slice(RawEther::new(dst, src, EtherType::Ipv4).as_bytes());
        out.extend_from_slice(ip.as_bytes());
        let head = [ECHO_REPLY, 0];
        out.extend_from_slice(&head);
        out.extend_from_slice(&Checksum::new().with(&head).with(self.0).value().to_be_bytes());
        out.extend_from_slice(self.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::ids::Lid;
    use crate::net::ether::EtherFrame;

    /// Made by scapy 2.8.0: Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.77.0.1",
    /// dst="10.77.0.2", id=0x1234, flags="DF") / ICMP(type=8, id=0x4321, seq=7) / b"hcad ping".
    const REQUEST: [u8; 51] = *b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0\
        \x45\0\0\x25\x12\x34\x40\0\x40\x01\x14\x08\x0a\x4d\0\x01\x0a\x4d\0\x02\
        \x08\0\xfa\x30\x43\x21\0\x07hcad ping";

    /// Made by scapy 2.8.0 of the same layers: addresses exchanged, id=0, ICMP type 0.
    const REPLY: [u8; 51] = *b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\
        \x45\0\0\x25\0\0\x40\0\x40\x01\x26\x3c\x0a\x4d\0\x02\x0a\x4d\0\x01\
        \0\0\x02\x31\x43\x21\0\x07hcad ping";

    #[test]
    fn echo_is_answered_as_scapy_builds_the_answer() {
        let ether = EtherFrame::parse(&REQUEST).unwrap();
        let (ip, payload) = Ipv4::parse(ether.payload).unwrap();
        assert_eq!((ip.src, ip.protocol), (Ipv4Addr::new(10, 77, 0, 1), PROTOCOL));
        let echo = EchoRequest::parse(payload).unwrap().unwrap();
        let mut out = Vec::new();
        let answer = Ipv4 { src: ip.dst, dst: ip.src, ..ip };
        let mac = |lid| MacAddr::from_lid(Lid::new(lid));
        echo.emit_reply_frame(mac(1), mac(2), answer, &mut out).unwrap();
        assert_eq!(out, REPLY);
    }

    #[test]
    fn only_intact_requests_are_echo_requests() {
        let icmp = |frame: &[u8; 51]| frame[34..].to_vec();
        assert_eq!(EchoRequest::parse(&icmp(&REPLY)), Ok(None));
        let mut damaged = icmp(&REQUEST);
        damaged[10] ^= 1;
        assert_eq!(EchoRequest::parse(&damaged), Err(WireError::Checksum { what: "icmp" }));
    }
}
