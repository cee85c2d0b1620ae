//! Checks the links on all pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::REPOSITORY;
use super::markdown::anchor;

/// Folders that contain no pages of this project.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

pub(crate) fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.iter().any(|skipped| name == *skipped) {
                pages(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Returns the lines of a page that are outside code blocks.
pub(crate) fn text_lines(page: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

fn targets(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text_lines(page) {
        let mut from = 0;
        while let Some(begin) = line[from..].find("](").map(|at| from + at) {
            let after = &line[begin + 2..];
            let Some(end) = after.find(')') else { break };
            // Text inside backticks is not a link.
            if line[..begin].matches('`').count().is_multiple_of(2) {
                found.push(after[..end].to_owned());
            }
            from = begin + 2;
        }
    }
    found
}

/// Returns the text of a page with its includes expanded.
fn with_inclusions(path: &Path) -> String {
    let page = fs::read_to_string(path).unwrap();
    let mut whole = String::new();
    for line in page.lines() {
        let included = line.trim().strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
        match included {
            Some(other) => {
                let other = path.parent().unwrap().join(other.trim());
                let text = fs::read_to_string(&other);
                whole +=
                    &text.unwrap_or_else(|error| panic!("{}: {}: {error}", path.display(), other.display()));
            }
            None => whole += line,
        }
        whole.push('\n');
    }
    whole
}

fn anchors(page: &str) -> BTreeSet<String> {
    let headings = text_lines(page).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Resolves a relative link target, including any `..`.
fn resolve(folder: &Path, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for component in folder.join(target).components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[test]
fn every_link_resolves() {
    let repository = Path::new(REPOSITORY).canonicalize().unwrap();
    let book = repository.join("device/book/src");
    let mut all = Vec::new();
    pages(&repository, &mut all);
    let mut broken = Vec::new();
    for path in &all {
        let page = with_inclusions(path);
        for target in targets(&page) {
            // URLs and empty targets are not checked.
            if target.contains("://") || target.starts_with("mailto:") || target.is_empty() {
                continue;
            }
            let (file, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let other = if file.is_empty() { path.clone() } else { resolve(path.parent().unwrap(), file) };
            let mut problem = None;
            if !other.exists() {
                problem = Some("does not exist");
            } else if path.starts_with(&book) && !other.starts_with(&book) {
                problem = Some("is not part of the book, which readers may have without the repository");
            } else if !fragment.is_empty() && !anchors(&with_inclusions(&other)).contains(fragment) {
                problem = Some("has no such heading");
            }
            if let Some(problem) = problem {
                broken.push(format!("{}: {target} {problem}", path.display()));
            }
        }
    }
    assert!(all.len() > 5, "found only {all:?}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn links_in_code_are_ignored() {
    let page = "a [link](x.md#y) and `[no](z)` and [b](c)\n```\n[no](z)\n```\n";
    assert_eq!(targets(page), ["x.md#y", "c"]);
}
