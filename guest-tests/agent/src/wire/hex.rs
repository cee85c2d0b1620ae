//! Bytes written as a hexadecimal string, so that message logs are readable.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte sequence. In JSON, it is a string with two lower-case hexadecimal digits per byte.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Hex<B = Vec<u8>>(pub B);

impl From<Vec<u8>> for Hex {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl<B: AsRef<[u8]>> std::ops::Deref for Hex<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl<B: AsRef<[u8]>> std::fmt::Display for Hex<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<B: AsRef<[u8]>> std::fmt::Debug for Hex<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hex({self})")
    }
}

impl<B: AsRef<[u8]>> Serialize for Hex<B> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, B: TryFrom<Vec<u8>>> Deserialize<'de> for Hex<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes =
            parse(&text).ok_or_else(|| D::Error::custom("expected an even number of hexadecimal digits"))?;
        let len = bytes.len();
        B::try_from(bytes).map(Self).map_err(|_| D::Error::invalid_length(len, &"unexpected number of bytes"))
    }
}

fn parse(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|&[high, low]| {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            Some(digit(high)? << 4 | digit(low)?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips() {
        let hex = Hex(vec![0x00, 0x9f, 0xff]);
        assert_eq!(serde_json::to_string(&hex).unwrap(), "\"009fff\"");
        assert_eq!(serde_json::from_str::<Hex>("\"009FfF\"").unwrap(), hex);
    }

    #[test]
    fn rejects_odd_length_and_non_hex() {
        assert!(serde_json::from_str::<Hex>("\"00f\"").is_err());
        assert!(serde_json::from_str::<Hex>("\"0g\"").is_err());
        assert!(serde_json::from_str::<Hex>("\"+1\"").is_err());
    }

    #[test]
    fn array_requires_exact_length() {
        assert_eq!(serde_json::from_str::<Hex<[u8; 2]>>("\"00ff\"").unwrap(), Hex([0x00, 0xff]));
        assert!(serde_json::from_str::<Hex<[u8; 2]>>("\"00ff00\"").is_err());
    }
}
