"""A drafter that fails costs its offer, not the reply: the text is that of plain decoding, and what went wrong is said."""

from typing import Any

import mlx.core as mx
import pytest

from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.drafters.guarded import STALLED, Guarded
from mlxspec.drafters.lookup import LookupDrafter
from mlxspec.errors import DrafterError
from tests.tiny import tiny_engine

PROMPT = "one two one two one two one"


class Shaky(LookupDrafter):
    """Raises in the calls to a method that ``faults`` names, counted from 1."""

    def __init__(self, method: str, faults: set[int]) -> None:
        self.method, self.faults, self.calls = method, faults, 0
        super().__init__()

    def _maybe(self, method: str) -> None:
        self.calls += method == self.method
        if method == self.method and self.calls in self.faults:
            raise ZeroDivisionError("of its own")

    def propose(self, token: int, limit: int, context: Context | None) -> Proposal:
        self._maybe("propose")
        return super().propose(token, limit, context)

    def accept(self, path: Any, token: int, hidden: dict[str, mx.array]) -> None:
        self._maybe("accept")
        super().accept(path, token, hidden)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["propose", "accept"])
def test_a_fault_costs_one_offer_and_is_said_once(method: str, temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 40}
    plain = tiny_engine("none").generate(PROMPT, **options)
    said: list[str] = []
    engine = tiny_engine(Shaky(method, {2, 5}), say=said.append)
    done = engine.generate(PROMPT, **options)
    assert done.tokens == plain.tokens and done.stats["speculation"] == "on" and done.stats["drafted"] > 0
    assert len(said) == 1 and "ZeroDivisionError: of its own" in said[0]


def test_after_three_faults_it_is_off_with_the_reason() -> None:
    said: list[str] = []
    drafter = Shaky("propose", {1, 2, 3})
    engine = tiny_engine(drafter, say=said.append)
    done = engine.generate(PROMPT, temperature=0, max_tokens=30)
    assert done.tokens == tiny_engine("none").generate(PROMPT, temperature=0, max_tokens=30).tokens
    assert done.stats["speculation"] == "off" and "of its own" in done.stats["reason"] and done.stats["drafted"] == 0
    assert len(said) == 2 and drafter.calls == 3
    assert engine.generate(PROMPT, temperature=0, max_tokens=5).stats["speculation"] == "off" and drafter.calls == 3


def test_one_that_stalls_is_off_after_three_rounds() -> None:
    now, said = [0.0], list[str]()

    class Slow(LookupDrafter):
        def propose(self, token: int, limit: int, context: Context | None) -> Proposal:
            now[0] += 1.5 * STALLED
            return super().propose(token, limit, context)

    drafter = Guarded(Slow(), said.append, lambda: now[0])
    drafter.begin([1, 2, 3, 1, 2], {}, 0)
    context: Any = None
    assert len(drafter.propose(3, 2, context)) and len(drafter.propose(1, 2, context)) and not len(drafter.propose(2, 2, context))
    assert drafter.report()[0] == "off" and "took 15 s" in said[0]


def test_what_is_malformed_is_still_an_error() -> None:
    class Wrong(LookupDrafter):
        def propose(self, token: int, limit: int, context: Context | None) -> Proposal:
            return Proposal((1, 1), (-1, -1))

    with pytest.raises(DrafterError, match="twice"):
        tiny_engine(Wrong()).generate(PROMPT, temperature=0, max_tokens=8)
