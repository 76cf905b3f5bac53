"""Text for distillation, written by the target itself: it invents requests, answers them, and what it saw at every token is kept beside the text.

Knows no drafter. The text lies in numbered shards in the cache, one folder each, that appear whole (by a rename) or not at all; shard k depends on
the seed alone, so a run that was broken off and resumed writes what an unbroken one would have.
"""

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np

from mlxspec.core.target import Target
from mlxspec.errors import ModelError
from mlxspec.paths import cache_dir, private
from mlxspec.training.openers import opener, passage_request, with_passages
from mlxspec.training.writer import Job, Writer, Written

SENTINEL = "\u2402request\u2403"
WARM = (0.6, 0.8, 0.8, 1.0)  # temperatures of the answers that are not greedy
REQUEST_LIMIT, QUESTION_LIMIT, ANSWER_LIMIT, PASSAGE_LIMIT, PROMPT_LIMIT = 80, 40, 192, 240, 1200
WASTE = 1.6  # tokens the target reads or writes for each that is kept
LOOP = 48  # tokens of a loop that are kept
LONG_EVERY = 4  # one shard in four asks about passages


@dataclass(frozen=True, slots=True)
class Record:
    """A prompt with its answer. ``tokens`` holds both; the answer starts at ``prompt``."""

    tokens: list[int]
    prompt: int
    temperature: float
    seed: int
    kind: str


@dataclass(frozen=True, slots=True)
class Template:
    """What a chat template puts before and after a user's message."""

    prefix: str
    suffix: str

    @classmethod
    def of(cls, tokenizer: Any) -> "Template":
        """Split the rendered template around a message; a model without one gets none."""
        if tokenizer.chat_template is None:
            return cls("", "")
        text = tokenizer.apply_chat_template([{"role": "user", "content": SENTINEL}], add_generation_prompt=True, tokenize=False)
        if text.count(SENTINEL) != 1:
            raise ModelError("The model's chat template does not show a user's message as it is: give training text with --data.")
        prefix, _, suffix = text.partition(SENTINEL)
        return cls(prefix, suffix)


class TextStore:
    """The shards of one model's text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, digest: str, seed: int) -> "TextStore":
        """The store in the cache for a model's weights and a seed."""
        return cls(cache_dir() / "text" / f"{hashlib.sha256(digest.encode()).hexdigest()[:16]}-{seed}")

    def shards(self) -> list[Path]:
        """Whole shards, in order, without gaps."""
        found: list[Path] = []
        while (path := self.folder / f"{len(found):05d}").is_dir():
            found.append(path)
        return found

    def add(self, number: int, records: Sequence[Record], features: dict[str, np.ndarray]) -> Path:
        """Write a shard."""
        place = self.folder / f"{number:05d}"
        scratch = place.with_suffix(".part")
        private(self.folder)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            with (scratch / "text.jsonl").open("w", encoding="utf-8") as file:
                for one in records:
                    file.write(json.dumps({name: getattr(one, name) for name in Record.__slots__}) + "\n")
            for name, array in features.items():
                np.save(scratch / f"{name}.npy", array)
            os.replace(scratch, place)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return place


def read_records(shard: Path) -> list[Record]:
    """The text of a shard."""
    with (shard / "text.jsonl").open(encoding="utf-8") as file:
        return [Record(**json.loads(line)) for line in file]


def answer_tokens(records: Sequence[Record]) -> int:
    return sum(len(one.tokens) - one.prompt for one in records)


