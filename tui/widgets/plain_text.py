"""Plain text that is drawn again only where it changed. Foreign text is safe in it: it is cleaned, and it is no markup."""

from typing import ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from mlxspec.display import clean


class Line(Static):
    """One or more lines of text."""

    def __init__(self, text: str = "", id: str | None = None, classes: str | None = None) -> None:
        super().__init__(Content(clean(text)), id=id, classes=classes, markup=False)
        self._text = clean(text)

    @property
    def text(self) -> str:
        return self._text

    def say(self, text: str) -> None:
        """Show this text."""
        text = clean(text)
        if text != self._text:
            before, now = self._text.split("\n"), text.split("\n")
            fits = max(map(len, (*before, *now))) <= self.size.width
            self._text = text
            self.update(Content(text), layout=not fits or len(before) != len(now) or not text)


LINES = 40  # in one widget; only the last one is drawn again


class OpenFence(Vertical):
    """Text that only grows until it is replaced."""

    BLANK: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._text = ""
        self._settled = 0  # characters in the widgets before the last
        self._last: Line | None = None

    def on_mount(self) -> None:
        self.display = False

    def show(self, text: str) -> None:
        """Show all of ``text``; an empty one hides the fence."""
        if text == self._text:
            return
        if not text.startswith(self._text) or not text:
            self.remove_children()
            self._settled, self._last = 0, None
        self._text = text
        self.display = bool(text)
        while text:
            lines = text[self._settled :].split("\n", LINES)
            full = len(lines) > LINES
            shown = "\n".join(lines[:LINES])
            if self._last is None:
                self._last = Line(shown)
                self.mount(self._last)
            else:
                self._last.say(shown)
            if not full:
                break
            self._settled += len(shown) + 1
            self._last = None
