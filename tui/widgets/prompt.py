"""The prompt: several lines, paste, history, keys of its own. Says by messages what the user wants; knows no engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea

from mlxspec.tui.widgets.graphemes import after, before

LARGE = 2000  # characters from which a paste is worth a word


class Prompt(TextArea):
    """What the user is about to say."""

    HELP = "Type a message. `/` at the start makes it a command, as `/help`."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "send", id="send", tooltip="send the message, or run the command"),
        Binding("ctrl+j,shift+enter", "newline", "newline", id="newline", tooltip="begin a new line"),
        Binding("tab", "select_turns", "messages", show=False, id="select_turns", tooltip="go to the messages"),
        Binding(
            "ctrl+d",
            "delete_or_quit",
            "quit where the prompt is empty",
            show=False,
            id="delete_or_quit",
            tooltip="delete the next character; quit where nothing is typed",
        ),
        Binding("ctrl+up", "older", "earlier prompt", show=False, id="older", tooltip="take what you typed before"),
        Binding("ctrl+down", "newer", "later prompt", show=False, id="newer", tooltip="and back again"),
    ]

    @dataclass
    class Sent(Message):
        """The user pressed send."""

        text: str

    class Left(Message):
        """The user wants to walk through the conversation."""

    class QuitAsked(Message):
        """Ctrl+D with nothing typed."""

    @dataclass
    class Pasted(Message):
        """Much was pasted at once."""

        lines: int
        characters: int

    def __init__(self, clean: Callable[[str], str], id: str | None = None) -> None:
        super().__init__(id=id, soft_wrap=True, compact=True, highlight_cursor_line=False, placeholder="Say something, or / for a command")
        self.cursor_blink = False  # each blink is drawn, with a core that the engine needs
        self._clean = clean
        self._past: list[str] = []
        self._at = 0  # place in the past; its length is the present
        self._draft = ""
        self.use_keys({})

    def use_keys(self, keymap: Mapping[str, str]) -> None:
        """The user's own keys, by the names of bindings."""
        own = [binding for binding in self.BINDINGS if isinstance(binding, Binding) and binding.id]
        self._actions = {key: binding.action for binding in own for key in keymap.get(binding.id or "", binding.key).split(",")}

    def remember(self, prompts: list[str]) -> None:
        """What was said before, oldest first."""
        self._past = list(prompts)
        self._at = len(self._past)

    def put(self, text: str) -> None:
        """Replace what stands there, with the cursor at its end."""
        self.load_text(self._clean(text))
        self.move_cursor(self.document.end)

    def take(self) -> str:
        """What stands there, which is then gone."""
        text = self.text
        self.load_text("")
        self._at = len(self._past)
        return text

    def render_line(self, y: int) -> Strip:
        if self.content_size.width < 2:  # nothing can be wrapped to less
            return Strip.blank(self.size.width)
        return super().render_line(y)

    def action_send(self) -> None:
        if self.text.strip():
            self.post_message(self.Sent(self.text))

    def action_newline(self) -> None:
        self.insert("\n")

    def action_select_turns(self) -> None:
        self.post_message(self.Left())

    def action_cursor_up(self, select: bool = False) -> None:
        if self.cursor_location == (0, 0) and not select:
            self.post_message(self.Left())
        else:
            super().action_cursor_up(select)

    def get_cursor_left_location(self) -> tuple[int, int]:
        """A step is a character as it is seen, for moving and for deleting."""
        row, column = self.cursor_location
        return (row, before(self.document.get_line(row), column)) if column else super().get_cursor_left_location()

    def get_cursor_right_location(self) -> tuple[int, int]:
        row, column = self.cursor_location
        line = self.document.get_line(row)
        return (row, after(line, column)) if column < len(line) else super().get_cursor_right_location()

    def action_delete_or_quit(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.QuitAsked())

    def action_older(self) -> None:
        self._step(-1)

    def action_newer(self) -> None:
        self._step(1)

    def _step(self, by: int) -> None:
        place = self._at + by
        if not 0 <= place <= len(self._past):
            return
        if self._at == len(self._past):
            self._draft = self.text
        self._at = place
        self.put(self._past[place] if place < len(self._past) else self._draft)

    async def _on_key(self, event: events.Key) -> None:
        """Keys with a meaning here come in their turn: after what was typed before them, however fast, and before TextArea's own."""
        if action := self._actions.get(event.key):
            event.stop()
            event.prevent_default()
            await self.run_action(action)

    def _on_paste(self, event: events.Paste) -> None:  # type: ignore[override]  # runs before TextArea's own, which is then left out
        event.prevent_default()
        event.stop()
        text = self._clean(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        self.move_cursor(self.replace(text, *self.selection).end_location)
        if len(text) >= LARGE:
            self.post_message(self.Pasted(text.count("\n") + 1, len(text)))
