"""Traces: one JSON line a round, written as the reply goes, so that a killed run leaves a readable file. Knows no terminal.

The first line tells what ran, each further one is a round (round 0 is the token that prefill gives), the last one holds the stats.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxspec.core.events import Done, Step, Text
from mlxspec.core.proposal import Proposal
from mlxspec.display import one_line
from mlxspec.errors import MlxspecError, UsageError

PARTS = ("draft", "verify", "other")  # of a round's seconds


def piece(tokenizer: Any, token: int) -> str:
    """The text of one token for a listing. Bytes that are no whole character show as U+FFFD."""
    text = str(tokenizer.decode([token]))
    raw = tokenizer.convert_ids_to_tokens(token)
    return " " + text if isinstance(raw, str) and raw.startswith("▁") and not text.startswith(" ") else text


class TraceWriter:
    """Writes a trace. Opening it fails at once where it cannot be written; a later failure is kept in ``failure`` and ends the trace alone."""

    def __init__(self, path: Path, force: bool = False) -> None:
        self.path = path
        self.failure: MlxspecError | None = None
        self._last: Step | None = None
        self._rounds = 0
        self._tail = ""
        self._begun = False
        self._new = not path.exists()
        if not (self._new or force or _ours(path)):
            raise UsageError(f"--trace {path} is there and is no trace of ours: give another name, or --force to replace it.")
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8")
        except OSError as error:
            raise MlxspecError(f"The trace {path} cannot be written ({error.strerror}): give --trace a file in a folder of yours.") from None

    def begin(self, header: dict[str, Any]) -> None:
        """What runs. Replaces what an older trace left in the file; does nothing the second time."""
        if self._begun:
            return
        self._begun = True
        with self._guarded():
            if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate(0)
        self._line(header)

    def add(self, event: Text, tokenizer: Any) -> None:
        """One round. Text of a round that is written already (bytes that were held back) goes into the last line."""
        step = event.step
        if step is None or step is self._last:
            self._tail += event.text
            return
        self._last = step
        proposal = None
        if step.proposal is not None:
            texts = [piece(tokenizer, token) for token in step.proposal.tokens]
            proposal = {"tokens": list(step.proposal.tokens), "parents": list(step.proposal.parents), "texts": texts}
        self._line(
            {
                "round": self._rounds,
                "tokens": list(step.tokens),
                "texts": [piece(tokenizer, token) for token in step.tokens],
                "text": event.text,
                "proposal": proposal,
                "path": list(step.path),
                "accepted": len(step.path),
                "drafter": step.drafter,
                "seconds": {part: round(step.seconds.get(part, 0.0), 6) for part in PARTS},
            }
        )
        self._rounds += 1

    def end(self, done: Done) -> None:
        """The last line."""
        self._line({"finish_reason": done.finish_reason, "tail": self._tail, "seed": done.seed, "stats": done.stats})

    def close(self) -> None:
        """Closes the file. One that we made and never wrote to is taken away again."""
        with self._guarded():
            self._file.close()
        if self._new and not self._begun:
            self.path.unlink(missing_ok=True)

    def _line(self, value: dict[str, Any]) -> None:
        if self.failure is None:
            with self._guarded():
                self._file.write(json.dumps(value) + "\n")
                self._file.flush()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = self.failure or MlxspecError(
                f"The trace {self.path} is not complete ({error.strerror}): give --trace a file on another disk."
            )


def _ours(path: Path) -> bool:
    """Whether a file may be replaced by a trace: an older trace, an empty file, or no plain file at all."""
    try:
        if not path.is_file():
            return True
        with path.open("rb") as file:
            return file.read(12) in (b'{"mlxspec": ', b"")
    except OSError:
        return True  # opening it says what is wrong


@dataclass(frozen=True, slots=True)
class Round:
    """One round as read from a trace."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    rows: tuple[str, ...]  # texts of the proposal's rows
    parents: tuple[int, ...]
    path: tuple[int, ...]
    drafter: str
    seconds: dict[str, float]

    def children(self, row: int) -> list[int]:
        """The rows below ``row`` (-1: below the pending token)."""
        return [child for child, parent in enumerate(self.parents) if parent == row]

    @property
    def depth(self) -> int:
        """How many tokens ahead the proposal reaches."""
        return max(Proposal((), self.parents).depths, default=0)

    @property
    def own(self) -> tuple[str, ...]:
        """What the target said itself, after the accepted rows: mostly one token, none where the reply was cut."""
        return self.texts[len(self.path) :]


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace. ``end`` is None where the run was killed."""

    header: dict[str, Any]
    rounds: tuple[Round, ...]
    end: dict[str, Any] | None


def read(path: Path) -> Trace:
    """A trace from its file. A line cut short at the very end (a killed run) is left out; anything else odd is an error with its line number."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise MlxspecError(f"The trace {path} cannot be read ({error.strerror}): give a file that generate --trace wrote.") from None
    torn = lines.pop()
    if torn and not lines:
        lines = [torn]  # says below what is wrong with it
    values = [_value(path, number, line) for number, line in enumerate(lines, 1)]
    if not values or "mlxspec" not in values[0]:
        raise MlxspecError(f"{path}, line 1, does not begin a trace: give a file that generate --trace wrote.")
    end = values.pop() if len(values) > 1 and "stats" in values[-1] else None
    if end is not None and not isinstance(end["stats"], dict):
        raise _damaged(path, len(lines), "stats is no object")
    return Trace(values[0], tuple(_round(path, number, value) for number, value in enumerate(values[1:], 2)), end)


