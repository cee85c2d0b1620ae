//! Filters for traces and captures, by kind, opcode and QP.
//!
//! Trace entries and frames must match every list of the filter. An entry or a frame without an opcode matches only an
//! empty list of opcodes, and one without a QP matches only an empty list of QPs.

use protocol::describe::{Describe, Value, Visitor};
use protocol::ids::Qpn;
use protocol::roce::Opcode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::trace::Kind;

/// Filter that selects the trace entries to write. An entry must match at least one value in each list. An empty list
/// matches all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceFilter {
    /// Kinds of trace entries to write.
    pub kinds: Vec<Kind>,
    /// Words such as "SEND" or "RDMA_READ". A trace entry matches if its opcode name contains one of these
    /// words. Case, spaces and underscores are ignored.
    pub opcodes: Vec<String>,
    /// Numbers of the queue pairs whose entries are traced.
    pub qpns: Vec<u32>,
}

/// Frames to capture. An empty list matches all frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureFilter {
    /// Kinds of frames to capture.
    pub kinds: Vec<FrameKind>,
    /// Words such as "SEND" or "Acknowledge". A packet matches if its opcode name contains one of these
    /// words. Case, spaces and underscores are ignored.
    pub opcodes: Vec<String>,
    /// Numbers of the local queue pairs whose packets are captured.
    pub qpns: Vec<u32>,
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// RoCE packets.
    Roce,
    /// All other frames.
    Other,
}

/// Error for a word in a capture filter that no opcode name contains, and that would therefore match nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "no opcode name contains \"{}\"; examples of names are \"RC SEND Only\" and \"RC Acknowledge\" (ACK or NAK)",
    word.escape_debug()
)]
pub struct UnknownOpcodeError {
    /// Index of the word in [`CaptureFilter::opcodes`].
    pub index: usize,
    /// Word in the filter.
    pub word: String,
}

impl TraceFilter {
    /// Returns whether trace entries of kind `kind` can match.
    pub fn admits(&self, kind: Kind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// Returns whether the filter depends on the fields of a trace entry.
    pub fn is_about_fields(&self) -> bool {
        !self.opcodes.is_empty() || !self.qpns.is_empty()
    }
}

impl CaptureFilter {
    /// Checks that each word is part of at least one opcode name.
    ///
    /// # Errors
    /// [`UnknownOpcodeError`] for the first word that no name contains.
    pub fn check_opcodes(&self) -> Result<(), UnknownOpcodeError> {
        let names: Vec<String> = (0..=u8::MAX).map(|byte| Opcode::from_byte(byte).to_string()).collect();
        let is_known = |word: &String| names.iter().any(|name| fits(std::slice::from_ref(word), name));
        match self.opcodes.iter().enumerate().find(|(_, word)| !is_known(word)) {
            Some((index, word)) => Err(UnknownOpcodeError { index, word: word.clone() }),
            None => Ok(()),
        }
    }

    /// Returns whether every frame matches.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether a frame matches the filter. `opcode` is `None` for a frame that is not RoCE, and `qpn` is the
    /// local QP, if any.
    pub fn admits(&self, opcode: Option<&str>, qpn: Option<Qpn>) -> bool {
        let kind = if opcode.is_some() { FrameKind::Roce } else { FrameKind::Other };
        (self.kinds.is_empty() || self.kinds.contains(&kind))
            && (self.opcodes.is_empty() || opcode.is_some_and(|name| fits(&self.opcodes, name)))
            && (self.qpns.is_empty() || qpn.is_some_and(|qpn| self.qpns.contains(&qpn.get())))
    }
}

/// Returns whether a name contains one of the words.
fn fits(words: &[String], name: &str) -> bool {
    let name = plain(name);
    words.iter().any(|word| name.contains(&plain(word)))
}

fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_uppercase()).collect()
}

