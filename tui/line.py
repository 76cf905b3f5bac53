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
            same_shape = text.count("\n") == self._text.count("\n") and bool(text) == bool(self._text)
            self._text = text
            self.update(Content(text), layout=not same_shape or len(text) > self.size.width > 0)
