//! A named JSON value whose type is known only to its sender.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// A JSON object with at most one key. The value is kept as text to preserve the order of its fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Named(BTreeMap<String, Box<RawValue>>);

impl Named {
    /// Creates an object with one key. The object is empty if JSON cannot represent `value`.
    pub fn new(name: &str, value: &impl Serialize) -> Self {
        Self(to_raw_value(value).ok().map(|value| (name.to_owned(), value)).into_iter().collect())
    }

    /// Returns the text of the value called `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.get())
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        let texts = |of: &Self| {
            of.0.iter().map(|(name, value)| (name.clone(), value.get().to_owned())).collect::<Vec<_>>()
        };
        texts(self) == texts(other)
    }
}

impl Eq for Named {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Counters {
        resets: u64,
        accesses: u64,
    }

    #[test]
    fn named_value_keeps_field_order() {
        let named = Named::new("mthca", &Counters { resets: 1, accesses: 2 });
        let text = serde_json::to_string(&named).unwrap();
        assert_eq!(text, r#"{"mthca":{"resets":1,"accesses":2}}"#);
        let read: Named = serde_json::from_str(&text).unwrap();
        assert_eq!(read, named);
        assert_eq!(read.get("mthca"), Some(r#"{"resets":1,"accesses":2}"#));
        assert_eq!(serde_json::to_value(&read).unwrap()["mthca"]["accesses"], 2);
    }
}
