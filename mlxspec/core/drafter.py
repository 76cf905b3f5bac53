"""What a drafter is, and the one that drafts nothing. The others stand in ``mlxspec/drafters``."""

from collections.abc import Sequence

import mlx.core as mx

from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context


class Drafter:
    """Guesses what the target will say of one text. It never touches the target's cache or text. Of all members only ``propose`` has no default.

    ``taps`` names the target's hidden states it wants (``last``, ``layer:N``); ``depth`` is how far it looks ahead unless the user says so.
    """

    name: str = "drafter"
    taps: tuple[str, ...] = ()
    depth: int = 4
    adapts: bool = True  # whether its proposals may be cut and its turns left out by what was accepted so far

    def known(self, prompt: Sequence[int]) -> int:
        """How many of a prompt's first tokens it need not be shown again. All of them, unless it keeps something of every token's hidden state."""
        return len(prompt)

    def begin(self, prompt: Sequence[int], hidden: dict[str, mx.array], reused: int) -> None:
        """A reply starts. ``hidden`` has (tokens, width) per tap, from token ``reused`` on; ``reused`` is never above what it said is ``known``."""

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        """Rows below the pending ``token``, at most ``limit`` deep (0: none)."""
        raise NotImplementedError

    def accept(self, path: Sequence[int], token: int, hidden: dict[str, mx.array]) -> None:
        """The rows on ``path`` were accepted, then the target said ``token``. ``hidden`` has a row for the pending token and each proposed one."""

    def report(self) -> tuple[str, str | None]:
        """Whether it drafts now (on, paused or off), and the reason where it does not."""
        return "on", None

    def keep(self) -> None:
        """A reply has ended: what was learnt may be written down for later runs."""


class NoDrafter(Drafter):
    """Plain decoding: proposes nothing, and says that it never will."""

    name = "none"
    depth = 0
    adapts = False

    def __init__(self, reason: str = "--drafter none") -> None:
        self.reason = reason

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        return Proposal(rest=True)

    def report(self) -> tuple[str, str | None]:
        return "off", self.reason
