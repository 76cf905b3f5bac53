"""The rules that judge a draft by its sound. They are not exact, and say so (``exact``).

``Mirror`` and ``Pcg`` accept a token that sounds like what the target says; only the law of the hidden label, the acoustic group drawn at each
place, is the target's own, given the tokens before it. Every label is logged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx
import numpy as np

from mlxspec.core.accept import Policy, coupled, drafted, need_chain
from mlxspec.core.proposal import Proposal, Verdict
from mlxspec.core.sampling import Context, whole
from mlxspec.speech.labels import Labels

TRIALS = 64  # draws by thinning before the residual is written out


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a rule logs of an emitted token: its hidden label, how many tokens have it, and the token the target drew there (None: it drew none).

    Of a draft accepted for its label alone, ``apart`` says how far drafter and target disagree inside the label. The mean of ``bound`` over many
    places is at least the total variation between the law of the emitted token and the target's.
    """

    label: int
    size: int
    said: int | None
    apart: float = 0.0
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Mirror(Policy):
    """Draw a label and a token of it as the target would; follow the child that says the token, else one that has the label, else emit the token.

    The label is drawn whatever the drafter offers, so the logged label has law Q exactly. A child that the target's sampler masks is never followed.
    With ``capped`` a child is followed for its label only where drafter and target disagree inside it by no more than that.
    Serves chains and trees; drafters that draw through the ``MirrorSampler`` offer the groups that the target is about to name.
    """

    labels: Labels
    capped: float | None = None
    name: ClassVar[str] = "mirror"
    coupled: ClassVar[bool] = True
    adapts: ClassVar[bool] = True

    def __call__(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        path: list[int] = []
        note: list[Labelled] = []
        while True:
            row = path[-1] if path else -1
            before = [proposal.tokens[i] for i in path]
            scores = context.scores(logits[row + 1], before)
            noise = context.sampler.noise
            place = context.position + len(path)
            label, said = self.labels.draw(scores, noise(place, "label"), noise(place, "target"))
            if not len(proposal):
                said = whole(context.first(logits))  # the same draw; where a step was started ahead on it, it must be that very token
            child, apart = proposal.child(row, said), 0.0
            alike = child is None
            if alike:
                child, apart = self._alike(proposal, row, label, scores)
            bound = float(alike and child is not None)
            note.append(Labelled(self.labels.name(label), len(self.labels.members(label)), said, apart, bound))
            if child is None:
                return Verdict(tuple(path), said, tuple(note))
            path.append(child)

    def _alike(self, proposal: Proposal, row: int, label: int, scores: mx.array) -> tuple[int | None, float]:
        """The first child that has the label and that the target might have said, and how far the two disagree inside the label."""
        members = self.labels.members(label)
        children = [i for i in range(row + 1, len(proposal)) if proposal.parents[i] == row and proposal.tokens[i] in members]
        if not children:
            return None, 0.0
        target = np.array(mx.softmax(scores, precise=True), np.float64)
        for child in children:
            token = proposal.tokens[child]
            draft = None if proposal.probs is None else np.array(drafted(proposal, child, scores.size), np.float64)
            apart = self.labels.distance(label, token, target, draft)
            if target[token] > 0 and (self.capped is None or apart <= self.capped):
                return child, apart
        return None, 0.0


@dataclass(frozen=True, slots=True)
class Pcg(Policy):
    """The rule of principled coarse-graining (Yanuka et al., arXiv 2511.13732) for sampled chains: the test of ``ratio`` on the token's label.

    The label is drawn once, among those of the token; it is accepted with min(1, Q/P), else one is drawn from what Q has over P, by thinning. Tokens
    outside the target's support are labels of their own at that step, so none of them can pass and no label is accepted less often than its tokens
    would be. With ``capped`` so are those of a group inside which drafter and target disagree by more than that: for them it is the exact test.
    After a rejection nothing more is drawn, at the last place as at any other.
    """

    labels: Labels
    capped: float | None = None
    name: ClassVar[str] = "pcg"

    def __call__(self, proposal: Proposal, logits: mx.array, context: Context) -> Verdict:
        note: list[Labelled] = []
        tokens = proposal.tokens
        if proposal.probs is None:  # certain guesses: the target draws, and the child that agrees is followed
            verdict = coupled(proposal, logits, context)
            emitted = [*(tokens[row] for row in verdict.path), verdict.token]
            return Verdict(verdict.path, verdict.token, tuple(self._logged(token, depth, context) for depth, token in enumerate(emitted)))
        need_chain(proposal, "pcg")
        for row, token in enumerate(tokens):
            q = np.array(context.probs(logits[row], tokens[:row]), np.float64)
            step = Step(self.labels, np.array(drafted(proposal, row, len(q)), np.float64), q, self.capped)
            label = step.label(token, context.uniform(row, "label"))
            if context.uniform(row, "accept") * step.draft[label] < step.target[label]:
                note.append(step.logged(label))
                continue
            said, label = step.residual(context, row)
            return Verdict(tuple(range(row)), said, (*note, step.logged(label, said)))
        last = whole(context.draw(logits[len(tokens)], tokens))
        return Verdict(tuple(range(len(tokens))), last, (*note, self._logged(last, len(tokens), context)))

    def _logged(self, token: int, depth: int, context: Context) -> Labelled:
        """A token that the target drew itself: its label is drawn after it."""
        label = _one_of(self.labels.labels_of(token), context.uniform(depth, "label"))
        return Labelled(self.labels.name(label), len(self.labels.members(label)), token)


class Step:
    """The labels of one place under ``Pcg``: those of ``Labels``, and behind them every token once more as a label of its own at this step."""

    def __init__(self, labels: Labels, draft: np.ndarray, target: np.ndarray, capped: float | None) -> None:
        self.labels = labels
        self.own = len(labels.names)  # label of token 0 by itself
        self.tokens = target
        self.apart = np.zeros(self.own)
        supported = target > 0
        inside = np.where(supported, draft, 0)
        p, q = labels.masses(inside), labels.masses(target)
        self.open = np.ones(self.own, bool)
        members, owners = labels.groups.members, labels.owners
        with np.errstate(invalid="ignore", divide="ignore"):
            gaps = np.abs(np.nan_to_num(inside[members] / p[owners]) - np.nan_to_num(target[members] / q[owners])) * labels.weights[members] / 2
        self.apart[: len(labels.groups)] = np.bincount(owners, gaps, minlength=len(labels.groups))
        if capped is not None:
            self.open = self.apart <= capped
        shut = ~self.open[owners]  # memberships that are broken up
        loose = np.bincount(members[shut], labels.weights[members[shut]], minlength=len(target))  # the share of a token that is by itself
        self.supported = supported
        self.draft = np.concatenate([np.where(self.open, p, 0), np.where(supported, loose * draft, draft)])
        self.target = np.concatenate([np.where(self.open, q, 0), loose * target])

    def label(self, token: int, uniform: float) -> int:
        """One of a token's labels at this step, each as likely as the others."""
        label = _one_of(self.labels.labels_of(token), uniform)
        return label if self.supported[token] and self.open[label] else self.own + token

    def residual(self, context: Context, row: int) -> tuple[int, int]:
        """A token and label from what the target has over the drafter: y from q and a label of it, kept with probability 1 - P/Q, else drawn again.

        After ``TRIALS`` draws the residual is written out; where rounding leaves nothing of it, it is q.
        """
        total = np.cumsum(self.tokens)
        for trial in range(TRIALS):
            token = int(np.searchsorted(total, context.uniform(row, "residual", 3 * trial) * total[-1], side="right"))
            label = self.label(token, context.uniform(row, "residual", 3 * trial + 1))
            if context.uniform(row, "residual", 3 * trial + 2) * self.target[label] < self.target[label] - self.draft[label]:
                return token, label
        return self.written_out(context.uniform(row, "residual", 3 * TRIALS), context.uniform(row, "residual", 3 * TRIALS + 1))

    def written_out(self, first: float, second: float) -> tuple[int, int]:
        """The same draw without trials, from two uniform numbers: the label from its residual, then a token of it as the target has them."""
        rest = np.maximum(self.target - self.draft, 0)
        if not rest.any():
            rest = self.target
        label = _index(rest, first)
        if label >= self.own:
            return label - self.own, label
        members = self.labels.members(label)
        return int(members[_index(self.tokens[members] * self.labels.weights[members], second)]), label

    def logged(self, label: int, said: int | None = None) -> Labelled:
        """The log of a token that was accepted for its label, or that the target drew."""
        apart = float(self.apart[label]) if said is None and label < self.own else 0.0
        name, size = (self.labels.name(label), len(self.labels.members(label))) if label < self.own else (label - self.own, 1)
        return Labelled(name, size, said, apart, apart)


def _one_of(labels: Sequence[int] | np.ndarray, uniform: float) -> int:
    return int(labels[min(int(uniform * len(labels)), len(labels) - 1)])


def _index(masses: np.ndarray, uniform: float) -> int:
    """A place with probability in proportion to its mass."""
    total = np.cumsum(masses)
    return min(int(np.searchsorted(total, uniform * total[-1], side="right")), int(np.flatnonzero(masses)[-1]))
