"""A terminal's screen, wide enough that nothing wraps."""

import re

_PIECE = re.compile(r"\x1b\[(\d*)[;\d]*([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|(.)", re.DOTALL)


def lines_of(shown: str) -> list[str]:
    """What stands on the screen, by line, after a terminal was given this text."""
    lines = [""]
    row = 0
    column = 0
    for count, code, character in _PIECE.findall(shown):
        if character == "\n":
            row = row + 1
            column = 0
            lines += [""] * (row == len(lines))
        elif character == "\r" or code == "G":
            column = int(count or 1) - 1
        elif code == "A":
            row -= int(count or 1)
        elif code == "K":
            lines[row] = lines[row][:column]
        elif character:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + character + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
