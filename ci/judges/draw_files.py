#!/usr/bin/env python3
"""Draws source files and test names, for a reader to rate their language.

Usage: ci/judges/draw_files.py [--seed N] [--files N] [--tests N] [--comments]

Prints the path of each drawn file, then each drawn test name with its file. With --comments, prints the comments of each
file too, with line numbers. The same seed draws the same items from the same sources.
"""

import argparse
import random
import sys

sys.dont_write_bytecode = True
from check_words import ROOT, TEST, comments, rust_files

# Minimum number of words in a file's comments. A reader cannot rate the language of a file with fewer words.
LEAST_WORDS = 30


def main():
    """Draws files and test names, and prints them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--files", type=int, default=40)
    options.add_argument("--tests", type=int, default=60)
    options.add_argument("--comments", action="store_true")
    given = options.parse_args()
    chance = random.Random(given.seed)
    texts = {name: (ROOT / name).read_text() for name in sorted(rust_files())}
    found = {name: list(comments(text.splitlines())) for name, text in texts.items()}
    files = [name for name, blocks in found.items()
             if sum(len(line.split()) for _, _, text in blocks for line in text) >= LEAST_WORDS]
    tests = sorted({(test, name) for name, text in texts.items() for test in TEST.findall(text)})
    for number, name in enumerate(chance.sample(files, min(given.files, len(files))), 1):
        print(f"{number}. {name}")
        for line, marker, text in found[name] if given.comments else ():
            print("\n".join(f"{line + offset:5} {marker} {words}" for offset, words in enumerate(text)))
    print()
    for number, (test, name) in enumerate(chance.sample(tests, min(given.tests, len(tests))), 1):
        print(f"{number}. {test} ({name})")


if __name__ == "__main__":
    main()
