"""Plain text that is drawn again only where it changed. Foreign text is safe in it: it is cleaned, and it is no markup."""

from textual.content import Content
from textual.widgets import Static

from mlxspec.terminal import clean


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
