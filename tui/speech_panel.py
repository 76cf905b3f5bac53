"""The speech panel: what is said aloud, by which voice and rule, how fast, and how much sound waits. Nothing in it rests on colour."""

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from mlxspec.tui.aloud import Hearing
from mlxspec.tui.line import Line
from mlxspec.tui.words import buffer, speech


class SpeechPanel(VerticalScroll, can_focus=False):
    """In the place of the speculation panel while something is said."""

    def compose(self) -> ComposeResult:
        yield Line(id="speaking")
        yield Line(id="pace")
        yield Line(id="buffer")
        yield Line(id="sentence")

    def say(self, hearing: Hearing) -> None:
        """What is heard now."""
        now = hearing.newest
        head, *numbers = speech(now)
        self.query_one("#speaking", Line).say(head)
        self.query_one("#pace", Line).say("\n".join(numbers))
        self.query_one("#buffer", Line).say(buffer(hearing.buffer) if now.pace is not None else "")
        self.query_one("#sentence", Line).say(hearing.sentence)
