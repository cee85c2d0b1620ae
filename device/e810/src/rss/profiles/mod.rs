//! RSS profiles, programmed by the driver. A profile selects the words of a frame that are hashed.
//!
//! Drivers configure hashing for each flow type (`ethtool -N … rx-flow-hash`). For this, they write TCAM entries, which
//! refer to packet type groups. The loaded package defines these groups. If it defines no groups, no entry can match.
//!
//! # Spec
//! E810 interface, section 6.3.

use std::collections::BTreeMap;
use std::sync::Arc;

use card::nic::flow_hash::{Field, Port};
use protocol::hca::e810::hash_profile::{
    self, LookupKey, PROFILE_WORDS, TableEntry, TableHeader, Word, header,
};
use protocol::hca::e810::package::sections;
use protocol::hca::e810::packet_type::PacketType;

use crate::vsi::VsiNumber;

/// Number of packet types. A packet type is a ten-bit number.
const PACKET_TYPES: usize = 1024;

/// Number of entries in the TCAM that selects a profile. The limit bounds the number of comparisons per frame and the
/// memory that a driver can consume.
const TABLE_PLACES: u16 = 512;

/// Packet type groups defined by the package.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacketGroups(Option<Arc<[u8; PACKET_TYPES]>>);

impl PacketGroups {
    /// Adds the groups in a segment of the package.
    pub(crate) fn add(&mut self, segment: &[u8]) {
        for (_, section) in sections(segment).filter(|(kind, _)| *kind == hash_profile::PACKET_GROUPS) {
            let Some(TableHeader { count, first }) = TableHeader::parse_prefix(section) else { continue };
            let groups = section.get(TableHeader::LEN..).unwrap_or_default();
            let table = Arc::make_mut(self.0.get_or_insert_with(|| Arc::new([0; PACKET_TYPES])));
            let places = table.iter_mut().skip(first.into()).take(count.into());
            places.zip(groups).for_each(|(place, group)| *place = *group);
        }
    }
}

/// Profiles programmed by the driver.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    packet_groups: PacketGroups,
    vsi_groups: BTreeMap<VsiNumber, u16>,
    table: BTreeMap<u16, Entry>,
    words: BTreeMap<u8, Fields>,
}

/// A TCAM entry: mask, value, and the selected profile.
#[derive(Clone, Copy, Debug)]
struct Entry {
    mask: u64,
    value: u64,
    profile: u8,
}

impl Entry {
    /// Converts a TCAM entry. Returns `None` if the entry cannot match any key. Drivers write such an entry to delete
    /// the existing one.
    fn new(entry: &TableEntry) -> Option<Self> {
        let (zeros, ones) = (bits(entry.zeros), bits(entry.ones));
        let possible = zeros | ones == bits([0xff; LookupKey::LEN]);
        possible.then_some(Self { mask: zeros ^ ones, value: ones & !zeros, profile: entry.profile })
    }
}

/// Fields that a profile hashes, in hash order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    fields: [Option<Field>; PROFILE_WORDS],
    /// Whether this device supports at least one of the headers that contain the words.
    supported: bool,
}

impl Profiles {
    /// Executes "Update package". Sections that do not concern RSS are ignored.
    pub(crate) fn update(&mut self, groups: &PacketGroups, segment: &[u8]) {
        self.packet_groups = groups.clone();
        for (kind, section) in sections(segment) {
            match kind {
                hash_profile::VSI_GROUPS => self.set_vsi_groups(section),
                hash_profile::TABLE => self.set_table(section),
                hash_profile::WORDS => self.set_words(section),
                _ => {}
            }
        }
    }

    fn set_vsi_groups(&mut self, section: &[u8]) {
        let Some((first, groups)) = entries::<2>(section) else { return };
        for (vsi, group) in (first..=u16::MAX).zip(groups) {
            // VSI numbers are ten bits wide; higher bits are ignored. An entry with a larger number sets the group of
            // another VSI, which is harmless because all VSIs belong to the same driver.
            match u16::from_le_bytes(*group) {
                0 => drop(self.vsi_groups.remove(&VsiNumber::new(vsi))),
                group => drop(self.vsi_groups.insert(VsiNumber::new(vsi), group)),
            }
        }
    }

