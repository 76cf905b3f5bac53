"""Foreign text made fit for a terminal, and sizes for people. Imports nothing of mlxspec.

Text that is not ours never drives a terminal: control sequences are taken out of whatever goes to one. Nothing else is lost: of a sequence that is
never finished only the ESC goes, and a stream is cleaned to the same text as the whole.
"""

import re
from collections.abc import Sequence

PAYLOAD = 4096  # characters a string sequence (OSC, DCS, …) may hold before it counts as text
_STRING = rf"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]{{0,{PAYLOAD}}}"
_CSI = r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}"
_SEQUENCE = re.compile(rf"{_STRING}(?:\x07|\x1b\\|\x9c)|{_CSI}[@-~]|\x1b[ -/]{{1,8}}[0-~]|\x1b[0-OQ-WYZ\\`-~]")
_UNFINISHED = re.compile(rf"(?:{_STRING}\x1b?|{_CSI}|\x1b[ -/]{{0,8}})\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def clean(text: str) -> str:
    """The text without control sequences and control characters; tabs and newlines stay.

    >>> clean("\\x1b[31mred\\x1b[0m\\x1b]52;c;c2VjcmV0\\x07")
    'red'
    """
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


class Cleaner:
    """``clean`` for a stream: holds back a sequence that may go on in the next piece."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        start = unfinished.start() if unfinished else len(text)
        self._held = text[start:]
        return clean(text[:start])

    def flush(self) -> str:
        text, self._held = self._held, ""
        return clean(text)


def one_line(text: str) -> str:
    """Foreign text for a message: cleaned, line breaks folded."""
    return " ".join(clean(text).split())


def visible(text: str) -> str:
    """A token's text for a listing: blanks at the edges and control characters can be seen, nothing drives the terminal."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
    inner = shown.strip(" ")
    if not inner:
        return "_" * len(shown)
    return "_" * (len(shown) - len(shown.lstrip(" "))) + inner + "_" * (len(shown) - len(shown.rstrip(" ")))


def in_bytes(count: int) -> str:
    """Bytes for people.

    >>> in_bytes(5_400_000_000), in_bytes(30_000_000)
    ('5.4 GB', '30 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
