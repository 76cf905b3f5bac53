"""A code fence that has not closed, as plain lines. Earlier lines are left alone, so that a long fence costs no more per piece than a short one."""

from typing import ClassVar

from textual.containers import Vertical

from mlxspec.tui.line import Line

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
