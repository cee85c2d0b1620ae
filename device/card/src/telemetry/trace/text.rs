//! Formats trace records as text.

use std::fmt::{self, Write as _};
use std::time::Duration;

use protocol::describe::{Describe, Value, Visitor};

use super::{Kind, push_hex};

/// A line under construction. Each field appends ` key=value`. Inside objects, fields with value zero are omitted.
/// Inside lists, all fields are kept.
pub(super) struct TextLine<'a> {
    line: &'a mut String,
    /// Prefix of every key: the names of the enclosing objects, each followed by a dot.
    prefix: String,
    /// Separator before the next field.
    separator: &'static str,
    depth: u32,
}

impl<'a> TextLine<'a> {
    pub(super) fn begin(line: &'a mut String, time: Duration, device: &str, kind: Kind, name: &str) -> Self {
        push(
            line,
            format_args!("{}.{:06} {device} {} {name}", time.as_secs(), time.subsec_micros(), kind.name()),
        );
        Self { line, prefix: String::new(), separator: " ", depth: 0 }
    }

    fn key(&mut self, name: &str) {
        let Self { line, prefix, separator, .. } = self;
        line.extend([separator, &**prefix, name, "="]);
        self.separator = " ";
    }
}

impl Visitor for TextLine<'_> {
    fn value(&mut self, name: &str, value: Value<'_>) {
        if self.depth != 0 && value.is_zero() {
            return;
        }
        self.key(name);
        let line = &mut *self.line;
        match value {
            Value::Number(number) => push(line, format_args!("{number}")),
            Value::Hex(number) => push(line, format_args!("{number:#x}")),
            Value::Flag(flag) => push(line, format_args!("{flag}")),
            Value::Name(word) => word_or_quoted(line, word),
            Value::Set(names, rest) => {
                let rest = Some(rest).filter(|rest| *rest != 0 || names.is_empty());
                line.push_str(&names.join("|"));
                if let Some(rest) = rest {
                    let bar = if names.is_empty() { "" } else { "|" };
                    push(line, format_args!("{bar}{rest:#x}"));
                }
            }
            Value::Bytes(bytes) => push_hex(line, bytes),
            Value::Text(text) => word_or_quoted(line, &text.to_string()),
        }
    }

    fn object(&mut self, name: &str, object: &dyn Describe) {
        let outer = self.prefix.len();
        self.prefix.extend([name, "."]);
        self.depth += 1;
        object.describe(self);
        self.depth -= 1;
        self.prefix.truncate(outer);
    }

    fn objects(&mut self, name: &str, objects: &mut dyn Iterator<Item = &dyn Describe>) {
        self.key(name);
        let outer = (std::mem::take(&mut self.prefix), std::mem::take(&mut self.depth));
        self.line.push('[');
        for object in objects {
            self.line.push('{');
            self.separator = "";
            object.describe(self);
            self.line.push('}');
        }
        self.line.push(']');
        self.separator = " ";
        (self.prefix, self.depth) = outer;
    }

    fn addresses(&mut self, name: &str, addresses: &mut dyn Iterator<Item = u64>) {
        self.key(name);
        for (n, address) in addresses.enumerate() {
            let comma = if n == 0 { "" } else { "," };
            push(self.line, format_args!("{comma}{address:#x}"));
        }
    }
}

/// Writes text in quotes, unless it is a single word.
fn word_or_quoted(line: &mut String, text: &str) {
    let plain = |c: char| c.is_ascii_graphic() && c != '"';
    if !text.is_empty() && text.chars().all(plain) {
        line.push_str(text);
    } else {
        push(line, format_args!("{text:?}"));
    }
}

/// Appends formatted text. Writing to a string cannot fail.
fn push(line: &mut String, text: fmt::Arguments<'_>) {
    let _ = line.write_fmt(text);
}
