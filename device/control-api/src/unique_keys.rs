//! Reads a JSON object. Rejects duplicate keys, because `serde_json` would silently keep only the last value.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};

/// Deserializes an object whose keys, and those of all objects in it, are unique.
///
/// # Errors
/// Fails if the value is not an object or if any object in it has a duplicate key.
pub fn object<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    from.deserialize_map(ObjectVisitor)
}

/// Parses the text of an object, as [`object`] does.
///
/// # Errors
/// Same as for [`object`], and if the text is not valid JSON.
pub fn parse_object(text: &str) -> serde_json::Result<Map<String, Value>> {
    let mut json = serde_json::Deserializer::from_str(text);
    let object = object(&mut json)?;
    json.end()?;
    Ok(object)
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key `{key}`")));
            }
            let Unique(value) = from.next_value()?;
            object.insert(key, value);
        }
        Ok(object)
    }
}

/// A value in which no object has a duplicate key.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValueVisitor).map(Self)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = from.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<Value, A::Error> {
        ObjectVisitor.visit_map(from).map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8259, section 4: the behaviour of software that receives duplicate names is unpredictable.
    #[test]
    fn duplicate_keys_are_rejected_at_any_depth() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": {"a": 1, "a": 2}}"#, r#"{"b": [{"a": 1, "\u0061": 2}]}"#]
        {
            let error = parse_object(text).unwrap_err().to_string();
            assert!(error.starts_with("duplicate key `a` at line 1 column "), "{text}: {error}");
        }
    }

    #[test]
    fn object_with_unique_keys_is_unchanged() {
        let text = r#"{"a": {"a": [null, true, -1, 18446744073709551615, 0.5, "x"]}, "b": {"a": {}}}"#;
        assert_eq!(Value::Object(parse_object(text).unwrap()), serde_json::from_str::<Value>(text).unwrap());
        assert!(parse_object("{} 1").is_err());
        let error = parse_object("[1]").unwrap_err().to_string();
        assert!(error.contains("expected a JSON object"), "{error}");
    }
}
