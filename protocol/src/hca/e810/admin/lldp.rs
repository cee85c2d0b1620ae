//! The LLDP MIB in "set local MIB" (0A08), which contains the port's DCB configuration as a list of TLVs. A TLV has a
//! type (7 bits), a length (9 bits) and a value. Its header is big-endian.
//!
//! # Spec
//! E810 interface, section 5.2; IEEE 802.1Q-2018, annex D.

/// Type of TLVs whose value begins with an OUI and a subtype.
const ORGANIZATION: u16 = 127;
/// OUI and subtype of the TLV "ETS configuration" (IEEE 802.1Q-2018, section D.2.8).
const ETS_CONFIGURATION: [u8; 4] = [0x00, 0x80, 0xc2, 9];
/// OUI of the TLVs that drivers use if priorities follow from the DSCP.
const DSCP: [u8; 3] = [0xff; 3];

/// Returns the traffic classes that a MIB uses, one bit each. Returns `None` if the MIB does not configure them or if
/// the configuration is truncated. If priorities follow from the DSCP, all eight classes are in use.
pub fn traffic_classes(mib: &[u8]) -> Option<u8> {
    let mut rest = mib;
    loop {
        let (header, behind) = rest.split_first_chunk()?;
        let header = u16::from_be_bytes(*header);
        let (value, next) = behind.split_at_checked(usize::from(header & 0x1ff))?;
        rest = next;
        if header >> 9 != ORGANIZATION {
            continue;
        }
        if value.starts_with(&ETS_CONFIGURATION) {
            // A byte of flags, then four bits for each of the eight priorities.
            return Some(
                value
                    .get(5..9)?
                    .iter()
                    .fold(0, |classes, pair| classes | class_bit(pair >> 4) | class_bit(pair & 0xf)),
            );
        }
        if value.starts_with(&DSCP) {
            return Some(u8::MAX);
        }
    }
}

/// Returns the bit of a traffic class, or 0 if the class does not exist.
fn class_bit(class: u8) -> u8 {
    1_u8.checked_shl(class.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The MIB that Linux sets at each link-up, without its PFC configuration: all priorities are in class 0.
    fn default_mib() -> Vec<u8> {
        let mut mib = Vec::new();
        for subtype in [9, 10] {
            mib.extend([0xfe, 25, 0x00, 0x80, 0xc2, subtype, 0, 0, 0, 0, 0, 100]);
            mib.extend([0; 15]);
        }
        mib
    }

    #[test]
    fn classes_follow_priorities_in_ets_configuration() {
        let mut mib = default_mib();
        assert_eq!(traffic_classes(&mib), Some(0b1));
        mib[7..11].copy_from_slice(&[0x00, 0x01, 0x12, 0x00]);
        assert_eq!(traffic_classes(&mib), Some(0b111));
        mib[7..11].copy_from_slice(&[0x7f, 0x88, 0x88, 0x88]);
        assert_eq!(traffic_classes(&mib), Some(0b1000_0000), "there are only eight classes");
    }

    #[test]
    fn other_tlvs_are_skipped() {
        let recommendation = &default_mib()[27..];
        assert_eq!(traffic_classes(recommendation), None);
        let chassis_id = [0x02, 0x01, 9];
        assert_eq!(traffic_classes(&[&chassis_id, &default_mib()[..]].concat()), Some(1));
        assert_eq!(traffic_classes(&[0xfe, 4, 0xff, 0xff, 0xff, 0x41]), Some(0xff));
        assert_eq!(traffic_classes(&[]), None);
    }

    #[test]
    fn truncated_configuration_is_ignored() {
        let mib = default_mib();
        for len in 0..27 {
            assert_eq!(traffic_classes(&mib[..len]), None, "{len}");
        }
        assert_eq!(traffic_classes(&[0xfe, 8, 0x00, 0x80, 0xc2, 9, 0, 0, 0, 0]), None);
    }
}
