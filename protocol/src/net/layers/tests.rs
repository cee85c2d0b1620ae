use proptest::prelude::*;

use super::*;

const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

fn frame(parts: &[&[u8]]) -> Vec<u8> {
    [&ADDRESSES[..], &parts.concat()].concat()
}

/// Returns an EtherType followed by an IPv4 datagram from 10.0.0.1 to 10.0.0.2 (RFC 791, section 3.1).
fn ipv4(protocol: u8, fragment: [u8; 2], options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header_len = u8::try_from(20 + options.len()).unwrap();
    let [high, low] = u16::try_from(usize::from(header_len) + payload.len()).unwrap().to_be_bytes();
    let fixed = [0x40 | (header_len / 4), 0, high, low, 0, 1, fragment[0], fragment[1], 64, protocol, 0, 0];
    [&[0x08, 0x00][..], &fixed, &[10, 0, 0, 1, 10, 0, 0, 2], options, payload].concat()
}

/// Returns an EtherType followed by an IPv6 datagram from 2001:db8::1 to 2001:db8::2 (RFC 8200, section 3).
fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let address = |last| [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let fixed = [0x86, 0xdd, 0x60, 0, 0, 0, high, low, next_header, 64];
    [&fixed[..], &address(1), &address(2), payload].concat()
}

/// Returns a transport header with ports 4660 and 22136, padded with zeros to `len` bytes.
fn transport(len: usize) -> Vec<u8> {
    let mut header = vec![0; len];
    header[..4].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    header
}

const PORTS: Ports = Ports { src: U16::new(0x1234), dst: U16::new(0x5678) };

#[track_caller]
fn parsed(frame: &[u8]) -> Layers {
    Layers::parse(frame).unwrap()
}

#[track_caller]
fn ip(frame: &[u8]) -> Ip {
    parsed(frame).ip.expect("the frame has an IP header")
}

#[test]
fn locates_tcp_over_ipv4() {
    let padded = frame(&[&ipv4(6, [0x40, 0], &[], &transport(20)), &[0; 6]]);
    let layers = parsed(&padded);
    assert_eq!((layers.dst, layers.src), (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1])));
    assert_eq!((layers.outer_tag, layers.inner_tag), (None, None));
    assert_eq!((layers.ether_type, layers.network_at), (EtherType::Ipv4, 14));
    let addresses = Addresses::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2) };
    let ip = layers.ip.unwrap();
    assert_eq!(ip.addresses, addresses);
    assert_eq!((ip.protocol, ip.fragment, ip.extensions), (6, false, false));
    assert_eq!((ip.payload_at, ip.end), (34, 54), "padding is not part of the datagram");
    assert_eq!(ip.transport, Transport::Tcp(PORTS));
    assert_eq!(layers.ip_header(&padded), padded.get(14..34));
    assert_eq!(ip.payload(&padded), Some(&transport(20)[..]));
}

#[test]
fn ip_header_includes_ipv4_options() {
    let frame = frame(&[&ipv4(17, [0, 0], &[0x94, 4, 0, 0], &transport(8))]);
    assert_eq!((ip(&frame).payload_at, ip(&frame).transport), (38, Transport::Udp(PORTS)));
}

#[test]
fn parses_up_to_two_vlan_tags() {
    let customer = VlanTag { kind: TagKind::Customer, tci: Tci::new().with_priority(5).with_vid(7) };
    let service = VlanTag {
        kind: TagKind::Service,
        tci: Tci::new().with_priority(1).with_drop_eligible(true).with_vid(0xfff),
    };
    let datagram = ipv4(17, [0, 0], &[], &transport(8));
    let (c, s) = ([0x81, 0x00, 0xa0, 0x07], [0x88, 0xa8, 0x3f, 0xff]);

    let once = parsed(&frame(&[&c, &datagram]));
    assert_eq!((once.outer_tag, once.inner_tag, once.network_at), (Some(customer), None, 18));
    assert_eq!(once.ip.unwrap().payload_at, 38);

    let twice = parsed(&frame(&[&s, &c, &datagram]));
    assert_eq!((twice.outer_tag, twice.inner_tag, twice.network_at), (Some(service), Some(customer), 22));
    assert_eq!(twice.ip.unwrap().transport, Transport::Udp(PORTS));

    let thrice = parsed(&frame(&[&s, &c, &c, &datagram]));
    assert_eq!((thrice.ether_type, thrice.ip), (EtherType::Other(0x8100), None));
}

