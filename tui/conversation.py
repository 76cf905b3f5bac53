"""The conversation: turns one below the other, following the tail until the user scrolls. Takes plain messages; knows no engine."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from mlxspec.tui.turns import VIEWS, NoteTurn, ReplyTurn, Turn, UserTurn

SHOWN = 60  # messages drawn of a long conversation; the earlier ones are a key press away


class Earlier(Static):
    """Stands for messages that are not drawn."""


class Conversation(VerticalScroll, can_focus=False):
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
    def behind(self) -> bool:
        """Whether there is text below what can be seen."""
        return self.scroll_y < self.max_scroll_y - 1

    def welcome(self, text: str) -> None:
        """What stands in an empty conversation."""
        line = self.query_one("#welcome", Static)
        line.update(Content(text))
        line.display = bool(text) and not self.turns

    async def fill(self, messages: Sequence[Mapping[str, str]], who: str, whole: bool = False) -> None:
        """Show messages in place of what stands there; only the last ones where there are many."""
        first = 0 if whole else max(0, len(messages) - SHOWN)
        fresh: list[Widget] = []
        if first:
            fresh.append(Earlier(Content(f"{first} earlier messages are not drawn (ctrl+p, show all)")))
        for number in range(first, len(messages)):
            message = messages[number]
            if message["role"] == "assistant":
                fresh.append(ReplyTurn(number, message["content"], who, self.view))
            elif message["role"] == "user":
                fresh.append(UserTurn(number, message["content"]))
        with self.app.batch_update():
            await self.remove_children("Turn, NoteTurn, Earlier")
            await self.mount_all(fresh)
        self.query_one("#welcome").display = not fresh
        self.follow()

    async def add(self, turn: Turn | NoteTurn) -> None:
        """One more turn at the end."""
        self.query_one("#welcome").display = False
        await self.mount(turn)

    async def cut(self, number: int) -> None:
        """Drop the turns from message ``number`` on, and the notes after it."""
        children = list(self.children)
        first = next((place for place, child in enumerate(children) if isinstance(child, Turn) and child.number >= number), len(children))
        await self.remove_children([child for child in children[first:] if isinstance(child, Turn | NoteTurn)])

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
