use card::nic::flow_hash;
use protocol::hca::e810::admin::rss::{KEY_LEN, KeyParameters};
use protocol::hca::e810::admin::vsi::{HashKind, VsiContext, VsiParameters};
use protocol::net::layers::Layers;
use protocol::net::toeplitz::Key;

use super::*;
use crate::vsi::Vsis;

/// Packet types and their groups in Debian's DDP package: IPv4 fragments, other IPv4 packets, UDP and TCP.
const PACKET_GROUP: [(u16, u8); 4] = [(22, 4), (23, 5), (24, 2), (26, 1)];
const VSI: VsiNumber = VsiNumber::new(1);
const VSI_GROUP: u16 = 0x0001;

fn piece(parts: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut offset = 4 + 8 * parts.len();
    let mut piece = [parts.len(), 0].map(|word| u16::try_from(word).unwrap().to_le_bytes()).concat();
    for (kind, section) in parts {
        piece.extend(kind.to_le_bytes());
        piece.extend([offset, section.len()].map(|word| u16::try_from(word).unwrap().to_le_bytes()).concat());
        offset += section.len();
    }
    parts.iter().for_each(|(_, section)| piece.extend(section));
    piece
}

fn groups() -> PacketGroups {
    let mut table = vec![0; 30];
    PACKET_GROUP.iter().for_each(|(packet_type, group)| table[usize::from(*packet_type)] = *group);
    let mut groups = PacketGroups::default();
    groups.add(&piece(&[(hash_profile::PACKET_GROUPS, [&[30, 0, 0, 0][..], &table].concat())]));
    groups
}

fn vsi_group(vsi: u8, group: u16) -> (u32, Vec<u8>) {
    (hash_profile::VSI_GROUPS, [&[1, 0, vsi, 0][..], &group.to_le_bytes()].concat())
}

/// Builds a TCAM entry like those that drivers write. It matches one packet type group and any flags.
fn entry(place: u8, packet_group: u8, profile: u8) -> (u32, Vec<u8>) {
    let key = [packet_group, 0x01, 0x00];
    let zeros = key.map(|byte| !byte);
    (
        hash_profile::TABLE,
        [&[1, 0, place, 0, 0xff, 0xff][..], &zeros, &[0xff, 0xff], &key, &[profile]].concat(),
    )
}

/// Builds a section with a profile's words. `words` is in hash order.
fn words(profile: u8, words: &[(u8, u8)]) -> (u32, Vec<u8>) {
    let none = [0xff, 0xff, 0x01, 0x00].repeat(PROFILE_WORDS - words.len());
    let words = words.iter().rev().flat_map(|(header, offset)| [*header, *offset, 0, 0]).collect();
    (hash_profile::WORDS, [vec![1, 0, profile, 0], none, words].concat())
}

const SOURCE: [(u8, u8); 2] = [(0x20, 12), (0x20, 14)];
const DESTINATION: [(u8, u8); 2] = [(0x20, 16), (0x20, 18)];
const UDP_PORTS: [(u8, u8); 2] = [(0x35, 0), (0x35, 2)];

/// Returns the layers of a UDP datagram from 1.2.3.4 port 5 to 6.7.8.9 port 10.
fn udp() -> Layers {
    let header = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0, // Ethernet
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 6, 7, 8, 9, // IPv4
        0, 5, 0, 10, 0, 8, 0, 0, // UDP
    ];
    Layers::parse(&header).unwrap()
}

/// Returns the UDP datagram's hashed words, up to the last nonzero one.
fn hashed(profiles: &Profiles) -> Option<Vec<u16>> {
    let fields = profiles.fields(VSI, PacketType::of(&udp()))?;
    let words: Vec<_> = flow_hash::words(&udp().ip.unwrap(), fields.get()).collect();
    assert_eq!(words.len(), PROFILE_WORDS);
    let len = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    Some(words[..len].to_vec())
}

fn programmed(parts: &[(u32, Vec<u8>)]) -> Profiles {
    let mut profiles = Profiles::default();
    profiles.update(&groups(), &piece(parts));
    profiles
}

#[test]
fn words_are_hashed_in_programmed_order() {
    let of = |fields: &[(u8, u8)]| {
        hashed(&programmed(&[words(4, fields), entry(6, 2, 4), vsi_group(1, VSI_GROUP)]))
    };
    assert_eq!(of(&[&SOURCE[..], &DESTINATION].concat()), Some(vec![0x0102, 0x0304, 0x0607, 0x0809]));
    let all = [SOURCE, DESTINATION, UDP_PORTS].concat();
    assert_eq!(of(&all), Some(vec![0x0102, 0x0304, 0x0607, 0x0809, 5, 10]));
    assert_eq!(of(&DESTINATION), Some(vec![0x0607, 0x0809]));
    assert_eq!(of(&UDP_PORTS[1..]), Some(vec![10]));
    // Words from missing or unsupported headers are zero.
    assert_eq!(of(&[(0x31, 0), (0x58, 0), (0x28, 8), (0x20, 12)]), Some(vec![0, 0, 0, 0x0102]));
}

