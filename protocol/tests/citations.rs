//! Checks citations of the interface documents in `protocol/interfaces`.
//!
//! A citation such as "JingZhao interface, section 3.5", "J-11", "T46" or "E-7" must refer to an existing section, or
//! to an existing row in the document's table of numbered decisions or traps.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// An interface document and its citable parts.
struct Interface {
    /// Name of the document in citations, without the word "interface".
    name: &'static str,
    /// Path component shared by the files that implement the interface. Citations in these files can omit the
    /// document's name.
    folder: &'static str,
    sections: BTreeSet<String>,
    /// Prefix of the labels of decisions or traps, such as "J-", and all existing labels, such as "J-11".
    marks: (&'static str, BTreeSet<String>),
    /// Sections without a "Decides:" line, which names the source that a section follows.
    undecided: Vec<String>,
}

impl Interface {
    fn read(name: &'static str, folder: &'static str, mark: &'static str) -> Self {
        let path = Path::new(REPOSITORY).join(format!("protocol/interfaces/{folder}.md"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (mut sections, mut decided, mut marks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut current = String::new();
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("##") {
                let heading = heading.trim_start_matches('#').trim_start();
                let number = heading.split(' ').next().unwrap_or_default().trim_end_matches('.');
                if is_number(number) {
                    number.clone_into(&mut current);
                    sections.insert(current.clone());
                }
            } else if line.starts_with("Decides: ") {
                decided.insert(current.clone());
            }
            let row = line.strip_prefix("| ").and_then(|row| row.split(' ').next());
            marks.extend(row.filter(|cell| cell.starts_with(mark)).map(str::to_owned));
        }
        // The "Decides:" line can also be in the parent section or in the subsections.
        let is_decided = |section: &&String| {
            decided.iter().any(|other| *section == other || section.starts_with(&format!("{other}.")))
                || decided.iter().any(|part| part.starts_with(&format!("{section}.")))
        };
        let undecided = sections.iter().filter(|section| !is_decided(section)).cloned().collect();
        Self { name, folder, sections, marks: (mark, marks), undecided }
    }
}

fn interfaces() -> [Interface; 4] {
    [("JingZhao", "jingzhao", "J-"), ("mthca", "mthca", "T"), ("E810", "e810", "E-"), ("mlx5", "mlx5", "M-")]
        .map(|(name, folder, mark)| Interface::read(name, folder, mark))
}

fn is_number(text: &str) -> bool {
    !text.is_empty()
        && text.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            if !["target", "corpus", "interfaces", ".git"].contains(&name.as_str()) {
                files(&path, found);
            }
        } else if [".rs", ".md", ".json", ".py"].iter().any(|end| name.ends_with(end))
            && name != "citations.rs"
        {
            found.push(path);
        }
    }
}

/// Joins lines and removes comment markers, so that a citation can span several lines.
fn flat(text: &str) -> String {
    let strip = |line: &str| line.trim_start().trim_start_matches(['/', '!', '#']).trim().replace("\\n", " ");
    text.lines().map(strip).fold(String::new(), |mut all, line| {
        let _ = write!(all, "{line} ");
        all
    })
}

/// Returns the section numbers that follow "section" or "sections", as in "6.1 to 6.6, 6.8 and 7.3 (MAP_ICM)".
fn numbers(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut after_number = false;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let bare = word.trim_matches(['(', ')', ',', '.', ';', ':', '`', '"', '*', '\'', ']']);
        if is_number(bare) && !word.starts_with('(') {
            found.push(bare.to_owned());
            after_number = true;
            // The list ends at the end of the sentence or parenthesis, or at a semicolon before another document.
            if word.ends_with(['.', ';', ':', ')', '"'])
                || bare.len() + 1 == word.len() && !word.ends_with(',')
            {
                break;
            }
        } else if !(after_number && ["to", "and", "or"].contains(&word)
            || word.starts_with('(') && word.ends_with(','))
        {
            break;
        }
    }
    found
}

/// Document that a citation refers to: the last document named earlier in the sentence, or one named right after the
/// citation.
enum Named<'a> {
    Interface(&'a Interface),
    Another,
    Nothing,
}

fn named<'a>(interfaces: &'a [Interface], before: &str, after: &str) -> Named<'a> {
    let sentence = before.rfind(". ").map_or(before, |end| &before[end..]);
    let ours = interfaces
        .iter()
        .filter_map(|interface| Some((sentence.rfind(&format!("{} interface", interface.name))?, interface)))
        .max_by_key(|(at, _)| *at);
    let others = [
        "IBTA",
        "RFC ",
        "PCI local bus",
        "annex",
        "chapter",
        "ARCHITECTURE",
        "802.1Q",
        "IEEE 802",
        "CtxMgt",
        "vfio-user",
    ];
    let other = others.iter().filter_map(|other| sentence.rfind(other)).max();
    let of = |interface: &&Interface| after.contains(&format!("of the {} interface", interface.name));
    match (ours, other) {
        (_, None) if interfaces.iter().any(|interface| of(&interface)) => {
            interfaces.iter().find(of).map_or(Named::Nothing, Named::Interface)
        }
        (Some((at, interface)), other) if other.is_none_or(|other| other < at) => Named::Interface(interface),
        (_, Some(_)) => Named::Another,
        _ => Named::Nothing,
    }
}

