use proptest::prelude::*;
use protocol::net::layers::{Layers, Transport};

use super::*;
use crate::nic::offload::{IpVersion, L4Protocol, Request, Tunnel, TunnelUdp};
use crate::nic::receive::{ChecksumStatus, Checksums, verify};

const ETHERNET_LEN: usize = 14;

/// Headers with zero lengths and checksums, which segmentation must fill in.
#[derive(Clone, Copy, Debug)]
struct Headers {
    v6: bool,
    udp: bool,
}

impl Headers {
    fn ip(self, protocol: u8) -> Vec<u8> {
        let addresses = [7; 8];
        if self.v6 {
            [&[0x60, 0, 0, 0, 0, 0, protocol, 64][..], &addresses.repeat(4)].concat()
        } else {
            [&[0x45, 0, 0, 0, 0xff, 0xfe, 0, 0, 64, protocol, 0, 0][..], &addresses].concat()
        }
    }

    fn l4(self) -> Vec<u8> {
        if self.udp {
            vec![0, 5, 0, 10, 0, 0, 0, 0]
        } else {
            // Flags: CWR, ACK, PSH, FIN.
            vec![0, 5, 0, 10, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0x50, 0x99, 1, 0, 0, 0, 0, 0]
        }
    }

    fn version(self) -> IpVersion {
        if self.v6 { IpVersion::V6 } else { IpVersion::V4 { checksum: true } }
    }

    fn bytes(self) -> Vec<u8> {
        let kind = if self.v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
        [&[2; 12][..], &kind, &self.ip(if self.udp { 17 } else { 6 }), &self.l4()].concat()
    }

    fn request(self) -> Request {
        Request {
            ether_len: ETHERNET_LEN,
            ip: Some(self.version()),
            ip_len: self.ip(0).len(),
            l4: Some(if self.udp { L4Protocol::Udp } else { L4Protocol::Tcp }),
            l4_len: self.l4().len(),
            ..Request::default()
        }
    }
}

fn all() -> impl Iterator<Item = Headers> {
    [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(v6, udp)| Headers { v6, udp })
}

fn request(segment_len: u16, payload_len: usize) -> Segmentation {
    let segment_len = NonZeroU16::new(segment_len).unwrap();
    Segmentation { segment_len, payload_len: payload_len.try_into().unwrap(), max_frame: 9000 }
}

fn emit_all(headers: Vec<u8>, offloads: Offloads, request: Segmentation, payload: &[u8]) -> Vec<Vec<u8>> {
    let mut segments = Segments::new(headers, offloads, request).unwrap();
    let mut rest = payload;
    let mut frames = Vec::new();
    loop {
        let mut frame = Vec::new();
        let last = segments.emit::<HeaderError>(&mut frame, |len, out| {
            let (now, behind) = rest.split_at(len);
            out.extend_from_slice(now);
            rest = behind;
            Ok(())
        });
        frames.push(frame);
        if last.unwrap() {
            assert!(rest.is_empty());
            return frames;
        }
    }
}

proptest! {
    #[test]
    fn segments_are_valid_and_carry_entire_payload(
        v6: bool,
        udp: bool,
        segment_len in 1..700_u16,
        payload in proptest::collection::vec(any::<u8>(), 1..3000),
    ) {
        let headers = Headers { v6, udp };
        let offloads = Offloads::new(&headers.request()).unwrap();
        let request = request(segment_len, payload.len());
        let frames = emit_all(headers.bytes(), offloads, request, &payload);
        prop_assert_eq!(frames.len(), payload.len().div_ceil(segment_len.into()));
        let mut sent = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let layers = Layers::parse(frame).unwrap();
            let ip = layers.ip.unwrap();
            prop_assert_eq!(ip.end, frame.len());
            let valid = Checksums { ip: ChecksumStatus::Valid, l4: ChecksumStatus::Valid };
            prop_assert_eq!(verify(frame, &layers), valid);
            if !v6 {
                let id = 0xfffe_u16.wrapping_add(u16::try_from(index).unwrap());
                prop_assert_eq!(frame[18..20].to_vec(), id.to_be_bytes().to_vec());
            }
            if let Transport::Tcp(_) = ip.transport {
                let tcp = &frame[ip.payload_at..];
                let sequence = u32::from_be_bytes(*tcp[4..].first_chunk().unwrap());
                let before = u32::try_from(sent.len()).unwrap();
                prop_assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(before));
                let flags = 0x10
                    | if index == 0 { 0x80 } else { 0 }
                    | if index + 1 == frames.len() { 0x09 } else { 0 };
                prop_assert_eq!(tcp[13], flags);
            }
            sent.extend_from_slice(&frame[headers.bytes().len()..]);
        }
        prop_assert_eq!(sent, payload);
    }
}

