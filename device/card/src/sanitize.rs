//! Sanitizes untrusted text for terminals.

use std::fmt::Write as _;

/// Escapes control characters so that the text stays on one line.
pub fn text(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut plain, char| {
        match char.is_control() {
            true => plain.extend(char.escape_default()),
            false => plain.push(char),
        }
        plain
    })
}

/// Escapes the control characters that JSON permits unescaped: DEL and C1.
pub fn json(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut plain, char| {
        match char.is_control() {
            true => {
                let _ = write!(plain, "\\u{:04x}", u32::from(char));
            }
            false => plain.push(char),
        }
        plain
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(text("\u{1b}[2Jhca\u{9b}1 \u{e4}\n"), "\\u{1b}[2Jhca\\u{9b}1 \u{e4}\\n");
    }

    #[test]
    fn escaped_json_keeps_its_value() {
        let value = serde_json::json!({ "path": "\u{1b}\u{7f}\u{9b}\u{e4}" });
        let plain = json(&value.to_string());
        assert!(!plain.contains(char::is_control), "{plain:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&plain).unwrap(), value);
    }
}
