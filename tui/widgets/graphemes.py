"""Characters as they are seen: where one begins and ends in a text. Pure; knows no widget.

The rules are those of Unicode (UAX 29) as far as ``unicodedata`` tells them: marks, joined emoji, skin tones, flags, keycaps, Hangul letters.
"""

import unicodedata

JOINER, NON_JOINER = "\u200d", "\u200c"
TONES = ("\U0001f3fb", "\U0001f3ff")
TAGS = ("\U000e0020", "\U000e007f")  # of the flags of regions
LETTERS = ("\U0001f1e6", "\U0001f1ff")  # two make a flag
JAMO = ("\u1160", "\u11ff")  # vowels and finals, which follow in a syllable
THAI = "\u0e33\u0eb3\uff9e\uff9f"  # letters that count as marks


def before(text: str, end: int) -> int:
    """Where the character begins that ends at ``end``.

    >>> before("ok e\u0301", 5)
    3
    """
    start = max(end - 1, 0)
    while start > 0 and _joined(text, start):
        start -= 1
    return start


def after(text: str, start: int) -> int:
    """Where the character ends that begins at ``start``."""
    end = min(start + 1, len(text))
    while end < len(text) and _joined(text, end):
        end += 1
    return end


def _joined(text: str, at: int) -> bool:
    """Whether the code point ``at`` belongs to the character before it."""
    one, other = text[at - 1], text[at]
    if unicodedata.category(one) == "Cc":
        return False
    if unicodedata.category(other) in ("Mn", "Me", "Mc") or other in (JOINER, NON_JOINER, *THAI) or _in(other, TONES) or _in(other, TAGS):
        return True
    if one == JOINER:
        return unicodedata.category(other) in ("So", "Sm")  # a letter after a joiner is one of its own
    if _in(other, LETTERS) and _in(one, LETTERS):
        run = len(text[:at]) - len(text[:at].rstrip("".join(chr(code) for code in range(ord(LETTERS[0]), ord(LETTERS[1]) + 1))))
        return run % 2 == 1
    return _in(other, JAMO) and unicodedata.name(one, "").startswith("HANGUL")


def _in(character: str, bounds: tuple[str, str]) -> bool:
    return bounds[0] <= character <= bounds[1]
