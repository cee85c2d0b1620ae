//! What the pages are written in.

/// The name by which a link finds a heading, as mdBook and code forges make it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        _ if c.is_alphanumeric() || matches!(c, '_' | '-') => Some(c.to_ascii_lowercase()),
        _ if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

/// A cell of a table: one line, in which nothing ends it.
pub(crate) fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Text in which no `<` outside of `code` begins a tag.
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
