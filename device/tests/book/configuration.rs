//! The reference of the configuration file: a table for each object, headed by where it stands in the file.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;

use schemars::Schema;
use serde_json::Value;

use crate::markdown::{anchor, cell, without_tags};
use crate::schema::{Member, Node, Shape};

const HEAD: &str = "# Configuration reference

<!-- Made by `HCAD_UPDATE_BOOK=1 cargo test -p device --test book` from the types of the configuration. -->

`hcad --config FILE` reads one JSON object; `-` is standard input. Unknown keys are rejected. `hcad --config FILE --check`
reports errors, and requirements that this host does not meet. `configs/config.schema.json` is the schema for editors.
";

/// Objects that are still to be described, by their place, and the places of those that have one.
#[derive(Default)]
struct Places<'a> {
    queue: VecDeque<(String, Node<'a>)>,
    known: HashMap<*const Value, String>,
}

/// The whole page.
pub(crate) fn page(schema: &Schema) -> String {
    let mut page = HEAD.to_owned();
    let mut places = Places::default();
    places.of(String::new(), Node::root(schema));
    while let Some((place, node)) = places.queue.pop_front() {
        section(&mut page, &mut places, &place, node);
    }
    page
}

impl<'a> Places<'a> {
    /// The place under which an object is described; `place` if this is the first time that it is met.
    fn of(&mut self, place: String, node: Node<'a>) -> String {
        let known = self.known.entry(node.identity()).or_insert_with(|| {
            self.queue.push_back((place.clone(), node));
            place
        });
        known.clone()
    }
}

/// A doc comment without what it says to readers of the code.
fn for_users(text: &str) -> String {
    let text = text.split("\n# Spec").next().unwrap_or_default().trim();
    let text = match text.split_once(", see [`crate::") {
        Some((before, after)) => before.to_owned() + after.split_once("`]").map_or("", |(_, rest)| rest),
        None => text.to_owned(),
    };
    without_tags(&text)
}

fn heading(place: &str) -> String {
    if place.is_empty() { "The file".to_owned() } else { format!("`{place}`") }
}

fn section<'a>(page: &mut String, places: &mut Places<'a>, place: &str, node: Node<'a>) {
    let (members, is_choice) = match node.shape() {
        Shape::Object(members) => (members, false),
        Shape::OneOf(members) => (members, true),
        _ => return,
    };
    let _ = write!(page, "\n## {}\n", heading(place));
    let description = for_users(node.description());
    if !description.is_empty() {
        let _ = write!(page, "\n{description}\n");
    }
    if members.is_empty() {
        page.push_str("\nIt has no keys: `{}`.\n");
        return;
    }
    let introduction = if is_choice { "\nAn object with one of these keys:\n" } else { "" };
    let _ = write!(page, "{introduction}\n| key | value | default | |\n| --- | --- | --- | --- |\n");
    for member in members {
        row(page, places, place, &member, is_choice);
    }
}

fn row<'a>(page: &mut String, places: &mut Places<'a>, place: &str, member: &Member<'a>, is_choice: bool) {
    let separator = if place.is_empty() { "" } else { "." };
    let here = format!("{place}{separator}{}", member.name);
    let (value, more) = value(places, here, member.node);
    let default = match member.node.default() {
        Some(default) => format!("`{default}`"),
        None if member.required && !is_choice => "required".to_owned(),
        None => String::new(),
    };
    let said = if member.description.is_empty() { member.node.description() } else { member.description };
    let said = cell(&format!("{} {more}", for_users(said)));
    let _ = writeln!(page, "| `{}` | {value} | {default} | {said} |", member.name);
}

/// What a value is, and what else there is to say of it.
fn value<'a>(places: &mut Places<'a>, place: String, node: Node<'a>) -> (String, String) {
    match node.shape() {
        Shape::Object(_) | Shape::OneOf(_) => {
            let place = places.of(place, node);
            (format!("[object](#{})", anchor(&heading(&place))), String::new())
        }
        Shape::List(item) => {
            let (value, more) = value(places, format!("{place}[]"), item);
            (format!("list: {value}"), more)
        }
        Shape::Map(item) => {
            let (value, more) = value(places, format!("{place}.*"), item);
            (format!("object of {value}"), more)
        }
        Shape::Words(words) => {
            let names: Vec<String> = words.iter().map(|(word, _)| format!("`\"{word}\"`")).collect();
            let meanings = words.iter().filter(|(_, said)| !said.is_empty());
            let meanings: Vec<String> =
                meanings.map(|(word, said)| format!("`\"{word}\"`: {}", for_users(said))).collect();
            (names.join(", "), meanings.join(" "))
        }
        Shape::Plain(words) => (words, String::new()),
    }
}
