//! VLAN tag insertion and stripping.

use protocol::net::layers::VlanTag;
use smallvec::SmallVec;

/// Length of the MAC addresses, which precede the tags (IEEE 802.1Q-2018, section 9.3).
pub const ADDRESSES_LEN: usize = 12;

pub const TAG_LEN: usize = 4;

/// The encoded tags to insert into a frame.
#[derive(Clone, Debug, Default)]
pub struct Insertion(SmallVec<[u8; 2 * TAG_LEN]>);

impl Insertion {
    /// Encodes an optional outer tag and an optional inner tag.
    pub fn new(outer: Option<VlanTag>, inner: Option<VlanTag>) -> Self {
        let tags = outer.into_iter().chain(inner);
        Self(
            tags.flat_map(|tag| {
                let ([a, b], [c, d]) =
                    (tag.kind.ether_type().to_be_bytes(), tag.tci.into_bits().to_be_bytes());
                [a, b, c, d]
            })
            .collect(),
        )
    }

    /// Returns the bytes to insert after the MAC addresses.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Splits a tagged frame around its outer tag. Returns `None` if the frame is too short.
pub fn strip(frame: &[u8]) -> Option<[&[u8]; 2]> {
    let (addresses, tagged) = frame.split_at_checked(ADDRESSES_LEN)?;
    Some([addresses, tagged.get(TAG_LEN..)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::net::layers::{Layers, TagKind, Tci};

    #[test]
    fn inserted_vlan_tags_can_be_parsed_and_stripped() {
        let tag = |kind, tci| Some(VlanTag { kind, tci: Tci::from_bits(tci) });
        for (outer, inner) in [
            (None, None),
            (None, tag(TagKind::Customer, 0x6005)),
            (tag(TagKind::Service, 7), None),
            (tag(TagKind::Service, 7), tag(TagKind::Customer, 0x6005)),
        ] {
            let addresses = [1; ADDRESSES_LEN];
            let insertion = Insertion::new(outer, inner);
            let frame = [&addresses[..], insertion.bytes(), &[0x08, 0x06, 9]].concat();
            let layers = Layers::parse(&frame).unwrap();
            let first = outer.or(inner);
            assert_eq!((layers.outer_tag, layers.inner_tag), (first, outer.and(inner)));
            if first.is_some() {
                let [before, behind] = strip(&frame).unwrap();
                assert_eq!((before, behind), (&frame[..12], &frame[16..]));
            }
        }
        assert_eq!((strip(&[0; 11]), strip(&[0; 15])), (None, None));
    }
}