def _value(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number, one_line(str(error))) from None
    if not isinstance(value, dict):
        raise _damaged(path, number, "no JSON object")
    return value


def _round(path: Path, number: int, value: dict[str, Any]) -> Round:
    try:
        proposal = value["proposal"] or {"texts": [], "parents": []}
        tokens, kept = value["tokens"], value["path"]
        result = Round(
            tokens=tuple(map(int, tokens)),
            texts=tuple(map(str, value["texts"])),
            rows=tuple(map(str, proposal["texts"])),
            parents=tuple(map(int, proposal["parents"])),
            path=tuple(map(int, kept)),
            drafter=str(value["drafter"]),
            seconds={part: float(value["seconds"][part]) for part in PARTS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, number, f"no round: {type(error).__name__} {error}") from None
    sound = len(result.rows) == len(result.parents) and len(result.texts) == len(result.tokens) >= len(result.path)
    sound = sound and all(-1 <= parent < row for row, parent in enumerate(result.parents))
    above = -1
    for row in result.path:  # each kept row hangs from the one before it
        if not sound or not 0 <= row < len(result.rows) or result.parents[row] != above:
            raise _damaged(path, number, "the path does not fit the proposal")
        above = row
    if not sound:
        raise _damaged(path, number, "its lists do not fit each other")
    return result


def _damaged(path: Path, number: int, what: str) -> MlxspecError:
    return MlxspecError(f"{path}, line {number}, is damaged ({what}): give a file that generate --trace wrote.")


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """What the rounds add up to. ``by_depth[d]``: rounds that drafted d + 1 tokens ahead, rounds that got so far, rounds that kept that token."""
    rounds = [step for step in rounds[1:] if step.tokens]
    deepest = max((step.depth for step in rounds), default=0)
    by_depth = [
        {
            "drafted": sum(step.depth > depth for step in rounds),
            "reached": sum(step.depth > depth and len(step.path) >= depth for step in rounds),
            "accepted": sum(len(step.path) > depth for step in rounds),
        }
        for depth in range(deepest)
    ]
    emitted = sum(len(step.tokens) for step in rounds)
    return {
        "rounds": len(rounds),
        "drafted": sum(len(step.rows) for step in rounds),
        "accepted": sum(len(step.path) for step in rounds),
        "emitted": emitted,
        "tokens_per_round": emitted / len(rounds) if rounds else None,
        "by_depth": by_depth,
        "seconds": {part: sum(step.seconds[part] for step in rounds) for part in PARTS},
    }
