//! Markdown helpers for the book pages.

/// Returns the anchor that mdBook and code forges generate for a heading.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        _ if c.is_alphanumeric() || matches!(c, '_' | '-') => Some(c.to_ascii_lowercase()),
        _ if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

/// Formats text for a table cell: joins its lines and escapes cell separators.
pub(crate) fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Escapes `<` outside code spans, so that it does not start a tag.
pub(crate) fn without_tags(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(n, part)| if n % 2 == 0 { part.replace('<', "\\<") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

#[test]
fn tags_are_escaped_outside_code() {
    assert_eq!(without_tags("hca<ID>.sock, `a<b>`, <c"), "hca\\<ID>.sock, `a<b>`, \\<c");
}

#[test]
fn anchors_match_mdbook() {
    assert_eq!(anchor(" `devices[].fabric.udp` "), "devicesfabricudp");
    assert_eq!(anchor("What it may do"), "what-it-may-do");
    assert_eq!(anchor("`socket_mode`, again"), "socket_mode-again");
}
