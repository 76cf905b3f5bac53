"""What a drafter is, and the one that drafts nothing. The others stand in ``mlxspec/drafters``."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context


class Drafter(Protocol):
    """Guesses what the target will say. Touches neither the target's cache nor its sequence.

    ``taps`` names the target's hidden states it wants (``last``, ``layer:N``); ``depth`` is how far it looks ahead unless the user says so.
    """

    name: str
    taps: tuple[str, ...]
    depth: int

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        """A reply starts. ``hidden`` has (tokens, width) a tap; the first ``reused`` tokens were seen in an earlier turn."""

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        """Rows below the pending ``token``, at most ``limit`` deep (0: none)."""

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        """The rows on ``path`` were accepted, then the target said ``token``. ``hidden`` has a row for the pending token and each proposed one."""


class NoDrafter:
    """Plain decoding: proposes nothing, and says that it never will."""

    name = "none"
    taps: tuple[str, ...] = ()
    depth = 0

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        pass

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        return Proposal(rest=True)

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        pass