class TextWriter:
    """Lets a model write shards of text until there is enough."""

    def __init__(self, model: nn.Module, tokenizer: Any, store: TextStore, *, seed: int = 0, batch: int = 64) -> None:
        self.target = Target(model)
        self.tokenizer = tokenizer
        self.store = store
        self.vocab_size = 1 + max(tokenizer.get_vocab().values())
        self.seed = seed
        self.batch = batch
        self.template = Template.of(tokenizer)
        self.prefix = list(tokenizer.encode(self.template.prefix, add_special_tokens=False))[:-1]
        self.special = frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.eos_token_ids)
        self.tokens = 0
        self.speed = 0.0  # tokens of any kind a second

    def write(self, goal: int, say: Callable[[str], None]) -> None:
        """Write until the store has ``goal`` tokens of answers."""
        self.tokens = sum(answer_tokens(read_records(shard)) for shard in self.store.shards())
        if self.tokens < goal:
            say(f"The target writes {goal - self.tokens} tokens of answers: about {(goal - self.tokens) * WASTE / self.pace() / 60:.0f} minutes.")
        while self.tokens < goal:
            started, before = time.perf_counter(), self.tokens
            records = self.shard(len(self.store.shards()))
            if not records:
                raise ModelError("The model wrote nothing that could be learnt from (empty or repeated text only): give training text with --data.")
            self.tokens += answer_tokens(records)
            pace = (self.tokens - before) / (time.perf_counter() - started)
            left = max(0.0, goal - self.tokens) / pace / 60
            say(f"{self.tokens} of {goal} tokens of answers, {pace:.0f}/s kept, {self.speed:.0f}/s written, {left:.0f} min left")

    def pace(self) -> float:
        """Tokens a second of a full batch, measured on one round."""
        writer = Writer(self.target, (), self.batch, 0, self.vocab_size)
        times = [time.perf_counter() for _ in writer.run([Job([0] * 9, (1.0,), 3)] * self.batch, lambda _: ())]
        return self.batch / (times[-1] - times[-1 - self.batch])

    def shard(self, number: int) -> list[Record]:
        """Write and store one shard."""
        rng = random.Random(f"{self.seed} {number}")
        long = number % LONG_EVERY == LONG_EVERY - 1
        batch = max(2, self.batch // 2) if long else self.batch
        writer = Writer(self.target, self.tokenizer.eos_token_ids, batch, rng.getrandbits(32), self.vocab_size, self.prefix)
        started, count = time.perf_counter(), 0
        finished: list[Written] = []
        asked: set[str] = set()

        def answer(text: str, limit: int = ANSWER_LIMIT, temperatures: tuple[float, ...] = ()) -> list[Job]:
            prompt = self._prompt(text)
            name = fingerprint(prompt)
            if len(text.strip()) < 3 or name in asked or len(prompt) > PROMPT_LIMIT:
                return []
            asked.add(name)
            return [Job(prompt, temperatures or (0.0, rng.choice(WARM)), limit, tag=("answer", ""))]

        def done(one: Written) -> list[Job]:
            if one.job.tag[0] == "answer":
                finished.append(one)
                return []
            return answer(one.job.tag[1] + self._text(one.tokens, strip=False))

        jobs: list[Job] = []
        if long:
            articles = [answer(passage_request(rng), PASSAGE_LIMIT, (rng.choice(WARM),)) for _ in range(batch)]
            count += sum(writer.run([job for jobs in articles for job in jobs], done))
            passages = [text for one in finished if len(text := self._text(one.tokens[: loop_cut(one.tokens)])) >= 80]
        for _ in range(batch * 3):
            text, open_end = with_passages(passages, rng) if long and len(passages) > 3 else (opener(rng), True)
            jobs += [self._request(text, QUESTION_LIMIT if long else REQUEST_LIMIT)] if open_end else answer(text)
        count += sum(writer.run(jobs, done))
        self.speed = count / (time.perf_counter() - started)
        records, features = collect(finished, self.seed, "long" if long else "short")
        if records:
            self.store.add(number, records, features)
        return records

    def _text(self, tokens: Sequence[int], strip: bool = True) -> str:
        text = str(self.tokenizer.decode([token for token in tokens if token not in self.special]))
        return text.strip() if strip else text

    def _request(self, text: str, limit: int) -> Job:
        prompt = list(self.tokenizer.encode(self.template.prefix + text, add_special_tokens=False))
        if not prompt:
            prompt = [next(t for t in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, 0) if t is not None)]
        return Job(prompt, (1.0,), limit, min_p=0.02, features=False, tag=("request", text))

    def _prompt(self, text: str) -> list[int]:
        if self.tokenizer.chat_template is None:
            return list(self.tokenizer.encode(text))
        return list(self.tokenizer.apply_chat_template([{"role": "user", "content": text.strip()}], add_generation_prompt=True))


def collect(finished: Sequence[Written], seed: int, kind: str) -> tuple[list[Record], dict[str, np.ndarray]]:
    """What is worth keeping: no answer twice, none that is empty, loops cut short."""
    records, parts, seen = [], [], set()
    for one in finished:
        length = loop_cut(one.tokens)
        name = fingerprint(one.job.prompt + one.tokens[:length])
        if length < 2 or name in seen:
            continue
        seen.add(name)
        records.append(Record(one.job.prompt + one.tokens[:length], len(one.job.prompt), one.temperature, seed, kind))
        parts.append({key: array[:length] for key, array in one.features().items()})
    if not records:
        return [], {}
    return records, {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def loop_cut(tokens: Sequence[int], kept: int = LOOP) -> int:
    """How much of a text to keep: a stretch in which every 4-gram was there before is cut after ``kept`` tokens.

    >>> loop_cut([1, 2, 3, 4, 5] * 9, kept=8), loop_cut(list(range(40)), kept=8)
    (16, 40)
    """
    seen: set[tuple[int, ...]] = set()
    run = 0
    for end in range(4, len(tokens) + 1):
        gram = tuple(tokens[end - 4 : end])
        run = run + 1 if gram in seen else 0
        seen.add(gram)
        if run >= kept:
            return end
    return len(tokens)


def fingerprint(tokens: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(tokens, np.int64).tobytes()).hexdigest()[:24]
