"""A user's own object as a drafter."""

from typing import Any

from mlxspec.core.drafter import Drafter
from mlxspec.core.proposal import Proposal
from mlxspec.core.sampling import Context
from mlxspec.errors import DrafterError


class OwnDrafter(Drafter):
    """A user's own object as a drafter: it needs propose(token, limit, context); what else of Drafter it lacks has the defaults."""

    adapts = False

    def __init__(self, own: Any) -> None:
        if not callable(getattr(own, "propose", None)):
            raise DrafterError(f"{type(own).__name__} is no drafter: it needs a method propose(token, limit, context) -> Proposal.")
        if isinstance(own, type):
            raise DrafterError(f"{own.__name__} is a class: pass an object, {own.__name__}().")
        self.own = own
        self.name = getattr(own, "name", type(own).__name__)
        self.taps = tuple(getattr(own, "taps", self.taps))
        self.depth = getattr(own, "depth", self.depth)
        if not isinstance(self.depth, int) or isinstance(self.depth, bool) or self.depth < 0:
            raise DrafterError(f"{self.name} has depth {self.depth!r}: give a whole number from 0.")
        for method in ("known", "begin", "accept", "report", "keep"):
            if callable(given := getattr(own, method, None)):
                setattr(self, method, given)

    def propose(self, token: int, limit: int, context: Context) -> Proposal:
        proposal = self.own.propose(token, limit, context)
        if not isinstance(proposal, Proposal):
            raise DrafterError(f"{self.name} proposed {type(proposal).__name__} {proposal!r:.60}: return a mlxspec.Proposal.")
        return proposal
