"""The screen of the chat: a line on top, conversation and prompt, the panel at the right. Lays out and draws; decides nothing."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from mlxspec.display import clean
from mlxspec.tui.chat.reading_aloud import Hearing
from mlxspec.tui.widgets.key_bar import KeyBar
from mlxspec.tui.widgets.panel import SpeculationPanel, SpeechPanel
from mlxspec.tui.widgets.plain_text import Line
from mlxspec.tui.widgets.prompt import Prompt
from mlxspec.tui.widgets.transcript import Transcript

LEAST = (30, 8)  # columns and rows


class Rows(Vertical):
    """A container that paints nothing itself."""

    BLANK: ClassVar[bool] = True


class Columns(Horizontal):
    """The same for what stands side by side."""

    BLANK: ClassVar[bool] = True


class ChatScreen(Screen[None]):
    """What is there while one chats. Its keys are actions of the app, so that dialogs can lie above it."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny-width"), (LEAST[0], "-narrow"), (100, "-wide")]  # noqa: RUF012 - as Screen has it
    VERTICAL_BREAKPOINTS = [(0, "-tiny-height"), (LEAST[1], "-short"), (15, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.stop", "stop", id="stop", tooltip="stop the reply and keep its text; be silent; give up an edit"),
        Binding("ctrl+n", "app.new", "new chat", show=False, priority=True, id="new", tooltip="begin a new chat; the old one stays saved"),
        Binding("ctrl+o", "app.sessions", "sessions", show=False, priority=True, id="sessions", tooltip="open, delete or export a saved chat"),
        Binding(
            "ctrl+r", "app.history", "search earlier prompts", show=False, priority=True, id="history", tooltip="search in what you typed before"
        ),
        Binding("ctrl+g", "app.editor", "write in $EDITOR", show=False, priority=True, id="editor", tooltip="write in $EDITOR"),
        Binding("ctrl+y", "app.copy", "copy last reply", show=False, priority=True, id="copy", tooltip="copy the last reply"),
        Binding("f2", "app.panel", "panel", id="panel", tooltip="show or hide what drafting gains"),
        Binding("f3", "app.view('origin')", "origin", id="origin", tooltip="show which words of a reply were guessed ahead, and back"),
        Binding("f4", "app.models", "model", id="models", tooltip="choose a model or a drafter"),
        Binding("f5", "app.options", "params", id="options", tooltip="change temperature, length and the like"),
        Binding("f6", "app.view('raw')", "raw", show=False, priority=True, id="raw", tooltip="show a reply as the model wrote it, and back"),
        Binding("f7", "app.rounds", "rounds", show=False, priority=True, id="rounds", tooltip="look at the rounds of a reply"),
        Binding("ctrl+end", "app.follow", "to the end", show=False, priority=True, id="follow", tooltip="scroll to the end and follow it"),
    ]

    class Built(Message):
        """All its widgets are there."""

    def compose(self) -> ComposeResult:
        yield Line(f"too small: at least {LEAST[0]}×{LEAST[1]}", id="too-small")
        with Rows(id="whole"):
            yield Line(id="top")
            with Columns(id="body"):
                with Rows(id="talk"):
                    yield Transcript()
                    yield Line(id="status")
                    yield Prompt(clean, id="prompt")
                with ContentSwitcher(initial="speculation", id="side"):
                    yield SpeculationPanel(id="speculation")
                    yield SpeechPanel(id="speech")
            yield KeyBar(show_command_palette=False)

    def on_mount(self) -> None:
        self.prompt.focus()
        self.post_message(self.Built())

    @property
    def conversation(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def panel(self) -> SpeculationPanel:
        return self.query_one(SpeculationPanel)

    def show_speech(self, hearing: Hearing | None) -> None:
        """What is said aloud, in the place of what drafting gains; None: nothing is."""
        self.query_one(ContentSwitcher).current = "speculation" if hearing is None else "speech"
        if hearing is not None:
            self.query_one(SpeechPanel).say(hearing)

    def say_top(self, text: str) -> None:
        """The line on top."""
        self.query_one("#top", Line).say(text)

    def say_status(self, text: str) -> None:
        """The line above the prompt."""
        self.query_one("#status", Line).say(text)
