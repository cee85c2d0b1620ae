//! Reads a setting that is an object with one key, which selects the kind of the setting. For such an object, the
//! messages of `serde_json` describe neither the expected form nor the available keys.

use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, schema_for};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Deserializes an enum whose variants are represented as objects with one key.
pub(super) fn deserialize<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + JsonSchema,
{
    from.deserialize_map(Choice(PhantomData))
}

/// Returns the keys in the schema of an enum whose variants are represented as objects with one key.
pub(crate) fn keys_of(schema: &Schema) -> Vec<String> {
    let variants = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let keys = |variant: &Value| {
        variant["properties"]
            .as_object()
            .into_iter()
            .flat_map(|keys| keys.keys().cloned())
            .collect::<Vec<_>>()
    };
    variants.flat_map(keys).collect()
}

struct Choice<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + JsonSchema> Visitor<'de> for Choice<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = keys_of(&schema_for!(T)).join("`, `");
        write!(f, "an object {{\"KEY\": {{...}}}} where KEY is one of `{keys}`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let expected: &dyn serde::de::Expected = &self;
        let Some(key) = map.next_key::<String>()? else {
            return Err(A::Error::custom(format_args!("no key, expected {expected}")));
        };
        let chosen = T::deserialize(MapAccessDeserializer::new(First { key: Some(&key), map: &mut map }))?;
        match map.next_key::<String>()? {
            None => Ok(chosen),
            Some(more) => Err(A::Error::custom(format_args!(
                "more than one key (`{key}`, `{more}`), expected {expected}"
            ))),
        }
    }
}

/// The first entry of an object, after its key has been read.
struct First<'a, A> {
    key: Option<&'a str>,
    map: &'a mut A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for First<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.key.take().map(|key| seed.deserialize(key.into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, device};

    #[test]
    fn wrong_number_of_keys_lists_valid_keys() {
        const FRONTENDS: &str = r#"expected an object {"KEY": {...}} where KEY is one of `jingzhao`, `mthca`, `e810`, `connectx`"#;
        const FABRICS: &str =
            r#"expected an object {"KEY": {...}} where KEY is one of `udp`, `local`, `ring`, `tap`"#;
        let frontend = |text: &str| device("").replace(r#"{"jingzhao": {}}"#, text);
        let fabric = |text: &str| format!(r#"{{"id": 1, "frontend": {{"mthca": {{}}}}, "fabric": {text}}}"#);
        for (entry, problem, expected) in [
            (frontend("{}"), "devices[0].frontend: no key, ", FRONTENDS),
            (frontend(r#""mthca""#), r#"devices[0].frontend: invalid type: string "mthca", "#, FRONTENDS),
            (
                frontend(r#"{"mthca": {}, "e810": {}}"#),
                "devices[0].frontend: more than one key (`mthca`, `e810`), ",
                FRONTENDS,
            ),
            (fabric("[]"), "devices[0].fabric: invalid type: sequence, ", FABRICS),
            (
                fabric(r#"{"local": {}, "local": {}}"#),
                "devices[0].fabric: more than one key (`local`, `local`), ",
                FABRICS,
            ),
        ] {
            let error = check(&entry).unwrap_err();
            assert!(error.starts_with(&format!("{problem}{expected}")), "{entry}: {error}");
        }
        let unknown = check(&frontend(r#"{"hangu": {}}"#)).unwrap_err();
        assert!(unknown.contains("frontend") && unknown.contains("unknown variant `hangu`"), "{unknown}");
    }

    /// `hcactl device add` rejects duplicate keys everywhere, so the configuration file must do the same.
    #[test]
    fn duplicate_keys_are_rejected() {
        for (entry, key) in [
            (device(r#", "id": 7"#), "id"),
            (device(r#", "guest_memory": {"max_gib": 1, "max_gib": 2}"#), "max_gib"),
            (
                device("").replace(
                    r#""jingzhao": {}"#,
                    r#""jingzhao": {"limits": {"max_qps": 1024, "max_qps": 2048}}"#,
                ),
                "max_qps",
            ),
        ] {
            let error = check(&entry).unwrap_err();
            assert!(error.contains(&format!("duplicate field `{key}`")), "{error}");
        }
    }
}
