"""The conversation: turns one below the other, following the tail until the user scrolls. Takes plain messages; knows no engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from mlxspec.tui.widgets.turns import VIEWS, NoteTurn, ReplyTurn, Turn, UserTurn

SHOWN = 60  # messages drawn of a long conversation; the earlier ones are a key press away


@dataclass(frozen=True, slots=True)
class Shown:
    """A message to show. A turn with the same ``key`` stands for it already."""

    key: Any
    role: str
    text: str
    who: str = "model"
    about: str = ""
    streaming: bool = False


class Earlier(Static):
    """Stands for messages that are not drawn."""


class Transcript(VerticalScroll, can_focus=False):
    """What was said so far."""

    BLANK: ClassVar[bool] = True
    view: reactive[str] = reactive("markdown")

    def compose(self) -> ComposeResult:
        yield Static("", id="welcome", markup=False)

    def on_mount(self) -> None:
        self.anchor()

    @property
    def turns(self) -> list[Turn]:
        return list(self.query_children(Turn))

    @property
    def last_reply(self) -> ReplyTurn | None:
        replies = [turn for turn in self.turns if isinstance(turn, ReplyTurn)]
        return replies[-1] if replies else None

    @property
    def last_note(self) -> NoteTurn | None:
        notes = list(self.query_children(NoteTurn))
        return notes[-1] if notes else None

    @property
    def behind(self) -> bool:
        """Whether there is text below what can be seen."""
        return 0 < self.max_scroll_y > self.scroll_y + 1

    def welcome(self, text: str) -> None:
        """What stands in an empty conversation."""
        line = self.query_one("#welcome", Static)
        line.update(Content(text))
        line.display = bool(text) and not self.turns

    async def match(self, messages: Sequence[Shown], whole: bool = False) -> None:
        """Show these messages: turns that stand for them stay, the others go. Of many only the last are drawn, unless the ``whole`` is wanted."""
        turns = self.turns
        first = turns[0].number if turns and not whole else 0 if whole else max(0, len(messages) - SHOWN)
        kept = 0
        while kept < len(turns) and first + kept < len(messages) and turns[kept].key is messages[first + kept].key:
            kept += 1
        if not kept:
            first = 0 if whole else max(0, len(messages) - SHOWN)
        fresh: list[Widget] = [self._made(number, messages[number]) for number in range(first + kept, len(messages))]
        if first and not kept:
            fresh.insert(0, Earlier(Content(f"{first} earlier messages are not drawn (ctrl+p, show all)")))
        children = list(self.children)
        start = children.index(turns[kept]) if kept < len(turns) else len(children)
        gone = [child for child in (children[start:] if kept else children) if isinstance(child, Turn | NoteTurn | Earlier)]
        if gone and not kept and not turns:
            gone = []  # notes before the first message
        with self.app.batch_update():
            await self.remove_children(gone)
            await self.mount_all(fresh)
        self.query_one("#welcome").display = not messages and not self.query(NoteTurn)
        self.follow()

    def _made(self, number: int, message: Shown) -> Turn:
        if message.role == "user":
            return UserTurn(number, message.text, message.key)
        return ReplyTurn(number, message.text, message.key, message.who, self.view, message.about, message.streaming)

    async def note(self, text: str) -> None:
        """A line that is no message, at the end."""
        self.query_one("#welcome").display = False
        await self.mount(NoteTurn(text))

    def follow(self) -> None:
        """To the end, and stay there."""
        self.anchor()

    def next_view(self, wanted: str) -> str:
        """Turn a view on, or back to Markdown where it is on."""
        self.view = "markdown" if self.view == wanted or wanted not in VIEWS else wanted
        return self.view

    async def watch_view(self, view: str) -> None:
        for turn in self.turns:
            if isinstance(turn, ReplyTurn) and turn.is_mounted and turn.view != view:
                await turn.show(view)

    def select(self, by: int) -> bool:
        """Focus a turn: the one ``by`` places away from the one that has it, or the last. False where there is none."""
        turns = self.turns
        if not turns:
            return False
        focused = self.screen.focused
        place = turns.index(focused) + by if focused in turns else len(turns) - 1
        if not 0 <= place < len(turns):
            return place < 0
        turns[place].focus(scroll_visible=False)
        self.scroll_to_widget(turns[place], animate=False)
        return True