#[test]
fn transport_requires_minimum_header_length() {
    let cases = [
        (6, 20, Transport::Tcp(PORTS)),
        (17, 8, Transport::Udp(PORTS)),
        (132, 12, Transport::Sctp(PORTS)),
        (47, 8, Transport::Other),
    ];
    for (protocol, len, expected) in cases {
        for wrap in [ipv6(protocol, &transport(len)), ipv4(protocol, [0, 0], &[], &transport(len))] {
            assert_eq!(ip(&frame(&[&wrap])).transport, expected, "protocol {protocol}");
        }
        let short = ipv6(protocol, &transport(len - 1));
        assert_eq!(ip(&frame(&[&short])).transport, Transport::Other, "protocol {protocol}, one byte short");
    }
    assert_eq!(ip(&frame(&[&ipv4(1, [0, 0], &[], &[8; 8])])).transport, Transport::Icmp);
    assert_eq!(
        ip(&frame(&[&ipv4(58, [0, 0], &[], &[8; 8])])).transport,
        Transport::Other,
        "ICMPv6 over IPv4"
    );
    assert_eq!(ip(&frame(&[&ipv6(58, &[128; 8])])).transport, Transport::Icmp);
}

#[test]
fn fragment_has_no_transport() {
    for fragment in [[0x20, 0x00], [0x20, 0x10], [0x00, 0x10]] {
        let ip = ip(&frame(&[&ipv4(6, fragment, &[], &transport(24))]));
        assert_eq!((ip.fragment, ip.transport), (true, Transport::Other), "{fragment:02x?}");
    }
    for field in [[0x00, 0x01], [0x00, 0x09], [0x00, 0x08]] {
        let extension = [6, 0, field[0], field[1], 0, 0, 0, 9];
        let ip = ip(&frame(&[&ipv6(44, &[&extension[..], &transport(24)].concat())]));
        assert_eq!((ip.fragment, ip.transport), (true, Transport::Other), "{field:02x?}");
        assert_eq!((ip.protocol, ip.payload_at), (6, 62));
    }
}

#[test]
fn transport_is_parsed_in_ipv6_atomic_fragment() {
    let ip = ip(&frame(&[&ipv6(44, &[&[6, 0, 0, 0, 0, 0, 0, 9][..], &transport(20)].concat())]));
    assert_eq!((ip.fragment, ip.extensions, ip.transport), (false, true, Transport::Tcp(PORTS)));
}

#[test]
fn later_fragment_data_is_not_parsed_as_header() {
    // A fragment of a destination options header. Its data looks like another extension header.
    let payload = [&[60, 0, 0x00, 0x10, 0, 0, 0, 9][..], &[6, 0, 0, 0, 0, 0, 0, 0], &transport(20)].concat();
    let ip = ip(&frame(&[&ipv6(44, &payload)]));
    assert_eq!((ip.protocol, ip.payload_at, ip.transport), (60, 62, Transport::Other));
}

