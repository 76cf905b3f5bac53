"""One contract for every cache: whatever was drafted and wherever a reply stopped, the text is plain decoding's and the caches are as if read anew.

Cache kinds (growing, windowed past the wrap, limited, quantised, recurrent, mixed) x drafters x rules x random stops.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxspec.core.accept import POLICIES
from mlxspec.core.cache import WindowCache
from mlxspec.core.decode import Limits, decode
from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.events import Step
from mlxspec.core.proposal import Proposal
from mlxspec.core.recurrent import StateCache
from mlxspec.core.sampling import Sampler
from mlxspec.core.sequence import TokenSequence
from mlxspec.core.target import Target, result
from mlxspec.drafters.adaptive import AdaptiveDrafter
from mlxspec.drafters.cost import CostCurve
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.drafters.redrafter import RecurrentDrafter, embedding_of
from mlxspec.drafters.small import SmallDrafter
from mlxspec.models.redrafter import ReDrafter, ReDrafterArgs
from tests.tiny import RECURRENT, VOCAB, tiny_model

PROMPT = [10, 20, 30, 10, 20, 40, 10, 20, 30, 10]
TARGETS: dict[str, dict[str, Any]] = {
    "growing": {"family": "llama"},
    "window": {"family": "gemma3_text"},
    "window and sinks": {"family": "gpt_oss"},
    "limited": {"family": "qwen3", "max_kv_size": 24},
    "4 bits": {"family": "llama", "head_dim": 32, "kv_bits": 4},
    "8 bits": {"family": "llama", "head_dim": 64, "kv_bits": 8},
    "gated delta": {"family": "qwen3_next"},
    "mamba": {"family": "mamba2"},
    "both in a layer": {"family": "falcon_h1"},
    "state and window": {"family": "recurrent_gemma"},
}


def network(kind: str) -> Any:
    about = {name: value for name, value in TARGETS[kind].items() if name not in ("family", "max_kv_size", "kv_bits")}
    family = TARGETS[kind]["family"]
    return tiny_model(family, scale=2.0 if family in RECURRENT else 4.0, **about)


def sequence_of(kind: str, model: Any) -> TokenSequence:
    limits = {name: TARGETS[kind][name] for name in ("max_kv_size", "kv_bits") if name in TARGETS[kind]}
    sequence = TokenSequence(Target(model, **limits))
    sequence.target.probe()
    return sequence


def small(kind: str, model: Any) -> SmallDrafter:
    """The same model: right but for rounding, so that whole runs are accepted and cut."""
    return SmallDrafter(network(kind), max_kv_size=TARGETS[kind].get("max_kv_size"), kv_bits=TARGETS[kind].get("kv_bits"))


def redrafter(kind: str, model: Any) -> RecurrentDrafter:
    """Random weights, and eager: most of what it offers is wrong."""
    mx.random.seed(1)
    embed = embedding_of(model)
    size = int(embed(mx.array([0])).shape[-1])
    drafter = RecurrentDrafter(ReDrafter(ReDrafterArgs(hidden_size=size, vocab_size=VOCAB, exit_dim=size)), embed)
    drafter.worth = drafter.stop = 0.0
    return drafter


DRAFTERS: dict[str, Callable[[str, Any], Drafter]] = {
    "none": lambda kind, model: NoDrafter(),
    "lookup": lambda kind, model: LookupDrafter(),
    "small": small,
    "redrafter": redrafter,
    "adaptive": lambda kind, model: AdaptiveDrafter([LookupDrafter(), redrafter(kind, model)], CostCurve.flat()),
}


def reply(sequence: TokenSequence, drafter: Drafter, accept: str, limits: dict[str, Any], setting: dict[str, Any]) -> list[int]:
    loop = decode(sequence, drafter, POLICIES[accept], Sampler(VOCAB, **setting), PROMPT, Limits(coupled=accept == "coupled", **limits))
    return [token for step in loop if isinstance(step, Step) for token in step.tokens]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", TARGETS)
def test_text_and_state_are_those_of_plain_decoding(kind: str, drafter: str) -> None:
    """Coupled: the same text at random lengths and stop tokens. Ratio: the state only (the law has its own tests). Tolerances are float32's."""
    rng = random.Random(f"{kind} {drafter}")
    model = network(kind)
    sequence = sequence_of(kind, model)
    greedy = reply(sequence, NoDrafter(), "coupled", {"max_tokens": 40}, {})
    for accept, setting in (("coupled", {}), ("coupled", {"temperature": 0.9, "seed": 4}), ("ratio", {"temperature": 0.9, "seed": 4})):
        limits = {"max_tokens": rng.randrange(18, 40), "stop_tokens": frozenset(rng.sample(greedy, 1)) if rng.random() < 0.5 else frozenset()}
        text = reply(sequence, DRAFTERS[drafter](kind, model), accept, limits, setting)
        if accept == "coupled":
            assert text == reply(sequence_of(kind, model), NoDrafter(), accept, limits, setting)
        assert_state(kind, model, sequence, [*PROMPT, *text[:-1]])


def assert_state(kind: str, model: Any, sequence: TokenSequence, history: Sequence[int]) -> None:
    """The next logits equal those after reading the history anew, token by token so that quantised rows are the same."""
    assert sequence.tokens == list(history)
    fresh = sequence_of(kind, model)
    quiet = Sampler(VOCAB).at([0])
    result(fresh.read(PROMPT))
    for token in history[len(PROMPT) :]:
        result(fresh.run(token, Proposal(), (), quiet))
        fresh.keep(())
    got, expected = (result(t.run(7, Proposal(), (), quiet)).logits for t in (sequence, fresh))
    difference = float(mx.abs(got - expected).max())
    assert difference < (0.05 if "kv_bits" in TARGETS[kind] else 5e-4)  # rounding of 1e-7 may move a quantised value by one level


class Guess:
    """Three tokens out of a hat."""

    name = "guess"
    taps: tuple[str, ...] = ()
    depth = 3

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def begin(self, prompt: Sequence[int], hidden: Any, reused: int) -> None: ...

    def propose(self, token: int, limit: int, context: Any) -> Proposal:
        return Proposal.chain([self.rng.randrange(VOCAB) for _ in range(min(limit, 3))])

    def accept(self, path: Sequence[int], token: int, hidden: Any) -> None: ...


@pytest.mark.parametrize("kind", ["window", "limited", "mamba"])
def test_memory_is_flat_over_2000_rounds(kind: str) -> None:
    """Layers that forget hold as much after 2,000 rounds as after 500, though nearly every round rejects rows."""
    sequence = sequence_of(kind, network(kind))
    held: dict[int, int] = {}
    rounds = rejected = 0
    loop = decode(sequence, Guess(), POLICIES["coupled"], Sampler(VOCAB, temperature=1.0, seed=1), PROMPT, Limits(max_tokens=10**6))
    for event in loop:
        if isinstance(event, Step) and event.proposal is not None:
            rounds += 1
            rejected += len(event.proposal) - len(event.path)
            if rounds in (500, 2000):
                forgetting = [layer for layer in sequence.cache if isinstance(layer, WindowCache | StateCache)]
                arrays: Any = tree_flatten([layer.state for layer in forgetting])
                held[rounds] = sum(array.nbytes for _, array in arrays if isinstance(array, mx.array))
            if rounds == 2000:
                break
    loop.close()
    assert rejected > 4000
    assert 0 < held[2000] <= held[500]
