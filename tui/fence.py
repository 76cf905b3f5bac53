"""A code fence that has not closed, as plain lines. Earlier lines are left alone, so that a long fence costs no more per piece than a short one."""

from typing import ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

LINES = 40  # in one widget; only the last one is drawn again


class OpenFence(Vertical):
    """Text that only grows until it is replaced."""

    BLANK: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._text = ""
        self._settled = 0  # characters in the widgets before the last
        self._last: Static | None = None

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
                self._last = Static(Content(shown), markup=False)
                self.mount(self._last)
            else:
                self._last.update(Content(shown))
            if not full:
                break
            self._settled += len(shown) + 1
            self._last = None
