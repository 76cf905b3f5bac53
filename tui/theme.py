"""Which theme fits the terminal: the user's own, the terminal's own colours under NO_COLOR, light or dark. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

DARK, LIGHT = "textual-dark", "textual-light"
PLAIN_DARK, PLAIN_LIGHT = "ansi-dark", "ansi-light"


@dataclass(frozen=True, slots=True)
class Theme:
    """A theme's name, and what the user should know about it."""

    theme: str
    complaint: str | None = None


def choose(wanted: str | None, themes: Collection[str], environ: Mapping[str, str]) -> Theme:
    """The look for a terminal. An empty NO_COLOR counts as not set, as its convention has it.

    COLORFGBG, where a terminal sets it, ends with the number of its background: 7 and from 9 on are light ones.
    """
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    light = background.isdigit() and (int(background) == 7 or int(background) > 8)
    if environ.get("NO_COLOR"):
        return Theme(PLAIN_LIGHT if light else PLAIN_DARK)
    if wanted is not None and wanted in themes:
        return Theme(wanted)
    complaint = None if wanted is None else f"The theme {wanted!r} is unknown: /theme, or ctrl+p and Theme, lists them."
    return Theme(LIGHT if light else DARK, complaint)
