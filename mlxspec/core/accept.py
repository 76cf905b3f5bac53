"""The rules that judge a proposal. Pure, of one signature; each processes only the rows it visits.

Both are exact: the emitted text has the law of plain sampling. ``coupled`` promises more: the same text for the same seed. The approximate rules
of speech are in ``mlxspec/speech/mirror.py``.
"""

from typing import Any, ClassVar

import mlx.core as mx

from mlxspec.core.proposal import Proposal, Verdict
from mlxspec.core.sampling import Context, number, whole
from mlxspec.errors import DrafterError


class Policy:
    """A rule, and what it promises: nothing, unless it says so. A rule of your own is a subclass of this."""

    name: ClassVar[str] = "a rule of your own"
    exact: ClassVar[bool] = False  # the emitted text has the law of plain sampling
    coupled: ClassVar[bool] = False  # drafters draw with the target's own noise
    same_text: ClassVar[bool] = False  # the same seed gives the same text however long the drafts are
    adapts: ClassVar[bool] = False  # drafts may be cut by what was accepted so far: that does not bend its law

    def __call__(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        """``logits`` is (1 + rows, vocab): row 0 below the pending token, row i + 1 below the proposal's row i."""
        raise NotImplementedError


class Coupled(Policy):
    """Follow the child that says what the target says. Serves every chain and tree, certain or drawn with the target's noise."""

    name = "coupled"
    exact = coupled = same_text = adapts = True

    def __call__(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        target_token = context.target_tokens(proposal, logits)
        path: list[int] = []
        row = -1
        while True:
            token = target_token(row)
            child = proposal.child(row, token)
            if child is None:
                return Verdict(tuple(path), token)
            path.append(child)
            row = child


class Ratio(Policy):
    """Accept a sampled token with probability min(1, p/q), else draw from what p has over q (Leviathan et al. 2211.17192, Chen et al. 2302.01318).

    Guesses without probabilities are certain: the target draws, and the child that agrees is followed.
    """

    name = "ratio"
    exact = True

    def __call__(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        if proposal.probs is None:
            return coupled(proposal, logits, context)
        need_chain(proposal, "ratio")
        for row, token in enumerate(proposal.tokens):
            p = context.probs(logits[row], proposal.tokens[:row])
            q = drafted(proposal, row, p.size)
            if not context.uniform(row, "accept") * number(q[token]) < number(p[token]):  # so that a p that is no number is not accepted
                rest = mx.maximum(p - q, 0)
                rest = mx.where(rest.sum() > 0, rest, p)  # p = q up to rounding
                return Verdict(tuple(range(row)), whole(context.sample(rest, row, "residual")))
        last = context.draw(logits[len(proposal)], proposal.tokens)
        return Verdict(tuple(range(len(proposal))), whole(last))


coupled, ratio = Coupled(), Ratio()
POLICIES: dict[str, Policy] = {rule.name: rule for rule in (coupled, ratio)}
"""The exact rules."""


def rule(wish: Any) -> Policy | None:
    """The exact rule of a name, or a user's own rule; None where the name is another's."""
    return wish if isinstance(wish, Policy) else POLICIES.get(wish)


def need_chain(proposal: Proposal, rule: str) -> None:
    if not proposal.is_chain:
        raise DrafterError(
            f"--accept {rule} judges chains, and the drafter sampled a tree of {len(proposal)} rows: draft a chain, or use --accept coupled."
        )


def drafted(proposal: Proposal, row: int, size: int) -> mx.array:
    """The distribution a row's token was drawn from, checked."""
    q = proposal.probs[row] if proposal.probs is not None else None
    if not isinstance(q, mx.array) or q.shape != (size,):
        raise DrafterError(f"The drafter gave row {row} probabilities {getattr(q, 'shape', type(q).__name__)}: give an mx.array of {size}.")
    return q
