//! Finds the command lines in the code blocks of documentation pages.
//!
//! Each program's own parser checks its command lines: in `examples.rs` for `hcad` and `hcactl`, and in
//! `guest-tests/src/documented.rs` for `guest-lab`. Both tests use this file.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders of the book that contain only generated pages or pages without commands.
const SKIPPED: [&str; 2] = ["reference", "interfaces"];

/// A command printed on a page.
#[derive(Debug)]
pub(crate) struct Printed {
    /// Page and line, for error messages.
    pub(crate) place: String,
    /// Words of the command, starting with the name of the program.
    pub(crate) words: Vec<String>,
}

/// Returns the pages with commands for readers to copy: README, CONTRIBUTING and the book.
pub(crate) fn pages(repository: &Path) -> Vec<PathBuf> {
    let mut found = vec![repository.join("README.md"), repository.join(".github/CONTRIBUTING.md")];
    let mut folders = vec![repository.join("device/book/src")];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                let name = path.file_name().unwrap();
                folders.extend((!SKIPPED.iter().any(|skipped| name == *skipped)).then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the commands that run `program`, from all pages.
pub(crate) fn of(repository: &Path, program: &str) -> Vec<Printed> {
    let mut found = Vec::new();
    for path in pages(repository) {
        let text = fs::read_to_string(&path).unwrap();
        let page = path.strip_prefix(repository).unwrap().display().to_string();
        for (line, language, block) in blocks(&text) {
            if !matches!(language, "" | "sh" | "console") {
                continue;
            }
            for command in commands(&block) {
                if command.first().is_some_and(|word| word.rsplit('/').next() == Some(program)) {
                    found.push(Printed { place: format!("{page}:{line}"), words: command });
                }
            }
        }
    }
    found
}

/// Returns the code blocks, each with the number of its first line, its language, and its text without indentation.
pub(crate) fn blocks(page: &str) -> Vec<(usize, &str, String)> {
    let mut found: Vec<(usize, &str, String)> = Vec::new();
    let mut in_code = false;
    for (number, line) in page.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            in_code = !in_code;
            if in_code {
                found.push((number + 1, language.trim(), String::new()));
            }
        } else if in_code && let Some((_, _, block)) = found.last_mut() {
            block.push_str(line.trim_start());
            block.push('\n');
        }
    }
    found
}

/// Returns the commands in a block. If any line has a prompt, lines without a prompt count as output.
fn commands(block: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    let has_prompts = joined.lines().any(|line| line.starts_with("$ "));
    let lines = joined.lines().filter_map(|line| match line.strip_prefix("$ ") {
        Some(command) => Some(command),
        None => (!has_prompts).then_some(line),
    });
    lines.flat_map(split).map(without_prefix).filter(|command| !command.is_empty()).collect()
}

/// Splits a line into commands, and each command into words, as a shell does.
fn split(line: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let (mut word, mut has_word, mut quote) = (String::new(), false, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.push(c),
            (None, '\'' | '"') => (quote, has_word) = (Some(c), true),
            (None, '#') if !has_word => break,
            (None, ' ' | '\t' | ';' | '|' | '&') => {
                if std::mem::take(&mut has_word) {
                    all.last_mut().unwrap().push(std::mem::take(&mut word));
                }
                if matches!(c, ';' | '|' | '&') {
                    all.push(Vec::new());
                }
            }
            (None, _) => {
                word.push(c);
                has_word = true;
            }
        }
    }
    if has_word {
        all.last_mut().unwrap().push(word);
    }
    all
}

/// Removes the parts of a command that the shell interprets (keywords, variables, redirections), and ellipses.
fn without_prefix(command: Vec<String>) -> Vec<String> {
    let is_prefix = |word: &String| {
        matches!(word.as_str(), "if" | "then" | "until" | "while" | "do" | "exec" | "sudo" | "time" | "!")
            || word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
            })
    };
    let words = command.into_iter().skip_while(is_prefix);
    words.take_while(|word| !word.starts_with(['>', '<'])).filter(|word| word != "...").collect()
}

#[test]
fn splits_commands_like_a_shell() {
    let block =
        "$ A=1 sudo x/hcad --config 'a b' \\\n  --check && hcactl qps | grep \"q p\" # see\noutput of hcad\n";
    let expected: [&[&str]; 3] =
        [&["x/hcad", "--config", "a b", "--check"], &["hcactl", "qps"], &["grep", "q p"]];
    assert_eq!(commands(block), expected);
}
