//! Counts packets by opcode.

use std::collections::BTreeMap;
use std::fmt;

use protocol::roce::{Opcode, Operation};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Transport types (bits 7:5 of the BTH opcode) of the services whose opcodes are counted individually: RC, UC, UD and
/// XRC.
const PREFIXES: [u8; 4] = [0, 1, 3, 5];

/// Number of opcodes per service. The opcode within a service is five bits wide.
const CODES: usize = 32;

/// Name of the counter for undefined opcodes and opcodes of other services.
const OTHER: &str = "other";

/// Number of counters: one for each opcode of the services in [`PREFIXES`], one for CNPs, and one for all other
/// opcodes.
const FIELDS: usize = PREFIXES.len() * CODES + 2;
const CNP: usize = FIELDS - 2;
const REST: usize = FIELDS - 1;

/// Index of the counter for each opcode byte.
const COUNTERS: [u8; 256] = {
    let mut counters = [0; 256];
    let mut byte = 0;
    while byte < counters.len() {
        // Both casts are lossless, since there are 256 opcode bytes and at most 256 counters.
        #[allow(clippy::cast_possible_truncation, reason = "as above")]
        {
            counters[byte] = field(byte as u8) as u8;
        }
        byte += 1;
    }
    counters
};
const _: () = assert!(FIELDS <= 256);

/// Packet counters, one per opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ByOpcode([u64; FIELDS]);

impl Default for ByOpcode {
    fn default() -> Self {
        Self([0; FIELDS])
    }
}

impl ByOpcode {
    #[inline]
    pub(crate) fn count(&mut self, opcode: Opcode, packets: u32) {
        let counter = COUNTERS[usize::from(opcode.to_byte())];
        if let Some(field) = self.0.get_mut(usize::from(counter)) {
            *field += u64::from(packets);
        }
    }

    /// Returns the non-zero counters with the names of their opcodes.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(field, count)| (name(field), *count))
    }
}

/// Returns the index of the counter for an opcode byte.
const fn field(byte: u8) -> usize {
    if byte == Opcode::CNP.to_byte() {
        return CNP;
    }
    if matches!(Opcode::from_byte(byte).operation, Operation::Reserved(_)) {
        return REST;
    }
    let code = (byte & 0x1f) as usize;
    match byte >> 5 {
        0 => code,
        1 => CODES + code,
        3 => 2 * CODES + code,
        5 => 3 * CODES + code,
        _ => REST,
    }
}

fn name(field: usize) -> String {
    if field == CNP {
        return Opcode::CNP.to_string();
    }
    let prefix = PREFIXES.get(field / CODES);
    match (prefix, u8::try_from(field % CODES)) {
        (Some(prefix), Ok(code)) => Opcode::from_byte(prefix << 5 | code).to_string(),
        _ => OTHER.to_owned(),
    }
}

impl fmt::Debug for ByOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Serialises as an object with a key for each non-zero counter.
impl Serialize for ByOpcode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for ByOpcode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut all = Self::default();
        for (opcode, count) in counts {
            let field = (0..FIELDS).find(|field| name(*field) == opcode).unwrap_or(REST);
            if let Some(field) = all.0.get_mut(field) {
                *field += count;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA volume 1, table 38, defines 23 opcodes for RC, 12 for UC, 2 for UD and 23 for XRC. Annex A17 adds the CNP.
    #[test]
    fn undefined_opcodes_share_one_counter() {
        let mut counts = ByOpcode::default();
        (0..=u8::MAX).for_each(|byte| counts.count(Opcode::from_byte(byte), 1));
        let by_name: BTreeMap<_, _> = counts.iter().collect();
        assert_eq!(by_name["CNP"], 1);
        assert_eq!(by_name["RC RDMA WRITE First"], 1);
        assert_eq!(by_name["UD SEND Only"], 1);
        assert_eq!(by_name["XRC SEND Last with Invalidate"], 1);
        let defined = by_name.iter().filter(|(name, _)| *name != OTHER);
        assert!(defined.clone().all(|(_, count)| *count == 1), "{by_name:?}");
        assert_eq!(defined.count(), 23 + 12 + 2 + 23 + 1);
        assert_eq!(by_name[OTHER], 256 - 61);
        let again: ByOpcode = serde_json::from_str(&serde_json::to_string(&counts).unwrap()).unwrap();
        assert_eq!(again, counts);
    }
}
