"""What the commands and keys do on the screen: the shared actions, with windows in place of lists. Knows the app; draws nothing itself."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from textual.app import SuspendNotSupported, SystemCommand

from mlxspec.display import clean, one_line
from mlxspec.errors import MlxspecError, UsageError
from mlxspec.paths import config_file
from mlxspec.settings.options import Options
from mlxspec.tui.chat import captions
from mlxspec.tui.chat.actions import Actions
from mlxspec.tui.chat.commands import COMMANDS, plain_text, run
from mlxspec.tui.chat.editor import edit
from mlxspec.tui.chat.markdown import code_blocks
from mlxspec.tui.chat.reports import Chances, Compared, Counted, Ended, Failed, Lane, Offers, Ready, Report
from mlxspec.tui.choices import Choices
from mlxspec.tui.screens.compare import CompareScreen
from mlxspec.tui.screens.help import HelpScreen
from mlxspec.tui.screens.options import OptionsScreen
from mlxspec.tui.widgets.turns import ReplyTurn, Turn

if TYPE_CHECKING:
    from mlxspec.tui.app import ChatApp


def refusal(settings: Mapping[str, Any]) -> str | None:
    """Why these options cannot be, or None."""
    try:
        Options(**settings)
    except UsageError as error:
        return str(error)
    return None


class ScreenActions(Actions):
    """Actions with the screen as their face."""

    def __init__(self, app: "ChatApp") -> None:
        super().__init__(app.talk, ScreenFace(app))
        self.app = app
        self.picking = Choices(app, self)
        self._arrived = False  # whether a first model was loaded

    def do(self, action: Callable[[], object]) -> bool:
        """Do something that may be refused; what refuses it is shown."""
        try:
            action()
        except MlxspecError as error:
            self.app.toast(str(error), error=True)
            return False
        return True

    # ---- What is typed -------------------------------------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """Send a message or a changed one, or run a command. What is refused stays in the prompt."""
        prompt, live = self.app.screen_of_chat.prompt, self.app.live
        prompt.take()
        if live.editing is not None:
            at, live.editing = live.editing, None
            done = self.do(lambda: self.talk.edit(at, text))
        else:
            done = self.do(lambda: self._send(text))
        if not done and not prompt.text:
            prompt.put(text)

    def _send(self, text: str) -> None:
        if not run(text, self):
            self.talk.send(plain_text(text))
            self.app.remember(text)
            self.app.screen_of_chat.conversation.follow()

    def pasted(self, lines: int, characters: int) -> None:
        """Say what was pasted; the engine counts its tokens when it can."""
        self.app.toast(f"pasted {lines} lines, {characters} characters")
        if self.talk.ready is not None:
            self.talk.worker.count(self.app.screen_of_chat.prompt.text)

    # ---- Windows -------------------------------------------------------------------------------------------------------------------------

    def set(self, name: str | None, value: str | None) -> None:
        if name is not None:
            return super().set(name, value)
        defaults = self.talk.ready.defaults if self.talk.ready is not None else {}
        settings = {**self.talk.settings, **({"system_prompt": self.talk.system} if self.talk.system else {})}
        self.app.push_screen(OptionsScreen(settings, defaults, refusal))

    def changed(self, name: str, value: Any, unset: bool) -> None:
        """A field of the form."""
        if name == "system_prompt":
            self.talk.change_system(value or None)
        else:
            self.do(lambda: self.change(name, value, drop=unset))

    def compare(self) -> None:
        super().compare()
        self.app.push_screen(CompareScreen(one_line(self.talk.said[self.talk.last_asked].text)))

    def help(self, name: str | None) -> None:
        if name is not None:
            return super().help(name)
        commands = [(command.usage, command.help) for command in COMMANDS]
        self.app.push_screen(HelpScreen(self.app.keys_by_place, self.app.own_keys, commands, [f"config file: {config_file()}"]))

    def export_session(self, name: str) -> None:
        """Write a saved conversation to a file in this folder."""
        self.write(self.talk.saved.read(name)[0])

    def write_in_editor(self) -> None:
        """Let the user write the prompt in an editor of his own."""
        prompt = self.app.screen_of_chat.prompt

        def edited() -> None:
            with self.app.suspend():
                text = edit(prompt.text, self.app.environ)
            prompt.put(text)

        try:
            self.do(edited)
        except SuspendNotSupported:
            self.app.toast("This terminal cannot be lent to an editor.", error=True)
        prompt.focus()

    # ---- Turns ---------------------------------------------------------------------------------------------------------------------------

    def with_turn(self, turn: Turn, what: str) -> None:
        """A key that was pressed on a turn."""
        conversation, live, number = self.app.screen_of_chat.conversation, self.app.live, turn.number
        if what in ("above", "below"):
            if not conversation.select(-1 if what == "above" else 1):
                self.app.screen_of_chat.prompt.focus()
        elif what == "prompt":
            self.app.screen_of_chat.prompt.focus()
        elif what == "copy":
            self.do(lambda: self.copied(turn.source))
        elif what == "copy_code":
            blocks = code_blocks(turn.source)
            self.do(lambda: self.copied(blocks[-1])) if blocks else self.app.toast("no code block here")
        elif what == "edit":
            self.edit_message(number if self.talk.said[number].role == "user" else number - 1)
        elif what == "regenerate":
            self.do(lambda: self.talk.regenerate(number))
            self.app.screen_of_chat.prompt.focus()
        elif what == "continue":
            self.do(self.proceed if number == len(self.talk.said) - 1 else self._not_the_last)
            self.app.screen_of_chat.prompt.focus()
        elif what == "speak":
            self.do(lambda: self.talk.speak(number))
            self.app.screen_of_chat.prompt.focus()
        elif what == "delete":
            after = len(self.talk.said) - number
            question = f"delete this message{f' and the {after - 1} after it' if after > 1 else ''}?"
            self.picking.confirm(question, lambda: self.talk.cut(number), self.app.screen_of_chat.prompt.focus)
        elif what == "unfold" and isinstance(turn, ReplyTurn):
            turn.unfold()
        elif what in ("round_before", "round_after"):
            live.look_at(number)
            self.app.screen_of_chat.panel.strip.move(-1 if what == "round_before" else 1)

    def _not_the_last(self) -> None:
        raise MlxspecError("Only the last reply can be gone on with: d drops what comes after this one.")

    def copied(self, text: str) -> None:
        self.app.toast(f"copied {len(text)} characters by {self.app.copy_text(text)}")

    def edit_message(self, number: int) -> None:
        """Put a message of the user's into the prompt; enter then sends it in place of the old one."""
        if self.talk.answering:
            self.app.toast("A reply is coming: stop it first (esc).", error=True)
        elif 0 <= number < len(self.talk.said):
            self.app.live.editing = number
            self.app.screen_of_chat.prompt.put(self.talk.said[number].text)
            self.app.screen_of_chat.prompt.focus()

    # ---- What the engine says --------------------------------------------------------------------------------------------------------------

    def take(self, report: Report) -> None:
        """A report that a window waits for; the conversation has taken in all others."""
        event, screen = report.event, self.app.screen
        if isinstance(event, Ready):
            if self._arrived:
                self.app.toast(captions.arrived(event))
            self._arrived = True
        elif isinstance(event, Offers):
            self.picking.offer(event)
        elif isinstance(event, Chances):
            self.app.live.show_round(self.app.screen_of_chat.panel.strip.selected)
        elif isinstance(event, Counted):
            over = event.limit is not None and event.tokens > event.limit
            much = f"the prompt has {event.tokens} tokens" + (f", and the model reads at most {event.limit}" if over else "")
            self.app.toast(much, error=over)
        elif isinstance(screen, CompareScreen):
            if isinstance(event, Lane):
                screen.feed(event)
            elif isinstance(event, Compared):
                screen.finish(event)
            elif isinstance(event, Failed):
                screen.over = True
                screen.say(clean(event.text))
            elif isinstance(event, Ended) and event.kind == "compare" and not screen.over:
                screen.over = True
                screen.say("stopped")

    # ---- The palette ---------------------------------------------------------------------------------------------------------------------

    def palette(self) -> Iterable[SystemCommand]:
        """Everything one can do, by name."""
        app = self.app
        for command in COMMANDS:
            yield SystemCommand(f"/{command.name}", command.help, self._runs(command.usage))
        yield SystemCommand("show all", "draw every message of a long conversation", app.draw_all)
        yield SystemCommand("panel", "show or hide the speculation panel (F2)", app.action_panel)
        yield SystemCommand("origin", "the reply by origin: accepted, the model's own, rejected (F3)", lambda: app.run_action("view('origin')"))
        yield SystemCommand("raw", "the text as the model wrote it (F6)", lambda: app.run_action("view('raw')"))
        yield SystemCommand("rounds", "look at the rounds of a reply (F7)", app.action_rounds)
        yield SystemCommand("suspend", "to the shell; fg comes back", app.action_suspend_process)
        yield SystemCommand("editor", "write the prompt in $EDITOR (ctrl+g)", app.action_editor)

    def _runs(self, usage: str) -> Callable[[], None]:
        """Run a command that needs nothing more, or begin it in the prompt."""
        name, _, arguments = usage.partition(" ")
        prompt = self.app.screen_of_chat.prompt

        def begin() -> None:
            prompt.put(f"{name} ")
            prompt.focus()

        def at_once() -> None:
            self.do(lambda: run(name, self))

        return begin if arguments and not arguments.startswith("[") else at_once


class ScreenFace:
    """See actions.Face."""

    dot = " · "

    def __init__(self, app: "ChatApp") -> None:
        self.app = app

    def say(self, text: str) -> None:
        """A line goes away by itself, several stay below the conversation."""
        if "\n" in text:
            self.app.live.note(text)
        else:
            self.app.toast(text)

    def pick(self, what: str) -> None:
        self.app.deeds.picking.pick(what)

    def compose(self, text: str) -> None:
        self.app.deeds.edit_message(self.app.talk.last_asked)

    def copy(self, text: str) -> str:
        return self.app.copy_text(text)

    def leave(self) -> None:
        self.app.action_leave()
