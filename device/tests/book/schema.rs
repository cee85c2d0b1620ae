//! Reads the parts of a schemars JSON Schema that the configuration reference needs.

use schemars::Schema;
use serde_json::Value;

/// Marks a variant that is written as a bare word rather than as an object with the word as its key.
static BARE: Value = Value::Bool(true);

/// A part of a schema, with references resolved.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    root: &'a Schema,
    /// The schema at the point of use. Its default overrides the type's default.
    place: &'a Value,
    value: &'a Value,
}

/// The form of a value.
pub(crate) enum Shape<'a> {
    /// An object with these members.
    Object(Vec<Member<'a>>),
    /// An object with one of these members.
    OneOf(Vec<Member<'a>>),
    /// One of these words, each with its description.
    Words(Vec<(&'a str, &'a str)>),
    List(Node<'a>),
    /// An object with arbitrary keys.
    Map(Node<'a>),
    /// Any other value, described in text.
    Plain(String),
}

/// A member of an object.
pub(crate) struct Member<'a> {
    pub(crate) name: &'a str,
    pub(crate) required: bool,
    /// Description of the member, which overrides that of its type.
    pub(crate) description: &'a str,
    pub(crate) node: Node<'a>,
}

impl<'a> Node<'a> {
    pub(crate) fn root(root: &'a Schema) -> Self {
        Self { root, place: root.as_value(), value: root.as_value() }
    }

    fn at(root: &'a Schema, place: &'a Value) -> Self {
        let mut value = place;
        // schemars represents an optional value as `anyOf` with two members: the type and null.
        if let Some(either) = value["anyOf"].as_array()
            && let [one, other] = either.as_slice()
            && other["type"] == "null"
        {
            value = one;
        }
        while let Some(name) = value["$ref"].as_str() {
            let pointer = name.strip_prefix('#').unwrap();
            value = root.as_value().pointer(pointer).unwrap();
        }
        Self { root, place, value }
    }

    pub(crate) fn identity(&self) -> *const Value {
        self.value
    }

    /// Returns the description of the value's type.
    pub(crate) fn description(&self) -> &'a str {
        self.value["description"].as_str().unwrap_or_default()
    }

    /// Returns the default of the value as JSON.
    pub(crate) fn default(&self) -> Option<&'a Value> {
        self.place.get("default").or_else(|| self.value.get("default")).filter(|value| !value.is_null())
    }

    pub(crate) fn shape(&self) -> Shape<'a> {
        if self.value == &BARE {
            return Shape::Plain("the word alone".to_owned());
        }
        if let Some(cases) = self.value["oneOf"].as_array() {
            return self.cases(cases);
        }
        if let Some(cases) = self.value["anyOf"].as_array() {
            let words: Vec<String> = cases.iter().map(|case| Self::at(self.root, case).words()).collect();
            return Shape::Plain(words.join(", or "));
        }
        if self.value["properties"].is_object() {
            return Shape::Object(self.members(self.value));
        }
        if self.value["additionalProperties"].is_object() {
            return Shape::Map(Self::at(self.root, &self.value["additionalProperties"]));
        }
        if self.value["items"].is_object() {
            return Shape::List(Self::at(self.root, &self.value["items"]));
        }
        if let Some(words) = self.value["enum"].as_array() {
            let names: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            return if names.len() == words.len() {
                Shape::Words(names.into_iter().map(|name| (name, "")).collect())
            } else {
                Shape::Plain(words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "))
            };
        }
        Shape::Plain(self.words())
    }

    fn cases(&self, cases: &'a [Value]) -> Shape<'a> {
        let mut words = Vec::new();
        let mut members = Vec::new();
        for case in cases {
            let description = case["description"].as_str().unwrap_or_default();
            if let Some(word) = case["const"].as_str() {
                words.push((word, description));
            } else if let Some(listed) = case["enum"].as_array() {
                words.extend(listed.iter().filter_map(|word| Some((word.as_str()?, description))));
            } else {
                members.extend(self.members(case).into_iter().map(|member| Member { description, ..member }));
            }
        }
        if members.is_empty() {
            return Shape::Words(words);
        }
        let bare = words.into_iter().map(|(name, description)| Member {
            name,
            required: false,
            description,
            node: Self { place: &Value::Null, value: &Value::Null, ..*self },
        });
        Shape::OneOf(bare.chain(members).collect())
    }

    fn members(&self, object: &'a Value) -> Vec<Member<'a>> {
        let required = object["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let members = object["properties"].as_object().into_iter().flatten();
        let members = members.map(|(name, place)| Member {
            name,
            required: required.iter().any(|other| other == name),
            description: place["description"].as_str().unwrap_or_default(),
            node: Self::at(self.root, place),
        });
        members.collect()
    }

    /// Describes a value that has no members.
    fn words(&self) -> String {
        let types = &self.value["type"];
        let name = types.as_str().or_else(|| types.as_array()?.first()?.as_str()).unwrap_or_default();
        let bound = |key: &str| self.value.get(key).filter(|bound| bound.is_number());
        match (name, self.value["format"].as_str().unwrap_or_default()) {
            ("boolean", _) => "`true`, `false`".to_owned(),
            ("string", "ipv4") => "IPv4 address".to_owned(),
            ("string", "ipv6") => "IPv6 address".to_owned(),
            ("string", _) => "string".to_owned(),
            ("integer" | "number", _) => match (bound("minimum"), bound("maximum")) {
                (Some(least), Some(most)) => format!("{least} to {most}"),
                (Some(least), None) if least.as_u64() != Some(0) => format!("number from {least}"),
                _ => "number".to_owned(),
            },
            (other, _) => other.to_owned(),
        }
    }
}
