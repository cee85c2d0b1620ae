"""Converts a terminal screen, as printed by `tmux capture-pane -e -p`, to SVG on standard output.

Usage: terminal_svg.py COLUMNS <SCREEN >FILE.svg
"""

import re
import sys
from html import escape

WIDTH, HEIGHT, MARGIN = 8.4, 17, 10
INK, PAPER = "#d8d8d8", "#181818"
# Text colours by SGR code. Unlisted colour codes change nothing.
COLOURS = {31: "#f05050", 32: "#50c050", 33: "#e0c040", 34: "#6090f0", 90: "#808080", 91: "#ff7070", 37: INK}


def spans(line):
    """Yields the pieces of a line, each with its column, text, colour, and whether it is bold and reversed."""
    colour, bold, reverse, column = INK, False, False, 0
    for text, codes in re.findall(r"([^\x1b]+)|\x1b\[([0-9;]*)m", line):
        if text:
            yield column, text, colour, bold, reverse
            column += len(text)
            continue
        for code in map(int, (codes or "0").split(";")):
            if code == 0:
                colour, bold, reverse = INK, False, False
            elif code == 1:
                bold = True
            elif code in (7, 27):
                reverse = code == 7
            elif code == 39:
                colour = INK
            else:
                colour = COLOURS.get(code, colour)


def main():
    columns = int(sys.argv[1])
    lines = sys.stdin.read().rstrip("\n").split("\n")
    width, height = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">')
    print(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    print('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" xml:space="preserve">')
    for row, line in enumerate(lines):
        y = MARGIN + row * HEIGHT
        for column, text, colour, bold, reverse in spans(line):
            x, length = MARGIN + column * WIDTH, len(text) * WIDTH
            if reverse:
                print(f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{HEIGHT}" fill="{colour}"/>')
            if text.strip():
                ink, weight = PAPER if reverse else colour, ' font-weight="bold"' if bold else ""
                print(
                    f'<text x="{x:.1f}" y="{y + 13}" textLength="{length:.1f}" fill="{ink}"{weight}>'
                    f"{escape(text)}</text>"
                )
    print("</g>\n</svg>")


main()