#[test]
fn vsi_hashes_words_of_its_profile() {
    let mut vsis = Vsis::default();
    let parameters = VsiParameters { kind: 2, ..VsiParameters::default() };
    vsis.add(&parameters, &mut VsiContext::default().emit()).unwrap();
    let key: [u8; KEY_LEN] = std::array::from_fn(|at| u8::try_from(at * 5 % 251).unwrap());
    vsis.set_key(&KeyParameters { vsi: 1, vsi_valid: true }, &key).unwrap();
    let hash = |vsis: &Vsis| vsis.steer(VSI, vsis.get(VSI).unwrap(), &udp()).hash.unwrap();
    let key = Key::new(key);
    let ip = udp().ip.unwrap();
    assert_eq!(hash(&vsis), key.hash(&ip, ip.transport.ports()));
    vsis.profiles = programmed(&[words(4, &UDP_PORTS), entry(6, 2, 4), vsi_group(1, VSI_GROUP)]);
    assert_eq!(hash(&vsis), key.hash_words([5, 10].into_iter()));
    vsis.get_mut(VSI).unwrap().options.hash = HashKind::SymmetricToeplitz;
    assert_eq!(hash(&vsis), key.hash_words([15, 15].into_iter()));
}

#[test]
fn first_matching_entry_selects_profile() {
    let (one, other) = (words(4, &SOURCE), words(5, &DESTINATION));
    let mut profiles =
        programmed(&[one, other, entry(9, 2, 4), entry(7, 2, 5), entry(6, 1, 4), vsi_group(1, VSI_GROUP)]);
    assert_eq!(hashed(&profiles), Some(vec![0x0607, 0x0809]));
    // Drivers delete an entry by writing key bits that match neither 0 nor 1.
    let never = [&[1, 0, 7, 0, 0xfe][..], &[0xff; 4], &[0xfe], &[0xff; 4], &[5]].concat();
    profiles.update(&groups(), &piece(&[(hash_profile::TABLE, never)]));
    assert_eq!(hashed(&profiles), Some(vec![0x0102, 0x0304]));
}

#[test]
fn profile_requires_matching_vsi_and_packet_groups() {
    let parts = [words(4, &SOURCE), entry(6, 2, 4), vsi_group(1, VSI_GROUP)];
    assert!(hashed(&programmed(&parts)).is_some());
    let fields =
        |profiles: &Profiles, vsi, packet_type| profiles.fields(VsiNumber::new(vsi), packet_type).is_some();
    assert!(!fields(&programmed(&parts), 2, PacketType::of(&udp())));
    assert!(!fields(&programmed(&parts), 1, PacketType::ETHERNET));
    let other_group = [words(4, &SOURCE), entry(6, 2, 4), vsi_group(1, 2)];
    assert_eq!(hashed(&programmed(&other_group)), None);
    let mut left = programmed(&parts);
    left.update(&groups(), &piece(&[vsi_group(1, 0)]));
    assert_eq!(hashed(&left), None, "a VSI outside all groups matches no profile");
    let mut ungrouped = Profiles::default();
    ungrouped.update(&PacketGroups::default(), &piece(&parts));
    assert_eq!(hashed(&ungrouped), None);
    let without_words = [words(4, &[]), entry(6, 2, 4), vsi_group(1, VSI_GROUP)];
    assert_eq!(hashed(&programmed(&without_words)), None);
}

#[test]
fn truncated_or_out_of_range_sections_are_tolerated() {
    let whole = piece(&[words(4, &SOURCE), entry(6, 2, 4), vsi_group(1, VSI_GROUP)]);
    for len in 0..whole.len() {
        let mut profiles = Profiles::default();
        profiles.update(&groups(), &whole[..len]);
        hashed(&profiles);
    }
    let mut profiles = programmed(&[
        (hash_profile::TABLE, [&[0xff; 4][..], &[0xff; 10], &[4]].concat()),
        (hash_profile::VSI_GROUPS, [&[0xff, 0xff, 0xff, 0xff][..], &[7; 40]].concat()),
        (hash_profile::WORDS, [&[2, 0, 0xff, 0][..], &[0x20; 2 * 96]].concat()),
        (0x29, vec![1, 2, 3]),
    ]);
    assert!(profiles.table.is_empty(), "an entry past the end of the TCAM is ignored");
    assert_eq!(profiles.vsi_groups.len(), 1, "an entry past the last VSI number is ignored");
    assert_eq!(profiles.words.keys().collect::<Vec<_>>(), [&0xff]);
    let mut groups = PacketGroups::default();
    groups.add(&piece(&[(hash_profile::PACKET_GROUPS, [&[0xff, 0xff, 0xfe, 0x03][..], &[9; 40]].concat())]));
    profiles.update(&groups, &piece(&[]));
    assert_eq!(groups.0.unwrap()[1020..], [0, 0, 9, 9]);
}
