"""The speculation panel: speed, what was accepted, by depth and round by round, where the time went, and why speculation is off when it is.

Takes a Tally and plain values. Nothing in it rests on colour.
"""

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from mlxspec.tui.chat.captions import buffer, speech
from mlxspec.tui.chat.reading_aloud import Hearing
from mlxspec.tui.chat.reports import Baseline
from mlxspec.tui.chat.tally import PARTS, Tally, bar, cell
from mlxspec.tui.widgets.plain_text import Line

WIDTH = 34  # columns of text
BEFORE = """\
A drafter guesses some words ahead.
The model checks them all at once
and keeps what it would say too.

With a reply you see here how much
faster that makes it. F1 explains
the numbers."""
SHADES = {"draft": "░", "verify": "█", "other": "▒"}


class RoundStrip(Widget, can_focus=True):
    """One cell a round, the newest at the right; the selected one has a mark below it."""

    HELP = "Rounds of the reply. `left` and `right` select one, which shows its tree below; `escape` lets it go."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "round before", id="round_before", tooltip="select the round before"),
        Binding("right", "move(1)", "round after", id="round_after", tooltip="select the round after"),
        Binding("home", "end(0)", "first", show=False, id="round_first", tooltip="select the first round"),
        Binding("end", "end(1)", "last", show=False, id="round_last", tooltip="select the last round"),
        Binding("escape,tab", "leave", "prompt", id="round_leave", tooltip="back to the prompt"),
    ]
    selected: reactive[int | None] = reactive(None)
    cells: reactive[str] = reactive("")

    @dataclass
    class Selected(Message):
        """A round was chosen, counted from 0; None: none is any more."""

        round: int | None

    class Left(Message):
        """Back to the prompt."""

    def move(self, by: int) -> None:
        """Select the round ``by`` places on; the last one where none was."""
        if self.cells:
            at = len(self.cells) - 1 if self.selected is None else self.selected + by
            self.selected = min(max(at, 0), len(self.cells) - 1)

    def action_move(self, by: int) -> None:
        self.move(by)

    def action_end(self, last: int) -> None:
        self.selected = None
        self.move(0)
        if not last and self.cells:
            self.selected = 0

    def action_leave(self) -> None:
        self.selected = None
        self.post_message(self.Left())

    def watch_selected(self, selected: int | None) -> None:
        self.post_message(self.Selected(selected))

    def on_click(self, event: events.Click) -> None:
        at = self._first() + event.x
        if at < len(self.cells):
            self.selected = at

    def render(self) -> Content:
        first, width = self._first(), max(self.size.width, 1)
        mark = ""
        if self.selected is not None and first <= self.selected < first + width:
            mark = " " * (self.selected - first) + "▲"
        return Content(f"{self.cells[first : first + width]}\n{mark}")

    def _first(self) -> int:
        """The round in the first column: the newest ones, or those around the selected one."""
        first = max(0, len(self.cells) - self.size.width)
        return first if self.selected is None else min(first, self.selected)


class SpeculationPanel(VerticalScroll, can_focus=False):
    """What drafting gained and what became of the drafts."""

    def compose(self) -> ComposeResult:
        yield Line(id="state")
        yield Line(id="speed")
        yield Line(id="depths")
        yield RoundStrip(id="rounds")
        yield Line(id="split")
        yield Static("", id="detail", markup=False)

    @property
    def strip(self) -> RoundStrip:
        return self.query_one(RoundStrip)

    def say_state(self, state: str, reason: str | None, drafter: str) -> None:
        """On, paused or off, with the reason."""
        text = f"speculation {state.upper()}" + (f" · {drafter}" if drafter and state != "off" else "")
        self.query_one("#state", Line).say(f"{text}\n{reason}" if reason else text)
        self.set_class(state == "off", "-off")
        self.set_class(state == "paused", "-paused")

    def say_numbers(self, tally: Tally, baseline: Baseline | None, final: float | None = None) -> None:
        """The numbers of a reply; ``final`` is its tokens a second by the engine's clock, once it has ended."""
        self.query_one("#speed", Line).say("\n".join(speed_lines(tally, baseline, final)))
        self.query_one("#depths", Line).say("\n".join(depth_lines(tally)))
        self.query_one("#split", Line).say("\n".join(split_lines(tally)))
        most = max(len(tally.by_depth), 1)
        self.strip.cells = "".join(cell(len(step.path), most) for step in tally.steps)

    def say_detail(self, detail: Content | None) -> None:
        """The tree of a round, or how to see one."""
        self.query_one("#detail", Static).update(detail if detail is not None else "")


def speed_lines(tally: Tally, baseline: Baseline | None, final: float | None) -> list[str]:
    """Tokens a second, against plain decoding, a round, and what was accepted of what was drafted."""
    speed = final or tally.tokens_per_second
    if not tally.tokens:
        return BEFORE.split("\n")
    if speed is None:
        return ["one token so far: no speed yet"]
    lines = [f"{speed:.1f} tok/s" + (f"   now {now:.1f}" if final is None and (now := tally.recent()) is not None else "")]
    if tally.loops.repeated:  # whatever is said once more is drafted well
        lines.append(f"repeats itself: {tally.loops.repeated} of {tally.tokens} tokens,")
        lines.append("so the speed-up says nothing")
    elif baseline is not None and baseline.tokens_per_second > 0:
        lines.append(f"{speed / baseline.tokens_per_second:.2f}× plain ({baseline.tokens_per_second:.1f} tok/s, as")
        lines.append(f"measured on this machine, ctx {baseline.context})")
    else:
        lines.append("plain decoding: not measured yet")
    lines.append(f"{tally.tokens_per_round or 0:.2f} tokens/round in {tally.rounds} rounds")
    if tally.drafted:
        lines.append(f"accepted {tally.accepted}/{tally.drafted} drafted rows")
    return lines


def depth_lines(tally: Tally, most: int = 8) -> list[str]:
    """Of the rounds that drafted so deep: how many kept that token, and how many of those that got so far."""
    if not tally.depths:
        return []
    lines = ["depth kept of drafted   of reached"]
    for place, depth in enumerate(tally.depths[:most], 1):
        share = depth.accepted / depth.drafted if depth.drafted else 0.0
        reached = f"{depth.accepted / depth.reached:>4.0%}" if depth.reached else "   –"
        lines.append(f"{place:>3} {bar(share, 14)} {share:>4.0%}    {reached}")
    if len(tally.depths) > most:
        lines.append(f"    and {len(tally.depths) - most} deeper")
    return lines


def split_lines(tally: Tally) -> list[str]:
    """Where the time of the rounds went."""
    whole = tally.whole_seconds
    if whole <= 0:
        return []
    shares = {part: tally.seconds[part] / whole for part in PARTS}
    drawn = "".join(SHADES[part] * round((WIDTH - 2) * share) for part, share in shares.items())
    return [" ".join(f"{SHADES[part]}{part} {share:.0%}" for part, share in shares.items()), drawn[: WIDTH - 2]]


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
