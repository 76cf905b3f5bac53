"""The conversation of the chat: what was said, what is being said, and its session. Knows the engine's thread by its jobs; knows no screen.

Everything the user does to the conversation is a method here; everything the engine does comes in by ``feed``. The texts are as the model wrote
them: whoever shows them cleans them (mlxspec.cli.terminal).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mlxspec.core.events import Done, Notice, Prefill, Text
from mlxspec.errors import UsageError
from mlxspec.loading.catalog import lasting, lasting_drafter
from mlxspec.sessions.store import Session, Store
from mlxspec.tui.chat.autosave import Autosave
from mlxspec.tui.chat.jobs import FIRST, TALK
from mlxspec.tui.chat.loops import repeated
from mlxspec.tui.chat.message import Asleep, Awakener, ChatMessage, restored, stored
from mlxspec.tui.chat.reading_aloud import ReadingAloud
from mlxspec.tui.chat.reports import Baseline, Begun, Chances, Context, Ended, Failed, Happening, Loading, Ready, Report, Speculation
from mlxspec.tui.chat.worker import Worker


class Conversation:
    """``settings`` are reply options by name; ``store`` None saves nothing. ``tell`` gets one-line notices, ``redraw`` is called where
    messages changed other than by growing, ``give_back`` gets a text that could not be sent.
    """

    def __init__(
        self,
        worker: Worker,
        store: Store | None,
        settings: Mapping[str, Any],
        system: str | None = None,
        awake: Awakener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = worker
        self._clock = clock
        self._since = 0.0  # when the load began
        self._held: list[str] = []  # lines from before there was a face
        self.store = store
        self._keeper = Autosave(store, self.snapshot, lambda text: self.tell(text))
        self.aloud = ReadingAloud(worker, lambda text: self.tell(text), clock)
        self.settings = dict(settings)
        self.system = system
        self.speculating = True  # /spec
        self.said: list[ChatMessage] = []
        self.title: str | None = None
        self.created: float | None = None
        self.tell: Callable[[str], None] = self._held.append
        self.redraw: Callable[[], None] = lambda: None
        self.give_back: Callable[[str], None] = lambda text: None
        self.working: str | None = None  # kind of the job that runs
        self.loading: Loading | None = None
        self.ready: Ready | None = None
        self.speculation: Speculation | None = None
        self.context: Context | None = None
        self.baseline: Baseline | None = None
        self.prefill: Prefill | None = None
        self.done: Done | None = None  # the last one
        self.wish: tuple[str, str, dict[str, Any]] | None = None  # model, drafter and load options that were asked for last
        self._job: int | None = None  # of the reply that is awaited
        self._before: list[ChatMessage] = []  # what to go back to where it says nothing
        self._sent: str | None = None  # and what the user had typed
        self._heard = False
        self._looked: tuple[int, ChatMessage, int] | None = None  # a job that looks at a round of a reply
        self._awake = awake or Asleep()

    # ---- Model ---------------------------------------------------------------------------------------------------------------------------

    def load(self, model: str, drafter: str | None = None, **options: Any) -> None:
        """Load a model (and measure its plain speed when there is time). ``options`` are added to those of before."""
        model = lasting(model)  # it is saved, and may be read in another folder
        drafter = drafter and lasting_drafter(drafter)
        old = self.wish or ("", "auto", {})
        kept = old[1] if old[1] in ("none", "lookup") else "auto"  # a trained drafter fits one model alone
        options = {**old[2], **options}
        self.worker.load(model, drafter or kept, **options)
        if self.wish is not None:
            options["yes"] = old[2].get("yes", False)  # said for one download only
        self.wish = (model, drafter or kept, options)

    def switch_drafter(self, drafter: str) -> None:
        drafter = lasting_drafter(drafter)
        if self.wish is not None:
            self.wish = (self.wish[0], drafter, self.wish[2])
        self.worker.switch_drafter(drafter)

    # ---- What the user does --------------------------------------------------------------------------------------------------------------

    @property
    def answering(self) -> bool:
        """Whether a reply runs or is awaited."""
        return self._job is not None

    @property
    def stoppable(self) -> bool:
        """Whether ``stop`` would end something."""
        return self.answering or self.aloud.hearing is not None or self.working == "compare"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as the model gets it."""
        return [{"role": one.role, "content": one.text} for one in self.said]

    @property
    def last_reply(self) -> ChatMessage | None:
        return next((one for one in reversed(self.said) if one.role == "assistant"), None)

    @property
    def last_asked(self) -> int:
        """The place of the user's last message, -1 where there is none."""
        return next((number for number in reversed(range(len(self.said))) if self.said[number].role == "user"), -1)

    @property
    def saved(self) -> Store:
        """Where conversations are kept. Raises UsageError where none is."""
        return self._keeper.needed

    @property
    def session_id(self) -> str | None:
        return self._keeper.id

    def send(self, text: str) -> None:
        """Say something; the reply comes by ``feed``."""
        self._idle()
        if not text.strip():
            raise UsageError("The message is empty: give some text.")
        self._begin(text)
        self.said.append(ChatMessage("user", text))
        self._keeper.record.user(text)
        self._ask()

    def regenerate(self, at: int | None = None) -> None:
        """Another reply, to the last message or in place of the reply ``at``. A seed of the settings is not used again."""
        self._idle()
        at = len(self.said) if at is None else at + 1
        while at and self.said[at - 1].role == "assistant":
            at -= 1
        if not at:
            raise UsageError("There is no message to reply to: send one.")
        self._begin()
        self._cut(at)
        self._ask(seed=None)

    def proceed(self) -> None:
        """Go on with the last reply where it stopped."""
        self._idle()
        if not self.said or self.said[-1].role != "assistant":
            raise UsageError("There is no reply to go on with: send a message.")
        self._begin()
        last = self.said[-1]
        self.said[-1] = replace(last, finish=None, about={}, pieces=list(last.pieces), chances=dict(last.chances))
        self._ask(proceed=True)

    def edit(self, at: int, text: str) -> None:
        """Replace the user's message ``at``, drop what came after it, and answer it."""
        self._idle()
        if not 0 <= at < len(self.said) or self.said[at].role != "user":
            raise UsageError(f"Message {at + 1} is none of yours: choose one that is.")
        if not text.strip():
            raise UsageError("The message is empty: give some text, or /undo.")
        self._begin(text)
        self._cut(at)
        self.said.append(ChatMessage("user", text))
        self._keeper.record.user(text)
        self.redraw()
        self._ask()

    def cut(self, at: int) -> None:
        """Drop message ``at`` and what comes after it."""
        self._idle()
        if not 0 <= at < len(self.said):
            raise UsageError("There is nothing to take back.")
        self._cut(at)

    def undo(self) -> str:
        """Drop the last user's message and what came after it; its text."""
        at = self.last_asked
        text = self.said[at].text if at >= 0 else ""
        self.cut(at)
        return text

    def speak(self, at: int | None = None, voice: str | None = None, mirror: bool = False) -> None:
        """Say message ``at`` aloud, or the last reply; ``voice``: another one than before; ``mirror``: by the approximate rule."""
        self._idle()
        self.aloud.say(self.last_reply if at is None else self.said[at], voice, mirror)

    def look(self, said: ChatMessage, number: int) -> None:
        """Find out how likely the model held the drafts of a round of a reply; the answer goes into ``said.chances``."""
        job, before, proposal = said.round(number)
        self._looked = (self.worker.chances(job, before, proposal), said, number)

    def stop(self) -> bool:
        """End the reply with what it has, or the speech; whether there was a reply."""
        self.worker.cancel()
        return self.answering

    def clear(self) -> None:
        """Begin a new conversation."""
        self._idle()
        self._keeper.leave()
        self.said, self.title, self.created, self.context, self.done = [], None, None, None, None
        self.redraw()

    def compare(self) -> None:
        """Answer the last user's message twice; Lane and Compared come by ``feed``."""
        self._idle()
        at = self.last_asked
        if at < 0:
            raise UsageError("There is no message to compare replies to: send one.")
        self.worker.compare(self.messages[: at + 1], system=self.system, **self._options())

    # ---- Settings ------------------------------------------------------------------------------------------------------------------------

    def change(self, settings: Mapping[str, Any]) -> None:
        """Other reply options, from the next reply on."""
        self.settings = dict(settings)
        self._keeper.change(settings=stored(self.settings))

    def change_system(self, text: str | None) -> None:
        """Another system prompt, or none."""
        self.system = text
        self._keeper.change(system=text)

    def rename(self, title: str) -> None:
        """Name the conversation."""
        self.title = title
        self._keeper.change(title=title)

    # ---- Sessions ------------------------------------------------------------------------------------------------------------------------

    def resume(self, word: str) -> Session:
        """Go on with a saved conversation, with its system prompt and parameters; the model stays, unless the caller loads that of the session."""
        self._idle()
        session = self._keeper.open(word)
        self.said = [ChatMessage(turn.role, turn.text, turn.finish, dict(turn.about)) for turn in session.turns]
        self.title, self.system, self.created = session.title, session.system, session.created
        try:
            self.settings = restored(session.settings)
        except UsageError as error:
            self.tell(f"The session's parameters are not used: {error}")
        self.context = self.done = None
        self.redraw()
        return session

    def snapshot(self) -> Session:
        """The conversation as it would be saved."""
        model, drafter = self._named()
        if self.created is None:
            self.created = self.store.now() if self.store is not None else time.time()
        name, turns = self.session_id or "unsaved", tuple(one.turn() for one in self.said)
        return Session(name, self.created, self.title, model, drafter, self.system, stored(self.settings), turns)

    def leave(self) -> bool:
        """End everything; whether the thread is gone (if not, the process leaves without it). What is unsaved is told."""
        gone = self.worker.quit()
        self.feed()
        if self._job is not None:
            self._ended()
        self._keeper.leave()
        self._awake.off()
        return gone

    # ---- What the engine does ------------------------------------------------------------------------------------------------------------

    def feed(self) -> list[Report]:
        """Take in what has happened since the last time, save it, and give it back for the screen.

        The first time starts the thread: so loading, with its seconds of imports, does not hold up the first picture.
        """
        self.worker.start()
        while self._held and self.tell != self._held.append:
            self.tell(self._held.pop(0))
        reports = self.worker.drain()
        for report in reports:
            self._take(report.job, report.event)
            self.aloud.take(report.job, report.event)
        if self.loading is not None and self.loading.seconds:
            self.loading = replace(self.loading, share=min(0.99, (self._clock() - self._since) / self.loading.seconds))
        self._keeper.tick()
        return reports

    def _take(self, job: int, event: Happening) -> None:
        if isinstance(event, Text):
            self._grow(job, event)
        elif isinstance(event, Begun):
            self.working = event.kind
            if event.kind in FIRST:
                self._since = self._clock()
            if event.kind in TALK:
                self._awake.on()
        elif isinstance(event, Prefill):
            self.prefill = event
        elif isinstance(event, Done):
            if job == self._job:
                self._finish(event)
        elif isinstance(event, Loading):
            self.loading = event
        elif isinstance(event, Ready):
            self._arrived(event)
        elif isinstance(event, Chances):
            if self._looked is not None and job == self._looked[0]:
                self._looked[1].chances[self._looked[2]] = event.rows
        elif isinstance(event, Failed | Notice):
            self.tell(event.text)
        elif isinstance(event, Ended):
            self.working = None
            self._awake.off()
            if event.kind in FIRST:
                self.loading = None
            if job == self._job:
                self._ended()
        elif isinstance(event, Speculation):
            self.speculation = event
        elif isinstance(event, Context):
            self.context = event
        elif isinstance(event, Baseline):
            self.baseline = event

    def _arrived(self, ready: Ready) -> None:
        fresh = self.ready is None or self.ready.model != ready.model
        self.ready, self.loading = ready, None
        self.speculation = Speculation(ready.speculation, ready.reason)
        self.context = Context(self.context.used if self.context is not None else 0, ready.context_length)
        if ready.asked is not None and self.wish is not None:
            self.wish = (*ready.asked, self.wish[2])
        model, drafter = self._named()
        self._keeper.change(model=model, drafter=drafter)
        if fresh:
            self.baseline = None
            self.worker.baseline()

    def _grow(self, job: int, event: Text) -> None:
        if job != self._job:
            return
        self.said[-1].text += event.text
        self.said[-1].pieces.append(event)
        self.said[-1].spelling = self.worker.spelling
        self._heard = self._heard or bool(event.text)
        self._keeper.record.text(event.text)

    def _finish(self, done: Done) -> None:
        last = self.said[-1]
        last.finish, self.done = done.finish_reason, done
        last.about = {"model": done.model, "drafter": done.drafter, "accept": done.accept, "seed": done.seed, "stats": done.stats}
        if again := repeated(piece.step.tokens for piece in last.pieces if piece.step is not None):
            last.about["repeated"] = again
        self._keeper.record.end(done.finish_reason, last.about)

    def _ended(self) -> None:
        sent, self._job, self._sent = self._sent, None, None
        self.prefill = None
        last = self.said[-1]
        if not self._heard and last.finish in (None, "interrupted"):  # failed, or stopped before the first word
            self.said = self._before
            self._keeper.record.rewrite(self.snapshot())
            self.redraw()
            if sent is not None:
                self.give_back(sent)
        elif last.finish is None:
            last.finish = "interrupted"
            self._keeper.record.end("interrupted", {})
        elif last.finish != "interrupted":
            self.aloud.ended(last)
        self._before = []

    # ---- Inside --------------------------------------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        if self.answering:
            raise UsageError("A reply is coming: stop it first (Esc, or Ctrl-C in line mode).")

    def _begin(self, sent: str | None = None) -> None:
        """Remember where to go back to if the reply cannot be had."""
        self._before, self._sent, self._heard = list(self.said), sent, False

    def _ask(self, proceed: bool = False, **other: Any) -> None:
        messages = self.messages
        if not proceed:
            self.said.append(ChatMessage("assistant", ""))
            self.redraw()
        self._keeper.record.reply(more=proceed)
        self._job = self.worker.reply(messages, system=self.system, proceed=proceed, **{**self._options(), **other})
        self.said[-1].runs += ((self._job, len(self.said[-1].pieces)),)

    def _options(self) -> dict[str, Any]:
        return self.settings if self.speculating else {**self.settings, "draft_tokens": 0}

    def _cut(self, at: int) -> None:
        if at < len(self.said):
            del self.said[at:]
            self._keeper.record.cut(at)
            self.redraw()

    def _named(self) -> tuple[str | None, str | None]:
        """Model and drafter by the names that load them again."""
        return (self.wish[0], self.wish[1]) if self.wish is not None else (None, None)
