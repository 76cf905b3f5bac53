"""One turn of a conversation as a widget: what the user said, what the model said, a notice. Knows no engine.

All of it is foreign text: it is cleaned of control sequences here, and shown as Content, never as markup.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Markdown, Static

from mlxspec.display import Cleaner, clean
from mlxspec.tui.chat.markdown import chat_parser
from mlxspec.tui.chat.unfinished import UnfinishedReply
from mlxspec.tui.widgets.plain_text import OpenFence

VIEWS = ("markdown", "raw", "origin")


class Turn(Vertical, can_focus=True):
    """A message of the conversation. ``number`` is its place among the messages, ``key`` the message itself."""

    BLANK: ClassVar[bool] = True  # its children paint all there is
    HELP = "A message. `y` copies its source, `s` says it aloud, `enter` unfolds thinking, `escape` goes back to the prompt."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "want('above')", "above", show=False, id="turn_above", tooltip="to the message above"),
        Binding("down,j", "want('below')", "below", show=False, id="turn_below", tooltip="to the message below"),
        Binding("escape,tab", "want('prompt')", "prompt", id="turn_leave", tooltip="back to the prompt"),
        Binding("y", "want('copy')", "copy", id="turn_copy", tooltip="copy it as the model wrote it"),
        Binding("b", "want('copy_code')", "copy code", show=False, id="turn_copy_code", tooltip="copy its last code"),
        Binding("e", "want('edit')", "edit", id="turn_edit", tooltip="change your message and have it answered again"),
        Binding("r", "want('regenerate')", "again", id="turn_regenerate", tooltip="have it answered again"),
        Binding("c", "want('continue')", "continue", id="turn_continue", tooltip="go on with a reply that was stopped"),
        Binding("s", "want('speak')", "speak", id="turn_speak", tooltip="say it aloud"),
        Binding("d", "want('delete')", "delete", id="turn_delete", tooltip="delete it and what comes after it"),
        Binding("enter", "want('unfold')", "unfold", show=False, id="turn_unfold", tooltip="show or hide the thinking"),
        Binding("left", "want('round_before')", "round before", show=False, id="turn_round_before", tooltip="look at the round before"),
        Binding("right", "want('round_after')", "round after", show=False, id="turn_round_after", tooltip="look at the round after"),
    ]

    @dataclass
    class Wanted(Message):
        """The user pressed a key on a turn."""

        turn: "Turn"
        what: str

    def __init__(self, number: int, source: str, key: Any = None) -> None:
        super().__init__()
        self.number = number
        self.source = source
        self.key = key

    def on_key(self, event: events.Key) -> None:
        """A character that means nothing here: the user has begun to write, and goes on in the prompt."""
        if event.is_printable and event.key not in self.screen.active_bindings:
            event.stop()
            prompt = self.screen.query_one("#prompt")
            prompt.focus()
            prompt.post_message(event)

    def action_want(self, what: str) -> None:
        self.post_message(self.Wanted(self, what))


class UserTurn(Turn):
    """What the user said, as it was typed."""

    def compose(self) -> ComposeResult:
        yield Static(Content("you"), classes="who")
        yield Static(Content(clean(self.source)), classes="said")


class Body(Markdown):
    """A reply as Markdown. Only its blocks are painted."""

    BLANK: ClassVar[bool] = True


class NoteTurn(Static):
    """A line that is no message: something the user should know."""

    def __init__(self, text: str) -> None:
        super().__init__(Content(clean(text)), markup=False)


class ReplyTurn(Turn):
    """What the model said: streamed, then whole; as Markdown, raw, or by origin; thinking folded."""

    def __init__(
        self, number: int, source: str = "", key: Any = None, who: str = "model", view: str = "markdown", about: str = "", streaming: bool = False
    ) -> None:
        super().__init__(number, source, key)
        self.view = view
        self.below = about  # the line below the reply
        self.streaming = streaming  # whether more is to come
        self.origin: Content | None = None
        self._who = clean(who)
        self._cleaner = Cleaner()
        self._flow = UnfinishedReply()
        self._flow.feed(self._cleaner.feed(source))
        self._drawn = 0  # characters of the settled text in the Markdown widget
        self._restarts = 0
        self._folded = True

    def compose(self) -> ComposeResult:
        yield Static(Content(self._who), classes="who")
        yield Static("", classes="thinking", markup=False)
        yield Body(parser_factory=chat_parser, open_links=False)
        yield OpenFence()
        yield Static("", classes="plain", markup=False)
        yield Static("", classes="about", markup=False)

    async def on_mount(self) -> None:
        self.about(self.below)
        await self.show(self.view)

    @property
    def markdown(self) -> Markdown:
        return self.query_one(Markdown)

    def feed(self, piece: str) -> None:
        """More text. Nothing is drawn before ``draw``."""
        self.source += piece
        self._flow.feed(self._cleaner.feed(piece))
        self.streaming = True

    async def draw(self) -> None:
        """Bring the screen up to what was fed."""
        self._draw_thinking()
        if self.view != "markdown":
            self._draw_plain()
            return
        if self._flow.restarts != self._restarts:
            self._restarts, self._drawn = self._flow.restarts, 0
            await self.markdown.update("")
        settled = self._flow.settled
        fresh = settled[self._drawn :] if self._drawn else settled.lstrip("\n")
        self._drawn = len(settled) if fresh else 0
        if fresh:
            await self.markdown.append(fresh)
        self.query_one(OpenFence).show(self._flow.fence)

    async def finish(self, about: str) -> None:
        """The reply is whole: draw all of it once more, since pieces can end in another picture than the whole."""
        self.streaming = False
        self._flow.feed(self._cleaner.flush())
        self.about(about)
        await self.show(self.view)

    def about(self, text: str) -> None:
        """The line below the reply."""
        self.below = text
        line = self.query_one(".about", Static)
        line.update(Content(clean(text)))
        line.display = bool(text)

    async def show(self, view: str) -> None:
        """Change the view. Where no origin is known the origin view shows the source."""
        self.view = view
        plain = view != "markdown"
        self.markdown.display = not plain
        self.query_one(".plain", Static).display = plain
        self._draw_thinking()
        if self.streaming and not plain:
            self._drawn = 0
            await self.markdown.update("")
            await self.draw()
            return
        self.query_one(OpenFence).show("")
        if plain:
            self._draw_plain()
        else:
            await self.markdown.update(self._flow.answer)
            self._drawn = len(self._flow.settled)

    def unfold(self) -> None:
        """Show the thinking, or hide it again."""
        self._folded = not self._folded
        self._draw_thinking()

    def _draw_plain(self) -> None:
        content = self.origin if self.view == "origin" and self.origin is not None else Content(self._flow.source)
        self.query_one(".plain", Static).update(content)

    def _draw_thinking(self) -> None:
        """One line while folded: how much was thought, and whether it goes on."""
        line = self.query_one(".thinking", Static)
        thinking = self._flow.thinking.strip("\n")
        line.display = bool(thinking or self._flow.thinks) and self.view == "markdown"
        if line.display:
            state = "thinking …" if self._flow.thinks and self.streaming else "thought"
            head = f"{'▸' if self._folded else '▾'} {state} ({len(thinking.split())} words)"
            line.update(Content(head if self._folded else f"{head}\n{thinking}"))
