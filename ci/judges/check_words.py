#!/usr/bin/env python3
"""Checks the rules of device/book/src/inside/language.md that a program can check, in all Rust files of the repository.

Usage: ci/judges/check_words.py [FILE...]

Prints one line per violation: the place, what is wrong, and what to write instead. The exit status is 1 if there is any.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Minimum number of words of a doc comment, and maximum length of a test name.
WORDS = 4
NAME = 60

# Patterns for the habits that language.md lists, and what to write instead.
HABITS = [
    (r"\b(?:whom|whoever)\b", "name the thing: the thread, the driver, the peer, the QP"),
    (r"(?<!user )(?<!users )(?<!anyone )\bwho\b(?! has )", "name the thing: the thread, the driver, the peer"),
    (r"\b(?:nobody|somebody|anybody|everybody)\b", "name the thing, or use the passive voice"),
    (r"\b(?:is|are|was|were|be) gone\b", "say what happened: disconnected, closed, removed, unmapped, ended"),
    (r"\b(?:hears|heard|obeys|obeyed|forgets|forgotten|lends|lent)\b", "receives, executes, ages out, maps"),
    (r"\b(?:wants|wishes|is wanted|are wanted)\b", "requests, requires"),
    (r"\b(?:is|are|was|were|be) (?:told|asked)\b", "is notified, is queried, receives"),
    (r"\b(?:looks?|looked|looking) (?:at|for|into)\b", "polls, reads, checks, searches"),
    (r"\bthere (?:is|are) not\b|\bthat there (?:is|are)\b(?! no)", "an unknown object, an object that exists"),
    (r"\bso (?:many|long)\b(?! (?:as|that|\w+ that))", "give the number, or name the parameter"),
    (r"\bwhat (?:is|are) to be\b", "a verb with a subject"),
    (r"^(?:Of|For) (?:the|a|an|its|it|all|each|them|both)\b[^,:]*$", "a sentence with a subject and a verb"),
]

COMMENT = re.compile(r"\s*(///|//!|//)(?!/) ?(.*)")
TEST = re.compile(r"#\[(?:tokio::)?test\b[^\]]*\]\s*(?:#\[[^\n]*\n\s*|//[^\n]*\n\s*)*(?:async )?fn (\w+)")
PRINTED = re.compile(r"\s*#\[derive\([^)]*\b(?:Args|JsonSchema|Parser|Subcommand|ValueEnum)\b")


def comments(lines):
    """Yields the comments: line number, marker, text."""
    start, marker, text = 0, None, []
    for number, line in enumerate([*lines, ""], 1):
        found = COMMENT.match(line)
        if found and found[1] == marker:
            text.append(found[2])
            continue
        if marker:
            yield start, marker, text
        start, marker, text = (number, found[1], [found[2]]) if found else (0, None, [])


def printed(lines):
    """Returns the line numbers of types whose doc comments are printed, as help or in the configuration schema."""
    numbers = set()
    for index, line in enumerate(lines):
        if PRINTED.match(line):
            first = index
            while first > 0 and re.match(r"\s*(?:///|#\[)", lines[first - 1]):
                first -= 1
            indent = re.match(r"\s*", line)[0]
            last = next((at for at in range(index, len(lines)) if lines[at] == indent + "}"), index)
            numbers.update(range(first + 1, last + 2))
    return numbers


def prose(text):
    """Returns the text without code blocks, quotations and names from code."""
    plain = re.sub(r"```.*?```", "", "\n".join(text), flags=re.S)
    return re.sub(r"`[^`]*`|\"[^\"]*\"|“[^”]*”", "_", plain).replace("\n", " ")


def check(path):
    """Yields the violations of a file: line number and message."""
    source = path.read_text()
    lines = source.splitlines()
    exempt = printed(lines)
    for number, marker, text in comments(lines):
        words = " ".join(text).split()
        if marker != "//" and 0 < len(words) < WORDS and number not in exempt:
            yield number, f'"{" ".join(words)}": write a sentence with content, or delete the comment'
        plain = prose(text)
        for pattern, instead in HABITS:
            found = re.search(pattern, plain, re.I)
            if found:
                yield number, f'"{found[0].strip()}": {instead}'
    for found in TEST.finditer(source):
        if len(found[1]) > NAME or re.match(r"(?:what|who|whoever|nobody)_", found[1]):
            number = source.count("\n", 0, found.start(1)) + 1
            yield number, f"{found[1]}: name subject and outcome in at most {NAME} characters"


def rust_files():
    """Returns the paths of all Rust files below the root, except in build outputs, downloads and hidden directories."""
    skipped = {"target", "node_modules"}
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*.rs"))
    return [str(path) for path in paths if not any(part in skipped or part.startswith(".") for part in path.parts)]


def main():
    """Checks the given files, or all Rust files."""
    count = 0
    for name in sys.argv[1:] or sorted(rust_files()):
        for number, message in check(ROOT / name):
            print(f"{name}:{number}: {message}")
            count += 1
    if count:
        sys.exit(f"{count} violations of device/book/src/inside/language.md")


if __name__ == "__main__":
    main()