/// In a VXLAN tunnel, both the outer and the inner frame of each segment must be valid.
#[test]
fn segments_in_vxlan_tunnel_have_valid_headers() {
    let vxlan = [0x08, 0, 0, 0, 0, 0, 7, 0];
    for inner in all() {
        for outer in [Headers { v6: false, udp: true }, Headers { v6: true, udp: true }] {
            let headers = [&outer.bytes()[..], &vxlan, &inner.bytes()].concat();
            let tunnel = Tunnel {
                ip: outer.version(),
                ip_len: outer.ip(0).len(),
                udp: Some(TunnelUdp { checksum: true }),
                len: outer.l4().len() + vxlan.len() + ETHERNET_LEN,
            };
            let offloads = Offloads::new(&Request { tunnel: Some(tunnel), ..inner.request() }).unwrap();
            assert_eq!(offloads.headers_len(), headers.len());
            let payload = [9; 300];
            for frame in emit_all(headers, offloads, request(128, payload.len()), &payload) {
                let inner_at = outer.bytes().len() + vxlan.len();
                for frame in [&frame[..], &frame[inner_at..]] {
                    let valid = Checksums { ip: ChecksumStatus::Valid, l4: ChecksumStatus::Valid };
                    assert_eq!(verify(frame, &Layers::parse(frame).unwrap()), valid, "{outer:?} {inner:?}");
                }
            }
        }
    }
}

#[test]
fn rejects_unsegmentable_frames() {
    let headers = Headers { v6: false, udp: false };
    let of = |headers: Vec<u8>, offloads, request| Segments::new(headers, offloads, request).unwrap_err();
    let offloads = |request: Request| Offloads::new(&request).unwrap();
    let tcp = offloads(headers.request());
    let without_l4 = offloads(Request { l4: None, ..headers.request() });
    let sctp = offloads(Request { l4: Some(L4Protocol::Sctp), ..headers.request() });
    assert_eq!(of(headers.bytes(), tcp, request(1, 0)), SegmentationError::NoPayload);
    assert_eq!(of(headers.bytes(), without_l4, request(1, 1)), SegmentationError::Headers);
    assert_eq!(of(headers.bytes(), sctp, request(1, 1)), SegmentationError::Headers);
    assert_eq!(of(vec![0; 53], tcp, request(1, 1)), SegmentationError::Headers);
    assert_eq!(of(headers.bytes(), tcp, request(8947, 8947)), SegmentationError::TooLong);
    assert!(Segments::new(headers.bytes(), tcp, request(8946, 9000)).is_ok());
}

#[test]
fn rejects_short_headers() {
    let of = |request: Request| Offloads::new(&request).unwrap_err();
    for headers in all() {
        let request = headers.request();
        of(Request { ether_len: ETHERNET_LEN - 1, ..request });
        of(Request { ip_len: request.ip_len - 1, ..request });
        of(Request { l4_len: request.l4_len - 1, ..request });
        of(Request { ip: None, ..request });
        let udp = Some(TunnelUdp { checksum: false });
        let tunnel = Tunnel { ip: headers.version(), ip_len: request.ip_len, udp, len: 7 };
        of(Request { tunnel: Some(tunnel), ..request });
        let mut short = headers.bytes();
        short.pop();
        assert_eq!(Offloads::new(&request).unwrap().fill_checksums(&mut short), Err(HeaderError));
    }
}

#[test]
fn failed_segment_leaves_output_unchanged() {
    let headers = Headers { v6: false, udp: false };
    let offloads = Offloads::new(&headers.request()).unwrap();
    let mut segments = Segments::new(headers.bytes(), offloads, request(2, 3)).unwrap();
    let mut out = b"earlier frame".to_vec();
    let unreadable = |_, out: &mut Vec<u8>| {
        out.push(0xa5);
        Err(HeaderError)
    };
    assert_eq!(segments.emit(&mut out, unreadable), Err(HeaderError));
    assert_eq!(out, b"earlier frame");
    // A frame that ends within its headers has no room for the checksums.
    let shortened = |_, out: &mut Vec<u8>| -> Result<(), HeaderError> {
        out.pop();
        Ok(())
    };
    assert_eq!(segments.emit(&mut out, shortened), Err(HeaderError));
    assert_eq!(out, b"earlier frame");

    let whole = |len, out: &mut Vec<u8>| -> Result<(), HeaderError> {
        out.extend(vec![9; len]);
        Ok(())
    };
    assert_eq!(segments.emit(&mut out, whole), Ok(false), "the second segment must still be pending");
    assert_eq!(out.len(), b"earlier frame".len() + headers.bytes().len() + 2);
}
