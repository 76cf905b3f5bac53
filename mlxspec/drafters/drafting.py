"""Who drafts for a target: the drafters, whether they adapt, what a round costs, and why speculation is off where it is. Knows no text.

What an engine of text and a voice both stand on.
"""

from typing import Any

from mlxspec.core.accept import Policy
from mlxspec.core.decode import Limits
from mlxspec.core.drafter import Drafter, NoDrafter
from mlxspec.core.target import Target
from mlxspec.drafters.adaptive import AdaptiveDrafter
from mlxspec.drafters.choose import choose_drafter
from mlxspec.drafters.cost import CostCurve, measured
from mlxspec.drafters.guarded import Guarded
from mlxspec.errors import DrafterError, UsageError
from mlxspec.loading.load import Loaded, Say
from mlxspec.settings.options import Options


class Drafting:
    """The drafters of one target. Its cost curve is measured when somebody first asks for it."""

    def __init__(self, wish: Any, target: Target, loaded: Loaded, settings: Options, say: Say, cost: CostCurve | None = None) -> None:
        """``wish``: a name as --drafter takes it, or an object with Drafter's methods. Raises DrafterError where it does not fit the target."""
        if wish != "none":
            target.probe()
        self.target, self.loaded, self.say, self.cost = target, loaded, say, cost
        self.members = choose_drafter(wish, target, loaded, settings, say)
        self.drafter = self.members[-1]
        self.asked = [Guarded(member, say) for member in self.members]
        self.name = "+".join(member.name for member in self.members)
        self.speculation, self.reason = self.drafter.report()
        self.adaptive: AdaptiveDrafter | None = None

    def of(self, settings: Options, policy: Policy) -> Drafter:
        """Who drafts a reply. ``--draft-tokens auto`` adapts, where that does not bend the text; a number fixes the depth, 0 drafts nothing."""
        if settings.draft_tokens == 0 and self.speculation == "on":
            return NoDrafter("--draft-tokens 0")
        fixed = settings.draft_tokens is not None or not policy.adapts or (settings.seed is not None and not policy.same_text)
        if fixed or not self.drafter.adapts:
            return self.asked[-1]
        if self.adaptive is None:
            self.cost = self.cost or measured(self.target, self.loaded.digest, self.say)
            self.adaptive = AdaptiveDrafter(self.asked, self.cost)
        return self.adaptive

    def check(self, settings: Options) -> None:
        """Raise UsageError or DrafterError where drafts are asked for and there are none."""
        if settings.require_spec and settings.draft_tokens == 0:
            raise UsageError("--require-spec and --draft-tokens 0 exclude each other: leave one of them out.")
        if settings.require_spec and self.speculation == "off":
            raise DrafterError(f"Speculation is off ({self.reason}) and --require-spec asks for it: pass a drafter that fits.")


def limits(settings: Options, policy: Policy, **more: Any) -> Limits:
    """The limits of a reply, as the loop takes them."""
    return Limits(draft_tokens=settings.draft_tokens, width=settings.draft_width, rows=settings.draft_rows, coupled=policy.coupled, **more)
