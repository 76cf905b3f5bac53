"""Training text as flat rows: one row for each token of an answer, with what the target saw when it said it. Knows no network.

Hidden states stay on disk (memory-mapped); tokens and labels are small and are held in memory. One prompt in 20 is held out, by its fingerprint, so
that a text that grows keeps its held-out part.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlxspec.errors import ModelError, UsageError
from mlxspec.training.distil import Record, fingerprint, read_records

HELD_OUT = 20
LEAST = 256  # tokens of answers below which there is nothing to learn from


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a record's answer stands among the rows."""

    record: Record
    start: int
    held_out: bool

    @property
    def length(self) -> int:
        return len(self.record.tokens) - self.record.prompt

    @property
    def rows(self) -> np.ndarray:
        return np.arange(self.start, self.start + self.length)


class TrainingText:
    """Shards opened for training. Row r: ``tokens[r]`` was said, where ``hidden_at([r])`` was seen and ``ids[r]``, ``logprobs[r]`` were likeliest."""

    def __init__(self, shards: Sequence[Path], limit: int | None = None) -> None:
        """Reads shards in order until there are ``limit`` tokens of answers."""
        self.hidden: list[np.ndarray] = []
        self.bounds = [0]
        self.answers: list[Answer] = []
        ids, logprobs, tokens = [], [], []
        digest = hashlib.sha256()
        for shard in shards:
            if limit is not None and self.bounds[-1] >= limit:
                break
            records = read_records(shard)
            try:
                hidden, near, chances = (np.load(shard / f"{name}.npy", mmap_mode="r") for name in ("hidden", "ids", "logprobs"))
            except (OSError, ValueError) as error:
                raise ModelError(f"The stored text {shard} is damaged ({error}): delete that folder and those after it.") from error
            start = self.bounds[-1]
            for one in records:
                name = fingerprint(one.tokens[: one.prompt])
                self.answers.append(Answer(one, start, int(name[:8], 16) % HELD_OUT == 0))
                tokens.append(np.array(one.tokens[one.prompt :], np.int32))
                digest.update(np.array([*one.tokens, one.prompt], np.int64).tobytes())
                start = start + self.answers[-1].length
            if len(hidden) != start - self.bounds[-1] or len(near) != len(hidden):
                raise ModelError(f"The stored text {shard} is damaged ({len(hidden)} rows, {start} tokens): delete that folder and those after it.")
            self.hidden.append(hidden)
            self.bounds.append(start)
            ids.append(np.array(near))
            logprobs.append(np.array(chances))
        if self.bounds[-1] < LEAST:
            raise UsageError(f"The training text has {self.bounds[-1]} tokens of answers, too few to learn from: give at least {LEAST}.")
        if not any(one.held_out for one in self.answers) or all(one.held_out for one in self.answers):
            prompts = [one.record.tokens[: one.record.prompt] for one in self.answers]
            last = [prompt == prompts[-1] for prompt in prompts]  # no prompt stands in both parts, unless there is but one
            last = [False] * (len(last) - 1) + [True] if all(last) else last
            self.answers = [Answer(one.record, one.start, held) for one, held in zip(self.answers, last, strict=True)]
        self.tokens = np.concatenate(tokens)
        self.ids, self.logprobs = np.concatenate(ids), np.concatenate(logprobs)
        self.digest = digest.hexdigest()
        self.left = np.concatenate([np.arange(one.length, 0, -1, dtype=np.int32) for one in self.answers])  # tokens of the answer from here on
        said = self.ids == self.tokens[:, None]
        probs = np.exp(self.logprobs.astype(np.float32))
        self.chance = np.where(said.any(axis=1), np.where(said, probs, 0).sum(axis=1), probs[:, -1] / 4)  # of the token said; a guess if far down

    def __len__(self) -> int:
        return self.bounds[-1]

    @property
    def width(self) -> int:
        """Of the hidden states."""
        return int(self.hidden[0].shape[1])

    def hidden_at(self, rows: np.ndarray) -> np.ndarray:
        """(n, width) in float32."""
        found = np.empty((len(rows), self.width), np.float32)
        shard = np.searchsorted(self.bounds, rows, side="right") - 1
        for number in np.unique(shard):
            here = np.flatnonzero(shard == number)
            here = here[np.argsort(rows[here], kind="stable")]
            found[here] = self.hidden[number][rows[here] - self.bounds[number]]
        return found

    def training_answers(self) -> list[Answer]:
        return [one for one in self.answers if not one.held_out]

    def held_out(self, count: int, greedy: bool = True) -> list[Answer]:
        """Up to ``count`` answers nobody trains on, those of temperature 0 or the others; all of them where there are none of that kind."""
        held = [one for one in self.answers if one.held_out and one.length > 1]
        return ([one for one in held if (one.record.temperature == 0) == greedy] or held)[:count]

    def draft_vocabulary(self, size: int, vocab_size: int, among: np.ndarray | None = None) -> np.ndarray:
        """The ``size`` tokens (of those ``among`` which to choose) said most often in the part that is trained on, by id."""
        counts = np.zeros(vocab_size, np.int64)
        for one in self.training_answers():
            np.add.at(counts, self.tokens[one.rows], 1)
            np.add.at(counts, self.ids[one.rows, 0], 1)
        choice = np.arange(vocab_size) if among is None else np.sort(among)
        return np.sort(choice[np.argsort(-counts[choice], kind="stable")[:size]]).astype(np.int32)


def shuffled(places: np.ndarray, batch: int, seed: int, step: int) -> Iterator[np.ndarray]:
    """Batches without end, from ``step`` on; each pass over the data in an order of its own, so a step's batch follows from its number."""
    per_pass = max(1, len(places) // batch)
    while True:
        order = np.random.default_rng([seed, step // per_pass]).permutation(places)
        for i in range(step % per_pass, per_pass):
            yield order[i * batch : (i + 1) * batch]
            step += 1
