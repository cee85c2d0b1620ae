//! ICMP echo (RFC 792).

use zerocopy::IntoBytes;

use super::checksum::Checksum;
use super::ether::{EtherType, RawEther};
use super::ipv4::Ipv4;
use crate::WireError;
use crate::ids::MacAddr;
use crate::wire::split;

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