    fn set_table(&mut self, section: &[u8]) {
        let Some((count, entries)) = section.split_first_chunk() else { return };
        let entries = entries.as_chunks().0.iter().take(u16::from_le_bytes(*count).into());
        for entry in entries.map(TableEntry::parse).filter(|entry| entry.place < TABLE_PLACES) {
            match Entry::new(&entry) {
                Some(new) => drop(self.table.insert(entry.place, new)),
                None => drop(self.table.remove(&entry.place)),
            }
        }
    }

    fn set_words(&mut self, section: &[u8]) {
        const BYTES: usize = PROFILE_WORDS * Word::LEN;
        let Some((first, profiles)) = entries::<BYTES>(section) else { return };
        for (profile, words) in (first..=u16::MAX).zip(profiles) {
            let Ok(profile) = u8::try_from(profile) else { return };
            // Reverse the order: the last word is hashed first.
            self.words.insert(profile, Fields::new(words.as_chunks().0.iter().rev()));
        }
    }

    /// Returns the fields that a VSI hashes for a packet type. Returns `None` if no profile matches or if the device
    /// supports none of the profile's words.
    pub(super) fn fields(&self, vsi: VsiNumber, packet_type: PacketType) -> Option<&Fields> {
        let groups = self.packet_groups.0.as_ref()?;
        let packet_group = *groups.get(usize::from(packet_type.get()))?;
        let vsi_group = *self.vsi_groups.get(&vsi)?;
        let key = bits(LookupKey { flags: 0, packet_group, vsi_group }.emit());
        let entry = self.table.values().find(|entry| key & entry.mask == entry.value)?;
        self.words.get(&entry.profile).filter(|fields| fields.supported)
    }
}

impl Fields {
    /// Converts a profile's words, given in hash order, to fields.
    fn new<'a>(words: impl Iterator<Item = &'a [u8; Word::LEN]>) -> Self {
        let mut fields = Self { fields: [None; PROFILE_WORDS], supported: false };
        for (field, word) in fields.fields.iter_mut().zip(words.map(Word::parse)) {
            *field = self::field(&word);
            fields.supported |= is_known(&word);
        }
        fields
    }

    /// Returns the fields in hash order.
    pub(super) const fn get(&self) -> &[Option<Field>] {
        &self.fields
    }
}

/// Returns whether this device supports the header that contains `word`.
const fn is_known(word: &Word) -> bool {
    matches!(word.header, header::IPV4 | header::IPV6 | header::TCP | header::UDP | header::SCTP)
}

/// Returns the field selected by a profile word, or `None` if this device cannot extract it.
fn field(word: &Word) -> Option<Field> {
    /// Offsets of the addresses in the IPv4 and IPv6 headers.
    const V4_ADDRESSES: u16 = 12;
    const V6_ADDRESSES: u16 = 8;
    let in_addresses = |first: u16| u8::try_from(word.offset.checked_sub(first)?).ok();
    let port = match word.offset {
        0 => Some(Port::Source),
        2 => Some(Port::Destination),
        _ => None,
    };
    match word.header {
        header::IPV4 => in_addresses(V4_ADDRESSES).map(Field::Ipv4),
        header::IPV6 => in_addresses(V6_ADDRESSES).map(Field::Ipv6),
        header::TCP => port.map(Field::Tcp),
        header::UDP => port.map(Field::Udp),
        header::SCTP => port.map(Field::Sctp),
        _ => None,
    }
}

/// Returns the entries in a section, preceded by the index of the first entry.
fn entries<const N: usize>(section: &[u8]) -> Option<(u16, &[[u8; N]])> {
    let TableHeader { count, first } = TableHeader::parse_prefix(section)?;
    let (entries, _) = section.get(TableHeader::LEN..)?.as_chunks();
    Some((first, entries.get(..usize::from(count).min(entries.len()))?))
}

fn bits(key: [u8; LookupKey::LEN]) -> u64 {
    key.into_iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests;
