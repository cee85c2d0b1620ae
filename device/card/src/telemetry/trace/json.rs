//! Records as JSON objects.

use std::fmt::{self, Write as _};
use std::time::Duration;

use protocol::describe::{Describe, Value, Visitor};

use super::{Kind, push_hex};

/// A JSON object under construction. Each field adds a member.
pub(super) struct JsonLine<'a> {
    line: &'a mut String,
    /// Whether the next member is the first in its object.
    first: bool,
}

impl<'a> JsonLine<'a> {
    pub(super) fn begin(line: &'a mut String, time: Duration, device: &str, kind: Kind, name: &str) -> Self {
        push(line, format_args!("{{\"time\":{}.{:06}", time.as_secs(), time.subsec_micros()));
        let mut this = Self { line, first: false };
        for (key, word) in [("device", device), ("kind", kind.name()), ("name", name)] {
            this.value(key, Value::Name(word));
        }
        this
    }

    pub(super) fn end(self) {
        self.line.push('}');
    }

    fn key(&mut self, name: &str) {
        if !std::mem::take(&mut self.first) {
            self.line.push(',');
        }
        string(self.line, name);
        self.line.push(':');
    }

    fn members(&mut self, object: &dyn Describe) {
        self.line.push('{');
        self.first = true;
        object.describe(self);
        self.line.push('}');
        self.first = false;
    }
}

impl Visitor for JsonLine<'_> {
    fn value(&mut self, name: &str, value: Value<'_>) {
        self.key(name);
        let line = &mut *self.line;
        match value {
            Value::Number(number) | Value::Hex(number) => push(line, format_args!("{number}")),
            Value::Flag(flag) => push(line, format_args!("{flag}")),
            Value::Name(word) => string(line, word),
            Value::Set(names, rest) => {
                let rest = (rest != 0).then(|| format!("{rest:#x}"));
                list(line, names.iter().copied().chain(rest.as_deref()), string);
            }
            Value::Bytes(bytes) => {
                let mut hex = String::new();
                push_hex(&mut hex, bytes);
                string(line, &hex);
            }
            Value::Text(text) => string(line, &text.to_string()),
        }
    }

    fn object(&mut self, name: &str, object: &dyn Describe) {
        self.key(name);
        self.members(object);
    }

    fn objects(&mut self, name: &str, objects: &mut dyn Iterator<Item = &dyn Describe>) {
        self.key(name);
        self.line.push('[');
        for (n, object) in objects.enumerate() {
            if n != 0 {
                self.line.push(',');
            }
            self.members(object);
        }
        self.line.push(']');
    }

    fn addresses(&mut self, name: &str, addresses: &mut dyn Iterator<Item = u64>) {
        self.key(name);
        list(self.line, addresses, |line, address| push(line, format_args!("{address}")));
    }
}

fn list<T>(line: &mut String, items: impl Iterator<Item = T>, mut write: impl FnMut(&mut String, T)) {
    line.push('[');
    for (n, item) in items.enumerate() {
        if n != 0 {
            line.push(',');
        }
        write(line, item);
    }
    line.push(']');
}

fn string(line: &mut String, text: &str) {
    // Strings can always be encoded.
    line.push_str(&serde_json::to_string(text).unwrap_or_default());
}

/// Appends formatted text. Writing to a string cannot fail.
fn push(line: &mut String, text: fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}
