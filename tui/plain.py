"""The chat in lines, for dumb terminals and for those who like it so: the same commands, no screen.

What the model says goes to stdout, what we say to stderr. Ctrl-C stops the reply and keeps its text, Ctrl-D leaves. Three double quotes begin
and end a message of several lines.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

from mlxspec.core.events import Done, Prefill, Text
from mlxspec.display import clean, one_line
from mlxspec.errors import MlxspecError
from mlxspec.llm.report import stats_line
from mlxspec.tui.chat import clipboard, editor
from mlxspec.tui.chat.actions import Actions
from mlxspec.tui.chat.captions import speech
from mlxspec.tui.chat.commands import complete, plain_text, run
from mlxspec.tui.chat.conversation import Conversation
from mlxspec.tui.chat.loops import Loops
from mlxspec.tui.chat.prompt_history import History
from mlxspec.tui.chat.reports import Baseline, Compared, Ended, Lane, Loading, Offer, Offers, Ready, Report, Speech

ASK, MORE = ">>> ", "... "
FENCE = '"""'
LONG_PROMPT = 512  # tokens from which reading them shows its progress
LISTED = 20  # sessions in a list
PATIENCE = 0.1  # seconds between looks at the engine's thread and at Ctrl-C

Read = Callable[[str], str]  # as input(): raises EOFError at the end and KeyboardInterrupt at Ctrl-C


