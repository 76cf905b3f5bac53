"""A drafter that may fail: a reply never ends for it. What it raises costs the offer of that round; after three faults it is off, with the reason.

A proposal that is malformed is not its affair: that is an error of the drafter's author, and the loop refuses it by name.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import mlx.core as mx

from mlxspec.core.drafter import Drafter
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.display import one_line
from mlxspec.errors import DrafterError

FAULTS = 3  # before it is off
STALLED = 10.0  # seconds of one proposal that count as a fault
Value = TypeVar("Value")


class Guarded(Drafter):
    """Another drafter, asked with care. ``say`` is told of the first fault and of the end."""

    def __init__(self, drafter: Drafter, say: Callable[[str], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self.drafter = drafter
        self.say = say
        self.clock = clock
        self.name, self.taps, self.adapts = drafter.name, drafter.taps, drafter.adapts
        self.faults = 0
        self.off: str | None = None

    @property
    def depth(self) -> int:  # type: ignore[override]
        return self.drafter.depth

    def known(self, prompt: Sequence[int]) -> int:
        return self._tried(lambda: self.drafter.known(prompt), 0)

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        self._tried(lambda: self.drafter.begin(prompt, hidden, reused), None)

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        started = self.clock()
        proposal = self._tried(lambda: self.drafter.propose(token, limit, context), Proposal())
        if self.off is None and (taken := self.clock() - started) > STALLED:
            self._fault(f"took {taken:.0f} s for one proposal")
        return Proposal(rest=True) if self.off is not None else proposal

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        self._tried(lambda: self.drafter.accept(path, token, hidden), None)

    def report(self) -> tuple[str, str | None]:
        return ("off", self.off) if self.off is not None else self.drafter.report()

    def keep(self) -> None:
        self._tried(self.drafter.keep, None)

    def _tried(self, call: Callable[[], Value], instead: Any) -> Value:
        if self.off is None:
            try:
                return call()
            except DrafterError:
                raise
            except Exception as error:  # whatever a drafter's own code raises
                self._fault(f"raised {type(error).__name__}: {one_line(str(error)):.120}")
        answer: Value = instead
        return answer

    def _fault(self, what: str) -> None:
        self.faults += 1
        if self.faults == FAULTS:
            self.off = f"{self.name} {what}, the {FAULTS}rd fault"
            self.say(f"Drafting is off: {self.off}.")
        elif self.faults == 1:
            self.say(f"The drafter {self.name} {what}: this round goes without its offer.")
