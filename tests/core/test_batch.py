"""Several texts in one forward: each says what it says alone, whoever runs beside it, and keeps its own number of rows."""

import random
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxspec.core.accept import POLICIES
from mlxspec.core.batch import Ended, together
from mlxspec.core.decode import Limits, decode, loop
from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Request, Target, result
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.small import SmallDrafter
from tests.tiny import FAMILIES, RECURRENT, VOCAB, tiny_fused_rope, tiny_model

CACHES: dict[str, tuple[str, dict[str, int]]] = {
    "growing": ("llama", {}),
    "windowed": ("gemma3_text", {}),
    "limited": ("llama", {"max_kv_size": 24}),
    "quantised": ("llama", {"kv_bits": 8}),
    "recurrent": ("mamba2", {}),
    "hybrid": ("qwen3_next", {}),
}
DRAFTERS: dict[str, Callable[[Any], Drafter]] = {
    "none": lambda model: NoDrafter(),
    "lookup": lambda model: LookupDrafter(),
    "small": lambda model: SmallDrafter(model),
}
SETTINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8})


def prompts(count: int) -> list[list[int]]:
    """Prompts of unlike lengths that repeat themselves, so that lookup has something to copy."""
    rng = np.random.default_rng(4)
    return [[*(part := rng.integers(0, VOCAB, 3 + 5 * i).tolist()), *part] for i in range(count)]


def model_of(family: str) -> Any:
    return tiny_model(family, scale=2.0 if family in RECURRENT else 4.0, **({"head_dim": 32} if family == "llama" else {}))


def texts_of(
    target: Target, drafter: str, setting: dict[str, Any], count: int, tokens: int = 24
) -> Iterator[tuple[int, tuple[TokenSequence, Drafter, Any, Sampler, list[int], Limits]]]:
    for i, prompt in enumerate(prompts(count)):
        sampler = Sampler(VOCAB, seed=i, **setting)
        yield i, (TokenSequence(target), DRAFTERS[drafter](target.model), POLICIES["coupled"], sampler, prompt, Limits(max_tokens=tokens + i))


def run(texts: Iterable[tuple[Any, Any]], at_once: int) -> Generator[tuple[Any, Any], None, None]:
    waiting = iter(texts)
    return together(lambda: next(waiting, None), at_once)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", CACHES)
def test_each_text_is_its_text_alone(kind: str, drafter: str, setting: dict[str, Any]) -> None:
    """Six texts, four at a time, with joins and ends at unlike moments; tokens and reasons equal. Random weights in float32: ties are too rare to
    occur in 160 seeded tokens (the seeds are fixed, so a passing run stays one)."""
    family, limits = CACHES[kind]
    target = Target(model_of(family), **limits)
    target.probe()
    expected: dict[int, list[int]] = {}
    for key, text in texts_of(target, drafter, setting, 6):
        expected[key] = [token for step in decode(*text) if isinstance(step, Step) for token in step.tokens]
    got: dict[int, list[int]] = {key: [] for key in expected}
    ended: dict[int, Ended] = {}
    drafted = accepted = 0
    for key, event in run(((key, loop(*text)) for key, text in texts_of(target, drafter, setting, 6)), 4):
        if isinstance(event, Step):
            got[key] += event.tokens
            accepted += len(event.path)
            drafted += len(event.proposal or ())
        elif isinstance(event, Ended):
            ended[key] = event
    assert target.apart is None, target.apart
    assert got == expected
    assert {key: (one.value, one.error) for key, one in ended.items()} == dict.fromkeys(expected, ("length", None))
    assert (drafted > 10) == (drafter != "none") and (accepted > 40) == (drafter == "small")


@pytest.mark.parametrize("family", [*FAMILIES, *RECURRENT])
def test_ragged_trees_of_several_texts_are_each_text_by_itself(family: str) -> None:
    """Chunks of prompts, chains and trees of unlike sizes in one forward, logits and taps; or the reason why not, and then one after the other."""
    model = tiny_model(family, scale=2.0 if family in RECURRENT else 4.0)
    target, rng = Target(model), random.Random(3)
    target.probe()
    trees = [Proposal((1, 2, 3, 4), (-1, -1, 0, 1)), Proposal(), Proposal((5, 6), (-1, 0))]
    if target.shape == "chain":
        trees[0] = Proposal.chain([1, 2, 3, 4])
    ours, theirs = [TokenSequence(target) for _ in trees], [TokenSequence(target) for _ in trees]
    for turn in range(4):
        tokens = [[rng.randrange(VOCAB) for _ in range(1 + 4 * i)] if not turn else [rng.randrange(VOCAB)] for i in range(len(trees))]
        shapes = [tree if turn else None for tree in trees[turn % 3 :] + trees[: turn % 3]]

        def requests(texts: list[TokenSequence], tokens: list[list[int]] = tokens, shapes: Any = shapes) -> list[Request]:
            drafts = [list(shape.tokens) if shape is not None else [] for shape in shapes]
            rows = [mx.array(own + more, mx.uint32) for own, more in zip(tokens, drafts, strict=True)]
            taps = ("last", "layer:0")
            return [Request(target, text.cache, row, taps, shape) for text, row, shape in zip(texts, rows, shapes, strict=True)]

        got = target.forward(requests(ours))
        expected = [target.forward([request])[0] for request in requests(theirs)]
        for one, other, shape, text, twin in zip(got, expected, shapes, ours, theirs, strict=True):
            assert one.logits.shape == other.logits.shape
            assert mx.abs(one.logits - other.logits).max().item() < 2e-4
            for tap in other.hidden:
                assert mx.abs(one.hidden[tap] - other.hidden[tap]).max().item() < 2e-4
            for sequence in (text, twin):
                sequence._run = tuple([0] * one.logits.shape[0])
                sequence.keep(shape.path_to(0) if shape is not None and len(shape) else ())
    assert target.apart is None