class Terminal(Protocol):
    """Where the lines go: mlxspec.cli.terminal.Terminal, or a test's own."""

    out: TextIO

    @property
    def dot(self) -> str: ...
    def answer(self, text: str) -> None: ...
    def end_answer(self) -> None: ...
    def print(self, text: str) -> None: ...
    def notice(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...
    def progress(self, label: str, done: int, total: int) -> None: ...


class Plain:
    """A face (actions.Face) of lines. ``read`` takes one from the user; ``stats`` says whether a line of numbers follows each reply."""

    def __init__(
        self, talk: Conversation, terminal: Terminal, environ: Mapping[str, str], history: History, read: Read | None = None, stats: bool = True
    ) -> None:
        self.talk = talk
        self.terminal = terminal
        self.environ = environ
        self.history = history
        self.dot = terminal.dot
        self._lines = None if read is not None else readline_or_none(history)
        self._read = read or input
        self._stats = stats
        self._actions = Actions(talk, self)
        self._leaving = False
        self._asking = False
        self._in_background = False  # a load the user does not want to wait for
        self._stops = 0  # how often Ctrl-C was pressed in this reply
        self._lanes: set[str] = set()
        talk.tell = terminal.error
        talk.give_back = self._given_back
        self._back: str | None = None  # a message that could not be sent
        self._speech = Speech()
        self._loops, self._warned = Loops(), False  # of the reply that comes

    # ---- The loop ------------------------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Talk until the user leaves; the exit code."""
        with self._watching():
            self.settle()
            while not self._leaving:
                try:
                    text = self.ask()
                    if text.strip():
                        self._do(text)
                except EOFError:
                    self.terminal.print("")
                    break
                except KeyboardInterrupt:
                    self.terminal.print("")
                    self.terminal.error("Ctrl-D or /exit leaves.")
        return 0

    def ask(self) -> str:
        """One message: a line, or the lines between three double quotes."""
        line = self._line(ASK)
        if not line.lstrip().startswith(FENCE):
            return line
        text = line.lstrip()[len(FENCE) :]
        while not text.rstrip().endswith(FENCE):
            text += "\n" + self._line(MORE)
        return text.rstrip()[: -len(FENCE)].strip("\n")

    def _line(self, prompt: str) -> str:
        self._asking = True
        try:
            return self._read(prompt)
        finally:
            self._asking = False

    def _do(self, text: str) -> None:
        """Run a command, or send a message and show the reply."""
        try:
            if not run(text, self._actions):
                self.history.add(text)
                self.talk.send(plain_text(text))
            if not self._leaving:
                self.settle()
        except MlxspecError as error:
            self.terminal.error(str(error))

    def settle(self) -> None:
        """Show what happens until nothing does any more. Ctrl-C stops a reply; pressed again, it gives the prompt back."""
        self._stops = 0
        while self.talk.answering or (self._at_work and not self._in_background):
            self.talk.worker.wait(PATIENCE)
            self._show(self.talk.feed())
            if self._stops > 2:  # the engine hangs: the user gets the prompt, and may leave
                raise KeyboardInterrupt
            if self._stops and not self.talk.stop() and (self._stops > 1 or self.talk.working not in ("compare", "speech")):
                self._in_background = True
        self._in_background = self._in_background and self._at_work
        self._show(self.talk.feed())
        self.terminal.end_answer()
        if self._back is not None:
            self.terminal.error("The message was not sent. It is in the history (arrow up)." if self._lines else "The message was not sent.")
            self._back = None

    @property
    def _at_work(self) -> bool:
        """Whether there is something to wait for."""
        return self.talk.worker.busy or self.talk.loading is not None

    def _given_back(self, text: str) -> None:
        self._back = text

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Ctrl-C is raised at the prompt only; elsewhere it is counted, so that it never breaks off an update."""

        def pressed(number: int, frame: FrameType | None) -> None:
            if self._asking:
                raise KeyboardInterrupt
            self._stops += 1

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # ---- What the engine says ------------------------------------------------------------------------------------------------------------

    def _show(self, reports: list[Report]) -> None:
        for report in reports:
            event: Any = report.event
            if isinstance(event, Text):
                self.terminal.answer(event.text)
                self._watch(event)
            elif isinstance(event, Prefill) and event.total >= LONG_PROMPT:
                self.terminal.progress("reading the prompt", event.done, event.total)
            elif isinstance(event, Done):
                self.terminal.end_answer()
                if self._stats:
                    again = [f"repeats itself ({self._loops.repeated} tokens)"] * bool(self._loops.repeated)
                    self.terminal.error(self.dot.join([stats_line(event, self.dot), *again]))
                self._loops, self._warned = Loops(), False
            elif isinstance(event, Loading):
                self.terminal.notice(event.text)
            elif isinstance(event, Ready):
                self.terminal.notice(self._ready(event))
            elif isinstance(event, Lane):
                self._lane(event)
            elif isinstance(event, Compared):
                self._compared(event)
            elif isinstance(event, Baseline) and event.fresh:
                self.terminal.notice(f"Plain decoding: {event.tokens_per_second:.1f} tok/s, measured on this machine.")
            elif isinstance(event, Offers):
                self._offers(event)
            elif isinstance(event, Speech):
                if event.about:
                    self.terminal.notice(event.about)
                self._speech = event
            elif isinstance(event, Ended) and event.kind == "speech" and self._stats and self._speech.pace is not None:
                self.terminal.error(self.dot.join(speech(self._speech)))
                self._speech = Speech()

    def _watch(self, event: Text) -> None:
        """Say once in a reply that it only repeats itself."""
        if event.step is not None:
            self._loops.see(event.step.tokens)
        if self._loops.now and not self._warned:
            self._warned = True
            self.terminal.end_answer()
            self.terminal.notice("The reply repeats itself: Ctrl-C stops it.")

    def _ready(self, ready: Ready) -> str:
        reason = f" ({ready.reason})" if ready.reason else ""
        memory = ""
        if ready.memory_before and ready.memory is not None:
            memory = f"{self.dot}memory {ready.memory_before / 1e9:.2f} GB before, {ready.memory / 1e9:.2f} GB now"
        return f"{ready.model}{self.dot}drafter {ready.drafter}{self.dot}speculation {ready.speculation}{reason}{memory}"

    def _lane(self, lane: Lane) -> None:
        if lane.name not in self._lanes:
            self._lanes.add(lane.name)
            self.terminal.end_answer()
            self.terminal.print(f"--- {lane.name}")
        self.terminal.answer(lane.event.text)

    def _compared(self, found: Compared) -> None:
        self._lanes.clear()
        self.terminal.end_answer()
        for name, done in (("plain", found.plain), ("speculative", found.speculative)):
            self.terminal.error(f"{name}: {stats_line(done, self.dot)}")
        gain = f"{found.speedup:.2f}× plain decoding{self.dot}" if found.speedup is not None else ""
        self.terminal.error(gain + found.verdict)

    def _offers(self, offers: Offers) -> None:
        for title, rows in (("models (/model NAME)", offers.models), ("drafters (/draft NAME)", offers.drafters)):
            if rows:
                self.terminal.print("\n".join([title, *(self._offer(row) for row in rows)]))

    def _offer(self, row: Offer) -> str:
        return f"{'*' if row.current else ' '} {one_line(row.name)}  {'' if row.fits else 'does not fit: '}{one_line(row.about)}"

    # ---- The face ------------------------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.terminal.print(clean(text))

    def pick(self, what: str) -> None:
        if what != "session":
            self.talk.worker.offers((Path.cwd(),))
            return
        rows = self.talk.store.summaries()[:LISTED] if self.talk.store is not None else []
        self.say("\n".join(f"{row.id}  {row.turns:>3} messages  {row.title}" for row in rows) or "There are no saved conversations.")

    def compose(self, text: str) -> None:
        if self._lines is not None and "\n" not in text:
            self._lines.set_startup_hook(lambda: self._lines.insert_text(clean(text)))
            try:
                changed = self.ask()
            finally:
                self._lines.set_startup_hook()
        else:
            changed = editor.edit(text, self.environ)
        if changed.strip() and changed != text:
            self._actions.edited(changed)

    def copy(self, text: str) -> str:
        return clipboard.copy(text, self._raw, self.environ)

    def leave(self) -> None:
        self._leaving = True

    def _raw(self, sequence: str) -> None:
        self.terminal.out.write(sequence)
        self.terminal.out.flush()


def readline_or_none(history: History) -> Any:
    """Line editing with the history and the commands in it, where this Python has it."""
    try:
        import readline
    except ImportError:
        return None
    readline.clear_history()
    for text in history.prompts():
        if "\n" not in text:
            readline.add_history(clean(text))
    readline.set_completer_delims("\n")
    readline.set_completer(lambda text, state: dict(enumerate(complete(text))).get(state))
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    return readline
