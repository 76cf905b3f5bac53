"""The same prompt plain and speculative, side by side, with the verdict. Takes pieces and a verdict; knows no engine."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static

from mlxspec.display import Cleaner, clean
from mlxspec.tui.chat.reports import Compared, Lane
from mlxspec.tui.chat.tally import Tally

NAMES = ("plain", "speculative")


class LaneView(VerticalScroll, can_focus=True):
    """One of the two replies."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._cleaner = Cleaner()
        self._text = ""
        self._tally = Tally(kept=1)

    def compose(self) -> ComposeResult:
        yield Static(Content(self.id or ""), classes="who")
        yield Static("", classes="said", markup=False)

    def on_mount(self) -> None:
        self.anchor()

    def feed(self, lane: Lane) -> None:
        self._text += self._cleaner.feed(lane.event.text)
        if lane.event.step is not None:
            self._tally.add(lane.event.step)

    def draw(self) -> None:
        speed = self._tally.tokens_per_second
        self.head(f"{self._tally.tokens} tokens" + (f" · {speed:.1f} tok/s" if speed else ""))
        self.query_one(".said", Static).update(Content(self._text))

    def head(self, text: str) -> None:
        self.query_one(".who", Static).update(Content(f"{self.id}  {text}"))

    def mark(self, at: int) -> None:
        """Show where this reply leaves the other."""
        text = Content(self._text)
        self.query_one(".said", Static).update(text[:at] + Content("▶").stylize("bold") + text[at:].stylize("reverse"))

    @property
    def text(self) -> str:
        return self._text


class CompareScreen(Screen[None]):
    """Two lanes and a verdict."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "close (stops what runs)")]

    class Left(Message):
        """Closed: what still runs is not wanted any more."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self._prompt = prompt
        self.over = False

    def compose(self) -> ComposeResult:
        yield Static(Content(f"compare  {self._prompt}"), classes="title")
        with Horizontal():
            for name in NAMES:
                yield LaneView(name)
        yield Static("waiting for the engine …", id="verdict", markup=False)
        yield Footer()

    def lane(self, name: str) -> LaneView:
        return self.query_one(f"#{name}", LaneView)

    def feed(self, lane: Lane) -> None:
        self.lane(lane.name).feed(lane)
        self.say(f"{lane.name} decoding runs …")

    def draw(self) -> None:
        """Bring both lanes up to what was fed."""
        for name in () if self.over else NAMES:
            if self.lane(name).text:
                self.lane(name).draw()

    def say(self, text: str) -> None:
        self.query_one("#verdict", Static).update(Content(text))

    def finish(self, result: Compared) -> None:
        """The verdict, with both speeds."""
        self.draw()
        self.over = True
        for name, done in zip(NAMES, (result.plain, result.speculative), strict=True):
            by = "no drafts" if name == "plain" else clean(done.drafter)
            self.lane(name).head(f"{len(done.tokens)} tokens · {done.stats['tokens_per_second']:.1f} tok/s · {by}")
        faster = f"{result.speedup:.2f}× plain on this prompt · " if result.speedup else ""
        self.say(faster + clean(result.verdict))
        if result.identical is False:
            one, other = (self.lane(name) for name in NAMES)
            at = next((i for i, (a, b) in enumerate(zip(one.text, other.text, strict=False)) if a != b), min(len(one.text), len(other.text)))
            one.mark(at)
            other.mark(at)

    def action_leave(self) -> None:
        if not self.over:
            self.app.post_message(self.Left())
        self.dismiss(None)
