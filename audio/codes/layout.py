"""What the ids of a speech model mean: text symbols, audio codes by slot, control tokens. Knows numbers and symbols, no model, no codec and no sound.

Every id and offset is named here and nowhere else. Text becomes ids by its symbols alone, so that nothing a user writes, however much it looks like a
control token, ever becomes one.

    prompt:  prefix, the text's symbols, start        speech:  slot 0, slot 1, ..., slot 0, slot 1, ..., end

A model may tell where it is in the text: its speech then names each symbol anew, one symbol ahead of the sound. A symbol has several ids for that
(``phases``), which take turns by place: the same symbol twice in a text looks different, and the one to name next can be found.

    symbols a, b, c  ->  a0 b1 c2 start        speech:  a0, b1, codes of a, c2, codes of b, codes of c, end
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from mlxspec.errors import AudioError


@dataclass(frozen=True, slots=True)
class Span:
    """The ids of one slot's codes: ``first`` is code 0."""

    first: int
    count: int

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class Layout:
    """``slots`` has a span for each token of a frame. ``symbols`` are the pieces of text the model reads, each with its (first) id.

    ``phases``: how many ids a symbol has; 0 where speech is codes alone.
    """

    vocab_size: int
    start: int
    end: int
    slots: tuple[Span, ...]
    symbols: Mapping[str, int]
    prefix: tuple[int, ...] = ()
    mask: int | None = None  # stands for an unknown code in training
    phases: int = 0

    def __post_init__(self) -> None:
        controls = [self.start, self.end, *([] if self.mask is None else [self.mask])]
        texts = [first + phase for first in self.symbols.values() for phase in range(max(1, self.phases))]
        audio = sorted((span.first, span.count) for span in self.slots)
        if not audio or any(count < 1 for _, count in audio):
            raise AudioError("The layout has no audio codes: a speech model has at least one slot with at least one code.")
        for (first, count), (following, _) in pairwise(audio):
            if following < first + count:
                raise AudioError(f"The layout's slots overlap at id {following}: each slot has ids of its own.")
        taken: set[int] = set()
        for name, ids in (("control tokens", controls), ("text symbols", texts), ("audio codes", [i for span in self.slots for i in span.ids])):
            outside = [i for i in ids if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < self.vocab_size]
            twice = taken.intersection(ids) or {i for i in ids if ids.count(i) > 1} if name != "audio codes" else taken.intersection(ids)
            if outside or twice:
                what = f"id {outside[0]!r} outside 0 to {self.vocab_size - 1}" if outside else f"id {min(twice)} for two things"
                raise AudioError(f"The layout uses {what}, among its {name}: it belongs to another model.")
            taken.update(ids)
        if self.phases and len(self.slots) > 1:
            raise AudioError("The layout names symbols in speech and has more than one slot: it belongs to another model.")
        unknown = [i for i in self.prefix if not 0 <= i < self.vocab_size]
        if unknown:
            raise AudioError(f"The layout's prefix has id {unknown[0]}, outside 0 to {self.vocab_size - 1}: it belongs to another model.")

    # ---- Text ------------------------------------------------------------------------------------------------------------------------

    def prompt(self, symbols: Sequence[str]) -> list[int]:
        """The ids that ask the model to say some symbols. An unknown symbol is an error: the front end knows which there are."""
        return [*self.prefix, *self.text(symbols), self.start]

    def text(self, symbols: Sequence[str], phase: int = 0) -> list[int]:
        """The ids of symbols; ``phase`` is the first one's."""
        missing = [symbol for symbol in symbols if symbol not in self.symbols]
        if missing:
            raise AudioError(f"The voice has no symbol {missing[0]!r}: its text front end is another one's.")
        turns = max(1, self.phases)
        return [self.symbols[symbol] + (phase + place) % turns for place, symbol in enumerate(symbols)]

    @cached_property
    def names(self) -> frozenset[int]:
        """The ids by which speech names symbols."""
        return frozenset(first + phase for first in self.symbols.values() for phase in range(self.phases))

    # ---- Speech ----------------------------------------------------------------------------------------------------------------------

    @property
    def tokens_per_frame(self) -> int:
        return len(self.slots)

    @property
    def codes(self) -> tuple[int, ...]:
        """How many codes each slot has: the codec's alphabet."""
        return tuple(span.count for span in self.slots)

    @property
    def sounds(self) -> list[int]:
        """The ids of all codes."""
        return [i for span in self.slots for i in span.ids]

    def token(self, slot: int, code: int) -> int:
        """The id of a code."""
        return self.slots[slot].first + code

    def tokens(self, frames: np.ndarray) -> list[int]:
        """Codes (frames, slots) -> ids, frame after frame."""
        ids: list[int] = (np.asarray(frames) + np.array([span.first for span in self.slots])).reshape(-1).tolist()
        return ids

    def speech(self, text: Sequence[int], tokens: Sequence[int], ends: Sequence[int]) -> list[int]:
        """The ids of a text's speech, the end left out: its codes, among them the names of the symbols. ``ends[i]``: where symbol i's codes end."""
        if not self.phases:
            return list(tokens)
        said, begin = [*text[:1]], 0
        for following, end in zip([*text[1:], None], ends, strict=True):
            said += [*([] if following is None else [following]), *tokens[begin:end]]
            begin = end
        return said

    def frames(self, tokens: Sequence[int]) -> np.ndarray:
        """Ids -> codes (frames, slots); a last frame that is not whole is left out. An id out of its slot is an error, never a shift of the rest."""
        if self.phases:
            tokens = [token for token in tokens if token not in self.names]
        whole = len(tokens) - len(tokens) % len(self.slots)
        ids = np.array(tokens[:whole], np.int64).reshape(-1, len(self.slots))
        codes = ids - np.array([span.first for span in self.slots])
        wrong = np.argwhere((codes < 0) | (codes >= np.array(self.codes)))
        if len(wrong):
            frame, slot = wrong[0]
            span = self.slots[slot]
            said = f"slot {slot} of frame {frame} takes {span.first} to {span.first + span.count - 1}"
            raise AudioError(f"The speech model said token {ids[frame, slot]} where {said}: its voice is damaged, or of another layout.")
        return codes.astype(np.int32)

    def silent(self) -> list[int]:
        """The ids that have no place in speech: all but audio codes, names and the end. Barring them leaves drafter and target the same choice."""
        spoken = {self.end, *self.names, *self.sounds}
        return [i for i in range(self.vocab_size) if i not in spoken]

    # ---- Its form in a file ----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "start": self.start,
            "end": self.end,
            "slots": [[span.first, span.count] for span in self.slots],
            "symbols": dict(self.symbols),
            "prefix": list(self.prefix),
            "mask": self.mask,
            "phases": self.phases,
        }

    @classmethod
    def from_json(cls, value: Any) -> "Layout":
        """Raises AudioError for what is no layout."""
        try:
            return cls(
                int(value["vocab_size"]),
                int(value["start"]),
                int(value["end"]),
                tuple(Span(int(first), int(count)) for first, count in value["slots"]),
                {str(symbol): int(i) for symbol, i in value["symbols"].items()},
                tuple(int(i) for i in value.get("prefix", ())),
                None if value.get("mask") is None else int(value["mask"]),
                int(value.get("phases", 0)),
            )
        except AudioError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise AudioError(f"The voice's layout cannot be read ({type(error).__name__}: {error}): fetch or train the voice again.") from error

    @classmethod
    def of(cls, symbols: Sequence[str], codes: int, phases: int = 0) -> "Layout":
        """The layout of a voice of our own: symbols first, then one slot of codes, then start, end and mask."""
        known, turns = dict.fromkeys(symbols), max(1, phases)
        text = len(known) * turns
        ids = {symbol: turns * i for i, symbol in enumerate(known)}
        return cls(text + codes + 3, text + codes, text + codes + 1, (Span(text, codes),), ids, (), text + codes + 2, phases)
