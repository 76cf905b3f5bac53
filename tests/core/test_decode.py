"""The loop: the same text with every drafter, clean ends, honest caches."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mlxspec.core.accept import POLICIES
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context, Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target, result
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.small import SmallDrafter
from tests.tiny import FAMILIES, RECURRENT, VOCAB, tiny_model

PROMPT = [10, 20, 30, 10, 20, 40, 10, 20]


class Oracle:
    """Knows a text and drafts from it, with a wrong child beside each right one now and then."""

    name, taps, depth = "oracle", (), 6

    def __init__(self, text: Sequence[int], seed: int = 0, chain: bool = False) -> None:
        self.chain = chain
        self.text, self.rng, self.at = list(text), random.Random(seed), 0

    def begin(self, prompt: Sequence[int], hidden: Any, reused: int) -> None:
        self.at = 1

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        right = self.text[self.at : self.at + limit]
        tokens: list[int] = []
        parents: list[int] = []
        above = -1
        for want in right:
            if self.rng.random() < (0.15 if self.chain else 0.5):
                tokens.append((want + 1) % VOCAB)
                parents.append(above)
                if self.chain:
                    break
            if self.rng.random() < 0.15:
                break
            parents.append(above)
            above = len(tokens)
            tokens.append(want)
        return Proposal(tuple(tokens), tuple(parents))

    def accept(self, path: Sequence[int], token: int, hidden: Any) -> None:
        self.at += len(path) + 1


def run(
    sequence: Target, drafter: Any, limits: Limits, accept: str = "coupled", prompt: Sequence[int] = PROMPT, **setting: Any
) -> tuple[list[int], str, list[Step]]:
    loop = decode(sequence, drafter, POLICIES[accept], Sampler(VOCAB, **setting), prompt, limits)
    steps: list[Step] = []
    while True:
        try:
            event = next(loop)
        except StopIteration as end:
            return [t for step in steps for t in step.tokens], end.value, steps
        if isinstance(event, Step):
            steps.append(event)


DRAFTERS: dict[str, Callable[[str], Drafter]] = {
    "lookup": lambda family: LookupDrafter(),
    "small": lambda family: SmallDrafter(tiny_model(family, seed=5)),
    "itself": lambda family: SmallDrafter(tiny_model(family)),
}


@pytest.mark.parametrize(
    "setting", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 7}, {"temperature": 1.0, "repetition_penalty": 1.3, "seed": 3}], ids=str
)
@pytest.mark.parametrize("family", [*FAMILIES, *RECURRENT])
def test_same_text_with_every_drafter(family: str, setting: dict[str, Any]) -> None:
    """Forty tokens, past the window where there is one; float32, so a difference would be a bug or a tie of 1e-6."""
    sequence = TokenSequence(Target(tiny_model(family)))
    sequence.target.probe()
    plain, reason, _ = run(sequence, NoDrafter(), Limits(max_tokens=40), **setting)
    assert (len(plain), reason) == (40, "length")
    for make in DRAFTERS.values():
        assert run(sequence, make(family), Limits(max_tokens=40), **setting)[0] == plain
    for length in (1, 3, 9):
        oracle = Oracle(plain, seed=length, chain=sequence.target.shape == "chain")
        text, _, steps = run(sequence, oracle, Limits(max_tokens=40, draft_tokens=length), **setting)
        assert text == plain
        assert sum(len(step.path) for step in steps) > 12


def test_plain_decoding_starts_the_next_step_early_and_drops_it() -> None:
    sequence = TokenSequence(Target(tiny_model()))
    started: list[int] = []
    forward = sequence.target.forward

    def counted(requests: Any) -> Any:
        started.append(1)
        return forward(requests)

    sequence.target.forward = counted  # type: ignore[method-assign]
    tokens, _, steps = run(sequence, NoDrafter(), Limits(max_tokens=5))
    assert len(tokens) == 5
    assert len(started) == 2 + 5  # two of prefill, four steps, and one that was started and dropped
    assert sequence.cache[0].offset == len(PROMPT) + 4
    assert all(step.path == () for step in steps)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_stop_token_inside_an_accepted_run_ends_cleanly(family: str) -> None:
    """Nothing after it is emitted, counted or cached, wherever in a run it stands."""
    model = tiny_model(family)
    plain = run(TokenSequence(Target(model)), NoDrafter(), Limits(max_tokens=40))[0]
    for place in range(1, 24):
        stop = plain[place]
        expected = plain[: plain.index(stop) + 1]
        sequence = TokenSequence(Target(model))
        text, reason, steps = run(sequence, Oracle(plain, seed=place), Limits(max_tokens=40, stop_tokens=frozenset([stop])))
        assert (text, reason) == (expected, "stop")
        assert sequence.cache[0].offset == len(PROMPT) + len(text) - 1
        assert sum(len(step.tokens) for step in steps[1:]) == sum(1 + len(step.path) for step in steps[1:])
        again = TokenSequence(Target(model))
        run(again, NoDrafter(), Limits(max_tokens=len(text)))
        ours, theirs = (result(t.run(text[-1], Proposal(), (), Sampler(VOCAB).at([0]))).logits for t in (sequence, again))
        assert abs(ours - theirs).max().item() < 2e-4


@pytest.mark.parametrize("limit", [0, 1, 2, 7])
def test_token_limits(limit: int) -> None:
    plain = run(TokenSequence(Target(tiny_model())), NoDrafter(), Limits(max_tokens=20))[0]
    for drafter in (NoDrafter(), LookupDrafter(), Oracle(plain)):
        sequence = TokenSequence(Target(tiny_model()))
        text, reason, _ = run(sequence, drafter, Limits(max_tokens=limit))
        assert (text, reason) == (plain[:limit], "length")
        assert sequence.cache[0].offset == (len(PROMPT) + limit - 1 if limit else 0)


def test_no_limit_ends_at_the_context() -> None:
    for drafter in (NoDrafter(), LookupDrafter()):
        sequence = TokenSequence(Target(tiny_model(), context_length=32))
        text, reason, _ = run(sequence, drafter, Limits(max_tokens=-1))
        assert (len(text), reason) == (32 - len(PROMPT), "length")


def test_a_prompt_read_in_chunks_is_the_prompt() -> None:
    prompt = [(7 * i * i) % VOCAB for i in range(77)]
    whole = run(TokenSequence(Target(tiny_model(), chunk=512)), NoDrafter(), Limits(max_tokens=20), prompt=prompt)[0]
    for chunk in (1, 5, 76, 77):
        assert run(TokenSequence(Target(tiny_model(), chunk=chunk)), NoDrafter(), Limits(max_tokens=20), prompt=prompt)[0] == whole


def test_closing_the_loop_midway_leaves_a_consistent_cache() -> None:
    sequence = TokenSequence(Target(tiny_model()))
    loop = decode(sequence, NoDrafter(), POLICIES["coupled"], Sampler(VOCAB), PROMPT, Limits(max_tokens=50))
    emitted: list[int] = []
    while len(emitted) < 9:
        event = next(loop)
        emitted += event.tokens if isinstance(event, Step) else ()
    loop.close()
    assert sequence.cache[0].offset == len(PROMPT) + 8


class Remembering(NoDrafter):
    """Keeps the hidden state of every token, as a drafter with a cache of its own does; it has read what it was shown and nothing else."""

    taps = ("last",)

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[int] = []
        self.states: list[Any] = []

    def known(self, prompt: Sequence[int]) -> int:
        return next((i for i, (one, other) in enumerate(zip(self.tokens, prompt, strict=False)) if one != other), min(len(self.tokens), len(prompt)))

    def begin(self, prompt: Sequence[int], hidden: Any, reused: int) -> None:
        self.tokens, self.states = list(prompt), [*self.states[:reused], *hidden["last"]]

    def accept(self, path: Sequence[int], token: int, hidden: Any) -> None:
        self.tokens.append(self.said)
        self.states.append(hidden["last"][0])

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        self.said = token
        return Proposal()


def test_a_drafter_is_shown_what_it_has_not_seen() -> None:
    """A reply without it, or with another, comes between two of its own: the target reads again what the drafter has no hidden states of."""
    sequence, drafter = TokenSequence(Target(tiny_model())), Remembering()
    prompt = list(PROMPT)
    for other in (None, NoDrafter(), None, LookupDrafter(), LookupDrafter(), None):
        text, _, _ = run(sequence, other or drafter, Limits(max_tokens=7, reuse=True), prompt=prompt)
        if other is None:
            assert len(drafter.tokens) == len(drafter.states)
            fresh = result(TokenSequence(Target(tiny_model())).read(drafter.tokens, ("last",)))
            assert max(abs(one - two).max().item() for one, two in zip(drafter.states, fresh.hidden["last"], strict=True)) < 2e-4
        prompt += [*text, 5, 6]
