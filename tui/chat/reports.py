"""What the engine's thread tells the screen, beside the events of a reply. Plain values; knows no model and no widget.

Every job ends with exactly one ``Ended``, whatever became of it, and nothing of a job comes after that.
"""

from dataclasses import dataclass, field
from typing import Any

from mlxspec.core.events import ChatEvent, Done, Pace, Text
from mlxspec.tui.chat.loops import repeated


@dataclass(frozen=True, slots=True)
class Begun:
    """A job that had waited in the queue is being done now. ``kind``: load, drafter, reply, compare, speech, chances, count, baseline or offers."""

    kind: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is over: done, failed (a Failed came before), or cancelled."""

    kind: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a job failed, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Loading:
    """What loading is at, in one line; ``seconds``: how long it took the last time, where that is known; ``share`` (0 to 1): of that time."""

    text: str
    share: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A model with a drafter is in memory. Memory in bytes: before the old model was let go, after that, and now; None where not measured."""

    model: str
    drafter: str
    speculation: str  # on or off
    reason: str | None
    context_length: int | None
    defaults: dict[str, Any] = field(default_factory=dict)  # the model's own reply options
    seconds: float = 0.0
    memory_before: int | None = None
    memory_freed_to: int | None = None
    memory: int | None = None
    asked: tuple[str, str] | None = None  # the model and the drafter by the names that loaded them


@dataclass(frozen=True, slots=True)
class Speculation:
    """Whether drafting goes on: on, paused or off, and why. Comes when a reply begins and whenever it changes."""

    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens of the conversation that are in the context, and how many the model reads at most."""

    used: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of a text that was asked about, and how many the model reads at most."""

    tokens: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Plain decoding of this model, measured on this machine: at which context, when (seconds since 1970), and whether just now."""

    tokens_per_second: float
    context: int
    measured: float
    fresh: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """A piece of one of the two replies of a comparison; ``name`` is plain or speculative."""

    name: str
    event: Text


@dataclass(frozen=True, slots=True)
class Compared:
    """Two replies to one prompt with one seed. ``identical`` is None where the rule promises no identity.

    ``first_difference`` counts tokens from 0; ``texts`` are the two tokens there (empty: that reply ended). ``gap`` says how close the two
    were for the model (``measure``: score or edge): a small one is a tie of float rounding.
    """

    plain: Done
    speculative: Done
    identical: bool | None
    first_difference: int | None = None
    texts: tuple[str, str] = ("", "")
    gap: float | None = None
    measure: str | None = None

    @property
    def speedup(self) -> float | None:
        """Tokens per second against plain decoding on this prompt."""
        plain, fast = (done.stats["tokens_per_second"] for done in (self.plain, self.speculative))
        return fast / plain if plain else None

    @property
    def verdict(self) -> str:
        """One line: identical, and if not, where; and whether the speed-up is that of a loop."""
        again = max(repeated([self.plain.tokens]), repeated([self.speculative.tokens]))
        return self.difference + (f" · the reply repeats itself ({again} tokens), so the speed-up says nothing" if again else "")

    @property
    def difference(self) -> str:
        """Identical, and if not, where."""
        if self.identical is None:
            return f"identical: not promised under {self.speculative.accept}"
        if self.identical:
            return "identical: yes"
        one, other = (repr(text) if text else "the end" for text in self.texts)
        tie = "" if self.gap is None else f" (a gap of {self.gap:.2g} in {self.measure})"
        return f"identical: no, first difference at token {(self.first_difference or 0) + 1}: {one} plain, {other} speculative{tie}"


@dataclass(frozen=True, slots=True)
class Speech:
    """Speech as it goes: what it is at before the first sound (``about``), the sentence that is drawn, and the sound that waits to be heard."""

    about: str = ""
    voice: str = ""
    mirror: bool = False  # whether the rule is the approximate one
    sentence: str = ""
    number: int = 0  # of the sentence, from 1
    count: int = 0
    ahead: float = 0.0  # seconds
    pace: Pace | None = None  # from the first sound on


@dataclass(frozen=True, slots=True)
class Chances:
    """How likely the model held each drafted row of a round that was asked about to be reached and right."""

    rows: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A model or drafter that may be chosen. ``name`` is what /model or /draft takes; ``fits`` says why not where it is False."""

    name: str
    kind: str  # built-in, hub, folder; none, lookup, small, redrafter, auto
    fits: bool
    about: str  # size and place, or the reason why it does not fit
    current: bool = False


@dataclass(frozen=True, slots=True)
class Offers:
    """What could be loaded here, and which drafters fit the model that is loaded."""

    models: tuple[Offer, ...]
    drafters: tuple[Offer, ...]


Happening = (
    ChatEvent | Begun | Ended | Failed | Loading | Ready | Speculation | Context | Counted | Baseline | Lane | Compared | Speech | Chances | Offers
)


@dataclass(frozen=True, slots=True)
class Report:
    """Something that happened, and in which job."""

    job: int
    event: Happening
