//! VLAN tag insertion and stripping.

use protocol::net::layers::{TagKind, VlanTag};
use smallvec::SmallVec;

/// Length of the MAC addresses, which precede the tags: IEEE 802.1Q-2018, section 9.3.
pub(super) const ADDRESSES_LEN: usize = 12;

/// Length of a tag.
pub(super) const TAG_LEN: usize = 4;

/// Tags to insert into a frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Insertion(SmallVec<[u8; 2 * TAG_LEN]>);

impl Insertion {
    /// Combines the tag of the context descriptor (outer) and that of the data descriptors (inner).
    pub(super) fn new(outer: Option<u16>, outer_kind: TagKind, inner: Option<u16>) -> Self {
        let outer = outer.map(|tci| (outer_kind, tci));
        let inner = inner.map(|tci| (TagKind::Customer, tci));
        let tags = outer.into_iter().chain(inner);
        Self(
            tags.flat_map(|(kind, tci)| {
                let ([a, b], [c, d]) = (kind.ether_type().to_be_bytes(), tci.to_be_bytes());
                [a, b, c, d]
            })
            .collect(),
        )
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Splits a frame around its outer tag and returns the tag. `None` if there is none to strip. In single VLAN
/// mode (E810 interface, section 7.1), a service tag is payload: the driver would report a stripped one as a
/// customer tag.
pub(super) fn strip(frame: &[u8], outer_tag: Option<VlanTag>) -> Option<([&[u8]; 2], u16)> {
    let tag = outer_tag.filter(|tag| tag.kind == TagKind::Customer)?;
    let (addresses, tagged) = frame.split_at_checked(ADDRESSES_LEN)?;
    Some(([addresses, tagged.get(TAG_LEN..)?], tag.tci.into_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::net::layers::Layers;

    #[test]
    fn context_tag_is_outer() {
        let tags = |outer, inner| Insertion::new(outer, TagKind::Service, inner).bytes().to_vec();
        assert!(tags(None, None).is_empty());
        assert_eq!(tags(None, Some(0x6005)), [0x81, 0x00, 0x60, 0x05]);
        assert_eq!(tags(Some(0x0007), Some(0x6005)), [0x88, 0xa8, 0x00, 0x07, 0x81, 0x00, 0x60, 0x05]);
        let customer = Insertion::new(Some(7), TagKind::Customer, None);
        assert_eq!(customer.bytes(), [0x81, 0x00, 0x00, 0x07]);
    }

    #[test]
    fn strips_outer_customer_tag_only() {
        let tagged = |kind: [u8; 2]| {
            [&[1; 6][..], &[2; 6], &kind, &[0x00, 0x07, 0x81, 0x00, 0x60, 0x05, 0x08, 0x06]].concat()
        };
        let frame = tagged([0x81, 0x00]);
        let layers = Layers::parse(&frame).unwrap();
        let ([addresses, rest], tci) = strip(&frame, layers.outer_tag).unwrap();
        assert_eq!((addresses, tci), (&frame[..12], 7));
        assert_eq!(rest, [0x81, 0x00, 0x60, 0x05, 0x08, 0x06]);
        assert!(strip(rest, None).is_none());

        let service = tagged([0x88, 0xa8]);
        let layers = Layers::parse(&service).unwrap();
        assert!(layers.outer_tag.is_some());
        assert!(strip(&service, layers.outer_tag).is_none());
    }
}
