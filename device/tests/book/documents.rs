//! Checks the book and the other documentation pages for excessive length, repetition, and references to missing files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use super::REPOSITORY;
use super::commands;
use super::links::{pages, text_lines};

/// Maximum number of lines on a page.
const LENGTHS: [(&str, usize); 3] =
    [("README.md", 150), ("device/ARCHITECTURE.md", 200), (".github/CONTRIBUTING.md", 130)];

/// Minimum number of consecutive repeated words that counts as a repetition.
const RUN: usize = 25;

/// Returns the text of each page, by its path in the repository.
fn texts() -> BTreeMap<String, String> {
    let repository = Path::new(REPOSITORY);
    let mut paths = commands::pages(repository);
    paths.extend([".github/SECURITY.md", "device/ARCHITECTURE.md"].map(|path| repository.join(path)));
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let name = |path: &Path| path.strip_prefix(repository).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), text(path))).collect()
}

#[test]
fn pages_stay_within_length_limits() {
    for (page, most) in LENGTHS {
        let lines = fs::read_to_string(Path::new(REPOSITORY).join(page)).unwrap().lines().count();
        assert!(lines <= most, "{page} has {lines} lines, the maximum is {most}");
    }
}

/// Returns the words of each paragraph, list item and table row of a page, without code.
fn paragraphs(page: &str) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    for line in text_lines(page) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['|', '-', '#']) {
            found.push(Vec::new());
        }
        let words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        found.last_mut().unwrap().extend(words.map(str::to_lowercase));
    }
    found
}

/// Returns the word sequences that occur more than once.
fn repetitions(texts: &BTreeMap<String, String>) -> Vec<String> {
    let mut seen: HashMap<Vec<String>, &str> = HashMap::new();
    let mut found = Vec::new();
    for (page, text) in texts {
        for paragraph in paragraphs(text) {
            let mut is_reported = false;
            for run in paragraph.windows(RUN) {
                if let Some(other) = seen.insert(run.to_vec(), page)
                    && !is_reported
                {
                    found.push(format!("{page} and {other}: {}", run.join(" ")));
                    is_reported = true;
                }
            }
        }
    }
    found
}

#[test]
fn no_paragraph_is_repeated() {
    let found = repetitions(&texts());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn repetition_is_found_across_lines_and_markup() {
    let words: Vec<String> = (0..RUN).map(|n| format!("w{n}")).collect();
    let (one, other) = (words.join(" "), words.join("\n*") + " more");
    let texts = [("a".to_owned(), one), ("b".to_owned(), other)].into();
    assert_eq!(repetitions(&texts).len(), 1);
}

/// Collects the paths of all files and directories in the repository.
fn files(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !["target", ".git"].contains(&name) {
            found.insert(format!("/{}", path.strip_prefix(REPOSITORY).unwrap().display()));
            if path.is_dir() {
                files(&path, found);
            }
        }
    }
}

fn quoted(page: &str) -> Vec<String> {
    text_lines(page).flat_map(|line| line.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Paths such as `net/port.rs` may omit leading directories.
#[test]
fn files_named_in_book_exist() {
    let mut all = BTreeSet::new();
    files(Path::new(REPOSITORY), &mut all);
    let mut missing = Vec::new();
    for (page, text) in texts() {
        for word in quoted(&text) {
            let file = word.split(' ').next().unwrap_or_default();
            let is_ours = file.ends_with(".rs")
                || ["ci/", "configs/", "device/book/pictures/", "guest-tests/"]
                    .iter()
                    .any(|at| file.starts_with(at));
            let wanted = format!("/{}", file.trim_end_matches('/'));
            if is_ours && !file.contains(['*', '<']) && !all.iter().any(|path| path.ends_with(&wanted)) {
                missing.push(format!("{page}: {file}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn summary_lists_every_page() {
    let book = Path::new(REPOSITORY).join("device/book/src").canonicalize().unwrap();
    let summary = fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    let mut all = Vec::new();
    pages(&book, &mut all);
    for path in all {
        let page = path.strip_prefix(&book).unwrap().display().to_string();
        assert!(
            page == "SUMMARY.md" || summary.contains(&format!("({page})")),
            "{page} is not in SUMMARY.md"
        );
    }
}
