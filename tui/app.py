"""The Textual app: one conversation, its screen, its keys. Starts and ends things; screen_actions.py has what they do, refresh.py what is drawn.

The loop of the screen never waits for the engine: some ten times a second it takes in what has happened and draws what is new, more seldom
where drawing is slow. Nothing that comes from outside is ever read as markup.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Input, Markdown, TextArea

from mlxspec.display import clean, one_line
from mlxspec.tui.chat import captions, clipboard
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.prompt_history import History, history_file
from mlxspec.tui.key_queue import KeyQueue
from mlxspec.tui.keys import bindings_of, keymap
from mlxspec.tui.refresh import Refresh
from mlxspec.tui.screen_actions import ScreenActions
from mlxspec.tui.screens.chat import ChatScreen
from mlxspec.tui.screens.compare import CompareScreen
from mlxspec.tui.screens.options import OptionsScreen
from mlxspec.tui.theme import choose
from mlxspec.tui.widgets.panel import RoundStrip
from mlxspec.tui.widgets.prompt import Prompt
from mlxspec.tui.widgets.turns import Turn

OFTEN, SELDOM = 0.1, 0.6  # seconds between two rounds of drawing
SHARE = 50  # the screen takes one part in so many of a core's time
ENDINGS = (signal.SIGTERM, signal.SIGHUP)  # end the app in order, with the terminal as it was
AGAIN = 3.0  # seconds in which ctrl+c is to be pressed again to quit


class ChatApp(KeyQueue[int]):
    """``talk`` has a worker that was started; ``theme`` and ``keys`` are as the config file gives them."""

    TITLE = "mlxspec"
    CSS_PATH = "chat.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+c",
            "interrupt",
            "copy, stop, clear, or quit",
            show=False,
            priority=True,
            id="interrupt",
            tooltip="copy what is selected; else stop the reply; else clear what you typed; twice: quit",
        ),
        Binding("f1", "help", "help", id="help", tooltip="this help"),
        Binding("ctrl+q", "leave", "quit", show=False, priority=True, id="quit", tooltip="quit at once; what was said is saved"),
    ]

    def __init__(
        self,
        talk: Conversation,
        theme: str | None = None,
        keys: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
        history: History | None = None,
    ) -> None:
        no_color = bool(environ.get("NO_COLOR"))
        if not no_color:
            os.environ.pop("NO_COLOR", None)  # an empty one means nothing, and Textual would heed it
        super().__init__(ansi_color=True if no_color else None)
        self.talk = talk
        self.environ = environ
        self.screen_of_chat = ChatScreen()
        self.live = Refresh(talk, self.screen_of_chat)
        self.deeds = ScreenActions(self)
        self.keys_by_place = {
            "everywhere": bindings_of(ChatApp, ChatScreen),
            "while you write": bindings_of(Prompt),
            "on a message (tab leads there)": bindings_of(Turn),
            "in the strip of rounds (F7 leads there)": bindings_of(RoundStrip),
        }
        self.names = {name: binding for bindings in self.keys_by_place.values() for name, binding in bindings.items()}
        self.own_keys, complaints = keymap(keys or {}, self.names)
        look = choose(theme, self.available_themes, environ)
        self.theme = look.theme
        self.complaints = [*complaints, *([look.complaint] if look.complaint else [])]
        self.history = history or History(history_file() if talk.store is not None else None)
        self._spent = 0.0  # seconds of the processor that the screen took so far
        self._interrupted = -AGAIN
        self._drawing = asyncio.Lock()
        talk.tell, talk.redraw, talk.give_back = self.tell, self.redraw, self.give_back

    # ---- Beginning and end ---------------------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_keymap(self.own_keys)
        for number in ENDINGS:
            asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)
        self.push_screen(self.screen_of_chat)

    def on_unmount(self) -> None:
        for number in ENDINGS:
            asyncio.get_running_loop().remove_signal_handler(number)

    @on(ChatScreen.Built)
    def begin(self) -> None:
        """The screen is there: say hello, and start the loop."""
        self.screen_of_chat.conversation.welcome(captions.WELCOME)
        self.screen_of_chat.prompt.use_keys(self.own_keys)
        self.screen_of_chat.prompt.remember(self.history.prompts())
        for complaint in self.complaints:
            self.tell(complaint)
        self.set_timer(OFTEN, self._tick)  # the first picture comes before the engine's imports

    async def _tick(self) -> None:
        """Take in what happened, draw it, and come again: the later, the more of the processor it took."""
        if self.return_code is not None:
            return
        try:
            if self.drawable:
                await self.catch_up()
        except NoMatches:
            if self.drawable:
                raise  # else the widgets are being taken down
        now = time.thread_time()
        spent, self._spent = now - self._spent, now  # of this round, and for painting the one before
        self.set_timer(min(max(OFTEN, SHARE * spent), SELDOM), self._tick)

    @property
    def drawable(self) -> bool:
        """Whether the screen is there: not before it is built, nor while the app ends."""
        return self.is_running and self.screen_of_chat.is_attached and bool(self.screen_of_chat.query(Prompt))

    async def catch_up(self) -> None:
        """One round of the loop."""
        async with self._drawing:
            for report in self.talk.feed():
                self.deeds.take(report)
            await self.live.draw()
            if isinstance(self.screen, CompareScreen):
                self.screen.draw()

    def action_leave(self) -> None:
        """Quit at once; what was said is saved."""
        self.exit(0)

    # ---- What the conversation says ------------------------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """A line that stays below the conversation."""
        self.live.note(text)

    def redraw(self) -> None:
        """The messages changed other than by growing."""
        self.live.stale = True

    def give_back(self, text: str) -> None:
        """Text that could not be sent goes back to where it was typed, before what stands there by now. The last line told says why."""
        self.live.refused = True
        prompt = self.screen_of_chat.prompt
        prompt.put(f"{text}\n{prompt.text}" if prompt.text.strip() else text)

    def toast(self, text: str, error: bool = False) -> None:
        """A line that goes away by itself. One that is said again takes the place of its like."""
        for notice in [notice for notice in self._notifications if notice.message == one_line(text)]:
            self._unnotify(notice)
        self.notify(one_line(text), severity="error" if error else "information", markup=False)

    def copy_text(self, text: str) -> str:
        """To the clipboard; the name of the one it went to."""
        self._clipboard = text  # what a prompt pastes with ctrl+v
        return clipboard.copy(text, self._to_terminal, self.environ)

    def _to_terminal(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)

    def remember(self, text: str) -> None:
        """Keep a prompt for the next time."""
        self.history.add(text)
        if self.history.failure is not None:
            self.tell(self.history.failure)
            self.history.failure = None
        self.screen_of_chat.prompt.remember(self.history.prompts())

    def draw_all(self) -> None:
        """Draw every message of a long conversation."""
        self.live.whole = self.live.stale = True

    # ---- Keys ----------------------------------------------------------------------------------------------------------------------------

    def action_interrupt(self) -> None:
        """Copy what is selected; else stop the reply or the speech; else clear what was typed; else quit, asked twice."""
        focused = self.screen.focused
        selected = focused.selected_text if isinstance(focused, Input | TextArea) else ""
        selected = selected or self.screen.get_selected_text() or ""
        if selected:
            self.deeds.do(lambda: self.deeds.copied(selected))
        elif self.talk.stoppable:
            self.action_stop()
        elif self.screen is self.screen_of_chat and self.screen_of_chat.prompt.text:
            if self.live.editing is not None:
                self.action_stop()
            else:
                self.screen_of_chat.prompt.clear()
                self.toast("cleared: ctrl+z brings it back")
        elif self._now() - self._interrupted < AGAIN:
            self.action_leave()
        else:
            self._interrupted = self._now()
            self.toast("ctrl+c again quits")

    def action_stop(self) -> None:
        """Stop the reply and keep its text; be silent; give up editing; close the drawer."""
        if self.talk.stoppable:
            self.live.stopping = True
            self.talk.stop()
        elif self.live.editing is not None:
            self.live.editing = None
            self.screen_of_chat.prompt.take()
        elif self.screen_of_chat.has_class("-narrow") and self.screen_of_chat.has_class("panel-toggled"):
            self.action_panel()
        self.screen_of_chat.prompt.focus()

    def action_panel(self) -> None:
        self.screen_of_chat.toggle_class("panel-toggled")

    async def action_view(self, wanted: str) -> None:
        self.toast(f"view: {await self.live.show_view(wanted)}")

    def action_rounds(self) -> None:
        """To the strip of rounds, with the last one selected."""
        screen = self.screen_of_chat
        if screen.has_class("-narrow") != screen.has_class("panel-toggled"):
            self.action_panel()
        screen.panel.strip.focus()
        screen.panel.strip.move(0)

    def action_follow(self) -> None:
        self.screen_of_chat.conversation.follow()

    def action_help(self) -> None:
        self.deeds.help(None)

    def action_new(self) -> None:
        self.deeds.do(self.deeds.clear)

    def action_sessions(self) -> None:
        self.deeds.do(lambda: self.deeds.load(None))

    def action_models(self) -> None:
        self.deeds.do(lambda: self.deeds.model(None, False))

    def action_options(self) -> None:
        self.deeds.do(lambda: self.deeds.set(None, None))

    def action_history(self) -> None:
        self.deeds.picking.prompts(self.history.prompts())

    def action_editor(self) -> None:
        self.deeds.write_in_editor()

    def action_copy(self) -> None:
        self.deeds.do(lambda: self.deeds.copy(None))

    # ---- What widgets say ----------------------------------------------------------------------------------------------------------------

    @on(Prompt.Sent)
    def sent(self, message: Prompt.Sent) -> None:
        self.deeds.send(message.text)

    @on(Prompt.Left)
    def left_prompt(self) -> None:
        self.screen_of_chat.conversation.select(0)

    @on(Prompt.QuitAsked)
    def quit_asked(self) -> None:
        self.action_leave()

    @on(Prompt.Pasted)
    def pasted(self, message: Prompt.Pasted) -> None:
        self.deeds.pasted(message.lines, message.characters)

    @on(Turn.Wanted)
    def wanted(self, message: Turn.Wanted) -> None:
        self.deeds.with_turn(message.turn, message.what)

    @on(RoundStrip.Left)
    def left_strip(self) -> None:
        self.screen_of_chat.prompt.focus()

    @on(RoundStrip.Selected)
    def selected(self, message: RoundStrip.Selected) -> None:
        self.live.show_round(message.round)

    @on(OptionsScreen.Changed)
    def changed(self, message: OptionsScreen.Changed) -> None:
        self.deeds.changed(message.name, message.value, message.unset)

    @on(CompareScreen.Left)
    def left_comparison(self) -> None:
        self.talk.stop()

    @on(Markdown.LinkClicked)
    def link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Only the web is opened; what a model wrote is no reason to open files."""
        if message.href.startswith(("http://", "https://")):
            self.open_url(message.href)
        else:
            self.toast(f"not opened: {clean(message.href)}")

    # ---- The palette ---------------------------------------------------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield from self.deeds.palette()
        for command in super().get_system_commands(screen):
            if command.title not in ("Quit", "Keys", "Screenshot"):
                yield command

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def run(talk: Conversation, *, theme: str | None = None, keys: Mapping[str, Any] | None = None) -> int:
    """Run the screen until the user leaves; the exit code."""
    app = ChatApp(talk, theme, keys)
    app.run()
    return app.return_code or 0