/// Matches the fields of a trace entry against a filter while forwarding them.
pub struct FieldFilter<'a> {
    filter: &'a TraceFilter,
    to: Option<&'a mut dyn Visitor>,
    opcode: bool,
    qpn: bool,
}

impl<'a> FieldFilter<'a> {
    /// Creates a filter that forwards the fields to `to`.
    pub fn new(filter: &'a TraceFilter, to: &'a mut dyn Visitor) -> Self {
        Self { to: Some(to), ..Self::blind(filter) }
    }

    fn blind(filter: &'a TraceFilter) -> Self {
        Self { filter, to: None, opcode: filter.opcodes.is_empty(), qpn: filter.qpns.is_empty() }
    }

    /// Returns whether the trace entry matches. Call this after all fields have been forwarded.
    pub fn admits(&self) -> bool {
        self.opcode && self.qpn
    }
}

impl Visitor for FieldFilter<'_> {
    fn value(&mut self, name: &str, value: Value<'_>) {
        match (name, value) {
            ("qpn", Value::Number(number) | Value::Hex(number)) => {
                self.qpn |= self.filter.qpns.iter().any(|qpn| u64::from(*qpn) == number);
            }
            ("opcode", Value::Name(word)) => self.opcode |= fits(&self.filter.opcodes, word),
            ("opcode", Value::Text(text)) => self.opcode |= fits(&self.filter.opcodes, &text.to_string()),
            _ => {}
        }
        if let Some(to) = &mut self.to {
            to.value(name, value);
        }
    }

    fn object(&mut self, name: &str, object: &dyn Describe) {
        let mut inside = FieldFilter::blind(self.filter);
        object.describe(&mut inside);
        self.opcode |= inside.opcode;
        self.qpn |= inside.qpn;
        if let Some(to) = &mut self.to {
            to.object(name, object);
        }
    }

    fn objects(&mut self, name: &str, objects: &mut dyn Iterator<Item = &dyn Describe>) {
        if let Some(to) = &mut self.to {
            to.objects(name, objects);
        }
    }

    fn addresses(&mut self, name: &str, addresses: &mut dyn Iterator<Item = u64>) {
        if let Some(to) = &mut self.to {
            to.addresses(name, addresses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_match_by_kind_opcode_and_qp() {
        let filter = |text: &str| serde_json::from_str::<CaptureFilter>(text).unwrap();
        let (send, ack) = (Some("RC SEND Only"), Some("RC Acknowledge"));
        let (five, six) = (Some(Qpn::new(5)), Some(Qpn::new(6)));
        assert!(filter("{}").is_empty() && filter("{}").admits(None, None));
        for (text, admitted) in [
            (r#"{"kinds": ["roce"]}"#, [true, true, true, false]),
            (r#"{"kinds": ["other"]}"#, [false, false, false, true]),
            (r#"{"opcodes": ["send_only"]}"#, [true, true, false, false]),
            (r#"{"opcodes": ["ack", "send"]}"#, [true, true, true, false]),
            (r#"{"qpns": [5]}"#, [true, false, true, false]),
            (r#"{"opcodes": ["SEND"], "qpns": [6]}"#, [false, true, false, false]),
        ] {
            let seen = [(send, five), (send, six), (ack, five), (None, None)]
                .map(|(opcode, qpn)| filter(text).admits(opcode, qpn));
            assert_eq!(seen, admitted, "{text}");
        }
    }

    #[test]
    fn rejects_word_that_no_opcode_contains() {
        let check = |words: &[&str]| {
            let opcodes = words.iter().map(|&word| word.to_owned()).collect();
            CaptureFilter { opcodes, ..CaptureFilter::default() }.check_opcodes()
        };
        assert_eq!(check(&["SEND", "ack", "rdma_read", "READ response Middle", "CNP", "xrc"]), Ok(()));
        for word in ["nak", "RDMA_WRITE_IMM", "sendd"] {
            assert_eq!(check(&["SEND", word]), Err(UnknownOpcodeError { index: 1, word: word.to_owned() }));
        }
    }
}
