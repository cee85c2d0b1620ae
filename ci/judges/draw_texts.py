#!/usr/bin/env python3
"""Draws pieces of text that users of hcad see, for a reader to rate: help, log lines, errors and documentation.

Usage: ci/judges/draw_texts.py [--seed N] [--count N]

Prints the pieces as numbered blocks, each with its place. The same seed draws the same pieces from the same sources.
Each kind of text gets the same share.
"""

import argparse
import pathlib
import random
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["device/src", "device/*/src", "protocol/src", "guest-tests/src"]
SOURCES = [path for folder in FOLDERS for path in ROOT.glob(folder + "/**/*.rs")]
PAGES = [ROOT / "README.md", ROOT / "device/ARCHITECTURE.md", ROOT / ".github/CONTRIBUTING.md"]
PAGES += [path for path in ROOT.glob("device/book/src/**/*.md") if path.name != "SUMMARY.md"]

STRING = r'"((?:[^"\\]|\\.|\\\n)*)"'
LOG = re.compile(r"\b(?:(?:info|warn|error)!\(|(?:log_line|limited)!\((?:info|warn|error),\s*)(?:[^;\"]*,\s*)?" + STRING)
ERROR = re.compile(r"(?:#\[error\(|bail!\(|\.context\(|with_context\(\|\| (?:format!\()?|ensure!\([^;]*?,\s*)" + STRING)
HELP = re.compile(r"((?:[ \t]*///[^\n]*\n)+)\s*#\[(?:arg|command)\b")
FIELD = re.compile(r"((?:[ \t]*///[^\n]*\n)+)\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))? )?[a-z_0-9]+: ")
TYPE = re.compile(r"^#\[derive\([^)]*\bJsonSchema\b[^)]*\)\]\n(?:.*\n)*?\}\n", re.M)


def plain(text):
    """Returns a string literal as it is printed."""
    return re.sub(r"\\\n\s*", "", text).replace('\\"', '"').replace("\\n", "\n").strip()


def comment(text):
    """Returns a doc comment without its slashes."""
    return " ".join(line.strip().removeprefix("///").strip() for line in text.strip().splitlines())


def without_tests(text):
    """Returns the part of the source before its unit tests."""
    return text.split("#[cfg(test)]\nmod tests {", 1)[0]


def from_sources():
    """Returns log lines, errors and help texts, each with its place."""
    logs, errors, helps = [], [], []
    for path in SOURCES:
        if path.name in ("tests.rs", "testing.rs") or "tests" in path.relative_to(ROOT).parts[1:]:
            continue
        text = without_tests(path.read_text())
        place = str(path.relative_to(ROOT))
        if not place.startswith("guest-tests/src/scenario"):
            logs += [(place, plain(found)) for found in LOG.findall(text)]
            errors += [(place, plain(found)) for found in ERROR.findall(text)]
        if "/cli" in place or place.endswith("main.rs") or "clap" in text:
            helps += [(place, comment(found)) for found in HELP.findall(text)]
        if "/config" in place:
            # Only types with a schema belong to the configuration file. Users do not see the documentation of other
            # types.
            entries = "".join(found.group() for found in TYPE.finditer(text))
            helps += [(place, comment(found)) for found in FIELD.findall(entries)]
    return logs, errors, helps


def paragraphs():
    """Returns the paragraphs of documents, without code, tables and headings."""
    found = []
    for path in PAGES:
        text = re.sub(r"^[ \t]*```.*?^[ \t]*```", "", path.read_text(), flags=re.S | re.M)
        for block in re.split(r"\n\s*\n", text):
            block = block.strip()
            if block and not block.startswith(("#", "|", "<", "!", "{{")):
                found.append((str(path.relative_to(ROOT)), block))
    return found


def main():
    """Draws the pieces and prints them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=40)
    given = options.parse_args()
    chance = random.Random(given.seed)
    kinds = dict(zip(("log", "error", "help"), from_sources())) | {"document": paragraphs()}
    drawn = []
    for index, (kind, pieces) in enumerate(kinds.items()):
        share = given.count // len(kinds) + (index < given.count % len(kinds))
        pieces = sorted({piece for piece in pieces if len(piece[1].split()) >= 3})
        drawn += [(kind, *piece) for piece in chance.sample(pieces, min(share, len(pieces)))]
    for number, (kind, place, text) in enumerate(drawn, 1):
        print(f"{number}. [{kind}] {place}\n{text}\n")


if __name__ == "__main__":
    main()
