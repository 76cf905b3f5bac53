"""The engine's thread: all MLX work of the chat is done here, one job at a time. Knows no widget, no session file and no terminal.

Jobs go in by method (each answers at once with the job's number), reports come out of ``drain``. The conversation is not kept here: a reply gets
the whole of it as messages, and the engine's own Chat finds out how much of that its caches hold already. So an edit, an undo or a switch of
models needs no job of its own, and nothing here can disagree with the screen.

Cancelling ends a reply within a round. A new model or drafter goes to the front of the queue and ends the reply that runs; a load cannot be
broken off, so one that is no longer wanted is let go when it comes. The thread is a daemon: ``quit`` waits for it a moment and no longer.
"""

import gc
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxspec import Proposal
from mlxspec.core.events import Audio, Done, Notice, Sentence, SpeechEvent, Text
from mlxspec.display import one_line
from mlxspec.errors import UsageError
from mlxspec.llm.trace import piece
from mlxspec.tui.chat.baseline import Cache, measure
from mlxspec.tui.chat.comparison import verdict
from mlxspec.tui.chat.jobs import FIRST, LOOK, SPEECH, Job, Jobs
from mlxspec.tui.chat.protocols import Chat, Engine, Load, LoadVoice, Message, Voice
from mlxspec.tui.chat.reports import Chances, Context, Counted, Lane, Loading, Offers, Ready, Report, Speculation, Speech


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be loaded."""

    model: str
    drafter: str
    options: Mapping[str, Any]

    @property
    def about(self) -> tuple[Any, ...]:
        """What it takes as long to load as the last time."""
        return ("load", self.model, self.drafter, sorted((name, value) for name, value in self.options.items() if name not in ("yes", "offline")))


class Worker:
    """Owns the engine, and a voice. ``load`` and ``load_voice`` make them; ``release`` lets memory go and tells how many bytes are in use (None:
    not known here); ``list_offers`` says what fits an engine (None: none is loaded); ``measured`` keeps what was measured; ``clock`` and ``now``
    tell the time.
    """

    def __init__(
        self,
        load: Load,
        *,
        load_voice: LoadVoice | None = None,
        release: Callable[[], int | None] | None = None,
        list_offers: Callable[[Any, Sequence[Path]], Offers] | None = None,
        measured: Cache | None = None,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._load_engine = load
        self._load_voice = load_voice
        self._release = release or release_memory
        self._list_offers = list_offers
        self._measured = measured
        self._clock, self._now = clock, now
        self._engine: Engine | None = None
        self._chat: Chat | None = None
        self._voice: tuple[str | None, Voice] | None = None  # and by which name it was asked for
        self._wish: Wish | None = None  # what is in memory, or was before a load that is under way
        self._expected: float | None = None  # seconds of the load that is under way
        self._jobs = Jobs()
        self._asked: dict[int, tuple[list[int], dict[str, Any]]] = {}  # by the number of a reply of this model: its prompt and options
        self.spelling: dict[int, str] = {}  # texts of single tokens that were drafted or said, of this model; another model has another dict

    # ---- Jobs ----------------------------------------------------------------------------------------------------------------------------

    def start(self) -> "Worker":
        """Start the thread, once. Jobs may be given before."""
        self._jobs.start()
        return self

    def load(self, model: str, drafter: str = "auto", **options: Any) -> int:
        """Load a model; ``options`` are load options (dtype, max_kv_size, kv_bits, offline, yes, force). Loading, then Ready or Failed.

        The old model is let go first, so that both never share the memory; where the new one cannot be loaded the old one is brought back.
        """
        return self._jobs.submit("load", lambda job: self._load(job, Wish(model, drafter, options)))

    def switch_drafter(self, drafter: str) -> int:
        """Keep the model and draft by another drafter. Ready, or Failed with the old drafter still there."""
        return self._jobs.submit("drafter", lambda job: self._drafter(job, drafter))

    def reply(self, messages: Sequence[Message], *, system: str | None = None, proceed: bool = False, **options: Any) -> int:
        """Answer a conversation whose last message is the user's, or ``proceed`` with a last message that is the model's.

        ``options`` are reply options. Speculation, Notice, Prefill, Text …, Done, Context; a cancelled reply has its Done too.
        """
        said = [dict(message) for message in messages]
        return self._jobs.submit("reply", lambda job: self._reply(job, said, system, proceed, options))

    def compare(self, messages: Sequence[Message], *, system: str | None = None, **options: Any) -> int:
        """Answer a conversation twice with one seed, plain and speculative. Lane …, then Compared."""
        said = [dict(message) for message in messages]
        return self._jobs.submit("compare", lambda job: self._compare(job, said, system, options))

    def speak(self, text: str, voice: str | None = None, mirror: bool = False) -> int:
        """Say a text aloud, in place of what is being said. Speech …; a reply that is asked for meanwhile ends it."""
        return self._jobs.submit(SPEECH, lambda job: self._speak(job, text, voice, mirror))

    def chances(self, reply: int, said: Sequence[int], proposal: Proposal) -> int:
        """How likely the model held the rows of a proposal of a reply, whose tokens before that were ``said``. Chances, unless its model is gone."""
        return self._jobs.submit(LOOK, lambda job: self._chances(job, reply, said, proposal))

    def count(self, text: str) -> int:
        """How many tokens a text has. Counted."""
        return self._jobs.submit("count", lambda job: self._count(text, job))

    def baseline(self, again: bool = False) -> int:
        """Measure plain decoding, or take what was measured before (unless ``again``). Waits for a pause in the work. Baseline."""
        return self._jobs.submit("baseline", lambda job: self._baseline(job, again))

    def offers(self, folders: Sequence[Path] = ()) -> int:
        """What could be loaded here (built-in, the hub's cache, ``folders``), and which drafters fit. Offers."""
        return self._jobs.submit("offers", lambda job: self._offers(job, folders))

    def cancel(self) -> None:
        """End the reply, comparison or speech that runs, with what it has, and forget those that wait."""
        self._jobs.cancel()

    # ---- What comes of them --------------------------------------------------------------------------------------------------------------

    def drain(self) -> list[Report]:
        """What has happened since the last time, in order. Never waits."""
        return self._jobs.drain()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something to drain; False where nothing came in time."""
        return self._jobs.wait(timeout)

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits, other than those for idle times."""
        return self._jobs.busy

    def quit(self, timeout: float = 0.25) -> bool:
        """End everything. True where the thread is gone; otherwise the process leaves without it (cli_chat.leave)."""
        return self._jobs.quit(timeout)

    # ---- The work ------------------------------------------------------------------------------------------------------------------------

    def _load(self, job: Job, wish: Wish) -> None:
        before, failure = self._release(), None
        freed = self._let_go()
        try:
            self._arrived(job, wish, before, freed)
            return
        except Exception as error:
            failure = error.with_traceback(None)  # it would hold what was loaded so far
        if job.cancel.is_set():  # another one is wanted by now, and goes back itself where it must
            return
        if self._wish is not None:
            freed = self._let_go()
            self._jobs.report(job, Loading(f"Going back to {self._wish.model}."))
            self._arrived(job, self._wish, before, freed)
        raise failure

    def _arrived(self, job: Job, wish: Wish, before: int | None, freed: int | None) -> None:
        """Load a model and take it, unless another one is wanted by then."""
        started = self._clock()
        engine = self._made(job, wish)
        if job.cancel.is_set():
            del engine
            self._let_go()
            return
        seconds = self._clock() - started
        if self._measured is not None:
            self._measured.save(*wish.about, seconds=seconds)
        self._engine, self._chat, self._wish = engine, None, wish
        self.spelling, self._asked = {}, {}
        self._ready(job, engine, seconds, before, freed, self._release())

    def _made(self, job: Job, wish: Wish) -> Engine:
        known = self._measured.load(*wish.about) if self._measured is not None else {}
        self._expected = known.get("seconds")
        self._jobs.report(job, Loading(f"Loading {one_line(wish.model)}.", seconds=self._expected))
        return self._load_engine(wish.model, wish.drafter, wish.options, self._say)

    def _say(self, text: str) -> None:
        """A line of the engine, in whichever job it comes: it measures the cost of a round with the first reply, not at load."""
        job = self._jobs.running
        if job is not None:
            line, during = one_line(text), job.kind
            event = Loading(line, seconds=self._expected) if during in FIRST else Speech(line) if during == SPEECH else Notice(line)
            self._jobs.report(job, event)

    def _ready(self, job: Job, engine: Engine, seconds: float, before: int | None = None, freed: int | None = None, now: int | None = None) -> None:
        ready = Ready(
            engine.model_name,
            engine.drafter_name,
            engine.speculation,
            engine.reason,
            engine.target.context_length,
            dict(engine.defaults),
            seconds,
            before,
            freed,
            now,
            (self._wish.model, self._wish.drafter) if self._wish is not None else None,
        )
        self._jobs.report(job, ready)

    def _let_go(self) -> int | None:
        """Free the engine's memory; bytes in use after that."""
        self._engine = self._chat = self._voice = None
        return self._release()

    def _drafter(self, job: Job, drafter: str) -> None:
        started, self._expected = self._clock(), None
        engine = self._needed().with_drafter(drafter)
        assert self._wish is not None
        self._engine, self._chat = engine, None
        self._wish = Wish(self._wish.model, drafter, self._wish.options)
        self._ready(job, engine, self._clock() - started)

    def _reply(self, job: Job, messages: list[Message], system: str | None, proceed: bool, options: dict[str, Any]) -> None:
        engine = self._needed()
        if self._chat is None:
            self._chat = engine.chat(system=system)
        chat = self._chat
        if chat.system != system or messages[: len(chat.messages) - 1] != chat.messages[:-1]:
            chat.dropped = 0  # another history: what had to be left out of the old one says nothing
        chat.system, chat.messages = system, messages
        events = (chat.proceed if proceed else chat.regenerate)(cancel=job.cancel, **options)
        state = self._speculation(engine, options)
        self._jobs.report(job, Speculation(*state))
        for event in events:
            self._asked[job.number] = (chat.prompt, options)
            self._jobs.report(job, self._plain(engine, event) if isinstance(event, Text) else event)
            if isinstance(event, Text) and (now := self._speculation(engine, options)) != state:
                state = now
                self._jobs.report(job, Speculation(*state))
        self._jobs.report(job, Context(*chat.context_used()))

    def _plain(self, engine: Engine, event: Text) -> Text:
        """An event without arrays (they stay in this thread), its tokens spelt."""
        step = event.step
        if step is None:
            return event
        for token in (*step.tokens, *(step.proposal.tokens if step.proposal is not None else ())):
            if token not in self.spelling:
                self.spelling[token] = piece(engine.tokenizer, token)
        if step.proposal is None or step.proposal.probs is None:
            return event
        return Text(event.text, replace(step, proposal=without_arrays(step.proposal)))

    def _speculation(self, engine: Engine, options: Mapping[str, Any]) -> tuple[str, str | None]:
        if engine.speculation == "on" and options.get("draft_tokens") == 0:
            return "off", "0 draft tokens were asked for"
        return engine.report() if options.get("draft_tokens") is None else (engine.speculation, engine.reason)

    def _compare(self, job: Job, messages: list[Message], system: str | None, options: dict[str, Any]) -> None:
        engine = self._needed()
        if engine.speculation == "off":
            raise UsageError(f"Speculation is off ({engine.reason}), so there is nothing to compare: choose a drafter (/draft).")
        before = [{"role": "system", "content": system}] if system is not None else []
        tokens = engine.prompt_tokens([*before, *messages])
        seed = options.pop("seed", None)
        seed = secrets.randbits(32) if seed is None else seed
        drafts = options.pop("draft_tokens", None) or None
        replies = []
        for name, number in (("plain", 0), ("speculative", drafts)):
            for event in engine.stream(tokens, cancel=job.cancel, reuse=True, **{**options, "seed": seed, "draft_tokens": number}):
                if isinstance(event, Text):
                    self._jobs.report(job, Lane(name, self._plain(engine, event)))
                elif isinstance(event, Done):
                    replies.append(event)
            if job.cancel.is_set():
                return
        self._jobs.report(job, verdict(engine, tokens, replies[0], replies[1], options))

    def _speak(self, job: Job, text: str, name: str | None, mirror: bool) -> None:
        if self._voice is None or self._voice[0] != name:
            if self._load_voice is None:
                raise UsageError("Nothing is known here of voices: mlxspec speak has them.")
            self._voice = None
            self._jobs.report(job, Speech(f"Loading the voice{f' {one_line(name)}' if name else ''}."))
            self._voice = (name, self._load_voice(name, self._say))
        if job.cancel.is_set():
            return
        voice = self._voice[1]
        now = Speech("", voice.files.name, mirror)

        def told(event: SpeechEvent, ahead: float) -> None:
            nonlocal now
            now = replace(now, ahead=ahead)
            if isinstance(event, Sentence):
                now = replace(now, sentence=one_line(event.text), number=event.index + 1, count=event.count)
            elif isinstance(event, Audio):
                now = replace(now, ahead=ahead + len(event.samples) / event.sample_rate, pace=event.pace)
            self._jobs.report(job, now)

        spoken = voice.play(text, cancel=job.cancel, on=told, accept="mirror" if mirror else "coupled")
        for fault in spoken.faults:
            self._jobs.report(job, Notice(one_line(fault)))

    def _chances(self, job: Job, reply: int, said: Sequence[int], proposal: Proposal) -> None:
        if reply not in self._asked:  # of a model that is gone
            return
        prompt, options = self._asked[reply]
        found = self._needed().chances([*prompt, *said], proposal, cancel=job.cancel, **options)
        if found is not None:
            self._jobs.report(job, Chances(found))

    def _count(self, text: str, job: Job) -> None:
        engine = self._needed()
        self._jobs.report(job, Counted(len(engine.tokenizer.encode(text, add_special_tokens=False)), engine.target.context_length))

    def _baseline(self, job: Job, again: bool) -> None:
        found = measure(self._needed(), self._measured, job.cancel, self._now, again)
        if found is not None:
            self._jobs.report(job, found)

    def _offers(self, job: Job, folders: Sequence[Path]) -> None:
        if self._list_offers is None:
            raise UsageError("Nothing is known here of what could be loaded: give /model a name.")
        self._jobs.report(job, self._list_offers(self._engine, folders))

    def _needed(self) -> Engine:
        if self._engine is None:
            raise UsageError("No model is loaded: choose one (/model NAME).")
        return self._engine


def without_arrays(proposal: Proposal) -> Proposal:
    """A sampled chain with its distributions replaced by the chance of each row to be reached and right, as the drafter holds it."""
    values: list[float] = []
    for token, probs, parent in zip(proposal.tokens, proposal.probs or (), proposal.parents, strict=True):
        values.append(float(probs[token]) * (values[parent] if parent >= 0 else 1.0))
    return replace(proposal, probs=None, values=tuple(values))


def release_memory() -> int | None:
    """Let go of what nothing refers to any more; bytes that MLX's arrays still take."""
    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    return int(mx.get_active_memory())
