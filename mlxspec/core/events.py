"""What a reply is made of, for the command line, the screen, the API and the tests. Plain values; knows no model."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxspec.core.proposal import Proposal

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress through the prompt, in tokens."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Step:
    """One round of the loop. ``tokens`` are the emitted ones: the accepted rows of ``proposal`` along ``path``, then the target's own.

    The first step of a reply has no proposal: prefill gives its token. ``seconds`` has the keys draft, verify and other.
    """

    tokens: tuple[int, ...]
    proposal: Proposal | None = None
    path: tuple[int, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    drafter: str = "none"
    note: Any = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, ready to print (may be empty while bytes are held back), and the round it came from.

    The last piece may come without a step: what was held back when the reply ended.
    """

    text: str
    step: Step | None


@dataclass(frozen=True, slots=True)
class Done:
    """The whole reply. ``finish_reason`` is stop, length, stop_string or interrupted; ``stats`` has the keys of ``generate --json``."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    model: str
    drafter: str
    accept: str
    exact: bool
    seed: int
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A piece of text is about to be heard: number ``index`` of ``count``, from 0."""

    text: str
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How speech fares so far: seconds to its first sound, seconds of the speech model's work for a second of sound, drafted rows, accepted ones."""

    time_to_first_audio: float
    seconds_per_audio_second: float
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Sound that is final: float32 samples between -1 and 1, one channel."""

    samples: "np.ndarray"
    sample_rate: int
    pace: Pace


@dataclass(frozen=True, slots=True)
class Spoken:
    """All was said, or as much as could be. ``faults`` says what of it is cut short, a line each; ``stats`` has the keys of ``speak --json``."""

    text: str
    samples: int
    sample_rate: int
    voice: str
    drafter: str
    accept: str
    exact: bool
    seed: int
    faults: tuple[str, ...]
    interrupted: bool
    stats: dict[str, Any]

    @property
    def duration(self) -> float:
        """Seconds of sound."""
        return self.samples / self.sample_rate


Event = Prefill | Text | Done
SpeechEvent = Sentence | Audio | Spoken
ChatEvent = Event | Notice


def finished(events: Iterable[Any]) -> Done:
    """Let a reply run to its end."""
    *_, done = (event for event in events if isinstance(event, Done))
    return done