class Watched(nn.Linear):
    """An output projection that counts its rows."""

    seen: ClassVar[list[int]] = []

    def __call__(self, x: mx.array) -> mx.array:
        self.seen.append(x.shape[1])
        return super().__call__(x)


def test_only_asked_for_logits_are_computed_in_a_forward_with_a_prompt() -> None:
    """A chunk of a prompt beside a round: the projection sees the round's row alone."""
    model = tiny_model()
    model.lm_head.__class__ = Watched
    target, seen = Target(model), Watched.seen
    one, other = TokenSequence(target), TokenSequence(target)
    target.forward([Request(target, one.cache, mx.array([1, 2])), Request(target, other.cache, mx.array([3]))])
    seen.clear()
    chunk, row = target.forward([Request(target, one.cache, mx.array([4, 5, 6]), answers=False), Request(target, other.cache, mx.array([7]))])
    assert seen == [1] and chunk.logits.shape == (0, VOCAB) and row.logits.shape == (1, VOCAB)


def test_a_model_that_cannot_reads_one_text_after_the_other() -> None:
    """Its own rope takes one position alone: the texts are the same, and the reason is there."""
    target = Target(tiny_fused_rope())
    target.probe()
    expected = {}
    for key, text in texts_of(target, "none", {}, 3):
        expected[key] = [token for step in decode(*text) if isinstance(step, Step) for token in step.tokens]
    got: dict[int, list[int]] = {key: [] for key in expected}
    for key, event in run(((key, loop(*text)) for key, text in texts_of(target, "none", {}, 3)), 3):
        if isinstance(event, Step):
            got[key] += event.tokens
    assert got == expected and target.apart


class Faulty(Drafter):
    """Fails in its third round."""

    rounds = 0

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        self.rounds += 1
        if self.rounds == 3:
            raise ZeroDivisionError("of its own")
        return Proposal()


def test_one_text_that_fails_leaves_the_others_alone() -> None:
    target = Target(tiny_model())
    one, other = (list(text) for _, text in texts_of(target, "none", {}, 2))
    expected = [token for step in decode(*other) if isinstance(step, Step) for token in step.tokens]
    one[1] = Faulty()
    other[0] = TokenSequence(target)
    events = list(run([("bad", loop(*one)), ("good", loop(*other))], 2))
    (bad,) = [event for key, event in events if key == "bad" and isinstance(event, Ended)]
    assert isinstance(bad.error, ZeroDivisionError)
    assert [token for key, event in events if key == "good" and isinstance(event, Step) for token in event.tokens] == expected


def test_a_text_that_was_broken_off_is_gone_on_with_as_if_it_were_new() -> None:
    """All are closed in the middle of a round, where some cache holds a step that was started ahead; the next reply to the same prompt is right."""
    target = Target(tiny_model())
    texts = dict(texts_of(target, "none", {}, 3))
    running = run(((key, loop(*text)) for key, text in texts.items()), 3)
    rounds = dict.fromkeys(texts, 0)
    for key, event in running:
        rounds[key] += isinstance(event, Step)
        if min(rounds.values()) >= 4:
            break
    running.close()
    for key, fresh in texts_of(target, "none", {}, 3):
        expected = [token for step in decode(*fresh) if isinstance(step, Step) for token in step.tokens]
        again = decode(*texts[key][:5], replace(texts[key][5], reuse=True))
        assert [token for step in again if isinstance(step, Step) for token in step.tokens] == expected


@pytest.mark.parametrize("kind", CACHES)
def test_a_fork_and_its_origin_go_their_own_ways(kind: str) -> None:
    """Both read on, other tokens by turns: each is as if it had read its own text from the start."""
    family, limits = CACHES[kind]
    target = Target(model_of(family), **limits)
    rng, start = random.Random(2), [rng.randrange(VOCAB) for rng in [random.Random(1)] for _ in range(20)]
    origin = TokenSequence(target)
    result(origin.read(start))
    fork = origin.fork()
    said = {id(origin): list(start), id(fork): list(start)}
    quiet = Sampler(VOCAB).at([0])
    for _ in range(12):
        for text in (origin, fork):
            token = rng.randrange(VOCAB)
            got = result(text.run(token, Proposal(), (), quiet)).logits
            text.keep(())
            said[id(text)].append(token)
    for text in (origin, fork):
        got = result(text.run(7, Proposal(), (), quiet)).logits
        fresh = TokenSequence(target)
        result(fresh.read(start))
        for token in said[id(text)][len(start) :]:
            result(fresh.run(token, Proposal(), (), quiet))
            fresh.keep(())
        assert text.tokens == said[id(text)]
        assert mx.abs(got - result(fresh.run(7, Proposal(), (), quiet)).logits).max().item() < (0.05 if "kv_bits" in limits else 5e-4)