#[test]
fn follows_extension_headers_to_transport() {
    let hop_by_hop = [60, 0, 5, 2, 0, 0, 1, 0];
    let destination = [43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let routing = [51, 0, 4, 0, 0, 0, 0, 0];
    // The length field of the authentication header is 4, which means six 4-byte words.
    let authentication = [&[17, 4, 0, 0][..], &[0; 20]].concat();
    let payload = [&hop_by_hop[..], &destination, &routing, &authentication, &transport(8)].concat();
    let ip = ip(&frame(&[&ipv6(0, &payload)]));
    assert_eq!((ip.protocol, ip.transport), (17, Transport::Udp(PORTS)));
    assert_eq!((ip.extensions, ip.payload_at), (true, 54 + 8 + 16 + 8 + 24));
}

#[test]
fn routing_header_with_segments_left_hides_transport() {
    let ip = ip(&frame(&[&ipv6(43, &[&[17, 0, 4, 1, 0, 0, 0, 0][..], &transport(8)].concat())]));
    assert_eq!((ip.protocol, ip.transport), (43, Transport::Other));
}

#[test]
fn extension_headers_past_limit_are_treated_as_payload() {
    let headers = [60, 0, 1, 4, 0, 0, 0, 0].repeat(MAX_EXTENSIONS + 1);
    let ip = ip(&frame(&[&ipv6(60, &headers)]));
    assert_eq!((ip.protocol, ip.payload_at), (60, 54 + 8 * MAX_EXTENSIONS));
}

#[test]
fn invalid_lengths_do_not_yield_ip_header() {
    let whole = frame(&[&ipv4(6, [0, 0], &[], &transport(20))]);
    for (at, value, why) in
        [(14, 0x55, "version"), (14, 0x44, "header length"), (17, 41, "longer than the frame")]
    {
        let mut wrong = whole.clone();
        wrong[at] = value;
        assert_eq!(parsed(&wrong).ip, None, "{why}");
    }
    let mut wrong = whole;
    wrong[17] = 19;
    assert_eq!(parsed(&wrong).ip, None, "the datagram is shorter than its header");
    let mut longer = frame(&[&ipv6(6, &transport(20))]);
    longer[19] += 1;
    assert_eq!(parsed(&longer).ip, None, "the datagram is longer than the frame");
}

#[test]
fn overlong_datagram_is_truncated_at_end_of_frame() {
    for datagram in [ipv4(6, [0, 0], &[], &transport(20)), ipv6(6, &transport(20))] {
        let whole = frame(&[&datagram]);
        let mut longer = whole.clone();
        let at = if whole[12] == 0x08 { 17 } else { 19 };
        longer[at] += 40;
        let expected = parsed(&whole).ip;
        assert_eq!(parsed(&longer).any_ip(&longer), expected);
        assert_eq!(parsed(&whole).any_ip(&whole), expected);
    }
}

#[test]
fn rejects_truncated_header_or_tag() {
    let tagged = frame(&[&[0x81, 0x00, 0x00, 0x07, 0x08, 0x06]]);
    assert_eq!(parsed(&tagged).ether_type, EtherType::Arp);
    for len in (0..14).chain(14..18) {
        assert!(Layers::parse(&tagged[..len]).is_err(), "{len} bytes");
    }
}

/// An ICMPv6 echo request from ::1 to ::1. Its checksum was computed by hand.
#[test]
fn correct_checksum_sums_to_zero() {
    let address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    // 0x8000 + 0x0001 + 0x0001 + (0x0001 + 0x0001 + 0x0008 + 0x003a) = 0x8046, whose complement is 0x7fb9.
    let packet = [
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 58, 64][..],
        &address,
        &address,
        &[128, 0, 0x7f, 0xb9, 0, 1, 0, 1],
    ];
    let frame = frame(&packet);
    let ip = ip(&frame);
    assert_eq!(ip.pseudo_header().with(ip.payload(&frame).unwrap()).value(), 0);
}

proptest! {
    #[test]
    fn parsed_offsets_are_inside_frame(
        ether_type in prop::sample::select(vec![[0x08u8, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8]]),
        version in prop::sample::select(vec![0x45u8, 0x46, 0x4f, 0x60]),
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let frame = frame(&[&ether_type, &[version], &rest]);
        if let Ok(layers) = Layers::parse(&frame) {
            prop_assert!(layers.network_at <= frame.len());
            if let Some(ip) = layers.ip {
                prop_assert!(layers.network_at < ip.payload_at && ip.payload_at <= ip.end);
                prop_assert!(layers.ip_header(&frame).is_some() && ip.payload(&frame).is_some());
                ip.pseudo_header();
            }
        }
    }
}