#[test]
fn cited_sections_exist() {
    let interfaces = interfaces();
    let mut paths = Vec::new();
    files(Path::new(REPOSITORY), &mut paths);
    let (mut wrong, mut cited) = (Vec::new(), 0);
    for path in paths {
        let shown = path.strip_prefix(REPOSITORY).unwrap_or(&path).display().to_string();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let text = flat(&text);
        // A file's first comment names its interface document, or its path implies it.
        let head =
            text.get(..text.char_indices().nth(1200).map_or(text.len(), |(at, _)| at)).unwrap_or_default();
        let of_head = [
            "JingZhao interface",
            "mthca interface",
            "E810 interface",
            "mlx5 interface",
            "IBTA volume 1",
            "RFC ",
        ]
        .iter()
        .filter_map(|words| Some((head.find(words)?, *words)))
        .min();
        let home = interfaces
            .iter()
            .find(|interface| {
                of_head.map_or_else(
                    || shown.contains(interface.folder),
                    |(_, words)| words.starts_with(interface.name),
                )
            })
            .or_else(|| interfaces.iter().find(|interface| shown.contains(&format!("/{}", interface.folder))))
            // The context manager follows a separate document.
            .filter(|_| !shown.contains("/ctxmgt"));

        let mut check = |interface: &Interface, sections: Vec<String>, place: &str| {
            for section in sections {
                cited += 1;
                if !interface.sections.contains(&section) {
                    wrong.push(format!(
                        "{shown}: {} interface has no section {section}: \"{place}\"",
                        interface.name
                    ));
                }
            }
        };
        let lower = text.to_ascii_lowercase();
        for (at, word) in lower.match_indices("section") {
            let after = &text[at + word.len()..];
            let after = after.strip_prefix('s').unwrap_or(after);
            let cut = |text: &str| text.char_indices().nth(100).map_or(text.len(), |(at, _)| at);
            let list = numbers(after);
            let from = text[..at].char_indices().rev().nth(160).map_or(0, |(at, _)| at);
            let near = &after[..cut(after)];
            let place = format!(
                "{}section{near}",
                &text[text[..at].char_indices().rev().nth(40).map_or(0, |(at, _)| at)..at]
            );
            match named(&interfaces, &text[from..at], near) {
                Named::Interface(interface) => check(interface, list, &place),
                Named::Another => {}
                Named::Nothing => {
                    if let Some(home) = home.filter(|_| !list.is_empty()) {
                        check(home, list, &place);
                    }
                }
            }
        }
        // Each strict-mode rule has a name and lists the sections that define it.
        if shown.ends_with("strict/rules.rs")
            && let Some(home) = home
        {
            for rule in text.split(';') {
                if let [.., _, _, sections, _] = rule.split('"').collect::<Vec<_>>().as_slice() {
                    let plain = sections.split(" (").next().unwrap_or_default();
                    check(
                        home,
                        plain.split([',', ' ']).filter(|part| is_number(part)).map(str::to_owned).collect(),
                        rule,
                    );
                }
            }
        }
        for (prefix, there) in interfaces.iter().map(|interface| &interface.marks) {
            for (at, _) in text.match_indices(prefix) {
                let begins = !text[..at]
                    .ends_with(|before: char| before.is_ascii_alphanumeric() || "-_".contains(before));
                let digits: String =
                    text[at + prefix.len()..].chars().take_while(char::is_ascii_digit).collect();
                let mark = format!("{prefix}{digits}");
                // A "T" followed by a number is a citation only in text about mthca.
                let trap = *prefix != "T" || shown.contains("mthca") || text[..at].ends_with("section 12, ");
                if begins && trap && !digits.is_empty() {
                    cited += 1;
                    if !there.contains(&mark) {
                        wrong.push(format!("{shown}: there is no {mark}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cited > 300, "only {cited} citations were found: the search is broken");
}

#[test]
fn every_section_has_decides_line() {
    for interface in interfaces() {
        assert!(
            interface.undecided.is_empty(),
            "{}: sections {:?} have no \"Decides:\" line",
            interface.name,
            interface.undecided
        );
        assert!(
            interface.sections.len() > 60,
            "{}: only {} sections were found",
            interface.name,
            interface.sections.len()
        );
    }
}
