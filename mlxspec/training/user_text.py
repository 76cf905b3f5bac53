"""The user's own training text (``--data``): read, checked, and run through the target, so that it lies in shards like text the target wrote.

A line is {"messages": [...]} (the last one the assistant's: learnt as it is; the user's: the target answers), {"prompt": "..."} (the target answers)
or {"text": "..."} (learnt from its second token on).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxspec.core.target import Request, Target
from mlxspec.errors import UsageError
from mlxspec.loading.load import Loaded
from mlxspec.training.distil import WARM, TextStore, collect
from mlxspec.training.writer import Job, Writer, Written, likeliest

SHARD = 256  # lines
LONGEST = 1024  # tokens of a line that are read
FORWARD = 1024  # tokens in one forward
LONGEST_ANSWER = 512  # tokens that the target gives


@dataclass(frozen=True, slots=True)
class Line:
    """A prompt, and its answer where there is one."""

    prompt: list[int]
    answer: list[int]


def read_lines(path: Path, tokenizer: Any) -> list[Line]:
    """All lines of a file. Raises UsageError, with the line's number, for what cannot be used."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"--data {path} cannot be read ({error.strerror}): give a file with one JSON object a line.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--data {path} is not UTF-8 (byte {error.start}): save it as UTF-8.") from error
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            lines.append(line_of(json.loads(line), tokenizer))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"--data {path} line {number} has no messages, prompt or text ({error}): give one of them, as JSON.") from error
    if not lines:
        raise UsageError(f"--data {path} is empty: give one JSON object a line, with messages, prompt or text.")
    return [one for one in lines if one.prompt]


def line_of(entry: Any, tokenizer: Any) -> Line:
    """An entry as tokens. Raises ValueError, KeyError or TypeError for what is none."""
    if not isinstance(entry, dict):
        raise TypeError(f"a {type(entry).__name__}")
    if "text" in entry:
        tokens = list(tokenizer.encode(_string(entry["text"])))[:LONGEST]
        return Line(tokens[:1], tokens[1:])
    messages = entry["messages"] if "messages" in entry else [{"role": "user", "content": _string(entry["prompt"])}]
    for message in messages:
        _string(message["role"]), _string(message["content"])
    answered = messages[-1]["role"] == "assistant"
    before = messages[:-1] if answered else messages
    if not before:
        raise ValueError("an answer without a question")
    if tokenizer.chat_template is None:
        prompt = list(tokenizer.encode("\n\n".join(message["content"] for message in before)))
    else:
        prompt = list(tokenizer.apply_chat_template(before, add_generation_prompt=True))
    if not answered:
        return Line(prompt[-LONGEST:], [])
    answer = [*tokenizer.encode(messages[-1]["content"], add_special_tokens=False), tokenizer.eos_token_id]
    return Line(prompt[-LONGEST:], answer[:LONGEST])


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no string")
    return value


def store_lines(lines: Sequence[Line], loaded: Loaded, seed: int, batch: int) -> TextStore:
    """The shards of these lines, those that are not there yet written now. The target answers at its own temperature (or 0) and at another."""
    target, tokenizer = Target(loaded.model), loaded.tokenizer
    name = hashlib.sha256(json.dumps([[one.prompt, one.answer] for one in lines]).encode()).hexdigest()
    store = TextStore.of(f"{loaded.digest} {name}", seed)
    vocab = 1 + max(tokenizer.get_vocab().values())
    own = float(loaded.defaults.get("temperature", 0.0))
    for number in range(len(store.shards()), -(-len(lines) // SHARD)):
        part = lines[number * SHARD : (number + 1) * SHARD]
        rng = np.random.default_rng([seed, number])
        finished: list[Written] = list(seen(target, [one for one in part if one.answer], vocab))
        writer = Writer(target, tokenizer.eos_token_ids, batch, int(rng.integers(2**32)), vocab)
        jobs = [Job(one.prompt, (own, float(rng.choice(WARM))), LONGEST_ANSWER) for one in part if not one.answer]

        def done(one: Written, finished: list[Written] = finished) -> list[Job]:
            finished.append(one)
            return []

        for _ in writer.run(jobs, done):
            pass
        records, features = collect(finished, seed, "data")
        store.add(number, records, features) if records else store.add(number, [], empty_features(target))
    return store


def seen(target: Target, lines: Sequence[Line], vocab: int) -> Iterator[Written]:
    """What the target sees at every token of answers that are there already."""
    ordered = sorted(lines, key=lambda one: len(one.prompt) + len(one.answer))
    while ordered:
        group = [ordered.pop(0)]
        while ordered and (len(ordered[0].prompt) + len(ordered[0].answer)) * (len(group) + 1) <= FORWARD:
            group.append(ordered.pop(0))
        asked = [Request(target, target.cache(), mx.array([*one.prompt, *one.answer], mx.uint32), ("last",)) for one in group]
        for one, rows in zip(group, target.forward(asked), strict=True):
            answer = slice(len(one.prompt) - 1, len(one.prompt) + len(one.answer) - 1)
            ids, logprobs = likeliest(np.array(rows.logits[answer, :vocab].astype(mx.float32)))
            hidden = np.array(rows.hidden["last"][answer].astype(mx.float16))
            yield Written(Job(one.prompt, (), 0), -1.0, list(one.answer), list(zip(hidden, ids, logprobs, strict=True)))


def empty_features(target: Target) -> dict[str, np.ndarray]:
    """Features of no token at all."""
    written = next(seen(target, [Line([0], [0])], 2))
    return {name: array[:0] for name, array in written.features().items()}
